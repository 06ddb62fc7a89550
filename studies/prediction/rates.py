"""Link rates in tc's words, and what of a rate is left for payload."""

import re

from common.core.failures import UsageError

# A full Ethernet frame of 1514 bytes carries 1448 of payload behind the headers of Ethernet, IPv4
# and TCP with time stamps. tc's tbf counts the frame; so do a cable's 24 bytes of gap besides.
PAYLOAD_SHARE = 1448 / 1514
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def payload_rate(rate: str | float) -> float:
    """Bytes of payload a second each way; infinite for "none". Raises UsageError.

    A number is a rate of payload that was measured.
    """
    if isinstance(rate, float):
        return rate
    if rate == "none":
        return float("inf")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not found or not float(found[1]):
        raise UsageError(f"{rate!r} is no rate: write 300mbit, 1gbit or none")
    return float(found[1]) * UNITS[found[2]] * PAYLOAD_SHARE / 8

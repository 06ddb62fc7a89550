"""Byte counters of a host's network interfaces, from the kernel.

    python3 -c "from studies.choosing.counters import *; print(read_counters())"
"""

from pathlib import Path
from typing import NamedTuple

# Ethernet 14, IPv4 20, TCP with time stamps 32: what each packet carries beside its payload.
HEADER_BYTES = 66


class Counters(NamedTuple):
    """Bytes and packets, both ways, over all interfaces but loopback, since the host began."""

    sent: int
    sent_packets: int
    received: int
    received_packets: int

    def __sub__(self, before: "Counters") -> "Counters":  # type: ignore[override]
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def payload_sent(self) -> int:
        """Payload bytes sent, without headers.

        The kernel may count one long packet before it is cut up, or its pieces after: this is the
        same for both, and 0 for a bare acknowledgement.
        """
        return self.sent - HEADER_BYTES * self.sent_packets

    @property
    def payload_received(self) -> int:
        """Payload bytes received; see payload_sent."""
        return self.received - HEADER_BYTES * self.received_packets


def read_counters(table: Path = Path("/proc/net/dev")) -> Counters:
    """The counters of this process's network namespace: those of /sys/class/net/*/statistics.

    /proc/net/dev follows the namespace wherever /sys is mounted.
    """
    rows = [line.split(":") for line in table.read_text().splitlines()[2:]]
    numbers = [[int(word) for word in row[1].split()] for row in rows if row[0].strip() != "lo"]
    return Counters(*(sum(row[column] for row in numbers) for column in (8, 9, 0, 1)))

"""Choice of this machine's address and interface for a run, and checks of the master's address.

    python3 -c "from common.cluster.addresses import *; print(interface_addresses())"
"""

import errno
import fcntl
import ipaddress
import os
import resource
import socket
import struct
from collections.abc import Callable

from common.core.failures import PeerLost, UsageError
from common.core.provenance import lines_of

_SIOCGIFADDR = 0x8915


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def place(address: str, port: int) -> str:
    """Both in one word: 10.0.0.1:29500, or [fd00::1]:29500."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def resolve(host: str) -> str:
    """The address of `host`, IPv4 where it has both; raises UsageError when the name is unknown."""
    try:
        addresses = socket.getaddrinfo(host, None)
    except OSError as error:
        raise UsageError(f"the master address {host!r} cannot be resolved ({error.strerror}); "
                         "give --master-ip as an address such as 10.0.0.1") from None
    return str(min(addresses, key=lambda each: each[0] == socket.AF_INET6)[4][0])


def local_address_towards(master: str, port: int) -> str:
    """This machine's address on the route to `master`: connects a UDP socket, sends nothing."""
    with socket.socket(family_of(master), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, port))
        except OSError as error:
            raise PeerLost(f"there is no route from {socket.gethostname()} to the master {master} "
                           f"({error.strerror})") from None
        return probe.getsockname()[0]


def interface_addresses() -> list[tuple[str, str]]:
    """(interface, address) for each interface's IPv4 address, then for its IPv6 addresses."""
    pairs = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue  # an interface without an IPv4 address
            pairs.append((name, socket.inet_ntoa(reply[20:24])))
    rows = (line.split() for line in lines_of("/proc/net/if_inet6"))
    return pairs + [(row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))) for row in rows]


def choose_interface(wanted: str | None, master: str, port: int) -> tuple[str, str]:
    """(interface, address) for gloo: the wanted one, else the one that reaches the master.

    Raises UsageError for an interface that this machine does not have.
    """
    family = family_of(master)
    mine = [each for each in interface_addresses() if family_of(each[1]) == family]
    if wanted is not None:
        if not (matching := [each for each in mine if each[0] == wanted]):
            kind = "IPv6" if family == socket.AF_INET6 else "IPv4"
            raise UsageError(f"this machine has no interface {wanted!r} with an {kind} address; it "
                             f"has {', '.join(sorted({name for name, _ in mine}))}")
        return matching[0]
    address = local_address_towards(master, port)
    return next((name for name, other in mine if other == address), "lo"), address


def allow_connections() -> None:
    """Raises this process's limit of open files as far as it may.

    The usual 1,024 are too few for the leader of 500 ranks, whose store has two connections a rank.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens on this one address only, for the store to use. Leader only."""
    try:
        return socket.create_server((address, port), family=family_of(address), backlog=1024)
    except OSError as error:
        raise UsageError(_why_not_bound(address, port, error.errno or 0)) from None


def _why_not_bound(address: str, port: int, number: int) -> str:
    if number == errno.EADDRINUSE:
        return (f"port {port} on {address} is in use, by another run or another program: choose "
                "another --master-port on every node")
    if number == errno.EADDRNOTAVAIL:
        mine = ", ".join(sorted(mine for _, mine in interface_addresses()
                                if family_of(mine) == family_of(address)))
        return (f"{address} is no address of {socket.gethostname()} (it has {mine}): rank 0 must "
                "run on the machine that --master-ip names")
    return f"cannot listen on {place(address, port)}: {os.strerror(number)}"


def warn_of_public_address(address: str, say: Callable[[str], None]) -> None:
    """Warns when the master's address is public: anybody on the internet could then connect."""
    if ipaddress.ip_address(address).is_global:
        say(f"warning: {address} is a public address, and the ranks communicate without encryption "
            "or passwords: use a private network or a tunnel (docs/security.md)")


def loopback_hint(name: str) -> str:
    """Why other machines may not find the master; "" unless its `name` means loopback here.

    Debian maps a host's own name to 127.0.1.1. For ranks on this one machine that does no harm.
    """
    address = resolve(name)
    if not ipaddress.ip_address(address).is_loopback or name in (address, "localhost"):
        return ""
    return (f"; note that {name} means {address} here (see /etc/hosts), which no other machine "
            "reaches: give --master-ip as rank 0's address in the cluster")

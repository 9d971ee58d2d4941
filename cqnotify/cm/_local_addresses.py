# SPDX-License-Identifier: MIT
"""Which addresses of this host lead to a device."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from ..context import Context

_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16sHH4s16x")  # with a sockaddr_in


def local_addresses(context: Context) -> list[str]:
    """Return the addresses of this host that lead to a device, for `listen` and for peers.

    context: the Context of the device.

    IPv4 comes before IPv6, and link-local addresses come last, with their interface: fe80::1%eth0.
    A peer on another host gives the name of an interface of its own.
    """
    entries = context.query_gid_table()
    netdevs = dict.fromkeys(entry.netdev for entry in entries if entry.netdev is not None)
    mapped = [str(entry.gid.ipv4_mapped) for entry in entries if entry.gid.ipv4_mapped]
    found = [*mapped]
    for netdev in netdevs:
        found += _ipv4(netdev)
    for netdev in netdevs:
        found += sorted(_ipv6(netdev), key=lambda address: "%" in address)
    return list(dict.fromkeys(found))


def _ipv4(netdev: str) -> Iterator[str]:
    """Yield the first address of an interface, which is all that an iWARP device needs."""
    request = _IFREQ.pack(netdev.encode(), socket.AF_INET, 0, bytes(4))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock, _SIOCGIFADDR, request)
        yield socket.inet_ntoa(_IFREQ.unpack(answer)[3])


def _ipv6(netdev: str) -> Iterator[str]:
    for address, name in ipv6_addresses():
        if name == netdev:
            yield f"{address}%{netdev}" if address.is_link_local else str(address)


def ipv6_addresses() -> Iterator[tuple[IPv6Address, str]]:
    """Yield the IPv6 addresses of this host, each with its interface."""
    try:
        table = Path("/proc/net/if_inet6").read_text()
    except FileNotFoundError:  # a kernel without IPv6
        return
    for line in table.splitlines():
        digits, *_, name = line.split()
        yield IPv6Address(int(digits, 16)), name

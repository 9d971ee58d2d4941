# SPDX-License-Identifier: MIT
"""Addresses: rdma://host:port, as with TCP."""

from __future__ import annotations

import errno
import ipaddress
import logging
from contextlib import suppress
from typing import Any, Final

from .. import Context, VerbsError, devices
from ..cm import local_addresses, lookup
from ..context import is_iwarp
from ._distributed import parse_host_port, unparse_host_port

PREFIX: Final = "rdma://"
ANY: Final = ("", "0.0.0.0", "::")
LOCAL_CLUSTERS: Final = "127.0.0.1"
logger: Final = logging.getLogger(__name__)


def parse(loc: str, default_port: int | None = None) -> tuple[str, int]:
    """The host, which is empty for any address, and the port. ValueError, also for loopback."""
    host, port = parse_host_port(loc, default_port)
    if _is_loopback(str(host)):
        raise _loopback(loc)
    return str(host), int(port)


async def addresses(loc: str, host: str) -> list[str]:
    """Those of a host by which it may be reached. A thread asks the name servers, as long as they
    take. ValueError if it has none but loopback."""
    if host in ANY:
        return [host]
    found = [one for one in await lookup(host, timeout=None) if not _is_loopback(one)]
    if not found:
        raise _loopback(loc)
    return found


def _loopback(loc: str) -> ValueError:
    return ValueError(
        f"{PREFIX}{loc}: no RDMA device is reached by a loopback address; give an address of "
        f"an interface that has one (host=, or interface=), {_for_example()}"
    )


def where_to_listen(loc: str, default_port: int | None = None) -> tuple[str, int]:
    """The same for a listener. LocalCluster that was given no host asks for 127.0.0.1, which means
    this machine: that is the address of its first device."""
    host, port = parse_host_port(loc, default_port)
    if host != LOCAL_CLUSTERS:
        return parse(loc, default_port)
    host = own_address(host)
    logger.info("%s leads to no RDMA device: listening on %s", PREFIX + loc, host)
    return host, int(port)


def url(host: str, port: int | None) -> str:
    return PREFIX + str(unparse_host_port(host, port))


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _for_example() -> str:
    own = own_addresses()
    return f"here {', '.join(own)}" if own else "and this host has none"


def own_addresses() -> list[str]:
    """Those of this host that lead to an RDMA device, IPv4 first, and those of the link last."""
    found: list[str] = []
    for device in devices():
        with suppress(VerbsError), Context(device) as context:  # it may be one of others
            found += local_addresses(context)
    return sorted(found, key=lambda address: (":" in address, "%" in address))


def own_address(host: str) -> str:
    """The one at which peers reach a listener that listens on all of them, which the host means."""
    own = own_addresses()
    if host == "::" and any(is_iwarp(device) for device in devices()):
        own = [address for address in own if ":" in address]  # all that the kernel listens on then
    if not own:
        raise OSError(errno.ENODEV, f"{PREFIX}: this host has no address of an RDMA device")
    return own[0]


def means_in_use(error: OSError, host: str) -> bool:
    """Whether it is the port that cannot be bound; Dask tries the next one of a range then. Where
    one of the listeners listens on all addresses, rdma_cm says that there is no such address."""
    return error.errno == errno.EADDRNOTAVAIL and (host in ANY or host in own_addresses())


def check_security(loc: str, given: dict[str, Any]) -> None:
    """Refuse what would make believe that the connection is encrypted."""
    for name in ("require_encryption", "ssl_context"):
        if given.get(name):
            raise RuntimeError(
                f"{PREFIX}{loc}: RDMA carries nothing encrypted, so a Dask configuration with "
                f"{name} is refused; use tls://, or leave security= out in a network that you trust"
            )

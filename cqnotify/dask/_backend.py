# SPDX-License-Identifier: MIT
"""What distributed asks for by its entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._comm import Comm
from ._distributed import BaseBackend, ensure_ip, get_ip, parse_host_port, unparse_host_port
from ._endpoints import Connector, Listener


class Backend(BaseBackend):
    """Here `loc` is an address without rdma://."""

    def get_connector(self) -> Connector:
        """Return what connects."""
        return Connector()

    def get_listener(
        self, loc: str, handle_comm: Callable[[Comm], Any], deserialize: bool, **given: Any
    ) -> Listener:
        """Return what listens on `loc` and calls `handle_comm` with each connection."""
        return Listener(loc, handle_comm, deserialize, **given)

    def get_address_host(self, loc: str) -> str:
        """Return the host of an address."""
        return str(parse_host_port(loc)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """Return the host and the port of an address."""
        host, port = parse_host_port(loc)
        return str(host), int(port)

    def resolve_address(self, loc: str) -> str:
        """Return the same with an IP address for a name."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        """Return the address from which the kernel would send there."""
        host, _ = parse_host_port(loc)
        return str(unparse_host_port(get_ip(ensure_ip(host))))

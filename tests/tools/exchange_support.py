# SPDX-License-Identifier: MIT
"""The ends of the address exchange: ours, called as functions that block, and peers by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from hypothesis import strategies as st
from support import DEADLINE

from cqnotify import QPAddress
from cqnotify.exchange import blocking, exchange_as_client, exchange_as_server

OURS = QPAddress(0x12, 0x345, 0xABCDEF, IPv6Address("fe80::1"))
THEIRS = QPAddress(0, 0xFFFFFF, 0, IPv6Address("::ffff:10.1.2.3"))
WIRE = b"0012:000345:abcdef:fe800000000000000000000000000001\0"
DONE = b"done\0"
HELLO = b"data:00000005\0hello"
MANY = 256  # records, as ibv_srq_pingpong exchanges


def many(address: QPAddress) -> list[QPAddress]:
    return [address._replace(qp_num=i) for i in range(MANY)]


addresses = st.builds(
    QPAddress,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
    st.builds(IPv6Address, st.integers(0, 2**128 - 1)),
)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def ignore(remote: object) -> None:
    """Connects nothing."""


# ---- our ends -------------------------------------------------------------------------------


class Role:
    """Our two ends, with usual arguments: a client is OURS, a server THEIRS."""

    def __init__(self, client: Callable[..., Any], server: Callable[..., Any]) -> None:
        self._client = client
        self._server = server

    def client(self, port: int, address: Any = OURS, **options: Any) -> Any:
        return self._client("127.0.0.1", port, address, **{"timeout": DEADLINE, **options})

    def server(
        self,
        listener: socket.socket,
        address: Any = THEIRS,
        connect: Callable[..., object] = ignore,
        **options: Any,
    ) -> Any:
        return self._server(listener, address, connect, **{"timeout": DEADLINE, **options})


def in_a_loop(exchange: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: asyncio.run(exchange(*args, **options))


ROLES = {
    "asyncio": Role(in_a_loop(exchange_as_client), in_a_loop(exchange_as_server)),
    "blocking": Role(blocking.exchange_as_client, blocking.exchange_as_server),
}


# ---- peers by hand --------------------------------------------------------------------------


def read_all(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or those up to the end."""
    data = b""
    while len(data) < size and (chunk := sock.recv(size - len(data))):
        data += chunk
    return data


def client_by_hand(listener: socket.socket, sent: bytes = b"", ends: bool = False) -> socket.socket:
    """A client that has sent this, and nothing comes after it if it ends there."""
    sock = socket.create_connection(listener.getsockname(), timeout=DEADLINE)
    sock.sendall(sent)
    if ends:
        sock.shutdown(socket.SHUT_WR)
    return sock


def server_by_hand(listener: socket.socket, reply: bytes, ends: bool = False) -> bytes:
    """All that a client sends to a server that answers its record so."""
    sock, _ = listener.accept()
    with sock:
        sent = read_all(sock, 52)
        with contextlib.suppress(OSError):  # the client may hang up on us
            sock.sendall(reply)
            if ends:
                sock.shutdown(socket.SHUT_WR)
            sent += read_all(sock, 1000)
    return sent

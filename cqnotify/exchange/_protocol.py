# SPDX-License-Identifier: MIT
"""The protocol of the address exchange, without sockets: _async.py and blocking.py carry it out.

The steps of each end are a generator. It yields bytes, which the caller writes, or a number, and
the caller sends it as many bytes that it has read. A ConnectionError is thrown into the generator.

    client                              server
    one record for each address   ->    reads them, connects its QP
                                  <-    as many records
    [its payload                  ->
                                  <-    its payload]
    "done\\0"                      ->

Without the payloads this is what rdma-core's ping-pong programs do, byte by byte. A payload stands
after the records, where those programs expect "done", so that neither end waits for bytes that the
other does not send: from the five bytes there a server learns whether its client has a payload or
is done. A server without a payload then closes the connection, as rdma-core's do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

from ..qp import RECORD_SIZE, QPAddress

__all__ = [
    "DEFAULT_TIMEOUT",
    "MAX_PAYLOAD",
    "RETRY",
    "Addresses",
    "OnReject",
    "Payload",
    "PerftestError",
    "Server",
    "Steps",
    "Theirs",
    "as_addresses",
    "as_payload",
    "client",
    "early_end",
    "like",
    "result",
    "result_of",
]

MAX_PAYLOAD: Final = 65536
DEFAULT_TIMEOUT: Final = 30.0
CLIENT_TIMEOUT: Final = 10.0  # seconds for one client, if the server goes on after one that fails
RETRY: Final = 0.05  # seconds between two tries to connect to a server that does not listen yet

_DONE: Final = b"done\0"
_DATA: Final = b"data:"  # as long as _DONE; then come the length and the bytes
_LENGTH: Final = re.compile(rb"([0-9a-f]{8})\0")
_LENGTH_SIZE: Final = 9
_BEGIN: Final = re.compile(rb"[0-9a-f]{4}:")  # of a record
_BEGIN_SIZE: Final = 5
_VERSION: Final = re.compile(rb"\d\.\d\d\0")  # with which the programs of perftest begin
_WHY_NONE: Final = "it was given none, or is one of rdma-core's programs"

Addresses = TypeVar("Addresses", QPAddress, "list[QPAddress]")
Payload: TypeAlias = bytes | bytearray | memoryview
OnReject: TypeAlias = Callable[[str, Exception], object]


class Theirs(NamedTuple):
    """The addresses and the payload of the peer."""

    addresses: list[QPAddress]
    payload: bytes | None


class PerftestError(ValueError):
    """The peer is a program of perftest, whose protocol is another one."""


Steps: TypeAlias = Generator["bytes | int", bytes, Theirs]


def as_addresses(address: QPAddress | list[QPAddress]) -> list[QPAddress]:
    """Return the argument of an exchange as a list; ValueError if it is empty."""
    addresses = [address] if isinstance(address, QPAddress) else list(address)
    if not addresses:
        raise ValueError("address is an empty list: there is nothing to exchange")
    return addresses


@overload
def like(address: QPAddress, remote: list[QPAddress]) -> QPAddress: ...
@overload
def like(address: list[QPAddress], remote: list[QPAddress]) -> list[QPAddress]: ...
def like(
    address: QPAddress | list[QPAddress], remote: list[QPAddress]
) -> QPAddress | list[QPAddress]:
    """Return the peer's addresses in the form of the argument: one address, or a list."""
    return remote[0] if isinstance(address, QPAddress) else remote


def as_payload(payload: Payload | None) -> bytes | None:
    """Return a copy; TypeError if the payload is not bytes, ValueError if it is too long."""
    if payload is None:
        return None
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
    data = bytes(payload)
    if len(data) > MAX_PAYLOAD:
        raise ValueError(f"payload has {len(data)} bytes: the limit is {MAX_PAYLOAD}")
    return data


def client(ours: list[QPAddress], payload: bytes | None) -> Steps:
    """The steps of a client."""
    yield _to_wire(ours)
    theirs = yield from _receive(len(ours))
    got = None
    if payload is not None:
        try:
            yield _frame(payload)
            got = yield from _receive_payload((yield len(_DATA)), "server")
        except ConnectionError as e:
            raise ConnectionError(
                f"the server closed the connection when it should give its payload: {_WHY_NONE}"
            ) from e
    yield _DONE
    return Theirs(theirs, got)


class Server(Generic[Addresses]):
    """The steps of a server, for one client after the other until one is the peer."""

    def __init__(
        self,
        address: Addresses,
        connect: Callable[[Addresses], object],
        on_reject: OnReject | None,
        payload: bytes | None = None,
    ) -> None:
        self._address: Addresses = address
        self._ours = as_addresses(address)
        self._payload = payload
        self._connect: Callable[[Addresses], object] = connect
        self._on_reject = on_reject
        self._chosen = False

    def steps(self) -> Steps:
        """The steps with one client."""
        theirs = yield from _receive(len(self._ours))
        self._chosen = True
        self._connect(like(self._address, theirs))
        yield _to_wire(self._ours)
        word = yield len(_DONE)
        got = None
        if self._payload is not None:
            got = yield from _receive_payload(word, "client")
            yield _frame(self._payload)
            word = yield len(_DONE)
        _check_done(word)
        return Theirs(theirs, got)

    def client_timeout(self, deadline: float) -> float:
        """Return the seconds for one client."""
        left = max(0.0, deadline - time.monotonic())
        return left if self._on_reject is None else min(left, CLIENT_TIMEOUT)

    def reject(self, peer: object, error: Exception) -> None:
        """Report a client that has failed, or raise its error, which is being handled."""
        if self._on_reject is None or self._chosen:
            raise error
        self._on_reject(_name(peer), error)


def result(address: Addresses, theirs: Theirs) -> Addresses | tuple[Addresses, bytes]:
    remote = like(address, theirs.addresses)
    return remote if theirs.payload is None else (remote, theirs.payload)


def result_of(end: StopIteration) -> Theirs:
    assert isinstance(end.value, Theirs)
    return end.value


def early_end(got: int, wanted: int) -> ConnectionError:
    return ConnectionError(f"the peer closed the connection after {got} of {wanted} bytes")


def _name(peer: object) -> str:
    """Return a socket's address as text."""
    assert isinstance(peer, tuple)
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _to_wire(addresses: list[QPAddress]) -> bytes:
    return b"".join(address.to_wire() for address in addresses)


def _receive(count: int) -> Generator[int, bytes, list[QPAddress]]:
    """Parse each record when it has come: a peer that sends garbage is refused at once.

    So is one that sends less, and waits for an answer to that.
    """
    begin = yield _BEGIN_SIZE
    if _VERSION.match(begin):
        raise PerftestError(
            f"not an address record: it begins with {begin!r}, as programs of perftest do"
        )
    if not _BEGIN.match(begin):
        raise ValueError(f"not an address record: it begins with {begin!r}")
    theirs = [QPAddress.from_wire(begin + (yield RECORD_SIZE - _BEGIN_SIZE))]
    for _ in range(count - 1):
        theirs.append(QPAddress.from_wire((yield RECORD_SIZE)))
    return theirs


def _check_done(word: bytes) -> None:
    if word == _DATA:
        raise ValueError(
            "the client has a payload and this server none: both need one, b'' at least"
        )
    if word != _DONE:
        raise ValueError(f"the peer ended the exchange with {word!r} instead of {_DONE!r}")


def _frame(payload: bytes) -> bytes:
    return _DATA + b"%08x\0" % len(payload) + payload


def _receive_payload(word: bytes, peer: str) -> Generator[int, bytes, bytes]:
    """Receive a payload; `word`, its first bytes, has come already."""
    if word == _DONE:
        raise ValueError(f"the {peer} ended the exchange without a payload: {_WHY_NONE}")
    if word != _DATA:
        raise ValueError(f"the {peer} sent {word!r} where its payload should begin")
    text = yield _LENGTH_SIZE
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise ValueError(f"not the length of a payload: {text!r}")
    length = int(match[1], 16)
    if length > MAX_PAYLOAD:
        raise ValueError(f"the {peer}'s payload has {length} bytes: the limit is {MAX_PAYLOAD}")
    return (yield length) if length else b""

# SPDX-License-Identifier: MIT
"""Arguments are checked before anything is asked of the device, and refused in words."""

from __future__ import annotations

import socket
from typing import Any, Final

from ..enums import QPState, QPType, enum_or_int
from ..qp import QP
from ._link import Address, Options

# How much private data the kernel lets a program send, by call and by whether it is of datagrams.
CONNECT: Final = {False: 56, True: 180}
ACCEPT: Final = {False: 196, True: 136}
REJECT: Final = {False: 148, True: 136}

LIMITS: Final = {
    "ack_timeout": 31,
    "tos": 255,
    "retry_count": 7,
    "rnr_retry_count": 7,
    "responder_resources": 255,
    "initiator_depth": 255,
}


def _number(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: it must be {least} to {most}")


def check_port(port: object, least: int = 0) -> None:
    _number("port", port, least, 0xFFFF)


def check_backlog(backlog: object) -> None:
    _number("backlog", backlog, 1, 0x7FFFFFFF)


def check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None")


def check_private_data(data: object, limits: dict[bool, int], datagrams: bool) -> bytes:
    try:
        private_data = bytes(memoryview(data))  # type: ignore[arg-type]
    except TypeError:
        kind = type(data).__name__
        raise TypeError(f"private_data must be a bytes-like object, not {kind}") from None
    limit = limits[datagrams]
    if len(private_data) > limit:
        raise ValueError(f"private_data has {len(private_data)} bytes: at most {limit} fit here")
    return private_data


def check_qp(qp: object) -> QP:
    """One that can be connected."""
    if not isinstance(qp, QP):
        raise TypeError(f"qp must be a QP, not {type(qp).__name__}")
    kind, state = qp.qp_type, qp.state
    if kind not in (QPType.RC, QPType.UD):
        raise ValueError(f"the QP is of type {kind.name}: rdma_cm connects RC and UD")
    if state == QPState.RESET or (kind == QPType.UD and state == QPState.RTS):
        return qp
    name = getattr(enum_or_int(QPState, int(state)), "name", state)
    raise ValueError(
        f"QP {qp.qp_num} is in {name}: rdma_cm makes all transitions itself, so take a new QP, or "
        "one that was reset"
    )


def connection_options(
    qp: object,
    private_data: object,
    limits: dict[bool, int],
    timeout: object,
    **given: Any,
) -> Options:
    """Check what connect() and accept() take. `given`: the fields of Options."""
    datagrams = check_qp(qp).qp_type == QPType.UD
    check_timeout(timeout)
    for name, most in LIMITS.items():
        if given.get(name) is not None:
            _number(name, given[name], 0, most)
    access = given["access"]
    if not isinstance(access, int):
        raise TypeError(f"access must be AccessFlags, not {type(access).__name__}")
    return Options(check_private_data(private_data, limits, datagrams), **given)


# ---- addresses --------------------------------------------------------------------------------


def numeric(host: str, port: int) -> Address | None:
    """The address, if `host` is one and no name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None
    return addresses_of(found)[0]


def host_name(host: object) -> str:
    text = str(host)
    if not text or "\0" in text:
        raise ValueError(f"host is {text!r}: give an address or a name")
    return text


def addresses_of(found: list[Any]) -> list[Address]:
    """What getaddrinfo() has found, in its order, with the scopes of link-local addresses."""
    addresses: list[Address] = []
    for *_, address in found:
        host = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
        if (host, address[1]) not in addresses:
            addresses.append((host, address[1]))
    return addresses


def unresolved(host: str, error: socket.gaierror) -> socket.gaierror:
    return socket.gaierror(error.errno, f"{host!r} does not resolve: {error.strerror}")

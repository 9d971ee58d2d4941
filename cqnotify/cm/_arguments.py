# SPDX-License-Identifier: MIT
"""Checks of arguments, before any call of the device; the errors say what is allowed."""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import Any, Final

from .. import _core
from .._timeouts import check_timeout as check_timeout
from ..context import is_iwarp
from ..enums import QPState, QPType, number_of
from ..qp import QP
from ._keepalive import ack_timeout_for
from ._link import AS_MANY, Address, Options
from ._local_addresses import ipv6_addresses

# How much private data the kernel lets a program send with each call: without and with datagrams.
# On iWARP it is more, and the same for each call.
CONNECT: Final = {False: 56, True: 180}
ACCEPT: Final = {False: 196, True: 136}
REJECT: Final = {False: 148, True: 136}
IWARP: Final = 251

# Each connection needs these several times.
RC, UD, RESET = int(QPType.RC), int(QPType.UD), int(QPState.RESET)
raw_type: Final = _core.QP.qp_type.__get__

OF_LINKS: Final = ipaddress.IPv6Network("fe80::/10")
LEAST_KEEPALIVE: Final = 0.01

# Fields of Options, by the parameters of connect().
GIVEN: Final = (
    *("access", "ack_timeout", "tos", "retry_count", "rnr_retry_count"),
    *("responder_resources", "initiator_depth", "keepalive"),
)

DEPTHS: Final = slice(5, 7)  # of GIVEN
LIMITED_BY: Final = {  # the attributes of the device that limit them
    "responder_resources": "max_qp_rd_atom",
    "initiator_depth": "max_qp_init_rd_atom",
}

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
    if type(port) is not int or not least <= port <= 0xFFFF:
        _number("port", port, least, 0xFFFF)


def check_backlog(backlog: object) -> None:
    _number("backlog", backlog, 1, 0x7FFFFFFF)


def _bytes_of(data: object) -> bytes:
    if type(data) is bytes:
        return data
    try:
        return bytes(memoryview(data))  # type: ignore[arg-type]
    except TypeError:
        kind = type(data).__name__
        raise TypeError(f"private_data must be a bytes-like object, not {kind}") from None


def _check_length(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise ValueError(f"private_data has {len(data)} bytes: at most {limit} fit here")
    return data


def check_private_data(data: object, limits: dict[bool, int], qp: QP) -> bytes:
    """Return the private data for a connection of this QP."""
    private_data = _bytes_of(data)
    limit = limits[is_datagrams(qp)]
    if len(private_data) > limit and is_iwarp(qp.context):
        limit = IWARP
    return _check_length(private_data, limit)


def rejection(data: object, iwarp: bool, datagrams: bool) -> bytes:
    """Return the private data of a rejection, for which there is no QP."""
    return _check_length(_bytes_of(data), IWARP if iwarp else REJECT[datagrams])


def check_qp(qp: object) -> QP:
    """Return the QP, if it can be connected."""
    if not isinstance(qp, QP):
        raise TypeError(f"qp must be a QP, not {type(qp).__name__}")
    kind, state = raw_type(qp), qp._own_state  # no device leaves RESET by itself
    if kind != RC and kind != UD:
        raise ValueError(f"the QP is of type {qp.qp_type.name}: rdma_cm connects RC and UD")
    if state == RESET or (kind == UD and state == QPState.RTS):
        return qp
    needs_new = is_iwarp(qp.context)
    if needs_new and state == QPState.INIT:  # its first state
        return qp
    name = getattr(qp.state, "name", state)
    raise ValueError(
        f"QP {qp.qp_num} is in {name}: rdma_cm makes all transitions itself, so use a new QP"
        + ("" if needs_new else ", or one that was reset")
    )


def is_datagrams(qp: QP) -> bool:
    return bool(raw_type(qp) == UD)


def check_member(qp: object, timeout: object) -> None:
    """Check a member of a multicast group."""
    if check_qp(qp).qp_type != QPType.UD:
        raise ValueError("only a UD QP can be a member of a multicast group")
    check_timeout(timeout)


def check_group(host: str) -> None:
    if not ipaddress.ip_address(host.partition("%")[0]).is_multicast:
        raise ValueError(f"{host} is no multicast address: take one of 224.0.0.0/4 or ff00::/8")


def connection_options(
    qp: object,
    private_data: object,
    limits: dict[bool, int],
    timeout: object,
    given: tuple[Any, ...],
) -> Options:
    """Check the arguments of connect() and accept(); `given` has those that GIVEN names."""
    if type(qp) is not QP or raw_type(qp) != RC or qp._own_state != RESET:
        qp = check_qp(qp)
    if timeout is not None:
        check_timeout(timeout)
    if given[-1] is not None:
        check_keepalive(qp, given[-1])
    try:
        options = _known_options(*given)
    except TypeError:  # also raised for what is not hashable, and so has the wrong type
        options = _options(*given)
    if given[DEPTHS] != (None, None):
        check_depths(qp, *given[DEPTHS])
    if private_data == b"" and type(private_data) is bytes:
        return options
    return options._replace(private_data=check_private_data(private_data, limits, qp))


def options_by_name(qp: object, limits: dict[bool, int], given: dict[str, Any]) -> Options:
    """Check the same, where all parameters are in a dict."""
    fields = tuple(given[name] for name in GIVEN)
    return connection_options(qp, given["private_data"], limits, given["timeout"], fields)


def check_depths(qp: QP, *given: int | None) -> None:
    """Refuse what the device does not have, for which librdmacm has no error message."""
    device = _core.Context.query_device(qp.context)
    for (name, limit), value in zip(LIMITED_BY.items(), given, strict=True):
        most = device[limit]
        if value is not None and 0 < most < value:  # some devices report 0
            raise ValueError(
                f"{name} is {value}: {qp.context.name} has at most {most} ({limit}); None is as "
                "many as it has"
            )


def _options(*fields: Any) -> Options:
    given = dict(zip(GIVEN, fields, strict=True))
    for name, most in LIMITS.items():
        if given[name] is not None:
            _number(name, given[name], 0, most)
    access = number_of(given["access"], "access", "AccessFlags such as AccessFlags.REMOTE_WRITE")
    if not 0 <= access <= 0xFFFFFFFF:
        raise ValueError(f"access is {access:#x}: it must be AccessFlags")
    if given["keepalive"] is not None and given["ack_timeout"] is None:
        given["ack_timeout"] = ack_timeout_for(given["keepalive"], given["retry_count"])
    for name in ("responder_resources", "initiator_depth"):
        if given[name] is None:
            given[name] = AS_MANY
    return Options(**given)


_known_options = functools.lru_cache(256, typed=True)(_options)  # most connections have the same


def check_keepalive(qp: QP, keepalive: object) -> None:
    if isinstance(keepalive, bool) or not isinstance(keepalive, (int, float)):
        raise TypeError(f"keepalive must be a number of seconds or None, not {keepalive!r}")
    if not LEAST_KEEPALIVE <= keepalive < float("inf"):
        raise ValueError(f"keepalive is {keepalive}: it must be {LEAST_KEEPALIVE} s or more")
    if qp.qp_type == QPType.UD:
        raise ValueError("keepalive is for RC: datagrams have no connection that could be lost")
    if is_iwarp(qp.context):
        raise ValueError(
            f"keepalive: on {qp.context.name}, an iWARP device, an RDMA write completes before "
            "the peer has it, and so tells nothing"
        )


# ---- addresses --------------------------------------------------------------------------------


def _numeric_host(host: str) -> str | None:
    host_name(host)
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None
    return addresses_of(found)[0][0]


_known_host = functools.lru_cache(256)(_numeric_host)


def numeric(host: object, port: int) -> Address | None:
    """Return the address, if `host` is one and not a name."""
    known = _known_host(host_name(host) if type(host) is not str else host)
    return None if known is None else (known, port)


def host_name(host: object) -> str:
    text = str(host)
    if not text or "\0" in text:
        raise ValueError(f"host is {text!r}: give an address or a name")
    return text


def addresses_of(found: list[Any]) -> list[Address]:
    """Return the addresses that getaddrinfo() has found, link-local ones with their interface."""
    addresses: list[Address] = []
    for *_, address in found:
        host = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
        if (host, address[1]) not in addresses:
            addresses.append((host, address[1]))
    return addresses


def own(found: list[Address]) -> Address:
    """Return an address to bind to. The kernel takes link-local ones only with an interface."""
    address = found[0]
    ip = ipaddress.ip_address(address[0])
    if ip in OF_LINKS and "%" not in address[0]:
        names = [name for mine, name in ipv6_addresses() if mine == ip]
        raise ValueError(
            f"{ip} is a link-local address, which each interface can have: add the interface, as "
            f"in {ip}%{names[0] if names else 'eth0'}"
        )
    return address


def unresolved(host: str, error: socket.gaierror) -> socket.gaierror:
    return socket.gaierror(error.errno, f"{host!r} does not resolve: {error.strerror}")

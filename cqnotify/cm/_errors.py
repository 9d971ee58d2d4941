# SPDX-License-Identifier: MIT
"""The events of rdma_cm by name, and the exceptions that are made of them."""

from __future__ import annotations

import enum
import errno
import os
from enum import IntEnum
from typing import Any, Final, NamedTuple

from .._core import CMID
from ..enums import enum_or_int


class CMEventType(IntEnum):
    """What happened to a connection: `enum rdma_cm_event_type`."""

    __str__ = enum.Enum.__str__

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class RejectReason(IntEnum):
    """Why a peer, or its kernel, rejected a connection: `enum ib_cm_rej_reason`."""

    __str__ = enum.Enum.__str__

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONN = 10
    RDC_NOT_EXIST = 11
    INVALID_GID = 12
    INVALID_LID = 13
    INVALID_SL = 14
    INVALID_TRAFFIC_CLASS = 15
    INVALID_HOP_LIMIT = 16
    INVALID_PACKET_RATE = 17
    INVALID_ALT_GID = 18
    INVALID_ALT_LID = 19
    INVALID_ALT_SL = 20
    INVALID_ALT_TRAFFIC_CLASS = 21
    INVALID_ALT_HOP_LIMIT = 22
    INVALID_ALT_PACKET_RATE = 23
    PORT_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESP_RESOURCES = 27
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMM_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALT_FLOW_LABEL = 33


# The fields of struct rdma_conn_param, in the order in which the core returns them.
CONN_PARAM: Final = (
    "qp_num",
    "responder_resources",
    "initiator_depth",
    "retry_count",
    "rnr_retry_count",
    "srq",
)


Said = tuple[int, ...] | dict[str, Any] | None


def parameters_of(said: Said) -> dict[str, Any]:
    if said is None or isinstance(said, dict):
        return said or {}
    return dict(zip(CONN_PARAM, said, strict=True))


class Event(NamedTuple):
    """An event as the core reads it.

    error: why the next step, which the core takes as it reads the event, has failed.
    """

    id: CMID
    event: int
    status: int
    private_data: bytes
    said: Said
    request: CMID | None
    error: Exception | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """The peer's parameters, by their names."""
        return parameters_of(self.said)

    @property
    def retry_count(self) -> int:
        """The retry count that the peer asks for; 0 with datagrams."""
        return self.said[3] if isinstance(self.said, tuple) else 0


class CMError(ConnectionError):
    """A connection was not made, or has ended.

    event: the CMEventType that reported it; None if no event did.
    status: the status of the event: a negative errno, a RejectReason, or 0.
    """

    def __init__(
        self, message: str = "", event: CMEventType | int | None = None, status: int = 0
    ) -> None:
        super().__init__(message)
        self.event = event
        self.status = status


class RejectedError(CMError, ConnectionRefusedError):
    """The peer, or its kernel, has rejected the connection.

    reason: a RejectReason: INVALID_SERVICE_ID if no program listens there, CONSUMER_DEFINED if the
        program there has rejected the connection.
    private_data: the private data of the rejection, padded with zeros.
    """

    def __init__(
        self,
        message: str = "",
        event: CMEventType | int | None = None,
        status: int = 0,
        reason: RejectReason | int = 0,
        private_data: bytes = b"",
    ) -> None:
        super().__init__(message, event, status)
        self.reason = reason
        self.private_data = private_data


class UnreachableError(CMError):
    """No answer came from the peer's host, or there is no way to it."""


class DisconnectedError(CMError, ConnectionResetError):
    """The connection has ended."""


class RequestExpiredError(CMError, ConnectionAbortedError):
    """The peer gave up before its request was accepted; only accept() finds that out."""


REASONS: Final[dict[int, str]] = {
    RejectReason.INVALID_SERVICE_ID: "nothing listens on that port",
    RejectReason.CONSUMER_DEFINED: "the program there rejected it, ended, or listens on another "
    "address; or the MTU of its port is smaller than that of ours",
    RejectReason.STALE_CONN: "the peer still knows a former connection of this queue pair",
    RejectReason.TIMEOUT: "the peer did not get our answer in time",
}

UNREACHABLE: Final = (
    CMEventType.ADDR_ERROR,
    CMEventType.ROUTE_ERROR,
    CMEventType.UNREACHABLE,
)


def name_of(event: int) -> str:
    known = enum_or_int(CMEventType, event)
    return known.name if isinstance(known, CMEventType) else str(known)


def _words(status: int) -> str:
    return os.strerror(-status) if status < 0 else f"status {status}"


def error_of(event: Event, where: str) -> CMError:
    """Return the exception for an event that ends an attempt, or a connection."""
    if event.event == CMEventType.DISCONNECTED:
        return DisconnectedError(f"{where}: disconnected", CMEventType.DISCONNECTED, event.status)
    kind = enum_or_int(CMEventType, event.event)
    reason = reason_of(event)
    if reason is not None:
        name = reason.name if isinstance(reason, RejectReason) else str(reason)
        text = f"{where}: rejected, {name}: {REASONS.get(reason, 'see RejectedError.reason')}"
        return RejectedError(text, kind, event.status, reason, event.private_data)
    cls = UnreachableError if kind in UNREACHABLE else CMError
    return cls(f"{where}: {name_of(kind)}, {_words(event.status)}", kind, event.status)


def error_of_tcp(code: int, where: str) -> CMError | None:
    """Return the exception for an errno of connect(2), with which a peer's host has answered."""
    if code == errno.ECONNREFUSED:
        reason = RejectReason.INVALID_SERVICE_ID
        text = f"{where}: rejected, {reason.name}: {REASONS[reason]}"
        return RejectedError(text, CMEventType.REJECTED, -code, reason)
    if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH):
        return UnreachableError(f"{where}: {os.strerror(code)}", CMEventType.UNREACHABLE, -code)
    return None


def reason_of(event: Event) -> RejectReason | int | None:
    """Return the reason of a rejection; None for other events.

    With datagrams a rejection is the event UNREACHABLE, with a reason of its own; on iWARP the
    status is an errno, whose meaning depends on the device.
    """
    if event.event == CMEventType.REJECTED:
        if event.status < 0:
            return RejectReason.CONSUMER_DEFINED
        return enum_or_int(RejectReason, event.status)
    if event.event == CMEventType.UNREACHABLE and event.status > 0:
        known = {1: RejectReason.INVALID_SERVICE_ID, 3: RejectReason.NO_QP}
        return known.get(event.status, RejectReason.CONSUMER_DEFINED)
    return None

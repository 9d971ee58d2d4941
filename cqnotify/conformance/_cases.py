# SPDX-License-Identifier: MIT
"""The cases: every operation, with every way in which it can end."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ..enums import QPType, SendFlags, WROpcode

RC, UC, UD = QPType.RC, QPType.UC, QPType.UD
QP_TYPES: Final = (RC, UC, UD)

NONE: Final = SendFlags(0)
SIGNALED, SOLICITED = SendFlags.SIGNALED, SendFlags.SOLICITED


class Queue(Enum):
    """The CQ that a row is about."""

    SEND = "send CQ"
    RECV = "receive CQ"


class Arm(Enum):
    """How a CQ was armed by ibv_req_notify_cq, if at all."""

    NOT = "nothing"
    ANY = "any completion"
    SOLICITED = "solicited only"


class Outcome(Enum):
    """How a work request is made to end."""

    SUCCESS = "success"
    BAD_LKEY = "wrong lkey of a send"
    BAD_RECV_LKEY = "wrong lkey of a receive"
    BAD_RKEY = "wrong rkey"
    TOO_SMALL = "receive buffer too small"
    NO_RECEIVE = "no receive posted, rnr_retry=0"
    NO_PEER = "peer does not answer, retry_cnt=1"
    FLUSH = "QP to ERR while in flight"
    POSTED_IN_ERR = "posted on a QP in ERR"


class Operation(NamedTuple):
    """What is posted, and what that means for its completions.

    An operation without an opcode is a receive. `arguments` are those of `QP.post_send`, besides
    memory, keys and destination.
    """

    name: str
    opcode: WROpcode | None
    qp_types: Collection[QPType]
    takes_receive: bool = False  # consumes a receive of the peer, which completes, too
    fills_receive: bool = False  # its data goes to the memory of that receive
    remote: bool = False  # names memory of the peer
    local: bool = False  # does not involve the peer, and moves no data
    invalidates: Queue | None = None  # the end whose memory window it invalidates
    arguments: Mapping[str, Any] = MappingProxyType({})


def _send(opcode: WROpcode, qp_types: Collection[QPType], **options: Any) -> Operation:
    return Operation(opcode.name, opcode, qp_types, **options)


_MESSAGE: Final = {"takes_receive": True, "fills_receive": True}

RECV: Final = Operation("RECV", None, QP_TYPES)
SENDS: Final = (
    _send(WROpcode.SEND, QP_TYPES, **_MESSAGE),
    _send(WROpcode.SEND_WITH_IMM, QP_TYPES, **_MESSAGE, arguments={"imm_data": 7}),
    _send(WROpcode.RDMA_WRITE, (RC, UC), remote=True),
    _send(
        *(WROpcode.RDMA_WRITE_WITH_IMM, (RC, UC)),
        takes_receive=True,
        remote=True,
        arguments={"imm_data": 7},
    ),
    _send(WROpcode.RDMA_READ, (RC,), remote=True),
    _send(
        *(WROpcode.ATOMIC_CMP_AND_SWP, (RC,)),
        remote=True,
        arguments={"compare_add": 1, "swap": 2},
    ),
    _send(WROpcode.ATOMIC_FETCH_AND_ADD, (RC,), remote=True, arguments={"compare_add": 1}),
    _send(WROpcode.SEND_WITH_INV, (RC,), **_MESSAGE, invalidates=Queue.RECV),
    _send(WROpcode.LOCAL_INV, (RC, UC), local=True, invalidates=Queue.SEND),
    _send(WROpcode.BIND_MW, (RC, UC), local=True),
)
OPERATIONS: Final = {operation.name: operation for operation in (*SENDS, RECV)}


class Case(NamedTuple):
    """One work request, posted once, with both CQs armed in the same way."""

    qp_type: QPType
    outcome: Outcome
    operation: str
    sq_sig_all: bool
    send_flags: SendFlags
    armed: Arm

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The CQs for which the case has an expectation."""
        if self.operation == RECV.name:
            return (Queue.RECV,)
        alone = self.outcome in (Outcome.NO_PEER, Outcome.FLUSH, Outcome.POSTED_IN_ERR)
        if alone or OPERATIONS[self.operation].local:
            return (Queue.SEND,)  # nothing reaches the peer
        return (Queue.SEND, Queue.RECV)


def cases(qp_types: Collection[QPType] = QP_TYPES) -> Iterator[Case]:
    """Yield every case.

    qp_types: the types of queue pairs.
    """
    for outcome, qp_type, operation in itertools.product(Outcome, qp_types, OPERATIONS.values()):
        if qp_type in operation.qp_types and _can_end(operation, qp_type, outcome):
            for variant in itertools.product(*_variants(operation), Arm):
                yield Case(qp_type, outcome, operation.name, *variant)


def _can_end(operation: Operation, qp_type: QPType, outcome: Outcome) -> bool:
    """Whether this outcome can be brought about."""
    if operation is RECV:
        return outcome in (Outcome.FLUSH, Outcome.POSTED_IN_ERR)
    if operation.local:
        return outcome in (Outcome.SUCCESS, Outcome.POSTED_IN_ERR)
    if outcome in (Outcome.BAD_RECV_LKEY, Outcome.TOO_SMALL):
        return operation.fills_receive
    if outcome is Outcome.BAD_RKEY:
        return operation.remote
    # Only RC waits for the peer.
    if outcome is Outcome.NO_RECEIVE:
        return qp_type == RC and operation.takes_receive
    return qp_type == RC or outcome not in (Outcome.NO_PEER, Outcome.FLUSH)


def _variants(operation: Operation) -> tuple[list[bool], list[SendFlags]]:
    """Return the values of sq_sig_all and of the send flags to try.

    SOLICITED has a meaning only for operations that complete a receive.
    """
    if operation is RECV:
        return [False], [NONE]
    flags = [NONE, SIGNALED]
    if operation.takes_receive:
        flags += [SOLICITED, SIGNALED | SOLICITED]
    return [False, True], flags

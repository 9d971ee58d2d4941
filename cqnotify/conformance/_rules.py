# SPDX-License-Identifier: MIT
"""What a device should do: by the manual for events, by InfiniBand for completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..enums import QPType, SendFlags, WCStatus
from ._cases import OPERATIONS, Arm, Case, Outcome, Queue

__all__ = ["expected_events", "expected_statuses", "is_solicited"]


def is_solicited(queue: Queue, status: WCStatus | int, send_flags: SendFlags) -> bool:
    """Return whether a completion is solicited.

    queue: the queue of its work request, SEND or RECV.
    status: its status.
    send_flags: those of the sender.

    ibv_req_notify_cq(3): "A CQE is solicited if it is a receive completion for a message with the
    Solicited Event header bit set, or if the status is not successful. All other successful receive
    completions, or any successful send completion is unsolicited."
    """
    if status != WCStatus.SUCCESS:
        return True
    return queue is Queue.RECV and SendFlags.SOLICITED in send_flags


def expected_events(
    queue: Queue, armed: Arm, statuses: Sequence[WCStatus | int], send_flags: SendFlags
) -> int:
    """Return how many events completions raise on a CQ that was armed once, or not at all.

    queue: the queue of their work requests.
    armed: what the CQ was armed for.
    statuses: those of the completions.
    send_flags: those of the sender.

    ibv_req_notify_cq(3): "If the argument solicited_only is zero, a completion event is generated
    for any new CQE. If solicited_only is non-zero, an event is only generated for a new CQE with
    that is considered 'solicited'." And: "Only one completion event will be generated for each
    call".
    """
    if armed is Arm.NOT:
        return 0
    counting = [s for s in statuses if armed is Arm.ANY or is_solicited(queue, s, send_flags)]
    return min(1, len(counting))


# The statuses at the sender and at the receiver of an RC; None stands for no completion.
_FAILURES: Final[dict[Outcome, tuple[WCStatus, WCStatus | None]]] = {
    Outcome.BAD_LKEY: (WCStatus.LOC_PROT_ERR, None),
    Outcome.BAD_RECV_LKEY: (WCStatus.REM_OP_ERR, WCStatus.LOC_PROT_ERR),
    Outcome.BAD_RKEY: (WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR),
    Outcome.TOO_SMALL: (WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_LEN_ERR),
    Outcome.NO_RECEIVE: (WCStatus.RNR_RETRY_EXC_ERR, None),
    Outcome.NO_PEER: (WCStatus.RETRY_EXC_ERR, None),
    Outcome.FLUSH: (WCStatus.WR_FLUSH_ERR, WCStatus.WR_FLUSH_ERR),
    Outcome.POSTED_IN_ERR: (WCStatus.WR_FLUSH_ERR, WCStatus.WR_FLUSH_ERR),
}

# The sender of UC and UD does not learn of failures at the receiver. The receiver drops a message
# whose rkey is wrong; some devices also drop one for which the receive is too small.
_UNHEARD_OF: Final[dict[Outcome, tuple[WCStatus | None, ...]]] = {
    Outcome.BAD_RECV_LKEY: (WCStatus.LOC_PROT_ERR,),
    Outcome.BAD_RKEY: (None,),
    Outcome.TOO_SMALL: (WCStatus.LOC_LEN_ERR, None),
}


def expected_statuses(case: Case, queue: Queue) -> tuple[WCStatus | None, ...]:
    """Return the statuses that are right; None stands for no completion.

    case: the case.
    queue: one of its queues.

    A work request that fails always completes; one that succeeds completes if it is signaled.
    """
    if queue is Queue.SEND:
        if case.outcome is Outcome.SUCCESS or _is_unheard_of(case):
            signaled = case.sq_sig_all or SendFlags.SIGNALED in case.send_flags
            return (WCStatus.SUCCESS if signaled else None,)
        return (_FAILURES[case.outcome][0],)
    if case.outcome is Outcome.SUCCESS:
        return (WCStatus.SUCCESS if OPERATIONS[case.operation].takes_receive else None,)
    if _is_unheard_of(case):
        return _UNHEARD_OF[case.outcome]
    status = _FAILURES[case.outcome][1]
    if case.outcome is Outcome.BAD_RKEY and OPERATIONS[case.operation].takes_receive:
        return (WCStatus.LOC_ACCESS_ERR, status)  # whether or not the receive was taken already
    return (status,)


def _is_unheard_of(case: Case) -> bool:
    return case.qp_type != QPType.RC and case.outcome in _UNHEARD_OF

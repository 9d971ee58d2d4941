# SPDX-License-Identifier: MIT
"""Which events the steps of a sequence must raise, by the manual and by InfiniBand."""

from __future__ import annotations

from typing import Final

from ..enums import SendFlags, WCStatus
from ._cases import NONE, SOLICITED, Arm, Queue
from ._rules import expected_events
from ._sequences import Action, Sequence

_FLAGS: Final[dict[Action, SendFlags]] = {
    Action.COMPLETE: NONE,
    Action.COMPLETE_SOLICITED: SOLICITED,
    Action.FILL: NONE,
}


def expected_in_sequence(sequence: Sequence) -> tuple[int | None, ...]:
    """Return how many events each step that takes events must find; None: nothing is demanded.

    sequence: the sequence.

    ibv_req_notify_cq(3) counts completions that are added after the call, and: "The request for
    notification is 'one shot.'" What the program polls, acknowledges or resizes in between does not
    matter. It does not mention a second call before the first has raised its event. Drivers of
    Linux follow C11-31 and C11-32 of InfiniBand (in 11.4.2.2) there: a CQ that is armed for the
    next completion stays so, and one that is armed for the next solicited one may become so; either
    way there is one event. A CQ that has overflowed is in error, and nothing is demanded of it.
    """
    cqs = [_ModelCQ(sequence.queue) for _ in range(sequence.cqs)]
    found: list[int | None] = []
    for step in sequence.steps:
        if step.action.takes_events:
            found.append(cqs[step.cq].take())
        else:
            cqs[step.cq].do(step.action)
    return tuple(found)


class _ModelCQ:
    """A CQ that does what is demanded."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._armed = Arm.NOT
        self._unread = 0
        self._failed = False

    def do(self, action: Action) -> None:
        if action is Action.ARM_ANY:
            self._armed = Arm.ANY
        elif action is Action.ARM_SOLICITED and self._armed is Arm.NOT:
            self._armed = Arm.SOLICITED
        elif action in _FLAGS:
            raised = expected_events(self._queue, self._armed, [WCStatus.SUCCESS], _FLAGS[action])
            self._unread += raised
            self._armed = Arm.NOT if raised else self._armed
        elif action is Action.OVERFLOW:
            self._failed = True

    def take(self) -> int | None:
        unread, self._unread = self._unread, 0
        return None if self._failed else unread

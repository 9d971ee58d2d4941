# SPDX-License-Identifier: MIT
"""The work requests that tasks post on one QP: when there is room, in the order of their coming."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from .._core import QP as CoreQP
from .._core import ClosedError, VerbsError, WorkCompletion
from ..enums import QPState
from ._claims import RECV, SEND, Claims, Operation

# How often something failed of a QP, and up to which of these it was seen to work after all. Of all
# AsyncCQs, in whatever threads: a send and a receive may complete on two.
_suspected: Final[weakref.WeakKeyDictionary[CoreQP, int]] = weakref.WeakKeyDictionary()
_cleared: Final[weakref.WeakKeyDictionary[CoreQP, int]] = weakref.WeakKeyDictionary()
_serial: Final = itertools.count(1)

_VERBS: Final = ("ibv_post_send", "ibv_post_recv")


class Flow:
    """A QP, as far as one AsyncCQ works with it.

    Credits are the core's own count of what was posted and has not completed, so that what others
    have posted, and what is unsignaled, takes room, too. While somebody waits for room nobody
    overtakes him; he is served by whoever sees a completion of the QP, in that very moment, so the
    queue is full again before any task has run.
    """

    def __init__(self, qp: CoreQP, claims: Claims) -> None:
        self._qp = weakref.ref(qp)  # an operation holds it while there is one
        self.qp_num: int = qp.qp_num
        self._claims = claims
        self._waiting: tuple[deque[Operation], deque[Operation]] = (deque(), deque())
        _suspected[qp] = next(_serial)  # until its state was asked for
        self._on_close: Callable[[], None] | None = None

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call it when the QP is closed, until release()."""
        self._on_close = callback
        if (qp := self._qp()) is not None:
            qp.add_close_callback(callback)

    def release(self) -> None:
        if (qp := self._qp()) is not None and self._on_close is not None:
            qp.remove_close_callback(self._on_close)

    def is_of(self, qp: CoreQP) -> bool:
        return self._qp() is qp

    def submit(self, op: Operation) -> None:
        """Post it, or queue it. Raises what the post raises; then it is forgotten."""
        if self._claims.has_like(op):
            raise ValueError(
                f"wr_id is {op.wr_id}: an operation of that wr_id is under way on QP {self.qp_num}"
            )
        self._claims.add(op)
        op.enter_scope()
        try:
            if self._waiting[op.queue] or not self._post(op):
                self._waiting[op.queue].append(op)
        except BaseException:
            self._claims.discard(op)
            op.leave_scope()
            raise

    def withdraw(self, op: Operation) -> None:
        """Its task has given up. If it was posted, nothing can be done about it."""
        if not op.posted and op in self._waiting[op.queue]:
            self._waiting[op.queue].remove(op)
            self._claims.discard(op)
            op.leave_scope()

    def completed(self, wc: WorkCompletion) -> None:
        """After a completion of this QP was taken from the CQ: there is room for who waits."""
        if wc.ok:
            self._serve()
        else:
            self.suspect()

    def suspect(self) -> None:
        """It may be in an error state: then who waits for room gets to know."""
        if (qp := self._qp()) is not None:
            _suspected[qp] = next(_serial)
        self._serve()

    def fail(self, error: Exception, before: int | None = None) -> None:
        """The QP is gone: nothing on it will complete, or nothing of before."""
        for claim in self._claims:
            if claim.flow is self and (before is None or claim.serial < before):
                self._claims.discard(claim)
                claim.fail(error)
        self.prune()

    def prune(self) -> None:
        """Those who waited for room and have failed wait no more."""
        for queue in self._waiting:
            ops = list(queue)
            queue.clear()
            for op in ops:
                if op.done or op.abandoned:
                    self._claims.discard(op)
                else:
                    queue.append(op)

    def _serve(self) -> None:
        for queue in self._waiting:
            while queue and self._serve_first(queue):
                pass

    def _serve_first(self, queue: deque[Operation]) -> bool:
        op = queue[0]
        try:
            if not self._post(op):
                return False
        except Exception as e:
            self._claims.discard(op)
            op.fail(e)
        queue.popleft()
        return True

    def _post(self, op: Operation) -> bool:
        """False: there is no room, and a completion will come that makes some."""
        self._check_state(op)
        awaited = self._awaited(op)
        if awaited and op.qp.outstanding[op.queue] >= self._room(op):
            return False
        op.posted = True  # it can complete while it is posted
        try:
            op.post(op.wr_id)
        except BaseException as e:
            op.posted = False
            if not isinstance(e, VerbsError) or e.errno != errno.ENOMEM:
                raise
            if not awaited:
                raise _verbs_error(errno.ENOMEM, op, self._why_full(op)) from None
            return False
        return True

    @staticmethod
    def _room(op: Operation) -> int:
        return op.qp.max_recv_wr if op.queue == RECV else op.qp.max_send_wr

    @staticmethod
    def _awaited(op: Operation) -> int:
        """Completions that its queue will give as it is. If there are none, only the device knows
        whether there is room: some forget unsignaled work requests as soon as these are done."""
        return op.qp.outstanding[RECV] if op.queue == RECV else op.qp.outstanding_signaled

    def _why_full(self, op: Operation) -> str:
        return (
            f"the queue of QP {self.qp_num} takes no more than the {op.qp.outstanding[op.queue]} "
            f"unsignaled work requests in it, none of which will complete and make room: post "
            f"one in {self._room(op)}, or more, with SendFlags.SIGNALED"
        )

    def _check_state(self, op: Operation) -> None:
        """Some devices take a work request in state ERR and never complete it."""
        suspicion = _suspected.get(op.qp, 0)
        if suspicion == _cleared.get(op.qp, 0):
            return
        state = CoreQP.query(op.qp)["qp_state"]
        if state == QPState.ERR or (state == QPState.SQE and op.queue == SEND):
            raise _verbs_error(
                errno.EINVAL,
                op,
                f"QP {op.qp.qp_num} is in {QPState(state).name}: it works no more; move it to "
                f"RESET and connect it anew",
            )
        if state != QPState.SQE:
            _cleared[op.qp] = suspicion  # of a later one nothing is known


def is_outstanding(qp: CoreQP) -> bool:
    with contextlib.suppress(ClosedError):
        return any(qp.outstanding)
    return False


def _verbs_error(err: int, op: Operation, what: str) -> VerbsError:
    verb = _VERBS[op.queue]
    error = VerbsError(err, f"{verb}: {os.strerror(err)}: {what}")
    error.verb = verb
    return error

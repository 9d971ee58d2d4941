# SPDX-License-Identifier: MIT
"""Completions that somebody awaits in particular, by their wr_id.

A completion that comes is put into the claim before its task is woken, and stays there should the
task be cancelled in that moment: whoever awaited gives it back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from .._core import WorkCompletion
from ..enums import WCOpcode
from ._loops import Wakeup
from ._scope import Scope

if TYPE_CHECKING:
    from ..qp import QP
    from ._flow import Flow

SEND: Final = 0
RECV: Final = 1

MANAGED: Final = 1 << 63
"""The wr_ids that we choose begin here; those of the user end here."""

_ids: Final = itertools.count(MANAGED)

serials: Final = itertools.count()
"""Which claims were made before something else."""


class Claim:
    """One completion that a task awaits."""

    __slots__ = ("abandoned", "error", "flow", "keep", "posted", "serial", "wakeup", "wc", "wr_id")

    def __init__(self, wr_id: int, flow: Flow | None, keep: bool = True) -> None:
        self.serial: int = next(serials)
        self.wr_id: int = wr_id
        self.flow: Flow | None = flow  # None: of any QP
        self.keep: bool = keep  # if its task gives up, the completion is for others
        self.posted: bool = True  # False: it waits for room in the queue
        self.abandoned: bool = False  # its task has given up
        self.wakeup: Wakeup | None = None  # while its task sleeps
        self.wc: WorkCompletion | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.wc is not None or self.error is not None

    def may_be_of(self, qp_num: int) -> bool:
        return self.flow is None or self.flow.qp_num == qp_num

    def fits(self, wc: WorkCompletion) -> bool:
        """Whether this, of its wr_id, is what it awaits."""
        return self.posted and self.may_be_of(wc.qp_num)

    def deliver(self, wc: WorkCompletion) -> bool:
        """Take the completion. False: nobody wants it here, let others have it."""
        if self.abandoned or self.error is not None:
            return not self.keep
        self.wc = wc
        self._wake()
        return True

    def fail(self, error: Exception) -> bool:
        """It may never complete. Returns whether a task gets to know."""
        if self.abandoned or self.done:
            return False
        self.error = error
        self._wake()
        return True

    def _wake(self) -> None:
        if self.wakeup is not None:
            self.wakeup.wake()


class Operation(Claim):
    """A work request whose completion is awaited by who posted it.

    If its task is cancelled, the device goes on with it. Then its completion is of no interest to
    anybody, unless it tells of a message that was received, or the user can tell whose it is.
    """

    __slots__ = ("post", "qp", "queue", "scope")

    flow: Flow  # pyright: ignore[reportIncompatibleVariableOverride]  # nobody sets it

    def __init__(
        self,
        flow: Flow,
        qp: QP,
        queue: int,
        post: Callable[[int], None],
        wr_id: int | None,
        scope: Scope | None,
    ) -> None:
        keep = queue == RECV or wr_id is not None
        super().__init__(next(_ids) if wr_id is None else wr_id, flow, keep)
        self.qp: QP = qp
        self.queue: int = queue
        self.post: Callable[[int], None] = post
        self.scope: Scope | None = scope
        self.posted = False

    def fits(self, wc: WorkCompletion) -> bool:
        # What was posted by hand on the other side can have the same wr_id. Of a failed one only
        # the wr_id tells.
        side = RECV if wc.ok and wc.opcode is not None and wc.opcode & WCOpcode.RECV else SEND
        return super().fits(wc) and (not wc.ok or side == self.queue)

    def deliver(self, wc: WorkCompletion) -> bool:
        self.leave_scope()
        return super().deliver(wc)

    def fail(self, error: Exception) -> bool:
        if self.scope is not None and self.posted:
            self.scope.fail(self, error)
        self.leave_scope()  # what was not posted pins nothing
        return super().fail(error)

    def enter_scope(self) -> None:
        if self.scope is not None:
            self.scope.add(self)

    def leave_scope(self) -> None:
        if self.scope is not None:
            self.scope.discard(self)


class Claims:
    """All claims on the completions of one CQ."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, list[Claim]] = {}

    def __iter__(self) -> Iterator[Claim]:
        return iter([claim for claims in self.by_id.values() for claim in claims])

    def add(self, claim: Claim) -> None:
        """Operations come first: their completion is theirs, whoever else asks for it."""
        claims = self.by_id.setdefault(claim.wr_id, [])
        claims.insert(0 if isinstance(claim, Operation) else len(claims), claim)

    def discard(self, claim: Claim) -> None:
        claims = self.by_id.get(claim.wr_id, [])
        if claim in claims:
            claims.remove(claim)
        if not claims:
            self.by_id.pop(claim.wr_id, None)

    def has_like(self, op: Operation) -> bool:
        """Whether an operation of its wr_id is under way on its QP already."""
        claims = self.by_id.get(op.wr_id, ())
        return any(isinstance(c, Operation) and c.may_be_of(op.flow.qp_num) for c in claims)

    def give(self, wc: WorkCompletion) -> bool:
        """To the first who claims and wants this completion. Its claim ends with it, and so do
        those before it whose task has given up."""
        for claim in list(self.by_id.get(wc.wr_id, ())):
            if claim.fits(wc):
                self.discard(claim)
                if claim.deliver(wc):
                    return True
        return False

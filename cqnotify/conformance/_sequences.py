# SPDX-License-Identifier: MIT
"""The sequences: what programs that sleep do to a CQ, one step after another."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

from ..enums import QPType
from ._cases import QP_TYPES, Queue


class Action(Enum):
    """What a step of a sequence does."""

    ARM_ANY = "arm any"
    ARM_SOLICITED = "arm solicited"
    COMPLETE = "complete"
    COMPLETE_SOLICITED = "complete solicited"
    FILL = "fill"
    OVERFLOW = "overflow"
    POLL = "poll"
    RESIZE = "resize"
    NEW_QPS = "new QPs"
    EVENTS = "events"
    EVENTS_WITHOUT_ACK = "events without ack"

    @property
    def takes_events(self) -> bool:
        """Whether the step reads events, and so has a result."""
        return self in (Action.EVENTS, Action.EVENTS_WITHOUT_ACK)


class Step(NamedTuple):
    """A step of a sequence.

    action: ARM_ANY and ARM_SOLICITED arm the CQ. COMPLETE and COMPLETE_SOLICITED send messages that
        succeed, without and with SOLICITED, and wait until they have completed. FILL sends as many
        as the CQ has room for, OVERFLOW one more. POLL takes completions. RESIZE doubles the size
        of the CQ. NEW_QPS creates queue pairs that use the CQ from then on. EVENTS waits for the
        events of the CQ, reads and acknowledges them; EVENTS_WITHOUT_ACK leaves it at reading.
    n: how many messages, or completions at most; for POLL, 0 stands for all.
    cq: the number of the CQ, if the sequence has several; they share a channel.
    """

    action: Action
    n: int = 1
    cq: int = 0


class Sequence(NamedTuple):
    """Steps for one kind of CQ of queue pairs of one type; several run at the same time."""

    name: str
    qp_type: QPType
    queue: Queue
    steps: tuple[Step, ...]

    @property
    def cqs(self) -> int:
        """How many CQs it has."""
        return 1 + max((step.cq for step in self.steps), default=0)


_ANY, _SOLICITED = Step(Action.ARM_ANY), Step(Action.ARM_SOLICITED)
_EVENTS, _UNACKED = Step(Action.EVENTS), Step(Action.EVENTS_WITHOUT_ACK)
_FILL, _OVERFLOW = Step(Action.FILL), Step(Action.OVERFLOW)
_RESIZE, _NEW_QPS = Step(Action.RESIZE), Step(Action.NEW_QPS)
_ONE, _THREE = Step(Action.COMPLETE), Step(Action.COMPLETE, 3)
_WANTED: Final = Step(Action.COMPLETE_SOLICITED)
_POLL_ALL, _POLL_ONE = Step(Action.POLL, 0), Step(Action.POLL)


def _other(step: Step) -> Step:
    """Return the step on the other CQ of the channel."""
    return step._replace(cq=1)


# By their names. Whatever a sequence is about, it ends with a completion that must raise an event,
# or with one that must not: so an arm that is lost, and one that is left over, both show.
SEQUENCES: Final[dict[str, tuple[Step, ...]]] = {
    "a second completion after the event, not armed again": (
        *(_ANY, _ONE, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed again and again while the CQ is empty": (
        *(_ANY, _ANY, _ANY, _EVENTS),
        *(_ONE, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed after each event, never polled": (
        *(_ANY, _ONE, _EVENTS),
        *(_ANY, _EVENTS),
        *(_ONE, _EVENTS),
        *(_ANY, _ONE, _EVENTS),
    ),
    "polled after the event, then armed twice": (
        *(_ANY, _ONE, _EVENTS),
        *(_POLL_ALL, _ANY, _ANY, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "polled until empty while the event is unread": (
        *(_ANY, _ONE, _POLL_ALL, _EVENTS),
        *(_ANY, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed again while the event is unread": (
        *(_ANY, _ONE, _ANY, _ONE, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed again while the event is not acknowledged": (
        *(_ANY, _ONE, _UNACKED),
        *(_POLL_ALL, _ANY, _ONE, _UNACKED),
    ),
    "completed after the last poll and before the arm": (
        *(_POLL_ALL, _ONE, _ANY, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed when some completions are polled and others are not": (
        *(_THREE, _POLL_ONE, _ANY, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed while the CQ is full": (
        *(_FILL, _ANY, _EVENTS),
        *(_POLL_ONE, _ONE, _EVENTS),
    ),
    # A CQ makes up for devices on which to resize it, or to arm it for solicited completions, takes
    # back what it was armed for. It is to show here what the device does, so it must not know that
    # it is armed: when an event is read, it takes itself for not armed any more.
    "resized while armed": (
        *(_ANY, _ONE, _ANY, _EVENTS),
        *(_RESIZE, _ONE, _EVENTS),
        *(_ONE, _EVENTS),
    ),
    "armed for any, then for solicited": (
        *(_ANY, _ONE, _ANY, _EVENTS),
        *(_SOLICITED, _ONE, _EVENTS),
        *(_WANTED, _EVENTS),
    ),
    "armed for solicited, then for any": (
        *(_SOLICITED, _ANY, _ONE, _EVENTS),
        *(_WANTED, _EVENTS),
    ),
    "armed for solicited: a plain completion, then a solicited one": (
        *(_SOLICITED, _ONE, _EVENTS),
        *(_WANTED, _EVENTS),
        *(_WANTED, _EVENTS),
    ),
    "armed for solicited while a solicited completion waits": (
        *(_WANTED, _SOLICITED, _EVENTS),
        *(_ONE, _EVENTS),
        *(_WANTED, _EVENTS),
    ),
    "armed for solicited and for any in turn": (
        *(_SOLICITED, _WANTED, _EVENTS),
        *(_POLL_ALL, _ANY, _ONE, _EVENTS),
        *(_POLL_ALL, _SOLICITED, _ONE, _EVENTS),
        *(_WANTED, _EVENTS),
    ),
    "two CQs of a channel, both armed": (
        *(_ANY, _other(_ANY), _ONE, _EVENTS, _other(_EVENTS)),
        *(_other(_ONE), _EVENTS, _other(_EVENTS)),
    ),
    "two CQs of a channel, one armed": (
        *(_ANY, _other(_ONE), _EVENTS, _other(_EVENTS)),
        *(_ONE, _EVENTS, _other(_EVENTS)),
    ),
    "two CQs of a channel, both events unread": (
        *(_ANY, _other(_ANY), _other(_ONE), _ONE, _EVENTS, _other(_EVENTS)),
        *(_other(_ANY), _ONE, _other(_ONE), _EVENTS, _other(_EVENTS)),
    ),
    "overflow": (
        *(_ANY, _FILL, _EVENTS),
        *(_ANY, _OVERFLOW, _EVENTS),
        *(_POLL_ALL, _ANY, _ONE, _EVENTS),
        *(_NEW_QPS, _POLL_ALL, _ANY, _ONE, _EVENTS),
    ),
}


def sequences(qp_types: Collection[QPType] = QP_TYPES) -> Iterator[Sequence]:
    """Yield every sequence, on send and on receive CQs.

    qp_types: the types of queue pairs.
    """
    for name, qp_type, queue in itertools.product(SEQUENCES, qp_types, Queue):
        yield Sequence(name, qp_type, queue, SEQUENCES[name])

# SPDX-License-Identifier: MIT
"""Holds traces of the core against the transitions of the model.

A core that was built with CQNOTIFY_DEBUG=faults writes its steps to the file that the variable
CQNOTIFY_STEPS names, with the number of the process behind it (csrc/faults/steps.c). `./lab test
--asan` sets the variable for all tests, and runs

    python tests/model/replay.py FILE...

which prints the first step of each process that the model does not allow, and fails if there is
one.

This file and cq.pml, tasks.pml and threads.pml state the same rules twice: there as transitions
with assertions, here as one method for each step. They are kept equal by tests/lab/test_model.py:
the models print their steps in the same form. So this file must allow random runs of the models,
and refuse the runs that Spin finds for their mutants.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

UNARMED, SOLICITED, ANY = range(3)

# await.h: the kinds of awaitables, and their states
WAIT, SCOPE = 3, 4
NEW, QUEUED, POSTED, WAITING, COMPLETE, FAILED, DONE = range(7)


class RefusedError(Exception):
    """The model does not allow the step."""


def must(condition: bool, rule: str) -> None:
    if not condition:
        raise RefusedError(rule)


@dataclass
class Channel:
    timeouts: int = 0


@dataclass
class Engine:
    """An AsyncCQ. A CQ can have another one after it, while its tasks still have to go on."""

    later: bool = False  # it polls in the next iteration of the loop
    turn: list[Awaitable] = field(default_factory=list)  # woken from their sleep, in order


@dataclass
class CQ:
    """A CQ: what the core has on record, and what can be known of the device."""

    channel: Channel
    armed: int = UNARMED
    armed_at: int = 0  # the channel's timeouts then
    arms: int = 0  # events that the device may still raise
    polled: bool = False  # until it was empty, since it was armed for that
    unacked: int = 0
    prepaid: int = 0
    owed: int = 0  # events for whose acknowledgement ibv_destroy_cq(3) would wait
    late: bool = False  # the next event is in the list of the channel
    stash: int = 0
    taken: int = 0  # routed to awaitables, or to nobody, in the poll that goes on
    results: int = 0  # completions on their way to awaitables, which count when they have them
    closing: bool = False
    engine: Engine = field(default_factory=Engine)  # the latest one
    foreign: bool = False  # the program has read its latest event, which the engine waits for
    awaitables: dict[int, Awaitable] = field(default_factory=dict)  # that are pending

    def known(self) -> int:
        return self.armed if self.armed_at == self.channel.timeouts else UNARMED


@dataclass
class Awaitable:
    cq: CQ
    engine: Engine
    kind: int
    state: int = NEW
    solicited: bool = False
    asleep: bool = False
    yields: bool = False  # goes on in the next iteration of the loop
    cancelled: bool = False

    def looks(self) -> bool:
        """Whether its step runs, or will."""
        return not self.asleep or self.yields or self in self.engine.turn


@dataclass
class Queue:
    poller: int = 0
    asleep: set[int] = field(default_factory=set)


class Replay:
    """The state of all objects of a process. Each method is a step, with the numbers of its line.

    Objects that the trace does not know were made before it: a forked child has its parent's.
    """

    def __init__(self) -> None:
        self.channels: dict[int, Channel] = {}
        self.cqs: dict[int, CQ] = {}
        self.engines: dict[tuple[int, int], Engine] = {}  # by their CQ, and themselves
        self.awaitables: dict[int, Awaitable] = {}
        self.queues: dict[int, Queue] = {}

    # ---- a CQ: cq.pml ----

    def new_cq(self, cq: int, channel: int, *_: int) -> None:
        self.cqs[cq] = CQ(self.channels.setdefault(channel, Channel()))

    def arm(self, cq: int, solicited: int, any_: int, _: int) -> None:
        c = self.cqs[cq]
        must(bool(any_) == (not solicited or c.known() == ANY), "solicited does not replace any")
        armed = ANY if any_ else SOLICITED
        c.polled = c.polled and c.known() >= armed  # else completions may have raised no event
        c.armed = armed
        c.armed_at = c.channel.timeouts
        c.arms += 1
        c.foreign = False

    def late(self, cq: int, *_: int) -> None:
        self.cqs[cq].late = True

    def event(self, cq: int, *_: int) -> None:
        c = self.cqs[cq]
        must(not c.closing, "an event of a CQ that is being destroyed is not returned")
        if c.late:
            c.prepaid += 1
        else:
            must(c.arms > 0, "each arm raises one event")
            c.arms -= 1
            c.owed += 1
        c.late = False
        c.unacked += 1
        c.armed = UNARMED
        c.foreign = True

    def acked_at_once(self, cq: int, *_: int) -> None:
        c = self.cqs[cq]
        must(c.arms > 0, "each arm raises one event")
        c.arms -= 1

    def ack(self, cq: int, n: int, paid: int, _: int) -> None:
        c = self.cqs[cq]
        must(paid == min(n, c.prepaid), "a late event was acknowledged in advance")
        must(n <= c.unacked and n - paid <= c.owed, "each event is acknowledged once")
        c.prepaid -= paid
        c.owed -= n - paid
        c.unacked -= n

    def disarm(self, cq: int, *_: int) -> None:
        self.cqs[cq].armed = UNARMED

    def timed_out(self, channel: int, *_: int) -> None:
        self.channels[channel].timeouts += 1

    def resized(self, cq: int, raised: int, *_: int) -> None:
        c = self.cqs[cq]
        must(bool(raised) or c.stash == 0 or c.closing, "what was armed for is reported")

    def closing(self, cq: int, begins: int, *_: int) -> None:
        c = self.cqs[cq]
        must(not begins or c.owed == 0, "ibv_destroy_cq(3) waits for no event")
        c.closing = bool(begins)

    def route(self, cq: int, taken: int, *_: int) -> None:
        c = self.cqs[cq]
        c.taken += taken
        c.results += taken

    def poll(self, cq: int, asked: int, got: int, kept: int) -> None:
        c = self.cqs[cq]
        must(got == kept + c.taken, "each completion goes to one place")
        must(c.results >= 0, "each completion is delivered once")
        c.taken = 0
        c.stash += kept
        c.polled = c.polled or got < asked

    def take(self, cq: int, n: int, *_: int) -> None:
        c = self.cqs[cq]
        must(n <= c.stash, "each completion is delivered once")
        c.stash -= n

    def pop(self, cq: int, *_: int) -> None:
        self.take(cq, 1)
        self.cqs[cq].results += 1

    def put_back(self, cq: int, *_: int) -> None:
        c = self.cqs[cq]
        must(c.results > 0, "each completion is delivered once")
        c.results -= 1
        c.stash += 1

    # ---- an engine and its tasks: tasks.pml ----

    def new_engine(self, cq: int, engine: int, *_: int) -> None:
        self.cqs[cq].engine = self.engines[cq, engine] = Engine()

    def new_awaitable(self, a: int, cq: int, engine: int, kind: int) -> None:
        self.awaitables[a] = Awaitable(self.cqs[cq], self.engines[cq, engine], kind & 0xFF)

    def state(self, a: int, cq: int, state: int, kind: int) -> None:
        t = self.awaitables[a]
        t.state = state
        t.solicited = bool(kind >> 8)
        if state == COMPLETE and t.kind != SCOPE:
            t.cq.results -= 1

    def pending(self, a: int, cq: int, begins: int, _: int) -> None:
        t = self.awaitables[a]
        if begins:
            t.cq.awaitables[a] = t
        else:
            t.cq.awaitables.pop(a, None)

    def later(self, cq: int, engine: int, will: int, _: int) -> None:
        self.engines[cq, engine].later = bool(will)

    def dispatched(self, cq: int, *_: int) -> None:
        self.cqs[cq].foreign = False

    def wake(self, a: int, cq: int, resumed: int, _: int) -> None:
        t = self.awaitables[a]
        must(not resumed or not t.engine.turn, "one that is resumed at once overtakes nobody")
        if t.asleep and t not in t.engine.turn:
            t.engine.turn.append(t)

    def cancel(self, a: int, cq: int, state: int, _: int) -> None:
        t = self.awaitables[a]
        t.cancelled = True
        if state == COMPLETE and t.kind != SCOPE:
            t.cq.results += 1  # for another claim, or for the stash

    def goes_on(self, a: int, *_: int) -> None:
        t = self.awaitables[a]
        if t in t.engine.turn:
            t.engine.turn.remove(t)
        slept, t.asleep, t.yields = t.asleep, False, False
        # a task in wait() looks again before it sleeps: another may have taken everything
        if slept and not t.cancelled and t.state not in (WAITING, DONE):
            self.check(t.cq)

    def sleep(self, a: int, cq: int, slept: int, _: int) -> None:
        t = self.awaitables[a]
        t.asleep, t.yields = True, not slept
        if slept:
            must(t.state in (QUEUED, POSTED, WAITING), "a task with a result does not sleep")
            self.check(t.cq)

    def check(self, c: CQ) -> None:
        """Whether tasks may sleep: the CQ is armed and was polled since, or somebody goes on."""
        must(c.results >= 0, "each completion is delivered once")
        pending = c.awaitables.values()
        waits = [t for t in pending if t.kind == WAIT and t.state == WAITING]
        needed = SOLICITED if all(t.kind == WAIT and t.solicited for t in pending) else ANY
        must(
            not any(t.asleep for t in pending)
            or (c.known() >= needed and c.polled)
            or any(t.looks() for t in waits)
            or c.engine.later
            or c.closing
            or c.foreign,
            "no task sleeps before its CQ was armed, and polled after that",
        )

    # ---- threads in a wait queue: threads.pml ----

    def waits(self, queue: int, waiter: int, polls: int, _: int) -> None:
        q = self.queues.setdefault(queue, Queue())
        q.asleep.add(waiter)
        if polls:
            q.poller = waiter
        must(q.poller != 0, "one of the sleepers polls")

    def woke(self, queue: int, waiter: int, *_: int) -> None:
        q = self.queues.setdefault(queue, Queue())
        q.asleep.discard(waiter)
        if q.poller == waiter:
            q.poller = 0

    def poller(self, queue: int, waiter: int, *_: int) -> None:
        q = self.queues.setdefault(queue, Queue())
        must(q.poller == 0 and waiter in q.asleep, "a sleeper gets the role when it is free")
        q.poller = waiter

    def leaves(self, queue: int, *_: int) -> None:
        q = self.queues.setdefault(queue, Queue())
        must(q.poller != 0 or not q.asleep, "one who leaves passes the role of the poller on")

    def handler(self, queue: int, *_: int) -> None:
        self.leaves(queue)


STEPS = {name: getattr(Replay, name) for name in vars(Replay) if not name.startswith("_")}
del STEPS["check"]


def replay(lines: Iterable[str]) -> int:
    """Replay a trace; return the number of its steps, or raise RefusedError with the last ones."""
    run = Replay()
    latest: deque[str] = deque(maxlen=30)
    n = 0
    for line in lines:
        if not line.endswith("\n"):
            break  # the process was killed
        name, *numbers = line.split()
        latest.append(line)
        n += 1
        try:
            STEPS[name](run, *(int(number, 16) for number in numbers))
        except RefusedError as refused:
            raise RefusedError(f"{refused}: step {n}, the last one of\n{''.join(latest)}") from None
        except KeyError as unknown:
            if unknown.args[0] == name:
                raise
    return n


def main(paths: list[str]) -> int:
    processes = failed = steps = 0
    for path in paths:
        with Path(path).open() as file:
            try:
                n = replay(file)
                processes += n > 0
                steps += n
            except RefusedError as refused:
                failed += 1
                print(f"{path}: {refused}")
    print(f"{processes} processes, {steps} steps, {failed} refused")
    return failed > 0 or steps == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

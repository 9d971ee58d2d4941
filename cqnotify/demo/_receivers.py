# SPDX-License-Identifier: MIT
"""The demo's receivers: asyncio, blocking and busy polling, and what each of them costs."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import closing
from typing import Final

from .._core import CompletionError
from ..aio import AsyncCQ
from ._report import ASYNCIO, BLOCKING, BUSY, SOLICITED, Result
from ._traffic import DemoError, Peer, Plan, SlotEndpoint, Traffic, open_end

BATCH: Final = 64
CHECK_INTERVAL: Final = 0.5  # seconds between checks that the peer is still alive


class Receiver(ABC):
    """Receives the messages of a traffic, and counts its wake-ups."""

    name: str

    def __init__(self) -> None:
        self.wakeups = 0
        self._start = (0.0, 0.0)
        self._used = (0.0, 0.0)

    @abstractmethod
    def receive(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        """Connect to the peer and receive all messages."""

    def start_clock(self) -> None:
        """Measure from here on: the set-up is over."""
        self._start = (time.process_time(), time.perf_counter())

    def stop_clock(self) -> None:
        """Measure no longer: the last message has come."""
        cpu, wall = self._start
        self._used = (time.process_time() - cpu, time.perf_counter() - wall)

    def result(self, end: SlotEndpoint, traffic: Traffic) -> Result:
        """Return the figures."""
        stats = end.recv_cq.stats
        return Result(
            traffic=traffic.name,
            receiver=self.name,
            messages=traffic.received,
            events=stats.events,
            events_per_message=round(stats.events / traffic.received, 4),
            wakeups=self.wakeups,
            spurious=stats.spurious,
            arms=stats.arms,
            polls=stats.polls,
            cpu=round(self._used[0], 4),
            wall=round(self._used[1], 4),
        )


class Asyncio(Receiver):
    """Awaits completions, while the event loop sleeps."""

    def __init__(self, solicited_only: bool = False) -> None:
        super().__init__()
        self._solicited_only = solicited_only
        self.name = SOLICITED if solicited_only else ASYNCIO

    def receive(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        asyncio.run(self._receive(end, traffic, peer))

    async def _receive(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        async with AsyncCQ(end.recv_cq) as acq:
            await traffic.meet_async(end)
            self.start_clock()
            work = asyncio.ensure_future(self._take_all(acq, end, traffic))
            try:
                while not work.done():
                    await asyncio.wait({work}, timeout=CHECK_INTERVAL)
                    peer.check()
            finally:
                work.cancel()
            work.result()
            self.wakeups = acq.stats.wakeups

    async def _take_all(self, acq: AsyncCQ, end: SlotEndpoint, traffic: Traffic) -> None:
        traffic.start(end)
        while not traffic.done:
            wcs = await acq.wait(BATCH, solicited_only=self._solicited_only)
            traffic.handle(end, wcs)
        self.stop_clock()


class _Synchronous(Receiver):
    """Receives without an event loop."""

    def receive(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        traffic.meet(end)
        self.start_clock()
        self._take_all(end, traffic, peer)
        self.stop_clock()

    @abstractmethod
    def _take_all(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None: ...


class Blocking(_Synchronous):
    """Sleeps in get_event."""

    name = BLOCKING

    def _take_all(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        cq = end.recv_cq
        cq.req_notify()
        traffic.start(end)
        while not traffic.done:
            wcs = cq.poll(BATCH)
            if wcs:
                traffic.handle(end, wcs)
                continue
            # No completion since the CQ was armed, so its event is still to come.
            self._sleep(end, peer)
            cq.req_notify()
        cq.ack(cq.unacked)

    def _sleep(self, end: SlotEndpoint, peer: Peer) -> None:
        while True:
            try:
                end.channel.get_event(CHECK_INTERVAL)
            except TimeoutError:
                peer.check()
            else:
                self.wakeups += 1
                return


class BusyPolling(_Synchronous):
    """Never sleeps, but polls all the time."""

    name = BUSY

    def _take_all(self, end: SlotEndpoint, traffic: Traffic, peer: Peer) -> None:
        traffic.start(end)
        check = 0.0
        while not traffic.done:
            wcs = end.recv_cq.poll(BATCH)
            if wcs:
                traffic.handle(end, wcs)
            elif time.monotonic() > check:
                peer.check()
                check = time.monotonic() + CHECK_INTERVAL


def measure(plan: Plan, traffic: Traffic, receiver: Receiver) -> Result:
    """Run one traffic with one receiver; a DemoError includes what the peer printed."""
    with (
        open_end(plan.device, plan.link_local, traffic.size) as end,
        closing(traffic),
        closing(traffic.launch(end)) as peer,
    ):
        try:
            receiver.receive(end, traffic, peer)
            end.finish()
            peer.finish()
        except (DemoError, OSError, ValueError, CompletionError) as e:
            said = peer.complaint()
            about = f"{traffic.name}, {receiver.name}: {e}"
            raise DemoError(f"{about}\n{peer.name} said: {said}" if said else about) from e
        return receiver.result(end, traffic)

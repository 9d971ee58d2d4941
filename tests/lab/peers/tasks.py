# SPDX-License-Identifier: MIT
"""One end of some lanes, in tasks of one event loop: see lane.py for the orders.

tasks.py TIMEOUT RETRY_CNT LANE...
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable

from lane import RECEIVES, RECV, SENDS, Lane, Lanes, name_of, say

from cqnotify import AsyncEventError, ClosedError, CompletionError, VerbsError
from cqnotify.aio import AsyncCQ


class TaskLane(Lane):
    def begin(self) -> None:
        self.acq = AsyncCQ(self.cq)
        self.window = asyncio.Semaphore(SENDS)
        self.tasks: set[asyncio.Future[None]] = set()
        if self.srq:
            for slot in range(RECEIVES):
                self.post_recv(slot)
            self.start(self.take_from_srq())
        else:
            for slot in range(RECEIVES):
                self.start(self.receive(slot))

    def start(self, work: Awaitable[None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def receive(self, slot: int) -> None:
        """One of many: the messages come to them in the order of posting."""
        while True:
            try:
                await self.receive_one(slot)
            except CompletionError:
                self.flushed += 1
                return
            self.took(slot)

    async def receive_one(self, slot: int) -> None:
        wr_id = RECV | slot
        try:
            await self.acq.recv(self.qp, self.receive_into(slot), wr_id=wr_id)
        except AsyncEventError as error:
            self.tell(error)
            wc = await self.acq.completion(wr_id, qp=self.qp)  # it is still posted
            wc.raise_for_status()

    async def take_from_srq(self) -> None:
        while True:
            try:
                for wc in await self.acq.wait():
                    self.take_recv(wc)
            except AsyncEventError as error:
                self.tell(error)

    def tell(self, error: AsyncEventError) -> None:
        self.told.append(name_of(error.event.event_type))

    async def send_all(self, count: int, every: float) -> None:
        self.send(count, every)
        sends = []
        while True:
            await self.window.acquire()
            if self.sent.failed or not self.left:
                self.window.release()
                break
            self.left -= 1
            sends.append(self.start(self.send_one(self.sent.post())))
            await asyncio.sleep(every)
        await asyncio.gather(*sends)

    def nudge(self) -> None:
        if self.sent.under_way:
            self.start(self.send_one(self.sent.post()))

    async def send_one(self, number: int) -> None:
        try:
            await self.acq.send(self.qp, self.memory_of(number), wr_id=number, **self.to_peer)
        except CompletionError as error:
            self.sent.end(number, name_of(error.status))
        except AsyncEventError as error:
            self.sent.end(number, name_of(error.event.event_type))
        except ClosedError:
            self.sent.end(number, "ClosedError")
        except VerbsError:
            self.sent.refused(number)
        else:
            self.sent.end(number, "SUCCESS")
        self.window.release()


class TaskLanes(Lanes):
    async def open(self) -> None:
        self.lanes = self.made(TaskLane)
        self.sending: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(self.ctx.async_fd, self.watch)
        for lane in self.lanes.values():
            lane.begin()
        await asyncio.sleep(0)  # the tasks post their receives: only then may a peer send
        self.say_addresses()

    def watch(self) -> None:
        while event := self.ctx.try_get_async_event():
            say("event", name_of(event.event_type))

    async def send_all(self, count: int, every: float) -> None:
        await asyncio.gather(*(lane.send_all(count, every) for lane in self.lanes.values()))
        say("done")

    async def obey(self, order: str, words: list[str]) -> None:
        match order:
            case "send":
                work = self.send_all(int(words[0]), float(words[1]))
                self.sending = asyncio.ensure_future(work)
            case "close":
                await self.close()
            case "open":
                await self.open()
            case _:
                self.obey_at_once(order, words)

    async def close(self) -> None:
        start = time.monotonic()
        asyncio.get_running_loop().remove_reader(self.ctx.async_fd)
        self.ctx.close()
        ends = [task for lane in self.lanes.values() for task in lane.tasks]
        if self.sending:
            ends.append(self.sending)
        results = await asyncio.gather(*ends, return_exceptions=True)
        for lane in self.lanes.values():
            lane.acq.close()
        say(f"closed in {time.monotonic() - start:.3f}")
        for result in results:
            if result is not None and not isinstance(result, ClosedError):
                say("a task ended with", repr(result))


async def main() -> None:
    ack_timeout, retry_cnt, *names = sys.argv[1:]
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    with contextlib.closing(transport):
        end = TaskLanes(int(ack_timeout), int(retry_cnt), names)
        await end.open()
        while line := await orders.readline():
            order, *words = line.decode().split()
            await end.obey(order, words)


if __name__ == "__main__":
    asyncio.run(main())

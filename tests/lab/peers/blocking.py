# SPDX-License-Identifier: MIT
"""One end of some lanes, each with a thread that waits for it: see lane.py for the orders.

blocking.py TIMEOUT RETRY_CNT LANE...
"""

from __future__ import annotations

import sys
import threading
import time

from lane import RECEIVES, RECV, SENDS, Lane, Lanes, name_of, say

from cqnotify import AsyncEventError, ClosedError, WorkCompletion


class ThreadLane(Lane):
    def begin(self, end: ThreadLanes) -> None:
        self.end, self.busy = end, False
        self.due = 0.0
        for slot in range(RECEIVES):
            self.post_recv(slot)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def send(self, count: int, every: float) -> None:
        super().send(count, every)
        self.channel.interrupt()

    def nudge(self) -> None:
        if wcs := self.cq.poll():
            say(self.name, "slept beside", len(wcs), "completions")
            self.take(wcs)
        elif self.sent.under_way:
            self.left = 1
        self.channel.interrupt()

    def run(self) -> None:
        try:
            while True:
                timeout = self.post_due()
                if wcs := self.cq.poll():
                    self.take(wcs)
                elif self.cq.arm_if_empty():
                    self.sleep(timeout)
        except ClosedError:
            say(self.name, "was closed")

    def sleep(self, timeout: float | None) -> None:
        try:
            self.channel.get_event(timeout).ack()
        except (TimeoutError, InterruptedError):
            pass  # a message is due, or there is an order
        except AsyncEventError as error:
            self.told.append(name_of(error.event.event_type))

    def post_due(self) -> float | None:
        """Returns the seconds until the next one is due; None where nothing will be."""
        if self.sent.failed:
            self.left = 0
        while self.left and len(self.sent.under_way) < SENDS:
            if (wait := self.due - time.monotonic()) > 0:
                return wait
            self.due = time.monotonic() + self.every
            self.left -= 1
            number = self.sent.post()
            self.qp.post_send(self.memory_of(number), wr_id=number, **self.to_peer)
        if self.busy and not self.left and not self.sent.under_way:
            self.end.done(self)
        return None

    def take(self, wcs: list[WorkCompletion]) -> None:
        for wc in wcs:
            if wc.wr_id & RECV:
                self.take_recv(wc)
            else:
                self.sent.end(wc.wr_id, name_of(wc.status))


class ThreadLanes(Lanes):
    def open(self) -> None:
        self.lanes = self.made(ThreadLane)
        self.lock = threading.Lock()
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()
        for lane in self.lanes.values():
            lane.begin(self)
        self.say_addresses()

    def watch(self) -> None:
        try:
            while True:
                say("event", name_of(self.ctx.get_async_event().event_type))
        except ClosedError:
            pass

    def done(self, lane: ThreadLane) -> None:
        """By a lane that has sent all, or failed: the last one tells."""
        with self.lock:
            lane.busy = False
            if not any(lane.busy for lane in self.lanes.values()):
                say("done")

    def obey(self, order: str, words: list[str]) -> None:
        match order:
            case "send":
                for lane in self.lanes.values():
                    lane.busy = True  # before one of them can be done
                for lane in self.lanes.values():
                    lane.send(int(words[0]), float(words[1]))
            case "close":
                self.close()
            case "open":
                self.open()
            case _:
                self.obey_at_once(order, words)

    def close(self) -> None:
        start = time.monotonic()
        self.ctx.close()
        for thread in (self.watcher, *(lane.thread for lane in self.lanes.values())):
            thread.join()
        say(f"closed in {time.monotonic() - start:.3f}")


def main() -> None:
    ack_timeout, retry_cnt, *names = sys.argv[1:]
    end = ThreadLanes(int(ack_timeout), int(retry_cnt), names)
    end.open()
    for line in sys.stdin:
        order, *words = line.split()
        end.obey(order, words)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""One of the two processes of test_memory_soak.py: it exposes memory, and reads, writes and revokes
at random what it and the other process expose. Run as a program it is the second one.

What each transfer must bring is known. An area to read has a new version number each time that it
is exposed, which is in its bytes, and is filled with something else as soon as it is revoked: so a
get that returns has all of one version. In an area to write each worker has a slot, which it alone
writes, and reads again; when the area is revoked, its owner looks that nothing comes any more.
Memory of a transfer that has failed is overwritten, and must stay so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy

from cqnotify import MW, ClosedError, memory
from cqnotify._core import open_objects
from cqnotify._registered import Device
from cqnotify.memory import (
    ConnectionLostError,
    Descriptor,
    RefusedError,
    RevokedError,
    _transfer,
    blocking,
)

DEADLINE = 120.0  # seconds: only a hang reaches it
PIECE = 4096  # bytes of a piece, so that small transfers have many
LOOPS, TASKS, THREADS = 2, 3, 2
WORKERS = LOOPS * TASKS + THREADS
SLOT = 4 * PIECE  # bytes of a worker's part of an area to write
LARGEST = 16 * PIECE  # bytes of an area to read
READ_AREAS, WRITE_AREAS = 10, 3
LIFE = 300  # steps of an event loop, after which another one begins
CANARY = 0xEE
NO_WORD = 0xEEEEEEEEEEEEEEEE

Step = Callable[[Any], Any]  # begins a transfer: of cqnotify.memory, or of its futures
Plan = Generator[tuple[Step, int | None] | None, Any, None]


def content(version: int, nbytes: int) -> Any:
    words = numpy.arange(nbytes // 8, dtype="u8") + (version << 24)
    return words.view("u1")


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.001)


class Owner:
    """A process that exposes memory."""

    def __init__(self) -> None:
        self.ending = threading.Event()  # set before it ends


class Remote:
    """What a process exposes. Version 0: an area to write."""

    def __init__(self, descriptor: Descriptor, version: int, owner: Owner) -> None:
        self.descriptor, self.version, self.owner = descriptor, version, owner
        self.closing = threading.Event()  # set before it is revoked


class Futures:
    """Transfers for threads."""

    get = staticmethod(blocking.get_future)
    put = staticmethod(blocking.put_future)


class Area:
    """Memory that is exposed, revoked and exposed again."""

    def __init__(self, actor: Actor, own: Any, writable: bool) -> None:
        self.actor, self.memory, self.writable = actor, own, writable
        self.lock = threading.Lock()
        self.exposure: memory.Exposure | None = None

    def renew(self, rng: random.Random) -> None:
        """Revoke it, and expose it again; unless another worker does."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            self.revoke()
            if rng.random() < 0.2:
                self.memory = numpy.empty_like(self.memory)  # the former memory is freed
            version = 0 if self.writable else self.actor.next_version()
            self.memory[:] = 0 if self.writable else content(version, len(self.memory))
            access = memory.READ | memory.WRITE if self.writable else memory.READ
            lifetime = rng.random() * 0.2 if rng.random() < 0.2 else None
            self.exposure = memory.expose(self.memory, access, lifetime=lifetime)
            self.actor.exposed(self.exposure, version)
        finally:
            self.lock.release()

    def revoke(self) -> None:
        """After which nobody reaches it."""
        exposure, self.exposure = self.exposure, None
        if exposure is None:
            return
        self.actor.count("expired" if exposure.closed else "closed")
        self.actor.closing(exposure.token)
        exposure.close()
        if not self.writable:
            self.memory[:] = CANARY
        else:
            words = self.memory.view("u8").reshape(2 * WORKERS, -1)
            slots = numpy.arange(1, 2 * WORKERS + 1, dtype="u8")[:, None]
            wrong = words[(words != 0) & (words >> 48 != slots)]
            assert not len(wrong), f"nobody has written {wrong[:4]}"
            self.memory[:] = CANARY
            time.sleep(0.0005)
            assert (self.memory == CANARY).all(), "written by a peer after close()"


class Worker:
    def __init__(self, actor: Actor, number: int) -> None:
        self.actor, self.number = actor, number
        self.slot = actor.number * WORKERS + number
        self.rng = random.Random(f"{actor.seed}, {actor.generation}, {self.slot}")
        self.sequence = actor.generation << 32

    # ---- plans: what they yield begins a transfer, whose outcome they get ----

    def step(self) -> Plan:
        actor, rng = self.actor, self.rng
        if rng.random() < 0.03:
            rng.choice(actor.areas).renew(rng)
        remote = actor.any_remote(rng)
        if remote is not None and remote.version:
            yield from self.get(remote)
        elif remote is not None:
            yield from self.put(remote)
        else:
            yield None

    def get(self, remote: Remote) -> Plan:
        rng, one = self.rng, remote.descriptor
        offset = rng.choice((0, rng.randrange(one.length)))
        length = rng.choice((one.length - offset, rng.randint(1, one.length - offset)))
        wanted = content(remote.version, one.length)[offset : offset + length]
        kinds: list[Callable[[int], Any]] = [bytearray, lambda n: numpy.zeros(n, "u1")]
        into = rng.choice(kinds)(length)
        view = memoryview(into)
        timeout = rng.random() * 0.02 if rng.random() < 0.05 else None
        patience = self.patience()
        outcome = yield (
            lambda api: api.get(one, into, offset=offset, length=length, timeout=timeout),
            patience,
        )
        while True:
            handle, error = outcome
            self.judge("get", error, remote, patience is not None, timeout is not None)
            done = handle.nbytes_done
            got = numpy.frombuffer(view[:done], "u1")
            assert (got == wanted[:done]).all(), f"{self.wrong(got, wanted)} of {remote.version}"
            if error is None:
                assert done == length
                return
            view[done:] = bytes([CANARY]) * (length - done)
            yield None
            assert view[done:] == bytes([CANARY]) * (length - done), f"written after {error!r}"
            if rng.random() < 0.3:
                return
            self.actor.count("resumed")
            former, patience = handle, self.patience()
            outcome = yield lambda api, former=former: former.resume(), patience

    def wrong(self, got: Any, wanted: Any) -> str:
        places = numpy.flatnonzero(got != wanted[: len(got)])
        first = int(places[0])
        return f"{len(places)} wrong from {first}: {bytes(got[first : first + 16]).hex()}"

    def put(self, remote: Remote) -> Plan:
        rng, one, at = self.rng, remote.descriptor, self.slot * SLOT
        n = rng.choice((1, rng.randint(1, SLOT // 8), SLOT // 8))
        self.sequence += 1
        word = (self.slot + 1) << 48 | self.sequence
        data = numpy.full(n, word, "u8")
        timeout = rng.random() * 0.02 if rng.random() < 0.05 else None
        begin: Step = lambda api: api.put(one, data, offset=at, timeout=timeout)  # noqa: E731
        while True:
            patience = self.patience()
            handle, error = yield begin, patience
            self.judge("put", error, remote, patience is not None, timeout is not None)
            if error is None or rng.random() < 0.3:
                break
            self.actor.count("resumed")
            begin = lambda api, former=handle: former.resume()  # noqa: E731
        data[:] = NO_WORD
        into = numpy.zeros(n, "u8")
        _, failure = yield lambda api: api.get(one, into, offset=at, length=8 * n), None
        self.judge("read again", failure, remote, False, False)
        if failure is not None:
            return
        if error is None:
            assert (into == word).all(), f"{into[into != word][:4]}, not {word}"
        else:
            mine = (into == 0) | ((into >> 48 == self.slot + 1) & (into <= word))
            assert mine.all(), f"{into[~mine][:4]} after {word}"

    def patience(self) -> int | None:
        """For how many turns of the loop to wait before it is cancelled."""
        return int(10 ** self.rng.uniform(0, 2)) if self.rng.random() < 0.1 else None

    def judge(
        self,
        what: str,
        error: BaseException | None,
        remote: Remote,
        was_cancelled: bool,
        was_timed: bool,
    ) -> None:
        """An error must have its cause."""
        actor = self.actor
        actor.count(f"{what}: {'done' if error is None else type(error).__name__}")
        if error is None or actor.me.ending.is_set():
            return
        if isinstance(error, asyncio.CancelledError):
            assert was_cancelled, "nobody has cancelled it"
        elif isinstance(error, RevokedError):
            until(
                lambda: remote.closing.is_set() or remote.owner.ending.is_set(),
                f"somebody revokes what has raised {error!r}",
            )
        elif isinstance(error, ConnectionLostError | RefusedError):
            until(remote.owner.ending.is_set, f"the peer ends, after {error!r}")
        elif isinstance(error, TimeoutError):
            assert was_timed, "it had no timeout"
        else:
            raise error

    # ---- who carries them out ----

    async def in_loop(self) -> None:
        for _ in range(LIFE // TASKS):
            plan, outcome = self.step(), None
            while not self.actor.stopping:
                try:
                    wanted = plan.send(outcome)
                except StopIteration:
                    break
                if wanted is None:
                    await asyncio.sleep(0.0001)
                    continue
                begin, patience = wanted
                handle = begin(memory)
                task = asyncio.ensure_future(handle)
                if patience is not None:
                    for _ in range(patience):
                        await asyncio.sleep(0)
                    task.cancel()
                done, _ = await asyncio.wait([task], timeout=DEADLINE)
                assert done, f"{handle!r} hangs"
                error = asyncio.CancelledError() if task.cancelled() else task.exception()
                outcome = handle, error
            plan.close()

    def in_thread(self) -> None:
        while not self.actor.stopping:
            plan, outcome = self.step(), None
            while True:
                try:
                    wanted = plan.send(outcome)
                except StopIteration:
                    break
                if wanted is None:
                    time.sleep(0.0001)
                    continue
                begin, patience = wanted
                future = begin(Futures)
                if patience is not None:
                    time.sleep(patience * 0.00005)
                    future.cancel()
                done, _ = concurrent.futures.wait([future], DEADLINE)
                assert done, f"{future!r} hangs"
                outcome = future, future.exception()


class Actor:
    """number: 0 for the test's process, 1 for the other one. generation: of that, from 1 on."""

    def __init__(self, number: int, seed: str, generation: int) -> None:
        _transfer.PIECE = PIECE  # type: ignore[misc]
        self.number, self.seed, self.generation = number, seed, generation
        self.rng = random.Random(f"{seed}, {generation}, {number}")
        self.me = Owner()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.stopping = False
        self.say: Callable[[str], None] = lambda line: None
        self.said: dict[int, str] = {}  # what is exposed now
        self._version = 0
        self._lock = threading.RLock()
        self._remotes: dict[int, Remote] = {}
        self._former: deque[Remote] = deque(maxlen=4)
        sizes = [8 * self.rng.randint(1, LARGEST // 8) for _ in range(READ_AREAS)]
        block = numpy.zeros(sum(sizes[: READ_AREAS // 2]), "u1")  # half of them are parts of it
        at = numpy.cumsum([0, *sizes])
        parts = [block[at[i] : at[i + 1]] for i in range(READ_AREAS // 2)]
        parts += [numpy.zeros(size, "u1") for size in sizes[READ_AREAS // 2 :]]
        self.areas = [Area(self, part, False) for part in parts]
        for _ in range(WRITE_AREAS):
            self.areas.append(Area(self, numpy.zeros(2 * WORKERS * SLOT, "u1"), True))
        self._workers = [Worker(self, i) for i in range(WORKERS)]
        self._threads: list[threading.Thread] = []

    def warm(self) -> None:
        """What stays open for good is so from now on."""
        with memory.expose(bytes(100)) as one:
            blocking.get(one)
        memory.close()
        asyncio.run(asyncio.sleep(0))
        self.threads = threading.active_count()  # some of a test before may still end
        self._fds = len(os.listdir("/proc/self/fd"))

    def start(self) -> None:
        for area in self.areas:
            area.renew(self.rng)
        for i in range(LOOPS):
            self._start(self._in_loops, self._workers[i * TASKS : (i + 1) * TASKS])
        for worker in self._workers[LOOPS * TASKS :]:
            self._start(worker.in_thread)

    def _start(self, call: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                call(*args)
            except BaseException as e:
                if not (isinstance(e, ClosedError) and self.me.ending.is_set()):
                    self.errors.append(traceback.format_exc())

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _in_loops(self, workers: list[Worker]) -> None:
        async def main() -> None:
            await asyncio.gather(*(worker.in_loop() for worker in workers))

        while not self.stopping:
            asyncio.run(main())

    # ---- what is known ----

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def taken_counts(self) -> Counter[str]:
        with self._lock:
            taken, self.counts = self.counts, Counter()
            return taken

    def next_version(self) -> int:
        with self._lock:
            self._version += 1
            return (self.generation << 24) + self._version

    def exposed(self, one: memory.Exposure, version: int) -> None:
        line = json.dumps(["exposed", one.to_dict(), version])
        with self._lock:
            self.said[one.token] = line
            self.say(line)
        self.hear(line, self.me)

    def closing(self, token: int) -> None:
        line = json.dumps(["closing", token])
        with self._lock:
            self.said.pop(token, None)
            self.say(line)
        self.hear(line, self.me)

    def set_peer(self, say: Callable[[str], None]) -> None:
        """Tell it everything, and what comes."""
        with self._lock:
            self.say = say
            for line in self.said.values():
                say(line)

    def hear(self, line: str, owner: Owner) -> None:
        """Of an owner's memory."""
        kind, one, *version = json.loads(line)
        with self._lock:
            if kind == "exposed":
                descriptor = Descriptor.from_dict(one)
                remote = Remote(descriptor, *version, owner)
                if descriptor.expires is not None:
                    remote.closing.set()
                self._remotes[descriptor.token] = remote
            else:
                remote = self._remotes.pop(one)
                remote.closing.set()
                self._former.append(remote)

    def forget(self, owner: Owner) -> None:
        """It has ended."""
        with self._lock:
            for token, remote in list(self._remotes.items()):
                if remote.owner is owner:
                    self._former.append(self._remotes.pop(token))

    def any_remote(self, rng: random.Random) -> Remote | None:
        with self._lock:
            found = [*self._remotes.values(), *self._former]
        return rng.choice(found) if found else None

    # ---- the end ----

    def stop(self) -> None:
        self.stopping = True
        for thread in self._threads:
            thread.join(2 * DEADLINE)
            assert not thread.is_alive(), f"{thread} hangs"

    def end_in_the_midst(self) -> None:
        """All of it, whatever is under way."""
        self.me.ending.set()
        memory.close()
        self.stop()
        self.close()

    def end(self) -> None:
        """When no transfer is under way: then no registration is in use, and no window is there."""
        self.stop()
        for area in self.areas:
            area.revoke()
        until(lambda: memory.stats().in_use == 0, f"{memory.stats()} become unused")
        contexts = [device.context for device in Device.all()]
        windows = [one for context in contexts for one in open_objects(context) if type(one) is MW]
        assert not windows
        self.close()
        assert all(context.closed for context in contexts)

    def close(self) -> None:
        memory.close()
        gc.collect()
        until(
            lambda: threading.active_count() <= self.threads and not Device.all(),
            f"{threading.enumerate()} and {Device.all()} end",
        )
        fds = len(os.listdir("/proc/self/fd"))
        assert fds <= self._fds, f"{fds} descriptors, {self._fds} before"


def program(seed: str, generation: int) -> None:
    """The other process: it reads what the test tells, and writes what it exposes."""

    def say(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, line.encode() + b"\n")

    def report() -> None:
        say(json.dumps(["counts", actor.taken_counts()]))
        while actor.errors:
            say(json.dumps(["error", actor.errors.pop()]))

    def heard() -> Iterator[str]:
        for line in sys.stdin:
            if line == '["report"]\n':
                report()
            elif line in ('["stop"]\n', '["end"]\n'):
                ending.append(line)
                return
            else:
                yield line

    ending: list[str] = []
    actor, test = Actor(1, seed, generation), Owner()
    actor.warm()
    actor.set_peer(say)
    actor.start()
    for line in heard():
        actor.hear(line, test)
    if not ending:  # the test has ended
        os._exit(1)
    try:
        if ending == ['["end"]\n']:
            say('["ending", 0]')
            actor.end_in_the_midst()
        else:
            actor.end()
    except BaseException:
        actor.errors.append(traceback.format_exc())
    report()


if __name__ == "__main__":
    program(sys.argv[1], int(sys.argv[2]))

# SPDX-License-Identifier: MIT
"""Exposed memory for long: two processes, each with event loops and threads that expose, get, put,
cancel, resume and revoke at random, while one of them is killed now and then. What comes is right,
each error has its cause, nothing hangs, and nothing is left. See memory_actor.py."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from memory_actor import Actor, Owner
from soak_support import Progress
from support import DEADLINE, Waiter

from cqnotify import Context

PROGRAM = Path(__file__).with_name("memory_actor.py")
MANY = int(os.environ.get("CQNOTIFY_SOAK_TRANSFERS", "120000"))
SEED = os.environ.get("CQNOTIFY_SOAK_SEED", "20240229")
GENERATION = 5000  # transfers, after which the peer ends and another one begins


class Peer:
    """The other process."""

    def __init__(self, soak: Soak, generation: int) -> None:
        self.soak, self.owner = soak, Owner()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), SEED, str(generation)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reading = Waiter(self.read)
        soak.actor.set_peer(self.say)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except (BrokenPipeError, ValueError):
            if not self.owner.ending.is_set():
                raise

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # it was killed meanwhile
                break
            kind, about, *_ = json.loads(line)
            if kind == "counts":
                self.soak.counts.update(about)
            elif kind == "error":
                self.soak.actor.errors.append(f"in the peer: {about}")
            elif kind == "ending":
                self.owner.ending.set()
            else:
                self.soak.actor.hear(line, self.owner)

    def end(self, how: str) -> None:
        if how == "kill":
            self.owner.ending.set()
            self.process.kill()
        else:
            self.say(json.dumps([how]))
        code = self.process.wait(3 * DEADLINE)
        self.owner.ending.set()
        self.reading.join()
        self.soak.actor.set_peer(lambda line: None)
        self.soak.actor.forget(self.owner)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.say("")  # what was not written yet is dropped
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        assert code == (-9 if how == "kill" else 0)
        self.soak.counts[f"peers: {how}"] += 1


class Soak:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.counts: Counter[str] = Counter()
        self.actor = Actor(0, SEED, 0)

    def run(self) -> None:
        self.actor.warm()
        peer, generation = Peer(self, 1), 1
        self.actor.start()
        try:
            while self.transfers() < self.progress.wanted:
                time.sleep(0.1)
                peer.say('["report"]')
                self.look()
                if self.transfers() >= generation * GENERATION:
                    generation += 1
                    peer.end(self.actor.rng.choice(("kill", "end")))
                    peer = Peer(self, generation)
            self.actor.stop()
            peer.end("stop")
            self.actor.end()
            self.look()
        except BaseException:
            self.actor.stopping = True
            with contextlib.suppress(BaseException):
                peer.end("kill")
            raise

    def look(self) -> None:
        self.counts.update(self.actor.taken_counts())
        self.progress.add(self.transfers() - self.progress.done)
        if self.actor.errors:
            pytest.fail("\n".join(self.actor.errors))

    def transfers(self) -> int:
        return sum(n for what, n in self.counts.items() if what.endswith(": done"))

    def check(self) -> None:
        """All of it has happened."""
        assert self.counts["get: done"]
        assert self.counts["put: done"]
        assert self.counts["get: CancelledError"]
        assert self.counts["get: RevokedError"]
        assert self.counts["closed"]
        assert self.counts["resumed"]


def test_what_arrives_is_right_whatever_is_cancelled_or_revoked(
    ctx: Context, capfd: pytest.CaptureFixture[str], is_long: bool
) -> None:
    progress = Progress(MANY if is_long else 2000, is_long)
    with progress.shown(capfd):
        print(f"seed {SEED}")
        soak = Soak(progress)
        soak.run()
        soak.check()
        figures = ", ".join(f"{what} {n}" for what, n in sorted(soak.counts.items()))
        print(f"\r{progress.report()}; {figures}")

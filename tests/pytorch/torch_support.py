# SPDX-License-Identifier: MIT
"""Pairs of transports in one process, and peers in processes of their own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support import DEADLINE

from cqnotify.torch import CqnotifyTransport, RemoteBuffer

PEER = Path(__file__).with_name("peer.py")


@contextlib.contextmanager
def pair() -> Iterator[tuple[CqnotifyTransport, CqnotifyTransport]]:
    """Two that are connected to each other, in this process."""
    with CqnotifyTransport(timeout=DEADLINE) as a, CqnotifyTransport(timeout=DEADLINE) as b:
        a.connect(b.bind())
        b.connect(a.bind())
        yield a, b


class Peer:
    """A process with a transport, and registered tensors that count up from 0 in each byte."""

    def __init__(self, nbytes: int, tensors: int = 1) -> None:
        words = [sys.executable, "-W", "error", str(PEER), str(nbytes), str(tensors)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.url = bytes.fromhex(self._line())
        lines = [self._line() for _ in range(tensors)]
        self.buffers = [RemoteBuffer.deserialize(bytes.fromhex(line)) for line in lines]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer has ended"
        return line.strip()

    def ask(self, what: str) -> str:
        """Have a command carried out, see peer.py."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def stop(self) -> None:
        """It answers nothing, from the return of this call on."""
        self._process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._process.pid}/status")
        while "State:\tT" not in status.read_text():
            pass

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        with self._process:
            self._process.kill()

    def close(self) -> None:
        """End it, unless it was killed; it must have failed in nothing."""
        if self._process.returncode is None:
            self.go_on()
            self._process.communicate(timeout=DEADLINE)
            assert self._process.returncode == 0


@contextlib.contextmanager
def peer(nbytes: int, tensors: int = 1) -> Iterator[Peer]:
    one = Peer(nbytes, tensors)
    try:
        yield one
        one.close()
    finally:
        one.kill()

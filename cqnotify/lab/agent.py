# SPDX-License-Identifier: MIT
"""Runs in each of the lab's hosts: starts programs there, and carries their streams.

Both sides speak lines of JSON; bytes are in them as characters of Latin-1. Orders come on stdin:
{"order": "start", "program": N, "argv": [...], "env": {...}, "cwd": PATH}, "input" with data (empty
at its end), "signal" with number. Reports go to stdout: "ready", "out" with stream and data, "took"
with how many bytes of input, "end" with the status as a shell tells it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import IO

CHUNK = 16384


class Program:
    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self.number, self.process = number, process
        self.input = b""  # that it has not taken yet
        self.input_ends = False
        self.stdin = process.stdin
        self.outputs = {"out": process.stdout, "err": process.stderr}


class Agent:
    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.programs: dict[int, Program] = {}
        self.heard = b""
        self.children, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(0, selectors.EVENT_READ, self.hear)
        self.selector.register(self.children, selectors.EVENT_READ, self.reap)

    def report(self, event: str, **facts: object) -> None:
        line = json.dumps({"event": event, **facts}).encode() + b"\n"
        while line:
            line = line[os.write(1, line) :]

    # -- orders

    def hear(self) -> None:
        data = os.read(0, 65536)
        if not data:
            sys.exit()
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            getattr(self, order.pop("order"))(**order)

    def start(self, program: int, argv: list[str], env: dict[str, str], cwd: str) -> None:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env={**os.environ, **env},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            said = f"lab: {error.filename or argv[0]}: {error.strerror}\n"
            self.report("out", program=program, stream="err", data=said)
            missing = isinstance(error, FileNotFoundError)
            self.report("end", program=program, status=127 if missing else 126)
            return
        started = self.programs[program] = Program(program, process)
        for name, stream in started.outputs.items():
            carry = functools.partial(self.carry, started, name)
            self.watch(stream, selectors.EVENT_READ, carry)

    def input(self, program: int, data: str) -> None:
        if taker := self.programs.get(program):
            taker.input += data.encode("latin-1")
            taker.input_ends = not data
            self.feed(taker)

    def signal(self, program: int, number: int) -> None:
        if taker := self.programs.get(program):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(taker.process.pid, number)

    # -- streams

    def watch(self, stream: IO[bytes], events: int, then: Callable[[], None]) -> None:
        os.set_blocking(stream.fileno(), False)
        self.selector.register(stream, events, then)

    def carry(self, program: Program, name: str) -> None:
        data = program.outputs[name].read(CHUNK)
        if data:
            self.tell_output(program, name, data)
        elif data is not None:  # its end
            self.close(program, name)
            self.finish(program)

    def tell_output(self, program: Program, name: str, data: bytes) -> None:
        self.report("out", program=program.number, stream=name, data=data.decode("latin-1"))

    def close(self, program: Program, name: str) -> None:
        stream = program.outputs.pop(name)
        self.selector.unregister(stream)
        stream.close()

    def feed(self, program: Program) -> None:
        """Writes what the program takes now, and goes on when it takes more."""
        stream = program.stdin
        if stream.closed:
            return
        if program.input:
            os.set_blocking(stream.fileno(), False)
            before = len(program.input)
            try:
                program.input = program.input[stream.write(program.input) or 0 :]
            except BrokenPipeError:
                program.input, program.input_ends = b"", True
            self.report("took", program=program.number, bytes=before - len(program.input))
        waiting = stream in self.selector.get_map()
        if program.input and not waiting:
            self.watch(stream, selectors.EVENT_WRITE, lambda: self.feed(program))
        if not program.input and waiting:
            self.selector.unregister(stream)
        if not program.input and program.input_ends:
            stream.close()

    # -- ends

    def reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.children, 4096)
        for program in list(self.programs.values()):
            if program.process.poll() is not None:
                self.finish(program)

    def finish(self, program: Program) -> None:
        """When it has ended: what a process of its own in the background holds open is read no
        further than to what is there."""
        status = program.process.poll()
        if status is None or self.programs.pop(program.number, None) is None:
            return
        for name, stream in list(program.outputs.items()):
            while data := stream.read(CHUNK):
                self.tell_output(program, name, data)
            self.close(program, name)
        with contextlib.suppress(KeyError, ValueError):  # it is watched only while it is full
            self.selector.unregister(program.stdin)
        program.stdin.close()
        self.report("end", program=program.number, status=128 - status if status < 0 else status)

    def run(self) -> None:
        self.report("ready")
        while True:
            for key, _ in self.selector.select():
                if not getattr(key.fileobj, "closed", False):  # by the one before
                    key.data()


if __name__ == "__main__":
    Agent().run()

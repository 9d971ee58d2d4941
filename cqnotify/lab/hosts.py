# SPDX-License-Identifier: MIT
"""Several hosts with a switch between them: `./lab hosts`.

Each host is a guest of its own, with a driver.py that boots it and agent.py inside; the switch is a
process, too. Each has a socket to us, and here is one loop over all of them. Two fronts use
it: commands, one for each host, whose output gets the host's number (hosts_run.py); and a program
on this machine that gives orders, which is what the pytest fixture is (hosts_serve.py).
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .base import HERE, LabError

MOST = 8
TAIL = 20  # lines that a host's driver said last
SWITCH_SECONDS = 10  # for an answer


class Host:
    """A guest, or the place where one was."""

    def __init__(self, number: int, command: list[str], cable: socket.socket) -> None:
        self.number, self.command, self.cable = number, command, cable
        self.driver: subprocess.Popen[bytes] | None = None
        self.ready = self.paused = False
        self.orders = b""  # that its driver has not taken yet
        self.said: collections.deque[str] = collections.deque(maxlen=TAIL)

    def boot(self) -> None:
        self.ready = self.paused = False
        self.orders = b""
        self.said.clear()
        self.driver = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[self.cable.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C is for us alone
            bufsize=0,
        )

    def tell(self, order: str, **facts: object) -> None:
        """Soon: a host that is paused takes nothing, and must not hold the others up."""
        self.orders += json.dumps({"order": order, **facts}).encode() + b"\n"

    def send_orders(self) -> None:
        """As many as are taken now."""
        assert self.driver is not None
        assert self.driver.stdin is not None
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self.orders = self.orders[self.driver.stdin.write(self.orders) or 0 :]

    def signal(self, number: int) -> None:
        """To the guest itself, all of its processes."""
        for pid in children(self.driver.pid) if self.driver else []:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def kill(self) -> None:
        """As if its power had gone."""
        if self.driver is None:
            return
        self.signal(signal.SIGKILL)
        self.driver.kill()
        self.driver.wait()

    def last_words(self) -> str:
        return "".join(f"\n    {line}" for line in self.said)


def children(parent: int) -> Iterable[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(entry.parent.name)


class Switch:
    """The process, and what it is told."""

    def __init__(self, cables: list[socket.socket]) -> None:
        self.orders, theirs = socket.socketpair()
        self.orders.settimeout(SWITCH_SECONDS)
        fds = [theirs.fileno(), *(cable.fileno() for cable in cables)]
        command = [sys.executable, "-B", str(HERE / "switch.py"), *map(str, fds)]
        self.process = subprocess.Popen(command, pass_fds=fds, start_new_session=True)
        theirs.close()

    def ask(self, order: str, **facts: object) -> dict[str, Any]:
        """Returns when the switch has done it."""
        self.orders.sendall(json.dumps({"order": order, **facts}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            data = self.orders.recv(65536)
            if not data:
                raise LabError("the switch between the hosts has ended")
            answer += data
        result: dict[str, Any] = json.loads(answer)
        return result

    def end(self) -> None:
        self.orders.close()
        self.process.kill()
        self.process.wait()


class Cluster:
    """`told` hears of every event: a dict with "event", "host" and what belongs to it."""

    def __init__(
        self, driver: list[str], count: int, seed: int, told: Callable[[dict[str, Any]], None]
    ) -> None:
        self.told = told
        self.selector = selectors.DefaultSelector()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        self.hosts = [
            Host(number, [*driver, "--place", f"{number}/{count}/{cable.fileno()}", *AGENT], cable)
            for number, (cable, _) in enumerate(pairs, 1)
        ]
        self.switch = Switch([end for _, end in pairs])
        for _, end in pairs:
            end.close()
        self.switch.ask("reset", seed=seed)
        for host in self.hosts:
            self.switch.ask("down", host=host.number, down=True)

    def links(self, a: int | None = None, b: int | None = None) -> list[tuple[int, int]]:
        """From a to b; None stands for every host."""
        numbers = range(1, len(self.hosts) + 1)
        return [
            (x, y) for x in numbers for y in numbers if x != y and a in (None, x) and b in (None, y)
        ]

    # -- hosts

    def boot(self, host: Host) -> None:
        if host.driver is not None:
            raise LabError(f"host {host.number} runs already")
        self.switch.ask("down", host=host.number, down=False)
        host.boot()
        assert host.driver is not None
        for stream, hear in (
            (host.driver.stdout, self.hear_agent),
            (host.driver.stderr, self.hear_driver),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ, (hear, host, bytearray()))
        assert host.driver.stdin is not None
        os.set_blocking(host.driver.stdin.fileno(), False)

    def kill(self, host: Host) -> None:
        host.kill()
        self.ended(host)

    def pause(self, host: Host, paused: bool) -> None:
        host.signal(signal.SIGSTOP if paused else signal.SIGCONT)
        host.paused = paused

    def hear_agent(self, host: Host, line: str) -> None:
        event = json.loads(line)
        host.ready = host.ready or event["event"] == "ready"
        self.tell(host, **event)

    def hear_driver(self, host: Host, line: str) -> None:
        host.said.append(line)

    def tell(self, host: Host, **facts: object) -> None:
        self.told({"host": host.number, "time": time.monotonic(), **facts})

    def ended(self, host: Host) -> None:
        """Its driver has: the guest was killed, has died, or never came up."""
        assert host.driver is not None
        for stream in (host.driver.stdout, host.driver.stderr, host.driver.stdin):
            assert stream is not None
            with contextlib.suppress(KeyError):
                self.drain(stream)
                self.selector.unregister(stream)
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        status, host.driver, host.ready = host.driver.wait(), None, False
        self.switch.ask("down", host=host.number, down=True)
        self.tell(host, event="down", status=status, said=host.last_words())

    # -- the loop

    def watch(self, file: Any, then: Callable[[], None]) -> None:
        """`then` is called when there is something to read. For the fronts."""
        self.selector.register(file, selectors.EVENT_READ, then)

    def turn(self, timeout: float | None = None) -> None:
        writing = [host for host in self.hosts if host.driver and host.orders]
        pipes = [host.driver.stdin for host in writing if host.driver and host.driver.stdin]
        for pipe, host in zip(pipes, writing, strict=True):
            self.selector.register(pipe, selectors.EVENT_WRITE, host)
        ready = self.selector.select(timeout)
        for pipe in pipes:
            self.selector.unregister(pipe)
        for key, _ in ready:
            if isinstance(key.data, Host):
                if key.data.driver and key.fileobj is key.data.driver.stdin:
                    key.data.send_orders()
            elif callable(key.data):
                key.data()
            elif not key.fileobj.closed and not self.drain(key.fileobj):  # type: ignore[union-attr]
                host = key.data[1]
                if host.driver and key.fileobj is host.driver.stdout:
                    self.ended(host)
                else:
                    self.selector.unregister(key.fileobj)

    def drain(self, stream: Any) -> bool:
        """Hears all lines that are there; False at the stream's end."""
        hear, host, heard = self.selector.get_key(stream).data
        while data := stream.read(65536):
            *lines, rest = (bytes(heard) + data).split(b"\n")
            heard[:] = rest
            for line in lines:
                hear(host, line.decode(errors="replace"))
        return data is None

    def end(self) -> None:
        for host in self.hosts:
            host.kill()
        self.switch.end()


AGENT = ["--", "python3", "-S", "-B", str(HERE / "agent.py")]

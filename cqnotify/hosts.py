# SPDX-License-Identifier: MIT
"""Several hosts with RDMA devices, and a network between them whose faults a test controls.

    with Hosts(2) as (a, b):
        command = "ibv_rc_pingpong -d rxe0 -g 1"
        server = b.start(*command.split())
        b.impair(loss=0.05)
        a.run("sh", "-c", f"until {command} {b.name}; do sleep 0.1; done")  # until it listens
        assert server.wait() == 0

Each host is a guest of the lab, with a kernel of its own. Its RDMA device rxe0 is on the interface
v0, and a switch of the lab forwards the frames. The fixture `hosts` of the pytest plugin starts the
hosts. All of them see the project's folder as it is on this machine.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypedDict, overload

if TYPE_CHECKING:
    from typing import Self, Unpack

__all__ = ["Host", "HostError", "Hosts", "Line", "Program"]


class Faults(TypedDict, total=False):
    """The parameters of `Hosts.impair`: what a link does to its frames."""

    loss: float
    duplicate: float
    reorder: float
    delay: float
    jitter: float
    rate: float


_BOOT = 200.0  # seconds; an emulated guest is tried twice
_ANSWER = 30.0
_PROBABILITIES = ("loss", "duplicate", "reorder")
_FAULTS = tuple(Faults.__annotations__)
_HEALED = {**dict.fromkeys(_FAULTS, 0), "cut": False}


class HostError(Exception):
    """A host did not come up, has gone down, or cannot do what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Line(NamedTuple):
    """A line of a program's output, and when it came, by time.monotonic() of this machine."""

    time: float
    stream: str  # "out" or "err"
    text: str


class Program:
    """A command that was started on a host.

    `status` is the exit code as a shell shows it, 128+N for signal N. It is None while the program
    runs, and stays None if the host goes down. `out` and `err` have what the program has written so
    far, and `lines` the same line by line, with the time of each.
    """

    host: Host
    argv: list[str]
    status: int | None
    gone: bool
    out: str
    err: str
    lines: list[Line]

    def __init__(self, host: Host, number: int, argv: Sequence[str]) -> None:
        self.host, self.argv = host, list(argv)
        self.status = None
        self.gone = False
        self.out = self.err = ""
        self.lines = []
        self._number = number
        self._said_both = ""
        self._seen = 0  # of that, by expect()
        self._rest = {"out": "", "err": ""}

    def __repr__(self) -> str:
        state = "gone" if self.gone else "running" if self.status is None else self.status
        return f"<Program {shlex.join(self.argv)} on {self.host.name}: {state}>"

    @property
    def running(self) -> bool:
        """Whether the program has not ended, and its host has not gone down."""
        return self.status is None and not self.gone

    def expect(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        """Wait until the output of both streams matches, after the match of the last call.

        pattern: a regular expression, in which ^ and $ match at lines.
        timeout: in seconds.

        Raises TimeoutError if no match comes in time, HostError if the host goes down, and EOFError
        if the program ends first; each shows what the program wrote.
        """
        until = time.monotonic() + timeout
        while True:
            match = re.compile(pattern, re.MULTILINE).search(self._said_both, self._seen)
            if match:
                self._seen = match.end()
                return match
            if self.gone:
                raise HostError(f"{self.host.name} has gone before {pattern!r} came{self._said()}")
            if self.status is not None:
                raise EOFError(f"{self!r} has ended without {pattern!r}{self._said()}")
            if not self.host._hosts._hear(until):
                raise TimeoutError(f"no {pattern!r} in {timeout:g} s from {self!r}{self._said()}")

    def write(self, text: str) -> None:
        """Write to the program's standard input, which stays open.

        text: the text.
        """
        if text:
            self._tell("input", data=text.encode().decode("latin-1"))

    def close_input(self) -> None:
        """End its standard input."""
        self._tell("input", data="")

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children.

        number: such as signal.SIGINT.
        """
        self._tell("signal", number=number)

    def wait(self, timeout: float = 60) -> int:
        """Wait until the program ends, and return its status: 128 + N after signal N.

        timeout: in seconds.

        Raises TimeoutError, and HostError if its host goes down.
        """
        until = time.monotonic() + timeout
        while self.running:
            if not self.host._hosts._hear(until):
                raise TimeoutError(f"{self!r} has not ended in {timeout:g} s{self._said()}")
        if self.status is None:
            raise HostError(f"{self.host.name} has gone, and {self!r} with it{self._said()}")
        return self.status

    def end(self, timeout: float = 10) -> subprocess.CompletedProcess[str]:
        """End the program by SIGTERM, or by SIGKILL if it still runs after a while.

        timeout: that while, in seconds.

        Raises TimeoutError if it runs even after SIGKILL, and HostError if its host goes down.
        """
        if self.running:
            self.signal(signal.SIGTERM)
            try:
                self.wait(timeout)
            except TimeoutError:
                self.signal(signal.SIGKILL)
                self.wait()
        return self._result()

    def _result(self) -> subprocess.CompletedProcess[str]:
        status = -signal.SIGKILL if self.status is None else self.status
        return subprocess.CompletedProcess(self.argv, status, self.out, self.err)

    def _said(self) -> str:
        lines = [f"\n    {line.text}" for line in self.lines[-20:]]
        return "".join([", which said:", *lines]) if lines else ", which said nothing"

    def _tell(self, order: str, **facts: object) -> None:
        tell = {"order": order, "program": self._number, **facts}
        self.host._order("tell", agent=tell)

    def _hear(self, event: dict[str, Any]) -> None:
        stream, text = event["stream"], event["data"].encode("latin-1").decode(errors="replace")
        setattr(self, stream, getattr(self, stream) + text)
        self._said_both += text
        *lines, self._rest[stream] = (self._rest[stream] + text).split("\n")
        self.lines += [Line(event["time"], stream, line) for line in lines]


class Host:
    """A host of `Hosts`.

    `number` counts from 1. `name` is "host1" and so on, which all hosts can resolve. `address` is
    the host's IPv4 address, and the device's GID at index 1; the GID at index 0 is link-local. `up`
    and `paused` show the state.
    """

    number: int
    name: str
    address: str
    up: bool
    paused: bool

    def __init__(self, hosts: Hosts, number: int) -> None:
        self._hosts, self.number = hosts, number
        self.name, self.address = f"host{number}", f"10.99.0.{number}"
        self.up = self.paused = False
        self._unplugged = False
        self._why = ""

    def __repr__(self) -> str:
        return f"<Host {self.number}: {'paused' if self.paused else 'up' if self.up else 'down'}>"

    def start(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
    ) -> Program:
        """Start a command, and return at once. Its standard input is open, see Program.write.

        argv: the command and its arguments.
        env: variables to add to the host's environment.
        cwd: the folder to start in, by default this process's.

        Python does not buffer its output there (PYTHONUNBUFFERED); start other programs under
        `stdbuf -oL`. Raises HostError if the host is down.
        """
        words = [str(word) for word in argv]
        if not self.up:
            raise HostError(f"{self.name} is down: restart() it before {shlex.join(words)}")
        program = self._hosts._new_program(self, words)
        order = {"order": "start", "program": program._number, "argv": words}
        order |= {"env": {"PYTHONUNBUFFERED": "1", **(env or {})}, "cwd": str(cwd or Path.cwd())}
        self._order("tell", agent=order)
        return program

    def run(
        self,
        *argv: str | Path,
        input: str = "",
        timeout: float = 60,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        input: the text for its standard input.
        timeout: in seconds; the program is killed then, and TimeoutError raised.
        check: whether to raise subprocess.CalledProcessError if the status is not 0.

        The other parameters are those of `Host.start`.
        """
        program = self.start(*argv, env=env, cwd=cwd)
        program.write(input)
        program.close_input()
        try:
            program.wait(timeout)
        except TimeoutError:
            program.signal(signal.SIGKILL)
            raise
        result = program._result()
        if check and result.returncode:
            raise subprocess.CalledProcessError(
                result.returncode, result.args, result.stdout, result.stderr
            )
        return result

    # -- faults

    def kill(self) -> None:
        """Turn the host's power off: its programs are gone, and no peer is notified."""
        self._order("kill")
        self._went()

    def restart(self, timeout: float = _BOOT) -> None:
        """Boot the host, after a kill() if it is up; its addresses stay the same.

        timeout: the seconds that it may take; then HostError is raised.
        """
        if self.up:
            self.kill()
        self._order("boot")
        self._hosts._await_up(self, timeout)

    def pause(self) -> None:
        """Stop the whole host, with its kernel; some thousand frames for it are queued."""
        self._order("pause", paused=True)
        self.paused = True

    def resume(self) -> None:
        """Continue after pause(). The host's clock is right."""
        self._order("pause", paused=False)
        self.paused = False

    def cut(self, other: Host | None = None) -> None:
        """Drop every frame between this host and another, silently.

        other: the other host; by default all.
        """
        self._hosts.cut(self, other)

    def heal(self) -> None:
        """Remove all faults of the links to and from this host."""
        for a, b in ((self, None), (None, self)):
            self._hosts._impair(a, b, _HEALED)
        self._plug()

    def impair(self, other: Host | None = None, **faults: Unpack[Faults]) -> None:
        """Impair the links between this host and another.

        other: the other host; by default all.
        faults: see `Hosts.impair`.
        """
        self._hosts.impair(self, other, **faults)

    def unplug(self) -> None:
        """Take the carrier of the host's interface away: the device's port goes down (PORT_ERR)."""
        self.run("ip", "link", "set", "plug", "down", check=True)
        self._unplugged = True

    def plug(self) -> None:
        """Restore the carrier."""
        self.run("ip", "link", "set", "plug", "up", check=True)
        self._unplugged = False

    def _plug(self) -> None:
        if self._unplugged and self.up:
            self.plug()

    def _order(self, order: str, **facts: object) -> dict[str, Any]:
        return self._hosts._order(order, host=self.number, **facts)

    def _went(self, why: str = "") -> None:
        self.up = self.paused = self._unplugged = False
        self._why = why
        for program in self._hosts._programs.values():
            if program.host is self and program.running:
                program.gone = True


class Hosts(Sequence[Host]):
    """Several hosts, a sequence of `Host`; they are up when the constructor returns.

    count: how many, 1 to 8.
    lab: the command that starts the lab, with its options; by default `cqnotify lab`, or the `lab`
        of the project that cqnotify is installed from in place.
    seed: of the random faults. With the same seed, the same happens to the n-th frame from one host
        to another.

    `with` ends them. Raises HostError if a host does not come up.
    """

    seed: int

    def __init__(
        self, count: int = 2, *, lab: str | Sequence[str] | None = None, seed: int = 0
    ) -> None:
        if not 1 <= count <= 8:
            raise ValueError(f"from 1 to 8 hosts, not {count}")
        self.seed = seed
        self._programs: dict[int, Program] = {}
        self._heard = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._hosts = [Host(self, number) for number in range(1, count + 1)]
        words = shlex.split(lab) if isinstance(lab, str) else list(lab or default_lab())
        command = [*words, "hosts", str(count), "--seed", str(seed), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            for host in self:
                host._order("boot")
            for host in self:
                self._await_up(host, _BOOT)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Hosts {list(self)}, seed {self.seed}>"

    def __len__(self) -> int:
        return len(self._hosts)

    @overload
    def __getitem__(self, index: int) -> Host: ...
    @overload
    def __getitem__(self, index: slice) -> list[Host]: ...
    def __getitem__(self, index: int | slice) -> Host | list[Host]:
        return self._hosts[index]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    @property
    def alive(self) -> bool:
        """Whether the lab's process, the parent of all hosts, is running."""
        return self._process.poll() is None

    def report(self) -> str:
        """Return the hosts, the programs with their last lines, and the frames, as text."""
        said = [f"{self!r}"]
        for program in self._programs.values():
            said += [f"{program!r}", *(f"    {line.text}" for line in program.lines[-20:])]
        if self.alive:
            for (a, b), counts in self.counts().items():
                told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
                said.append(f"from host {a} to host {b}: {told or 'nothing'}")
        return "\n".join(said)

    def close(self) -> None:
        """End all hosts."""
        for file in (self._process.stdin, self._process.stdout):
            assert file is not None
            file.close()
        self._process.wait()
        for host in self:
            host._went()

    def reset(self, seed: int | None = None) -> None:
        """Return to the initial state: all hosts up, no program, no fault, a new random sequence.

        seed: the seed of that sequence; by default the same as before.
        """
        self.seed = self.seed if seed is None else seed
        for host in self:
            if host.paused:
                host.resume()
            host._plug()
        for program in list(self._programs.values()):
            if program.running:
                program.signal(signal.SIGKILL)
                program.wait()
        self._programs.clear()
        self._order("reset", seed=self.seed)
        down = [host for host in self if not host.up]
        for host in down:
            host._order("boot")
        for host in down:
            self._await_up(host, _BOOT)

    # -- the network

    def impair(
        self, a: Host | None = None, b: Host | None = None, **faults: Unpack[Faults]
    ) -> None:
        """Impair the links between two hosts, in both directions.

        a, b: the hosts; None stands for all.
        faults: those that are not given stay as they are. loss, duplicate and reorder are the
            probabilities, from 0 to 1, that a frame is lost, arrives twice, or is overtaken by the
            next one. delay is in seconds; jitter is the most that chance adds to it. Neither
            changes the order. rate is in bits per second, where 0 means no limit.
        """
        for name, value in faults.items():
            if name not in _FAULTS:
                raise TypeError(f"there is no fault {name!r}: they are {', '.join(_FAULTS)}")
            number = float(value)  # type: ignore[arg-type]
            if number < 0 or (name in _PROBABILITIES and number > 1):
                most = "1" if name in _PROBABILITIES else "any number"
                raise ValueError(f"{name} is from 0 to {most}, not {value}")
        self._impair(a, b, faults)
        self._impair(b, a, faults)

    def cut(self, a: Host | None = None, b: Host | None = None) -> None:
        """Drop every frame between two hosts, in both directions.

        a, b: the hosts; None stands for all.
        """
        self._impair(a, b, {"cut": True})
        self._impair(b, a, {"cut": True})

    def heal(self) -> None:
        """Remove all faults."""
        self._impair(None, None, _HEALED)
        for host in self:
            host._plug()

    def counts(self) -> dict[tuple[int, int], dict[str, int]]:
        """Return what the switch did since the last reset: {(from, to): {"frames": N, ...}, ...}.

        "frames" counts the frames that the switch took. Some of these were "lost" or "cut",
        "duplicated" or "reordered", or "dropped" because the receiving host was down or did not
        take them. "delivered" counts the frames that the switch handed out.
        """
        links = self._order("counts")["links"]
        names = ("frames", "delivered", "lost", "cut", "duplicated", "reordered", "dropped")
        return {
            (int(link[0]), int(link[2])): {name: counts.get(name, 0) for name in names}
            for link, counts in links.items()
        }

    def _impair(self, a: Host | None, b: Host | None, faults: Mapping[str, Any]) -> None:
        numbers = {"a": a and a.number, "b": b and b.number}
        self._order("impair", **numbers, faults=dict(faults))

    # -- the lab

    def _new_program(self, host: Host, argv: list[str]) -> Program:
        self._number += 1
        program = self._programs[self._number] = Program(host, self._number, argv)
        return program

    def _order(self, order: str, **facts: object) -> dict[str, Any]:
        """Have the lab do it, and return its answer."""
        self._number += 1
        number = self._number
        line = json.dumps({"id": number, "order": order, **facts}).encode() + b"\n"
        try:
            pipe(self._process.stdin).write(line)
            pipe(self._process.stdin).flush()
        except (BrokenPipeError, ValueError):
            raise HostError("the lab has ended") from None
        until = time.monotonic() + (_BOOT if order == "boot" else _ANSWER)
        while number not in self._answers:
            if not self._hear(until):
                raise HostError(f"the lab does not answer: {order}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise HostError(answer["error"])
        return answer

    def _await_up(self, host: Host, timeout: float) -> None:
        until = time.monotonic() + timeout
        host._why = ""
        while not host.up:
            if host._why or not self._hear(until):
                raise HostError(f"{host.name} does not come up{host._why or ' in time'}")

    def _hear(self, until: float) -> bool:
        """Read what the lab writes; return False if it writes nothing until then."""
        fd = pipe(self._process.stdout).fileno()
        if not select.select([fd], [], [], max(0, until - time.monotonic()))[0]:
            return False
        data = os.read(fd, 65536)
        if not data:
            raise HostError(f"the lab has ended with {self._process.wait()}")
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, event: dict[str, Any]) -> None:
        if "id" in event:
            self._answers[event["id"]] = event
            return
        host = self[event["host"] - 1]
        program = self._programs.get(event.get("program", 0))
        kind = event["event"]
        if kind == "ready":
            host.up = True
        elif kind == "down":
            host._went(event["said"] or " at all")
        elif kind == "out" and program:
            program._hear(event)
        elif kind == "end" and program:
            program.status = event["status"]


def pipe(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file


def default_lab() -> list[str]:
    """Return the lab in the folder that cqnotify was installed from, or the package's own."""
    lab = Path(__file__).resolve().parent.parent / "lab"
    return [str(lab)] if os.access(lab, os.X_OK) else [sys.executable, "-m", "cqnotify", "lab"]

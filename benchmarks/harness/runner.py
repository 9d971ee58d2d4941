# SPDX-License-Identifier: MIT
"""Running the subjects: python -m benchmarks.harness.runner PLACE ROUNDS NAME...

The runner prints lines of JSON: first where it runs, then for each subject the benchmark, the name
and the figures of all rounds but the first, which warms up.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

from . import plan
from .compiled import BUILD, FAKE_VERBS, FAKE_VERBS_AS_LIBRARY
from .plan import Benchmark, Figures, InC, Place
from .results import About, Result
from .subject import FAKE_DEVICE, importable

FAILED = 2  # the exit code where a subject does not work


def find_device() -> dict[str, str]:
    """Return environment variables that give all subjects the same device and address."""
    from cqnotify import Context, LinkLayer, cm

    with Context() as ctx:
        ethernet = ctx.query_port().link_layer == LinkLayer.ETHERNET
        index = ctx.find_gid().index if ethernet else -1
        host = next(iter(cm.local_addresses(ctx)), "")
        return {"BENCH_DEVICE": ctx.name, "BENCH_GID_INDEX": str(index), "BENCH_HOST": host}


def environment(place: Place) -> dict[str, str]:
    device = fake_verbs() if place == "native" else find_device()
    return {**os.environ, "PYTHONHASHSEED": "0", **device}


def fake_verbs() -> dict[str, str]:
    """Return environment variables that give all subjects the fake library."""
    preload = f"{FAKE_VERBS} {os.environ.get('LD_PRELOAD', '')}".strip()
    return {"BENCH_DEVICE": FAKE_DEVICE, "BENCH_GID_INDEX": "-1", "LD_PRELOAD": preload}


def about(place: Place, env: dict[str, str]) -> About:
    return {
        "place": place,
        "lab": os.environ.get("CQNOTIFY_LAB", ""),
        "device": env["BENCH_DEVICE"],
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


class Process:
    """The process of a subject, and that of its peer if it has one."""

    def __init__(self, name: str, subject: str, env: dict[str, str]) -> None:
        benchmark = plan.load(name)
        what = benchmark.subjects[subject]
        env = {**env, **(fake_verbs() if benchmark.fake_verbs else {}), **benchmark.env}
        command = [sys.executable, "-m", "benchmarks.harness.subject", name, subject]
        if isinstance(what, InC):
            command = in_c(what)
        self.peer: subprocess.Popen[bytes] | None = None
        if "ibverbs" in subject and env["BENCH_DEVICE"] == FAKE_DEVICE:
            env = {**env, "LD_LIBRARY_PATH": str(FAKE_VERBS_AS_LIBRARY.parent)}
        with ExitStack() as stack:
            fds: tuple[int, ...] = ()
            if benchmark.peer is not None:
                ours, theirs = map(stack.enter_context, socket.socketpair())
                fds = (ours.fileno(),)
                self.peer = start(benchmark, in_c(benchmark.peer), env, theirs.fileno())
            self.child = start(benchmark, command, env, *fds)
        self.what = f"{name}: {subject}"

    def round(self) -> dict[str, Figures]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended
            self.child.stdin.write(b"\n")
            self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line.endswith(b"\n"):
            print(f"bench: {self.what} ended: {self.child.wait()}", file=sys.stderr)
            raise SystemExit(FAILED)
        figures: dict[str, Figures] = json.loads(line)
        return figures

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for child in (self.child, self.peer):
            if child is not None:
                if exc is not None:
                    child.kill()
                child.communicate()  # which closes its stdin


def in_c(what: InC) -> list[str]:
    return [str(BUILD / what.program), *([what.argument] if what.argument else [])]


@functools.cache
def same_addresses() -> Sequence[str]:
    """Fix the addresses, so that hashing them always costs the same; containers may refuse."""
    command = ["setarch", "-R"]
    allowed = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return command if allowed else []


def start(
    benchmark: Benchmark, command: list[str], env: dict[str, str], peer: int | None = None
) -> subprocess.Popen[bytes]:
    if peer is not None:
        env = {**env, "BENCH_PEER": str(peer)}
    prefix = [*same_addresses()]
    if benchmark.realtime and os.geteuid() == 0:
        prefix += ["chrt", "-f", "10"]
    pipe = subprocess.PIPE
    fds = () if peer is None else (peer,)
    return subprocess.Popen([*prefix, *command], env=env, stdin=pipe, stdout=pipe, pass_fds=fds)


def can_run(name: str, subject: str) -> bool:
    for module in ("pyverbs.cq", "ibverbs.enums", "uvloop.loop"):
        package = module.split(".")[0]
        if package in subject and not importable(module):
            print(f"bench: {name}: no '{subject}', this Python has no {package}", file=sys.stderr)
            return False
    return True


def run(name: str, place: Place, rounds: int, env: dict[str, str]) -> Iterator[Result]:
    """Run one benchmark. Natively the subjects take turns, so that disturbances hit all."""
    benchmark = plan.load(name)
    together = place == "native"
    subjects = [subject for subject in benchmark.subjects if can_run(name, subject)]
    for group in [subjects] if together else [[subject] for subject in subjects]:
        figures: dict[str, list[dict[str, Figures]]] = {subject: [] for subject in group}
        with ExitStack() as stack:
            processes = {s: stack.enter_context(Process(name, s, env)) for s in group}
            for _ in range(1 + rounds):
                for subject, process in processes.items():
                    figures[subject].append(process.round())
        for subject in group:
            yield {"benchmark": name, "subject": subject, "rounds": figures[subject][1:]}


def main() -> None:
    where, rounds, *names = sys.argv[1:]
    place: Place = "native" if where == "native" else "device"
    if place == "native":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    env = environment(place)
    print(json.dumps(about(place, env)), flush=True)
    for name in names:
        for result in run(name, place, int(rounds), env):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

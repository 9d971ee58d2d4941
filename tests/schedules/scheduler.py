# SPDX-License-Identifier: MIT
"""Runs programs under the scheduler of a core built with CQNOTIFY_DEBUG=faults: a seed decides
which thread goes on (csrc/faults/schedule.h), on a device that exists only here (device.c).

Import this before cqnotify. A program is a function; it runs in the main thread, which is thread 0,
starts others with `spawn`, and uses nothing that blocks except calls of cqnotify, event loops made
by `new_loop`, and what is defined here. The lines of the program and of cqnotify are points, too.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import gc
import os
import random
import selectors
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
FLAGS = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
DEPTHS = (0, 1, 1, 2, 2, 3, 5, 12)  # how often the running thread loses its priority


def compile_device(folder: Path) -> Path:
    library = folder / "device.so"
    source, shared = HERE / "device.c", PROJECT / "benchmarks/c/one_device.h"
    newest = max(source.stat().st_mtime, shared.stat().st_mtime)
    if not library.exists() or library.stat().st_mtime < newest:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"device-{os.getpid()}.so"  # others may do the same
        subprocess.run(["gcc", *FLAGS, "-o", str(new), str(source)], check=True)
        new.replace(library)
    return library


# It is loaded before the real library, where the core looks first. PyDLL: calls keep the GIL.
device = ctypes.PyDLL(str(compile_device(PROJECT / "build" / "schedules")), ctypes.RTLD_GLOBAL)
functions = [
    ctypes.cast(function, ctypes.c_void_p).value
    for function in (device.device_has_work, device.device_step, device.device_may_destroy)
]

import cqnotify  # noqa: E402
from cqnotify import CompletionChannel, _core  # noqa: E402
from cqnotify.aio import _reader, new_event_loop  # noqa: E402

core: Any = _core  # the stub does not have what only the debug build has
PACKAGE = str(Path(cqnotify.__file__).parent)

# ---- points ----------------------------------------------------------------------------------

traced: dict[CodeType, bool] = {}


def is_traced(code: CodeType) -> bool:
    known = traced.get(code)
    if known is None:
        name = code.co_filename
        known = name.startswith(PACKAGE) or Path(name).name.startswith("programs_")
        traced[code] = known
    return known


def on_call(frame: FrameType, event: str, arg: object) -> Any:
    return on_line if is_traced(frame.f_code) else None


def on_line(frame: FrameType, event: str, arg: object) -> Any:
    if event == "line":
        core.schedule_point(frame.f_code.co_name, frame.f_lineno)
    return on_line


# ---- threads ---------------------------------------------------------------------------------

failures: list[BaseException] = []


def spawn(function: Callable[..., Any], *args: Any) -> int:
    """Start a thread, and return its number."""
    number: int = core.schedule_spawn()

    def run() -> None:
        core.schedule_enter(number)
        sys.settrace(on_call)
        try:
            function(*args)
        except BaseException as e:
            failures.append(e)
        finally:
            sys.settrace(None)
            core.schedule_leave()

    _thread.start_new_thread(run, ())
    core.schedule_await_entered(number)
    return number


join = core.schedule_join
await_asleep = core.schedule_await_asleep
send_signal = core.schedule_signal
now = core.schedule_clock
give_way = core.schedule_yield
MAIN = 0


def refuse_to_destroy(times: int) -> None:
    """The next attempts to destroy a CQ fail."""
    device.device_refuse(times)


def steal_event(channel: CompletionChannel) -> None:
    """Another program reads an event, if there is one."""
    device.device_steal(ctypes.c_void_p(channel.pointer))


class Flag:
    """As threading.Event."""

    made = 0

    def __init__(self) -> None:
        self.number = Flag.made
        Flag.made += 1
        self.is_set = False

    def set(self, value: bool = True) -> None:
        self.is_set = value
        core.schedule_set(self.number, value)

    def wait(self) -> None:
        core.schedule_await_flag(self.number)


class Lock:
    """As threading.RLock, in place of the one of cqnotify.aio."""

    def __init__(self) -> None:
        self.free = Flag()
        self.free.set()
        self.owner = -1
        self.count = 0

    def __enter__(self) -> None:
        me = core.schedule_self()
        if self.owner != me:
            self.free.wait()
            self.free.set(False)
            self.owner = me
        self.count += 1

    def __exit__(self, *exc: object) -> None:
        self.count -= 1
        if self.count == 0:
            self.owner = -1
            self.free.set()


# ---- event loops -----------------------------------------------------------------------------


class Selector(selectors.EpollSelector):
    """That of asyncio, whose sleep the scheduler knows."""

    def select(self, timeout: float | None = None) -> Any:
        core.schedule_await_fd(self.fileno(), -1.0 if timeout is None else max(timeout, 0.0))
        return super().select(0)


def new_loop(own: bool = False) -> asyncio.SelectorEventLoop:
    """Return an event loop of asyncio; with `own` that of cqnotify, whose selector is in C."""
    loop = new_event_loop() if own else asyncio.SelectorEventLoop(Selector())
    loop.time = core.schedule_clock  # type: ignore[method-assign]
    loop._clock_resolution = 1e-6  # type: ignore[attr-defined]
    return loop


def run_loop(main: Any, own: bool = False) -> Any:
    loop = new_loop(own)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


# ---- runs ------------------------------------------------------------------------------------


class Run(NamedTuple):
    choices: int  # points at which more than one could go on
    points: list[str]  # "thread place:line"


Program = Callable[[random.Random], None]


def changes(program: Program, seed: int, horizon: int) -> tuple[int, ...]:
    chance = random.Random(f"{program.__name__} {seed}")
    depth = min(chance.choice(DEPTHS), horizon)
    return tuple(sorted(chance.sample(range(1, horizon + 1), depth)))


def run(program: Program, seed: int, horizon: int = 0) -> Run:
    """Run the program with that seed. Raises what a thread of it raised. If all threads wait for
    ever, the process prints where they are, and aborts."""
    failures.clear()
    Flag.made = 0
    gc.collect()
    gc.disable()
    lock = _reader.lock
    _reader.lock = Lock()  # type: ignore[assignment]
    chance = random.Random(f"{seed} {program.__name__}")
    number = chance.getrandbits(63)
    core.schedule_begin(number, changes(program, seed, horizon), functions)
    _reader.lock.free.set()  # type: ignore[attr-defined]
    sys.settrace(on_call)
    try:
        program(chance)
    except BaseException as e:
        failures.append(e)
    finally:
        sys.settrace(None)
    if failures:
        for failure in failures:
            traceback.print_exception(failure)
        raise failures[0]
    gc.collect()
    done = Run(*core.schedule_end())
    _reader.lock = lock
    gc.enable()
    if core.live_handles() != 0:
        raise AssertionError(f"{core.live_handles()} handles are left")
    return done


def horizon_of(program: Program) -> int:
    """The most choices of a few schedules: the changes are among so many. In a schedule in which
    one thread ends before the others begin, there are few."""
    return max(run(program, seed).choices for seed in range(8))

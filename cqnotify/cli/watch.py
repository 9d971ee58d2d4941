# SPDX-License-Identifier: MIT
"""`cqnotify watch`: the asynchronous events of the devices, as they happen."""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any, Final

from .._core import AsyncEvent, DeviceRemovedError
from ..context import Context
from . import OK, CommandError, add_command, add_device, device_names, note, seconds, whole
from ._terminal import paint

DESCRIPTION: Final = """\
Show the asynchronous events of the devices as they happen: ports that go up and down, addresses
that change, devices that fail. The command sleeps in between, until it is interrupted.

Events of a queue pair or a completion queue go only to the program that created it.
"""
BAD: Final = ("DEVICE_FATAL", "PORT_ERR")
GOOD: Final = ("PORT_ACTIVE",)


def add_parser(commands: Any) -> None:
    """Add the command to the parser's commands."""
    what = "show the devices' asynchronous events, live"
    parser = add_command(commands, "watch", what, run, DESCRIPTION, "print a JSON object per line")
    add_device(parser, "all")
    parser.add_argument(
        "--count", metavar="N", type=whole(), help="end after N events (exit code 1 if fewer came)"
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, help="end after S seconds")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    names = device_names(args.device)
    with ExitStack() as stack:
        watch = Watch([stack.enter_context(Context(name)) for name in names])
        note(f"watching {', '.join(names)}")
        deadline = None if args.timeout is None else time.monotonic() + args.timeout
        seen = 0
        while seen != args.count:
            found = watch.next(deadline)
            if found is None:
                break
            print(_as_json(*found) if args.json else _as_text(*found), flush=True)
            seen += 1
    if args.count is not None and seen < args.count:
        raise CommandError(f"{seen} of {args.count} events came within {args.timeout:g} s")
    return OK


class Watch:
    """The events of several devices, awaited in one poll(2)."""

    def __init__(self, contexts: list[Context]) -> None:
        self._contexts = {context.async_fd: context for context in contexts}
        self._ready: list[Context] = []
        self._poller = select.poll()
        for fd in self._contexts:
            self._poller.register(fd, select.POLLIN)
        with suppress(AttributeError, OSError):  # stdout may be closed, or not a file
            self._poller.register(sys.stdout.fileno(), 0)  # to notice that its reader has gone

    def next(self, deadline: float | None) -> tuple[str, AsyncEvent] | None:
        """Sleep until there is an event, and return its device's name and the event.

        Return None at `deadline`, a time of time.monotonic().
        """
        while True:
            while self._ready:
                event = self._take(self._ready[0])
                if event is not None:
                    return self._ready[0].name, event
                self._ready.pop(0)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._sleep(left)

    def _sleep(self, left: float | None) -> None:
        for fd, _ in self._poller.poll(None if left is None else left * 1000):
            if fd not in self._contexts:
                raise BrokenPipeError
            self._ready.append(self._contexts[fd])

    def _take(self, context: Context) -> AsyncEvent | None:
        try:
            return context.try_get_async_event()
        except DeviceRemovedError:
            note(f"{context.name} has gone")
            self._poller.unregister(context.async_fd)
            del self._contexts[context.async_fd]
            if not self._contexts:
                raise CommandError("there is no device left to watch") from None
            return None


def _as_json(device: str, event: AsyncEvent) -> str:
    now = datetime.now().astimezone().isoformat()
    return json.dumps(
        {"time": now, "device": device, "event": _name(event), "port_num": event.port_num}
    )


def _as_text(device: str, event: AsyncEvent) -> str:
    now = datetime.now().isoformat(" ", "milliseconds")
    name = _name(event)
    color = "red" if name in BAD else "green" if name in GOOD else "bold"
    port = "" if event.port_num is None else f" port {event.port_num}"
    return f"{now} {device}{port}: {paint(name, color)}"


def _name(event: AsyncEvent) -> str:
    return str(getattr(event.event_type, "name", event.event_type))

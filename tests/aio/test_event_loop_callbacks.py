# SPDX-License-Identifier: MIT
"""The callbacks that new_event_loop() calls in select(), and those that it leaves to the loop.

In all but the cost they run as in asyncio, whose loop many of these tests run on as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import selectors
import socket
import sys
from collections import deque
from functools import partial
from typing import Any

import pytest
from event_loop_support import Counting, Hook, Loop, MakeHook, PingPong, bounded, run_for

from cqnotify import Context
from cqnotify.aio._selector import Selector


def test_a_callback_is_called_in_select(
    make_hook: MakeHook, loop: Loop, selector: Counting
) -> None:
    def call() -> None:
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task(loop) is None
        loop.stop()

    hook = make_hook(loop, call)
    run_for(loop, hook)
    assert (hook.calls, selector._called) == (1, 1)


def test_a_callback_runs_in_the_context_in_which_it_was_added(
    make_hook: MakeHook, either: Loop
) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="outside")
    seen = []

    def call() -> None:
        seen.append(var.get())
        var.set("changed")
        if len(seen) == 2:
            either.stop()
        else:
            hook.ring()

    def add() -> Hook:
        var.set("inside")
        return make_hook(either, call)

    hook = contextvars.copy_context().run(add)
    run_for(either, hook)
    assert seen == ["inside", "changed"]
    assert var.get() == "outside"


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit, MemoryError])
def test_what_a_callback_raises_is_reported_as_by_asyncio(
    make_hook: MakeHook, either: Loop, error: type[BaseException]
) -> None:
    reported: list[dict[str, Any]] = []

    def call() -> None:
        raise error("planted")

    def handler(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context)
        either.stop()

    hook = make_hook(either, call)
    either.set_exception_handler(handler)
    run_for(either, hook)
    (context,) = reported
    assert context.keys() == {"message", "exception", "handle"}
    assert context["message"] == "Exception in callback CompletionChannel._on_event()"
    assert type(context["exception"]) is error
    assert type(context["handle"]) is asyncio.Handle
    # After that the loop goes on.
    hook.call = either.stop
    run_for(either, hook)
    assert hook.calls == 2


def test_a_context_that_the_loop_runs_in_is_refused_as_by_asyncio(
    make_hook: MakeHook, either: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    refused, stops = make_hook(either, lambda: None), make_hook(either, either.stop)
    key = either._selector.get_key(refused.fd)  # type: ignore[attr-defined]
    key.data[0]._context.run(run_for, either, refused, stops)
    assert (refused.calls, stops.calls) == (0, 1)
    (error,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert type(error) is RuntimeError
    assert "is already entered" in str(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_callback_ends_the_run(
    make_hook: MakeHook, either: Loop, error: type[BaseException]
) -> None:
    def call() -> None:
        raise error("planted")

    hook = make_hook(either, call)
    with pytest.raises(error, match="planted"):
        run_for(either, hook)
    hook.call = either.stop
    run_for(either, hook)
    assert hook.calls == 2


def test_an_exception_handler_may_end_the_run(make_hook: MakeHook, either: Loop) -> None:
    def call() -> None:
        raise ValueError("planted")

    def handler(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        raise KeyboardInterrupt("of the handler")

    hook = make_hook(either, call)
    either.set_exception_handler(handler)
    with pytest.raises(KeyboardInterrupt, match="of the handler"):
        run_for(either, hook)


def test_a_reader_that_an_earlier_callback_removes_is_not_called(
    make_hook: MakeHook, either: Loop
) -> None:
    hooks: list[Hook] = []

    def call() -> None:
        for hook in hooks:
            either.remove_reader(hook.fd)
        either.call_soon(either.stop)

    hooks += [make_hook(either, call) for _ in range(3)]
    run_for(either, *hooks)
    assert sum(hook.calls for hook in hooks) == 1


def test_callbacks_are_called_in_the_order_of_what_is_ready(
    make_hook: MakeHook, either: Loop
) -> None:
    log: list[str] = []

    def read(name: str, fd: int) -> None:
        os.read(fd, 1)
        log.append(name)

    def call(name: str) -> None:
        log.append(name)
        either.call_soon(log.append, f"soon after {name}")
        if name == "last":
            either.call_soon(either.stop)

    def prepare() -> None:
        first.ring()
        os.write(w, b"x")
        last.ring()

    r, w = os.pipe()
    first, last = (make_hook(either, partial(call, name)) for name in ("first", "last"))
    either.add_reader(r, read, "between", r)
    either.call_later(0, prepare)
    either.run_forever()
    either.remove_reader(r)
    os.close(r)
    os.close(w)
    assert log == ["first", "between", "last", "soon after first", "soon after last"]


def test_callbacks_that_are_ready_are_called_first(make_hook: MakeHook, either: Loop) -> None:
    """What is ready when select() is called came before what select() finds."""
    log: list[str] = []

    def call() -> None:
        log.append("channel")
        either.stop()

    def prepare() -> None:
        hook.ring()
        either.call_soon(log.append, "soon")

    hook = make_hook(either, call)
    either.call_soon(prepare)
    either.run_forever()
    assert log == ["soon", "channel"]


@pytest.mark.parametrize("other", ["reader", "writer"])
def test_where_others_are_ready_too_all_are_left_to_the_loop(
    make_hook: MakeHook, loop: Loop, selector: Counting, other: str
) -> None:
    r, w = os.pipe()
    hook = make_hook(loop, lambda: None)

    def called(fd: int) -> None:
        loop.remove_reader(fd) if other == "reader" else loop.remove_writer(fd)
        loop.call_soon(loop.stop)

    def prepare() -> None:
        hook.ring()
        if other == "reader":
            os.write(w, b"x")
            loop.add_reader(r, called, r)
        else:
            loop.add_writer(w, called, w)

    handle, _ = selector.get_key(hook.fd).data
    held = sys.getrefcount(handle)
    loop.call_later(0, prepare)
    loop.run_forever()
    os.close(r)
    os.close(w)
    assert (hook.calls, selector._called) == (1, 0)
    assert sys.getrefcount(handle) == held


def test_a_channel_that_is_watched_for_writing_too_is_left_to_the_loop(
    ctx: Context, loop: Loop, selector: Counting
) -> None:
    hook = Hook(ctx, loop, loop.stop)
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), hook.fd)  # a descriptor that can be read and written
    loop.remove_reader(hook.fd)
    loop.add_reader(hook.fd, hook.channel._on_event)
    loop.add_writer(hook.fd, lambda: None)
    theirs.send(b"x")
    loop.run_forever()
    loop.remove_writer(hook.fd)
    hook.close()
    ours.close()
    theirs.close()
    assert (hook.calls, selector._called) == (1, 0)


def test_only_the_callback_of_a_channel_is_called(
    make_hook: MakeHook, loop: Loop, selector: Counting
) -> None:
    """Not one around it, nor one with arguments, nor one of the same name."""

    class Other:
        def _on_event(self) -> None:
            hook.channel._on_event()

    hook = make_hook(loop, loop.stop)
    for callback in (
        lambda: hook.channel._on_event(),
        hook.channel._on_event.__call__,
        Other()._on_event,
    ):
        loop.add_reader(hook.fd, callback)
        run_for(loop, hook)
    assert (hook.calls, selector._called) == (3, 0)
    loop.add_reader(hook.fd, hook.channel._on_event)
    run_for(loop, hook)
    assert (hook.calls, selector._called) == (4, 1)


def test_arguments_are_passed_on(make_hook: MakeHook, either: Loop) -> None:
    """And refused by the callback, which has none."""
    reported = []

    def handler(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context["exception"])
        either.stop()

    hook = make_hook(either, lambda: None)
    either.add_reader(hook.fd, hook.channel._on_event, 1)
    either.set_exception_handler(handler)
    run_for(either, hook)
    assert [type(error) for error in reported] == [TypeError]


def test_a_select_within_a_callback_calls_nothing(
    make_hook: MakeHook, loop: Loop, selector: Counting
) -> None:
    """As a loop within the loop would call it, which patches of asyncio run."""
    found: list[tuple[selectors.SelectorKey, int]] = []

    def call() -> None:
        if hook.calls == 1:
            hook.ring()
            found.extend(selector.select(1))
            found.extend(selector.select(0))
        else:
            loop.stop()

    hook = make_hook(loop, call)
    run_for(loop, hook)
    assert [key.fd for key, _ in found] == [hook.fd] * 2
    assert (hook.calls, selector._called) == (2, 2)


# ---- loops of another make --------------------------------------------------------------------


class Hiding(Counting):
    """Its loop lacks an attribute in select()."""

    hidden = ""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        Hiding.hidden = getattr(self, "hides", "")
        try:
            return super().select(timeout)
        finally:
            Hiding.hidden = ""


class Lacking(Loop):
    def __getattribute__(self, name: str) -> Any:
        if name == Hiding.hidden:
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("hides", ["_ready", "_scheduled", "_stopping", "_debug"])
def test_where_a_loop_lacks_what_is_known_it_calls_all(game: PingPong, hides: str) -> None:
    selector: Any = Hiding()
    selector.hides = hides
    with contextlib.closing(Lacking(selector)) as loop:
        bounded(loop, game.run())
    assert selector._called == 0


class Deque(deque[Any]):
    pass


class List(list[Any]):
    pass


class OfOtherTypes(Loop):
    """Of which one attribute has a type that asyncio's loop does not give it."""

    kind = ("", type(None))

    def __setattr__(self, name: str, value: Any) -> None:
        other, kind = self.kind
        super().__setattr__(name, kind(value) if name == other else value)


class ReadyOfOtherType(OfOtherTypes):
    kind = ("_ready", Deque)


class ScheduledOfOtherType(OfOtherTypes):
    kind = ("_scheduled", List)


class StoppingOfOtherType(OfOtherTypes):
    kind = ("_stopping", int)


class DebugOfOtherType(OfOtherTypes):
    kind = ("_debug", int)


class WithoutAnyDifference(Loop):
    pass


@pytest.mark.parametrize(
    "make",
    [
        ReadyOfOtherType,
        ScheduledOfOtherType,
        StoppingOfOtherType,
        DebugOfOtherType,
        WithoutAnyDifference,
    ],
)
def test_where_a_loop_is_not_as_known_it_calls_all(
    game: PingPong, selector: Counting, make: type[Loop]
) -> None:
    with contextlib.closing(make(selector)) as loop:
        bounded(loop, game.run())
    assert (selector._called > 0) == (make is WithoutAnyDifference)


def test_where_handles_are_not_as_known_the_loop_calls_all(
    make_hook: MakeHook, loop: Loop, selector: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handle(asyncio.Handle):
        pass

    hook = make_hook(loop, loop.stop)
    with monkeypatch.context() as patch:
        patch.setattr("asyncio.events.Handle", Handle)
        loop.add_reader(hook.fd, hook.channel._on_event)
    run_for(loop, hook)
    assert (hook.calls, selector._called) == (1, 0)


def test_keys_of_others_are_left_to_them(make_hook: MakeHook, loop: Loop) -> None:
    """A program that registers a descriptor itself puts its own data into the key."""
    selector = Selector()
    hook = make_hook(loop, loop.stop)
    handle = asyncio.Handle(hook.channel._on_event, (), loop)
    hook.ring()
    for data in (None, handle, (handle,), [handle, None], (None, None), (handle, None, None)):
        selector.register(hook.fd, selectors.EVENT_READ, data)
        ((key, mask),) = selector.select(1)
        assert key.data is data
        assert mask == selectors.EVENT_READ
        selector.unregister(hook.fd)
    selector.close()
    assert selector._called == 0

# SPDX-License-Identifier: MIT
"""trio, and anyio on each of its backends, for tests with the fixture `on`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import anyio
import trio
from support import DEADLINE

from cqnotify.aio import new_event_loop

Scene = Callable[[], Awaitable[Any]]


class Task:
    """A task, and what came of it. It is cancelled by its scope."""

    def __init__(self, flavor: Flavor, call: Callable[[], Awaitable[Any]]) -> None:
        self.scope = flavor.lib.CancelScope()
        self._call = call
        self._over = flavor.lib.Event()
        self._value: Any = None
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            with self.scope:
                self._value = await self._call()
        except Exception as e:
            self._error = e
        finally:
            self._over.set()

    @property
    def done(self) -> bool:
        return bool(self._over.is_set())

    async def result(self) -> Any:
        await self._over.wait()
        if self._error is not None:
            raise self._error
        assert not self.scope.cancelled_caught, "it was cancelled"
        return self._value


class Flavor:
    """trio, or anyio on one of its backends: what the tests ask of them has the same names."""

    def __init__(self, lib: ModuleType, run: Callable[[Scene], Any]) -> None:
        self.lib = lib
        self._run = run

    def run(self, scenario: Scene) -> Any:
        async def bounded() -> Any:
            with self.lib.fail_after(DEADLINE):
                return await scenario()

        return self._run(bounded)

    def group(self) -> Any:
        return trio.open_nursery() if self.lib is trio else anyio.create_task_group()

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Callable[[Callable[[], Awaitable[Any]]], Task]]:
        """Tasks that end with the block: those that are left are cancelled."""
        async with self.group() as group:

            def start(call: Callable[[], Awaitable[Any]]) -> Task:
                task = Task(self, call)
                group.start_soon(task.run)
                return task

            yield start
            group.cancel_scope.cancel()

    async def tick(self) -> None:
        """Let every task that can run do so, up to where it waits."""
        for _ in range(6):
            await self.lib.lowlevel.checkpoint()

    @contextmanager
    def cancelled(self) -> Iterator[Any]:
        with self.lib.CancelScope() as scope:
            scope.cancel()
            yield scope


def anyio_on(backend: str, **options: Any) -> Flavor:
    return Flavor(anyio, partial(anyio.run, backend=backend, backend_options=options))


FLAVORS = {
    "trio": Flavor(trio, trio.run),
    "anyio on asyncio": anyio_on("asyncio"),
    "anyio on cqnotify": anyio_on("asyncio", loop_factory=new_event_loop),
    "anyio on trio": anyio_on("trio"),
}
if sys.version_info < (3, 14):  # there anyio asks for another way
    FLAVORS["anyio on uvloop"] = anyio_on("asyncio", use_uvloop=True)

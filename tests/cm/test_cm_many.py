# SPDX-License-Identifier: MIT
"""Many connections on one event channel in one loop: no turn of the loop is long as all close."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from typing import Any

import pytest
from cm_support import address_of

from cqnotify import CQ, PD, QP, Context, QPType, cm

WINDOW = 32  # connections that are being made
TURN = 0.003  # seconds for which calls are made in a turn


class TurnSelector(selectors.EpollSelector):
    """Counts the turns of its loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


async def connect(ctx: Context, n: int) -> list[cm.Connection]:
    """Both ends of n connections."""
    pd, cq = PD(ctx), CQ(ctx, 64)
    window = asyncio.Semaphore(WINDOW)

    def new_qp() -> QP:
        return QP(pd, QPType.RC, send_cq=cq)

    async def ask(listener: cm.Listener) -> cm.Connection:
        async with window:
            return await cm.connect(new_qp(), *listener.local, timeout=None)

    async with cm.listen(address_of(ctx), 0) as listener:
        asking = [asyncio.create_task(ask(listener)) for _ in range(n)]
        answers = [
            asyncio.create_task((await listener.get_request()).accept(new_qp(), timeout=None))
            for _ in range(n)
        ]
        return await asyncio.gather(*asking, *answers)


async def close_by_peers(conns: list[cm.Connection]) -> None:
    """One end disconnects, the other hears of it; each task closes its own, then."""

    async def wait_and_close(conn: cm.Connection) -> None:
        async with conn:
            await conn.wait_closed()

    waiting = []
    for conn in conns:
        waiting.append(asyncio.create_task(wait_and_close(conn)))
        await asyncio.sleep(0)
    for conn in conns[: len(conns) // 2]:
        await conn.disconnect()
    for task in waiting:
        await task


async def close_in_a_loop(conns: list[cm.Connection]) -> None:
    """Nobody has said goodbye."""
    for conn in conns:
        await conn.aclose()


def turns_of_closing(ctx: Context, n: int, close: Any) -> int:
    async def main() -> int:
        conns = await connect(ctx, n)
        await asyncio.sleep(0)
        before = selector.turns
        await close(conns)
        await asyncio.sleep(0)  # the last turn, too
        turns = selector.turns - before
        assert all(conn.error is not None for conn in conns)
        return turns

    selector = TurnSelector()
    with contextlib.closing(asyncio.SelectorEventLoop(selector)) as loop:
        return loop.run_until_complete(main())


class SlowLink:
    """One whose calls of the kernel take as long as those of a whole turn may."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def disconnect(self) -> None:
        time.sleep(TURN)
        self._link.disconnect()

    def close(self) -> None:
        time.sleep(TURN)
        self._link.close()


@pytest.mark.parametrize("close", [close_by_peers, close_in_a_loop])
def test_a_turn_of_the_loop_has_no_more_than_two_slow_closes(ctx: Context, close: Any) -> None:
    """However long a turn takes on a busy machine: it begins no more than two of these calls, the
    last of those in line and the next one of a task that goes on."""
    n = 20

    async def slowly(conns: list[cm.Connection]) -> None:
        for conn in conns:
            conn._link = SlowLink(conn._link)  # type: ignore[assignment]
        await close(conns)

    calls = 2 * n + (n if close is close_by_peers else 0)
    assert 2 * turns_of_closing(ctx, n, slowly) >= calls

# SPDX-License-Identifier: MIT
"""A small cluster to be run under faults: host 1 receives numbered messages from all others.

Usage: conversation.py MESSAGES [RETRIES], on each host of ./lab hosts. What must hold whatever the
network does: each host's messages arrive in order, once, and unchanged; of those whose sends have
completed none is missing; and every wait ends. A connection whose retries are over has failed, and
says how far it came.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable

from cqnotify import CQ, MR, PD, QP, CompletionChannel, CompletionError, Context, QPType
from cqnotify.aio import AsyncCQ
from cqnotify.exchange import exchange_as_client, exchange_as_server, listen

PORT = 18515  # and host 3's is one more
DIGEST = 32
SIZE = 2048  # of a message: its number, and at the end its digest; more than one frame holds
DEPTH = 8  # receives that are posted
ATTEMPTS = 10
SILENCE = 60.0  # seconds after which a receiver takes a sender for gone


def message(host: int, number: int) -> bytes:
    text = f"{host} {number} ".encode().ljust(SIZE - DIGEST, b".")
    return text + hashlib.sha256(text).digest()


def place(number: int) -> slice:
    at = number % DEPTH * SIZE
    return slice(at, at + SIZE)


class Connection:
    def __init__(self, ctx: Context) -> None:
        pd = PD(ctx)
        self.cq = CQ(ctx, 4 * DEPTH, channel=CompletionChannel(ctx))
        self.qp = QP(pd, QPType.RC, send_cq=self.cq, max_send_wr=DEPTH, max_recv_wr=DEPTH)
        self.mr = MR(pd, DEPTH * SIZE)


async def meet(ctx: Context, exchange: Callable[[Connection], Awaitable[None]]) -> Connection:
    """A frame in five that is lost can also be the one that asks for the peer's MAC address: then
    connecting fails, and both begin again."""
    for _ in range(ATTEMPTS):
        here = Connection(ctx)
        try:
            await exchange(here)
        except OSError as error:
            print(f"once more: {error}", flush=True)
            await asyncio.sleep(1)
        else:
            return here
    raise SystemExit("the hosts do not meet")


async def receive(ctx: Context, host: int, messages: int) -> None:
    """All of one host's messages, each when the one before has been looked at."""

    async def exchange(here: Connection) -> None:
        await exchange_as_server(listener, here.qp.address(), here.qp.connect, timeout=SILENCE)

    with listen("0.0.0.0", PORT + host) as listener:
        here = await meet(ctx, exchange)
    received = 0
    waits = collections.deque[asyncio.Future[object]]()
    async with AsyncCQ(here.cq) as acq:
        try:
            while received < messages:
                while len(waits) < DEPTH:
                    part = here.mr[place(received + len(waits))]
                    waits.append(asyncio.ensure_future(acq.recv(here.qp, part)))
                await asyncio.wait_for(waits.popleft(), SILENCE)
                found = here.mr.read(SIZE, place(received).start)
                assert found == message(host, received), f"not message {received}: {found[:20]!r}"
                received += 1
            await asyncio.sleep(SILENCE)  # so that the last acknowledgement can be sent again
        except (TimeoutError, CompletionError) as error:
            print(f"host {host} fell silent: {type(error).__name__}")
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    print(f"received {received} from host {host}", flush=True)


async def send(ctx: Context, host: int, messages: int, retries: int) -> None:
    async def exchange(here: Connection) -> None:
        address = here.qp.address()
        remote = await exchange_as_client("host1", PORT + host, address, timeout=SILENCE)
        for attempt in range(ATTEMPTS):  # the peer has connected, and takes no other
            try:
                here.qp.connect(remote, retry_cnt=retries)
            except OSError:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return

    here = await meet(ctx, exchange)
    completed = 0
    async with AsyncCQ(here.cq) as acq:
        try:
            for number in range(messages):
                here.mr.write(message(host, number), place(number).start)
                await acq.send(here.qp, here.mr[place(number)])
                completed += 1
        except CompletionError as error:
            print(f"send {completed}: {error}")
    print(f"completed {completed} from host {host}", flush=True)


async def main(messages: int, retries: int) -> None:
    host, hosts = (int(os.environ[f"CQNOTIFY_LAB_{name}"]) for name in ("HOST", "HOSTS"))
    with Context() as ctx:
        if host == 1:
            await asyncio.gather(*(receive(ctx, peer, messages) for peer in range(2, hosts + 1)))
        else:
            await send(ctx, host, messages, retries)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int((sys.argv[2:] or ["6"])[0])))

# SPDX-License-Identifier: MIT
"""An end of exposed memory that takes the steps of the command line, and tells what it sees.

    memory_ends.py HOST:PORT STEP...

Steps are words, or WORD=ARGUMENT.

    at=SECOND                   sleep until that second of virtual time
    expose=SIZE                 memory, whose descriptor whoever connects to the port by TCP gets
    unexpose                    end that
    fetch=TIMEOUT               the descriptor of the host's port
    old                         go back to the descriptor before that
    get=SIZE[,TIMEOUT]          the first bytes of it, and compare them with those that are known
    put=SIZE[,TIMEOUT]          the same bytes
    gets=COUNT,SIZE,EVERY       one after the other, each EVERY seconds, until one fails
    resume                      the get that has failed
    stop=SECONDS                this process stands still for so long
    die                         by a signal that it cannot handle
    close                       everything

An end says what became of each step, after how many seconds, and when.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

from lane import say

from cqnotify import memory

EPOCH = 1_800_000_000  # when virtual time begins
BLOCK = 1000


def contents(size: int) -> bytes:
    """Of all sizes, the first bytes of the same."""
    blocks = (random.Random(i).randbytes(BLOCK) for i in range(-(-size // BLOCK)))
    return b"".join(blocks)[:size]


def seconds(text: str) -> float | None:
    return None if text in ("", "None") else float(text)


class MemoryEnd:
    def __init__(self, address: str) -> None:
        self.host, _, port = address.partition(":")
        self.port = int(port)
        self.exposed: Any = None
        self.servers: list[asyncio.Server] = []
        self.descriptors: list[memory.Descriptor] = []
        self.transfer: Any = None

    async def run(self, steps: list[str]) -> None:
        for step in steps:
            word, _, argument = step.partition("=")
            start = time.monotonic()
            try:
                outcome = await getattr(self, word)(argument) or "ok"
            except (OSError, TimeoutError) as error:
                done = self.transfer.nbytes_done if self.transfer is not None else 0
                outcome = f"{type(error).__name__} done {done}"
            if word != "at":
                took, now = time.monotonic() - start, time.time() - EPOCH
                say("tasks", self.port, word, outcome, f"after {took:.3f} at {now:.3f}")

    async def at(self, second: str) -> None:
        await asyncio.sleep(max(0.0, float(second) - (time.time() - EPOCH)))

    async def expose(self, size: str) -> None:
        data = bytearray(contents(int(size)))
        self.exposed = memory.expose(data, memory.READ | memory.WRITE)

        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(json.dumps(self.exposed.to_dict()).encode())
            writer.close()

        self.servers.append(await asyncio.start_server(tell, "0.0.0.0", self.port))

    async def unexpose(self, _: str) -> None:
        self.exposed.close()

    async def fetch(self, timeout: str) -> None:
        async with asyncio.timeout(float(timeout)):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            data = json.loads(await reader.read())
            writer.close()
        self.descriptors.append(memory.Descriptor.from_dict(data))

    async def old(self, _: str) -> None:
        self.descriptors.reverse()

    async def ended(self, transfer: Any, size: int) -> str:
        self.transfer = transfer
        got = await transfer
        if got is not None and bytes(got) != contents(size):
            raise AssertionError("not what is exposed")
        return f"ok done {transfer.nbytes_done}"

    async def get(self, argument: str) -> str:
        size, _, timeout = argument.partition(",")
        getting = memory.get(self.descriptors[-1], length=int(size), timeout=seconds(timeout))
        return await self.ended(getting, int(size))

    async def put(self, argument: str) -> str:
        size, _, timeout = argument.partition(",")
        data = contents(int(size))
        return await self.ended(
            memory.put(self.descriptors[-1], data, timeout=seconds(timeout)), int(size)
        )

    async def gets(self, argument: str) -> str:
        count, size, every = argument.split(",")
        slowest = 0.0
        for _ in range(int(count)):
            start = time.monotonic()
            await self.get(size)
            slowest = max(slowest, time.monotonic() - start)
            await asyncio.sleep(float(every))
        return f"ok got {count} slowest {slowest:.3f}"

    async def resume(self, _: str) -> str:
        before = self.transfer.nbytes_done
        await self.ended(self.transfer.resume(), self.transfer.nbytes)
        return f"ok from {before}"

    async def stop(self, argument: str) -> None:
        command = f"sleep {argument}; kill -CONT {os.getpid()}"
        waker = subprocess.Popen(["sh", "-c", command])
        os.kill(os.getpid(), signal.SIGSTOP)
        waker.wait()

    async def die(self, _: str) -> None:
        say("tasks", self.port, "free ok after 0 at 0")  # the kernel does it
        os.kill(os.getpid(), signal.SIGKILL)

    async def close(self, _: str) -> None:
        memory.close()

    async def free(self, _: str) -> None:
        for server in self.servers:
            server.close()
        memory.close()


if __name__ == "__main__":
    asyncio.run(MemoryEnd(sys.argv[1]).run([*sys.argv[2:], "free"]))

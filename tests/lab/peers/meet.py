# SPDX-License-Identifier: MIT
"""One address exchange, as a server or a client.

    meet.py MODE ROLE HOST TIMEOUT      MODE: blocking or tasks; ROLE: server or client

It says "ready" when nothing but the exchange is left, and begins when it gets a line. A server says
"connecting" when it has a client's address, and goes on when it gets another one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from lane import say

from cqnotify import CQ, PD, QP, Context, QPAddress, QPType
from cqnotify.exchange import blocking as threads
from cqnotify.exchange import exchange_as_client, exchange_as_server, listen

PORT = 18515
Connect = Callable[[QPAddress], object]


def blocking(role: str, host: str, timeout: float, address: QPAddress, connect: Connect) -> None:
    if role == "client":
        connect(threads.exchange_as_client(host, PORT, address, timeout=timeout))
    else:
        with listen(host, PORT) as listener:
            say("listening")
            threads.exchange_as_server(listener, address, connect, timeout=timeout)


async def tasks(role: str, host: str, timeout: float, address: QPAddress, connect: Connect) -> None:
    if role == "client":
        connect(await exchange_as_client(host, PORT, address, timeout=timeout))
    else:
        with listen(host, PORT) as listener:
            say("listening")
            await exchange_as_server(listener, address, connect, timeout=timeout)


def main() -> None:
    mode, role, host, timeout = sys.argv[1:]
    with Context() as ctx:
        qp = QP(PD(ctx), QPType.RC, send_cq=CQ(ctx, 4))

        def connect(remote: QPAddress) -> None:
            if role == "server":
                say("connecting")
                sys.stdin.readline()
            qp.connect(remote)

        say("ready")
        sys.stdin.readline()
        start = time.monotonic()
        try:
            if mode == "blocking":
                blocking(role, host, float(timeout), qp.address(), connect)
            else:
                asyncio.run(tasks(role, host, float(timeout), qp.address(), connect))
        except OSError as error:
            say(type(error).__name__, f"after {time.monotonic() - start:.3f}")
        else:
            say("connected")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""What the examples share: the command line, and a queue pair that is connected by TCP.

Each example is a server, or, with --connect, its client. The addresses of the queue pairs are
exchanged over TCP, in the format of rdma-core's ping-pong programs.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from cqnotify import CQ, MR, PD, QP, AccessFlags, CompletionChannel, Context, QPAddress, QPType
from cqnotify.aio import AsyncCQ
from cqnotify.exchange import exchange_as_client, exchange_as_server, listen

DEPTH = 64


class Peer(NamedTuple):
    qp: QP
    mr: MR
    acq: AsyncCQ  # of both directions


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--connect", metavar="HOST", help="be the client of the server there")
    parser.add_argument("--bind", metavar="HOST", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=18515, help="TCP port (default: %(default)s)")
    parser.add_argument("--device", help="RDMA device (default: the first)")
    return parser


@contextlib.asynccontextmanager
async def connected(
    args: argparse.Namespace, size: int, access: AccessFlags = AccessFlags.LOCAL_WRITE
) -> AsyncIterator[Peer]:
    """A connected queue pair with `size` bytes of memory, all closed afterwards."""
    with Context(args.device) as ctx:
        pd, channel = PD(ctx), CompletionChannel(ctx)
        cq = CQ(ctx, 4 * DEPTH, channel=channel)
        mr = MR(pd, size, access=access | AccessFlags.LOCAL_WRITE)
        qp = QP(pd, QPType.RC, send_cq=cq, max_send_wr=DEPTH, max_recv_wr=DEPTH)

        def connect(remote: QPAddress) -> None:
            qp.connect(remote, access=access, max_rd_atomic=16, max_dest_rd_atomic=16)

        if args.connect:
            connect(await exchange_as_client(args.connect, args.port, qp.address()))
        else:
            with listen(args.bind, args.port) as listener:
                print("listening on port", listener.getsockname()[1], flush=True)
                await exchange_as_server(listener, qp.address(), connect)
        async with AsyncCQ(cq) as acq:
            yield Peer(qp, mr, acq)

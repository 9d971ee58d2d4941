# SPDX-License-Identifier: MIT
"""Messages between two queue pairs of one device, and their cost for the receiver.

python examples/metrics.py --messages 1000              # then a summary
python examples/metrics.py --messages 1000 --port 9464  # and a page for Prometheus, until Ctrl-C

The page needs `pip install cqnotify[prometheus]`.
"""

import argparse
import asyncio
import contextlib
import threading

from cqnotify import CQ, MR, PD, QP, CompletionChannel, Context, QPType
from cqnotify.aio import AsyncCQ
from cqnotify.metrics import Snapshot, snapshot


async def exchange(ctx: Context, messages: int) -> None:
    """Each message is sent when the one before was received."""
    pd, channel = PD(ctx), CompletionChannel(ctx)
    sends = CQ(ctx, 16, channel=channel, name="sends")
    receives = CQ(ctx, 16, channel=channel, name="receives")
    a, b = (QP(pd, QPType.RC, send_cq=sends, recv_cq=receives) for _ in range(2))
    a.connect(b.address())
    b.connect(a.address())
    mr = MR(pd, 128)
    async with AsyncCQ(sends) as sender, AsyncCQ(receives) as receiver:
        for _ in range(messages):
            await asyncio.gather(receiver.recv(b, mr[64:]), sender.send(a, mr[:64]))


def summary(before: Snapshot, after: Snapshot) -> None:
    received = (after - before).cqs["receives"]
    print(received.completions, "messages,", received.events, "events,", end=" ")
    print(received.task_wakeups, "wake-ups of tasks,", received.spurious, "spurious events")
    latency = received.task_latency
    if latency.count:
        half, most = (latency.quantile(q) / 1000 for q in (0.5, 0.99))
        print(f"{half:.0f} us from an event to its task, or less; of 99 % {most:.0f} us or less")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--port", type=int, help="of the page for Prometheus; 0 chooses one")
    parser.add_argument("--device", help="RDMA device (default: the first)")
    args = parser.parse_args()
    with Context(args.device) as ctx:
        ctx.measure_latency = True
        if args.port is not None:
            from prometheus_client import REGISTRY, start_http_server

            from cqnotify.metrics.prometheus import Collector

            REGISTRY.register(Collector(ctx))
            server, _ = start_http_server(args.port, "127.0.0.1")
            print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        before = snapshot(ctx)
        asyncio.run(exchange(ctx, args.messages))
        summary(before, snapshot(ctx))
    if args.port is not None:  # the counts of a closed context stay
        with contextlib.suppress(KeyboardInterrupt):
            print("Ctrl-C ends", flush=True)
            threading.Event().wait()


main()

# SPDX-License-Identifier: MIT
"""The sender decides when the receiver wakes: once for each batch of 16 messages.

python examples/solicited.py                         # the receiver
python examples/solicited.py --connect 127.0.0.1     # the sender, in another terminal

Only the last message of each batch is SOLICITED, and the receiver sleeps until such a one comes.
"""

import asyncio

from peer import DEPTH, Peer, arguments, connected

from cqnotify import SendFlags

BATCH = 16
SIZE = 64


async def receive(peer: Peer, batches: int) -> None:
    qp, mr, acq = peer
    for slot in range(DEPTH):
        qp.post_recv(mr[slot * SIZE : (slot + 1) * SIZE], wr_id=slot)
    received = 0
    async for wcs in acq.batches(DEPTH, solicited_only=True):
        for wc in wcs:
            wc.raise_for_status()
            slot = wc.wr_id
            qp.post_recv(mr[slot * SIZE : (slot + 1) * SIZE], wr_id=slot)
        received += len(wcs)
        if received == batches * BATCH:
            break
    print(f"{received} messages, {acq.stats.events} events, {acq.stats.wakeups} wake-ups")
    await acq.send(qp, None)


async def send(peer: Peer, batches: int) -> None:
    qp, mr, acq = peer
    done = asyncio.ensure_future(acq.recv(qp, None))
    for _ in range(batches):
        for i in range(BATCH):
            last = i == BATCH - 1
            await acq.send(qp, mr[:SIZE], send_flags=SendFlags.SOLICITED if last else 0)
        await asyncio.sleep(0.01)
    await done
    print("sent", batches * BATCH)


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batches", type=int, default=20, help="of both sides, the same")
    args = parser.parse_args()
    async with connected(args, DEPTH * SIZE) as peer:
        await (send if args.connect else receive)(peer, args.batches)


asyncio.run(main())

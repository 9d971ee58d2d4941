# SPDX-License-Identifier: MIT
"""A reader of blocks by RDMA READ, 64 in flight, and the server whose memory it reads.

python examples/read_blocks.py                         # the server, for one client
python examples/read_blocks.py --connect 127.0.0.1     # in another terminal

All reads are started at once. The send queue has 64 slots: further reads wait for a free slot, in
the order in which they were started.
"""

import asyncio
import hashlib
import os
import struct
import time

from peer import Peer, arguments, connected

from cqnotify import AccessFlags

BLOCK = 4096
WHERE = struct.Struct("!QIQ")  # address, rkey, length


async def serve(peer: Peer) -> None:
    qp, mr, acq = peer
    memory, message = mr[:-BLOCK], mr[-BLOCK:]
    mr.write(os.urandom(len(memory)))
    mr.write(WHERE.pack(memory.addr, mr.rkey, len(memory)), len(memory))
    await acq.send(qp, message)
    print("served", hashlib.sha256(mr.read(len(memory))).hexdigest())
    await acq.recv(qp, None)  # the reader has done


async def read(peer: Peer) -> None:
    qp, mr, acq = peer
    await acq.recv(qp, mr[-BLOCK:])
    addr, rkey, length = WHERE.unpack(mr.read(WHERE.size, len(mr) - BLOCK))
    start = time.perf_counter()
    await asyncio.gather(
        *(acq.read(qp, mr[i : i + BLOCK], addr + i, rkey) for i in range(0, length, BLOCK))
    )
    seconds = time.perf_counter() - start
    print("read", hashlib.sha256(mr.read(length)).hexdigest())
    stats = acq.stats
    print(f"{length // BLOCK} blocks, {length / seconds / 1e6:.1f} MB/s, {stats.events} events")
    await acq.send(qp, None)


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--blocks", type=int, default=1024, help="of both sides, the same")
    args = parser.parse_args()
    async with connected(args, (args.blocks + 1) * BLOCK, AccessFlags.REMOTE_READ) as peer:
        await (read(peer) if args.connect else serve(peer))


asyncio.run(main())

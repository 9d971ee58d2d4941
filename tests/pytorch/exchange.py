# SPDX-License-Identifier: MIT
"""Two processes read a gigabyte of tensors from each other: on two hosts of the lab,

    ./lab -e PYTHONPATH=FOLDER hosts 2 -- python tests/pytorch/exchange.py

or on one: exchange.py RANK STORE_HOST, once with rank 0 and once with 1.
"""

import os
import sys
import time

import torch
from torch.distributed import TCPStore
from torch.distributed._transport import new_transport_rank

NBYTES, TIMES = 1 << 25, 32


def pattern(rank: int) -> torch.Tensor:
    return torch.arange(NBYTES // 8, dtype=torch.int64) * (rank + 3)


def main(rank: int, host: str) -> None:
    store = TCPStore(host, 29500, 2, is_master=rank == 0)
    transport = new_transport_rank("cqnotify", "cpu", store=store, peer_rank=1 - rank, rank=rank)
    with transport:
        mine, theirs = pattern(rank), torch.zeros(NBYTES // 8, dtype=torch.int64)
        exposed = transport.register_memory(mine).to_remote_buffer()
        store.set(f"buffer {rank}", exposed.serialize())
        remote = type(exposed).deserialize(store.get(f"buffer {1 - rank}"))
        view = transport.register_memory(theirs).to_mutable_view()
        wall, cpu = time.monotonic(), time.process_time()
        for _ in range(TIMES):
            theirs.zero_()
            transport.read(view, remote)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        assert torch.equal(theirs, pattern(1 - rank))
        print(f"{TIMES * NBYTES / 1e9:.2f} GB read in {wall:.1f} s, CPU {cpu:.2f} s", flush=True)
        store.set(f"done {rank}", b"")
        store.wait([f"done {1 - rank}"])  # the other may still read here
    if rank == 0:
        store.set("end 0", b"")
        store.wait(["end 1"])  # the store is here
    else:
        store.wait(["end 0"])
        store.set("end 1", b"")


if sys.argv[1:]:
    main(int(sys.argv[1]), sys.argv[2])
else:
    main(int(os.environ["CQNOTIFY_LAB_HOST"]) - 1, "host1")

# SPDX-License-Identifier: MIT
"""A Dask cluster over RDMA: a reduction and a shuffle, with one worker killed on the way.

python examples/dask_cluster.py                                  # two workers, on this host

dask worker rdma://10.99.0.1:8786 --nthreads 1 --nworkers 2      # on another host, before or after
python examples/dask_cluster.py --host 10.99.0.1 --workers 4     # begins when there are four
"""

import argparse
import os
import signal

import dask
import dask.array as da
from distributed import Client, LocalCluster, as_completed

from cqnotify import Context
from cqnotify.cm import local_addresses

PARTS = 16


def own_address() -> str:
    """Return one of the first device. Loopback addresses, which Dask would choose, lead to none."""
    with Context() as ctx:
        return local_addresses(ctx)[0]


def a_table(megabytes: float) -> da.Array:
    """Square, in PARTS pieces of so many rows each: 0, 1, 2, ..."""
    side = int((megabytes * 1e6 / 8) ** 0.5) // PARTS * PARTS
    rows = side // PARTS
    return da.arange(side * side, chunks=rows * side, dtype=float).reshape(side, side)


def sums_of_columns(table: da.Array) -> list[da.Array]:
    """Each piece of the result needs something of each piece of the table: all of it moves."""
    side = table.shape[0]
    columns = table.rechunk((side, side // PARTS), method="tasks")
    return [columns.blocks[0, i].sum() for i in range(PARTS)]


def progress(done: int) -> None:
    print(f"[{'#' * done:{PARTS}}] {done} of {PARTS} parts", flush=True)


def compute(client: Client, cluster: LocalCluster, megabytes: float) -> None:
    table = a_table(megabytes)
    print(f"{table.nbytes / 1e6:.0f} MB, the mean is {table.mean().compute():.1f}", flush=True)
    (table,) = dask.persist(table)  # from here on in the workers' memory
    parts = client.compute(sums_of_columns(table))
    for done, _ in enumerate(as_completed(parts), 1):
        progress(done)
        if done == PARTS // 4:
            worker = cluster.workers[0]
            os.kill(worker.pid, signal.SIGKILL)
            print("killed a worker, with what it had:", worker.worker_address, flush=True)
    total, count = sum(client.gather(parts)), table.size
    right = count * (count - 1) / 2
    print(f"the sum is {total:.0f}: {'right' if total == right else f'WRONG, it is {right:.0f}'}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", help="our address (of the first RDMA device)")
    parser.add_argument("--port", type=int, default=8786, help="the scheduler's (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="of all hosts (%(default)s)")
    parser.add_argument("--megabytes", type=float, default=100, help="of data (%(default)s)")
    args = parser.parse_args()
    with (
        LocalCluster(
            protocol="rdma://",
            host=args.host or own_address(),
            scheduler_port=args.port,
            n_workers=2,
            threads_per_worker=1,
        ) as cluster,
        Client(cluster) as client,
    ):
        print("dashboard:", client.dashboard_link, flush=True)
        client.wait_for_workers(args.workers)
        print(args.workers, "workers at", cluster.scheduler_address, flush=True)
        compute(client, cluster, args.megabytes)


if __name__ == "__main__":  # workers are processes that import this file
    main()

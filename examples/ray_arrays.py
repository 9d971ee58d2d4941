# SPDX-License-Identifier: MIT
"""Ray actors that pass numpy arrays: over RDMA, and through Ray's object store to compare.

python examples/ray_arrays.py                      # two actors on this host
python examples/ray_arrays.py --address auto       # in the cluster of this host

Then an actor is killed, with an array that another one wants.
"""

import argparse
import time
from typing import Any

import numpy
import ray

import cqnotify.ray
from cqnotify import memory

RDMA = "RDMA_NUMPY"
WAYS = {RDMA: "RDMA", None: "the object store"}


class Placed:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


class Source(Placed):
    """Has an array, and counts in its first element how often it was asked for."""

    def __init__(self, rows: int) -> None:
        self.array = numpy.ones((rows, 1000))

    def next(self) -> Any:
        self.array[0, 0] += 1
        return self.array

    def freed(self) -> int:
        """Wait until nobody refers to the array any more; return how much is exposed then."""
        ray.experimental.wait_tensor_freed(self.array, timeout=60)
        return memory.stats().in_use_bytes


class Sink(Placed):
    def total(self, array: Any) -> float:
        return float(array.sum())


def actors(args: argparse.Namespace) -> tuple[Any, Any]:
    """A pair of them, on two hosts if there are several."""
    remote = ray.remote(enable_tensor_transport=True, scheduling_strategy="SPREAD")
    return remote(Source).remote(args.rows), remote(Sink).remote()


def pass_arrays(args: argparse.Namespace, transport: str | None) -> tuple[Any, Any]:
    source, sink = actors(args)
    fetch = source.next.options(tensor_transport=transport)
    size = 1000 * args.rows
    right = ray.get(sink.total.remote(fetch.remote())) == size + 1  # and they are connected
    hosts = len({ray.get(actor.node.remote()) for actor in (source, sink)})
    start = time.perf_counter()
    for i in range(2, args.passes + 2):
        right &= ray.get(sink.total.remote(fetch.remote())) == size + i
    each = (time.perf_counter() - start) / args.passes
    print(
        f"{size * 8 / 1e6:.1f} MB by {WAYS[transport]}, {hosts} host{'s' * (hosts > 1)}: "
        f"{each * 1e3:.1f} ms, {size * 8 / each / 1e6:.0f} MB/s, {'right' if right else 'WRONG'}",
        flush=True,
    )
    return source, sink


def lose(args: argparse.Namespace, source: Any, sink: Any) -> None:
    wanted = source.next.options(tensor_transport=RDMA).remote()
    ray.wait([wanted], fetch_local=False)
    ray.kill(source)
    try:
        while True:  # as long as the killed process lives
            ray.get(sink.total.remote(wanted))
    except ray.exceptions.RayError as e:
        print("the actor was killed:", str(e).strip().splitlines()[-1])
    another, _ = actors(args)
    again = another.next.options(tensor_transport=RDMA).remote()
    right = ray.get(sink.total.remote(again)) == 1000 * args.rows + 1
    print("from another one:", "right" if right else "WRONG")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a cluster (a new one, on this host)")
    parser.add_argument("--rows", type=int, default=1000, help="of the array, of 8000 bytes each")
    parser.add_argument("--passes", type=int, default=20, help="of the array (%(default)s)")
    args = parser.parse_args()
    cqnotify.ray.register_numpy()
    ray.init(args.address, include_dashboard=False, log_to_driver=False)
    pass_arrays(args, None)
    source, sink = pass_arrays(args, RDMA)
    print("exposed afterwards:", ray.get(source.freed.remote()), "bytes", flush=True)
    lose(args, source, sink)
    ray.shutdown()


if __name__ == "__main__":
    main()

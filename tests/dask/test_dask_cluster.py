# SPDX-License-Identifier: MIT
"""A cluster computes, with all of its connections over RDMA."""

from __future__ import annotations

import itertools

import numpy
import pytest
from distributed import Client, LocalCluster, wait
from support import address_of

from cqnotify import Context


def column(seed: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).random(50_000)


@pytest.mark.parametrize("given", [True, False], ids=["host", "no host"])
async def test_a_cluster_computes(ctx: Context, given: bool) -> None:
    where = {"host": address_of(ctx)} if given else {}
    async with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="rdma://",
            **where,
            dashboard_address=None,
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        addresses = [worker.address for worker in cluster.workers.values()]
        assert all(address.startswith("rdma://") for address in addresses)
        assert client.scheduler.addr.startswith(f"rdma://{address_of(ctx)}:")
        # Some on each worker, which gets the others' for the sum.
        columns = [client.submit(column, seed, workers=[addresses[seed % 2]]) for seed in range(6)]
        await wait(columns)
        sums = [client.submit(numpy.add, a, b) for a, b in itertools.pairwise(columns)]
        total = client.submit(lambda parts: sum(parts), sums)
        expected = sum(column(seed) + column(seed + 1) for seed in range(5))
        numpy.testing.assert_allclose(await total, expected)
        local = numpy.arange(200_000)
        (scattered,) = await client.scatter([local], broadcast=True)
        assert await client.submit(numpy.sum, scattered) == local.sum()

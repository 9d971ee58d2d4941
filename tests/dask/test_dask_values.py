# SPDX-License-Identifier: MIT
"""What a task returns or raises gets to the client: values and exceptions, by Dask's own ways."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import values
from distributed import Client, LocalCluster
from distributed.core import clean_exception, error_message
from distributed.protocol import deserialize, dumps, loads, serialize, to_serialize
from distributed.protocol.pickle import dumps as pickled
from support import Pair

from cqnotify import Context


@pytest.fixture
def samples(ctx: Context, pair: Pair) -> list[Any]:
    return values.values(ctx, pair)


def test_each_is_serialized_whole(samples: list[Any]) -> None:
    for value in samples:
        assert values.look(deserialize(*serialize(value))) == values.look(value)
        assert values.look(pickle.loads(pickled(value))) == values.look(value)
        message = loads(dumps({"op": "result", "value": to_serialize(value)}))
        assert values.look(message["value"]) == values.look(value)


def test_each_exception_is_told_as_what_it_is(samples: list[Any]) -> None:
    """By the message in which a worker tells of one; what does not pickle comes as Exception."""
    for error in (value for value in samples if isinstance(value, Exception)):
        told = loads(dumps(error_message(error)))
        _, found, _ = clean_exception(**told)
        assert type(found) is type(error)
        assert values.look(found) == values.look(error)


async def test_a_client_gets_them(ctx: Context, samples: list[Any]) -> None:
    async with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            dashboard_address=None,
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        for value in samples:
            found = await client.submit(values.give_back, value, pure=False)
            assert values.look(found) == values.look(value)
            if isinstance(value, Exception):
                with pytest.raises(type(value)) as e:
                    await client.submit(values.raise_it, value, pure=False, retries=0)
                assert values.look(e.value) == values.look(value)

# SPDX-License-Identifier: MIT
"""The transport without a cluster: its methods are called as Ray calls them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
from support import DEADLINE, until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ctx")]

SOURCE = """
import pickle, sys, numpy
from cqnotify.ray._transport import NumpyTransport
arrays = [numpy.arange(n) for n in (10, 1_000_000)]
metadata = NumpyTransport().extract_tensor_transport_metadata("x", arrays)
print(pickle.dumps(metadata).hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[Any]:
    from cqnotify import memory

    yield memory
    memory.close()


@pytest.fixture
def transport(memory: Any) -> Any:
    from cqnotify.ray._transport import NumpyTransport

    return NumpyTransport()


@pytest.fixture
def error() -> type[Exception]:
    from ray.exceptions import RayDirectTransportError

    return RayDirectTransportError


@contextmanager
def source() -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Another process, and the metadata of the arrays that it exposes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SOURCE], **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process, pickle.loads(bytes.fromhex(process.stdout.readline()))
        finally:
            process.kill()


def received(transport: Any, metadata: Any, into: list[Any] | None = None) -> list[Any]:
    communicator = transport.get_communicator_metadata(None, None)
    found: list[Any] = transport.recv_multiple_tensors("x", metadata, communicator, into)
    return found


def test_it_is_what_ray_asks_for(transport: Any) -> None:
    from ray.experimental import TensorTransportManager

    assert isinstance(transport, TensorTransportManager)
    assert (transport.is_one_sided(), transport.can_abort_transport()) == (True, True)
    assert transport.actor_has_tensor_transport(None)
    with pytest.raises(NotImplementedError, match="RDMA_NUMPY is one-sided"):
        transport.send_multiple_tensors([], None, None)


def test_registering_twice_is_no_error() -> None:
    from ray.experimental.rdt.util import get_tensor_transport_manager

    from cqnotify import ray

    ray.register_numpy()
    ray.register_numpy()
    manager = get_tensor_transport_manager("RDMA_NUMPY")
    assert manager.tensor_transport_backend() == "RDMA_NUMPY"


ARRAYS = [
    numpy.arange(24.0).reshape(2, 3, 4),
    numpy.arange(24.0).reshape(2, 3, 4).T,
    numpy.arange(3_000_000),
    numpy.array(7),
    numpy.empty((3, 0)),
    numpy.array([True, False]),
    numpy.array(["a", "text"]),
    numpy.array(["2026-11-28"], "M8[D]"),
    numpy.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    numpy.frombuffer(b"read-only", "u1"),
]


def test_arrays_arrive_as_they_were_and_are_the_receivers_own(transport: Any, memory: Any) -> None:
    metadata = transport.extract_tensor_transport_metadata("x", ARRAYS)
    assert metadata.tensor_meta == [(a.shape, a.dtype) for a in ARRAYS]
    assert metadata.tensor_device == "cpu"
    found = received(transport, pickle.loads(pickle.dumps(metadata)))
    for sent, got in zip(ARRAYS, found, strict=True):
        assert (got.dtype, got.strides) == (sent.dtype, sent.strides)
        numpy.testing.assert_array_equal(got, sent)
        assert got.flags.writeable
        assert not numpy.shares_memory(got, sent)
    transport.garbage_collect("x", metadata, ARRAYS)
    assert memory.stats().in_use == 0


def test_an_object_without_arrays_is_nothing_to_fetch(transport: Any) -> None:
    metadata = transport.extract_tensor_transport_metadata("x", [])
    assert (metadata.tensor_meta, metadata.tensor_device) == ([], None)
    assert received(transport, metadata) == []


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (numpy.ones((4, 4))[:, ::2], ValueError, r"numpy\.ascontiguousarray"),
        (numpy.array([None]), TypeError, "references to Python objects"),
    ],
    ids=["gaps", "objects"],
)
def test_what_cannot_be_sent_is_refused_and_nothing_stays_exposed(
    transport: Any, memory: Any, array: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        transport.extract_tensor_transport_metadata("x", [numpy.ones(5), array])
    assert memory.stats().in_use == 0


def test_a_task_that_runs_again_has_the_same_metadata(transport: Any, memory: Any) -> None:
    arrays = [numpy.ones(5)]
    first = transport.extract_tensor_transport_metadata("x", arrays)
    assert transport.extract_tensor_transport_metadata("x", arrays) is first
    assert memory.stats().in_use == 1


def test_garbage_collection_ends_the_access_of_those_that_have_fetched(
    transport: Any, memory: Any, error: type[Exception]
) -> None:
    arrays = [numpy.ones(5)]
    metadata = transport.extract_tensor_transport_metadata("x", arrays)
    other = transport.extract_tensor_transport_metadata("y", arrays)
    received(transport, metadata)
    transport.garbage_collect("x", metadata, arrays)
    transport.garbage_collect("x", metadata, arrays)  # as when Ray tries again
    with pytest.raises(error, match="object x was not fetched over RDMA: .*not exposed") as caught:
        received(transport, metadata)
    assert isinstance(caught.value.__cause__, memory.RevokedError)
    assert (received(transport, other)[0] == 1).all()


def test_arrays_are_read_into_buffers_that_are_given(transport: Any) -> None:
    metadata = transport.extract_tensor_transport_metadata("x", [numpy.arange(6).reshape(2, 3)])
    into = [numpy.zeros((2, 3), int)]
    assert received(transport, metadata, into)[0] is into[0]
    assert into[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="must have the shapes"):
        received(transport, metadata, [numpy.zeros((3, 2), int)])


def test_a_source_that_has_died_is_an_error(transport: Any, error: type[Exception]) -> None:
    with source() as (process, metadata):
        assert [len(array) for array in received(transport, metadata)] == [10, 1_000_000]
        process.kill()
        process.wait(DEADLINE)
        with pytest.raises(error, match="object x was not fetched over RDMA: ") as caught:
            received(transport, metadata)
    assert isinstance(caught.value.__cause__, ConnectionError)


@contextmanager
def stopped() -> Iterator[Any]:
    """The metadata of a process that does not answer."""
    with source() as (process, metadata):
        os.kill(process.pid, signal.SIGSTOP)
        yield metadata


def test_a_fetch_is_waited_for_as_long_as_ray_says(transport: Any) -> None:
    with stopped() as metadata:
        fetch = transport.fetch_multiple_tensors("x", metadata, None)
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match=f"object x was not fetched within {timeout} s"):
                transport.wait_fetch_complete(fetch, timeout)


def test_an_abort_ends_the_fetches_of_its_object(transport: Any, error: type[Exception]) -> None:
    with stopped() as metadata:
        fetches = [transport.fetch_multiple_tensors(name, metadata, None) for name in "xxy"]
        transport.abort_transport("x", None)
        for fetch in fetches[:2]:
            with pytest.raises(error, match="object x was not fetched over RDMA: .* aborted"):
                transport.wait_fetch_complete(fetch, DEADLINE)
        assert not any(transfer.done() for transfer in fetches[2].transfers)
        transport.abort_transport("z", None)  # of which nothing is under way


def test_a_fetch_that_is_dropped_is_cancelled(transport: Any) -> None:
    with stopped() as metadata:
        fetch = transport.fetch_multiple_tensors("x", metadata, None)
        transfers = fetch.transfers
        del fetch
        until(lambda: all(transfer.done() for transfer in transfers), "the transfers end")


def test_tensors_arrive_as_they_were(memory: Any) -> None:
    torch = pytest.importorskip("torch")
    from cqnotify.ray._transport import TorchTransport

    transport = TorchTransport()
    sent = [
        torch.arange(24.0).reshape(2, 3, 4).requires_grad_(),
        torch.ones(1_000_000, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.empty(0, 3),
    ]
    metadata = transport.extract_tensor_transport_metadata("x", sent)
    found = received(transport, pickle.loads(pickle.dumps(metadata)))
    for a, b in zip(sent, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
    into = [torch.zeros_like(tensor) for tensor in sent]
    assert all(a is b for a, b in zip(into, received(transport, metadata, into), strict=True))
    assert torch.equal(into[0], sent[0])
    transport.garbage_collect("x", metadata, sent)
    assert memory.stats().in_use == 0
    with pytest.raises(ValueError, match=r"return tensor\.contiguous"):
        transport.extract_tensor_transport_metadata("x", [torch.ones(3, 4).T])
    with pytest.raises(ValueError, match="RDMA_TORCH is for CPU tensors"):
        transport.extract_tensor_transport_metadata("x", [torch.ones(3, device="meta")])

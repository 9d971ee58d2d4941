# SPDX-License-Identifier: MIT
"""A transport: what it registers, describes, transfers and refuses. Both ends are in one
process."""

from __future__ import annotations

import ctypes
import gc
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed._transport import available_transports, new_transport, wait_all
from torch_support import pair

from cqnotify import MR, PD, AccessFlags, Context, memory
from cqnotify.torch import CqnotifyTransport, RemoteBuffer, _cuda, _memory

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("ctx")]

TYPES = [torch.uint8, torch.bool, torch.float64, torch.bfloat16, torch.complex64]
TYPES += [torch.float8_e4m3fn]


def test_torch_finds_it_by_its_entry_point() -> None:
    assert "cqnotify" in available_transports()
    with new_transport("cqnotify", "cpu") as transport:
        assert isinstance(transport, CqnotifyTransport)
        assert transport.supported()
        assert not transport.connected()


# ---- memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tensors_of_any_type_are_transferred(dtype: torch.dtype) -> None:
    source = torch.arange(2000).remainder(2).to(dtype).reshape(40, 50)
    with pair() as (a, b):
        target = torch.zeros_like(source)
        there = b.register_memory(target).to_remote_buffer()
        assert a.write(a.register_memory(source).to_view(), there) == 0
        assert torch.equal(target.view(torch.uint8), source.view(torch.uint8))


def test_scalars_slices_and_parameters_are_transferred() -> None:
    parameter = torch.nn.Parameter(torch.arange(10.0))
    sources = [torch.tensor(7.5), torch.arange(100)[20:30], parameter]
    with pair() as (a, b):
        for source in sources:
            target = torch.zeros_like(source, requires_grad=False)
            there = b.register_memory(target).to_remote_buffer()
            a.write(a.register_memory(source).to_view(), there)
            assert torch.equal(target, source)


def not_contiguous() -> torch.Tensor:
    return torch.zeros(8, 8).t()[1:]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: [1, 2], TypeError, "only a torch.Tensor can be registered, not list"),
        (not_contiguous, ValueError, "only a contiguous tensor"),
        (lambda: torch.eye(3).to_sparse(), ValueError, "only a contiguous tensor"),
        (lambda: torch.empty(0), ValueError, "an empty tensor"),
        (lambda: torch.empty(3, device="meta"), ValueError, "on meta"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with CqnotifyTransport() as transport, pytest.raises(error, match=text):
        transport.register_memory(make())


def test_tensors_of_another_device_are_refused() -> None:
    with pytest.raises(ValueError, match="device xla"):
        CqnotifyTransport("xla")
    with (
        CqnotifyTransport("cuda") as transport,
        pytest.raises(ValueError, match="on cuda, got cpu"),
    ):
        transport.register_memory(torch.zeros(1))


def test_without_libcuda_an_error_says_what_is_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    with pytest.raises(RuntimeError, match=r"needs NVIDIA's libcuda\.so\.1"):
        _cuda.export(0, 4096)


@pytest.mark.not_on_iwarp("without memory windows no MR is exposed")
def test_memory_that_the_cpu_cannot_reach_is_transferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a card: by MRs, here of the CPU's memory."""
    made: list[MR] = []

    def register(pd: PD, address: int, length: int) -> MR:
        access = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND
        made.append(MR(pd, (ctypes.c_char * length).from_address(address), access=access))
        return made[-1]

    monkeypatch.setattr(_cuda, "register", register)
    monkeypatch.setattr(_memory, "is_on_cpu", lambda tensor: False)
    source, target = torch.arange(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
    with pair() as (a, b):
        there = b.register_memory(target).to_remote_buffer()
        here = a.register_memory(source)
        a.write(here.to_view(), there)
        assert torch.equal(target, source)
        a.write(here.to_view(50, 10), there)
        a.write(here.to_view(100), there)
        assert target.tolist() == [*range(50, 60), *range(10, 100)]
        a.read(here.to_mutable_view(90, 10), there)
        assert source.tolist() == [*range(90), *range(50, 60)]
        assert len(made) == 2
    assert all(mr.closed for mr in made)


def test_a_registered_tensor_is_registered_once() -> None:
    tensor = torch.zeros(1000)
    with pair() as (a, _):
        first, second = a.register_memory(tensor), a.register_memory(tensor)
        assert first.registration is second.registration
        assert first.to_remote_buffer() == second.to_remote_buffer()
        assert a.register_memory(tensor[:10]).registration is not first.registration
        a.unregister_memory(second)
        a.unregister_memory(first)
        for call in (first.to_view, first.to_mutable_view, first.to_remote_buffer):
            with pytest.raises(RuntimeError, match="was unregistered"):
                call()
        again = a.register_memory(tensor)
        assert again.registration is not first.registration
        with CqnotifyTransport() as other, pytest.raises(TypeError, match="not registered with"):
            other.unregister_memory(again)


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, None), (101, None), (0, 101), (60, 50), (0, -1)]
)
def test_a_view_is_within_the_memory(offset: int, length: int | None) -> None:
    with pair() as (a, _):
        registered = a.register_memory(torch.zeros(100, dtype=torch.uint8))
        assert registered.to_view(40, 60).size() == registered.to_view(40).size() == 60
        assert registered.to_mutable_view(100).size() == 0
        with pytest.raises(ValueError, match="the registered memory has 100 bytes"):
            registered.to_view(offset, length)


def test_a_tensor_whose_storage_was_replaced_is_refused() -> None:
    with pair() as (a, _):
        tensor = torch.zeros(100)
        registered = a.register_memory(tensor)
        tensor.set_(torch.ones(100))
        with pytest.raises(RuntimeError, match="its storage replaced"):
            registered.to_view()


def test_a_registration_keeps_the_tensor_until_the_end() -> None:
    with pair() as (a, b):
        target = torch.zeros(1000, dtype=torch.uint8)
        there = b.register_memory(target[:]).to_remote_buffer()
        b.register_memory(torch.ones(1000))
        gc.collect()
        a.write(a.register_memory(torch.ones(1000, dtype=torch.uint8)).to_view(), there)
        assert int(target.sum()) == 1000


# ---- descriptors ----------------------------------------------------------------------------


def test_a_remote_buffer_is_serialized_and_pickled() -> None:
    with CqnotifyTransport() as transport:
        remote = transport.register_memory(torch.zeros(10)).to_remote_buffer()
        assert RemoteBuffer.deserialize(remote.serialize()) == remote
        assert pickle.loads(pickle.dumps(remote)) == remote
        assert str(remote.descriptor.token) not in repr(remote)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"{}", b'{"cqnotify": 2}', b'{"cqnotify": 1, "endpoint": 3}'],
)
def test_what_is_no_remote_buffer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no RemoteBuffer of cqnotify"):
        RemoteBuffer.deserialize(data)
    with CqnotifyTransport() as transport, pytest.raises(ValueError, match="not what bind"):
        transport.connect(data)


def test_each_part_of_a_remote_buffer_is_checked() -> None:
    with CqnotifyTransport() as transport:
        whole = transport.register_memory(torch.zeros(10)).to_remote_buffer().serialize()
    with pytest.raises(ValueError, match="no RemoteBuffer of cqnotify"):
        RemoteBuffer.deserialize(whole.replace(b'"token"', b'"tokens"'))


# ---- the peer -------------------------------------------------------------------------------


def test_a_transport_has_one_peer_and_reaches_only_its_memory() -> None:
    with pair() as (a, b), CqnotifyTransport() as c:
        assert a.connected()
        assert b.connected()
        with pytest.raises(RuntimeError, match="a second peer needs one of its own"):
            a.connect(c.bind())
        view = a.register_memory(torch.zeros(10)).to_mutable_view()
        foreign = c.register_memory(torch.zeros(10)).to_remote_buffer()
        with pytest.raises(ValueError, match="another transport than the connected peer"):
            a.read(view, foreign)
        with pytest.raises(RuntimeError, match="not connected"):
            c.read(c.register_memory(torch.zeros(10)).to_mutable_view(), foreign)


def test_a_closed_transport_cannot_be_connected_to() -> None:
    with CqnotifyTransport() as a:
        with CqnotifyTransport() as b:
            url = b.bind()
        with pytest.raises(memory.RevokedError):
            a.connect(url)
        assert not a.connected()


def test_transfers_are_checked_before_they_begin() -> None:
    with pair() as (a, b):
        here = a.register_memory(torch.zeros(100, dtype=torch.uint8))
        there = b.register_memory(torch.zeros(50, dtype=torch.uint8)).to_remote_buffer()
        with pytest.raises(TypeError, match="must be a MutableView"):
            a.read(here.to_view(0, 50), there)
        with pytest.raises(TypeError, match="must be a View of this transport's"):
            b.write(here.to_view(0, 50), there)
        with pytest.raises(TypeError, match="must be a RemoteBuffer, not bytes"):
            a.write(here.to_view(0, 50), b"")
        with pytest.raises(ValueError, match="the view has 100 bytes, and the peer's memory 50"):
            a.write(here.to_view(), there)
        for timeout in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="must be finite"):
                a.write(here.to_view(0, 50), there, timeout=timeout)
        assert here.registration.pending == 0


# ---- transfers ------------------------------------------------------------------------------


def test_the_device_decides_what_arrives_where() -> None:
    with pair() as (a, b):
        there = torch.zeros(50, dtype=torch.uint8)
        remote = b.register_memory(there).to_remote_buffer()
        here = torch.arange(100, dtype=torch.uint8)
        registered = a.register_memory(here)
        a.write(registered.to_view(10, 20), remote)
        assert there.tolist() == [*range(10, 30), *[0] * 30]
        a.read(registered.to_mutable_view(90, 10), remote)
        assert here.tolist() == [*range(90), *range(10, 20)]
        assert a.write(registered.to_view(0, 0), remote) == 0


def test_a_work_says_how_it_ended() -> None:
    with pair() as (a, b):
        remote = b.register_memory(torch.zeros(50)).to_remote_buffer()
        work = a.write(a.register_memory(torch.ones(50)).to_view(), remote, async_op=True)
        assert work.wait() is True
        work.synchronize()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result() == work.get_future().wait() == []
        with pytest.raises(ValueError, match="must not be negative"):
            work.wait(timedelta(seconds=-1))


def test_unregistered_memory_fails_the_works_of_the_peer_and_nothing_else() -> None:
    with pair() as (a, b):
        gone, kept = (b.register_memory(torch.full((50,), 5.0)) for _ in range(2))
        remote, other = gone.to_remote_buffer(), kept.to_remote_buffer()
        view = a.register_memory(torch.zeros(50)).to_mutable_view()
        a.read(view, remote)
        b.unregister_memory(gone)
        work = a.read(view, remote, async_op=True)
        with pytest.raises(memory.RevokedError):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), memory.RevokedError)
        with pytest.raises(memory.RevokedError):
            work.get_future().wait()
        assert a.connected()
        assert a.read(view, other) == 0


async def test_tasks_await_transfers(ctx: Context) -> None:
    with pair() as (a, b):
        target = torch.zeros(64)
        remote = b.register_memory(target).to_remote_buffer()
        registered = a.register_memory(torch.arange(64.0))
        await a.write_async(registered.to_view(), remote)
        assert torch.equal(target, torch.arange(64.0))
        works = [a.write(registered.to_view(), remote, async_op=True) for _ in range(100)]
        await wait_all(works)
        await a.close_async()
        assert all(work.is_success() for work in works)


# ---- the end --------------------------------------------------------------------------------


def test_closing_ends_all_and_may_be_done_twice() -> None:
    with pair() as (a, b):
        remote = b.register_memory(torch.zeros(50)).to_remote_buffer()
        registered = a.register_memory(torch.ones(50))
        view = registered.to_view()
        a.close()
        a.close()
        assert not a.connected()
        calls: list[Callable[[], object]] = [
            a.bind,
            lambda: a.connect(b.bind()),
            lambda: a.register_memory(torch.ones(1)),
            lambda: a.unregister_memory(registered),
            lambda: a.write(view, remote),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="this transport is closed"):
                call()


@pytest.mark.not_on_iwarp("there the pool does not count what is exposed")
def test_nothing_stays_exposed_or_registered() -> None:
    def used() -> int:
        return memory.stats().in_use

    before = used()
    with pair() as (a, b):
        a.read(
            a.register_memory(torch.zeros(5000)).to_mutable_view(),
            b.register_memory(torch.zeros(5000)).to_remote_buffer(),
        )
        assert used() > before
    assert used() == before

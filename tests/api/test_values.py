# SPDX-License-Identifier: MIT
"""Values and exceptions are copied, and leave their process; what they refer to stays there."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import values
from support import DEADLINE, Endpoint, Pair, python, wait_completions, wait_one

from cqnotify import (
    MW,
    SGE,
    SRQ,
    AccessFlags,
    AsyncEvent,
    AsyncEventError,
    ClosedError,
    CompletionError,
    Context,
    MWType,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    VerbsError,
    WCArray,
    WCStatus,
    WROpcode,
)

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
METHODS = ["spawn", "fork"]

Call = Callable[..., Any]
"""Calls a function with an argument in another process."""


def there_and_back(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.fixture
def samples(ctx: Context, pair: Pair) -> list[Any]:
    return values.values(ctx, pair)


@pytest.fixture(params=METHODS)
def pool(request: pytest.FixtureRequest) -> Iterator[Call]:
    with multiprocessing.get_context(request.param).Pool(1) as pool:
        yield lambda f, *args: pool.apply_async(f, args).get(DEADLINE)
        pool.close()
        pool.join()


@pytest.fixture(params=METHODS)
def executor(request: pytest.FixtureRequest) -> Iterator[Call]:
    method = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(1, mp_context=method) as executor:
        yield lambda f, *args: executor.submit(f, *args).result(DEADLINE)


def returns_and_raises(call: Call, samples: list[Any]) -> None:
    for value in samples:
        assert values.look(call(values.give_back, value)) == values.look(value)
        if isinstance(value, Exception):
            with pytest.raises(type(value)) as e:
                call(values.raise_it, value)
            assert type(e.value) is type(value)
            assert values.look(e.value) == values.look(value)


# ---- all of them ---------------------------------------------------------------------------


def test_each_is_copied_and_pickled_whole(samples: list[Any]) -> None:
    for value in samples:
        copies = [copy.copy(value), copy.deepcopy(value)]
        for one in [*copies, *(there_and_back(value, p) for p in PROTOCOLS)]:
            assert type(one) is type(value)
            assert values.look(one) == values.look(value)


def test_a_pool_returns_and_raises_each(pool: Call, samples: list[Any]) -> None:
    returns_and_raises(pool, samples)


def test_an_executor_returns_and_raises_each(executor: Call, samples: list[Any]) -> None:
    returns_and_raises(executor, samples)


def test_a_handle_stays_in_its_process(pair: Pair) -> None:
    for thing in (*values.unpicklable(pair[0].pd), pair[0].qp, pair[0].scq, pair[0].channel):
        for protocol in PROTOCOLS:
            with pytest.raises(TypeError):
                pickle.dumps(thing, protocol)
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(thing)
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.deepcopy(thing)


# ---- errors that another process made --------------------------------------------------------


@pytest.fixture
def fail() -> Iterator[Call]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield lambda what: executor.submit(values.fail, what).result(DEADLINE)


def test_a_refused_post_is_told_to_another_process(fail: Call, pair: Pair) -> None:
    with pytest.raises(VerbsError, match="is full") as e:
        fail("post")
    assert e.value.verb == "ibv_post_recv"
    assert e.value.bad_wr is not None
    assert e.value.bad_wr.wr_id == e.value.posted
    assert repr(e.value.bad_wr) == f"<RecvWR wr_id={e.value.posted}, 8 bytes>"
    assert isinstance(e.value.bad_wr, RecvWR)
    with pytest.raises(ClosedError, match="work request stayed in the process that pickled it"):
        pair[0].qp.post_recv(e.value.bad_wr)


def test_a_failed_completion_is_told_to_another_process(fail: Call) -> None:
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR") as e:
        fail("completion")
    assert (e.value.status, e.value.wr_id) == (WCStatus.REM_ACCESS_ERR, 9)
    assert (e.value.wc.status, e.value.wc.qp_num) == (e.value.status, e.value.qp_num)
    with pytest.raises(CompletionError, match="REM_ACCESS_ERR"):
        e.value.wc.raise_for_status()


def test_a_failed_cq_is_told_to_another_process(fail: Call) -> None:
    with pytest.raises(AsyncEventError, match="CQ error") as e:
        fail("event")
    event = e.value.event
    assert (event.cq, event.qp, event.srq, event.port_num) == (None, None, None, None)
    assert repr(event) == "<AsyncEvent CQ_ERR, <CQ 'small' closed>>"


def test_values_come_out_of_another_process(fail: Call) -> None:
    wc, sge, wr = fail("value")
    assert (wc.wr_id, wc.ok, wc.byte_len) == (11, True, 8)
    assert (len(sge), sge.mr.closed, wr.wr_id) == (8, True, 12)


def test_the_enums_are_known_in_a_process_that_has_no_cq(array: WCArray, pair: Pair) -> None:
    failed = flushed(pair[1], 1)[0]
    program = "import pickle, sys; sys.stdout.write(repr(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    for value in (failed, array[0], array[1:2]):
        found = python("-c", program, pickle.dumps(value).hex())
        assert (found.stdout, found.stderr) == (repr(value), "")
    program = program.replace("repr(", "repr([*").replace("1])))", "1]))])")
    found = python("-c", program, pickle.dumps(array).hex())
    assert (found.stdout, found.stderr) == (repr([*array]), "")


# ---- memory and work requests ----------------------------------------------------------------


def test_elements_of_the_same_memory_are_equal(pair: Pair) -> None:
    mr = pair[0].mr
    assert mr[0:4] == mr[0:4]
    assert hash(mr[0:4]) == hash(mr[0:4])
    others = [mr[0:5], mr[1:5], mr[0:4].with_lkey(1), pair[1].mr[0:4]]
    assert all(mr[0:4] != other for other in others)
    assert len({mr[0:4], mr[0:4], *others}) == 5
    assert mr[0:4] != (mr.addr, 4, mr.lkey)
    with pytest.raises(TypeError, match="'<' not supported"):
        mr[0:4] < mr[0:4]  # type: ignore[operator]  # noqa: B015
    assert copy.copy(mr[0:4]).mr is copy.deepcopy(mr[0:4]).mr is mr


def test_a_pickled_element_has_its_numbers_and_cannot_be_posted(pair: Pair) -> None:
    a = pair[0]
    sge = a.mr[8:16]
    left = there_and_back(sge)
    assert (left.addr, left.length, left.lkey) == (sge.addr, 8, a.mr.lkey)
    assert left != sge
    assert left == there_and_back(sge) == there_and_back(left)
    assert hash(left) == hash(sge)
    assert left.with_lkey(7).lkey == 7
    stayed = "this MR stayed in the process that pickled it"
    for use in (
        lambda: a.qp.post_send(left),
        lambda: a.qp.post_recv(left),
        lambda: a.qp.post_recv([left, sge]),
        lambda: RecvWR(left),
        lambda: SendWR([left]),
        lambda: left.mr[0:4],
        lambda: left.mr.rkey,
        lambda: left.mr.pd,
        lambda: left.mr.read(),
        lambda: memoryview(left.mr),
        lambda: left.mr.rereg(64),
        lambda: left.mr.add_close_callback(print),
    ):
        with pytest.raises(ClosedError, match=stayed):
            use()
    assert left.mr.closed
    assert repr(left.mr) == "<MR closed>"
    left.mr.close()


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_a_copied_request_is_another_on_the_same_memory(pair: Pair, how: Call) -> None:
    a, b = pair
    a.mr.write(b"payload!")
    first, into = SendWR(a.mr[0:8], wr_id=1), RecvWR(b.mr[0:8], wr_id=2)
    sent, got = how(first), how(into)
    sent.wr_id, got.wr_id = 3, 4
    assert (first.wr_id, into.wr_id) == (1, 2)
    del first, into
    b.qp.post_recv([got, how(got)])
    a.qp.post_send(sent)
    assert wait_one(a.scq).wr_id == 3
    assert wait_one(b.rcq).wr_id == 4
    assert b.mr.read(8) == b"payload!"


def test_a_copied_request_shares_the_buffer(pair: Pair) -> None:
    a, b = pair
    buffer = bytearray(b"before")
    wr = SendWR(buffer, send_flags=SendFlags.INLINE | SendFlags.SIGNALED)
    made = copy.deepcopy(wr)
    del wr
    with pytest.raises(BufferError):
        buffer.append(1)
    buffer[:] = b"after!"
    b.qp.post_recv(b.mr[0:8])
    a.qp.post_send(made)
    wait_one(b.rcq)
    assert b.mr.read(6) == b"after!"
    del made
    buffer.append(1)


def test_a_copied_bind_binds(pair: Pair) -> None:
    a = pair[0]
    mr = type(a.mr)(a.pd, 64, access=AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND)
    mw = MW(a.pd, MWType.TYPE_2)
    wr = SendWR(mr, opcode=WROpcode.BIND_MW, mw=mw, access=AccessFlags.REMOTE_READ)
    made, left = copy.copy(wr), there_and_back(wr)
    assert repr(left) == repr(wr)
    with pytest.raises(ClosedError, match="work request stayed"):
        a.qp.post_send(left)
    with pytest.raises(ClosedError, match="work request stayed"):
        a.qp.post_send([left, left])
    a.qp.post_send(made)
    wait_one(a.scq)


def test_a_pickled_request_can_not_be_posted(pair: Pair) -> None:
    a = pair[0]
    srq = SRQ(a.pd, 4)
    remote = {"remote_addr": 0, "rkey": 1}
    sends = [
        SendWR(a.mr[0:8]),
        SendWR(b"x", send_flags=SendFlags.INLINE),
        SendWR(a.mr[0:8], opcode=WROpcode.RDMA_READ, **remote),
        SendWR(opcode=WROpcode.LOCAL_INV, invalidate_rkey=5),
    ]
    for send in map(there_and_back, map(there_and_back, sends)):
        for what in (send, [send], copy.copy(send)):
            with pytest.raises(ClosedError, match="work request stayed"):
                a.qp.post_send(what)
    for recv in map(there_and_back, [RecvWR(a.mr[0:8]), RecvWR([a.mr[0:8], a.mr[8:16]]), RecvWR()]):
        for queue in (a.qp, srq):
            for wr in (recv, [recv], copy.deepcopy(recv)):
                with pytest.raises(ClosedError, match="work request stayed"):
                    queue.post_recv(wr)


def test_the_fields_of_a_dataclass_are_copied(pair: Pair) -> None:
    @dataclasses.dataclass
    class Job:
        sge: SGE
        recv: RecvWR
        send: SendWR
        wcs: WCArray

    job = Job(pair[0].mr[0:4], RecvWR(wr_id=1), SendWR(pair[0].mr[0:4], wr_id=2), WCArray(3))
    made = dataclasses.asdict(job)
    assert made["sge"] is job.sge
    assert (made["recv"].wr_id, made["send"].wr_id, made["wcs"].capacity) == (1, 2, 3)
    assert made["recv"] is not job.recv


def test_what_was_not_pickled_here_is_refused(pair: Pair) -> None:
    """Of another version, say."""
    wc = flushed(pair[0], 1)[0]
    row, extra = wc.__reduce__()[1]
    for arguments in ((), (row,), (row[1:], extra), (row, b"123"), (row, 5), ("x", None)):
        with pytest.raises((TypeError, ValueError)):
            type(wc)._restore(*arguments)
    for arguments in ((), (0, row), (2**40, row), (-1, b""), (3, row[1:]), (3, "x")):
        with pytest.raises((TypeError, ValueError)):
            WCArray._restore(*arguments)
    for kind in (SGE, RecvWR, SendWR, AsyncEvent):
        for arguments in ((), ("x",), (1, 2, 3, 4)):
            with pytest.raises((TypeError, ValueError)):
                kind._restore(*arguments)
    with pytest.raises(ValueError, match="opcode is 77"):
        SendWR._restore(77, 0, 0)


# ---- completions -----------------------------------------------------------------------------


def flushed(end: Endpoint, n: int) -> list[Any]:
    for i in range(n):
        end.qp.post_recv(end.mr[0:8], wr_id=i)
    end.qp.modify(qp_state=QPState.ERR)
    return wait_completions(end.rcq, n)


@pytest.fixture
def array(pair: Pair) -> WCArray:
    """Four completions: of the wr_ids 0, 1, 2, 1."""
    a, b = pair
    for wr_id in (0, 1, 2, 1):
        b.qp.post_recv(b.mr[0:64], wr_id=wr_id)
        a.qp.post_send(a.mr[0:8])
    wait_completions(a.scq, 4)
    array = WCArray(8)
    while b.rcq.poll_into(array) != 4:
        assert len(array) == 0
    return array


def test_completions_with_the_same_fields_are_equal(array: WCArray) -> None:
    assert array[1] == array[1] == array[3]
    assert hash(array[1]) == hash(array[3])
    assert array[0] != array[1]
    assert len({*array}) == 3
    assert array[0] != 0
    with pytest.raises(TypeError, match="'<' not supported"):
        array[0] < array[1]  # type: ignore[operator]  # noqa: B015


def test_one_that_was_polled_equals_the_one_of_an_array(pair: Pair) -> None:
    a = pair[0]
    for i in range(3):
        a.qp.post_recv(a.mr[0:8], wr_id=i)
    a.qp.modify(qp_state=QPState.ERR)
    (polled, *_) = wait_completions(a.rcq, 3)
    made = there_and_back(polled)
    assert made == polled
    assert hash(made) == hash(polled)
    assert copy.copy(polled) is copy.deepcopy(polled) is polled


def test_fields_that_only_some_devices_know_are_compared(array: WCArray) -> None:
    plain = array[0]
    full = values.with_everything(plain)
    assert full != plain
    assert full == values.with_everything(plain) == there_and_back(full)
    assert there_and_back(full).flow_tag == 3


def test_an_array_is_a_sequence(array: WCArray) -> None:
    assert isinstance(array, Sequence)
    assert issubclass(WCArray, Iterable)
    assert [wc.wr_id for wc in array] == [0, 1, 2, 1]
    assert [wc.wr_id for wc in reversed(array)] == [1, 2, 1, 0]
    assert [wc.wr_id for wc in array[1:3]] == [1, 2]
    assert [wc.wr_id for wc in array[::-2]] == [1, 1]
    assert array[5:] == []
    assert array[:] == list(array)
    one = array[1]
    assert one in array
    assert 5 not in array
    assert array.index(one) == 1
    assert array.index(one, 2) == 3
    assert array.index(one, -3, -2) == 1
    assert array.count(one) == 2
    assert array.count(None) == 0
    for bounds in ((2, 3), (4,), (0, 1), (0, -3)):
        with pytest.raises(ValueError, match="no such completion"):
            array.index(one, *bounds)
    match array:
        case [first, *rest]:
            assert (first.wr_id, len(rest)) == (0, 3)
        case _:
            pytest.fail("it matches no pattern of a sequence")


def test_a_copy_of_an_array_keeps_what_the_next_poll_replaces(array: WCArray, pair: Pair) -> None:
    copies = [copy.copy(array), copy.deepcopy(array), there_and_back(array)]
    before = list(array)
    assert pair[1].rcq.poll_into(array) == 0
    assert list(array) == []
    for one in copies:
        assert list(one) == before
        assert one.capacity == 8
        assert bytes(memoryview(one))[4 * 48 :] == bytes(4 * 48)
    assert pair[1].rcq.poll_into(copies[0]) == 0
    assert list(copies[1]) == before

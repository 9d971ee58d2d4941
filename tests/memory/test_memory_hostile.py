# SPDX-License-Identifier: MIT
"""A peer that sends what it wants reaches nothing that it was not given, and disturbs nobody else;
a descriptor that lies leads to an error."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import resource
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_support import connection_to, pattern
from raw_process import AT, SIZE, Raw, raw_client, raw_server
from support import DEADLINE, cancel, eventually, is_rxe, start

from cqnotify import (
    AsyncEventError,
    CompletionError,
    Context,
    VerbsError,
    WCStatus,
    cm,
    memory,
)
from cqnotify.memory import (
    READ,
    WRITE,
    ConnectionLostError,
    Descriptor,
    RefusedError,
    RevokedError,
    TransferError,
    _exposure,
)
from cqnotify.memory import _process as process_module
from cqnotify.memory import _wire as wire
from cqnotify.memory._connection import FRAMES
from cqnotify.memory._process import current
from cqnotify.memory._wire import Answer, Kind

DATA = pattern(3 * 4096)
MEMORY = 64 << 20  # bytes by which the process may grow
MANY = 20_000  # descriptors, or tokens
MILLION = 1_000_000
GOOD = Descriptor(("10.0.0.1",), 7001, "0" * 32, 5, 4096, READ, "<f8", (512,))


def peak() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def is_well(one: memory.Exposure | Descriptor) -> None:
    """Others still get it."""
    assert bytes(await memory.get(one, length=100)) == DATA[:100]


# ---- descriptors --------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "hosts": [[], [5], ["host"], ["localhost"], "10.0.0.1", None, ["10.0.0.1"] * 65, ["\ud800"]],
    "port": [0, -1, 65536, 1.5, True, None, "7001"],
    "process": ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, b"0" * 32, None, "0" * 31 + "\n"],
    "token": [-1, 1 << 64, 0.5, None, "5", True],
    "length": [-1, 1 << 63, 0.5, None, "4096"],
    "access": [0, 4, 7, -8, None, "READ", []],
    "dtype": [5, ["f8"], b"f8"],
    "shape": [[-1], [0.5], [1 << 63], ["5"], "12", 5, [1] * 65, {"5": 5}],
    "order": ["", "A", 5, None],
    "expires": ["never", [5]],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_refused(field: str) -> None:
    good = GOOD.to_dict()
    assert Descriptor.from_dict(good) == GOOD
    for value in WRONG[field]:
        with pytest.raises(ValueError, match="must|no descriptor|is not|dimensions|access|Access"):
            Descriptor.from_dict(good | {field: value})
    if field not in ("dtype", "shape", "order", "expires"):
        del good[field]
        with pytest.raises(ValueError, match=field):
            Descriptor.from_dict(good)


@pytest.mark.parametrize("what", [None, 5, "text", b"bytes", [], [("hosts", 1)], {}, object()])
def test_what_is_no_dict_is_refused(what: Any) -> None:
    with pytest.raises(ValueError, match="no descriptor"):
        Descriptor.from_dict(what)


NUMBERS = st.one_of(
    st.integers(-3, 70000),
    st.sampled_from([1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**400]),
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
DTYPES = st.one_of(
    st.sampled_from(["<f8", "|O", "O", "f8,i4", "(2,3)f8", "V", "S0", "M8[D]", "bfloat16", "q"]),
    st.text("<>|=()[],;:.0123456789fiubcOSUVMm \n_abcdexyz", max_size=12),
)
LIKELY = st.fixed_dictionaries(
    {
        "hosts": st.one_of(st.just(["10.0.0.1"]), st.lists(st.text(max_size=9)), ANYTHING),
        "port": st.one_of(st.just(7001), NUMBERS, ANYTHING),
        "process": st.one_of(st.just("0" * 32), st.text("0123456789abcdefA", max_size=33)),
        "token": st.one_of(st.just(5), NUMBERS, ANYTHING),
        "length": st.one_of(st.integers(0, 65536), NUMBERS, ANYTHING),
        "access": st.one_of(st.sampled_from([1, 2, 3]), ANYTHING),
        "dtype": st.one_of(st.none(), DTYPES, ANYTHING),
        "shape": st.one_of(st.none(), st.lists(st.integers(0, 99), max_size=4), ANYTHING),
        "order": st.one_of(st.sampled_from(["C", "F"]), ANYTHING),
        "expires": st.one_of(st.none(), st.floats(), ANYTHING),
    }
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.one_of(LIKELY, ANYTHING))
def test_any_dict_is_a_descriptor_or_refused(what: Any) -> None:
    """And a get of it makes memory of that size, or is refused, before anything is sent."""
    try:
        one = Descriptor.from_dict(what)
    except ValueError:
        return
    assert Descriptor.from_dict(json.loads(json.dumps(one.to_dict()))).to_dict() == one.to_dict()
    if one.length > 1 << 24:
        return
    try:
        getting = memory.get(one)
    except (ValueError, PermissionError, MemoryError):
        return
    assert getting.nbytes == one.length


SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "objects": ("|O", (512,)),
    "objects within": ("(2,)O", (256,)),
    "too many": ("<f8", (513,)),
    "too few": ("<f8", (511,)),
    "overflow": ("<f8", (1 << 61, 64)),
    "large": ("V4611686018427387904", (4,)),
    "unknown": ("float9", (512,)),
    "no text": ("\ud800", (512,)),
    "of a module": ("__loader__", (512,)),
}


@pytest.mark.parametrize("what", SHAPES)
def test_an_array_that_does_not_fit_is_refused(what: str) -> None:
    dtype, shape = SHAPES[what]
    lie = Descriptor.from_dict(GOOD.to_dict() | {"dtype": dtype, "shape": list(shape)})
    with pytest.raises(ValueError, match="are no array of shape|is not known here"):
        memory.get(lie)


@pytest.mark.parametrize("length", [1 << 46, 1 << 50, (1 << 63) - 1])
def test_more_memory_than_there_is_costs_none(length: int) -> None:
    lie = Descriptor.from_dict(GOOD.to_dict() | {"length": length, "dtype": None})
    before = peak()
    with pytest.raises(MemoryError):
        memory.get(lie)
    assert peak() - before < MEMORY


RANGES = [(-1, None), (4097, None), (0, 4097), (4096, 1), (1, 4096), (0, -1), (1 << 70, None)]


@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_what_is_not_exposed_is_refused_before_anything_is_sent(
    offset: int, length: int | None
) -> None:
    with pytest.raises(ValueError, match="the memory has 4096 bytes"):
        memory.get(GOOD, offset=offset, length=length)
    writable = Descriptor.from_dict(GOOD.to_dict() | {"access": 2})
    if length is None or length > 0:
        with pytest.raises(ValueError, match="the memory has 4096 bytes"):
            memory.put(writable, bytes(4096 if length is None else length), offset=offset or 1)
    with pytest.raises(PermissionError, match="exposed for READ, not for WRITE"):
        memory.put(GOOD, b"1")


def lying(one: memory.Exposure, **how: Any) -> Descriptor:
    return Descriptor.from_dict(one.to_dict() | {"dtype": None} | how)


async def test_a_token_that_was_not_given_is_unknown() -> None:
    with memory.expose(DATA) as one:
        await is_well(one)
        conn = connection_to(one)
        with pytest.raises(RevokedError, match="the token is unknown"):
            await memory.get(lying(one, token=one.token ^ 1))
        await is_well(one)
        assert connection_to(one) is conn
        assert conn.error is None


async def test_a_longer_descriptor_than_the_exposure_gets_nothing() -> None:
    into = bytearray(1 << 20)
    with memory.expose(DATA) as one:
        for length in (len(DATA) + 1, 1 << 20, 1 << 62):
            with pytest.raises(RevokedError, match="longer than what is exposed"):
                await memory.get(lying(one, length=length), into, offset=length - 5)
        await is_well(one)
    assert not any(into)


async def test_a_descriptor_that_grants_itself_more_writes_nothing() -> None:
    own = bytearray(DATA)
    with memory.expose(own) as one:
        with pytest.raises(RevokedError):
            await memory.put(lying(one, access=3), b"overwritten")
        await is_well(one)
    assert own == DATA


async def test_another_process_has_no_such_port_or_id() -> None:
    with memory.expose(DATA) as one:
        for lie, words in (
            (lying(one, process="5" * 32), "another process listens there now"),
            (lying(one, port=1, process="6" * 32), "no process listens there"),
        ):
            with pytest.raises(RefusedError, match=words):
                await memory.get(lie)
        await is_well(one)
        assert len(current()._all) == 2, "the two ends of one connection"


async def test_a_reader_of_many_lies_keeps_nothing_of_them() -> None:
    with memory.expose(DATA) as one:
        await is_well(one)
        conn = connection_to(one)
        chosen, before = random.Random(3), 0
        for _ in range(MANY // 1000):
            lies = [lying(one, token=chosen.getrandbits(64)) for _ in range(1000)]
            got = await asyncio.gather(*map(memory.get, lies), return_exceptions=True)
            assert {type(error) for error in got} == {RevokedError}
            del got
            gc.collect()  # without a GIL it may wait until there is much more
            before = before or peak()  # a thousand at once take some memory
        assert peak() - before < MEMORY
        assert list(conn.grants) == [one.token]
        assert not conn._opening
        await is_well(one)


# ---- tokens -------------------------------------------------------------------------------------


def guess(count: int) -> None:
    table = current().table
    own = [memory.expose(DATA) for _ in range(100)]
    tokens = {one.token for one in own}
    chosen, before = random.Random(7), peak()
    opener: Any = object()
    for _ in range(count):
        token = chosen.getrandbits(64)
        assert token not in tokens
        assert table.open(token, opener) == Answer(token, 0, 0, 0, wire.Status.UNKNOWN)
    assert peak() - before < MEMORY
    assert len(table) == 100
    for one in own:
        one.close()


def test_guessed_tokens_are_unknown_and_cost_nothing() -> None:
    guess(MANY)


@pytest.mark.soak
def test_a_million_guessed_tokens_are_unknown_and_cost_nothing() -> None:
    guess(MILLION)


def test_tokens_have_64_random_bits() -> None:
    with memory.expose(DATA) as one:  # from here on it is registered
        tokens = [one.token]
        for _ in range(MANY - 1):
            with memory.expose(DATA) as other:
                tokens.append(other.token)
    assert len(set(tokens)) == MANY
    for bit in range(64):
        ones = sum(token >> bit & 1 for token in tokens)
        assert abs(ones - MANY / 2) < MANY / 20, f"bit {bit}"  # 14 sigma


async def guess_over_the_wire(ctx: Context, count: int) -> None:
    with memory.expose(DATA) as one:
        async with raw_client(ctx) as (raw, ours):
            await raw.open(one.token)
            chosen, before = random.Random(9), peak()
            for _ in range(count // wire.TOGETHER):
                tokens = [chosen.getrandbits(64) for _ in range(wire.TOGETHER)]
                unknown = [Answer(token, 0, 0, 0, wire.Status.UNKNOWN) for token in tokens]
                assert await raw.open(*tokens) == unknown
            assert peak() - before < MEMORY
            assert list(ours.windows) == [one.token]
            assert ours.error is None
        await is_well(one)


async def test_tokens_guessed_by_a_peer_cost_nothing(ctx: Context) -> None:
    await guess_over_the_wire(ctx, MANY)


@pytest.mark.soak
async def test_a_million_tokens_guessed_by_a_peer_cost_nothing(ctx: Context) -> None:
    await guess_over_the_wire(ctx, MILLION)


async def test_a_peer_has_a_bounded_number_of_windows(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not current().device().has_windows:
        pytest.skip("this device has no windows")
    monkeypatch.setattr(_exposure, "MAX_WINDOWS", 3)
    own = [memory.expose(DATA) for _ in range(4)]
    for one in own[:3]:
        await is_well(one)
    with pytest.raises(TransferError, match="has no room for another window"):
        await is_well(own[3])
    own[0].close()
    await is_well(own[3])
    async with raw_client(ctx) as (raw, ours):
        statuses = [answer.status for answer in await raw.open(*(one.token for one in own))]
        assert statuses == [wire.Status.UNKNOWN] + [wire.Status.GRANTED] * 3
        assert len(ours.windows) == 3
        again = await raw.open(*[own[1].token] * wire.TOGETHER)
        assert len({answer.rkey for answer in again}) == 1, "the window is the same"
        assert len(ours.windows) == 3


# ---- frames of a peer that connects -------------------------------------------------------------


def header(kind: int, count: int = 0, body: bytes = b"") -> bytes:
    return wire._HEADER.pack(kind, count) + body


VIOLATIONS = {
    "empty": (b"", "a frame of 0 bytes"),
    "cut header": (b"\1\0\1\0\0\0\0", "a frame of 7 bytes"),
    "kind 0": (header(0), "a frame of kind 0"),
    "kind 8": (header(8), "a frame of kind 8"),
    "OPEN of nothing": (header(1), "a frame of 8 bytes with 0 entries"),
    "OPEN of 17": (header(1, 17, bytes(17 * 8)), "a frame of 144 bytes with 17 entries"),
    "OPEN of 65535": (header(1, 65535, bytes(8)), "a frame of 16 bytes with 65535 entries"),
    "cut OPEN": (header(1, 2, bytes(15)), "a frame of 23 bytes with 2 entries"),
    "long OPEN": (header(1, 1, bytes(9)), "a frame of 17 bytes with 1 entries"),
    "REVOKED of nothing": (header(3), "a frame of 8 bytes with 0 entries"),
    "GRANT of nothing": (header(2), "a frame of 8 bytes with 0 entries"),
    "GRANT unasked": (wire.grant_frame([Answer(1, 4096, 1, 1, 0)]), "token that was not asked for"),
    "SEEN unasked": (header(4), "SEEN without a question"),
    "STAY unasked": (header(6), "STAY without a question"),
    "BYE unasked": (header(7), "BYE without a question"),
    "too long": (bytes(wire.FRAME_SIZE + 1), "failed: LOC_"),
}


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_a_frame_that_breaks_the_protocol_ends_the_connection(
    ctx: Context, what: str
) -> None:
    frame, words = VIOLATIONS[what]
    with memory.expose(DATA) as one:
        await is_well(one)
        async with raw_client(ctx) as (raw, ours):
            (granted,) = await raw.open(one.token)
            assert await raw.read(granted.addr, 100, granted.rkey) == DATA[:100]
            with contextlib.suppress(CompletionError):  # our end may hang up before its answer
                await raw.send(frame)
            await eventually(lambda: ours.error is not None)
            assert words in str(ours.error)
            await eventually(ours.ended.done)
            assert not ours.windows
            assert raw.conn is not None
            await raw.conn.wait_closed(DEADLINE)
            with pytest.raises((CompletionError, VerbsError)):
                await raw.read(granted.addr, 100, granted.rkey)
        await is_well(one)


async def test_any_frame_is_answered_or_ends_the_connection(ctx: Context) -> None:
    """Noise, and good frames with some bytes changed."""
    chosen = random.Random(11)
    lost = 0
    with memory.expose(DATA) as one:
        for _ in range(60):
            async with raw_client(ctx) as (raw, ours):
                for _ in range(20):
                    frame = bytearray(
                        wire.tokens_frame(Kind(chosen.choice([1, 1, 3, 5])), [one.token])
                    )
                    for _ in range(chosen.randrange(3)):
                        frame[chosen.randrange(len(frame))] = chosen.randrange(256)
                    if chosen.random() < 0.1:
                        del frame[chosen.randrange(len(frame)) :]
                    try:
                        await raw.send(bytes(frame))
                    except (CompletionError, VerbsError):
                        break
                    if ours.error is not None:
                        break
                lost += ours.error is not None
        await is_well(one)
        await eventually(lambda: len(current()._all) == 2)
    assert lost > 20


async def test_a_flood_of_opens_whose_answers_nobody_takes_ends_the_connection(
    ctx: Context,
) -> None:
    """The peer has posted no receives. The frames, binds and windows for it are bounded."""
    own = [memory.expose(DATA) for _ in range(wire.TOGETHER)]
    frame = wire.tokens_frame(Kind.OPEN, [one.token for one in own])
    async with raw_client(ctx, receives=0) as (raw, ours):
        sent = 0
        with pytest.raises((CompletionError, VerbsError)):
            while True:
                await raw.send(frame)
                sent += 1
        await eventually(lambda: ours.error is not None)
        assert "the device completes no sends" in str(ours.error)
        assert FRAMES <= sent <= 2 * FRAMES + wire.RECEIVES
        await eventually(ours.ended.done)
        assert not ours.windows
    await is_well(own[0])
    for one in own:
        one.close()


async def test_a_peer_that_opens_and_never_says_that_it_has_seen_the_end(ctx: Context) -> None:
    """Of what it has opened nothing stays but the tokens of which it was not told yet."""
    with memory.expose(DATA) as other:
        async with raw_client(ctx) as (raw, ours):
            for _ in range(100):
                with memory.expose(DATA) as one:
                    (granted,) = await raw.open(one.token)
                    assert granted.status == wire.Status.GRANTED
            await eventually(lambda: ours._revokeds == wire.REVOKEDS)
            told = []
            for _ in range(wire.REVOKEDS - len(raw.revoked)):
                told += wire.parse_tokens(memoryview(await raw.recv_kind(Kind.REVOKED)))
            told += [token for tokens in raw.revoked for token in tokens]
            await eventually(lambda: len(told) + len(ours._revoked) == 100)
            assert not ours.windows
            assert ours._revokeds == wire.REVOKEDS
            assert ours.error is None
        await is_well(other)


HELLOS: dict[str, Callable[[bytes, bytes], tuple[bytes, str]]] = {
    "none": lambda own, peer: (b"", "not a process of cqnotify.memory"),
    "cut": lambda own, peer: (wire.hello(own, peer)[:-1] + b"\xff", "another process listens"),
    "magic": lambda own, peer: (b"CQNM" + wire.hello(own, peer)[4:], "not a process"),
    "version": lambda own, peer: (b"cqnM\2\0" + wire.hello(own, peer)[6:], "has version 2"),
    "id": lambda own, peer: (wire.hello(own, bytes(16)), "another process listens there now"),
}


@pytest.mark.parametrize("what", HELLOS)
async def test_a_stranger_is_refused_and_told_why(ctx: Context, what: str) -> None:
    with memory.expose(DATA) as one:
        hello, words = HELLOS[what](bytes(range(16)), current().id)
        with pytest.raises(cm.RejectedError) as e:
            async with raw_client(ctx, hello):
                pass
        assert words in e.value.private_data.rstrip(b"\0").decode()
        assert not current()._all
        await is_well(one)


# ---- keys ---------------------------------------------------------------------------------------

# What is refused is flushed, if our end hears of it and hangs up before the device has answered.
REFUSED = (WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR)


async def refused(access: Awaitable[object]) -> None:
    with pytest.raises(CompletionError) as e:
        await access
    assert e.value.status in REFUSED


async def test_a_key_is_good_for_the_connection_that_it_was_given_to(ctx: Context) -> None:
    if not current().device().has_windows:
        pytest.skip("iWARP: keys are good for all")
    with memory.expose(DATA) as one:
        async with raw_client(ctx) as (good, ours), raw_client(ctx) as (thief, its):
            (granted,) = await good.open(one.token)
            await refused(thief.read(granted.addr, 100, granted.rkey))
            await eventually(its.ended.done)
            assert await good.read(granted.addr, 100, granted.rkey) == DATA[:100]
            assert ours.error is None
        await is_well(one)


@pytest.mark.parametrize("what", ["write", "MR", "frames", "behind", "before"])
async def test_a_peer_that_reaches_for_more_is_lost(ctx: Context, what: str) -> None:
    own = bytearray(DATA)
    with memory.expose(own) as one:
        async with raw_client(ctx) as (raw, ours):
            (granted,) = await raw.open(one.token)
            registration = next(iter(one._registrations.values()))
            frames = ours._mr
            await refused(
                {
                    "write": lambda: raw.write(granted.addr, b"x", granted.rkey),
                    "MR": lambda: raw.read(granted.addr, 100, registration.mr.rkey),
                    "frames": lambda: raw.read(frames.addr, 100, frames.rkey),
                    "behind": lambda: raw.read(granted.addr + len(DATA) - 99, 100, granted.rkey),
                    "before": lambda: raw.read(granted.addr - 1, 100, granted.rkey),
                }[what]()
            )
            await eventually(ours.ended.done)
        await is_well(one)
    assert own == DATA


async def test_memory_exposed_for_writing_only_cannot_be_read(ctx: Context) -> None:
    own = bytearray(DATA)
    with memory.expose(own, WRITE) as one:
        async with raw_client(ctx) as (raw, _):
            (granted,) = await raw.open(one.token)
            await raw.write(granted.addr, b"written", granted.rkey)
            await refused(raw.read(granted.addr, 7, granted.rkey))
    assert own[:7] == b"written"


@pytest.mark.parametrize("at", ["now", "later"])
async def test_the_key_of_what_was_revoked_is_good_for_nothing(ctx: Context, at: str) -> None:
    own = bytearray(DATA)
    with memory.expose(own, READ | WRITE) as one, memory.expose(DATA) as other:
        async with raw_client(ctx) as (raw, ours):
            (granted,) = await raw.open(one.token)
            await raw.write(granted.addr, b"x", granted.rkey)
            one.close()
            own[:] = DATA
            if at == "later":  # when the peer was told
                assert wire.parse_tokens(memoryview(await raw.recv())) == [one.token]
            await refused(raw.write(granted.addr, b"y", granted.rkey))
            await eventually(ours.ended.done)
        assert own == DATA
        await is_well(other)


async def test_the_keys_end_with_the_connection(ctx: Context) -> None:
    """A peer that connects again has to open again."""
    with memory.expose(DATA) as one:
        async with raw_client(ctx) as (raw, ours):
            (granted,) = await raw.open(one.token)
        await eventually(ours.ended.done)
        async with raw_client(ctx) as (raw, _):
            await refused(raw.read(granted.addr, 100, granted.rkey))


async def test_on_soft_roce_a_window_does_not_end_before_its_region(ctx: Context) -> None:
    """Soft-RoCE looks at the bounds of the region, against the specification. So each exposure has
    a region that is as small as what it exposes, unless the program makes it itself; behind that
    region nothing is reached there either."""
    if not is_rxe(ctx):
        pytest.skip("not Soft-RoCE")
    own = bytearray(DATA)
    with memory.expose(memoryview(own)[4096:8192]) as one:
        async with raw_client(ctx) as (raw, ours):
            (granted,) = await raw.open(one.token)
            assert granted.length == 4096
            registration = next(iter(one._registrations.values()))
            assert registration.mr.length == 4096
            assert await raw.read(granted.addr, 4096, granted.rkey) == DATA[4096:8192]
            await refused(raw.read(granted.addr + 4000, 97, granted.rkey))
            await eventually(ours.ended.done)


# ---- a process that exposes, and lies ----------------------------------------------------------

SAYS: dict[str, tuple[Callable[[Raw], Answer], type[Exception], str]] = {
    "unknown": (lambda raw: raw.answer(1, status=1), RevokedError, "the token is unknown"),
    "no room": (lambda raw: raw.answer(1, status=2), TransferError, "has no room"),
    "what": (lambda raw: raw.answer(1, status=77), RevokedError, "the memory is not exposed"),
    "short": (lambda raw: raw.answer(1, length=SIZE - 1), RevokedError, "longer than"),
    "end": (lambda raw: raw.answer(1, addr=(1 << 64) - 9), ConnectionLostError, "beyond the end"),
    "long": (lambda raw: raw.answer(1, length=(1 << 64) - 9), ConnectionLostError, "beyond the"),
    "key": (lambda raw: raw.answer(1, rkey=raw.mr.rkey ^ 0xFF), RevokedError, "not exposed any"),
    "address": (lambda raw: raw.answer(1, addr=4096), RevokedError, "not exposed any more"),
    "token": (lambda raw: raw.answer(2), ConnectionLostError, "a token that was not asked for"),
}


@pytest.mark.parametrize("what", SAYS)
async def test_a_grant_that_lies_fails_the_get(ctx: Context, what: str) -> None:
    answer, error, words = SAYS[what]
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        raw = await server.accept()
        assert await raw.asked() == [1]
        assert not getting.done()
        # Our end may hang up before its answer; and the device of the raw one may report the wrong
        # key (QP_ACCESS_ERR, in Soft-RoCE since Linux 7.1) before it completes the send.
        with contextlib.suppress(CompletionError, AsyncEventError):
            await raw.grant(answer(raw))
        with pytest.raises(error, match=words) as e:
            await getting
        assert type(e.value) is error


async def test_what_a_process_grants_is_read(ctx: Context) -> None:
    """The raw process is an honest one, where it wants to be."""
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        raw = await server.accept()
        raw.mr.write(DATA[:SIZE], AT + SIZE)
        await raw.asked()
        await raw.grant(raw.answer(1))
        assert bytes(await getting) == DATA[:SIZE]
        await raw.send(wire.tokens_frame(Kind.REVOKED, [1, 2, 3]))
        assert wire.parse_kind(memoryview(await raw.recv())) is Kind.SEEN
        getting = await start(memory.get(server.descriptor()))
        assert await raw.asked() == [1], "opened once more"
        await raw.grant(raw.answer(1))
        await getting
        await raw.grant(raw.answer(1))
        await eventually(lambda: connection_to_all_ended())


def connection_to_all_ended() -> bool:
    return not current()._all


async def test_a_process_that_never_answers_keeps_nobody_for_longer_than_the_timeout(
    ctx: Context,
) -> None:
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        raw = await server.accept()
        await raw.asked()
        with pytest.raises(TimeoutError, match="0 of 4096 bytes were transferred in 0.2 s"):
            await memory.get(server.descriptor(), timeout=0.2)
        assert not getting.done()
        await cancel(getting)
        await raw.grant(raw.answer(1))  # too late, and no harm
        assert bytes(await memory.get(server.descriptor(), length=1)) == b"\0"


async def test_a_process_that_hangs_up_before_it_answers_ends_the_get(ctx: Context) -> None:
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        raw = await server.accept()
        await raw.asked()
        assert raw.conn is not None
        raw.conn.close()
        await (await server.request()).reject(b"")  # of another attempt
        with pytest.raises(ConnectionLostError, match="the connection has ended"):
            await getting


async def test_a_process_that_answers_as_another_is_refused(ctx: Context) -> None:
    async with raw_server(ctx) as server:
        for hello, words in (
            (wire.hello(bytes(16), current().id), "another process listens there"),
            (b"", "not a process of cqnotify.memory"),
            (b"cqnM\3\0" + bytes(34), "version 3"),
        ):
            getting = await start(memory.get(server.descriptor()))
            raw = await server.accept(hello)
            with pytest.raises((RefusedError, ConnectionLostError), match=words):
                await getting
            assert raw.conn is not None
            await raw.conn.wait_closed(DEADLINE)
        await eventually(connection_to_all_ended)


async def test_the_words_of_a_refusal_do_no_harm(ctx: Context) -> None:
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        await (await server.request()).reject(b"no\x1b[31m\n\xff!")
        with pytest.raises(RefusedError) as e:
            await getting
        assert str(e.value).isprintable()
        assert "no?[31m??!" in str(e.value).replace("\N{REPLACEMENT CHARACTER}", "?")


async def test_a_process_that_says_that_we_connect_at_once_and_does_not_is_given_up(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "CONNECT_TIMEOUT", 0.1)
    monkeypatch.setattr(process_module, "CROSSED_TIMEOUT", 0.1)
    async with raw_server(ctx) as server:
        getting = await start(memory.get(server.descriptor()))
        await (await server.request()).reject(process_module.CROSSED)
        with pytest.raises(ConnectionLostError):
            await getting
        assert not current()._making


async def test_peers_that_begin_to_connect_and_go_no_further_are_bounded(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "MAX_HALF_OPEN", 3)
    with memory.expose(DATA) as one:
        process = current()
        raws = [Raw(ctx) for _ in range(5)]
        held: list[Any] = []
        accept = cm.Request.accept

        async def never(self: cm.Request, *args: Any, **kwargs: Any) -> Any:
            held.append(self)
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(cm.Request, "accept", never)
            hello = [wire.hello(raw.id, process.id) for raw in raws]
            where = (process.table.hosts[0], process.table.port)
            asking = [
                await start(cm.connect(raw.qp, *where, private_data=h))
                for raw, h in zip(raws[:3], hello, strict=False)
            ]
            await eventually(lambda: len(held) == 3)
            assert process._half_open == len(process._all) == 3
            with pytest.raises(cm.RejectedError) as e:
                await cm.connect(raws[3].qp, *where, private_data=hello[3])
            assert e.value.private_data.startswith(b"too many connections")
        assert cm.Request.accept is accept
        for one_asking in asking:
            await cancel(one_asking)
        for raw in raws:
            await raw.close()
        assert one.length == len(DATA)
    memory.close()
    assert process._half_open == 0

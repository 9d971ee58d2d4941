# SPDX-License-Identifier: MIT
"""The wire format, without a device: what is packed is read back, and whatever else comes is read
or refused, never more than that."""

from __future__ import annotations

import os
import random
import resource
import struct

import pytest

from cqnotify import _core
from cqnotify.messages import ConnectionOptions, ProtocolError, RefusedError
from cqnotify.messages import _wire as wire
from cqnotify.messages._wire import Header, Hello, Kind, Limits, Remote

LIMITS = Limits(max_frames=50, max_message=3000)
FRAMES = 30_000
HOSTILE_FRAMES = 1_000_000
MEMORY = 16 << 20  # bytes by which the process may grow; one such lie would be larger


def test_a_hello_is_read_back_with_any_padding() -> None:
    options = ConnectionOptions(credits=3, eager=4096, max_frames=7, max_message=12345678901)
    for padding in (0, 5, 172):
        hello = wire.parse_hello(wire.hello(options) + bytes(padding))
        assert hello == Hello(3, 4096, 7, 12345678901)
    assert len(wire.hello(options)) <= 56, "the private data of a request"


def test_a_hello_that_is_cut_is_refused() -> None:
    whole = wire.hello(ConnectionOptions())
    for length in range(len(whole)):
        with pytest.raises(RefusedError, match="does not speak the protocol|is too short"):
            wire.parse_hello(whole[:length])


def test_words_of_a_refusal_fit_and_do_no_harm() -> None:
    for words in ("", "why", "x" * 500, "\x1b[31m\nü"):
        data = wire.refusal(words)
        assert len(data) <= 148, "the private data of a rejection"
        read = wire.parse_refusal(data.ljust(148, b"\0"))
        assert read is not None
        assert read.isprintable()
        assert read == "".join(c if " " <= c <= "~" else "?" for c in words)[: len(read)]
    assert wire.parse_refusal(b"") is None
    assert wire.parse_refusal(bytes(148)) is None
    assert wire.parse_refusal(wire.refusal("all")[:-1] + b"\xff") == "al?"


def packed(kind: Kind, size: int = wire.HEADER_SIZE, flags: int = 0) -> bytearray:
    frame = bytearray(size)
    wire.put_header(memoryview(frame), Header(kind, flags, 5 << 32 | 7, 9))
    return frame


def data_frame(frames: list[bytes]) -> bytearray:
    """As csrc/messages/send.c writes it."""
    frame = packed(Kind.DATA)
    frame += struct.pack(f"<{1 + len(frames)}I", len(frames), *map(len, frames))
    return frame + b"".join(frames)


def offer_frame(remotes: list[Remote], small: list[bytes]) -> bytearray:
    length = len(remotes) * wire.ENTRY_SIZE + sum(map(len, small))
    frame = packed(Kind.OFFER, wire.OFFER_SIZE + length)
    view = memoryview(frame)
    wire.put_offer(view, len(remotes), Remote(length, 0, 0))
    wire.put_body(view, wire.OFFER_SIZE, remotes, [memoryview(one) for one in small])
    return frame


def elsewhere_frame(frames: int, body: Remote) -> bytearray:
    frame = packed(Kind.OFFER, wire.OFFER_SIZE)
    wire.put_offer(memoryview(frame), frames, body)
    return frame


@pytest.mark.parametrize("kind", [Kind.ACK, Kind.CLOSE])
def test_a_header_is_read_back(kind: Kind) -> None:
    assert wire.parse_header(memoryview(packed(kind))) == Header(kind, 0, 7, 9)


@pytest.mark.parametrize("frames", [[], [b""], [b"1"], [b"", b"23", b"", b"456"], [b"x"] * 50])
def test_a_message_is_read_back(frames: list[bytes]) -> None:
    frame = memoryview(data_frame(frames))
    bounds = wire.parse_data(frame, LIMITS)
    assert [bytes(frame[a:b]) for a, b in bounds] == frames


def test_an_offer_is_read_back() -> None:
    remotes = [Remote(3, 0, 0), Remote(1000, 4096, 77), Remote(0, 0, 0), Remote(1, 1 << 63, 1)]
    frame = memoryview(offer_frame(remotes, [b"123", b""]))
    offer = wire.parse_offer(frame, LIMITS)
    assert offer == (4, None)
    body = frame[wire.OFFER_SIZE :]
    pieces = wire.parse_body(body, offer.frames, LIMITS)
    assert [piece.remote for piece in pieces] == [None, remotes[1], None, remotes[3]]
    assert bytes(body[pieces[0].start :][: pieces[0].length]) == b"123"
    remote = Remote(1020, 4096, 5)
    assert wire.parse_offer(memoryview(elsewhere_frame(50, remote)), LIMITS) == (50, remote)


def test_a_small_frame_of_an_offer_follows_its_table() -> None:
    """Each that does not is read into pages of its own, and an honest sender leaves none there."""
    limits = LIMITS._replace(least_remote=256)
    for length, fits in ((255, False), (1, False), (256, True)):
        remotes = [Remote(600, 4096, 1), Remote(length, 4096, 1), Remote(3, 0, 0)]
        body = memoryview(offer_frame(remotes, [b"123"]))[wire.OFFER_SIZE :]
        if fits:
            assert len(wire.parse_body(body, 3, limits)) == 3
        else:
            with pytest.raises(ProtocolError, match=f"frame of {length} bytes does not follow"):
                wire.parse_body(body, 3, limits)


def test_words_of_an_error_do_no_harm() -> None:
    frame = packed(Kind.ERROR, 30)
    wire.put_error_text(memoryview(frame), b"no\x1b\xff")
    assert wire.parse_error(memoryview(frame)).startswith("no??")


# ---- hostile frames -------------------------------------------------------------------------


def read(frame: memoryview) -> None:
    """As the receiver does; what it takes must lie within the frame and the limits."""
    header = wire.parse_header(frame)
    if header.kind == Kind.DATA:
        bounds = wire.parse_data(frame, LIMITS)
        assert len(bounds) <= LIMITS.max_frames
        at = 0
        for start, end in bounds:
            assert at <= start <= end <= len(frame)
            at = end
        assert sum(end - start for start, end in bounds) <= LIMITS.max_message
    elif header.kind == Kind.OFFER:
        offer = wire.parse_offer(frame, LIMITS)
        assert offer.frames <= LIMITS.max_frames
        if offer.body is None:
            body = frame[wire.OFFER_SIZE :]
        else:
            check(offer.body)
            most = LIMITS.max_frames * wire.ENTRY_SIZE + LIMITS.max_message
            assert offer.frames * wire.ENTRY_SIZE <= offer.body.length <= most
            body = memoryview(bytes(frame[: offer.body.length]).ljust(offer.body.length, b"\1"))
        pieces = wire.parse_body(body, offer.frames, LIMITS)
        assert sum(piece.length for piece in pieces) <= LIMITS.max_message
        for piece in pieces:
            if piece.remote is None:
                assert 0 <= piece.start <= piece.start + piece.length <= len(body)
            else:
                check(piece.remote)
                assert piece.remote.length == piece.length
    elif header.kind == Kind.ERROR:
        assert wire.parse_error(frame).isprintable()


def check(remote: Remote) -> None:
    assert 0 < remote.addr <= remote.addr + remote.length <= 1 << 64
    assert remote.length > 0


NUMBERS = (0, 1, 4, 5, 19, 20, 21, 50, 51, 3000, 3001, 0xFFFF, 0xFFFFFFFF, (1 << 63), (1 << 64) - 1)


def hostile(chosen: random.Random) -> bytearray:
    """Good ones with some numbers changed, cut, lengthened; and noise."""
    what = chosen.randrange(5)
    if what == 0:
        frame = data_frame(
            [chosen.randbytes(chosen.randrange(9)) for _ in range(chosen.randrange(9))]
        )
    elif what == 1:
        remotes = [
            Remote(chosen.choice(NUMBERS), chosen.choice(NUMBERS), 7)
            for _ in range(chosen.randrange(5))
        ]
        small = sum(r.length for r in remotes if r.addr == 0 and r.length < 99)
        frame = offer_frame(remotes, [bytes(small)])
    elif what == 2:
        body = Remote(chosen.choice(NUMBERS), chosen.choice(NUMBERS), 7)
        frame = elsewhere_frame(chosen.choice((0, 1, 2, 50, 51, 0xFFFFFFFF)), body)
    elif what == 3:
        frame = packed(chosen.choice(list(Kind)), chosen.randrange(12, 40))
    else:
        frame = bytearray(chosen.randbytes(chosen.randrange(60)))
    for _ in range(chosen.choice((0, 0, 1, 1, 2, 5))):
        if not frame:
            break
        at = chosen.randrange(len(frame))
        if chosen.random() < 0.5:
            frame[at] = chosen.randrange(256)
        else:
            number = chosen.choice(NUMBERS).to_bytes(8, "little")
            frame[at : at + 8] = number[: len(frame) - at]
    cut = chosen.randrange(6)
    if cut == 0:
        del frame[chosen.randrange(len(frame) + 1) :]
    elif cut == 1:
        frame += chosen.randbytes(chosen.randrange(30))
    return frame


def peak() -> int:
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def barrage(count: int, seed: int) -> None:
    chosen = random.Random(seed)
    outcomes = {"taken": 0, "refused": 0}
    before = peak()
    for _ in range(count):
        frame = hostile(chosen)
        try:
            read(memoryview(frame))
        except ProtocolError:
            outcomes["refused"] += 1
        else:
            outcomes["taken"] += 1
    if "ASAN_OPTIONS" not in os.environ:  # which keeps what is freed for a while
        assert peak() - before < MEMORY
    assert min(outcomes.values()) > count // 20, outcomes


def test_hostile_frames_are_read_or_refused() -> None:
    barrage(FRAMES, 20)


@pytest.mark.soak
def test_a_million_hostile_frames_are_read_or_refused() -> None:
    barrage(HOSTILE_FRAMES, 22)


def test_hostile_hellos_are_read_or_refused() -> None:
    chosen = random.Random(5)
    for _ in range(FRAMES):
        data = bytearray(wire.hello(ConnectionOptions()))
        for _ in range(chosen.randrange(4)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        data = data[: chosen.randrange(len(data) + 20)]
        try:
            hello = wire.parse_hello(bytes(data))
        except RefusedError as e:
            wire.refusal(str(e))
        else:
            assert hello.credits > 0
            assert hello.eager >= 256
        wire.parse_refusal(bytes(data))


LIES: list[tuple[str, tuple[object, ...]]] = [
    ("wire_parse_header", (1,)),
    ("wire_parse_data", (b"", 1)),
    ("wire_parse_data", (b"", (1, 2))),
    ("wire_parse_offer", (b"", 1)),
    ("wire_parse_offer", (b"", ("1", 2, 3))),
    ("wire_parse_body", (b"", "1", (1, 2, 3))),
    ("wire_parse_body", (b"", 1, (1, -2, 3))),
    ("wire_put_header", (b"", 1, 1, 1, 1)),
    ("wire_put_header", (bytearray(3), 1, 1, 1, 1)),
    ("wire_put_offer", (bytearray(99), 1, 1)),
    ("wire_put_offer", (bytearray(99), 1, (1, 2, 1 << 32))),
    ("wire_put_offer", (bytearray(3), 1, (1, 2, 3))),
    ("wire_put_body", (bytearray(99), 0, 1)),
    ("wire_put_body", (bytearray(99), 0, (1,))),
    ("wire_put_body", (bytearray(99), 0, ((1, 2),))),
    ("wire_put_body", (bytearray(99), 90, ((1, 2, 3),))),
    ("wire_set_error", (1,)),
]


@pytest.mark.parametrize(("function", "args"), LIES)
def test_the_core_refuses_what_it_cannot_pack_or_read(
    function: str, args: tuple[object, ...]
) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        getattr(_core, function)(*args)


def test_a_ring_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="a ring has a size"):
        _core.MessageRing(0)
    with pytest.raises(TypeError):
        _core.MessageRing("1")  # type: ignore[arg-type]
    ring = _core.MessageRing(64)
    assert ring.allocate(32) == 0
    with pytest.raises(ValueError, match="that is longer"):
        ring.shorten(8, 16)
    with pytest.raises(TypeError):
        ring.shorten("8", 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mark"):
        ring.free_to(ring.mark + 1)
    for bad in (-1, "1"):
        with pytest.raises((ValueError, TypeError)):
            ring.allocate(bad)  # type: ignore[arg-type]

# SPDX-License-Identifier: MIT
"""The bytes that the two ends exchange.

The hellos are taken apart here, and the frames by csrc/messages/wire.c; this makes named tuples of
its numbers. No other code takes a peer's bytes apart. Nothing here knows of devices, and nothing
allocates by what a peer says before it was compared with the limits. docs/internals.md shows the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from .. import _core
from .._printable import printable
from ._errors import ProtocolError, RefusedError
from ._options import LEAST_EAGER, ConnectionOptions

MAGIC: Final = b"CQNM"
VERSION: Final = 2

# ---- private data of the connection's requests and answers ------------------------------------

_KIND: Final = struct.Struct("<4sH")  # magic, version
_HELLO: Final = struct.Struct("<4sHHIIQ")  # and credits, eager, max_frames, max_message
_REFUSAL: Final = struct.Struct("<4sHB")  # and the length of the reason
LONGEST_REFUSAL: Final = 148 - _REFUSAL.size


class Hello(NamedTuple):
    """What one end tells the other of itself."""

    credits: int
    eager: int
    max_frames: int
    max_message: int


def hello(options: ConnectionOptions) -> bytes:
    mine = (options.credits, options.eager, options.max_frames, options.max_message)
    return _HELLO.pack(MAGIC, VERSION, *mine)


def parse_hello(data: bytes) -> Hello:
    """Raises RefusedError, with a text for the users of both ends."""
    if len(data) < _KIND.size or data[: len(MAGIC)] != MAGIC:
        raise RefusedError("the peer does not speak the protocol of cqnotify.messages")
    version = _KIND.unpack_from(data)[1]
    if version != VERSION:
        raise RefusedError(f"one end has version {VERSION} of the protocol, the other {version}")
    if len(data) < _HELLO.size:
        raise RefusedError(f"a hello of {len(data)} bytes is too short")
    _, _, credits, eager, max_frames, max_message = _HELLO.unpack_from(data)
    if credits < 1 or eager < LEAST_EAGER or max_frames < 1:
        raise RefusedError(
            f"a hello with {credits} credits of {eager} bytes, {max_frames} frames: too few"
        )
    return Hello(credits, eager, max_frames, max_message)


def refusal(reason: str) -> bytes:
    """For the private data of a rejection."""
    text = reason.encode("ascii", "replace")[:LONGEST_REFUSAL]
    return _REFUSAL.pack(MAGIC, VERSION, len(text)) + text


def parse_refusal(data: bytes) -> str | None:
    """The reason of a rejection; None if it is not one of this protocol."""
    if len(data) < _REFUSAL.size or data[: len(MAGIC)] != MAGIC:
        return None
    length = _REFUSAL.unpack_from(data)[2]
    return printable(data[_REFUSAL.size : _REFUSAL.size + length])


# ---- frames -----------------------------------------------------------------------------------


class Kind(IntEnum):
    DATA = 1  # a message
    OFFER = 2  # a message that the receiver reads
    ACK = 3  # only the counters of the header
    CLOSE = 4  # the last frame: everything that the sender sent was received
    ERROR = 5  # why the sender closes the connection


# Flags.
LAST: Final = 1  # of a message: it took the last credit
CLOSING: Final = 2  # of an ACK: the sender receives no more, and waits for its own to be received

# Each message looks at these, and an enumeration's attributes are slow.
DATA: Final = Kind.DATA
OFFER: Final = Kind.OFFER
ACK: Final = Kind.ACK
CLOSE: Final = Kind.CLOSE
_KINDS: Final = {int(kind): kind for kind in Kind}

HEADER_SIZE: Final = struct.calcsize("<BBHII")  # kind, flags, 0, credits_returned, offers_read
OFFER_SIZE: Final = HEADER_SIZE + struct.calcsize("<IQQI")  # frames; length, address, rkey
ENTRY_SIZE: Final = struct.calcsize("<QQI")  # length, address and rkey of a frame
COUNT_SIZE: Final = 4
MASK: Final = 0xFFFFFFFF

_core.wire_set_error(ProtocolError)


class Header(NamedTuple):
    """What each frame begins with.

    credits_returned: how many messages of the peer the program has received, modulo 2**32. Each
        returns a credit.
    offers_read: how many of its offers were read, modulo 2**32.
    """

    kind: Kind
    flags: int
    credits_returned: int
    offers_read: int


class Limits(NamedTuple):
    """The largest message that this end receives, as its hello has said.

    least_remote: the smallest frame that an offer leaves in the peer's memory. Each such frame is
        read into pages of its own.
    """

    max_frames: int
    max_message: int
    least_remote: int = 0


class Remote(NamedTuple):
    """Memory of the peer, which it has granted."""

    length: int
    addr: int
    rkey: int


class Offer(NamedTuple):
    """An offered message. Its body has the table of its frames and the bytes of the small ones.

    body: where it is in the peer's memory; None if it follows the offer itself.
    """

    frames: int
    body: Remote | None


class Piece(NamedTuple):
    """A frame of an offer: `length` bytes at `start` in the body, or in the peer's memory."""

    length: int
    start: int
    remote: Remote | None


def put_header(into: memoryview, header: Header) -> None:
    kind, flags, credits_returned, offers_read = header
    _core.wire_put_header(into, kind, flags, credits_returned & MASK, offers_read & MASK)


def parse_header(frame: memoryview) -> Header:
    kind, flags, credits_returned, offers_read = _core.wire_parse_header(frame)
    return Header(_KINDS[kind], flags, credits_returned, offers_read)


def data_size(frames: int, nbytes: int) -> int:
    return HEADER_SIZE + COUNT_SIZE * (1 + frames) + nbytes


def parse_data(frame: memoryview, limits: Limits) -> list[tuple[int, int]]:
    """Where the frames of the message begin and end."""
    return _core.wire_parse_data(frame, limits)


def put_offer(into: memoryview, frames: int, body: Remote) -> None:
    """An offer, behind the header; a body at address 0 follows it."""
    _core.wire_put_offer(into, frames, body)


def put_body(into: memoryview, at: int, remotes: Sequence[Remote], views: list[memoryview]) -> None:
    """Put the table of a message's frames; those at address 0 are `views`, which follow."""
    _core.wire_put_body(into, at, tuple(remotes))
    at += ENTRY_SIZE * len(remotes)
    for view in views:
        end = at + view.nbytes
        into[at:end] = view
        at = end


def parse_offer(frame: memoryview, limits: Limits) -> Offer:
    frames, body = _core.wire_parse_offer(frame, limits)
    return Offer(frames, Remote(*body) if body[1] else None)


def parse_body(body: memoryview, count: int, limits: Limits) -> list[Piece]:
    """The frames of an offer."""
    at = count * ENTRY_SIZE
    pieces: list[Piece] = []
    for length, addr, rkey in _core.wire_parse_body(body, count, limits):
        if addr == 0:
            pieces.append(Piece(length, at, None))
            at += length
        else:
            pieces.append(Piece(length, 0, Remote(length, addr, rkey)))
    return pieces


def error_text(text: str) -> bytes:
    """What an ERROR says; it fits into the smallest frame of all."""
    return text.encode("ascii", "replace")[: LEAST_EAGER - HEADER_SIZE]


def put_error_text(into: memoryview, text: bytes) -> None:
    into[HEADER_SIZE : HEADER_SIZE + len(text)] = text


def parse_error(frame: memoryview) -> str:
    return printable(bytes(frame[HEADER_SIZE:]))

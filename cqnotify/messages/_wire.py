# SPDX-License-Identifier: MIT
"""The bytes that the two ends exchange, and the only code that takes a peer's bytes apart.

Nothing here knows of devices, and nothing allocates by what a peer says before it was compared with
the limits. docs/internals.md shows the format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

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


def printable(text: bytes) -> str:
    """Text of a peer, which end up in messages and logs."""
    return "".join(chr(c) if 32 <= c < 127 else "?" for c in text)


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
MESSAGES: Final = (DATA, OFFER)
_BARE: Final = (ACK, CLOSE)
_KINDS: Final = {int(kind): kind for kind in Kind}
_FLAGS: Final = {DATA: LAST, OFFER: LAST, ACK: CLOSING, CLOSE: 0, Kind.ERROR: 0}

_HEADER: Final = struct.Struct("<BBHII")  # kind, flags, 0, credits_returned, offers_read
_COUNT: Final = struct.Struct("<I")
_OFFER: Final = struct.Struct("<IQQI")  # number of frames; length, address and rkey of the body
_ENTRY: Final = struct.Struct("<QQI")  # length, address and rkey of a frame
HEADER_SIZE: Final = _HEADER.size
OFFER_SIZE: Final = _HEADER.size + _OFFER.size
ENTRY_SIZE: Final = _ENTRY.size
MASK: Final = 0xFFFFFFFF
_TOP: Final = 1 << 64


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
    _HEADER.pack_into(into, 0, kind, flags, 0, credits_returned & MASK, offers_read & MASK)


def parse_header(frame: memoryview) -> Header:
    if len(frame) < _HEADER.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header")
    kind, flags, zero, credits_returned, offers_read = _HEADER.unpack_from(frame)
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"a frame of the unknown kind {kind}")
    if zero or (flags and flags & ~_FLAGS[known]):
        raise ProtocolError(f"a frame {known.name} with the flags {flags:#x}, {zero:#x}")
    if known in _BARE and len(frame) != _HEADER.size:
        raise ProtocolError(f"a frame {known.name} of {len(frame)} bytes")
    return Header(known, flags, credits_returned, offers_read)


def data_size(frames: int, nbytes: int) -> int:
    return _HEADER.size + _COUNT.size * (1 + frames) + nbytes


def put_data(into: memoryview, views: Sequence[memoryview]) -> None:
    """A message, behind the header."""
    lengths = [view.nbytes for view in views]
    struct.pack_into(f"<{1 + len(lengths)}I", into, _HEADER.size, len(lengths), *lengths)
    _put_all(into, data_size(len(lengths), 0), views)


def _put_all(into: memoryview, at: int, views: Sequence[memoryview]) -> None:
    for view in views:
        end = at + view.nbytes
        into[at:end] = view
        at = end


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.max_frames:
        raise ProtocolError(f"a message of {count} frames: at most {limits.max_frames} are taken")


def _check_total(nbytes: int, limits: Limits) -> None:
    if nbytes > limits.max_message:
        raise ProtocolError(f"a message of {nbytes} bytes: at most {limits.max_message} are taken")


def parse_data(frame: memoryview, limits: Limits) -> list[tuple[int, int]]:
    """Where the frames of the message begin and end."""
    if len(frame) < data_size(0, 0):
        raise ProtocolError(f"a frame DATA of {len(frame)} bytes")
    (count,) = _COUNT.unpack_from(frame, _HEADER.size)
    _check_count(count, limits)
    at = data_size(count, 0)
    if len(frame) < at:
        raise ProtocolError(f"a frame DATA of {len(frame)} bytes for {count} frames")
    bounds = []
    for length in struct.unpack_from(f"<{count}I", frame, data_size(0, 0)):
        bounds.append((at, at + length))
        at += length
    if at != len(frame):
        raise ProtocolError(f"a frame DATA of {len(frame)} bytes, by its table {at}")
    _check_total(at - data_size(count, 0), limits)
    return bounds


def put_offer(into: memoryview, frames: int, body: Remote) -> None:
    """An offer, behind the header; a body at address 0 follows it."""
    _OFFER.pack_into(into, _HEADER.size, frames, body.length, body.addr, body.rkey)


def put_body(into: memoryview, at: int, remotes: Sequence[Remote], views: list[memoryview]) -> None:
    """The table of a message's frames, of which those at address 0 are `views`, which follow."""
    for remote in remotes:
        _ENTRY.pack_into(into, at, *remote)
        at += _ENTRY.size
    _put_all(into, at, views)


def parse_offer(frame: memoryview, limits: Limits) -> Offer:
    if len(frame) < OFFER_SIZE:
        raise ProtocolError(f"a frame OFFER of {len(frame)} bytes")
    count, length, addr, rkey = _OFFER.unpack_from(frame, _HEADER.size)
    _check_count(count, limits)
    _check_total(length - count * _ENTRY.size, limits)
    if length < count * _ENTRY.size:
        raise ProtocolError(f"an offer of {count} frames with a table of {length} bytes")
    if addr == 0:
        if len(frame) != OFFER_SIZE + length:
            raise ProtocolError(f"a frame OFFER of {len(frame)} bytes with {length} behind it")
        return Offer(count, None)
    if len(frame) != OFFER_SIZE:
        raise ProtocolError(f"a frame OFFER of {len(frame)} bytes with its body elsewhere")
    return Offer(count, _remote(length, addr, rkey))


def _remote(length: int, addr: int, rkey: int) -> Remote:
    if not 0 < length <= _TOP - addr:
        raise ProtocolError(f"an offer of {length} bytes at address {addr:#x}")
    return Remote(length, addr, rkey)


def parse_body(body: memoryview, count: int, limits: Limits) -> list[Piece]:
    """The frames of an offer."""
    at = count * _ENTRY.size
    pieces: list[Piece] = []
    total, smallest = 0, limits.least_remote
    for length, addr, rkey in _ENTRY.iter_unpack(body[:at]):
        total += length
        _check_total(total, limits)
        if addr == 0:
            pieces.append(Piece(length, at, None))
            at += length
        else:
            pieces.append(Piece(length, 0, _remote(length, addr, rkey)))
            smallest = min(smallest, length)
    if at != len(body):
        raise ProtocolError(f"an offer with a body of {len(body)} bytes, by its table {at}")
    if smallest < limits.least_remote:
        raise ProtocolError(
            f"an offer whose frame of {smallest} bytes does not follow its table: frames of less "
            f"than {limits.least_remote} bytes do"
        )
    return pieces


def error_text(text: str) -> bytes:
    """What an ERROR says; it fits into the smallest frame of all."""
    return text.encode("ascii", "replace")[: LEAST_EAGER - _HEADER.size]


def put_error_text(into: memoryview, text: bytes) -> None:
    into[_HEADER.size : _HEADER.size + len(text)] = text


def parse_error(frame: memoryview) -> str:
    return printable(bytes(frame[_HEADER.size :]))

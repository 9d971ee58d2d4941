# SPDX-License-Identifier: MIT
"""What two processes tell each other: the hello in the private data of rdma_cm, and the frames.

    hello       magic, version, the id of the process that sends it, and of the one that it is for
    OPEN        tokens, which the other end answers by GRANT
    GRANT       for each token where the memory is, and its key; or that there is none
    REVOKED     tokens whose access has ended, which the other end answers by SEEN
    IDLE        this end has not used the connection for a while; the answer is BYE or STAY

All integers are little-endian. Each end has receives posted for all frames that the other may send:
so many OPENs and REVOKEDs without an answer, and one IDLE.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAGIC: Final = b"cqnM"
VERSION: Final = 1
_HELLO: Final = struct.Struct("<4sHxx16s16s")
_HEADER: Final = struct.Struct("<BxH4x")
_TOKEN: Final = struct.Struct("<Q")
_GRANT: Final = struct.Struct("<QQQII")

FRAME_SIZE: Final = 576
TOGETHER: Final = 16  # tokens in a frame, at most
OPENS: Final = 4  # OPENs without an answer
REVOKEDS: Final = 4
# OPENs, GRANTs, REVOKEDs, SEENs; IDLE and its answer.
RECEIVES: Final = 2 * OPENS + 2 * REVOKEDS + 2


class ProtocolError(ValueError):
    """The peer has sent what the protocol does not allow."""


class Kind(enum.IntEnum):
    OPEN = 1
    GRANT = 2
    REVOKED = 3
    SEEN = 4
    IDLE = 5
    STAY = 6
    BYE = 7


class Status(enum.IntEnum):
    GRANTED = 0
    UNKNOWN = 1  # never exposed, revoked, or expired
    NO_ROOM = 2


class Answer(NamedTuple):
    """What a GRANT says of one token: its memory, or why it grants none (`status`)."""

    token: int
    addr: int
    length: int
    rkey: int
    status: int


def hello(own: bytes, peer: bytes) -> bytes:
    return _HELLO.pack(MAGIC, VERSION, own, peer)


def parse_hello(data: bytes) -> tuple[bytes, bytes]:
    """Return the id of the peer's process, and of the process that it wants. The peer has checked
    the version if we have connected; if it has, we do."""
    if len(data) < _HELLO.size:
        raise ProtocolError("the peer is not a process of cqnotify.memory")
    magic, version, own, peer = _HELLO.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("the peer is not a process of cqnotify.memory")
    if version != VERSION:
        raise ProtocolError(f"the peer has version {version} of the protocol, not {VERSION}")
    return own, peer


def frame(kind: Kind, entries: Sequence[bytes] = ()) -> bytes:
    return _HEADER.pack(kind, len(entries)) + b"".join(entries)


def tokens_frame(kind: Kind, tokens: Iterable[int]) -> bytes:
    return frame(kind, [_TOKEN.pack(token) for token in tokens])


def grant_frame(answers: Iterable[Answer]) -> bytes:
    return frame(Kind.GRANT, [_GRANT.pack(*answer) for answer in answers])


def parse_kind(data: memoryview) -> Kind:
    if len(data) < _HEADER.size:
        raise ProtocolError(f"a frame of {len(data)} bytes")
    try:
        return Kind(data[0])
    except ValueError:
        raise ProtocolError(f"a frame of kind {data[0]}") from None


def _entries(data: memoryview, size: int) -> memoryview:
    _, count = _HEADER.unpack_from(data)
    if not 1 <= count <= TOGETHER or len(data) != _HEADER.size + count * size:
        raise ProtocolError(f"a frame of {len(data)} bytes with {count} entries")
    return data[_HEADER.size :]


def parse_tokens(data: memoryview) -> list[int]:
    return [token for (token,) in _TOKEN.iter_unpack(_entries(data, _TOKEN.size))]


def parse_grant(data: memoryview) -> list[Answer]:
    return [Answer(*fields) for fields in _GRANT.iter_unpack(_entries(data, _GRANT.size))]

# SPDX-License-Identifier: MIT
"""The private data with which ends connect by rdma_cm: the options that both need alike.

It arrives padded with zeros, and may come from any program.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ._end import Plan

MAGIC: Final = b"cqnpong"
VERSION: Final = 1
_HEAD: Final = struct.Struct("!7sBB")  # magic, version, and the length of the rest
_REST: Final = struct.Struct("!IQQ?")

OURS: Final = "`cqnotify pingpong --rdma-cm`"


class Hello(NamedTuple):
    """The number of an end's QP, and the options that both ends need alike."""

    qp_num: int
    size: int
    iters: int
    check: bool

    def to_wire(self) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, _REST.size) + _REST.pack(*self)

    @classmethod
    def from_wire(cls, data: bytes) -> Hello:
        """Parse private data; ValueError, with an explanation, if it is of another program."""
        magic, version, length = _HEAD.unpack_from(data.ljust(_HEAD.size, b"\0"))
        if magic != MAGIC:
            raise ValueError(f"it is another program than {OURS}")
        if (version, length) != (VERSION, _REST.size) or len(data) < _HEAD.size + length:
            raise ValueError(
                f"its cqnotify speaks version {version} of this ping-pong, ours version {VERSION}"
            )
        return cls(*_REST.unpack_from(data, _HEAD.size))

    def difference(self, theirs: Hello) -> str | None:
        """Return in which options the peer differs, as text; None if in none."""
        options = [
            (f"--size {self.size}", f"--size {theirs.size}"),
            (f"--iters {self.iters}", f"--iters {theirs.iters}"),
            ("--chk" if self.check else "no --chk", "--chk" if theirs.check else "no --chk"),
        ]
        differ = [(our, their) for our, their in options if our != their]
        if not differ:
            return None
        ours, others = (" and ".join(words) for words in zip(*differ, strict=True))
        return f"it has {others}, we have {ours}: give both the same"


def hello_of(plan: Plan, qp_num: int = 0) -> Hello:
    """Return the private data of our end; `difference` does not compare the numbers of QPs."""
    return Hello(qp_num, plan.size, plan.iters, plan.check)

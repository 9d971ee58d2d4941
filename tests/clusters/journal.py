# SPDX-License-Identifier: MIT
"""A host's disk, of which what was not synchronised is lost with its power: records in a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = struct.Struct("!II")  # of a record: the bytes of its facts, and of its data
SUM = 32
DISK = 0.02  # virtual seconds that writing takes


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = list(self._read())
        self.file = open(path, "ab")  # noqa: SIM115
        self.file.truncate(sum(size for _, _, size in self.records))  # a torn one is none
        self._commit: asyncio.Task[None] | None = None

    def _read(self) -> Iterator[tuple[dict[str, Any], bytes, int]]:
        """Facts, data, and size of each that is whole."""
        text = self.path.read_bytes() if self.path.exists() else b""
        at = 0
        while at + HEAD.size <= len(text):
            facts, data = HEAD.unpack_from(text, at)
            size = HEAD.size + SUM + facts + data
            body = text[at + HEAD.size + SUM : at + size]
            if hashlib.sha256(body).digest() != text[at + HEAD.size : at + HEAD.size + SUM]:
                return
            yield json.loads(body[:facts]), body[facts:], size
            at += size

    def append(self, facts: dict[str, Any], data: bytes = b"") -> None:
        """Durable after the next commit()."""
        text = json.dumps(facts).encode()
        head = HEAD.pack(len(text), len(data)) + hashlib.sha256(text + data).digest()
        self.file.write(head + text + data)

    async def commit(self) -> None:
        """Returns when all that was appended is on the disk. Those who wait at a time share a
        write."""
        before = self._commit
        if before is None or before.done():
            self._commit = asyncio.create_task(self._write())
        assert self._commit is not None
        await asyncio.shield(self._commit)

    async def _write(self) -> None:
        await asyncio.sleep(DISK)
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()

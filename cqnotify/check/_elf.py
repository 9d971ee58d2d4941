# SPDX-License-Identifier: MIT
"""ELF files: their headers, as far as `check` needs them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

__all__ = ["BITS_32", "BITS_64", "Elf", "build_id", "interpreter", "read_elf"]

PT_LOAD, PT_INTERP, PT_NOTE = 1, 3, 4
NT_GNU_BUILD_ID = 3
BITS_32, BITS_64 = 1, 2


class Segment(NamedTuple):
    """An entry of an ELF file's program header table."""

    type: int
    offset: int
    address: int
    file_size: int
    memory_size: int


class Elf(NamedTuple):
    """What the header of an ELF file says, as far as it is needed here."""

    bits: int
    machine: int
    segments: tuple[Segment, ...]

    @property
    def end(self) -> int:
        """The address behind the last that is loaded."""
        return max(
            (s.address + s.memory_size for s in self.segments if s.type == PT_LOAD), default=0
        )


def read_elf(path: str | os.PathLike[str]) -> Elf | None:
    """Return the header of an ELF file; None for any other."""
    with open(path, "rb") as file:
        ident = file.read(16)
        if len(ident) < 16 or ident[:4] != b"\x7fELF" or ident[4] not in (BITS_32, BITS_64):
            return None
        order = "<" if ident[5] == 1 else ">"
        try:
            if ident[4] == BITS_32:
                _, machine, *_ = struct.unpack(order + "HHIIIIIHHH", file.read(30))
                return Elf(BITS_32, machine, ())
            header = struct.unpack(order + "HHIQQQIHHH", file.read(42))
            machine, table, size, count = header[1], header[4], header[8], header[9]
            segments = []
            for n in range(count):
                file.seek(table + n * size)
                kind, _, offset, address, _, in_file, in_memory = struct.unpack(
                    order + "IIQQQQQ", file.read(48)
                )
                segments.append(Segment(kind, offset, address, in_file, in_memory))
        except struct.error:  # it is cut off
            return None
        return Elf(BITS_64, machine, tuple(segments))


def interpreter(path: str, elf: Elf) -> str | None:
    """Return the dynamic linker that an ELF file names; None if it is static."""
    for segment in elf.segments:
        if segment.type == PT_INTERP:
            with open(path, "rb") as file:
                file.seek(segment.offset)
                return os.fsdecode(file.read(segment.file_size).rstrip(b"\0"))
    return None


def build_id(path: Path, elf: Elf) -> str | None:
    """Return the build id of an ELF file, in hexadecimal digits."""
    with open(path, "rb") as file:
        for segment in elf.segments:
            if segment.type != PT_NOTE:
                continue
            file.seek(segment.offset)
            notes = file.read(min(segment.file_size, 1 << 16))
            while len(notes) >= 12:
                name_size, size, kind = struct.unpack_from("=III", notes)
                start = 12 + (name_size + 3 & ~3)
                if kind == NT_GNU_BUILD_ID and notes[12 : 12 + name_size] == b"GNU\0":
                    return notes[start : start + size].hex()
                notes = notes[start + (size + 3 & ~3) :]
    return None

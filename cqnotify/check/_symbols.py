# SPDX-License-Identifier: MIT
"""Functions, files and lines of the return addresses in a log: by addr2line, or one of its kind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ._elf import Elf, build_id, read_elf
from ._log import Finding, Module, Place

__all__ = ["NO_TOOL", "Frame", "Symbols"]

NO_TOOL: Final = "functions and lines are not known without addr2line: install binutils"
DEBUG: Final = Path("/usr/lib/debug/.build-id")
LIMIT: Final = 60.0  # seconds for a tool; it takes that long for the largest files only

# All print an address, and for it and each function that was inlined there a line with the function
# and one with the file.
OPTIONS: Final = ("-a", "-f", "-i", "-C", "-e")
TOOLS: Final = (
    ("addr2line", OPTIONS),
    ("llvm-addr2line", OPTIONS),
    ("llvm-symbolizer", ("--output-style=GNU", *OPTIONS)),
    ("eu-addr2line", OPTIONS),
)

# Where a thread begins; what is below them is the same in every program.
FIRST: Final = ("main", "_start", "start_thread", "clone", "clone3", "__libc_start_main")
STARTERS: Final = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-2")
INLINE_VERBS: Final = (
    *("ibv_poll_cq", "ibv_req_notify_cq", "ibv_post_send", "ibv_post_recv", "ibv_post_srq_recv"),
    *("ibv_start_poll", "ibv_next_poll", "ibv_end_poll", "ibv_wr_start", "ibv_wr_complete"),
)
VERBS_HEADER: Final = "/usr/include/infiniband/verbs.h"
INNER: Final = ("libc.so", "libc-", "libpthread", "libibverbs.so", "librdmacm.so")


@dataclass(frozen=True)
class Frame:
    """A call in a backtrace. Without symbols `function` or `file` is empty."""

    module: str
    offset: int
    function: str = ""
    file: str = ""
    line: int = 0

    @property
    def of_library(self) -> bool:
        """Whether it is of libibverbs, librdmacm or libc; also inline, from their headers."""
        inline = self.function.startswith(("ibv_", "rdma_"))
        return inline or os.path.basename(self.module).startswith(INNER)

    @property
    def _is_misplaced(self) -> bool:
        """Whether addr2line 2.40 names the source for an inline function of a header (DWARF 5)."""
        own = "libibverbs" not in os.path.basename(self.module)
        return own and self.function in INLINE_VERBS and not self.file.endswith(".h")

    @property
    def place(self) -> str:
        """The file and line, or else the module, with the offset if there is no function."""
        if self.file:
            file = VERBS_HEADER if self._is_misplaced else self.file
            return f"{file}:{self.line}" if self.line else file
        module = os.path.basename(self.module) or "?"
        return module if self.function else f"{module}+{self.offset:#x}"


Spot = tuple[str, int]  # a module's path, and the address in this file of a call


class Symbols:
    """Finds the frames of findings; keeps what it found."""

    def __init__(self) -> None:
        self.missing: bool = False  # there was something to look up, and no tool
        self._files: dict[str, Elf | None] = {}
        self._found: dict[Spot, tuple[Frame, ...]] = {}
        tools = (_command(tool) for tool in TOOLS)
        self._tool: list[str] | None = next((tool for tool in tools if tool), None)

    def spots(self, finding: Finding, place: Place) -> tuple[Spot, ...]:
        """Return the modules and addresses of a stack, without looking them up."""
        return tuple(self._spot(finding.modules, address) for address in place.frames)

    def backtraces(self, finding: Finding) -> list[tuple[Place, list[Frame]]]:
        """Return the stacks of a finding from the innermost call to main, or the thread's start."""
        stacks = [(place, self.spots(finding, place)) for place in finding.where]
        self._find(spot for _, spots in stacks for spot in spots)
        return [
            (place, _cut([frame for spot in spots for frame in self._found[spot]]))
            for place, spots in stacks
        ]

    def _spot(self, modules: Sequence[Module], address: int) -> Spot:
        call = max(address - 1, 0)  # a return address is behind its call, maybe on another line
        for module in reversed(modules):  # the latest: others may have been unloaded
            elf = self._elf(module.path)
            if elf is not None and 0 <= call - module.base < elf.end:
                return module.path, call - module.base
        unknown = [m for m in modules if m.base <= call and self._elf(m.path) is None]
        if unknown:
            nearest = max(unknown, key=lambda module: module.base)
            return nearest.path, call - nearest.base
        return "", call

    def _elf(self, path: str) -> Elf | None:
        if path not in self._files:
            try:
                self._files[path] = read_elf(path)
            except (OSError, ValueError):  # deleted, or not a file, as linux-vdso.so.1
                self._files[path] = None
        return self._files[path]

    def _find(self, spots: Iterable[Spot]) -> None:
        wanted: dict[str, list[int]] = defaultdict(list)
        for module, address in dict.fromkeys(spots):
            if (module, address) not in self._found:
                wanted[module].append(address)
        for module, addresses in wanted.items():
            lines = self._look_up(module, addresses)
            for address in addresses:
                calls = lines.get(address) or [("", "", 0)]
                self._found[module, address] = tuple(
                    Frame(module, address, *call) for call in calls
                )

    def _look_up(self, module: str, addresses: list[int]) -> dict[int, list[tuple[str, str, int]]]:
        """Return the calls at each address: function, file, line; the innermost first."""
        elf = self._elf(module)
        if elf is None:
            return {}
        if self._tool is None:
            self.missing = True
            return {}
        command = [*self._tool, str(_debug_file(Path(module), elf))]
        # Addresses as arguments, since not every tool reads them from a pipe; in batches.
        found: dict[int, list[tuple[str, str, int]]] = {}
        for at in range(0, len(addresses), 1000):
            batch = [hex(address) for address in addresses[at : at + 1000]]
            try:
                done = subprocess.run(
                    [*command, *batch],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={k: v for k, v in os.environ.items() if k != "LD_AUDIT"},
                    timeout=LIMIT,
                )
            except (OSError, subprocess.TimeoutExpired):
                return found
            found.update(_parse(done.stdout.decode(errors="replace").splitlines()))
        return found


def _command(tool: tuple[str, tuple[str, ...]]) -> list[str] | None:
    path = shutil.which(tool[0])
    return None if path is None else [path, *tool[1]]


def _debug_file(path: Path, elf: Elf) -> Path:
    """Return the file with the symbols of one that was stripped, or the file itself."""
    try:
        found = build_id(path, elf)
    except OSError:
        found = None
    debug = DEBUG / found[:2] / f"{found[2:]}.debug" if found else path
    return debug if debug.exists() else path


def _parse(lines: list[str]) -> Iterator[tuple[int, list[tuple[str, str, int]]]]:
    at = 0
    while at < len(lines):
        if not lines[at].startswith("0x"):
            at += 1
            continue
        address, calls = int(lines[at].rstrip(":"), 16), []
        at += 1
        while at + 1 < len(lines) and not lines[at].startswith("0x"):
            function = lines[at].partition(" inlined at ")[0].removesuffix("()")
            file, _, line = lines[at + 1].partition(" (discriminator")[0].rpartition(":")
            number = int(line) if line.isdigit() else 0
            function, file = ("" if text.startswith("??") else text for text in (function, file))
            calls.append((function, file, number))
            at += 2
        yield address, calls


def _cut(frames: list[Frame]) -> list[Frame]:
    """Leave out what is below main or the start of a thread."""
    for n, frame in enumerate(frames):
        if frame.function == "main":
            return frames[: n + 1]
    end = len(frames)
    while end > 1 and _starts(frames[end - 1]):
        end -= 1
    return frames[:end]


def _starts(frame: Frame) -> bool:
    return frame.function in FIRST or os.path.basename(frame.module).startswith(STARTERS)

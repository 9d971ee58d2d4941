# SPDX-License-Identifier: MIT
"""cqnotify.check._symbols: return addresses become functions, files and lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from report_support import compile_c, finding, module, place, process, write_log

from cqnotify.check import _symbols
from cqnotify.check._elf import read_elf
from cqnotify.check._log import Logs
from cqnotify.check._symbols import TOOLS, Frame, Symbols

SOURCE = """\
#include <unistd.h>
volatile int calls;
__attribute__((noinline)) int wait_for(int n) {
    calls += n;
    return pause();
}
static inline __attribute__((always_inline)) int inlined(int n) {
    int r = wait_for(n);
    calls++;
    return r;
}
__attribute__((noinline)) int receive(int n) {
    int r = inlined(n);
    calls++;
    return r;
}
int main(void) {
    int r = receive(3);
    calls++;
    return r;
}
"""
BASE = 0x555555554000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("symbols") / "receiver.c"
    path.write_text(SOURCE)
    return path


def built(source: Path, *options: str) -> Path:
    target = source.with_name("_".join(["receiver", *(o.strip("-") for o in options)]))
    return compile_c(source, target, "-g", "-O1", *options)


def return_addresses(path: Path) -> list[int]:
    """Those that are on the stack as it waits: in wait_for, receive, main; by the disassembly."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for function, callee in (("wait_for", "pause"), ("receive", "wait_for"), ("main", "receive")):
        body = listing.partition(f"<{function}>:\n")[2].partition("\n\n")[0].splitlines()
        at = next(n for n, line in enumerate(body) if re.search(rf"call.*<{callee}[@>]", line))
        found.append(int(body[at + 1].split(":")[0], 16))
    return found


def frames_of(folder: Path, path: object, base: int, addresses: list[int]) -> list[Frame]:
    frames = [base + address for address in addresses]
    write_log(folder, process(), module(base, path), finding(where=[place("sleep", *frames)]))
    (found,) = Logs(folder).read()
    ((_, backtrace),) = Symbols().backtraces(found)
    return backtrace


def shown(frames: list[Frame]) -> list[tuple[str, str, int]]:
    return [(frame.function, Path(frame.file).name, frame.line) for frame in frames]


CALLS = [
    ("wait_for", "receiver.c", 5),
    ("inlined", "receiver.c", 8),
    ("receive", "receiver.c", 13),
    ("main", "receiver.c", 18),
]


@pytest.mark.parametrize(("option", "base"), [("-pie", BASE), ("-no-pie", 0)])
def test_a_return_address_is_that_of_its_call(
    option: str, base: int, source: Path, tmp_path: Path
) -> None:
    path = built(source, option, *(["-fPIE"] if option == "-pie" else []))
    below = [0x10, 0x20]  # of _start, and what is no code at all
    frames = frames_of(tmp_path, path, base, [*return_addresses(path), *below])
    assert shown(frames)[-4:] == CALLS[-4:]
    assert shown(frames) == CALLS


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if _symbols._command(tool)], ids=str)
def test_each_tool_of_this_machine_says_the_same(
    tool: tuple[str, tuple[str, ...]], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(source)
    monkeypatch.setattr(_symbols, "TOOLS", (tool,))
    assert shown(frames_of(tmp_path, path, BASE, return_addresses(path))) == CALLS


def test_without_a_tool_it_is_the_module_and_an_offset(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(source)
    monkeypatch.setattr(_symbols, "TOOLS", ())
    addresses = return_addresses(path)
    write_log(
        tmp_path,
        process(),
        module(BASE, path),
        finding(where=[place("sleep", *(BASE + a for a in addresses))]),
    )
    (found,) = Logs(tmp_path).read()
    symbols = Symbols()
    ((_, frames),) = symbols.backtraces(found)
    assert [frame.place for frame in frames] == [f"{path.name}+{a - 1:#x}" for a in addresses]
    assert symbols.missing


def test_an_inline_verb_is_in_its_header(tmp_path: Path) -> None:
    """Built with DWARF 5, addr2line of binutils 2.40 says that it is in the program's file."""
    header = "/usr/include/infiniband/verbs.h"
    for file in ("receiver.c", header):
        assert Frame("/bin/receiver", 1, "ibv_poll_cq", file, 2888).place == f"{header}:2888"
    own = Frame("/bin/receiver", 1, "poll_all", "receiver.c", 12)
    assert own.place == "receiver.c:12"
    library = Frame("/lib/libibverbs.so.1", 1, "ibv_poll_cq", "verbs.c", 3)
    assert library.place == "verbs.c:3"


def test_a_stripped_program_has_offsets(source: Path, tmp_path: Path) -> None:
    path = built(source, "-s")
    frames = frames_of(tmp_path, path, BASE, [0x1140, 0x1150])
    assert all(frame.place.startswith(f"{path.name}+0x") or frame.function for frame in frames)
    assert not any(frame.file for frame in frames)


def test_a_debug_file_is_found_by_the_build_id(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = built(source, "-Wl,--build-id=0xabcdef0123456789")
    addresses = return_addresses(whole)
    debug = tmp_path / "debug/ab/cdef0123456789.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug], check=True)
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    monkeypatch.setattr(_symbols, "DEBUG", tmp_path / "debug")
    assert shown(frames_of(tmp_path, stripped, BASE, addresses)) == CALLS


@pytest.mark.parametrize("path", ["/gone/receiver (deleted)", "linux-vdso.so.1", "/etc/passwd", ""])
def test_a_module_that_is_no_file_has_offsets(path: str, tmp_path: Path) -> None:
    frames = frames_of(tmp_path, path, BASE, [0x1000])
    assert [frame.place for frame in frames] == [f"{Path(path).name or '?'}+0xfff"]


def test_an_address_in_no_module_is_shown_as_it_is(source: Path, tmp_path: Path) -> None:
    frames = frames_of(tmp_path, built(source), BASE, [0x7000_0000_0000])
    assert [frame.place for frame in frames] == [f"?+{BASE + 0x7000_0000_0000 - 1:#x}"]


def test_of_modules_at_the_same_place_the_latest_counts(source: Path, tmp_path: Path) -> None:
    path = built(source)
    write_log(
        tmp_path,
        process(),
        module(BASE, "/bin/sh"),
        module(BASE, path),
        finding(where=[place("arm", BASE + return_addresses(path)[0])]),
        module(BASE, "/bin/sh"),
    )
    (found,) = Logs(tmp_path).read()
    ((_, frames),) = Symbols().backtraces(found)
    assert shown(frames) == CALLS[:1]


@pytest.mark.parametrize("cut", [0, 3, 15, 20, 40, 63, 70])
def test_a_file_that_is_cut_off_is_no_elf_file(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(Path("/bin/sh").read_bytes()[:cut])
    assert read_elf(path) is None

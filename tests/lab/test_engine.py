# SPDX-License-Identifier: MIT
"""Which backend runs a command: see backend.py. No kernel boots here."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forbid import PTRACE, SECCOMP, forbid

from cqnotify.lab import backend, kernel, uml, vm
from cqnotify.lab.base import LabError

DRIVER = Path(backend.__file__).with_name("__main__.py")
STOCK = "6.1.0-99-amd64"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a machine that has no KVM."""
    monkeypatch.setattr(vm, "kvm_usable", lambda: False)
    return tmp_path


def fetched(cache: Path, version: str = STOCK) -> None:
    (cache / "kernels" / version).mkdir(parents=True)
    (cache / "kernels" / version / "vmlinuz").touch()


def built(cache: Path, version: str = "7.2.12") -> None:
    uml.image(cache, version).parent.mkdir(parents=True)
    uml.image(cache, version).touch()


def options(cache: Path, **wanted: object) -> argparse.Namespace:
    nothing = dict.fromkeys(("accel", "icount", "userland", "cpus", "kernel"))
    return argparse.Namespace(cache=cache, **{**nothing, **wanted})


def engine_of(cache: Path, **wanted: object) -> tuple[str, str | None]:
    return backend.foresee(options(cache, **wanted))[:2]


def test_a_kernel_that_was_built_is_taken_where_kvm_does_not_work(cache: Path) -> None:
    assert engine_of(cache) == ("tcg", None)
    built(cache)
    assert engine_of(cache) == ("uml", "7.2.12")
    fetched(cache)
    assert engine_of(cache) == ("uml", "7.2.12")
    assert engine_of(cache, cpus=1) == ("uml", "7.2.12")


@pytest.mark.parametrize(
    "wanted",
    [{"cpus": 2}, {"icount": True}, {"accel": "tcg"}, {"accel": "auto"}, {"kernel": "6.1"}],
)
def test_what_the_process_does_not_have_is_emulated(cache: Path, wanted: dict[str, object]) -> None:
    built(cache)
    fetched(cache)
    assert engine_of(cache, **wanted) == ("tcg", STOCK)


def test_another_debian_comes_with_its_own_kernel(cache: Path) -> None:
    built(cache)
    fetched(cache, "6.12.99-amd64")
    assert engine_of(cache, userland="trixie") == ("tcg", "6.12.99-amd64")
    assert engine_of(cache, userland="trixie", accel="uml") == ("uml", "7.2.12")


def test_a_kernel_that_is_named_decides(cache: Path) -> None:
    built(cache, "6.1.192")
    assert engine_of(cache) == ("uml", "6.1.192")  # better than none
    built(cache)
    assert engine_of(cache) == ("uml", "7.2.12")
    assert engine_of(cache, kernel="6.1") == ("uml", "6.1.192")
    assert engine_of(cache, kernel="6.12") == ("tcg", None)


def test_what_the_process_does_not_have_is_an_error_where_it_was_asked_for(cache: Path) -> None:
    with pytest.raises(LabError, match=r"no kernel 7\.2 .* \./lab kernels build 7\.2 builds one"):
        engine_of(cache, accel="uml")
    built(cache)
    with pytest.raises(LabError, match="--uml has one CPU, not 2"):
        engine_of(cache, accel="uml", cpus=2)
    with pytest.raises(LabError, match="it cannot be combined with --uml"):
        engine_of(cache, accel="uml", icount=True)


def test_kvm_comes_first_where_it_works(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm, "kvm_usable", lambda: True)
    assert engine_of(cache) == (backend.TO_TRY, None)
    built(cache)
    assert engine_of(cache) == ("uml", "7.2.12")  # rather than fetch what to try KVM with
    fetched(cache)
    assert engine_of(cache) == (backend.TO_TRY, STOCK)
    vm.KvmVerdict(cache, STOCK).write("yes")
    assert engine_of(cache) == ("kvm", STOCK)
    assert engine_of(cache, accel="tcg") == ("tcg", STOCK)
    assert engine_of(cache, icount=True) == ("tcg", STOCK)
    vm.KvmVerdict(cache, STOCK).write("no")
    assert engine_of(cache) == ("uml", "7.2.12")
    assert engine_of(cache, accel="kvm") == ("kvm", STOCK)


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_kvm_is_tried_once(cache: Path, monkeypatch: pytest.MonkeyPatch, verdict: str) -> None:
    monkeypatch.setattr(vm, "kvm_usable", lambda: True)
    fetched(cache)
    tried: list[str] = []

    def try_kvm(version: str) -> None:
        tried.append(version)
        vm.KvmVerdict(cache, version).write(verdict)

    for _ in range(2):
        chosen = backend.settle(options(cache), try_kvm)
        assert chosen[:2] == ({"yes": "kvm", "no": "tcg"}[verdict], STOCK)
    assert tried == [STOCK]


def test_emulation_that_nobody_asked_for_says_how_to_avoid_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched(cache)
    never: Callable[[str], None] = lambda version: pytest.fail(version)  # noqa: E731
    assert backend.settle(options(cache), never).accel == "tcg"
    assert capsys.readouterr().err == f"lab: {uml.ADVICE}\n"
    for wanted in ({"accel": "tcg"}, {"icount": True}, {"kernel": "6.1"}):
        backend.settle(options(cache, **wanted), never)
    assert not capsys.readouterr().err


def test_the_whole_suite_has_one_built_and_is_emulated_if_that_fails(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise LabError("a build needs 3000 MB")

    fetched(cache)
    assert backend.settle(options(cache), pytest.fail, fails).accel == "tcg"
    assert capsys.readouterr().err == "lab: a build needs 3000 MB: emulating\n"
    chosen = backend.settle(options(cache), pytest.fail, lambda: built(cache))
    assert chosen == ("uml", "7.2.12", None)
    assert backend.settle(options(cache), pytest.fail, fails).accel == "uml"
    assert backend.settle(options(cache, accel="tcg"), pytest.fail, fails).accel == "tcg"
    assert not capsys.readouterr().err


def test_the_kernel_is_fetched_only_where_it_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[str] = []

    def fetch(folder: Path, suite: str) -> str:
        fetches.append(suite)
        fetched(folder)
        return STOCK

    monkeypatch.setattr(kernel, "fetch", fetch)
    built(cache)
    assert backend.settle(options(cache), pytest.fail).accel == "uml"
    assert not fetches
    assert backend.settle(options(cache, cpus=2), pytest.fail).kernel == STOCK
    assert fetches == ["bookworm"]


# ---- where no kernel can be a process ----------------------------------------------------


def foreseen(cache: Path, *words: str, without: list[tuple[int, int]]) -> tuple[str, str]:
    command = [sys.executable, "-B", DRIVER, "foresee", "--cache", cache]
    result = subprocess.run(
        [*command, *words, "--"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: forbid(*without),
        stdin=subprocess.DEVNULL,
    )
    return result.stdout.strip(), result.stderr.strip()


@pytest.mark.parametrize("without", [[], PTRACE, SECCOMP])
def test_one_of_two_ways_to_drive_programs_is_enough(
    tmp_path: Path, without: list[tuple[int, int]]
) -> None:
    built(tmp_path)
    assert foreseen(tmp_path, without=without) == ("uml", "")


def test_a_machine_that_forbids_both_says_so(tmp_path: Path) -> None:
    built(tmp_path)
    both = PTRACE + SECCOMP
    assert foreseen(tmp_path, without=both)[0] != "uml"
    why = "needs ptrace(2) or seccomp(2); this machine forbids both"
    assert why in foreseen(tmp_path, "--accel", "uml", without=both)[1]


def test_an_older_kernel_needs_ptrace(tmp_path: Path) -> None:
    built(tmp_path, "6.1.192")
    assert foreseen(tmp_path, without=SECCOMP)[0] == "uml"
    assert "needs ptrace(2)" in foreseen(tmp_path, "--accel", "uml", without=PTRACE)[1]


def test_the_reason_is_told_once(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(cache)
    built(cache)
    monkeypatch.setattr(uml, "refusal", lambda version: "it cannot be")
    assert backend.settle(options(cache), pytest.fail).accel == "tcg"
    assert capsys.readouterr().err == "lab: it cannot be: emulating\n"


def test_the_guests_memory_is_where_there_is_room(tmp_path: Path) -> None:
    room = os.statvfs("/dev/shm")
    megabytes = room.f_bavail * room.f_frsize >> 20
    assert uml.memory_folder(megabytes // 2) == "/dev/shm"
    assert uml.memory_folder(megabytes * 2) != "/dev/shm"

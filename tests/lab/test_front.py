# SPDX-License-Identifier: MIT
"""`cqnotify lab`: its words, and what it says of what is missing. No kernel boots here."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cqnotify.lab import backend, cli, driver, kernel, prerequisites, uml
from cqnotify.lab.base import LabError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CQNOTIFY_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What the driver is asked to do, on a machine that has no device and lacks nothing."""
    asked: list[argparse.Namespace] = []

    def note(words: list[str]) -> int:
        asked.append(driver.parse(words))
        return 7

    monkeypatch.setattr(cli, "has_device", lambda: False)
    monkeypatch.setattr(driver, "main", note)
    monkeypatch.setattr(backend, "foresee", lambda options: backend.Backend("tcg", None))
    monkeypatch.setattr(prerequisites, "of_guest", lambda options, engine: [])
    return asked


# ---- its words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "a command is missing: run, shell, hosts, kernels, clean"),
        ("test", "there is no command 'test'"),
        ("run", "run: COMMAND is missing"),
        ("run --", "run: COMMAND is missing"),
        ("--nonsense run true", "there is no option '--nonsense'"),
        ("run --nonsense true", "there is no option '--nonsense'"),
        ("run --mem lots true", "argument --mem: invalid int value: 'lots'"),
        ("run --mem", "argument --mem: expected one argument"),
        ("run --device mlx5 true", "argument --device: invalid choice: 'mlx5'"),
        (
            "run --uml --vm true",
            "--uml and --virtual-time cannot be combined with --vm and --accel",
        ),
        ("run --kernel ./no/linux true", "--kernel ./no/linux: there is no such file, or it is no"),
        ("run --writable /no/folder true", "--writable: there is no folder /no/folder"),
        ("shell now", "shell takes no argument 'now'"),
        ("clean all", "clean takes no argument 'all'"),
        ("kernels make", "kernels knows only 'fetch' and 'build'"),
        ("kernels build 5.10", "build is for 6.1 or 7.2, not '5.10'"),
        ("kernels fetch nonsense", "there is no such suite or file: nonsense"),
    ],
)
def test_a_mistake_is_125_and_one_line(words: str, text: str, capsys: Capture) -> None:
    assert cli.main(words.split()) == 125
    said = capsys.readouterr().err
    assert said.startswith(f"lab: {text}")
    assert said.count("\n") == 1


def test_help_has_every_command_and_option(capsys: Capture) -> None:
    assert cli.main(["run", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {word}" in said for word in (*cli.COMMANDS, *cli.OPTIONS))
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize(
    "words",
    [
        "run --uml -e A=1 -- pytest --uml -x",
        "--uml -e A=1 run -- pytest --uml -x",
        "--uml run -e A=1 pytest --uml -x",
        "--uml -e=A=1 run pytest --uml -x",
    ],
)
def test_options_end_where_the_command_begins(
    words: str, drivers: list[argparse.Namespace]
) -> None:
    assert cli.main(words.split()) == 7
    (options,) = drivers
    assert (options.action, options.accel, options.env) == ("run", "uml", ["A=1"])
    assert options.command == ["pytest", "--uml", "-x"]


def test_hosts_have_options_of_their_own(drivers: list[argparse.Namespace]) -> None:
    words = "hosts --mem 512 2 --seed 3 -- hostname --- sleep 1"
    assert cli.main(words.split()) == 7
    (options,) = drivers
    assert (options.action, options.mem) == ("hosts", 512)
    assert options.command == words.split()[3:]


def test_the_command_has_this_python_first_and_the_callers_programs(
    drivers: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/mine:/usr/bin")
    cli.main(["run", "true"])
    env = driver.environment(drivers[0])
    folders = env["PATH"].split(":")
    assert folders[0] == os.path.dirname(sys.executable)
    assert "/mine" in folders
    assert {"/usr/sbin", "/sbin"} <= set(folders)
    assert env["VIRTUAL_ENV"] == sys.prefix


def test_the_command_finds_packages_that_are_in_a_folder_of_their_own(
    drivers: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install --target` puts them."""
    monkeypatch.setenv("PYTHONPATH", "/mine/packages")
    cli.main(["run", "true"])
    assert driver.environment(drivers[0])["PYTHONPATH"] == "/mine/packages"


@pytest.mark.parametrize("lab", ["installed", "./lab"])
def test_a_folder_that_was_deleted_is_one_line(tmp_path: Path, lab: str) -> None:
    program = Path(driver.PROGRAM).parents[2] / "lab"
    command = [sys.executable, "-m", "cqnotify", "lab"] if lab == "installed" else [str(program)]
    script = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@" run true'
    words = ["sh", "-c", script, str(tmp_path / "gone"), *command]
    env = {**os.environ, "PYTHONPATH": str(program.parent)}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 125
    assert "lab: the current folder is not there any more" in done.stderr


def test_the_current_folder_is_writable_and_those_that_are_named(
    drivers: list[argparse.Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    cli.main(["run", "--writable", "a", "--writable", "/var", "true"])
    assert drivers[0].writable == [tmp_path, tmp_path / "a", Path("/var")]  # outer ones first
    monkeypatch.chdir("/")
    cli.main(["run", "true"])
    assert drivers[1].writable == []


def test_a_device_of_the_machine_is_used_unless_a_guest_is_asked_for(
    drivers: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "has_device", lambda: True)
    for words in ("run true", "run --uml true", "run --virtual-time true", "run --vm true"):
        cli.main(words.split())
    assert [options.mode for options in drivers] == ["device", "vm", "vm", "vm"]


def test_a_cache_that_cannot_be_made_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("CQNOTIFY_LAB_CACHE", "/proc/cache")
    assert cli.main(["kernels"]) == 125
    assert "cannot make the cache folder /proc/cache" in capsys.readouterr().err


def test_clean_leaves_what_others_made(cache: Path) -> None:
    for name in ("kernels", "uml", "mine"):
        (cache / name).mkdir(parents=True)
    (cache / "guest-0123").touch()
    assert cli.main(["clean"]) == 0
    assert [path.name for path in cache.iterdir()] == ["mine"]
    (cache / "mine").rmdir()
    assert cli.main(["clean"]) == 0
    assert not cache.exists()


def test_another_architecture_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, drivers: list[argparse.Namespace]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert cli.main(["run", "true"]) == 125
    assert "for x86-64; this machine is aarch64" in capsys.readouterr().err


def test_the_command_line_hands_all_words_on() -> None:
    command = [sys.executable, "-m", "cqnotify", "lab", "run", "--nonsense", "--", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 125
    assert done.stderr == "lab: there is no option '--nonsense' (see cqnotify lab --help)\n"


def test_it_runs_without_the_core_and_does_not_load_it(tmp_path: Path) -> None:
    """Out of sources that are not built: as `./lab` starts it."""
    program = Path(driver.PROGRAM)
    words = ["kernels", "--cache", str(tmp_path), "--"]
    script = (
        "import runpy, sys\n"
        "del sys.argv[0]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as e: assert e.code == 0\n"
        "print('cqnotify._core' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, program, *words], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


# ---- what is missing ---------------------------------------------------------------------


def missing(
    monkeypatch: pytest.MonkeyPatch, cache: Path, accel: str
) -> list[prerequisites.Package]:
    """Where there is nothing."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(prerequisites, "library", lambda pattern: False)
    monkeypatch.setattr(kernel, "place_of", lambda cache, name: cache / name)
    options = argparse.Namespace(cache=cache, device="rxe")
    return prerequisites.of_guest(options, backend.Backend(accel, None))


def test_what_is_missing_is_one_line_for_debian_and_one_for_fedora(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    with pytest.raises(LabError) as error:
        prerequisites.see_to(missing(monkeypatch, cache, "tcg"), install=False)
    assert str(error.value) == (
        "packages are missing here; as root: apt-get install --no-install-recommends iproute2 "
        "qemu-system-x86 kmod ibverbs-providers librdmacm1 gcc libc6-dev (Fedora, RHEL: dnf "
        "install iproute iproute-tc qemu-system-x86-core kmod libibverbs librdmacm gcc "
        "glibc-devel)"
    )


def test_a_kernel_that_is_a_process_needs_no_qemu(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    names = {package.debian for package in missing(monkeypatch, cache, "uml")}
    assert names == {"iproute2", "ibverbs-providers", "librdmacm1", "gcc", "libc6-dev"}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_compiler_is_wanted_only_if_there_is_something_to_build(
    is_there: bool, cache: Path, monkeypatch: pytest.MonkeyPatch, drivers: list[argparse.Namespace]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    if is_there:
        image = uml.image(cache, "7.2.12")
        image.parent.mkdir(parents=True)
        image.touch()
    assert cli.main(["kernels", "build"]) == (7 if is_there else 125)
    assert [options.action for options in drivers] == ["build"] * is_there


def test_install_needs_apt_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(LabError, match="--install needs root, to install kmod"):
        prerequisites.see_to([prerequisites.PROGRAMS["depmod"]], install=True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(LabError, match="for Debian and Ubuntu; here: dnf install kmod"):
        prerequisites.see_to([prerequisites.PROGRAMS["depmod"]], install=True)
    prerequisites.see_to([], install=True)


def test_the_guests_init_has_the_c_library_of_this_machine(cache: Path) -> None:
    cache.mkdir()
    names = {name: data for name, _, data in kernel.init(cache)}
    assert {"lib/ld-linux-x86-64.so.2", "lib/libc.so.6", "init"} <= names.keys()
    assert all(names[name][:4] == b"\x7fELF" for name in names if name.startswith("lib/"))

# SPDX-License-Identifier: MIT
"""`cqnotify trace`: what it writes, prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_support import Tape, many, race

from cqnotify.check import running
from cqnotify.check.report import Logs
from cqnotify.cli import main

Capture = pytest.CaptureFixture[str]
RACE = "process 4711: ./receiver rxe0\n  27 records over 77.8 us\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of timelines, with one of a race, below the current one."""
    made = tmp_path / "recorded"
    made.mkdir()
    race().write(made)
    monkeypatch.chdir(tmp_path)
    return made


def refused(capsys: Capture, *args: object) -> tuple[int, str]:
    code = main(["trace", *map(str, args)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cqnotify: ")
    assert err.count("\n") == 1
    return code, err.removeprefix("cqnotify: ").rstrip("\n")


def test_it_prints_the_figures_and_says_where_the_page_is(folder: Path, capsys: Capture) -> None:
    assert main(["trace", "--from", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(RACE)
    assert err == "cqnotify: wrote trace.html\n"
    assert Path("trace.html").read_text().startswith("<!DOCTYPE html>")


def test_one_file_is_enough(folder: Path, capsys: Capture) -> None:
    (path,) = folder.glob("*.timeline")
    assert main(["trace", "--from", str(path), "-o", "a.html"]) == 0
    assert capsys.readouterr().err == "cqnotify: wrote a.html\n"
    assert Path("a.html").exists()


def test_a_still_picture_and_a_trace_for_perfetto(folder: Path, capsys: Capture) -> None:
    args = ["--output", "a.svg", "--chrome", "a.json"]
    assert main(["trace", "--from", str(folder), *args]) == 0
    assert capsys.readouterr().err == "cqnotify: wrote a.json\ncqnotify: wrote a.svg\n"
    assert Path("a.svg").read_text().startswith("<svg ")
    assert json.loads(Path("a.json").read_text())["traceEvents"]


def test_a_large_file_has_its_size(folder: Path, capsys: Capture) -> None:
    many(20_000).write(folder)
    assert main(["trace", "--from", str(folder)]) == 0
    assert capsys.readouterr().err == "cqnotify: wrote trace.html, 0.2 MB\n"


def test_the_summary_alone_writes_no_page(folder: Path, capsys: Capture) -> None:
    assert main(["trace", "--from", str(folder), "--summary"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(RACE)
    assert err == ""
    assert main(["trace", "--from", str(folder), "--summary", "--chrome", "a.json"]) == 0
    assert Path("a.json").exists()
    assert not Path("trace.html").exists()


def test_the_figures_as_json(folder: Path, capsys: Capture) -> None:
    Tape(9999).arm().write(folder)
    assert main(["trace", "--from", str(folder), "--summary", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["processes"]
    assert {first["pid"], second["pid"]} == {4711, 9999}


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "a program is missing"),
        (["--"], "a program is missing"),
        (["--from", "recorded", "--", "true"], "--from runs no program"),
    ],
)
def test_there_is_one_source(capsys: Capture, args: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as e:
        main(["trace", *args])
    assert e.value.code == 2
    assert capsys.readouterr().err.endswith(f"cqnotify trace: error: {said}\n")


def test_a_summary_alone_has_no_output(folder: Path, capsys: Capture) -> None:
    wanted = "--summary writes no page: leave out --output or --summary"
    assert refused(capsys, "--from", folder, "--summary", "-o", "a.html") == (2, wanted)


def test_what_is_not_there_or_no_timeline(folder: Path, capsys: Capture) -> None:
    nothing = "cannot read nothing: No such file or directory"
    assert refused(capsys, "--from", "nothing") == (1, nothing)
    (path,) = folder.glob("*.timeline")
    path.write_bytes(b"something else")
    said = f"{path} is not a timeline: it does not begin with cqntime2"
    assert refused(capsys, "--from", folder) == (1, said)


@pytest.mark.parametrize("option", ["--output", "--chrome"])
def test_what_cannot_be_written(folder: Path, capsys: Capture, option: str) -> None:
    assert main(["trace", "--from", str(folder), option, "none/a.html"]) == 1
    said = "cqnotify: cannot write none/a.html: No such file or directory\n"
    assert capsys.readouterr().err == said


def test_a_picture_of_too_much(folder: Path, capsys: Capture) -> None:
    many(1000).write(folder)
    assert main(["trace", "--from", str(folder), "-o", "a.svg"]) == 1
    err = capsys.readouterr().err
    assert "up to 400 marks" in err
    assert "cqnotify: wrote a.html" in err  # in its place: a run cannot be repeated
    assert Path("a.html").read_text().startswith("<!DOCTYPE html>")
    assert not Path("a.svg").exists()


# ---- a program that is run ------------------------------------------------------------------


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """An observer that notes how it is called, and leaves the timeline of a race."""
    calls: list[object] = []

    def run_observed(command: list[str], logs: Logs, *, timeline_records: int) -> int:
        calls.append((command, timeline_records))
        race().write(logs.folder)
        return 7

    monkeypatch.setattr(running, "run_observed", run_observed)
    return calls


def test_a_program_is_run_with_its_arguments_and_its_exit_code_is_ours(
    folder: Path, observed: list[object], capsys: Capture
) -> None:
    assert main(["trace", "--records", "5000", "--", "prog", "-o", "x", "--from"]) == 7
    assert main(["trace", "prog", "--", "-o"]) == 7
    assert observed == [(["prog", "-o", "x", "--from"], 5000), (["prog", "--", "-o"], 250_000)]
    assert capsys.readouterr().out.startswith(RACE)


def test_the_picture_is_of_what_was_recorded(folder: Path, observed: list[object]) -> None:
    assert main(["trace", "-o", "run.svg", "--", "prog"]) == 7
    assert main(["trace", "-o", "from.svg", "--from", str(folder)]) == 0
    assert Path("run.svg").read_text() == Path("from.svg").read_text() != ""


def test_the_timelines_are_kept(observed: list[object], folder: Path, capsys: Capture) -> None:
    assert main(["trace", "-o", "run.svg", "--keep", "new", "--", "prog"]) == 7
    assert main(["trace", "-o", "from.svg", "--from", "new"]) == 0
    assert Path("run.svg").read_text() == Path("from.svg").read_text() != ""
    Path("new/1.1.log").touch()
    capsys.readouterr()
    why = "--keep new: the folder has logs of another run"
    assert refused(capsys, "--keep", "new", "--", "prog") == (2, why)


def test_a_program_that_is_not_there(folder: Path, capsys: Capture) -> None:
    assert refused(capsys, "/none/such") == (
        127,
        "cannot run /none/such: No such file or directory",
    )


def test_a_program_that_uses_no_verbs(folder: Path, capsys: Capture) -> None:
    code, said = refused(capsys, "--", "true")
    assert code == 1
    assert said == "the program left no timeline: it used no verbs, or could not be observed"

# SPDX-License-Identifier: MIT
"""`cqnotify check`: what it prints, its options, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_support import (
    LOST,
    check_command,
    compile_c,
    counts,
    finding,
    module,
    place,
    process,
    program,
    stand_in,
    text,
    withdrawn,
    write_log,
)
from support import DEADLINE

from cqnotify.check import _symbols
from cqnotify.cli import main

pytestmark = pytest.mark.usefixtures("no_observer")
Capture = pytest.CaptureFixture[str]
VERBS = module(0x7F00_0000_0000, "/usr/lib/libibverbs.so.1")


def check(capfd: Capture, *arguments: object) -> tuple[int, str, str]:
    code = main(["check", *map(str, arguments)])
    return code, *capfd.readouterr()


def refused(capfd: Capture, *arguments: object) -> str:
    with pytest.raises(SystemExit) as e:
        main(["check", *map(str, arguments)])
    assert e.value.code == 2
    return capfd.readouterr().err.splitlines()[-1]


@pytest.fixture
def receiver(tmp_path: Path) -> Path:
    source = tmp_path / "receiver.c"
    source.write_text(
        "#include <stdio.h>\n"
        '__attribute__((noinline)) int wait_for(void) { return puts(""); }\n'
        "int main(void) {\n    return wait_for() + 1;\n}\n"
    )
    return compile_c(source, tmp_path / "receiver", "-g", "-O0")


def address_of(path: Path, function: str) -> int:
    """An address within a function, behind a call in it."""
    listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    (start,) = re.findall(rf"^(\w+) T {function}$", listing, re.M)
    return int(start, 16) + 10


def lost(receiver: Path, number: int = 1, **values: Any) -> dict[str, Any]:
    frames = [0x1000_0000 + address_of(receiver, name) for name in ("wait_for", "main")]
    sleep, arm = place("sleep", *frames), place("arm", frames[1], tid=78)
    return finding(number=number, values={**LOST, **values}, where=[sleep, arm])


def start(receiver: Path) -> list[dict[str, Any]]:
    return [process(77, "./receiver"), module(0x1000_0000, receiver), VERBS]


def test_an_error_is_explained_and_the_exit_code_is_66(
    receiver: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    total = counts(cqs=1, arms=3, events=2, acks=2, polls=12, completions=1)
    path = program(tmp_path, *start(receiver), lost(receiver), total, then="print('out')")
    code, out, err = check(capfd, "--", path)
    assert (code, out) == (66, "out\n")
    assert err == (
        "cqnotify check: error: lost wake-up: a thread sleeps although completions wait "
        "[lost-wakeup]\n"
        "  The main thread of ./receiver (process 77) sleeps in ibv_get_cq_event() on channel 1. "
        "No event is\n"
        "  on its way, but CQ 1 holds 200 completions that nobody polls: the CQ was armed after "
        "they had\n"
        "  come. CQ 1 so far: 3 arms, 2 events, 12 polls.\n"
        "  It sleeps here:\n"
        "    wait_for  receiver.c:2\n"
        "    main      receiver.c:4\n"
        "  Last armed here, by thread 78:\n"
        "    main  receiver.c:4\n"
        "  Why: Only a completion that is added after the arm raises an event. One that is added "
        "between the\n"
        "    last poll and the arm raises none: it stays in the CQ until somebody polls.\n"
        '    ibv_req_notify_cq(3): "Upon the addition of a new CQ entry (CQE) to cq, a completion '
        "event will\n"
        '    be added to the completion channel associated with the CQ."\n'
        "  What to do: After ibv_req_notify_cq(), poll once more. If that finds a "
        "completion, handle it and\n"
        "    begin again; sleep only if it finds none. The order that loses nothing: wait "
        "for the event,\n"
        "    acknowledge it, arm the CQ, poll until ibv_poll_cq() returns 0, wait again.\n"
        "cqnotify check: 1 error, 0 warnings; 1 process: 1 CQ, 3 arms, 2 events, 2 acks, 12 polls, "
        "1 completion\n"
    )


@pytest.mark.parametrize("options", [[], ["--"], ["-v"], ["-v", "--"], ["--error-exitcode", "9"]])
@pytest.mark.parametrize("code", [0, 7])
def test_without_an_error_the_exit_code_is_that_of_the_program(
    options: list[str], code: int, tmp_path: Path, capfd: Capture
) -> None:
    warning = finding("late-wakeup")
    path = program(tmp_path, process(), VERBS, warning, then=f"sys.exit({code})")
    found, _, err = check(capfd, *options, path, "-v", "--", "--from")
    assert found == code
    assert "cqnotify check: warning: late wake-up" in err
    assert "0 errors, 1 warning; 1 process\n" in err


@pytest.mark.parametrize(("option", "code"), [("9", 9), ("0", 3), ("255", 255)])
def test_the_exit_code_of_an_error_is_chosen(
    option: str, code: int, tmp_path: Path, capfd: Capture
) -> None:
    path = program(tmp_path, process(), finding(), then="sys.exit(3)")
    assert check(capfd, "--error-exitcode", option, path)[0] == code


def test_a_program_that_is_not_there_is_one_line(capfd: Capture) -> None:
    said = "cqnotify: cannot run ./gone: No such file or directory\n"
    assert check(capfd, "./gone", "-x") == (127, "", said)
    said = "cqnotify: cannot run /etc/passwd: Permission denied\n"
    assert check(capfd, "/etc/passwd") == (126, "", said)


def test_a_hanging_program_is_explained_while_it_hangs(tmp_path: Path) -> None:
    path = program(tmp_path, process(), VERBS, finding(), then="time.sleep(1000)")
    with subprocess.Popen(check_command(path), stderr=subprocess.PIPE, text=True) as ours:
        assert ours.stderr is not None
        assert "error: lost wake-up" in ours.stderr.readline()
        while "What to do" not in ours.stderr.readline():
            pass
        ours.send_signal(signal.SIGTERM)
        rest = ours.stderr.read()
        assert ours.wait(DEADLINE) == 66
    assert rest.count("lost wake-up") == 0, "it is not repeated"
    assert "1 error, 0 warnings; 1 process\n" in rest
    assert "without counts: ./receiver (77)\n" in rest


def test_the_same_finding_is_shown_once_and_counted(
    receiver: Path, tmp_path: Path, capfd: Capture
) -> None:
    again = text(process(78, "./receiver"), module(0x1000_0000, receiver), lost(receiver))
    path = program(
        tmp_path,
        *start(receiver),
        lost(receiver),
        lost(receiver, 2, cq=9),
        finding("late-wakeup", 3),
        finding("late-wakeup", 4),
        then=f"log({again!r}, '78.1.log')",
    )
    _, _, err = check(capfd, path)
    assert err.count("It sleeps here") == 1
    assert err.count("[lost-wakeup] 3 times in 2 processes, the first is shown above\n") == 1
    assert err.count("[late-wakeup]") == 1
    assert "  Found 2 times.\n" in err
    assert "3 errors, 2 warnings; 2 processes, 1 of them with libibverbs\n" in err


def test_a_finding_that_is_withdrawn_is_no_error(tmp_path: Path, capfd: Capture) -> None:
    path = program(tmp_path, process(), finding(), withdrawn())
    code, _, err = check(capfd, path)
    assert code == 0
    assert "lost" not in err


def test_one_that_was_shown_is_withdrawn_with_a_line(tmp_path: Path) -> None:
    path = program(
        tmp_path, process(), finding(), then=f"sys.stdin.read()\nlog({text(withdrawn())!r})"
    )
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(check_command(path), text=True, **pipes) as ours:  # type: ignore[call-overload]
        while "What to do" not in ours.stderr.readline():
            pass
        ours.stdin.close()
        rest = ours.stderr.read()
        assert ours.wait(DEADLINE) == 0
    said = "cqnotify check: withdrawn: lost-wakeup in process 77 does not hold any more\n"
    assert said in rest
    assert "0 errors" in rest


def test_information_is_a_line_and_more_with_v(tmp_path: Path, capfd: Capture) -> None:
    values = {"qp": 1, "cq": 1, "wr_id": 5, "status": 12, "vendor": 129}
    path = program(
        tmp_path, process(), VERBS, finding("failed-completion", values=values), counts(qps=2)
    )
    _, _, err = check(capfd, path)
    assert err.startswith(
        "cqnotify check: information: A work request of QP 1 failed: IBV_WC_RETRY_EXC_ERR, wr_id "
        "5, vendor error 0x81, polled from CQ 1. [failed-completion]\n"
    )
    assert "What to do" not in err
    _, _, err = check(capfd, "-v", path)
    assert "Why: The peer did not answer" in err
    assert "counted as well: qps 2\n" in err


def test_long_backtraces_are_cut_without_v(tmp_path: Path, capfd: Capture) -> None:
    frames = [0x5001 + n for n in range(40)]
    path = program(tmp_path, process(), finding(where=[place("sleep", *frames), place("other")]))
    _, _, err = check(capfd, path)
    assert "    ... and 28 more, which -v shows\n" in err
    assert "  Other here:\n    not known\n" in err
    _, _, err = check(capfd, "-v", path)
    assert err.count("?+0x50") == 40


def test_without_addr2line_a_line_says_what_to_install(
    receiver: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_symbols, "TOOLS", ())
    path = program(tmp_path, *start(receiver), lost(receiver), lost(receiver, 2))
    _, _, err = check(capfd, path)
    assert err.count("install binutils") == 1
    assert re.search(r"^    \?  receiver\+0x[0-9a-f]+$", err, re.M)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "the observer was in no program. It cannot get into setuid and static programs"),
        ([process()], "no program loaded libibverbs: there was nothing to check"),
        ([process(), VERBS, counts(cqs=0)], "no program created a CQ: there was nothing to check"),
        (
            [process(), VERBS],
            "ended by a signal or still running, so without counts: ./receiver (77)",
        ),
        (
            [process(), VERBS, {**counts(cqs=1, polls=7), "kind": "so-far"}],
            "ended by a signal or still running, so counted until a thread hung: ./receiver (77)",
        ),
    ],
)
def test_a_program_in_which_there_was_nothing_is_told(
    lines: list[dict[str, Any]], said: str, tmp_path: Path, capfd: Capture
) -> None:
    code, _, err = check(capfd, program(tmp_path, *lines))
    assert code == 0
    assert f"cqnotify check: {said}" in err


def test_one_line_says_why_a_program_cannot_be_observed(tmp_path: Path, capfd: Capture) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 4; }\n")
    path = compile_c(source, tmp_path / "static", "-static")
    code, _, err = check(capfd, "--", path)
    assert code == 4
    assert err.splitlines() == [
        f"cqnotify check: cannot observe this program: {path} is statically linked: no dynamic "
        "linker loads the observer"
    ]


def test_a_rule_that_is_not_known_is_a_warning(tmp_path: Path, capfd: Capture) -> None:
    path = program(tmp_path, process(), finding("brand-new", values={}))
    code, _, err = check(capfd, path)
    assert code == 0
    assert "warning: brand-new" in err


# ---- suppressions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suppression", "left_out"),
    [
        ("lost-wakeup", True),
        ("lost-wakeup:wait_for", True),
        ("lost-wakeup:main", True),
        ("lost*:wait*", True),
        ("*", True),
        ("lost-wakeup:other", False),
        ("late-wakeup", False),
    ],
)
@pytest.mark.parametrize("way", ["option", "file"])
def test_findings_are_suppressed_by_rule_and_function(
    suppression: str, left_out: bool, way: str, receiver: Path, tmp_path: Path, capfd: Capture
) -> None:
    path = program(tmp_path, *start(receiver), lost(receiver), lost(receiver, 2))
    file = tmp_path / "suppressions"
    file.write_text(f"# why\n\n  {suppression}  # because\n")
    options = ["--suppress", suppression] if way == "option" else ["--suppressions", file]
    code, _, err = check(capfd, *options, path)
    assert code == (0 if left_out else 66)
    assert ("lost wake-up" in err) != left_out
    assert ("0 errors, 0 warnings, 2 suppressed;" in err) == left_out


def test_cqnotify_itself_may_poll_what_it_destroyed(tmp_path: Path, capfd: Capture) -> None:
    source = tmp_path / "core.c"
    source.write_text("int main(void) { return 0; }\nint cqn_qp_drain(void) { return main(); }\n")
    core = compile_c(source, tmp_path / "core", "-g", "-O0")
    where = [place("poll", 0x1000_0000 + address_of(core, "cqn_qp_drain"))]
    lines = [process(), module(0x1000_0000, core), finding("qp-destroyed", where=where)]
    code, _, err = check(capfd, program(tmp_path, *lines))
    assert code == 0
    assert "0 errors, 0 warnings; 1 process\n" in err


def test_suppressions_are_generated(receiver: Path, tmp_path: Path, capfd: Capture) -> None:
    late = finding("late-wakeup", 2)
    path = program(tmp_path, *start(receiver), lost(receiver), late)
    _, _, err = check(capfd, "--gen-suppressions", path)
    assert err.endswith("\nlost-wakeup:wait_for\nlate-wakeup\n")
    file = tmp_path / "suppressions"
    file.write_text("".join(err.splitlines(keepends=True)[-2:]))
    assert check(capfd, "--suppressions", file, path)[0] == 0


def test_a_suppression_of_no_rule_is_wrong_usage(tmp_path: Path, capfd: Capture) -> None:
    code, _, err = check(capfd, "--suppress", "nonsense:main", "true")
    assert code == 2
    assert err.startswith("cqnotify: there is no rule 'nonsense'; there is lost-wakeup, nothing-")
    file = tmp_path / "suppressions"
    file.write_text("lost-wakeup\nnonsense\n")
    code, _, err = check(capfd, "--suppressions", file, "true")
    assert code == 2
    assert err.startswith(f"cqnotify: {file}, line 2: there is no rule 'nonsense'")
    assert check(capfd, "--suppressions", tmp_path / "gone", "true")[0] == 1


# ---- JSON, and logs of other runs -------------------------------------------------------------


def test_the_report_as_json(receiver: Path, tmp_path: Path, capfd: Capture) -> None:
    path = program(
        tmp_path, *start(receiver), lost(receiver), lost(receiver, 2), counts(cqs=1, arms=3)
    )
    file = tmp_path / "report.json"
    code, out, _ = check(capfd, "--json", file, "--", path, "-a")
    assert (code, out) == (66, "")
    report = json.loads(file.read_text())
    assert report["version"] == 1
    assert (report["command"], report["exit_code"]) == ([path, "-a"], 0)
    assert report["counts"] == {"cqs": 1, "arms": 3}
    (one,) = report["processes"]
    assert (one["pid"], one["command"], one["finished"]) == (77, ["./receiver"], True)
    (found,) = report["findings"]
    assert (found["rule"], found["severity"], found["count"]) == ("lost-wakeup", "error", 2)
    assert found["values"] == LOST
    assert found["processes"] == [77]
    assert found["manual"][0]["page"] == "ibv_req_notify_cq(3)"
    assert [where["what"] for where in found["where"]] == ["sleep", "arm"]
    frames = found["where"][0]["frames"]
    assert [(frame["function"], frame["line"]) for frame in frames] == [
        ("wait_for", 2),
        ("main", 4),
    ]
    assert frames[0]["module"] == str(receiver)
    assert {"headline", "sentence", "why", "mend", "tid"} <= found.keys()


def test_logs_of_another_run_are_reported(receiver: Path, tmp_path: Path, capfd: Capture) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    write_log(logs, *start(receiver), lost(receiver))
    code, _, err = check(capfd, "--from", logs)
    assert code == 66
    assert "    wait_for  " in err
    assert check(capfd, "--error-exitcode", 0, "--from", logs)[0] == 0
    code, _, err = check(capfd, "--from", tmp_path / "gone")
    assert (code, err) == (1, f"cqnotify: there is no folder {tmp_path / 'gone'}\n")


def test_the_variables_for_other_programs_are_printed(tmp_path: Path, capfd: Capture) -> None:
    logs = tmp_path / "logs"
    code, out, err = check(capfd, "--print-env", logs)
    assert (code, err) == (0, "")
    assert out == f"LD_AUDIT={stand_in()}\nCQNOTIFY_CHECK={logs}\n"
    assert logs.is_dir()
    path = program(tmp_path, process(), finding())
    subprocess.run(["env", *out.split(), path], check=True)
    assert check(capfd, "--from", logs)[0] == 66


def test_logs_are_kept_in_a_folder_and_otherwise_removed(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = program(tmp_path, process(), finding())
    assert check(capfd, path)[0] == 66
    assert os.listdir(tmp_path / "tmp") == []
    kept = tmp_path / "kept"
    assert check(capfd, "--keep", kept, path)[0] == 66
    assert check(capfd, "--from", kept)[0] == 66
    code, _, err = check(capfd, "--keep", kept, path)
    assert (code, err) == (2, f"cqnotify: --keep {kept}: the folder has logs of another run\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a program to run is missing"),
        (["--"], "a program to run is missing"),
        (["--from", "x", "true"], "--from and --print-env run no program"),
        (["--print-env", "x", "--", "true"], "--from and --print-env run no program"),
        (["--from", "x", "--print-env", "y"], "not allowed with argument --from"),
        (["--error-exitcode", "256", "true"], "'256' is not a whole number, 0 to 255"),
    ],
)
def test_what_is_wrong_usage(arguments: list[str], said: str, capfd: Capture) -> None:
    assert refused(capfd, *arguments).endswith(said)

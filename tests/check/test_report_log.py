# SPDX-License-Identifier: MIT
"""cqnotify.check._log: logs that grow, and lines that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_support import counts, finding, module, place, process, text, withdrawn, write_log

from cqnotify.check._log import Logs, Module


def test_a_log_is_read_with_its_process_modules_and_counts(tmp_path: Path) -> None:
    where = [place("sleep", 0x7001, 0x7002, tid=78)]
    write_log(
        tmp_path,
        process(77, "./a.out", "-e"),
        module(0x7000, "/bin/a"),
        finding(where=where, tid=78),
        module(0x9000, "/bin/b"),
        counts(cqs=1, arms=3),
    )
    logs = Logs(tmp_path)
    (found,) = logs.read()
    assert (found.rule, found.number, found.tid, found.values["cq"]) == ("lost-wakeup", 1, 78, 1)
    assert [(p.what, p.tid, p.frames) for p in found.where] == [("sleep", 78, (0x7001, 0x7002))]
    assert found.modules == (Module(0x7000, "/bin/a"),), "those that were loaded by then"
    (one,) = logs.processes
    assert one is found.process
    assert (one.pid, one.parent, one.command, one.name) == (77, 1, ("./a.out", "-e"), "./a.out")
    assert one.counts == {"cqs": 1, "arms": 3}
    assert one.finished
    assert logs.findings == [found]


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = write_log(tmp_path, process())
    logs = Logs(tmp_path)
    assert logs.read() == []
    whole = text(finding())
    for n in range(len(whole)):
        with open(path, "a") as file:
            file.write(whole[n])
        assert len(logs.read()) == (n == len(whole) - 1)
    assert logs.read() == []


def test_logs_of_several_processes_appear_one_by_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.read() == []
    assert logs.processes == []
    write_log(tmp_path, process(1), finding(), name="1.1.log")
    assert [f.process.pid for f in logs.read()] == [1]
    write_log(tmp_path, process(2), finding(), name="2.1.log")
    write_log(tmp_path, process(1, "exec"), finding(), name="1.2.log")
    (tmp_path / "1.1.timeline").write_text("not a log")
    assert sorted(f.process.name for f in logs.read()) == ["./receiver", "exec"]
    assert len(logs.processes) == 3


def test_a_withdrawn_finding_is_returned_again_if_it_was_seen(tmp_path: Path) -> None:
    path = write_log(tmp_path, process(), finding())
    logs = Logs(tmp_path)
    (seen,) = logs.read()
    with open(path, "a") as file:
        file.write(text(withdrawn(), finding(number=2), withdrawn(2), finding(number=3)))
    again, third = logs.read()
    assert again is seen
    assert seen.withdrawn
    assert third.number == 3
    assert not third.withdrawn
    assert logs.findings == [third]


@pytest.mark.parametrize(
    "line",
    [
        "\n",
        "nonsense\n",
        '{"kind": "finding"\n',
        "[]\n",
        "1\n",
        '{"kind": "unknown"}\n',
        '{"kind": "module", "base": "x"}\n',
        '{"kind": "withdrawn", "number": 99}\n',
        '{"kind": "withdrawn"}\n',
        '{"kind": "finding", "rule": 7}\n',
        "\x00\xff\n",
        "[" * 10_000 + "\n",
    ],
    ids=lambda line: line[:20].strip() or "empty",
)
def test_a_line_that_is_wrong_is_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "77.1.log"
    path.write_text(text(process()) + line + text(finding()), encoding="latin-1")
    logs = Logs(tmp_path)
    assert [f.rule for f in logs.read()] == ["lost-wakeup"]


@pytest.mark.parametrize(
    "change",
    [
        {"values": 7},
        {"where": 7},
        {"where": [7, {}, {"frames": 7}, {"what": 1, "frames": ["zz", None, 5]}]},
        {"number": None},
        {"number": "x"},
        {"tid": []},
        {"time": "soon"},
    ],
    ids=str,
)
def test_a_finding_with_wrong_values_is_still_one(change: dict[str, Any], tmp_path: Path) -> None:
    write_log(tmp_path, process(), {**finding(), **change}, {**finding(number=5), **change})
    assert len(Logs(tmp_path).read()) == 2


def test_a_finding_that_comes_again_has_its_last_values(tmp_path: Path) -> None:
    path = write_log(tmp_path, process(), finding("late-wakeup", values={"times": 1}))
    logs = Logs(tmp_path)
    (found,) = logs.read()
    with open(path, "a") as file:
        file.write(text(finding("late-wakeup", values={"times": 2})))
    assert logs.read() == []
    assert found.values == {"times": 2}
    with open(path, "a") as file:
        file.write(text(withdrawn(), finding("late-wakeup", values={"times": 3})))
    (again,) = logs.read()
    assert again.values == {"times": 3}
    assert logs.findings == [again]


def test_the_program_is_the_module_without_a_path(tmp_path: Path) -> None:
    write_log(tmp_path, process(program="/bin/a"), module(0x7000, ""), finding())
    (found,) = Logs(tmp_path).read()
    assert found.modules == (Module(0x7000, "/bin/a"),)
    assert found.process.program == "/bin/a"


@pytest.mark.parametrize("child", ["5.0", "9.0"])
def test_a_forked_process_has_the_modules_of_its_parent(child: str, tmp_path: Path) -> None:
    lines = process(int(child[0]), forked="7.0", program="/bin/a"), finding()
    write_log(tmp_path, *lines, name=f"{child}.log")
    write_log(tmp_path, process(7, program="/bin/a"), module(0x7000, ""), finding(), name="7.0.log")
    assert [f.modules for f in Logs(tmp_path).read()] == [(Module(0x7000, "/bin/a"),)] * 2


@pytest.mark.parametrize("forked", ["7.0", "8.0", "../7.0", 7])
def test_a_parent_that_is_not_there_or_itself_has_no_modules(forked: Any, tmp_path: Path) -> None:
    write_log(tmp_path, process(7, forked=forked), finding(), name="7.0.log")
    assert [f.modules for f in Logs(tmp_path).read()] == [()]


def test_a_folder_that_is_gone_has_no_logs(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "gone")
    assert logs.read() == []
    assert logs.processes == []

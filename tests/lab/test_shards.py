# SPDX-License-Identifier: MIT
"""The suite in several guests. Here processes of this machine take the place of the guests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import shards

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE = 60

# Its words end with the command that the "guest" shall run.
DRIVER = """
import os, sys
words = sys.argv[1:]
os.environ["GUEST"] = words[0]
if words[1] == words[0]:  # this guest does not come up
    sys.exit(125)
os.execvp(sys.executable, [sys.executable, *words[words.index("--") + 2 :]])
"""

SUITE = {
    "test_a.py": """
import os, pytest
@pytest.mark.parametrize("number", range(30))
def test_many(number): pass
def test_fails():
    print("it says this")
    assert [1, 2] == [1, 3]
""",
    "test_b.py": """
import pytest, warnings
@pytest.fixture(scope="module")
def shared(): return []
def test_first(shared): shared.append(1)
def test_second(shared): assert shared == [1]
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
@pytest.mark.xfail(strict=True)
def test_xfails(): assert False
def test_warns(): warnings.warn("beware")
@pytest.fixture
def broken(): raise OSError("no luck")
def test_error(broken): pass
""",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


# ---- what is handed out ------------------------------------------------------------------


def test_every_test_is_in_one_lot_and_a_lot_is_of_one_file_and_not_too_long() -> None:
    tests = [f"test_{file}.py::test_{number}" for file in "abc" for number in range(100)]
    seconds = {test: 3.0 for test in tests if "_b" in test} | {tests[7]: 100.0}
    made = shards.lots(tests, seconds)
    assert sorted(test for lot in made for test in lot) == sorted(tests)
    lengths = []
    for lot in made:
        assert len({test.partition("::")[0] for test in lot}) == 1
        assert lot == sorted(lot, key=tests.index)
        lengths.append(sum(seconds.get(test, shards.UNKNOWN) for test in lot))
        assert len(lot) == 1 or lengths[-1] <= shards.LOT
    assert lengths == sorted(lengths, reverse=True)
    assert made[0] == [tests[7]]


@pytest.mark.parametrize(
    ("expected", "cores", "available", "guests"),
    [
        (600, 2, 16000, 2),
        (600, 1, 16000, 1),
        (600, 2, 4000, 1),  # MB
        (600, 2, 100, 1),  # which the lab then refuses, and says why
        (600, 64, 64000, shards.MOST),
        (100, 2, 16000, 1),  # seconds
        (130, 4, 16000, 2),
    ],
)
def test_there_are_as_many_guests_as_pay_and_fit(
    expected: float, cores: int, available: int, guests: int
) -> None:
    assert shards.how_many(expected, cores, available, 2048) == guests


@pytest.mark.parametrize(
    ("words", "guests"),
    [
        (["--accel", "uml"], 4),
        (["--accel", "kvm"], 4),
        (["--accel", "uml", "--virtual-time"], 2),
        (["--accel", "tcg"], 2),
    ],
)
def test_guests_share_cores_where_the_tests_wait(words: list[str], guests: int) -> None:
    assert shards.places(["driver", *words, "--"], 2) == guests


# ---- a run -------------------------------------------------------------------------------


def command(folder: Path, *arguments: str, absent: int = 0) -> list[str]:
    (folder / "driver.py").write_text(DRIVER)
    program = str(PROJECT / "tests/lab/shards.py")
    driver = [sys.executable, str(folder / "driver.py"), "{shard}", str(absent)]
    words = [sys.executable, program, "2", str(folder / "durations.json"), *driver]
    return [*words, "--", "python", "-m", "pytest", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a suite of some files in two guests."""

    def run(
        suite: dict[str, str], *arguments: str, absent: int = 0
    ) -> subprocess.CompletedProcess[str]:
        for name, text in suite.items():
            (tmp_path / name).write_text(text)
        return subprocess.run(
            command(tmp_path, *arguments, absent=absent),
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


def closing_line(result: subprocess.CompletedProcess[str]) -> str:
    """Without how long it took."""
    return re.sub(r" in [\d.]+s.*", "", result.stdout.splitlines()[-1].strip("= "))


def test_report_is_one(run: Run, tmp_path: Path) -> None:
    result = run(SUITE, "--junitxml=junit.xml", "--durations=3", "-rA", "-W", "default")
    counts = "1 failed, 33 passed, 1 skipped, 1 xfailed, 1 warning, 1 error"
    assert closing_line(result) == counts, result.stdout + result.stderr
    assert result.returncode == 1
    assert "At index 1 diff: 2 != 3" in result.stdout
    assert "it says this" in result.stdout
    assert "OSError: no luck" in result.stdout
    assert "UserWarning: beware" in result.stdout
    assert "slowest 3 durations" in result.stdout
    assert "SKIPPED [1] test_b.py:7: not today" in result.stdout
    suite = xml.etree.ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        "37",
        "1",
        "1",
        "2",
    ]
    seconds = json.loads((tmp_path / "durations.json").read_text())
    assert len(seconds) == 37


def test_with_v_each_line_says_which_guest_it_is_from(run: Run) -> None:
    text = "import os, pathlib, time\ndef test():\n"  # each guest waits for the other one
    text += " pathlib.Path(os.environ['GUEST']).touch()\n"
    text += " while not all(pathlib.Path(guest).exists() for guest in '12'): time.sleep(0.01)\n"
    suite = {f"test_{name}.py": text for name in "abcd"}
    result = run(suite, "-v")
    assert result.returncode == 0
    lines = re.findall(r"^\[([12])\] \[ *\d+%\] PASSED (test_\w\.py)::test", result.stdout, re.M)
    assert sorted(file for _, file in lines) == sorted(suite)
    assert {guest for guest, _ in lines} == {"1", "2"}


def test_tests_that_are_left_out_are_left_out_in_the_guests(run: Run) -> None:
    result = run(SUITE, "-q", "-k", "second or first or many", "--deselect=test_a.py::test_many[3]")
    assert closing_line(result) == "31 passed, 6 deselected"
    assert result.returncode == 0


def test_no_test_is_5_and_boots_nothing(run: Run) -> None:
    result = run(SUITE, "-k", "nothing", absent=1)
    assert result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert result.stderr == ""


def test_file_that_does_not_import_is_2(run: Run) -> None:
    result = run({**SUITE, "test_c.py": "import nothing_of_that_name"})
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "No module named 'nothing_of_that_name'" in result.stdout


def test_file_that_does_not_import_in_the_guest_fails(run: Run) -> None:
    text = "import os\nassert 'GUEST' not in os.environ\ndef test(): pass\n"
    result = run({**SUITE, "test_c.py": text}, "-q", "test_b.py::test_first", "test_c.py")
    assert closing_line(result) == "1 failed, 1 passed, 1 error"
    assert "the guest finds no such test" in result.stdout
    assert result.returncode == 1


def test_test_of_which_a_guest_says_nothing_fails(run: Run) -> None:
    conftest = "import os\ndef pytest_runtest_protocol(item):\n"
    conftest += (
        "    return True if 'GUEST' in os.environ and item.name == 'test_second' else None\n"
    )
    result = run({**SUITE, "conftest.py": conftest}, "-k", "first or second")
    assert closing_line(result) == "1 failed, 1 passed, 35 deselected"
    assert "the guest has not reported this test" in result.stdout
    assert result.returncode == 1


def test_fixtures_of_a_conftest_are_there_in_every_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    suite = {f"tests/test_{name}.py": "def test(it): assert it == 7\n" for name in "abcdef"}
    conftest = "import pytest\n@pytest.fixture\ndef it(): return 7\n"
    result = run({**suite, "tests/conftest.py": conftest})
    assert closing_line(result) == "6 passed", result.stdout


def test_first_failure_ends_all_where_that_is_asked_for(run: Run) -> None:
    suite = {
        "test_a.py": "import time\ndef test(): time.sleep(1); assert False\n",
        "test_b.py": "import time\ndef test_1(): time.sleep(500)\ndef test_2(): pass\n",
    }
    result = run(suite, "-x")
    assert closing_line(result) == "1 failed"
    assert "stopping after 1 failures" in result.stdout
    assert result.returncode == 1


def test_guest_that_dies_names_the_test_and_the_others_go_on(run: Run) -> None:
    text = "import os\ndef test_kills(capfd):\n with capfd.disabled(): os.write(2, b'last words')\n"
    text += " os.kill(os.getpid(), 9)\ndef test_after(): pass\n"
    result = run(
        {**SUITE, "test_c.py": text},
        "-q",
        "--deselect=test_a.py::test_fails",
        "test_a.py",
        "test_c.py",
    )
    assert closing_line(result) == "1 failed, 31 passed, 1 deselected"
    failure = result.stdout[result.stdout.index("test_kills") :]
    assert re.search(r"guest [12] ended with -9 in this test\n    last words\n", failure)
    assert result.returncode == 1


def test_when_all_guests_have_died_what_was_not_run_is_said(run: Run) -> None:
    text = "import os\ndef test_kills(): os._exit(0)\ndef test_after(): pass\n"
    result = run({"test_a.py": text, "test_b.py": text})
    assert closing_line(result).startswith("2 failed")  # the second guest may have begun late
    assert re.search(r"no guest is left, and [12] tests have not been run", result.stdout)
    assert result.returncode == 1


def test_guest_that_does_not_come_up_is_done_without(run: Run) -> None:
    result = run(SUITE, "-q", "-k", "many", absent=2)
    assert closing_line(result) == "30 passed, 7 deselected"
    assert result.returncode == 0


# ---- what has failed is run again ----------------------------------------------------------

ONCE = """
import os, pathlib, pytest, time
def first(name):
    mark = pathlib.Path(name)
    if mark.exists(): return False
    mark.touch()
    return True
"""


def test_one_that_passes_then_is_flaky_and_shown_with_how_it_failed(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    flaky = "from once import *\ndef test_flaky():\n print('as it was')\n assert not first('x')\n"
    flaky += "@pytest.fixture\ndef it():\n assert not first('y')\n"
    flaky += "def test_of_a_fixture(it): pass\n"
    result = run({"test_c.py": flaky}, "-v", "--junitxml=junit.xml")
    assert closing_line(result) == "2 passed, 2 flaky", result.stdout + result.stderr
    assert result.returncode == 0
    shown = result.stdout.partition("flaky: failed, and passed when run again alone")[2]
    assert "FLAKY test_c.py::test_flaky\n" in shown
    assert "FLAKY test_c.py::test_of_a_fixture\n" in shown
    assert "as it was" in shown
    assert "AGAIN test_c.py::test_flaky" in result.stdout
    suite = xml.etree.ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["2", "0", "0"]


def test_it_runs_again_alone_when_all_others_have_ended(run: Run, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    flaky = "from once import *\ndef test_flaky():\n assert not first('x'), 'first'\n"
    flaky += " assert pathlib.Path('ended').exists()\n"
    other = "from once import *\ndef test_long():\n while not os.path.exists('x'):\n"
    other += "  time.sleep(0.01)\n time.sleep(1)\n first('ended')\n"
    result = run({"test_c.py": flaky, "test_d.py": other})
    assert closing_line(result) == "2 passed, 1 flaky", result.stdout + result.stderr


def test_a_guest_that_died_in_a_test_is_a_failure_that_another_may_mend(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    flaky = "from once import *\ndef test_kills():\n if first('x'): os._exit(3)\n"
    result = run({**SUITE, "test_c.py": flaky}, "-k", "many or kills")
    assert closing_line(result) == "31 passed, 7 deselected, 1 flaky", result.stdout
    assert "ended with 3 in this test" in result.stdout
    assert result.returncode == 0


def test_a_failure_that_stays_is_told_once(run: Run) -> None:
    text = "def test_it():\n import os\n open('runs', 'a').write('x')\n assert False\n"
    result = run({"test_a.py": text})
    assert closing_line(result) == "1 failed"
    assert result.stdout.count("FAILED test_a.py::test_it") == 1
    assert result.returncode == 1


def test_of_many_failures_none_is_run_again(run: Run, tmp_path: Path) -> None:
    n = shards.AGAIN + 5
    text = "import pytest\n"
    text += f"@pytest.mark.parametrize('i', range({n}))\ndef test_it(i):\n"
    text += " open('runs', 'a').write('x')\n assert False\n"
    result = run({"test_a.py": text})
    assert closing_line(result) == f"{n} failed"
    assert (tmp_path / "runs").stat().st_size == n


def test_leaks_in_any_guest_are_summed_up(run: Run) -> None:
    suite = {
        "conftest.py": "import sys\ncount = [0]\nsys.gettotalrefcount = lambda: count[0]\n",
        "test_a.py": "from conftest import count\ndef test(): count[0] += 3\n",
        "test_b.py": "def test(): pass\n",
    }
    result = run(suite, "-p", "tests.lab.leaks")
    assert closing_line(result) == "1 failed, 1 passed"
    assert "leaks 3 references per run" in result.stdout
    assert "runs of 2 tests; more than three runs of:\n  test_a.py::test: references [3, 3," in (
        result.stdout
    )


def test_interrupt_ends_all(tmp_path: Path) -> None:
    text = "import os, pathlib, time\ndef test():\n"
    text += " pathlib.Path(os.environ['GUEST']).write_text(str(os.getpid()))\n time.sleep(500)\n"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(text)
    with subprocess.Popen(
        command(tmp_path),
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        pids = [tmp_path / "1", tmp_path / "2"]
        end = time.monotonic() + PATIENCE
        while not all(path.exists() and path.read_text() for path in pids):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in out
    for path in pids:
        assert not Path("/proc", path.read_text()).exists()

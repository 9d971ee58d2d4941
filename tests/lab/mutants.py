# SPDX-License-Identifier: MIT
"""./lab mutants: changes the C core in many small ways, and shows which of them no test notices.

There are known mutants, each of which lacks one rule of the core (mutants.txt), and generated ones.
One core holds them all. Without a mutant, each test says which places it reaches; then each mutant
has the tests that reach it, until one fails, and fails no more without the mutant. Guests with a
clock that skips idle time run them (mutants_guest.py). mutants_explained.txt says of survivors why
they are none. Exit code: 1 if others survive.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import queue
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutants_planted import (
    Mutant,
    TableError,
    chosen,
    explained,
    known,
    mutants_of,
    planted,
    read,
)

LAB = Path(__file__).resolve().parent
PROJECT = LAB.parents[1]
TABLE = LAB / "mutants.txt"
EXPLAINED = LAB / "mutants_explained.txt"
RUNTIME = "csrc/mutants_runtime.h"  # in the copy
OF_MODEL = re.compile(r"MUTANT_(\w+)")  # in tests/model: each has a counterpart in the table
LOG = PROJECT / "build/mutants.log"  # what guests write to stderr
FOLDERS = ("await", "notify")  # of csrc, for generated ones
TESTS = (
    "aio",
    "api/test_arguments.py",
    "api/test_values.py",
    "base",
    "engine",
    "faults",
    "messages",
    "model",
    "notify",
    "trace",
    "work",
    "tools/test_report.py",
)
# They judge the build, or the time that something takes, or take longer than all others together.
LEFT_OUT = ("tests/base/test_threads.py::test_threads_with_a_context_each",)
LOT = 20.0  # seconds of tests that are run at once without a mutant
UNKNOWN = 0.2  # seconds of a test that never ran
SILENCE = 900.0  # seconds; a guest that says nothing for so long hangs
FLAGS = (
    *("-std=c11", "-O1", "-w", "-fPIC", "-fwrapv", "-fvisibility=hidden", "-fno-exceptions"),
    *("-UNDEBUG", "-DCQN_FAULTS", "-Icsrc", f"-I{sysconfig.get_path('include')}"),
)


def say(what: str) -> None:
    print(what, flush=True)


def fingerprint(*data: bytes) -> str:
    return hashlib.sha256(b"\0".join(data)).hexdigest()[:24]


# ---- a core with all mutants -------------------------------------------------------------------


class DoesNotCompileError(Exception):
    def __init__(self, source: str, said: str) -> None:
        super().__init__(f"{source} does not compile:\n{said}")
        self.source = source
        self.lines = {
            int(number) for number in re.findall(rf"{re.escape(source)}:(\d+):\d+: error", said)
        }


class Core:
    """The sources, with mutants, and the objects in the cache, by what they are compiled from."""

    def __init__(self, copy: Path, objects: Path) -> None:
        self.copy, self.objects = copy, objects
        self.pristine = {
            str(path.relative_to(PROJECT)): path.read_bytes()
            for path in sorted((PROJECT / "csrc").rglob("*.[ch]"))
        }
        self.refused: set[int] = set()

    def plant(self, mutants: dict[int, Mutant]) -> None:
        """Those that are no C are taken out of `mutants`."""
        by_file: dict[str, dict[int, Mutant]] = collections.defaultdict(dict)
        for number, mutant in mutants.items():
            by_file[mutant.file][number] = mutant
        owners: dict[str, list[int]] = {}
        shutil.copy(LAB / "mutants_runtime.h", self.copy / RUNTIME)
        for file, data in self.pristine.items():
            if file in by_file:
                data, owners[file] = planted(read(PROJECT, file), by_file[file])
            path = self.copy / file
            if path.read_bytes() != data:
                path.write_bytes(data)
        refused = set()
        for source, error in self.compile():
            numbers = {owners[source][line - 1] for line in error.lines if source in owners} - {0}
            if not numbers:
                raise error
            refused |= numbers
        for number in refused:
            del mutants[number]
        self.refused |= refused
        if refused:
            self.plant(mutants)

    def compile(self) -> list[tuple[str, DoesNotCompileError]]:
        headers = [(self.copy / file).read_bytes() for file in self.pristine if file.endswith(".h")]
        headers.append((self.copy / RUNTIME).read_bytes())
        common = fingerprint(" ".join(FLAGS).encode(), sys.version.encode(), *headers)
        sources = [
            file
            for file in self.pristine
            if file.endswith(".c")
            and not file.startswith("csrc/check/")
            and not file.endswith("gcov_dump.c")
        ]
        self.built: list[str] = []
        failed = []
        self.objects.mkdir(parents=True, exist_ok=True)

        def one(source: str) -> tuple[str, DoesNotCompileError] | None:
            made = (
                self.objects
                / f"{fingerprint(common.encode(), (self.copy / source).read_bytes())}.o"
            )
            self.built.append(str(made))
            if made.exists():
                os.utime(made)
                return None
            part = made.with_suffix(f".{os.getpid()}")
            done = subprocess.run(
                ["gcc", *FLAGS, "-c", source, "-o", part],
                cwd=self.copy,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                return source, DoesNotCompileError(source, done.stderr)
            part.rename(made)
            return None

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = [found for found in pool.map(one, sources) if found is not None]
        return failed

    def link(self) -> Path:
        for old in self.copy.glob("cqnotify/_core*.so"):
            old.unlink()
        core = self.copy / f"cqnotify/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
        command = ["gcc", "-shared", "-o", str(core), *sorted(self.built), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        self.forget_old()
        return core

    def forget_old(self) -> None:
        for path in self.objects.iterdir():
            if time.time() - path.stat().st_mtime > 7 * 86400:
                path.unlink()


# ---- guests -----------------------------------------------------------------------------------


class GuestError(Exception):
    """The guest ended, or hangs."""


@dataclass
class Report:
    test: str
    failed: list[str]
    seconds: float
    reached: list[int]
    passes_without: bool = False


class Guest:
    def __init__(self, command: list[str]) -> None:
        with LOG.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.rest = b""
        self.lines: collections.deque[bytes] = collections.deque()
        try:
            told = self.hear()
        except GuestError:
            raise SystemExit(f"the tests cannot be collected in a guest: see {LOG}") from None
        self.tests: list[str] = told["collected"]
        self.reached_by_import = set(told["reached"])

    def hear(self) -> Any:
        assert self.process.stdout is not None
        while not self.lines:
            if not select.select([self.process.stdout], [], [], SILENCE)[0]:
                raise GuestError("said nothing")
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise GuestError("ended")
            *lines, self.rest = (self.rest + data).split(b"\n")
            self.lines.extend(lines)
        return json.loads(self.lines.popleft())

    def run(
        self,
        tests: list[str],
        mutant: int = 0,
        *,
        seconds: dict[str, float],
        stop: bool = True,
        fresh: bool = False,
    ) -> Iterator[Report]:
        order = {"mutant": mutant, "tests": tests, "stop": stop, "fresh": fresh}
        order |= {"seconds": {test: seconds[test] for test in tests if test in seconds}}
        order |= {"options": ["-o", "faulthandler_timeout=86400", "--rdma-required"]}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise GuestError("ended") from None
        while "done" not in (told := self.hear()):
            yield Report(**told)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()


class Kept:
    """What each test reached, for the next run with the same core and the same file of tests."""

    def __init__(self, copy: Path, core: Path) -> None:
        self.path = copy / ".reached.json"
        self.copy = copy
        shared = [
            path
            for folder in ("cqnotify", "tests")
            for path in sorted((copy / folder).rglob("*.py"))
            if not path.name.startswith("test_") and "tests/lab/" not in str(path)
        ]
        self.common = fingerprint(core.read_bytes(), *(path.read_bytes() for path in shared))
        found = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.reports = {
            told["test"]: Report(**told)
            for file, (key, tests) in found.items()
            if key == self.key(file)
            for told in tests
        }

    def key(self, file: str) -> str:
        path = self.copy / file
        return fingerprint(self.common.encode(), path.read_bytes() if path.exists() else b"")

    def write(self, reports: list[Report]) -> None:
        files: dict[str, list[Any]] = collections.defaultdict(list)
        known = self.reports | {report.test: report for report in reports}
        for test, report in known.items():
            files[test.partition("::")[0]].append(asdict(report))
        table = {file: (self.key(file), tests) for file, tests in files.items()}
        self.path.write_text(json.dumps(table))


@dataclass
class Run:
    """What is known of the tests, and what they found."""

    command: list[str]  # of a guest
    jobs: int
    mutants: dict[int, Mutant]
    budget: int
    verbose: bool
    seconds: dict[str, float] = field(default_factory=dict)
    reaching: dict[int, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    by_import: set[int] = field(default_factory=set)
    failing: dict[str, str] = field(default_factory=dict)  # without a mutant
    caught: dict[int, tuple[str, str]] = field(default_factory=dict)
    ran: dict[int, int] = field(default_factory=dict)  # tests, of a survivor
    kills: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, todo: Iterable[Any], do: Any) -> None:
        """Each guest does one item at a time. If it ends in one, another guest does that again."""
        waiting: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        for item in todo:
            waiting.put((item, 0))
        troubles: list[BaseException] = []

        def work_in_guest() -> None:
            guest = None
            try:
                while not troubles:
                    item, tried = waiting.get_nowait()
                    guest = guest or Guest(self.command)
                    try:
                        do(guest, item, tried)
                    except GuestError as error:
                        guest.process.kill()
                        guest.process.wait()
                        guest = None
                        if tried == 2:
                            raise RuntimeError(f"three guests {error} in {item}") from error
                        waiting.put((item, tried + 1))
            except queue.Empty:
                pass
            except BaseException as error:
                troubles.append(error)
            finally:
                if guest is not None:
                    guest.end()

        threads = [threading.Thread(target=work_in_guest) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if troubles:
            raise troubles[0]

    # ---- without a mutant

    def learn(self, tests: list[str], by_import: set[int], kept: Kept) -> None:
        """Of the files of tests that have not changed it is known from the last run."""
        self.by_import = by_import
        left = []
        for test in tests:
            before = kept.reports.get(test)
            if before is None:
                left.append(test)
            elif before.failed:
                self.failing[test] = before.failed[0]
            else:
                self.learned(before)
        self.work(lots(left), self.learn_lot)
        reaching: dict[str, list[int]] = collections.defaultdict(list)
        for number, reached_by in self.reaching.items():
            for test in reached_by:
                reaching[test].append(number)
        kept.write(
            [Report(test, [], took, reaching[test]) for test, took in self.seconds.items()]
            + [Report(test, [why], 0.0, []) for test, why in self.failing.items()]
        )

    def learn_lot(self, guest: Guest, lot: list[str], tried: int) -> None:
        left = list(lot)
        again = []
        while left:
            reports = list(guest.run(left, seconds={}, stop=False))
            for report in reports:
                if report.failed:
                    again.append(report)
                else:
                    self.learned(report)
            left = left[len(reports) :]  # behind one that ended the child
        for report in again:
            (second,) = guest.run([report.test], seconds={})
            if second.failed:
                with self.lock:
                    self.failing[report.test] = second.failed[0]
            else:
                self.learned(second)

    def learned(self, report: Report) -> None:
        with self.lock:
            self.seconds[report.test] = report.seconds
            for number in report.reached:
                self.reaching[number].append(report.test)

    # ---- with a mutant

    def order(self, number: int) -> list[str]:
        """The tests that reach a mutant: those for its rule; one of each test function first; those
        that found mutants of this function or file; the short ones. As many as the budget has."""
        mutant = self.mutants[number]
        seen: collections.Counter[str] = collections.Counter()
        ranked = []
        for test in sorted(self.reaching[number], key=lambda test: self.seconds[test]):
            function = test.partition("[")[0]
            kills = self.kills[mutant.function, function] * 4 + self.kills[mutant.file, function]
            is_for_rule = bool(mutant.tests) and test.startswith(mutant.tests)
            ranked.append((not is_for_rule, seen[function], -kills, self.seconds[test], test))
            seen[function] += 1
        return [test for *_, test in sorted(ranked)[: self.budget]]

    def try_mutant(self, guest: Guest, number: int, tried: int) -> None:
        with self.lock:
            tests = self.order(number)
            seconds = dict(self.seconds)
        fresh = number in self.by_import
        while tests:
            last: Report | None = None
            try:
                for told in guest.run(tests, number, seconds=seconds, fresh=fresh):
                    last = told
            except GuestError:
                if tried == 1:
                    return self.found(number, last.test if last else tests[0], "the guest ended")
                raise
            assert last is not None
            if not last.failed:
                break
            if fresh or last.passes_without:
                return self.found(number, last.test, last.failed[0])
            (without,) = guest.run([last.test], seconds=seconds)
            if not without.failed:
                return self.found(number, last.test, last.failed[0])
            if tried == 0:
                guest.end()
                raise GuestError("is not as it was, after a mutant,")
            with self.lock:
                self.failing[last.test] = without.failed[0]
            tests = tests[tests.index(last.test) + 1 :]
        with self.lock:
            self.ran[number] = len(self.order(number))
            self.tell(number, f"survived {self.ran[number]} of {len(self.reaching[number])} tests")

    def found(self, number: int, test: str, why: str) -> None:
        with self.lock:
            self.caught[number] = test, why
            mutant, function = self.mutants[number], test.partition("[")[0]
            self.kills[mutant.function, function] += 1
            self.kills[mutant.file, function] += 1
            self.tell(number, f"{test}\n    {why.splitlines()[0]}")

    def tell(self, number: int, what: str) -> None:
        done = len(self.caught) + len(self.ran)
        if self.verbose:
            say(f"{self.mutants[number]}\n    {what}")
        elif done % 20 == 0:
            say(f"{done} of {len(self.mutants)} mutants: {len(self.caught)} were caught")


def lots(tests: list[str]) -> list[list[str]]:
    """In lots of one file, for guests."""
    cut: list[list[str]] = []
    for test in tests:
        file = test.partition("::")[0]
        full = not cut or len(cut[-1]) * UNKNOWN > LOT
        if full or cut[-1][0].partition("::")[0] != file:
            cut.append([])
        cut[-1].append(test)
    return sorted(cut, key=len, reverse=True)


# ---- the command ------------------------------------------------------------------------------


def sources() -> list[str]:
    return sorted(
        str(path.relative_to(PROJECT))
        for folder in FOLDERS
        for path in (PROJECT / "csrc" / folder).glob("*.[ch]")
    )


def select_mutants(options: argparse.Namespace, core: Core | None) -> dict[int, Mutant]:
    """Known ones have the numbers from 1 on; generated ones those behind, for ever the same as long
    as the core is."""
    mutants = dict(enumerate(known(PROJECT, options.table), 1))
    refused: set[Any] = set()
    while True:
        generated = chosen(PROJECT, sources(), options.count, options.seed, frozenset(refused))
        candidate = mutants | dict(enumerate(generated, len(mutants) + 1))
        before = dict(candidate)
        if core is None:
            return candidate
        core.plant(candidate)
        gone = {before[number].changes for number in before.keys() - candidate.keys()}
        for number in before.keys() - candidate.keys():
            if before[number].name:
                raise TableError(f"the mutant '{before[number].name}' does not compile")
            refused.add((before[number].file, before[number].changes))
        if not gone:
            return candidate


def idle_explanations(why: dict[Any, str]) -> list[str]:
    """The entries that are of no mutant, because the source has changed."""
    changed = {file for file, _, _ in why}
    keys = {mutant.key for file in changed for mutant in mutants_of(read(PROJECT, file))}
    keys |= {mutant.key for mutant in known(PROJECT, TABLE)}
    return [
        f"{file}: {function}()"
        for file, function, diff in why
        if (file, function, diff) not in keys
    ]


def report(run: Run, why: dict[Any, str], took: float) -> int:
    per_file: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    survivors, idle = [], []
    for number, mutant in sorted(
        run.mutants.items(), key=lambda item: (item[1].file, item[1].line)
    ):
        kind = (
            "caught"
            if number in run.caught
            else "explained"
            if mutant.key in why
            else "survived"
            if run.ran.get(number)
            else "not reached"
        )
        per_file[mutant.file][kind] += 1
        if kind == "survived":
            survivors.append(
                f"{mutant}\n    survived {run.ran[number]} of {len(run.reaching[number])} tests"
            )
        elif kind == "not reached":
            idle.append(str(mutant))
    for title, listed in (("survived", survivors), ("not reached by any test", idle)):
        if listed:
            say(f"\n{title}:\n" + "\n".join(listed))
    kinds = ("caught", "explained", "survived", "not reached")
    say(f"\n{'':32}" + "".join(f"{kind:>12}" for kind in kinds))
    total: collections.Counter[str] = collections.Counter()
    for file, counts in per_file.items():
        say(f"{file:32}" + "".join(f"{counts[kind]:12}" for kind in kinds))
        total += counts
    say(f"{'all':32}" + "".join(f"{total[kind]:12}" for kind in kinds))
    for test, said in run.failing.items():
        say(f"fails without a mutant, and was left out: {test}: {said}")
    share = 100 * total["caught"] / max(1, sum(total.values()) - total["explained"])
    say(f"{share:.1f} % of those that are not explained were caught; took {took / 60:.1f} min")
    return 1 if survivors or idle or run.failing else 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./lab mutants", description=__doc__)
    parser.add_argument(
        "count", nargs="?", type=int, default=200, metavar="N", help="generated ones (200)"
    )
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="run those whose report has this"
    )
    parser.add_argument("--tests", action="append", metavar="PATH", help="run no other tests")
    parser.add_argument("--table", type=Path, default=TABLE, help="the known ones (mutants.txt)")
    parser.add_argument("--explained", type=Path, default=EXPLAINED, help="(mutants_explained.txt)")
    parser.add_argument(
        "--budget",
        type=int,
        default=2000,
        metavar="TESTS",
        help="tests for each at most (%(default)s)",
    )
    parser.add_argument("-j", type=int, default=2, dest="jobs", help="guests (2)")
    parser.add_argument("--list", action="store_true", help="shows the mutants, and runs nothing")
    parser.add_argument("--verbose", action="store_true", help="shows what caught each")
    parser.add_argument("--copy", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    began = time.monotonic()
    at = sys.argv.index("--driver")
    options, driver = parse(sys.argv[1:at]), sys.argv[at + 1 :]
    try:
        why = explained(options.explained)
        if idle := idle_explanations(why):
            raise TableError(
                f"{options.explained.name} explains what is no mutant: {', '.join(idle)}"
            )
        if options.list:
            for mutant in select_mutants(options, None).values():
                say(str(mutant))
            return 0
        core = Core(options.copy, options.copy.parent / "mutants-objects")
        mutants = select_mutants(options, core)
    except TableError as error:
        say(f"mutants: {error}")
        return 2
    linked = core.link()
    for observer in PROJECT.glob("cqnotify/_observer*.so"):
        shutil.copy(observer, options.copy / "cqnotify")
    say(f"{len(mutants)} mutants are planted ({time.monotonic() - began:.0f} s)")
    return run_all(options, driver, linked, mutants, why, began)


def run_all(
    options: argparse.Namespace,
    driver: list[str],
    core: Path,
    mutants: dict[int, Mutant],
    why: dict[Any, str],
    began: float,
) -> int:
    paths = options.tests or [f"tests/{folder}" for folder in TESTS]
    # Python then ends a process that frees memory twice.
    words = ["env", "PYTHONMALLOC=debug", "python", "-m", "pytest"]
    words += ["-p", "tests.lab.mutants_guest", "-p", "no:cacheprovider"]
    words += ["-o", "faulthandler_timeout=86400", "--rdma-required", "-q", *paths]
    words += [f"--deselect={test}" for test in LEFT_OUT]
    run = Run([*driver, *words], options.jobs, mutants, options.budget, options.verbose)
    LOG.parent.mkdir(exist_ok=True)
    LOG.unlink(missing_ok=True)
    first = Guest(run.command)
    first.end()
    for mutant in mutants.values():
        if not options.tests and not any(test.startswith(mutant.tests) for test in first.tests):
            say(
                f"mutants: the mutant '{mutant.name}' names tests that do not exist: {mutant.tests}"
            )
            return 2
    run.learn(first.tests, first.reached_by_import, Kept(options.copy, core))
    say(f"{len(first.tests)} tests ran without a mutant ({time.monotonic() - began:.0f} s)")
    run.mutants = {
        number: mutant for number, mutant in mutants.items() if re.search(options.only, str(mutant))
    }
    run.work(sorted(run.mutants, key=lambda number: mutants[number].file), run.try_mutant)
    return report(run, why, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())

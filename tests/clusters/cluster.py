# SPDX-License-Identifier: MIT
"""One run: hosts in virtual time, a workload on them, faults, and the record of what happened."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import faults
from faults import HOSTS, Fault
from node import CLOSE, QUIET

from cqnotify.lab import driver, switch, uml, vm
from cqnotify.lab.base import LabError
from cqnotify.lab.virtual_hosts import NS, Cluster, line

HERE = Path(__file__).resolve().parent
LAST = CLOSE + 60  # virtual seconds after which a run has hung
EXCUSED = 30.0  # seconds after a fault, in which operations may fail for it
WORKLOADS = ("bank", "replicated_log", "dask_sum")


@dataclass
class Outcome:
    """The record is what the hosts told, in its order; the trace is a digest of that and of every
    frame, with its nanosecond."""

    seed: int
    workload: str
    faults: list[Fault]
    record: list[dict[str, Any]] = field(default_factory=list)
    trace: str = ""
    frames: int = 0
    virtual: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    wrong: list[str] = field(default_factory=list)
    said: str = ""  # on stderr

    def summary(self) -> str:
        errors = sum(event["what"] == "error" for event in self.record)
        return (
            f"seed {self.seed}: {self.workload}, {len(self.faults)} faults, {errors} errors, "
            f"{self.frames} frames, {self.virtual:.0f} s in {self.wall:.0f} s "
            f"({self.cpu:.0f} of CPU), trace {self.trace}: "
            + (f"{len(self.wrong)} WRONG" if self.wrong else "right")
        )


def lab_options(cache: Path) -> Any:
    words = ["hosts", "--cache", str(cache), "--venv", sys.prefix, "--accel", "uml"]
    words += ["--virtual-time", "--mem", str(driver.HOST_MEMORY)]
    return driver.parse([*words, "-e", "PYTHONHASHSEED=0", "--"])


class Run:
    def __init__(
        self,
        cache: Path,
        seed: int,
        workload: str,
        faulty: list[Fault],
        plant: str,
        log: IO[str],
    ) -> None:
        self.outcome = Outcome(seed, workload, faulty)
        self.log = log
        self.digest = hashlib.sha256()
        self.parts: dict[int, bytes] = {}
        self.disks = Path(tempfile.mkdtemp(prefix="clusters-"))
        options = lab_options(cache)
        driver.compile_bytecode(options, HERE)
        version = uml.choose(cache, "7.2")
        if version is None:
            raise LabError(uml.not_built("7.2"))
        machine = replace(driver.machine(options, "uml", version), virtual_time=False)
        jobs = [self.job(options, machine, number, plant) for number in range(1, HOSTS + 1)]
        self.cluster = Cluster(machine, jobs, seed, switch.Faults(), self.hear)

    def job(self, options: Any, machine: vm.Machine, number: int, plant: str) -> vm.Job:
        outcome = self.outcome
        here = [
            str(fault)
            for fault in outcome.faults
            if fault.kind in ("kill", "pause") and fault.where == str(number)
        ]
        program = str(HERE / "node.py")
        options.place = vm.Place(number, HOSTS, -1)
        options.command = ["python", "-B", program, outcome.workload, str(outcome.seed), plant]
        options.command += here
        (self.disks / str(number)).mkdir()
        job = driver.virtual_job(options, machine)
        share = vm.Share(str(self.disks / str(number)), "/disk")
        return replace(job, cwd="/", shares=[share])

    def go(self) -> Outcome:
        begun, used = time.monotonic(), cpu_seconds()
        outcome, cluster = self.outcome, self.cluster
        try:
            cluster.start()
            self.plan()
            # A host that is off, perhaps with all others, will be switched on again.
            while any(host.status is None or not host.alive for host in cluster.hosts.values()):
                cluster.step()
                outcome.virtual = cluster.calendar.now / NS
                if outcome.virtual >= LAST:
                    outcome.wrong.append(f"not done after {LAST:g} s")
                    break
        except LabError as error:
            outcome.wrong.append(str(error))
        finally:
            cluster.end()
            shutil.rmtree(self.disks, ignore_errors=True)
        outcome.wall, outcome.cpu = time.monotonic() - begun, cpu_seconds() - used
        outcome.trace = self.digest.hexdigest()[:16]
        outcome.wrong += judge(outcome)
        return outcome

    # -- faults

    def plan(self) -> None:
        for instant in faults.instants(self.outcome.faults):
            self.cluster.at(round(instant * NS), functools.partial(self.set_links, instant))
        for fault in self.outcome.faults:
            if fault.kind == "crash":
                number = int(fault.where)
                self.cluster.at(round(fault.at * NS), lambda number=number: self.crash(number))
                self.cluster.at(
                    round(fault.until * NS), lambda number=number: self.switch_on(number)
                )

    def set_links(self, instant: float) -> None:
        for ends, link in self.cluster.links.items():
            active = faults.link_faults(self.outcome.faults, ends, instant)
            link.faults = replace(switch.Faults(), **active)  # type: ignore[arg-type]

    def crash(self, number: int) -> None:
        if self.cluster.hosts[number].alive:
            self.cluster.kill(number)

    def switch_on(self, number: int) -> None:
        if not self.cluster.hosts[number].alive:
            self.cluster.restart(number)

    # -- what is told

    def hear(self, instant: int, host: int, kind: str, data: bytes) -> None:
        if kind == "console":
            return
        self.outcome.frames += kind == "sends"
        logged = line(instant, host, kind, data)
        self.digest.update(logged.encode())
        self.log.write(logged)
        if kind == "err":
            self.outcome.said += data.decode(errors="replace")
        if kind == "out":
            *lines, self.parts[host] = (self.parts.get(host, b"") + data).split(b"\n")
            self.outcome.record += [event(host, line) for line in lines]


def cpu_seconds() -> float:
    """Of this process, and of the kernels that it has started, which have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def event(host: int, line: bytes) -> dict[str, Any]:
    try:
        return {"host": host, **json.loads(line)}
    except ValueError:  # a host that was switched off in the middle of it, or a stranger
        return {"host": host, "what": "stray", "text": line.decode(errors="replace")}


# ---- what is wrong, of all workloads -----------------------------------------------------------


def judge(outcome: Outcome) -> list[str]:
    wrong = []
    for told in outcome.record:
        where = f"host {told['host']}, {told.get('at')} s: "
        if told["what"] == "violation":
            wrong.append(where + told["text"])
        elif told["what"] == "overdue" and not paused(outcome.faults, told):
            wrong.append(where + f"{told['op']} is not over after {told['bound']:g} s")
        elif told["what"] == "error" and not excused(outcome.faults, told):
            wrong.append(where + f"{told['op']} fails, and nothing else does: {told['error']}")
    if "Traceback" in outcome.said:
        wrong.append(f"a traceback: {outcome.said[-2000:]}")
    workload = importlib.import_module(outcome.workload)
    return wrong + workload.judge(outcome.record, HOSTS)  # type: ignore[no-any-return]


def paused(faulty: list[Fault], told: dict[str, Any]) -> bool:
    """Its own process could not know the time."""
    return any(
        fault.kind == "pause"
        and fault.where == str(told["host"])
        and fault.at <= told["at"] + 1
        and told["begun"] <= fault.until
        for fault in faulty
    )


def excused(faulty: list[Fault], told: dict[str, Any]) -> bool:
    """An error needs a fault, not long before."""
    if told["at"] >= CLOSE - 4:  # all are closing
        return True
    return told["begun"] < QUIET and any(
        fault.at <= told["at"] and told["begun"] <= fault.until + EXCUSED for fault in faulty
    )


def run(
    cache: Path,
    seed: int,
    workload: str,
    faulty: list[Fault],
    plant: str = "",
    log: Path | None = None,
) -> Outcome:
    """`log` is a file for what the trace is a digest of."""
    with open(log or os.devnull, "w") as file:
        return Run(cache, seed, workload, faulty, plant, file).go()


def workload_of(seed: int) -> str:
    return WORKLOADS[seed % len(WORKLOADS)]


def end_with_parent() -> None:
    vm.libc.prctl(vm.PR_SET_PDEATHSIG, signal.SIGKILL)


def processes(jobs: int) -> concurrent.futures.Executor:
    """For run(), which takes a process: a kernel ends with the thread that has started it."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(jobs, context, end_with_parent)

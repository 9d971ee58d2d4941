# SPDX-License-Identifier: MIT
"""Several hosts with a network that fails: ./lab hosts, and the fixture of the pytest plugin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from doc_support import read
from lab_runs import LAB, PATIENCE, built, lab, on_signal, speaking, until

from cqnotify.hosts import Host, HostError, Hosts, Program
from cqnotify.lab import hosts_run
from cqnotify.lab.base import LabError
from cqnotify.lab.hosts import children

PINGPONG = ("ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-e")


def on_hosts(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return lab("--uml", "hosts", *words, **options)


# ---- ./lab hosts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "hosts wants a number: "),
        (["--", "true"], "hosts wants a number: "),
        (["true"], "hosts wants a number, not 'true': "),
        (["2", "--seed", "x", "--", "true"], "hosts: argument --seed: invalid int value: 'x'"),
        (["x", "--", "true"], "hosts wants a number, not 'x': "),
        (["0", "--", "true"], "from 1 to 8 of them, not 0"),
        (["9", "--", "true"], "from 1 to 8 of them, not 9"),
        (["2", "--sed", "7", "--", "true"], "there is no option '--sed'"),
        (["2", "--net", "lost=5", "--", "true"], "not 'lost=5'; the names are loss,"),
        (["2", "--net", "loss=x", "--", "true"], "not 'loss=x'"),
        (["2", "--net", "loss=101", "--", "true"], "loss is out of range: 101"),
        (["3", "--", "true", "---", "true"], "3 hosts want a command each"),
        (["2", "--", "true", "---"], "2 hosts want a command each"),
        (["2"], "2 hosts want a command each"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_boots(words: list[str], text: str) -> None:
    with pytest.raises(LabError, match=re.escape(text)):
        hosts_run.main(words, ["false"], 0)


@built
def test_each_host_runs_its_command_and_lines_have_its_number() -> None:
    result = on_hosts("2", "--", "hostname", "---", "sh", "-c", "hostname; echo no end: >&2")
    assert sorted(result.stdout.splitlines()) == [b"1| host1", b"2| host2"]
    assert b"2| no end:\n" in result.stderr
    assert result.returncode == 0


@built
def test_one_command_runs_on_all_of_eight() -> None:
    result = on_hosts("8", "--", "sh", "-c", "echo $CQNOTIFY_LAB_HOST of $CQNOTIFY_LAB_HOSTS")
    assert sorted(result.stdout.splitlines()) == [b"%d| %d of 8" % (n, n) for n in range(1, 9)]


@built
def test_a_message_goes_from_host_to_host() -> None:
    client = "until ibv_rc_pingpong -d rxe0 -g 1 -e -n 20 host1; do sleep 0.1; done"
    result = on_hosts(
        "2", "--net", "delay=1,loss=1", "--", *PINGPONG, "-n", "20", "---", "sh", "-c", client
    )
    assert result.returncode == 0
    assert len(re.findall(rb"[12]\| 20 iters", result.stdout)) == 2


@built
def test_standard_input_goes_to_the_first() -> None:
    result = on_hosts("2", "--", "cat", input=b"hello\nthere")
    assert result.stdout == b"1| hello\n1| there\n"
    assert result.returncode == 0


@built
def test_much_input_comes_back_whole(tmp_path: Path) -> None:
    """In both directions at once, from a pipe and from a file; nobody waits for the other."""
    line = b"x" * 9_999 + b"\n"
    data = line * 500
    result = on_hosts("1", "--", "cat", input=data)
    assert result.stdout == b"1| " + data.replace(b"\n", b"\n1| ")[:-3]
    path = tmp_path / "input"
    path.write_bytes(data)
    with path.open() as file:
        assert on_hosts("1", "--", "wc", "-c", stdin=file).stdout == b"1| 5000000\n"


@built
def test_a_program_that_takes_no_input_ends_all_the_same() -> None:
    assert on_hosts("1", "--", "true", input=bytes(1_000_000)).returncode == 0


@built
def test_one_that_fails_ends_the_others_and_its_status_is_ours() -> None:
    start = time.monotonic()
    result = on_hosts("2", "--", "sleep", "1000", "---", "sh", "-c", "exit 7")
    assert result.returncode == 7
    assert b"host 2's command ended with 7; stopping the others" in result.stderr
    assert time.monotonic() - start < PATIENCE


@built
def test_a_command_that_is_not_there_is_127() -> None:
    result = on_hosts("1", "--", "no-such-command")
    assert result.returncode == 127
    assert b"1| lab: no-such-command: No such file or directory" in result.stderr


@built
def test_a_timeout_ends_them_all_with_124() -> None:
    result = lab("--uml", "--timeout", "4", "hosts", "2", "--", "sleep", "1000")
    assert result.returncode == 124


@built
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_commands(number: int) -> None:
    command = on_signal(number, "print('got it')")
    with subprocess.Popen(
        [LAB, "--uml", "hosts", "2", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        assert {process.stdout.readline() for _ in range(2)} == {b"1| ready\n", b"2| ready\n"}
        process.send_signal(number)
        rest = process.stdout.read()
        assert {b"1| got it", b"2| got it"} <= set(rest.splitlines())
        assert process.wait(PATIENCE) == 128 + number


@built
def test_a_killed_lab_leaves_no_host() -> None:
    mark = f"7{os.getpid()}"  # seconds, and the name of our own sleep
    with subprocess.Popen(
        [LAB, "--uml", "hosts", "2", "--", "sh", "-c", f"echo begun; exec sleep {mark}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        process.stdout.readline(), process.stdout.readline()
        drivers = children(process.pid)
        kernels = [pid for driver in drivers for pid in children(driver)]
        assert len(kernels) == 2
        process.kill()
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in kernels), "they are gone")


@built
def test_hosts_end_with_who_started_them() -> None:
    script = f"{LAB} --uml hosts 1 -- sh -c 'echo begun; exec sleep 1000' & exec cat"
    with speaking("sh", "-c", script, said=b"1| begun\n", stdin=subprocess.PIPE) as process:
        (lab_process,) = children(process.pid)
        process.kill()
    until(lambda: not Path("/proc", str(lab_process)).exists(), "the lab has ended")


# ---- the fixture -----------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def uml_hosts(pytestconfig: pytest.Config) -> None:
    """The fixture's hosts, unless the caller wants others: kernels that are processes."""
    if pytestconfig.option.rdma_lab is None:
        pytestconfig.option.rdma_lab = f"{LAB} --uml"


def assert_host2_is_silent_to(host: Host) -> None:
    with pytest.raises(TimeoutError):
        host.run("bash", "-c", "exec 3<>/dev/tcp/host2/99", timeout=1)


def pingpong_server(host: Host, n: int) -> Program:
    """It listens at port 18515, some time after it has said its address."""
    program = host.start(*PINGPONG, "-n", str(n))
    until_it_listens = "until grep -q ':4853 0*:0000 0A ' /proc/net/tcp*; do sleep 0.01; done"
    host.run("sh", "-c", until_it_listens, check=True)
    return program


def pingpong(server: Host, client: Host, n: int = 50) -> None:
    listener = pingpong_server(server, n)
    client.run(*PINGPONG, "-n", str(n), server.name, check=True)
    assert listener.wait() == 0


def pingpong_in_the_end(server: Host, client: Host) -> None:
    """rxe of Linux 7.2 can forget a message whose last acknowledgement was lost, for ever."""
    for _ in range(3):
        listener = pingpong_server(server, 50)
        try:
            client.run(*PINGPONG, "-n", "50", server.name, check=True, timeout=20)
        except TimeoutError:
            listener.end()
            continue
        assert listener.wait() == 0
        return
    pytest.fail("three ping-pongs have not come to their end")


@built
def test_programs_have_streams_environment_folder_and_status(hosts: Hosts) -> None:
    a, b = hosts
    result = a.run("sh", "-c", "cat; echo $X; pwd; echo é >&2; exit 5", input="in\n",
                   env={"X": "1"}, cwd="/var")  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (5, "in\n1\n/var\n", "é\n")
    assert b.run("sh", "-c", "kill -KILL $$").returncode == 137
    with pytest.raises(subprocess.CalledProcessError):
        a.run("false", check=True)
    with pytest.raises(TimeoutError, match="has not ended in 0.2 s"):
        a.run("sleep", "100", timeout=0.2)


@built
def test_a_program_is_spoken_to(hosts: Hosts) -> None:
    program = hosts[0].start("sh", "-c", "while read n; do echo got $n; done; echo bye")
    for n in range(3):
        program.write(f"{n}\n")
        assert program.expect(r"got (\d)")[1] == str(n)
    program.close_input()
    program.expect("bye")
    assert program.wait() == 0
    assert [line.text for line in program.lines] == ["got 0", "got 1", "got 2", "bye"]
    with pytest.raises(EOFError, match="(?s)has ended without 'more'.*got 2"):
        program.expect("more")
    silent = hosts[1].start("sleep", "1000")
    with pytest.raises(TimeoutError, match="which said nothing"):
        silent.expect("anything", timeout=0.2)
    assert silent.end().returncode == 128 + signal.SIGTERM
    stubborn = hosts[1].start("sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.1; done")
    stubborn.expect("on")
    assert stubborn.end(timeout=0.5).returncode == 128 + signal.SIGKILL


@built
def test_a_host_that_is_killed_comes_back_with_its_address(hosts: Hosts) -> None:
    a, b = hosts
    lost = b.start("sleep", "1000")
    b.kill()
    assert not b.up
    assert lost.gone
    with pytest.raises(HostError, match="host2 has gone"):
        lost.wait()
    with pytest.raises(HostError, match="host2 is down"):
        b.start("true")
    b.restart()
    pingpong(b, a)


@built
def test_a_paused_host_goes_on_later(hosts: Hosts) -> None:
    a, b = hosts
    clock = b.start("sh", "-c", "while :; do echo tick; sleep 0.1; done")
    clock.expect("tick")
    b.pause()
    until(lambda: not hosts._hear(time.monotonic() + 1), "what was under way has come")
    ticks = len(clock.lines)
    assert_host2_is_silent_to(a)
    assert len(clock.lines) == ticks
    b.resume()
    until(lambda: hosts._hear(time.monotonic() + 1) and len(clock.lines) > ticks, "it goes on")
    pingpong(b, a)


@built
def test_much_for_a_paused_host_holds_nobody_up(hosts: Hosts) -> None:
    a, b = hosts
    taker = b.start("wc", "-c")
    b.pause()
    for _ in range(30):
        taker.write("x" * 10_000)
    assert a.run("hostname").stdout == "host1\n"
    b.resume()
    taker.close_input()
    taker.expect("300000")


@built
def test_what_is_cut_is_silent_and_heals(hosts: Hosts) -> None:
    a, b = hosts
    pingpong(b, a)
    b.cut()
    assert_host2_is_silent_to(a)
    assert hosts.counts()[1, 2]["cut"] > 0
    b.heal()
    pingpong(b, a)


@built
@pytest.mark.hosts(3)
def test_a_cut_between_two_leaves_the_third_alone(hosts: Hosts) -> None:
    a, b, c = hosts
    a.cut(b)
    pingpong(c, a)
    pingpong(c, b)
    assert_host2_is_silent_to(a)
    cut = {link for link, counts in hosts.counts().items() if counts["cut"]}
    assert (1, 2) in cut
    assert cut <= {(1, 2), (2, 1)}


@built
def test_a_host_without_carrier_says_so(hosts: Hosts) -> None:
    a, b = hosts
    a.unplug()
    assert "state DOWN" in a.run("rdma", "link").stdout
    assert "state ACTIVE" in b.run("rdma", "link").stdout
    a.plug()
    until(lambda: "state ACTIVE" in a.run("rdma", "link").stdout, "the port is active again")
    pingpong(b, a)


def adds_up(counts: dict[str, int]) -> bool:
    return counts["delivered"] == counts["frames"] - counts["lost"] + counts["duplicated"]


@built
def test_a_bad_network_does_what_it_was_told(hosts: Hosts) -> None:
    a, b = hosts
    hosts.impair(loss=0.05, duplicate=0.05, reorder=0.05, delay=0.001, jitter=0.001)
    pingpong_in_the_end(b, a)
    hosts.heal()
    for counts in hosts.counts().values():
        assert min(counts["lost"], counts["duplicated"], counts["reordered"]) > 0
    lost = [counts["lost"] for counts in hosts.counts().values()]
    hosts.impair(a, b, rate=1e6)
    start = time.monotonic()
    pingpong(b, a, n=10)  # 40 KB each way
    assert time.monotonic() - start > 0.3
    assert [counts["lost"] for counts in hosts.counts().values()] == lost
    until(lambda: all(map(adds_up, hosts.counts().values())), "no frame is under way")


@built
def test_a_reset_makes_all_as_it_was(hosts: Hosts) -> None:
    a, b = hosts
    program = a.start("sleep", "1000")
    hosts.cut()
    a.unplug()
    b.kill()
    hosts.reset(seed=7)
    assert not program.running
    assert hosts.seed == 7
    assert all(host.up for host in hosts)
    pingpong(b, a)


@built
def test_wrong_faults_are_refused(hosts: Hosts) -> None:
    with pytest.raises(TypeError, match="there is no fault 'lost': they are loss, duplicate"):
        hosts.impair(lost=0.5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="loss is from 0 to 1, not 5"):
        hosts.impair(loss=5)
    with pytest.raises(ValueError, match="delay is from 0 to any number, not -1"):
        hosts[0].impair(delay=-1)


def test_without_a_lab_it_says_what_is_missing() -> None:
    with pytest.raises(HostError, match="the lab has ended with 125"):
        Hosts(2, lab=[LAB, "--uml", "--kernel", "1.0"])
    with pytest.raises(ValueError, match="from 1 to 8 hosts, not 9"):
        Hosts(9)


@built
def test_the_page_about_hosts_shows_tests_that_pass(tmp_path: Path) -> None:
    (program,) = read("hosts.md").programs
    suite = tmp_path / "test_shown.py"
    suite.write_text(program.source)
    options = ["--rdma-required", "--rdma-lab", f"{LAB} --uml", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options, str(suite)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert "2 passed" in result.stdout, result.stdout

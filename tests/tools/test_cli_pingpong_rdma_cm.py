# SPDX-License-Identifier: MIT
"""cqnotify pingpong --rdma-cm: ends that meet by address, and peers that are none."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cli_support import (
    Capture,
    both,
    command,
    each_signal,
    figures,
    outcome,
    plan,
    refusal,
    server,
    started,
    state_of,
    usage_of,
)
from support import DEADLINE, address_of, is_iwarp, until

from cqnotify import CQ, PD, QP, AccessFlags, Context, QPType, WorkCompletion, cm
from cqnotify.cli import main
from cqnotify.cli._terminal import Progress
from cqnotify.cli.pingpong._hello import MAGIC, Hello
from cqnotify.cli.pingpong._play import Play
from cqnotify.cli.pingpong._rdma_cm import meet
from cqnotify.cm import blocking

OTHER_PROGRAM = "it is another program than `cqnotify pingpong --rdma-cm`"
OTHER_VERSION = MAGIC + b"\2" + bytes(40)
VERSIONS = "its cqnotify speaks version 2 of this ping-pong, ours version 1"
HINT = r": does a server run there, with -R and --type rc\?"


@pytest.fixture(params=["rc", "ud"])
def service(request: pytest.FixtureRequest, ctx: Context) -> str:
    if request.param == "ud" and is_iwarp(ctx):
        pytest.skip("an iWARP device sends no datagrams")
    return str(request.param)


@pytest.fixture
def host(ctx: Context) -> str:
    return address_of(ctx)


def new_qp(ctx: Context, qp_type: QPType = QPType.RC) -> QP:
    return QP(PD(ctx), qp_type, send_cq=CQ(ctx, 4))


# ---- two ends of ours -----------------------------------------------------------------------


@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
def test_our_own_ends_play_with_each_other(
    ctx: Context, host: str, service: str, sleeps: bool, capsys: Capture
) -> None:
    options = ["-R", "--type", service, "-n", 100, "-s", 600, "-c", "--json", "-r", 32]
    ends = both(capsys, [*options, *["-e"] * sleeps], [*options, *["-e"] * (not sleeps)], host)
    ours, theirs = (figures(*end) for end in ends)
    assert (ours["role"], theirs["role"]) == ("server", "client")
    assert ours["local"] == theirs["remote"]
    assert ours["remote"] == theirs["local"]
    assert ours["local"][0]["address"] == host
    assert ours["checked"] == theirs["checked"] == 100
    assert (ours["sleeps"], theirs["sleeps"]) == (sleeps, not sleeps)
    for end in (ours, theirs):
        assert end["rdma_cm"]
        assert (end["device"], end["port_num"], end["gid_index"]) == (ctx.name, 1, None)
        assert end["mtu"] == (None if service == "ud" else 1024)


def test_the_interface_of_an_address_of_the_link_chooses_the_device(
    ctx: Context, ctx2: Context, netdev: str, service: str, capsys: Capture
) -> None:
    """The client is on the second device, and its messages cross the cable. The first packets may
    be lost, until the neighbours know each other; so it may say that it waits."""
    if is_iwarp(ctx):
        pytest.skip("TCP does not connect a host to its own address by way of the cable")
    gid = next(entry.gid for entry in ctx.query_gid_table() if entry.gid.ipv4_mapped is None)
    options = ["-R", "--type", service, "-n", 20, "-c", "--json"]
    ends = both(capsys, options, options, f"{gid}%{netdev}")
    ours, theirs = (figures(code, out, "") for code, out, _ in ends)
    assert (ours["device"], theirs["device"]) == (ctx.name, ctx2.name)


def test_a_server_listens_on_the_address_that_is_given(host: str, capsys: Capture) -> None:
    with started(command("pingpong", "-R", "-n", 5, "--bind", host, "-p", 0)) as process:
        assert process.stderr is not None
        found = re.match(rf"cqnotify: listening on {host} port (\d+)", process.stderr.readline())
        assert found
        assert main(["pingpong", "-R", "-n", "5", "-p", found[1], host]) == 0
        assert outcome(process)[0] == 0


def test_a_client_waits_for_its_server(host: str, capsys: Capture) -> None:
    with server("-R") as (_, port):
        pass  # so that the port is free
    with started(command("pingpong", "-R", "-n", 5, "-p", port, host)) as client:
        assert client.stderr is not None
        assert client.stderr.readline().startswith(f"cqnotify: waiting for {host} port {port} to")
        assert main(["pingpong", "-R", "-n", "5", "-p", str(port)]) == 0
        assert outcome(client)[::2] == (0, "")


@contextlib.contextmanager
def client_of(host: str, port: int, **options: Any) -> Iterator[Play]:
    """A client that has met its server and not begun to play."""
    with (
        meet(plan(rdma_cm=True, host=host, port=port, path_mtu=None, **options)) as met,
        Progress("", 1) as progress,
    ):
        yield Play(met, progress)


def test_what_the_servers_goodbye_flushes_is_no_failure(host: str) -> None:
    """The client polls when the server has hung up, and finds the answer before the rest."""
    with (
        server("-R", "-n", 1, "-s", 64, "-c") as (process, port),
        client_of(host, port, iters=1, events=False) as play,
    ):
        poll, polled = play._poll, []

        def late() -> list[WorkCompletion]:
            assert play._has_gone()
            until(lambda: polled.extend(poll()) or len(polled) == 9, "all is flushed")
            return polled

        play._poll = late  # type: ignore[method-assign]
        play.run()
        assert [wc.status.name for wc in polled[2:]] == ["WR_FLUSH_ERR"] * 7
        assert (play.received, len(play.latencies)) == (1, 1)
        assert outcome(process)[0] == 0


def test_the_peer_may_do_nothing_to_our_memory(ctx: Context, host: str) -> None:
    with (
        server("-R", "-n", 10, "-s", 64, "-c", "--timeout", 60) as (process, port),
        client_of(host, port) as play,
    ):
        endpoint = play._end.endpoints[0]
        assert is_iwarp(ctx) or endpoint.qp.query().qp_access_flags == 0  # siw tells what it can do
        assert endpoint.mr.access == AccessFlags.LOCAL_WRITE
        play.run()
        assert outcome(process)[0] == 0


# ---- other programs -------------------------------------------------------------------------


def test_a_server_outlives_strangers(ctx: Context, host: str) -> None:
    with server("-R", "-n", 10, "-s", 64, "--json") as (process, port):
        assert process.stderr is not None

        def rejected(why: str) -> None:
            said = process.stderr.readline() if process.stderr is not None else ""
            assert re.fullmatch(f"cqnotify: {host} port \\d+ is rejected: {re.escape(why)}\n", said)

        rping = shutil.which("rping")
        assert rping is not None
        subprocess.run([rping, "-c", "-a", host, "-p", str(port), "-C1"], capture_output=True)
        rejected(OTHER_PROGRAM)
        for data, why in ((b"", OTHER_PROGRAM), (OTHER_VERSION, VERSIONS)):
            with pytest.raises(cm.RejectedError, match="CONSUMER_DEFINED"):
                blocking.connect(new_qp(ctx), host, port, private_data=data)
            rejected(why)
        assert main(["pingpong", "-R", "-n", "10", "-s", "64", "-p", str(port), host]) == 0
        assert figures(*outcome(process))["iters"] == 10


def test_a_client_that_has_gone_meanwhile_is_rejected(ctx: Context, host: str) -> None:
    if is_iwarp(ctx):
        pytest.skip("an iWARP device accepts it, and tells later that it has gone")
    hello = Hello(1, 64, 10, False).to_wire()
    with server("-R", "-n", 10, "-s", 64) as (process, port):
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            blocking.connect(new_qp(ctx), host, port, private_data=hello, timeout=0.5)
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        assert "the peer has gone, or given up" in process.stderr.readline()
        assert main(["pingpong", "-R", "-n", "10", "-s", "64", "-p", str(port), host]) == 0
        assert outcome(process)[0] == 0


@contextlib.contextmanager
def answering(ctx: Context, host: str, service: str, *answer: Any) -> Iterator[str]:
    """A server that is not ours: what it does with a request, and its private data. Its port."""
    how, data = answer
    conns: list[Any] = []
    datagrams = service == "ud"

    def answer_once() -> None:
        request = listener.get_request(DEADLINE)
        if how == "accept":
            qp = new_qp(ctx, QPType.UD if datagrams else QPType.RC)
            conns.append(request.accept(qp, private_data=data))
        else:
            request.reject(data)

    with blocking.listen(host, 0, datagrams=datagrams) as listener:
        thread = threading.Thread(target=answer_once)
        thread.start()
        yield str(listener.local[1])
        thread.join()
        for conn in conns:
            conn.close()


@pytest.mark.parametrize(
    ("how", "data", "words"),
    [
        ("accept", b"", f"cannot be the peer: {OTHER_PROGRAM}"),
        ("accept", OTHER_VERSION, f"cannot be the peer: {VERSIONS}"),
        ("reject", b"", f"has turned us away: it has ended, or {OTHER_PROGRAM}"),
        ("reject", OTHER_VERSION, f"has turned us away: it has ended, or {VERSIONS}"),
    ],
    ids=["accepts", "another version accepts", "rejects", "another version rejects"],
)
def test_a_server_of_another_kind_is_refused_in_words(
    ctx: Context, host: str, service: str, how: str, data: bytes, words: str, capsys: Capture
) -> None:
    with answering(ctx, host, service, how, data) as port:
        said = refusal(capsys, 1, "pingpong", "-R", "--type", service, "-p", port, host)
    assert said == f"cqnotify: {host} port {port} {words}\n"


def test_ends_with_different_options_say_so(host: str, service: str, capsys: Capture) -> None:
    common = ["-R", "--type", service, "-n", "5"]
    with server(*common, "-s", 64, "-c") as (process, port):
        where = ["-p", str(port), host]
        said = refusal(capsys, 1, "pingpong", *common, "-s", "128", *where)
        assert said == (
            f"cqnotify: {host} port {port} has turned us away: it has --size 64 and --chk, we have "
            "--size 128 and no --chk: give both the same\n"
        )
        assert process.stderr is not None
        assert re.fullmatch(
            rf"cqnotify: {host} port \d+ is rejected: it has --size 128 and no --chk, we have "
            r"--size 64 and --chk: give both the same\n",
            process.stderr.readline(),
        )
        assert main(["pingpong", *common, "-s", "64", "-c", *where]) == 0
        assert outcome(process)[0] == 0


# ---- no peer, or no longer ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--timeout", "0.3", "--port", "0"], "no client came within 0.3 s"),
        (["--timeout", "0.3", "-p", "1", "HOST"], "HOST port 1 did not answer within 0.3 s" + HINT),
        (["10.99.0.77"], "the way to 10.99.0.77: ADDR_ERROR, Connection timed out"),
        (["nobody.invalid"], "'nobody.invalid' does not resolve: .*"),
        (["127.0.0.1"], ".*a loopback address has no RDMA device: use an address of an .*"),
        (["192.0.2.1"], ".*Network is unreachable.*"),
        (
            ["--bind", "192.0.2.1"],
            r"cannot listen on 192.0.2.1 .* of another host, or .*",
        ),
    ],
    ids=["no client", "no server", "no host", "no name", "loopback", "no route", "no address"],
)
def test_who_has_no_peer_says_so(args: list[str], words: str, host: str, capsys: Capture) -> None:
    said = refusal(capsys, 1, "pingpong", "-R", *(arg.replace("HOST", host) for arg in args))
    assert re.fullmatch(f"cqnotify: {words.replace('HOST', host)}", said.splitlines()[-1])


def test_a_server_that_does_not_answer_is_not_waited_for_longer(host: str, capsys: Capture) -> None:
    with blocking.listen(host, 0) as listener:
        port = str(listener.local[1])
        said = refusal(capsys, 1, "pingpong", "-R", "-p", port, "--timeout", "0.5", host)
    last = said.splitlines()[-1]
    assert re.fullmatch(f"cqnotify: {host} port {port} did not answer within 0.5 s{HINT}", last)


def test_two_servers_on_one_port_say_so(capsys: Capture) -> None:
    with server("-R") as (_, port):
        said = refusal(capsys, 1, "pingpong", "-R", "-p", str(port))
    assert re.fullmatch(
        f"cqnotify: cannot listen on [0.:]+ port {port}: "
        "the address is of another host, or the port is taken\n",
        said,
    )


@each_signal
@pytest.mark.parametrize("role", ["server", "client", "client that asks"])
def test_a_signal_ends_who_waits_without_a_word(
    host: str, role: str, number: signal.Signals, code: int
) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(blocking.listen(host, 0))
        port = 1 if role == "client" else listener.local[1]
        args = [] if role == "server" else [host, "-p", port]
        process = stack.enter_context(started(command("pingpong", "-R", *args)))
        assert process.stderr is not None
        assert re.match("cqnotify: (listening on|waiting for)", process.stderr.readline())
        # A signal on its way into a wait can be noticed at its end only.
        until(lambda: state_of(process) == "S", "it sleeps")
        process.send_signal(number)
        assert outcome(process) == (code, "", "")


def playing(process: subprocess.Popen[str]) -> Iterator[int]:
    """How long its process has run, in ticks: it plays while that grows."""
    while True:
        with open(f"/proc/{process.pid}/stat") as file:
            yield sum(map(int, file.read().rpartition(")")[2].split()[11:13]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
@pytest.mark.parametrize("who", ["server", "client"])
@pytest.mark.parametrize("sleeps", [True, False], ids=["asleep", "polling"])
def test_who_goes_while_they_play_is_missed_at_once(
    host: str, who: str, number: signal.Signals, sleeps: bool
) -> None:
    options = ["-R", "-n", 10**9, *["-e"] * sleeps]
    with (
        server(*options) as (a, port),
        started(command("pingpong", *options, "-p", port, host)) as b,
    ):
        ticks = [next(playing(process)) for process in (a, b)]
        until(
            lambda: all(
                next(playing(process)) >= before + 50
                for process, before in zip((a, b), ticks, strict=True)
            ),
            "they play",
        )
        goes, stays = (a, b) if who == "server" else (b, a)
        goes.send_signal(number)
        code, out, err = outcome(stays)
        assert (code, out) == (1, "")
        assert re.search(rf"cqnotify: the peer has gone, after \d+ of {10**9} messages\n$", err)
        if number == signal.SIGINT:
            assert outcome(goes) == (130, "", "")


# ---- usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--type uc", "--rdma-cm connects rc and ud, not uc"),
        ("--type srq", "--rdma-cm connects rc and ud, not srq"),
        ("-d rxe0", "--device has no effect with --rdma-cm: the address determines it"),
        ("-i 1", "--ib-port has no effect with --rdma-cm: the address determines it"),
        ("-g 0", "--gid-idx has no effect with --rdma-cm: the address determines it"),
        ("-m 1024", "--mtu has no effect with --rdma-cm: the address determines it"),
        ("-l 0", "--sl has no effect with --rdma-cm: the address determines it"),
        ("--bind :: host", "--bind is for a server, and HOST makes it a client"),
        ("-p 0 host", "--port 0 is for a server"),
    ],
)
def test_options_that_mean_nothing_are_refused(args: str, words: str, capsys: Capture) -> None:
    assert usage_of(capsys, "pingpong", "-R", *args.split()) == f"cqnotify: {words}\n"


def test_what_is_not_read_to_its_end_is_not_believed() -> None:
    ours = Hello(7, 64, 10, True)
    wire = ours.to_wire()
    assert Hello.from_wire(wire + bytes(56 - len(wire))) == ours
    assert ours.difference(Hello(8, 64, 10, True)) is None
    assert ours.difference(Hello(8, 64, 11, True)) == (
        "it has --iters 11, we have --iters 10: give both the same"
    )
    for length in range(len(wire)):
        with pytest.raises(ValueError, match="it is another program|its cqnotify speaks version"):
            Hello.from_wire(wire[:length])

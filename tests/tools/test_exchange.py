# SPDX-License-Identifier: MIT
"""The address exchange: a strict parser, both roles, and peers that misbehave."""

import asyncio
import contextlib
import gc
import socket
import threading
import time
from ipaddress import IPv6Address

import pytest
from exchange_support import DONE, OURS, THEIRS, WIRE, many, read_all

from cqnotify import QPAddress
from cqnotify.exchange import (
    _protocol,
    exchange_as_client,
    exchange_as_client_blocking,
    exchange_as_server,
    exchange_as_server_blocking,
    listen,
)


class AsyncRole:
    """The two roles with asyncio, called as if they were blocking."""

    @staticmethod
    def client(*args, **kwargs):
        return asyncio.run(exchange_as_client(*args, **kwargs))

    @staticmethod
    def server(*args, **kwargs):
        return asyncio.run(exchange_as_server(*args, **kwargs))


class BlockingRole:
    client = staticmethod(exchange_as_client_blocking)
    server = staticmethod(exchange_as_server_blocking)


both = pytest.mark.parametrize("role", [AsyncRole, BlockingRole], ids=["asyncio", "blocking"])


@pytest.fixture
def in_thread():
    """Runs a function in a thread; at the end all of them must have come back."""
    threads = []

    def start(function):
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        threads.append(thread)

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def port_of(sock):
    return sock.getsockname()[1]


class TestRecord:
    def test_is_written_as_rdma_core_does(self):
        assert OURS.to_wire() == WIRE

    def test_is_read_as_it_was_written(self):
        for address in (OURS, THEIRS):
            assert QPAddress.from_wire(address.to_wire()) == address

    def test_has_52_bytes_at_the_limits(self):
        largest = QPAddress(0xFFFF, 0xFFFFFF, 0xFFFFFF, IPv6Address(2**128 - 1))
        smallest = QPAddress(0, 0, 0, IPv6Address(0))
        assert len(largest.to_wire()) == len(smallest.to_wire()) == 52
        assert QPAddress.from_wire(largest.to_wire()) == largest

    @pytest.mark.parametrize(
        ("field", "value"),
        [("lid", 0x10000), ("lid", -1), ("qp_num", 1 << 24), ("psn", 1 << 24), ("psn", -1)],
    )
    def test_a_number_out_of_range_is_refused(self, field, value):
        with pytest.raises(ValueError, match=field):
            OURS._replace(**{field: value}).to_wire()

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            WIRE[:-1],
            WIRE + b"\0",
            WIRE[:-1] + b"\n",
            WIRE.upper(),
            WIRE.replace(b":", b" "),
            WIRE.replace(b"0012:", b"+012:"),
            WIRE.replace(b"0012:", b"0x12:"),
            WIRE.replace(b"0012:", b" 012:"),
            WIRE.replace(b"0012:", b"0_12:"),
            WIRE.replace(b"000345", b"00034g"),
            WIRE.replace(b"0012:000345", b"000:1200345"),
            bytes(52),
            b"\xff" * 52,
            "\N{ARABIC-INDIC DIGIT ZERO}".encode() * 26,
        ],
    )
    def test_anything_else_is_refused(self, data):
        with pytest.raises(ValueError, match="address record"):
            QPAddress.from_wire(data)


@pytest.mark.parametrize("server", [AsyncRole, BlockingRole], ids=["asyncio", "blocking"])
@both
def test_client_and_server_learn_each_others_address(role, server, listener, in_thread):
    connected, result = [], []
    in_thread(lambda: result.append(server.server(listener, THEIRS, connected.append, timeout=30)))
    assert role.client("127.0.0.1", port_of(listener), OURS, timeout=30) == THEIRS
    deadline = time.monotonic() + 30
    while not result and time.monotonic() < deadline:
        time.sleep(0.01)
    assert result == [OURS]
    assert connected == [OURS]


@both
def test_server_connects_its_qp_before_it_answers(role, listener, in_thread):
    order = []

    def client():
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.sendall(WIRE)
            assert read_all(sock, 52) == THEIRS.to_wire()
            order.append("answered")
            sock.sendall(DONE)

    in_thread(client)
    role.server(listener, THEIRS, lambda remote: order.append("connected"), timeout=30)
    assert order == ["connected", "answered"]


@both
def test_client_says_done_and_closes(role, listener, in_thread):
    got = []

    def server():
        sock, _ = listener.accept()
        with sock:
            got.append(read_all(sock, 52))
            sock.sendall(THEIRS.to_wire())
            got.append(read_all(sock, 100))  # up to the end

    in_thread(server)
    assert role.client("127.0.0.1", port_of(listener), OURS, timeout=30) == THEIRS
    deadline = time.monotonic() + 30
    while len(got) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == [WIRE, DONE]


@both
def test_a_record_may_come_in_pieces(role, listener, in_thread):
    def client():
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(52):
                sock.sendall(WIRE[i : i + 1])
            read_all(sock, 52)
            sock.sendall(DONE[:2])
            sock.sendall(DONE[2:])

    in_thread(client)
    assert role.server(listener, THEIRS, lambda remote: None, timeout=30) == OURS


@both
def test_client_waits_for_a_server_that_starts_later(role, in_thread):
    with listen(port=0) as sock:
        port = port_of(sock)

    def server():
        time.sleep(0.3)
        with listen(port=port) as late:
            exchange_as_server_blocking(late, THEIRS, lambda remote: None, timeout=30)

    in_thread(server)
    assert role.client("127.0.0.1", port, OURS, timeout=30) == THEIRS


@both
@pytest.mark.parametrize("reply", [b"x" * 52, b"\xff" * 52, WIRE.upper(), b"y" * 5000])
def test_client_refuses_garbage(role, reply, listener, in_thread):
    def server():
        sock, _ = listener.accept()
        with sock:
            read_all(sock, 52)
            with contextlib.suppress(OSError):  # it hangs up on us
                sock.sendall(reply)
                read_all(sock, 1)

    in_thread(server)
    with pytest.raises(ValueError, match="not an address record"):
        role.client("127.0.0.1", port_of(listener), OURS, timeout=30)


@both
def test_server_refuses_garbage_and_does_not_connect(role, listener):
    connected = []
    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: *\r\n\r\n")
        with pytest.raises(ValueError, match="not an address record"):
            role.server(listener, THEIRS, connected.append, timeout=30)
    assert connected == []


@both
def test_server_refuses_another_end_than_done(role, listener):
    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(WIRE + b"more\n")
        with pytest.raises(ValueError, match="more"):
            role.server(listener, THEIRS, lambda remote: None, timeout=30)


@both
@pytest.mark.parametrize("sent", [b"", WIRE[:20], WIRE, WIRE + DONE[:4]])
def test_server_reports_an_early_end(role, sent, listener):
    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError, match="closed the connection"):
            role.server(listener, THEIRS, lambda remote: None, timeout=30)


@both
@pytest.mark.parametrize("sent", [b"", WIRE[:51]])
def test_client_reports_an_early_end(role, sent, listener, in_thread):
    def server():
        sock, _ = listener.accept()
        with sock:
            read_all(sock, 52)
            sock.sendall(sent)

    in_thread(server)
    with pytest.raises(ConnectionError, match="closed the connection"):
        role.client("127.0.0.1", port_of(listener), OURS, timeout=30)


@both
def test_server_gives_up_on_a_slow_peer(role, listener):
    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(WIRE[:30])
        with pytest.raises(TimeoutError):
            role.server(listener, THEIRS, lambda remote: None, timeout=0.3)


@both
def test_a_peer_that_trickles_does_not_stretch_the_deadline(role, listener, in_thread):
    def client():
        address = listener.getsockname()
        hung_up = contextlib.suppress(OSError)
        with socket.create_connection(address, timeout=30) as sock, hung_up:
            for i in range(52):
                sock.sendall(WIRE[i : i + 1])
                time.sleep(0.1)

    in_thread(client)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        role.server(listener, THEIRS, lambda remote: None, timeout=0.5)
    assert time.monotonic() - start < 3


@both
def test_server_gives_up_when_nobody_comes(role, listener):
    with pytest.raises(TimeoutError):
        role.server(listener, THEIRS, lambda remote: None, timeout=0.2)


@both
def test_client_gives_up_on_a_silent_server(role, listener):
    with pytest.raises(TimeoutError):
        role.client("127.0.0.1", port_of(listener), OURS, timeout=0.3)


@both
def test_client_gives_up_when_nobody_listens(role):
    with listen(port=0) as sock:
        port = port_of(sock)
    with pytest.raises(TimeoutError):
        role.client("127.0.0.1", port, OURS, timeout=0.3)


@both
def test_a_failing_connect_reaches_the_caller_and_the_peer_gets_no_answer(role, listener):
    def connect(remote):
        raise LookupError("no GID")

    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(WIRE)
        with pytest.raises(LookupError, match="no GID"):
            role.server(listener, THEIRS, connect, timeout=30)
        assert read_all(sock, 1) == b""


@both
def test_the_listener_serves_again_after_a_failure(role, listener):
    blocking = listener.getblocking()
    with pytest.raises(TimeoutError):
        role.server(listener, THEIRS, lambda remote: None, timeout=0.1)
    assert listener.getblocking() == blocking
    with socket.create_connection(listener.getsockname(), timeout=30) as sock:
        sock.sendall(WIRE + DONE)
        assert role.server(listener, THEIRS, lambda remote: None, timeout=30) == OURS


def test_a_client_that_comes_as_the_server_is_cancelled_is_hung_up_on(new_loop, listener):
    """In whichever turn of the loop that is; a connection that were lost would be a warning."""

    async def scenario(turns):
        server = asyncio.ensure_future(exchange_as_server(listener, OURS, print))
        await asyncio.sleep(0)
        with socket.create_connection(listener.getsockname()) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            server.cancel()
            with pytest.raises(asyncio.CancelledError):
                await server
            with contextlib.suppress(BlockingIOError):  # nobody accepted it: the next one may
                listener.setblocking(False)
                listener.accept()[0].close()
            client.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""

    for turns in range(6):
        with contextlib.closing(new_loop()) as loop:
            loop.run_until_complete(scenario(turns))
            gc.collect()


def test_servers_listen_on_loopback_by_default(listener):
    assert listener.getsockname()[0] == "127.0.0.1"


class TestSeveral:
    """Several addresses in one exchange."""

    @pytest.mark.parametrize("server", [AsyncRole, BlockingRole], ids=["asyncio", "blocking"])
    @both
    def test_a_list_brings_a_list(self, role, server, listener, in_thread):
        connected, result = [], []
        in_thread(
            lambda: result.append(
                server.server(listener, many(THEIRS), connected.append, timeout=30)
            )
        )
        got = role.client("127.0.0.1", port_of(listener), many(OURS), timeout=30)
        assert got == many(THEIRS)
        deadline = time.monotonic() + 30
        while not result and time.monotonic() < deadline:
            time.sleep(0.01)
        assert result == connected == [many(OURS)]

    @both
    def test_the_server_reads_all_records_before_it_connects_and_answers(self, role, listener):
        record = many(OURS)[0].to_wire()
        connected = []
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.sendall(b"".join(a.to_wire() for a in many(OURS)[:-1]) + record[:51])
            sock.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionError, match="51 of 52 bytes"):
                role.server(listener, many(THEIRS), connected.append, timeout=30)
            assert read_all(sock, 1) == b""
        assert connected == []

    @both
    def test_a_bad_record_is_refused_before_the_next_is_there(self, role, listener):
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.sendall(3 * WIRE + WIRE.upper())
            with pytest.raises(ValueError, match="not an address record"):
                role.server(listener, many(THEIRS), lambda remote: None, timeout=30)

    @both
    def test_one_record_too_many_is_not_the_end_of_the_exchange(self, role, listener):
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.sendall(3 * WIRE + DONE)
            with pytest.raises(ValueError, match="instead of"):
                role.server(listener, [THEIRS, OURS], lambda remote: None, timeout=30)

    @both
    def test_a_peer_that_does_not_read_does_not_stretch_the_deadline(self, role, listener):
        start = time.monotonic()
        with pytest.raises(TimeoutError):  # more than the sockets' buffers take
            role.client("127.0.0.1", port_of(listener), [OURS] * 200_000, timeout=3)
        assert time.monotonic() - start < 20

    @both
    def test_no_address_is_refused(self, role, listener):
        with pytest.raises(ValueError, match="empty list"):
            role.client("127.0.0.1", port_of(listener), [], timeout=30)
        with pytest.raises(ValueError, match="empty list"):
            role.server(listener, [], lambda remote: None, timeout=30)


BAD_CLIENTS = {
    "garbage": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: *\r\n\r\n",
    "nothing": b"",
    "half a record": WIRE[:26],
    "a record in capitals": WIRE.upper(),
    "zeros": bytes(4096),
}


class TestTurnedAway:
    """Servers that go on after a client that was none."""

    @both
    @pytest.mark.parametrize("sent", BAD_CLIENTS.values(), ids=BAD_CLIENTS)
    def test_the_next_client_is_served(self, role, sent, listener, in_thread):
        away = []

        def clients():
            with socket.create_connection(listener.getsockname(), timeout=30) as sock:
                name = ":".join(map(str, sock.getsockname()))
                with contextlib.suppress(OSError):  # it hangs up, perhaps before it has read all
                    sock.sendall(sent)
                    sock.shutdown(socket.SHUT_WR)
                    assert read_all(sock, 1) == b""
            away.append(name)
            assert exchange_as_client_blocking("127.0.0.1", port_of(listener), OURS) == THEIRS

        in_thread(clients)
        told = []
        remote = role.server(
            listener,
            THEIRS,
            lambda remote: None,
            timeout=30,
            turned_away=lambda who, why: told.append((who, type(why))),
        )
        assert remote == OURS
        (name,) = away
        complete = len(sent) >= 52
        assert told == [(name, ValueError if complete else ConnectionError)]

    @both
    def test_a_slow_client_does_not_keep_the_others_out(self, role, listener, monkeypatch):
        monkeypatch.setattr(_protocol, "PATIENCE", 0.3)
        told = []
        address = listener.getsockname()
        with (
            socket.create_connection(address, timeout=30) as slow,
            socket.create_connection(address, timeout=30) as good,
        ):
            slow.sendall(WIRE[:30])
            good.sendall(WIRE + DONE)
            remote = role.server(
                listener,
                THEIRS,
                lambda remote: None,
                timeout=30,
                turned_away=lambda who, why: told.append(type(why)),
            )
            assert remote == OURS
            assert told == [TimeoutError]
            assert read_all(good, 52) == THEIRS.to_wire()

    @both
    @pytest.mark.parametrize("end", [b"more\n", b""])
    def test_who_has_been_connected_to_is_not_turned_away(self, role, end, listener):
        told = []
        with socket.create_connection(listener.getsockname(), timeout=30) as sock:
            sock.sendall(WIRE + end)
            sock.shutdown(socket.SHUT_WR)
            with pytest.raises((ValueError, ConnectionError)):
                role.server(
                    listener,
                    THEIRS,
                    lambda remote: None,
                    timeout=30,
                    turned_away=lambda who, why: told.append(why),
                )
        assert told == []

    @both
    def test_bad_clients_do_not_stretch_the_deadline(self, role, listener, in_thread):
        over = threading.Event()

        def clients():
            while not over.is_set():
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(listener.getsockname(), timeout=1) as sock,
                ):
                    sock.sendall(b"x" * 52)
                    read_all(sock, 1)

        in_thread(clients)
        told = []
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            role.server(
                listener,
                THEIRS,
                lambda remote: None,
                timeout=1,
                turned_away=lambda who, why: told.append(why),
            )
        over.set()
        assert time.monotonic() - start < 10
        assert told


def test_servers_listen_on_ipv6_where_the_address_is_one():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listen("::1", port=0) as sock:
        assert sock.family == socket.AF_INET6

# SPDX-License-Identifier: MIT
"""cqnotify.cm.blocking: connections for threads."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
from cm_support import NOBODY, SOON, Side, address_of, asleep, serve_once
from support import Waiter, fork, python, until

from cqnotify import ClosedError, Context, cm
from cqnotify.cm import blocking


@pytest.fixture
def listener(ctx: Context) -> Iterator[blocking.Listener]:
    with blocking.listen(address_of(ctx), 0) as listener:
        yield listener


def pair_of(
    ctx: Context, listener: blocking.Listener, **options: Any
) -> tuple[Side, blocking.Connection, Side, blocking.Connection]:
    client, server = Side(ctx), Side(ctx)
    accepted: list[Any] = []
    thread = threading.Thread(target=serve_once, args=(listener, server, accepted))
    thread.start()
    conn = blocking.connect(client.qp, *listener.local, **options)
    thread.join()
    client.post_recv()
    return client, conn, server, accepted[0]


@pytest.mark.parametrize("how", ["disconnect", "close", "QP", "context"])
def test_the_other_end_knows_though_no_thread_waits_for_it(
    ctx: Context, listener: blocking.Listener, how: str
) -> None:
    with Context(ctx.name) as other:
        client, server = Side(other), Side(ctx)
        accepted: list[Any] = []
        thread = threading.Thread(target=serve_once, args=(listener, server, accepted))
        thread.start()
        conn = blocking.connect(client.qp, *listener.local)
        thread.join()
        end = {"disconnect": conn.disconnect, "close": conn.close}
        end |= {"QP": client.qp.close, "context": other.close}
        end[how]()
        until(lambda: accepted[0].error is not None, "the server knows")
        server.check_flushed()
        assert isinstance(accepted[0].error, cm.DisconnectedError)


# ---- waits end ------------------------------------------------------------------------------


def test_waits_end_by_their_deadlines(ctx: Context, listener: blocking.Listener) -> None:
    for wait in (
        lambda: listener.get_request(0.05),
        lambda: blocking.connect(Side(ctx).qp, *listener.local, timeout=0.05),
        lambda: blocking.connect(Side(ctx).qp, NOBODY, 9, timeout=0.05),
    ):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            wait()
        assert time.monotonic() - began >= 0.05


def test_of_two_threads_one_takes_the_request(ctx: Context, listener: blocking.Listener) -> None:
    with ThreadPoolExecutor() as pool:
        takers = [pool.submit(listener.get_request, SOON) for _ in range(2)]
        until(lambda: asleep() == 2, "both wait")
        asking = pool.submit(blocking.connect, Side(ctx).qp, *listener.local)
        first = next(as_completed(takers))
        assert first.result().accept(Side(ctx).qp)
        asking.result().close()
        until(lambda: asleep() == 1, "the other one waits on")
        listener.close()
        with pytest.raises(ClosedError):
            next(one for one in takers if one is not first).result()


def test_a_signal_ends_a_wait_if_its_handler_raises(listener: blocking.Listener) -> None:
    waiting: list[int] = []

    def interrupt(*_: object) -> None:
        if not waiting:
            waiting.append(asleep())
            raise KeyboardInterrupt

    def ring() -> None:
        """More than once, as Python does not see one that comes just before its lock sleeps."""
        until(lambda: asleep() == 1, "it waits")
        while not waiting:
            signal.pthread_kill(main, signal.SIGALRM)
            time.sleep(0.05)

    main = threading.get_ident()
    before = signal.signal(signal.SIGALRM, interrupt)
    ringer = Waiter(ring)
    try:
        with pytest.raises(KeyboardInterrupt):
            listener.get_request()
    finally:
        ringer.join()
        signal.signal(signal.SIGALRM, before)
    assert waiting == [1]


# ---- processes ------------------------------------------------------------------------------


def test_a_forked_child_can_connect_and_leaves_the_parents_connections(
    ctx: Context, listener: blocking.Listener
) -> None:
    _, conn, _, accepted = pair_of(ctx, listener)
    name, where = ctx.name, listener.local
    pid = fork()
    if pid == 0:
        status = 1
        try:
            conn.close()
            with Context(name) as own:
                blocking.connect(Side(own).qp, *where).close()
            status = 0
        except BaseException:
            traceback.print_exc()  # which pytest shows
        finally:
            sys.stderr.flush()
            os._exit(status)
    listener.get_request(SOON).accept(Side(ctx).qp)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert conn.error is accepted.error is None


def test_a_program_that_ends_without_closing_is_silent(ctx: Context) -> None:
    program = f"""
from cqnotify import CQ, PD, QP, Context, QPType
from cqnotify.cm import blocking
ctx = Context({ctx.name!r})
listener = blocking.listen({address_of(ctx)!r}, 0)
"""
    ended = python("-W", "error", "-c", program + "ctx.close()\n")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


def test_without_the_library_the_error_says_what_to_install(tmp_path: Any) -> None:
    (tmp_path / "librdmacm.so.1").write_text("no library")
    program = """
import cqnotify.cm
try:
    cqnotify._core.CMChannel()
except OSError as e:
    print(e)
"""
    ended = python("-c", program, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    words = "cqnotify.cm needs librdmacm.so.1 (Debian, Ubuntu: apt-get install librdmacm1"
    assert words in ended.stdout, ended

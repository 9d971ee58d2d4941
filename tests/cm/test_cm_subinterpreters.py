# SPDX-License-Identifier: MIT
"""Each interpreter of a process has connections of its own, and a thread that reads of them."""

from __future__ import annotations

import sys

import interpreters
import pytest
from cm_support import address_of
from interpreters import OWN_GIL

from cqnotify import Context

CONNECTION = """
CONNECTION = r'''
import asyncio, threading, warnings
import cqnotify as c
from cqnotify import cm
from cqnotify.cm import blocking
warnings.simplefilter("ignore", ResourceWarning)
ctx = c.Context()
def new_qp():
    return c.QP(c.PD(ctx), c.QPType.RC, send_cq=c.CQ(ctx, 4))
accepted = []
def serve(listener):
    accepted.append(listener.get_request(10).accept(new_qp()))
async def converse():
    async with cm.listen(HOST, 0) as listener:
        asking = asyncio.ensure_future(cm.connect(new_qp(), *listener.local))
        accepted = await (await listener.get_request(10)).accept(new_qp())
        async with await asking:
            pass
        await accepted.wait_closed(10)
def connect():
    global listener, conn
    listener = blocking.listen(HOST, 0)
    thread = threading.Thread(target=serve, args=[listener])
    thread.start()
    keepalive = None if ctx.transport_type == c.TransportType.IWARP else 60
    conn = blocking.connect(new_qp(), *listener.local, keepalive=keepalive)
    thread.join()
'''
LOOPS = CONNECTION
CONNECTION += "connect()\\n"
"""

ENDS = {
    "closed": "conn.close(); accepted[0].wait_closed(10); listener.close(); ctx.close()",
    "open": "",
    "after an event loop": "asyncio.run(converse(), debug=False)",
    "cycle": "conn.me = listener.me = accepted[0].me = [conn, listener, accepted]",
    "unread request": "try: blocking.connect(new_qp(), *listener.local, timeout=0.1)\n"
    "except TimeoutError: pass",
}


# Before 3.12 Python's module destroys no interpreter that has a thread, though that would end.
LAST = "\nimport atexit; atexit._run_exitfuncs()" if sys.version_info < (3, 12) else ""


def program(ctx: Context, code: str) -> None:
    interpreters.program(CONNECTION.replace("HOST", repr(address_of(ctx))) + code)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_interpreters_come_and_go_with_their_connections(ctx: Context, end: str) -> None:
    program(
        ctx,
        f"""
import os, time
def tasks():
    return len(os.listdir("/proc/self/task"))
counts = []
for _ in range(3):
    i = create(False)
    run(i, CONNECTION + {end + LAST!r})
    interpreters.destroy(i)
    late = time.monotonic() + 120
    while tasks() > 1 and time.monotonic() < late:
        time.sleep(0.001)  # a thread that was joined has its last steps before it
    counts.append((len(os.listdir("/proc/self/fd")), tasks(), states()))
assert counts[1:] == counts[:1] * 2, counts
""",
    )


def test_interpreters_connect_at_once(ctx: Context) -> None:
    """Each is made and destroyed by one thread, as Python's threading module needs it."""
    program(
        ctx,
        f"""
MANY = CONNECTION + '''
for _ in range(5):
    conn.close()
    accepted.pop().wait_closed(10)
    connect()
'''
ended = []
def live():
    i = create(False)
    run(i, MANY + {LAST!r})
    interpreters.destroy(i)
    ended.append(i)
threads = [threading.Thread(target=live) for _ in range(2)]
for t in threads: t.start()
exec(MANY, globals())
for t in threads: t.join()
assert len(ended) == 2
conn.close()
accepted.pop().wait_closed(10)
connect()  # the others' end was not ours
""",
    )


@OWN_GIL
def test_event_loops_connect_in_interpreters_of_each_kind(ctx: Context, own_gil: bool) -> None:
    """Threads do where Python has daemons."""
    if own_gil and sys.version_info < (3, 13):
        pytest.skip("asyncio of Python 3.12 crashes by itself in interpreters of their own GIL")
    program(
        ctx,
        f"""
for _ in range(3):
    i = create({own_gil})
    run(i, LOOPS + "asyncio.run(converse(), debug=False); ctx.close()")
    if {own_gil}:
        run(i, '''
        try:
            blocking.listen("0.0.0.0", 0)
        except RuntimeError as e:
            assert "daemon threads" in str(e), e
        else:
            raise AssertionError
        ''')
    interpreters.destroy(i)
""",
    )

# SPDX-License-Identifier: MIT
"""Each interpreter of a process has a cqnotify of its own, from 3.12 on under a GIL of its own."""

from __future__ import annotations

import interpreters
import pytest
from interpreters import OWN_GIL

from cqnotify import Context

TRAFFIC = """
TRAFFIC = '''
import cqnotify as c, warnings
warnings.simplefilter("ignore", ResourceWarning)
ctx = c.Context()
pd = c.PD(ctx)
channel = c.CompletionChannel(ctx)
cq = c.CQ(ctx, 64, channel=channel)
mr = c.MR(pd, 4096)
a = c.QP(pd, c.QPType.RC, send_cq=c.CQ(ctx, 64))
b = c.QP(pd, c.QPType.RC, send_cq=cq)
a.connect(b.address()); b.connect(a.address())
def messages(n):
    for i in range(n):
        cq.req_notify()
        b.post_recv(mr[2048:], wr_id=i)
        mr.write(b"%-8d" % i)
        a.post_send(mr[:8])
        assert channel.get_event(timeout=30) is cq
        cq.ack()
        (wc,) = cq.poll()
        assert wc.ok and wc.wr_id == i and wc.status is c.WCStatus.SUCCESS
        assert int(mr.read(8, 2048)) == i
        a.send_cq.poll()
messages(3)
'''
"""

# How an interpreter leaves things when it is destroyed.
ENDS = {
    "closed": "ctx.close()",
    "open": "",
    "unread event": "cq.req_notify(); b.post_recv(mr); a.post_send(mr[:8])",
    "unacked event": (
        "cq.req_notify(); b.post_recv(mr); a.post_send(mr[:8]); channel.get_event(timeout=30)"
    ),
    "in flight": "a.post_send(mr[:8]); b.post_recv(mr); b.post_recv(mr)",
    "shared receives": (
        "s = c.SRQ(pd, 4); q = c.QP(pd, c.QPType.RC, send_cq=cq, srq=s); q.connect(q.address()); "
        "[s.post_recv(mr[i:64], wr_id=i) for i in range(3)]; q.post_send(mr[64:72])"
    ),
    "window": (
        "m = c.MR(pd, 64, access=0x11); w = c.MW(pd, 2); a.bind_mw(w, m, access=c.AccessFlags(4)); "
        "r = c.SendWR(m); a.post_send(r)"
    ),
    "cycle": "cq.user_data = a.user_data = [ctx, pd, channel, cq, mr, a, b]",
    "completions": (
        "array = c.WCArray(1); b.post_recv(mr); a.post_send(mr[:8]); a.send_cq.poll()\n"
        "while not cq.poll_into(array): pass\n"
        "import builtins; builtins.kept = [array[0] for _ in range(600)]; del builtins.kept[300:]"
    ),
    "builtins": "import builtins; builtins.kept = [ctx, pd, channel, cq, mr, a, b]",
}


def program(code: str) -> str:
    return interpreters.program(TRAFFIC + code)


@OWN_GIL
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_traffic_flows_in_interpreters_that_come_and_go(
    ctx: Context, own_gil: bool, end: str
) -> None:
    out = program(f"""
import os
counts = []
for _ in range(3):
    i = create({own_gil})
    run(i, TRAFFIC + {end!r})
    interpreters.destroy(i)
    counts.append((len(os.listdir("/proc/self/fd")), states()))
print(counts)
assert counts[1:] == counts[:1] * 2, counts
""")
    # The last module state goes with its interpreter.
    assert out.count(", 0)") == 3, out


@OWN_GIL
def test_the_memory_of_completions_goes_with_the_interpreter(ctx: Context, own_gil: bool) -> None:
    """Also what is kept, of those that are gone, for the next ones."""

    def growth(count: int) -> int:
        """By the second interpreter of a process: without a GIL each of the first ones leaves
        another number of blocks, even where it runs nothing."""
        return int(
            program(f"""
MANY = '''
b.post_recv(mr)
a.post_send(mr[:8])
array = c.WCArray(1)
while not cq.poll_into(array):
    pass
[array[0] for _ in range(COUNT)]
ctx.close()
'''
def growth(count):
    i = create({own_gil})
    before = sys.getallocatedblocks()
    run(i, TRAFFIC + MANY.replace("COUNT", str(count)))
    interpreters.destroy(i)
    return sys.getallocatedblocks() - before
growth(1)
print(growth({count}))
""")
        )

    few, many = growth(1), growth(1000)
    assert many < few + 100


@OWN_GIL
def test_two_interpreters_at_once(ctx: Context, own_gil: bool) -> None:
    """Each in a thread of its own, with the main one at work, too."""
    program(f"""
ids = [create({own_gil}) for _ in range(2)]
in_threads(ids, MANY := TRAFFIC + "messages(300)", lambda: exec(MANY, globals()))
assert states() == 3
for i in ids: interpreters.destroy(i)
assert states() == 1
messages(3)  # the others' end was not ours
""")


@OWN_GIL
def test_opening_and_closing_in_two_interpreters_at_once(ctx: Context, own_gil: bool) -> None:
    """libibverbs has locks of its own for what the process shares."""
    program(f"""
ids = [create({own_gil}) for _ in range(2)]
LOOP = '''
for _ in range(25):
    assert c.devices()
    with c.Context() as x:
        q = c.CQ(x, 16, channel=c.CompletionChannel(x))
        qp = c.QP(c.PD(x), c.QPType.UC, send_cq=q)
        qp.connect(qp.address())
'''
in_threads(ids, TRAFFIC + LOOP)
for i in ids: interpreters.destroy(i)
""")


@OWN_GIL
def test_nothing_of_one_interpreter_is_seen_in_another(ctx: Context, own_gil: bool) -> None:
    program(f"""
exec(TRAFFIC)
import os
r, w = os.pipe()
i = create({own_gil})
run(i, TRAFFIC + f'''
import os
names = [n for n in c.__all__ if isinstance(getattr(c, n), type)]
os.write({{w}}, repr({{{{n: id(getattr(c, n)) for n in names}}}}).encode())
''')
theirs = eval(os.read(r, 1 << 16))
for name, address in theirs.items():
    assert id(getattr(c, name)) != address, name
assert states() == 2
# An object cannot be handed over.
for thing in (ctx, pd, channel, cq, mr, a):
    assert not interpreters.is_shareable(thing), thing
# What the other one closes is its own.
run(i, "ctx.close()")
messages(3)
interpreters.destroy(i)
messages(3)
""")


def test_a_module_that_is_imported_anew_has_a_state_of_its_own(ctx: Context) -> None:
    program("""
exec(TRAFFIC)
old, old_ctx = c, ctx
for name in [n for n in sys.modules if n.split(".")[0] == "cqnotify"]:
    del sys.modules[name]
exec(TRAFFIC)
assert c is not old and c.Context is not old.Context
try:
    c.PD(old_ctx)
except TypeError as e:
    assert "context must be a" in str(e), e
else:
    raise AssertionError("an object of the old module")
""")

# SPDX-License-Identifier: MIT
"""docs/migrating.md is true: its programs print the same with all libraries, which behave as it
says, and the names in its tables exist."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import subprocess
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from doc_support import PAGES, matches, read

import cqnotify
from cqnotify import Context, cm, hw

DEBIAN = "/usr/bin/python3"  # whose package python3-pyverbs is

# It has wheels only, none for a Python without a GIL; see install_ibverbs() of the lab.
needs_ibverbs = pytest.mark.skipif(
    importlib.util.find_spec("ibverbs") is None, reason="there is no ibverbs for this Python here"
)
PYTHONS = {"pyverbs": DEBIAN, "ibverbs": sys.executable, "cqnotify": sys.executable}
others = pytest.mark.parametrize(
    "library", ["pyverbs", pytest.param("ibverbs", marks=needs_ibverbs)]
)

PAGE = PAGES["migrating.md"].read_text()
sections = {
    s.heading: dict(zip(PYTHONS, [block.text for block in s.of("python")], strict=True))
    for s in read("migrating.md").sections
    if s.of("python")
}
SETUP = sections["Set-up"]
TASKS = {title: programs for title, programs in sections.items() if title[0].isdigit()}


def run(library: str, *parts: str) -> str:
    # Nothing closes what the others have opened in an order, and a thread may wait for ever.
    end = "import os, sys; sys.stdout.flush(); os._exit(0)"
    command = [PYTHONS[library], "-c", "\n".join([*parts, end])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Row(NamedTuple):
    first: str
    cells: list[str]


def rows_of(heading: str) -> list[Row]:
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in text.splitlines() if line[:1] == "|"]
    return [Row(first, rest) for first, *rest in rows if not first.startswith("-")]


# ---- programs -------------------------------------------------------------------------------


def code_lines(text: str) -> int:
    return sum(
        1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    )


def test_there_are_three_tasks_and_nearly_each_is_shorter_with_cqnotify() -> None:
    assert len(TASKS) == 3
    assert len(sections) == 1 + len(TASKS)
    for title, programs in sections.items():
        if title.startswith("3."):  # the others leave unread what the device reports of the peer
            continue
        for library in ("pyverbs", "ibverbs"):
            assert code_lines(programs["cqnotify"]) <= code_lines(programs[library]), title


@others
@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize("title", TASKS)
def test_the_programs_of_a_task_print_the_same(ctx: Context, title: str, library: str) -> None:
    ours, theirs = (run(each, SETUP[each], TASKS[title][each]) for each in ("cqnotify", library))
    assert ours
    assert theirs == ours


@needs_ibverbs
def test_the_page_is_of_the_version_that_is_compared_with() -> None:
    assert f"ibverbs/) {importlib.metadata.version('ibverbs')} " in PAGE


# ---- what differs ---------------------------------------------------------------------------

# By row of the table: for each library a program that goes on after the set-up, and what it prints.
ALARM = """
import signal

signal.signal(signal.SIGALRM, lambda *_: print("handler"))
b_cq.req_notify()
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    {wait}
except {error}:
    print({printed})
"""
IN_ANOTHER_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

interpreters.run_string(interpreters.create(), '''
try:
    import {module}
    print("imported", flush=True)
except ImportError:
    print("refused", flush=True)
''')
"""
WAITED_FOR = """
import threading, time

alone = {channel}


def wait_for_an_event():
    try:
        {wait}
    except Exception as error:
        print(type(error).__name__)


waiter = threading.Thread(target=wait_for_an_event, daemon=True)
waiter.start()
time.sleep(0.2)
alone.close()
waiter.join({seconds})
print("still waiting" if waiter.is_alive() else "woken")
"""
Shown = dict[str, tuple[str, str]]
DIFFER: dict[str, Shown] = {
    "a region without references, in a posted receive": {
        "pyverbs": (
            """
region = MR(pd, 64, ACCESS)
b.post_recv(RecvWR(1, 1, [SGE(region.buf, 64, region.lkey)]))
del region
a.post_send(SendWR(2, e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, 5, mr.lkey)]))
print(wait(b_cq).status == e.IBV_WC_LOC_QP_OP_ERR, wait(a_cq).status == e.IBV_WC_REM_OP_ERR)
""",
            "True True\n",
        ),
        "ibverbs": (
            """
other = bytearray(64)
region = pd.reg_mr(ctypes.addressof(ctypes.c_char.from_buffer(other)), 64, ACCESS)
b.post_recv(ib.RecvWR(1, [region.sge()]))
del region
a.post_send(ib.SendWR(2, [mr.sge(5)], ib.WROpcode.SEND, SIGNALED))
print(ib.WCStatus(wait(b_cq).status).name, ib.WCStatus(wait(a_cq).status).name)
""",
            "LOC_QP_OP_ERR REM_OP_ERR\n",
        ),
        "cqnotify": (
            """
region = MR(pd, 64)
b.post_recv(region, wr_id=1)
del region
a.post_send(mr[:5], wr_id=2)
print(wait(b_cq).status.name, wait(a_cq).status.name)
""",
            "SUCCESS SUCCESS\n",
        ),
    },
    "a slice of a region": {
        "pyverbs": ("SGE(mr.buf + 4000, 1000, mr.lkey)", ""),
        "ibverbs": (
            "try:\n    mr.sge(1000, 4000)\nexcept ValueError:\n    print('refused')",
            "refused\n",
        ),
        "cqnotify": (
            "try:\n    mr[4000:5000]\nexcept (IndexError, ValueError):\n    print('refused')",
            "refused\n",
        ),
    },
    "closing the context first": {
        "pyverbs": ("ctx.close()\nprint('closed')", "closed\n"),
        "ibverbs": (
            "try:\n    ctx.close()\nexcept ib.VerbsError as error:\n    print(error)",
            "[Errno 16] cannot close context with 4 open child resource(s)\n",
        ),
        "cqnotify": (
            "ctx.close()\nprint(a.closed, mr.closed, channel.closed)",
            "True True True\n",
        ),
    },
    "a call on a closed object": {
        "ibverbs": (
            """
cq = ctx.create_cq(16)
cq.close()
try:
    cq.poll(1)
except ib.VerbsError as error:
    print(error)
""",
            "[Errno 9] completion queue is closed failed: Bad file descriptor\n",
        ),
        "cqnotify": (
            """
cq = CQ(ctx, 16)
cq.close()
try:
    cq.poll(1)
except ValueError as error:
    print(type(error).__name__, error)
""",
            "ClosedError ...CQ...closed...\n",
        ),
    },
    "closing a channel during a wait": {
        "ibverbs": (
            WAITED_FOR.format(
                channel="ctx.create_comp_channel()", wait="alone.get_cq_event()", seconds=1
            ),
            "still waiting\n",
        ),
        "cqnotify": (
            WAITED_FOR.format(
                channel="CompletionChannel(ctx)", wait="alone.get_event()", seconds=60
            ),
            "ClosedError\nwoken\n",
        ),
    },
    "interpreters of a process": {
        "pyverbs": (IN_ANOTHER_INTERPRETER.format(module="pyverbs.device"), "refused\n"),
        "ibverbs": (IN_ANOTHER_INTERPRETER.format(module="ibverbs"), "refused\n"),
        "cqnotify": (IN_ANOTHER_INTERPRETER.format(module="cqnotify"), "imported\n"),
    },
    "a signal during a wait": {
        "pyverbs": (
            ALARM.format(
                wait="b_cq.comp_channel.get_cq_event(b_cq)",
                error="Exception as error",
                printed="error",
            ),
            "handler\n...Errno: 4...\n",
        ),
        "ibverbs": (
            ALARM.format(
                wait="channel.get_cq_event()", error="ib.VerbsError as error", printed="error"
            ),
            "handler\n[Errno 4] ibv_get_cq_event failed: Interrupted system call\n",
        ),
        "cqnotify": (
            ALARM.format(
                wait="channel.get_event(timeout=0.5)", error="TimeoutError", printed="'waited on'"
            ),
            "handler\nwaited on\n",
        ),
    },
    "several CQs on a channel": {
        "pyverbs": (
            """
shared = CompChannel(ctx)
c_cq, d_cq = (CQ(ctx, 16, None, shared, 0) for _ in range(2))
c, d = make_qp(c_cq), make_qp(d_cq)
connect(c, d)
connect(d, c)
d.post_recv(RecvWR(1, 1, [SGE(mr.buf, 64, mr.lkey)]))
d_cq.req_notify()
c.post_send(SendWR(2, e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, 5, mr.lkey)]))
try:
    shared.get_cq_event(c_cq)
except Exception as error:
    print(error)
""",
            "Received event on an unexpected CQ...\n",
        ),
        "ibverbs": (
            """
b.post_recv(ib.RecvWR(1, [mr.sge(64)]))
a_cq.req_notify()
b_cq.req_notify()
a.post_send(ib.SendWR(2, [mr.sge(5)], ib.WROpcode.SEND, SIGNALED))
woken = [channel.get_cq_event(), channel.get_cq_event()]
print(a_cq in woken, b_cq in woken)
""",
            "True True\n",
        ),
        "cqnotify": (
            """
b.post_recv(mr[:64])
a_cq.req_notify()
b_cq.req_notify()
a.post_send(mr[:5])
woken = [channel.get_event(), channel.get_event()]
print(a_cq in woken, b_cq in woken)
""",
            "True True\n",
        ),
    },
    "`SendWR` without an opcode and flags": {
        "pyverbs": (
            """
b.post_recv(RecvWR(1, 1, [SGE(mr.buf, 64, mr.lkey)]))
a.post_send(SendWR(num_sge=1, sg=[SGE(mr.buf, 5, mr.lkey)]))
print(wait(b_cq).byte_len, wait(a_cq).opcode == e.IBV_WC_SEND)
""",
            "5 True\n",
        ),
        "ibverbs": (
            "wr = ib.SendWR(1, [mr.sge(5)])\n"
            "print(wr.opcode == ib.WROpcode.RDMA_WRITE, int(wr.send_flags))",
            "True 0\n",
        ),
        "cqnotify": (
            """
from cqnotify import SendWR

b.post_recv(mr[:64])
a.post_send([SendWR(mr[:5])])
print(wait(b_cq).byte_len, wait(a_cq).opcode.name)
""",
            "5 SEND\n",
        ),
    },
}


def test_what_is_shown_to_differ_are_rows_of_the_table() -> None:
    assert DIFFER.keys() <= {row.first for row in rows_of("What differs")}
    for shown in DIFFER.values():
        assert len({output for _, output in shown.values()}) > 1


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("row", "library"),
    [
        pytest.param(row, library, marks=needs_ibverbs if library == "ibverbs" else ())
        for row, shown in DIFFER.items()
        for library in shown
    ],
)
def test_each_library_behaves_as_the_table_says(ctx: Context, row: str, library: str) -> None:
    program, output = DIFFER[row][library]
    printed = run(library, SETUP[library], program)
    assert matches(printed, output), printed


# ---- names ----------------------------------------------------------------------------------


def missing(text: str, names: dict[str, Any]) -> list[str]:
    """The names in an expression that do not exist: of what it calls, and of keyword arguments."""
    absent: list[str] = []

    def resolve(node: ast.expr) -> Any:
        """What it is, if that is callable or a module; None if that is not known."""
        found = None
        if isinstance(node, ast.Name):
            if node.id not in names:
                absent.append(node.id)
            found = names.get(node.id)
        elif isinstance(node, ast.Attribute):
            whole = resolve(node.value)
            if whole is not None and not hasattr(whole, node.attr):
                absent.append(f"{ast.unparse(node)}")
            found = getattr(whole, node.attr, None)
        elif isinstance(node, ast.Call):
            function = resolve(node.func)
            try:
                known = function.__text_signature__ or str(inspect.signature(function))
            except (AttributeError, TypeError, ValueError):
                known = "**unknown"
            for keyword in node.keywords:
                if "**" not in known and not re.search(rf"\b{keyword.arg}\b", known):
                    absent.append(f"{ast.unparse(node.func)}: {keyword.arg}")
        elif isinstance(node, ast.Subscript):
            resolve(node.value)
        elif isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                resolve(side)
        else:
            absent.append(text)
        return found if callable(found) or isinstance(found, ModuleType) else None

    resolve(ast.parse(text, mode="eval").body)
    return absent


def code_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def our_names() -> dict[str, Any]:
    names: dict[str, Any] = {name: None for each in (cqnotify.QPAttr,) for name in each._fields}
    for name in cqnotify.__all__:
        value = getattr(cqnotify, name)
        if inspect.isclass(value):
            names |= {attr: getattr(value, attr) for attr in dir(value) if attr[0] != "_"}
    names |= {name: importlib.import_module(name) for name in ("ctypes", "ipaddress", "mmap")}
    names |= {"struct": importlib.import_module("struct"), "cqnotify": cqnotify}
    names |= vars(sys.modules["builtins"])
    names |= {name: getattr(cqnotify, name) for name in cqnotify.__all__}
    instances = {"ctx": "Context", "pd": "PD", "mr": "MR", "channel": "CompletionChannel"}
    instances |= {"cq": "CQ", "qp": "QP", "wc": "WorkCompletion"}
    names |= {variable: getattr(cqnotify, name) for variable, name in instances.items()}
    return names | {"cm": cm, "hw": hw}


TABLES = ("Names side by side", "What differs", "What each can do", "Everything that pyverbs has")


@pytest.mark.parametrize("heading", TABLES)
def test_each_name_of_cqnotify_in_a_table_exists(heading: str) -> None:
    importlib.import_module("cqnotify.cm.blocking")  # an attribute of its package from here on
    names = our_names()
    expressions = [text for row in rows_of(heading)[1:] for text in code_of(row.cells[-1])]
    assert expressions
    absent = [name for text in expressions if text != "with" for name in missing(text, names)]
    assert absent == []


def test_a_name_that_does_not_exist_is_found() -> None:
    names = our_names()
    assert missing("QP.post_recieve(mr[:5])", names) == ["QP.post_recieve"]
    assert missing("hw.FlowSpecVXLAN", names) == ["hw.FlowSpecVXLAN"]
    assert missing("QP(pd, QPType.RC, sendcq=...)", names) == ["QP: sendcq"]
    assert missing("NoSuchName()", names) == ["NoSuchName"]
    assert missing("cq.poll(n)", names) == []


@needs_ibverbs
def test_each_name_of_ibverbs_beside_ours_exists() -> None:
    ib = importlib.import_module("ibverbs")
    names = dict(vars(ib))
    instances = {"ctx": "Context", "pd": "PD", "mr": "MR", "channel": "CompChannel"}
    instances |= {"cq": "CQ", "qp": "QP", "wc": "WC"}
    names |= {variable: getattr(ib, name) for variable, name in instances.items()}
    texts = [text for row in rows_of("Names side by side")[1:] for text in code_of(row.cells[0])]
    assert len(texts) > 20
    assert [name for text in texts for name in missing(text, names)] == []


IN_PYVERBS = """
import ast, inspect, re
import pyverbs.addr, pyverbs.cmid, pyverbs.cq, pyverbs.device, pyverbs.enums, pyverbs.mr
import pyverbs.pd, pyverbs.pyverbs_error, pyverbs.qp, pyverbs.srq, pyverbs.wr
from types import ModuleType
from typing import Any

names = {}
for module in (pyverbs.enums, pyverbs.addr, pyverbs.cmid, pyverbs.cq, pyverbs.device, pyverbs.mr,
               pyverbs.pd, pyverbs.pyverbs_error, pyverbs.qp, pyverbs.srq, pyverbs.wr):
    names |= vars(module)
names |= dict(ctx=names["Context"], mr=names["MR"], channel=names["CompChannel"], cq=names["CQ"])
names |= dict(qp=names["QP"], wc=names["WC"], wr=names["SendWR"], event=names["AsyncEvent"])
"""


def test_each_name_of_pyverbs_beside_ours_exists() -> None:
    cells = [row.first for row in rows_of("Names side by side")[1:] if "57" not in row.first]
    texts = [text for cell in cells for text in code_of(cell)]
    assert len(texts) > 25
    each = f"print([name for text in {texts} for name in missing(text, names)])"
    assert run("pyverbs", IN_PYVERBS, inspect.getsource(missing), each) == "[]\n"


INVENTORY = """
import importlib, inspect, os, pyverbs

found, top = {}, os.path.dirname(pyverbs.__file__)
for folder, _, files in os.walk(top):
    for file in files:
        name = os.path.relpath(os.path.join(folder, file), top).split(".")[0].replace("/", ".")
        if file.endswith(".so") or file.endswith(".py") and file != "__init__.py":
            module = importlib.import_module("pyverbs." + name)
            public = {n: v for n, v in vars(module).items() if not n.startswith("_")}
            classes = {n for n, v in public.items() if inspect.isclass(v)}
            own = {n for n in classes if public[n].__module__ == module.__name__}
            calls = {n for n in set(public) - classes if callable(public[n])}
            helper = name in ("mem_alloc", "fork", "dma_util")
            found[module.__name__] = sorted(own | (calls if helper else set()))
print(found)
"""


def read_inventory() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The names of the page's rows by module: those of rdma-core 44, and the later ones."""
    now: dict[str, set[str]] = {}
    later: dict[str, set[str]] = {}
    modules: list[str] = []
    heading = ""
    for first, (names, _) in rows_of("Everything that pyverbs has"):
        if first:
            modules, heading = re.findall(r"`(pyverbs\.[\w.]+)`", first), first
        for part in names.split(";"):
            where = later if "*(later)*" in part + heading else now
            for module in modules:
                where.setdefault(module, set()).update(re.findall(r"`(\w+)`", part))
    return now, later


def test_the_page_has_every_module_and_class_of_pyverbs() -> None:
    now, later = read_inventory()
    installed: dict[str, list[str]] = ast.literal_eval(run("pyverbs", INVENTORY))
    assert len(installed) > 30
    assert installed.keys() <= now.keys() | later.keys()
    for module, names in installed.items():
        assert set(names) <= now.get(module, set()) | later.get(module, set()), module
    real = {name for names in installed.values() for name in names}
    for module, names in now.items():
        classes = {name for name in names if name[0].isupper()}
        assert classes <= real, module

# SPDX-License-Identifier: MIT
"""The README's examples run."""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Endpoint

from cqnotify import CompletionError, Context, WCStatus
from cqnotify.cli import COMMANDS

README = Path(__file__).parent.parent / "README.md"
FIRST, SECOND, THIRD = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_each_command_and_each_document_can_be_found() -> None:
    text = README.read_text()
    assert [name for name in COMMANDS if f"\ncqnotify {name} " not in text] == []
    linked = re.findall(r"\]\(([^)#]+)", text)
    assert [path for path in linked if not (README.parent / path).exists()] == []
    documents = {f"docs/{path.name}" for path in (README.parent / "docs").iterdir()}
    assert documents - set(linked) == set()


def test_where_the_sources_are_in_the_way_the_import_says_so(tmp_path: Path) -> None:
    sources = README.parent / "cqnotify"
    shutil.copytree(sources, tmp_path / "cqnotify", ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import cqnotify"],  # -S: without what is installed
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {tmp_path}/cqnotify has cqnotify's sources" in done.stderr


def test_the_first_example_prints_hello_and_nothing_is_warned_of(ctx: Context) -> None:
    out = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FIRST], capture_output=True, text=True, timeout=120
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "b'hello'\n", "")


@pytest.mark.parametrize("example", [SECOND, THIRD], ids=["blocking", "asyncio"])
def test_the_other_examples_receive_until_a_failure(
    pair: tuple[Endpoint, Endpoint], example: str
) -> None:
    names: dict[str, Any] = {}
    exec(example, names)
    a, b = pair
    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    a.qp.post_send(a.mr[0:8])
    a.qp.post_send(a.mr[0:8])
    b.qp.modify(qp_state=6)
    with pytest.raises(CompletionError) as e:
        result = names["receive"](b.rcq)
        asyncio.run(result)
    assert e.value.status is WCStatus.WR_FLUSH_ERR


def test_the_example_that_copies_memory_copies_it(pair: tuple[Endpoint, Endpoint]) -> None:
    names: dict[str, Any] = {}
    exec(THIRD, names)
    a, b = pair
    b.mr.write(bytes(range(256)) * 16)
    asyncio.run(names["copy"](a.qp, a.mr, b.mr.addr, b.mr.rkey))
    assert b.mr.read(4096, 4096) == bytes(range(256)) * 16
    assert a.qp.outstanding == (0, 0)

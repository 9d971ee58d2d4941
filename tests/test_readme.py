# SPDX-License-Identifier: MIT
"""The README's examples run."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import Endpoint

from cqnotify import CompletionError, Context, WCStatus

README = Path(__file__).parent.parent / "README.md"
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_example_prints_hello_and_nothing_is_warned_of(ctx: Context) -> None:
    out = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FIRST], capture_output=True, text=True, timeout=120
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "b'hello'\n", "")


def test_the_second_example_receives_until_a_failure(pair: tuple[Endpoint, Endpoint]) -> None:
    names: dict[str, object] = {}
    exec(SECOND, names)
    a, b = pair
    for i in range(3):
        b.qp.post_recv(b.mr[0:64], wr_id=i)
    a.qp.post_send(a.mr[0:8])
    a.qp.post_send(a.mr[0:8])
    b.qp.modify(qp_state=6)
    with pytest.raises(CompletionError) as e:
        asyncio.run(names["receive"](b.rcq))  # type: ignore[operator]
    assert e.value.status is WCStatus.WR_FLUSH_ERR

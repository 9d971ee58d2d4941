# SPDX-License-Identifier: MIT
"""Runs of pytest within a test."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pytest_cqnotify import SECTION

HEADER = """\
import select
import pytest
from cqnotify import *
from cqnotify.testing import Endpoint, wait_completions

def send(a, b):
    b.qp.post_recv(b.mr)
    a.qp.post_send(a.mr[0:5], **a.to_peer)
    wait_completions(b.recv_cq)[0].raise_for_status()
    wait_completions(a.send_cq)[0].raise_for_status()
"""
Run = Callable[..., pytest.RunResult]


# What is told of a failure ----------------------------------------------------


def told(result: pytest.RunResult) -> list[str]:
    """The lines of the section, the names of QPs and of the device left out."""
    text = result.stdout.str()
    assert text.count(f" {SECTION} ") == 1
    lines = text.partition(f" {SECTION} ")[2].splitlines()[1:]
    end = next(n for n, line in enumerate(lines) if line.startswith(("---", "===", "___")))
    return [re.sub(r"QP \d+", "QP N", line) for line in lines[:end]]

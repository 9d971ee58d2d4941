# SPDX-License-Identifier: MIT
"""Fixtures of this folder."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import pytest
from exchange_support import ROLES, Role, port_of
from plugin_support import HEADER, Run

from cqnotify.exchange import listen


@pytest.fixture
def run_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite of one file, in which a forgotten object or any other warning is an error.

    With no other plugins, which would be loaded each time, and take much longer than the tests.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(
        "[pytest]\n"
        "filterwarnings = error\n"
        "addopts = --strict-markers -rs -p no:cacheprovider -p no:faulthandler -p pytest_cqnotify\n"
    )

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEADER + dedent(source))
        return pytester.runpytest_inprocess(*options)

    return run


# ---- the address exchange -------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen(port=0) as sock:
        yield sock


@pytest.fixture
def port(listener: socket.socket) -> int:
    return port_of(listener)


@pytest.fixture
def free_port() -> int:
    """One on which nobody listens."""
    with listen(port=0) as sock:
        return port_of(sock)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture(params=ROLES)
def role(request: pytest.FixtureRequest) -> Role:
    return ROLES[request.param]


@pytest.fixture(params=ROLES)
def server_role(request: pytest.FixtureRequest) -> Role:
    """For tests with two ends of ours: `role` is the client's then."""
    return ROLES[request.param]

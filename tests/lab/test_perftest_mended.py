# SPDX-License-Identifier: MIT
"""perftest 4.5 and its own mend: the observer tells one from the other.

The sources are fetched by git. CQNOTIFY_LAB_PERFTEST is another repository of them than the one at
GitHub; where neither can be reached, these tests fail.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from lab_runs import built, lab

REPOSITORY = os.environ.get("CQNOTIFY_LAB_PERFTEST", "https://github.com/linux-rdma/perftest")
RELEASE = "v4.5-0.17"
MEND = "14955fe82b7197e912932c8ea45b0f5b64e032f2"  # polls until nothing is left, and then sleeps
VERSIONS = {"": "6.06", MEND: "6.16"}
"""What they call themselves: the first release that has the mend is 6.16."""

FILES = [
    "send_bw",
    "get_clock",
    "multicast_resources",
    "perftest_communication",
    "perftest_counters",
    "perftest_parameters",
    "perftest_resources",
    "raw_ethernet_resources",
]
FLAGS = ["-w", "-O2", "-D_GNU_SOURCE", "-DHAVE_XRCD", "-Isrc"]  # without its configure
LIBRARIES = ["-libverbs", "-lrdmacm", "-libumad", "-lpthread", "-lm"]

TESTS = "tests/check/test_known_programs.py"
RUN = f'PATH="$0:$PATH" exec python -m pytest -q -p no:cacheprovider {TESTS} -k "hangs and 16"'


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perftest")
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", REPOSITORY, path], check=True)
    return path


@built
@pytest.mark.release
@pytest.mark.parametrize("mend", VERSIONS, ids=["unmended", "mended"])
def test_what_sleeps_for_ever_is_found_and_is_not_accused_once_mended(
    mend: str, sources: Path, tmp_path: Path
) -> None:
    git = ["git", "-C", sources]
    subprocess.run([*git, "checkout", "--quiet", "--force", RELEASE], check=True)
    if mend:
        change = subprocess.run([*git, "show", mend], check=True, capture_output=True).stdout
        subprocess.run([*git, "apply"], input=change, check=True)
    flags = [*FLAGS, f'-DVERSION="{VERSIONS[mend]}"', "-o", tmp_path / "ib_send_bw"]
    files = [f"src/{name}.c" for name in FILES]
    subprocess.run(["gcc", *flags, *files, *LIBRARIES], cwd=sources, check=True)
    done = lab("--uml", "run", "--", "sh", "-c", RUN, str(tmp_path), timeout=1800)
    assert re.search(rb"^2 passed", done.stdout, re.MULTILINE)

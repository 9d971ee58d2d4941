# SPDX-License-Identifier: MIT
"""The observer in a program when it gets no memory: what it cannot know about it leaves alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.not_on_iwarp("its QPs are connected by rdma_cm alone")
CHECK = Path(__file__).parents[2] / "csrc/check"
PROGRAMS = Path(__file__).parent / "programs"
ALLOC = "void *cqn_alloc(size_t size)\n{\n"
FAILING = (
    "#include <stdlib.h>\n"
    "static int allocations;\n"
    f"{ALLOC}"
    '    if (__atomic_add_fetch(&allocations, 1, 0) > atoi(getenv("ALLOCATIONS")))\n'
    "        return NULL;\n"
)
FLAGS = ["-std=c11", "-g", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden"]


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The observer, with its assertions; its allocations fail after the first $ALLOCATIONS."""
    folder = tmp_path_factory.mktemp("observer")
    text = (CHECK / "memory.c").read_text()
    assert text.count(ALLOC) == 1
    (folder / "memory.c").write_text(text.replace(ALLOC, FAILING))
    sources = [path for path in CHECK.glob("*.c") if path.name != "memory.c"]
    command = ["gcc", *FLAGS, f"-I{CHECK}", "-shared", "-o", folder / "observer.so"]
    command += [folder / "memory.c", *sources, "-static-libgcc", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "observer.so"


@pytest.mark.parametrize("name", ["lost_extended", "lost_srq"])
def test_a_program_runs_whenever_the_observer_gets_no_memory(
    name: str, observer: Path, tmp_path: Path
) -> None:
    program = tmp_path / name
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["gcc", "-DRIGHT", "-o", program, source, "-libverbs", "-lpthread"], check=True)
    results = {}
    for allocations in range(40):
        env = {"LD_AUDIT": str(observer), "CQNOTIFY_CHECK": str(tmp_path)}
        env |= {"ALLOCATIONS": str(allocations)}
        done = subprocess.run([program], env=os.environ | env, capture_output=True, text=True)
        results[allocations] = done.returncode, done.stderr
    assert results == dict.fromkeys(results, (0, ""))

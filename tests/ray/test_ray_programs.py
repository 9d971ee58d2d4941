# SPDX-License-Identifier: MIT
"""Programs with a cluster: the example, that of the page, and what Ray does in the middle of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_support import matches, read
from support import DEADLINE

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ctx")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_arrays.py"
QUIET = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # no file, no network


PROGRAM = """
import numpy, ray, cqnotify.ray

cqnotify.ray.register_numpy()
RDMA = {"tensor_transport": "RDMA_NUMPY"}


@ray.remote(enable_tensor_transport=True)
class Actor:
    def make(self, n):
        return {"a": numpy.arange(n), "b": [numpy.ones((2, n)).T, "text"]}

    def gaps(self):
        return numpy.ones((4, 4))[:, ::2]

    def look(self, made):
        array, text = made["b"]
        return int(made["a"].sum()), array.shape, array.flags.f_contiguous, text


ray.init(include_dashboard=False, log_to_driver=False)
one, other = Actor.remote(), Actor.remote()
made = one.make.options(**RDMA).remote(1000)
print("another:", ray.get(other.look.remote(made)))
print("itself:", ray.get(one.look.remote(made)))
print("driver:", ray.get(made)["a"].sum())
made = {"a": numpy.ones(5), "b": [numpy.ones((1, 2)), "put"]}
put = ray.put(made, _tensor_transport="RDMA_NUMPY")
print("put:", ray.get(other.look.remote(put)))
try:
    ray.get(other.look.remote(one.gaps.options(**RDMA).remote()))
except ValueError as e:
    print("refused:", str(e).splitlines()[-1])
"""

PRINTED = """\
another: (499500, (1000, 2), True, 'text')
itself: (499500, (1000, 2), True, 'text')
driver: 499500
put: (5, (1, 2), True, 'put')
refused: ValueError: an array of shape (4, 2)...numpy.ascontiguousarray(array)
"""


def run(folder: Path, *words: str | Path) -> str:
    """What a program prints. Ray starts many processes, each of which imports a lot."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
        cwd=folder,
        env={**os.environ, **QUIET},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_arrays_and_survives_a_killed_actor(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLE, "--rows", "100", "--passes", "3")
    for way in ("the object store", "RDMA"):
        assert re.search(rf"^0\.8 MB by {way}, 1 host: [\d.]+ ms, \d+ MB/s, right$", printed, re.M)
    assert "\nexposed afterwards: 0 bytes\n" in printed
    assert re.search(
        r"^the actor was killed: .*object \w+ was not fetched over RDMA", printed, re.M
    )
    assert printed.endswith("from another one: right\n")


def test_objects_with_arrays_in_them_go_to_actors_and_the_driver_and_from_it(
    tmp_path: Path,
) -> None:
    assert matches(run(tmp_path, "-c", PROGRAM), PRINTED)


def test_the_program_of_the_page_prints_what_stands_below_it(tmp_path: Path) -> None:
    (program,) = read("ray.md").programs
    path = tmp_path / "page_ray.py"
    path.write_text(program.source)
    assert matches(run(tmp_path, path), program.output)

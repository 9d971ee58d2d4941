# SPDX-License-Identifier: MIT
"""What setup.py runs with CQNOTIFY_PGO, to count what of the core is run often:

    python -m benchmarks.training

It needs no device: the subjects that poll, arm, post and await run on the fake library. The counts
are the same each time: no hash is random, and the collector, which runs sooner where more has been
imported, does not run by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from .harness import compiled, plan
from .harness.runner import fake_verbs

BENCHMARKS: Final = ("drain", "cycle", "post", "completion", "awaiting", "many")
ROUNDS: Final = 5
SUBJECT: Final = "import gc; gc.disable(); from benchmarks.harness import subject; subject.main()"


def main() -> None:
    compiled.build(compiled.FAKE_VERBS.stem)  # the others need more than the core does
    for name in BENCHMARKS:
        benchmark = plan.load(name)
        env = {**os.environ, **fake_verbs(), **benchmark.env, "PYTHONHASHSEED": "0"}
        for variant in benchmark.subjects:
            if variant.startswith("cqnotify") and "uvloop" not in variant:  # which may be missing
                command = [sys.executable, "-c", SUBJECT, name, variant]
                rounds = b"\n" * ROUNDS
                subprocess.run(
                    command, env=env, input=rounds, stdout=subprocess.DEVNULL, check=True
                )


if __name__ == "__main__":
    main()

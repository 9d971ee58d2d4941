# SPDX-License-Identifier: MIT
"""The CPU that a wait for a transfer takes, of ours and of a Work of torch's nixl backend.

    idle.py [SECONDS] [WORKS]

Threads wait for transfers that do not end: ours of memory that a stopped peer has yet to grant;
and nixl's Work, whose check here costs nothing, so that it shows what the sleeping alone costs.
"""

import contextlib
import resource
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import Work
from torch.distributed._transport.nixl._work import _PollingWork

sys.path[:0] = [str(Path(__file__).parents[1])]

from torch_support import peer  # noqa: E402

from cqnotify.torch import CqnotifyTransport  # noqa: E402


class NeverDone(_PollingWork):
    def _poll(self) -> bool:
        return False


def measured(works: list[Work], seconds: float) -> tuple[float, int]:
    def wait(work: Work) -> None:
        with contextlib.suppress(TimeoutError):
            work.wait(timedelta(seconds=seconds))

    threads = [threading.Thread(target=wait, args=(work,)) for work in works]
    before = resource.getrusage(resource.RUSAGE_SELF)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, after.ru_nvcsw - before.ru_nvcsw


def main(seconds: float = 10, number: int = 1) -> None:
    with peer(4096) as other, CqnotifyTransport("cpu") as transport:
        transport.connect(other.url)
        other.stop()
        view = transport.register_memory(torch.zeros(4096, dtype=torch.uint8)).to_mutable_view()

        def ours() -> Work:
            return transport.read(view, other.buffers[0], async_op=True)

        kinds: dict[str, Callable[[], Work]] = {"cqnotify": ours, "nixl": NeverDone}
        for name, new in kinds.items():
            cpu, sleeps = measured([new() for _ in range(int(number))], seconds)
            waits = f"{number:.0f} waits of {seconds:g} s"
            print(f"{name}: {waits}, CPU {cpu * 1000:.1f} ms, {sleeps} sleeps")
        other.go_on()


main(*map(float, sys.argv[1:]))

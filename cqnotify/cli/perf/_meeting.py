# SPDX-License-Identifier: MIT
"""How two ends meet: over TCP, or by rdma_cm; and then tell each other what they are.

Only the QP of the control is connected first. What the ends need alike, and over TCP the addresses
of the other QPs, are told through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import device_names
from . import _perftest, _rdma_cm, _tcp
from ._end import End
from ._plan import Plan


@contextmanager
def meet(plan: Plan) -> Iterator[End]:
    """Return our end, connected to the peer's. Raises CommandError if they do not fit."""
    device_names(plan.device)
    way = _perftest if plan.perftest else _rdma_cm if plan.rdma_cm else _tcp
    with way.meet(plan) as end:
        yield end

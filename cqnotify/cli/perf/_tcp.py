# SPDX-License-Identifier: MIT
"""Meeting the peer over TCP, by an exchange of addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...exchange._protocol import PerftestError
from .. import CommandError
from .._peer.tcp import exchange
from ._description import MAGIC, OTHER_PROGRAM, swap_descriptions
from ._end import PerfEnd, open_end
from ._plan import Plan


@contextmanager
def meet(plan: Plan) -> Iterator[PerfEnd]:
    """Exchange the address of the control's QP, connect it, and then all others."""

    def hint(error: Exception) -> str:
        """Return a hint if the peer seems to be of perftest, whose servers just hang up."""
        if isinstance(error, PerftestError) or (plan.client and isinstance(error, ConnectionError)):
            return "; if the peer is a program of perftest, such as ib_send_lat: --perftest"
        return ""

    with open_end(plan) as end:
        _, payload = exchange(
            plan, end.control_address, end.connect_control, payload=MAGIC, hint=hint
        )
        if payload != MAGIC:
            raise CommandError(OTHER_PROGRAM)
        swap_descriptions(end)
        end.connect()
        yield end

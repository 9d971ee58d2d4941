# SPDX-License-Identifier: MIT
"""What is in use is not closed. Every order of closing is tested in test_close_matrix.py."""

from __future__ import annotations

import errno

import pytest
from world import World

from cqnotify import CQ, QP, BusyError, Context, QPType


@pytest.mark.usefixtures("conversation")
@pytest.mark.parametrize(
    ("name", "verb", "users"),
    [
        ("pd", "ibv_dealloc_pd", "1 MR, 1 AH, 1 MW, 1 SRQ, 3 QPs: close that first"),
        ("channel", "ibv_destroy_comp_channel", "2 CQs: close that first"),
        ("cq", "ibv_destroy_cq", "3 QPs: close that first"),
        ("srq", "ibv_destroy_srq", "2 QPs: close that first"),
    ],
)
def test_the_error_names_the_verb_that_was_not_called_and_all_users(
    ctx: Context, name: str, verb: str, users: str
) -> None:
    w = World(ctx)
    others = [QP(w.pd, QPType.RC, send_cq=w.cq, srq=w.srq) for _ in range(2)]
    other_cq = CQ(ctx, 4, channel=w.channel)
    with pytest.raises(BusyError, match=f"is still used by {users}") as e:
        getattr(w, name).close()
    assert (e.value.verb, e.value.errno) == (verb, errno.EBUSY)
    assert not any(thing.closed for thing in (getattr(w, name), *others, other_cq))

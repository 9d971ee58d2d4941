# SPDX-License-Identifier: MIT
"""What posting costs, against C, in instructions: run where time counts these, by
./lab --icount test -m icount tests/test_post_cost.py
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cqnotify import CQ, MR, PD, QP, Context, QPState, QPType, RecvWR

POSTS = 800  # of one measurement; fewer than a queue takes
REPEATS = 5
IN_C = """
#include <infiniband/verbs.h>
#include <stdio.h>
#include <time.h>

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void)
{
    static char buffer[4096];
    struct ibv_context *ctx = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {16, 1000, 1, 1, 0}};
    struct ibv_sge sge = {(unsigned long)buffer, 64, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    for (int repeat = 0; repeat < 5; repeat++) {
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                     IBV_QP_ACCESS_FLAGS);
        long long start = now();
        for (int i = 0; i < %(posts)d; i++) {
            wr.wr_id = i;
            if (ibv_post_recv(qp, &wr, &bad)) return 1;
        }
        printf("%%f\\n", (now() - start) / %(posts)d.0);
        ibv_destroy_qp(qp);
    }
}
"""
pytestmark = pytest.mark.icount


def cost_in_c(folder: Path) -> float:
    source, program = folder / "post.c", folder / "post"
    source.write_text(IN_C % {"posts": POSTS})
    subprocess.run(["gcc", "-O2", "-o", program, source, "-libverbs"], check=True)
    return min(map(float, subprocess.check_output([program]).split()))


class Receiver:
    def __init__(self, ctx: Context) -> None:
        pd = PD(ctx)
        self.qp = QP(pd, QPType.RC, send_cq=CQ(ctx, 16), max_recv_wr=1000)
        self.sge = MR(pd, 4096)[0:64]

    def one_by_one(self, post: Callable[[Any], object], argument: Any) -> None:
        for _ in itertools.repeat(None, POSTS):
            post(argument)

    def prebuilt(self) -> None:
        self.one_by_one(self.qp.post_recv, RecvWR(self.sge))

    def by_arguments(self) -> None:
        post, sge = self.qp.post_recv, self.sge
        for _ in itertools.repeat(None, POSTS):
            post(sge, wr_id=7)

    def as_lists(self) -> None:
        post, wrs = self.qp.post_recv, [RecvWR(self.sge)] * 100
        for _ in itertools.repeat(None, POSTS // 100):
            post(wrs)

    def nothing(self) -> None:
        self.one_by_one(callable, 7)

    def cost(self, what: Callable[[], None]) -> float:
        """The least of some, since the books grow in the first."""
        costs = []
        for _ in range(REPEATS):
            self.qp.modify(qp_state=QPState.RESET)
            self.qp.to_init()
            start = time.perf_counter_ns()
            what()
            costs.append((time.perf_counter_ns() - start) / POSTS)
        return min(costs)


def test_posting_a_receive_costs_little_more_than_the_call(
    ctx: Context, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver = Receiver(ctx)
    floor = cost_in_c(tmp_path)
    limits = {"nothing": 2.5, "prebuilt": 4.2, "by_arguments": 5.3, "as_lists": 2.2}
    ratios = {name: receiver.cost(getattr(receiver, name)) / floor for name in limits}
    with capfd.disabled():
        print(f"\ninstructions in C: {floor:.0f}; times that:", end="")
        print("".join(f" {name} {ratio:.2f}" for name, ratio in ratios.items()))
    assert all(ratios[name] <= limit for name, limit in limits.items()), ratios

# SPDX-License-Identifier: MIT
"""The queue of requests in flight (csrc/check/queue.c, run.h), compiled into a program of its own.

A poll of successes is compared with the requests as a whole: whichever completion is another one,
and in whatever, the whole is refused and nothing is taken.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "csrc/check"
SOURCE = """\
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "run.h"

enum { DEPTH = 32, MOST = 20, QP = 0x12345, OTHER = 0x500000000 };

static struct queue queue;
static struct ibv_wc wcs[MOST];
static uint64_t posted;
static unsigned int refused, taken;

static void post(uint32_t count, enum ibv_wc_opcode opcode, uint32_t unsignaled)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(cqn_queue_next(&queue, OTHER + posted, i == unsignaled ? REQUEST_UNSIGNALED : 0,
                              opcode & IBV_WC_RECV));
        cqn_queue_commit(&queue);
        wcs[i] = (struct ibv_wc){.wr_id = OTHER + posted++, .opcode = opcode, .qp_num = QP,
                                 .vendor_err = 77, .byte_len = 88, .imm_data = 99, .src_qp = 1};
    }
}

static void refuse(uint32_t count)
{
    uint32_t head = queue.head;
    assert(!cqn_queue_retire_all(&queue, wcs, count, QP) && queue.head == head);
    refused++;
}

/* Each of the completions has each difference, one at a time. */
static void differ(uint32_t count, uint32_t which)
{
    struct ibv_wc right = wcs[which], *wc = &wcs[which];
#define WITH(change)  \\
    do {              \\
        change;       \\
        refuse(count); \\
        *wc = right;  \\
    } while (0)
    for (int bit = 0; bit < 64; bit++)
        WITH(wc->wr_id ^= 1ull << bit);
    for (int status = 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++)
        WITH(wc->status = (enum ibv_wc_status)status);
    for (int bit = 0; bit < 32; bit++)
        WITH(wc->qp_num ^= 1u << bit);
    WITH(wc->opcode ^= IBV_WC_RECV);
}

static void round_of(uint32_t count, enum ibv_wc_opcode opcode)
{
    post(count, opcode, count);
    for (uint32_t which = 0; which < count; which++)
        differ(count, which);
    struct ibv_wc others[MOST];
    memcpy(others, wcs, sizeof(wcs));
    for (uint32_t i = 0; i < count; i++) /* all of another QP */
        wcs[i].qp_num = QP & 0x12340;
    refuse(count);
    memcpy(wcs, others, sizeof(wcs));
    assert(cqn_queue_retire_all(&queue, wcs, count, QP) && cqn_queue_count(&queue) == 0);
    taken++;
    refuse(count); /* nothing is in flight */
    for (uint32_t which = 0; which < count; which++) {
        post(count, opcode, which);
        refuse(count);
        cqn_queue_take_back(&queue, count);
    }
}

int main(void)
{
    cqn_queue_init(&queue, DEPTH, 1);
    for (int turn = 0; turn < 8; turn++) /* so that they lie everywhere in the ring */
        for (uint32_t count = 1; count <= MOST; count++)
            round_of(count, count % 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_SEND);
    printf("%u %u\\n", taken, refused);
    cqn_queue_free(&queue);
    assert(cqn_queue_count(&queue) == 0);
    struct queue none = {0};
    assert(!cqn_queue_retire_all(&none, wcs, 1, QP)); /* as that of a QP with an SRQ */
    return 0;
}
"""


@pytest.mark.parametrize("level", ["-O0", "-O2", "-O3"])
def test_of_a_poll_all_completions_are_those_of_the_requests_or_none_is_taken(
    tmp_path: Path, level: str
) -> None:
    source = tmp_path / "queue.c"
    source.write_text(SOURCE)
    program = tmp_path / "queue"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", level, f"-I{CHECK}"]
    files = [source, CHECK / "queue.c", CHECK / "memory.c"]
    subprocess.run(["gcc", *flags, *files, "-o", program], check=True)
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True)
    taken, refused = map(int, done.stdout.split())
    assert taken == 160
    assert refused > 100_000

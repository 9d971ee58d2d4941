/* SPDX-License-Identifier: MIT */
/*
 * The numbers of the queues, and so the ids that the device has of work requests.
 *
 * The user's wr_id, any number of 64 bits, stays in the books. The device gets
 *
 *   bits 63 to 48   generation
 *   bits 47 to 24   slot: the place of its last entry in the queue, or of its first in
 *                   an SRQ's
 *   bits 23 to 0    the number of the queue, which no other has at the time; never 0
 *
 * so that a completion leads to its work request without a search. If a work request is not in the
 * books any more, or never was, the generation tells that it is not the one which has its slot now.
 * In the queue of a queue pair, slot and generation are one number that counts entries; it is moved
 * on by a whole generation when the device refuses a work request, or when all are forgotten. In
 * the queue of an SRQ the generation counts work requests.
 *
 * This file gives a queue its number, and the generation to begin with, and has the table that
 * leads from a number to its queue. Ids are made and taken apart by the inline functions of
 * queue.h. What stands in a slot, and how the user's wr_id comes back when the completion was
 * polled, is in wr_queue.c.
 *
 * A number is free again when no completion of its queue can be polled any more.
 */

#include "work/queue.h"

/* Where a queue begins to count. A debug build does so shortly before slots and generations begin
 * anew, so that its tests see that as well. */
#ifdef CQN_FAULTS
#define FIRST_SLOT (CQN_WR_SLOTS - 8)
#define FIRST_GENERATION UINT64_C(0xfff0)
#else
#define FIRST_SLOT 0
#define FIRST_GENERATION UINT64_C(0)
#endif

/* Free numbers are linked through the table; a link is odd, which no pointer is. */
static cqn_wr_queue *link_to(uint32_t number)
{
    return (cqn_wr_queue *)((uintptr_t)number << 1 | 1);
}

/* Nothing has the number 0, which also ends the list of free ones. */
static int grow_queue_table(cqn_state *st)
{
    const uint32_t old = st->queues_len, len = old ? old * 2 : 64;
    if (len > CQN_WR_NUMBERS) {
        PyErr_SetString(PyExc_MemoryError, "there are too many queue pairs");
        return -1;
    }
    cqn_wr_queue **queues = PyMem_Realloc(st->queues, len * sizeof(*queues));
    if (queues == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = old; i < len; i++) {
        queues[i] = link_to(i == 0 || i + 1 == len ? 0 : i + 1);
    }
    st->queues = queues;
    st->queues_len = len;
    st->free_number = old ? old : 1;
    return 0;
}

/* The number of a queue is used again after it is unregistered; the generation then tells the
 * queues apart. */
int cqn_wr_queue_register(cqn_state *st, cqn_wr_queue *q)
{
    if (st->free_number == 0 && grow_queue_table(st) < 0) {
        return -1;
    }
    const uint32_t number = st->free_number;
    st->free_number = (uint32_t)((uintptr_t)st->queues[number] >> 1);
    st->queues[number] = q;
    q->number = number;
    /* Another generation than that of the queue that had the number before. */
    q->next = (FIRST_GENERATION + st->queues_born++) * CQN_WR_SLOTS + FIRST_SLOT;
    return 0;
}

void cqn_wr_queue_unregister(cqn_state *st, const cqn_wr_queue *q)
{
    st->queues[q->number] = link_to(st->free_number);
    st->free_number = q->number;
}

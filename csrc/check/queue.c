/* SPDX-License-Identifier: MIT */
/* Requests in flight: posted, and not yet ended by a completion. */
#include "run.h"

void cqn_queue_init(struct queue *queue, uint32_t depth, uint32_t sges)
{
    queue->depth = depth;
    if (depth == 0)
        return;
    /* Twice the depth, for a list that the device refuses in part. */
    uint32_t size = 1;
    while (size < 2 * depth)
        size *= 2;
    queue->requests = cqn_alloc(size * sizeof(*queue->requests));
    queue->keys = sges ? cqn_alloc((size_t)size * sges * sizeof(*queue->keys)) : NULL;
    queue->width = queue->keys ? sges : 0;
    queue->size = size;
}

void cqn_queue_free(struct queue *queue)
{
    cqn_free(queue->requests, queue->size * sizeof(*queue->requests));
    cqn_free(queue->keys, (size_t)queue->size * queue->width * sizeof(*queue->keys));
    *queue = (struct queue){0};
}

/* Removes the newest requests: the device refused them. */
void cqn_queue_take_back(struct queue *queue, uint32_t count)
{
    if (count > cqn_queue_count(queue))
        count = cqn_queue_count(queue);
    __atomic_store_n(&queue->tail, queue->tail - count, __ATOMIC_RELEASE);
}

static bool is_signaled(const struct request *request)
{
    return !(request->state & REQUEST_UNSIGNALED);
}

/* Requests end in order, and an unsignaled one ends with the next signaled one; it has a completion
 * of its own only if it failed. */
uint32_t cqn_queue_retire(struct queue *queue, uint64_t wr_id, bool failed)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    uint32_t signaled = 0;
    for (uint32_t place = queue->head; queue->requests && place != tail; place++) {
        const struct request *request = cqn_queue_at(queue, place);
        signaled += is_signaled(request);
        if (request->wr_id == wr_id && (is_signaled(request) || failed)) {
            __atomic_store_n(&queue->head, place + 1, __ATOMIC_RELAXED);
            return signaled;
        }
    }
    return 0;
}

/* Takes the requests of the leading completions that are successes of one QP's queue, in the order
 * of its requests, all of them signaled; nearly always that is all. Returns their number. */
int cqn_queue_retire_run(struct queue *queue, const struct ibv_wc *wc, int count)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    uint32_t place = queue->head;
    int run = 0;
    for (; queue->requests && run < count && place != tail; run++, place++) {
        const struct request *request = cqn_queue_at(queue, place);
        if (wc[run].wr_id != request->wr_id || !is_signaled(request) ||
            wc[run].status != IBV_WC_SUCCESS || wc[run].qp_num != wc->qp_num ||
            (wc[run].opcode ^ wc->opcode) & IBV_WC_RECV)
            break;
    }
    if (run)
        __atomic_store_n(&queue->head, place, __ATOMIC_RELAXED);
    return run;
}

/* For requests that wrap around the end of the ring. */
bool cqn_queue_matches_around(const struct queue *queue, const struct ibv_wc *wc, uint32_t count,
                              uint32_t qp_num)
{
    uint32_t to_end = queue->size - (queue->head & (queue->size - 1));
    return cqn_run_matches(cqn_queue_at(queue, queue->head), wc, to_end, qp_num) &&
           cqn_run_matches(queue->requests, wc + to_end, count - to_end, qp_num);
}

/* Removes all requests. Returns the number of signaled ones. */
uint32_t cqn_queue_clear(struct queue *queue)
{
    uint32_t signaled = 0;
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        signaled += is_signaled(cqn_queue_at(queue, place));
    __atomic_store_n(&queue->head, queue->tail, __ATOMIC_RELAXED);
    return signaled;
}

bool cqn_queue_retire_any(struct queue *queue, uint64_t wr_id)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    bool found = false;
    for (uint32_t place = queue->head; place != tail && !found; place++) {
        struct request *request = cqn_queue_at(queue, place);
        if (request->state & REQUEST_DONE || request->wr_id != wr_id)
            continue;
        request->state |= REQUEST_DONE;
        found = true;
    }
    while (queue->head != tail && cqn_queue_at(queue, queue->head)->state & REQUEST_DONE)
        __atomic_add_fetch(&queue->head, 1, __ATOMIC_RELAXED);
    return found;
}

bool cqn_queue_has(const struct queue *queue, uint64_t wr_id)
{
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++) {
        const struct request *request = cqn_queue_at(queue, place);
        if (request->wr_id == wr_id && !(request->state & REQUEST_DONE))
            return true;
    }
    return false;
}

static bool uses(const struct queue *queue, uint32_t place, uint32_t lkey)
{
    const struct request *request = cqn_queue_at(queue, place);
    const uint32_t *keys = queue->keys + (size_t)(request - queue->requests) * queue->width;
    for (uint32_t i = 0; i < request->kind >> KEYS_SHIFT; i++)
        if (keys[i] == lkey)
            return !(request->state & REQUEST_DONE);
    return false;
}

uint32_t cqn_queue_using(const struct queue *queue, uint32_t lkey, uint64_t *wr_id)
{
    uint32_t count = 0;
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        if (uses(queue, place, lkey) && count++ == 0)
            *wr_id = cqn_queue_at(queue, place)->wr_id;
    return count;
}

bool cqn_queue_frees_itself(const struct queue *queue)
{
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        if (is_signaled(cqn_queue_at(queue, place)))
            return true;
    return false;
}

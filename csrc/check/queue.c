/* SPDX-License-Identifier: MIT */
/* Requests in flight: what was posted, and no completion has ended yet. */
#include "objects.h"

void cqn_queue_init(struct queue *queue, uint32_t depth)
{
    queue->depth = depth;
    if (depth == 0)
        return;
    /* With room for a list of which the device then refuses a part. */
    queue->size = 1;
    while (queue->size < 2 * depth)
        queue->size *= 2;
    queue->requests = cqn_alloc(queue->size * sizeof(*queue->requests));
}

void cqn_queue_free(struct queue *queue)
{
    cqn_free(queue->requests, queue->size * sizeof(*queue->requests));
    *queue = (struct queue){0};
}

static struct request *at(const struct queue *queue, uint32_t place)
{
    return &queue->requests[place & (queue->size - 1)];
}

/* The next request, to be filled and then committed; or NULL. If there are more than the queue
 * holds, some ended in a way that we don't see: the oldest goes. */
struct request *cqn_queue_next(struct queue *queue, uint64_t wr_id)
{
    if (!queue->requests)
        return NULL;
    if (cqn_queue_count(queue) >= queue->size)
        __atomic_add_fetch(&queue->head, 1, __ATOMIC_RELAXED);
    struct request *request = at(queue, queue->tail);
    *request = (struct request){.wr_id = wr_id};
    return request;
}

void cqn_queue_commit(struct queue *queue)
{
    __atomic_store_n(&queue->tail, queue->tail + 1, __ATOMIC_RELEASE);
}

/* The newest were not accepted. */
void cqn_queue_take_back(struct queue *queue, uint32_t count)
{
    if (count > cqn_queue_count(queue))
        count = cqn_queue_count(queue);
    __atomic_store_n(&queue->tail, queue->tail - count, __ATOMIC_RELEASE);
}

/* Requests end in order, and an unsignaled one with the next that is signaled; only one that failed
 * has a completion of its own. */
uint32_t cqn_queue_retire(struct queue *queue, uint64_t wr_id, bool failed)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    uint32_t signaled = 0;
    for (uint32_t place = queue->head; queue->requests && place != tail; place++) {
        const struct request *request = at(queue, place);
        signaled += request->signaled;
        if (request->wr_id == wr_id && (request->signaled || failed)) {
            __atomic_store_n(&queue->head, place + 1, __ATOMIC_RELAXED);
            return signaled;
        }
    }
    return 0;
}

/* Takes those that end with the first of `count` completions, as far as these are successes of one
 * QP's queue in the order of its requests, which are all signaled: nearly always. How many. */
int cqn_queue_retire_run(struct queue *queue, const struct ibv_wc *wc, int count)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    uint32_t place = queue->head;
    int run = 0;
    for (; queue->requests && run < count && place != tail; run++, place++) {
        const struct request *request = at(queue, place);
        if (wc[run].wr_id != request->wr_id || !request->signaled ||
            wc[run].status != IBV_WC_SUCCESS || wc[run].qp_num != wc->qp_num ||
            (wc[run].opcode ^ wc->opcode) & IBV_WC_RECV)
            break;
    }
    if (run)
        __atomic_store_n(&queue->head, place, __ATOMIC_RELAXED);
    return run;
}

/* All of them; the number of those that were signaled. */
uint32_t cqn_queue_clear(struct queue *queue)
{
    uint32_t signaled = 0;
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        signaled += at(queue, place)->signaled;
    __atomic_store_n(&queue->head, queue->tail, __ATOMIC_RELAXED);
    return signaled;
}

bool cqn_queue_retire_any(struct queue *queue, uint64_t wr_id)
{
    uint32_t tail = __atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE);
    bool found = false;
    for (uint32_t place = queue->head; place != tail && !found; place++) {
        struct request *request = at(queue, place);
        if (request->done || request->wr_id != wr_id)
            continue;
        request->done = true;
        found = true;
    }
    while (queue->head != tail && at(queue, queue->head)->done)
        __atomic_add_fetch(&queue->head, 1, __ATOMIC_RELAXED);
    return found;
}

bool cqn_queue_has(const struct queue *queue, uint64_t wr_id)
{
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        if (!at(queue, place)->done && at(queue, place)->wr_id == wr_id)
            return true;
    return false;
}

static bool uses(const struct request *request, uint32_t lkey)
{
    for (int i = 0; i < MAX_LKEYS; i++)
        if (request->lkeys[i] == lkey)
            return !request->done;
    return false;
}

uint32_t cqn_queue_using(const struct queue *queue, uint32_t lkey, uint64_t *wr_id)
{
    uint32_t count = 0;
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        if (uses(at(queue, place), lkey) && count++ == 0)
            *wr_id = at(queue, place)->wr_id;
    return count;
}

bool cqn_queue_frees_itself(const struct queue *queue)
{
    for (uint32_t place = queue->head; queue->requests && place != queue->tail; place++)
        if (at(queue, place)->signaled)
            return true;
    return false;
}

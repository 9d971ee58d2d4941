/* SPDX-License-Identifier: MIT */
/*
 * The work requests of a queue that have not completed, the objects that each keeps alive, and the
 * ids that the device has for them.
 *
 * The user's wr_id, any 64-bit number, stays in the WR queue. The device gets an id instead:
 *
 *   bits 63 to 48   generation
 *   bits 47 to 24   slot: the place of the work request in the queue
 *   bits 23 to 0    number of the queue, unique at any time; never 0
 *
 * A completion thus leads to its work request without a search. The slot is that of the last entry
 * of the work request; in the queue of an SRQ, of the first. The generation shows whether a work
 * request is still in the WR queue, or its slot now belongs to another one. In the queue of a queue
 * pair, slot and generation form one number that counts entries; it skips a whole generation when
 * the device refuses a work request, or when all are forgotten. In the queue of an SRQ the
 * generation counts work requests. A number is free again when no completion of its queue can be
 * polled any more. The inline functions of queue.h build ids and take them apart.
 *
 * The queues of a queue pair complete in order, so a completion stands for all earlier work
 * requests, signaled or not: these queues are rings.
 *
 * The receives of an SRQ complete in the order of the messages of several queue pairs, on several
 * CQs, so a completion stands only for its own request. A receive that a queue pair took and never
 * completed stays in the queue. So these queues have slots, and the free slots are linked.
 *
 * A queue outlives its queue pair as long as the device may have completions of it: it then keeps
 * only the wr_ids, and no objects alive. The CQ of these completions frees it after it was found
 * empty.
 */

#include "work/queue.h"

static cqn_wr *entry_at(const cqn_wr_queue *q, size_t i)
{
    return &q->ring[(q->next - q->len + i) & (q->capacity - 1)];
}

/* ---- numbers ---- */

/* Where a queue begins to count: in a debug build shortly before slots and generations wrap around,
 * so the tests cover that. */
#ifdef CQN_FAULTS
#define FIRST_SLOT (CQN_WR_SLOTS - 8)
#define FIRST_GENERATION UINT64_C(0xfff0)
#else
#define FIRST_SLOT 0
#define FIRST_GENERATION UINT64_C(0)
#endif

/* Free numbers are linked through the table; a link is odd, and a pointer is not. */
static cqn_wr_queue *link_to(uint32_t number)
{
    return (cqn_wr_queue *)((uintptr_t)number << 1 | 1);
}

/* No queue has the number 0, which ends the list of free numbers. */
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

/* A number is reused after its queue was freed; the generation then distinguishes the two
 * queues. */
static int register_queue(cqn_state *st, cqn_wr_queue *q)
{
    if (st->free_number == 0 && grow_queue_table(st) < 0) {
        return -1;
    }
    const uint32_t number = st->free_number;
    st->free_number = (uint32_t)((uintptr_t)st->queues[number] >> 1);
    st->queues[number] = q;
    q->number = number;
    /* another generation than the number's previous queue */
    q->next = (FIRST_GENERATION + st->queues_made++) * CQN_WR_SLOTS + FIRST_SLOT;
    return 0;
}

static void unregister_queue(cqn_state *st, const cqn_wr_queue *q)
{
    st->queues[q->number] = link_to(st->free_number);
    st->free_number = q->number;
}

/* ---- a queue and its capacity ---- */

/* Returns a registered queue with one user; NULL with MemoryError. */
static cqn_wr_queue *new_queue(const cqn_object *owner)
{
    cqn_wr_queue *q = PyMem_Calloc(1, sizeof(*q));
    if (q == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    q->users = 1;
#ifdef Py_GIL_DISABLED
    q->half = owner->half;
#endif
    if (register_queue(owner->state, q) < 0) {
        PyMem_Free(q);
        return NULL;
    }
    return q;
}

cqn_wr_queue *cqn_wr_queue_new(cqn_qp *qp, uint32_t types, cqn_srq *srq)
{
    cqn_wr_queue *q = new_queue(&qp->base);
    if (q != NULL) {
        q->qp = qp;
        q->types = (uint16_t)types;
    }
    if (q != NULL && srq != NULL) {
        q->source = srq->rq;
        q->source->users++;
        q->source->types |= (uint16_t)types;
    }
    return q;
}

cqn_wr_queue *cqn_wr_queue_new_shared(const cqn_object *srq)
{
    cqn_wr_queue *q = new_queue(srq);
    if (q != NULL) {
        q->is_shared = true;
        q->next /= CQN_WR_SLOTS;
    }
    return q;
}

/* With the last user, no entry keeps anything alive. */
void cqn_wr_queue_drop(cqn_state *st, cqn_wr_queue *q)
{
    while (q != NULL && --q->users == 0) {
        cqn_wr_queue *source = q->source;
        unregister_queue(st, q);
        PyMem_Free(q->ring);
        PyMem_Free(q);
        q = source;
    }
}

/* All requests keep their slots. The new slots come before the free ones. The lengths limit the
 * list, so nothing marks its end. */
static void adopt_slots(cqn_wr_queue *q, const cqn_wr_queue *old)
{
    for (size_t i = 0; i < old->capacity; i++) {
        q->ring[i] = old->ring[i];
    }
    for (size_t i = old->capacity; i < q->capacity; i++) {
        q->ring[i] = (cqn_wr){.next = i + 1 < q->capacity ? (uint32_t)i + 1 : old->free};
    }
    q->free = (uint32_t)old->capacity;
}

/* A ring is copied in its order. The slots of an SRQ keep their places, since ids of requests in
 * flight lead to them. */
int cqn_wr_queue_grow(cqn_wr_queue *q, size_t n)
{
    size_t capacity = q->capacity ? q->capacity : 16;
    while (capacity < q->len + n) {
        capacity *= 2;
    }
    cqn_wr *ring = capacity > CQN_WR_SLOTS ? NULL : PyMem_New(cqn_wr, capacity);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    const cqn_wr_queue old = *q;
    q->ring = ring;
    q->capacity = (uint32_t)capacity;
    if (q->is_shared) {
        adopt_slots(q, &old);
    }
    for (size_t i = 0; i < q->len && !q->is_shared; i++) {
        *entry_at(q, i) = *entry_at(&old, i);
    }
    PyMem_Free(old.ring);
    return 0;
}

void cqn_wr_queue_push_shared(cqn_wr_queue *q, uint64_t wr_id, const cqn_sg *sg)
{
    const size_t n = cqn_wr_entries(sg);
    const uint16_t generation = (uint16_t)q->next;
    for (size_t i = 0; i < n; i++) {
        cqn_wr *place = &q->ring[q->free];
        q->free = place->next;
        *place = (cqn_wr){.wr_id = wr_id,
                          .pinned = sg->num_pinned > 0 ? sg->pinned[i] : NULL,
                          .next = place->next,
                          .generation = generation,
                          .signaled = true,
                          .last = i + 1 == n};
        cqn_wr_pin(place->pinned);
    }
    q->next++;
    q->len += (uint32_t)n;
    q->requests++;
    q->signaled++;
}

/* The second entry has the id of the deleted receive instead of a wr_id. */
void cqn_wr_queue_push_op(cqn_wr_queue *q, uint64_t wr_id, uint64_t deleted)
{
    cqn_object *nothing[2] = {NULL, NULL};
    const cqn_wr *first = &q->ring[q->free];
    cqn_wr_queue_push_shared(q, wr_id, &(cqn_sg){.num_pinned = 2, .pinned = nothing});
    cqn_wr *second = &q->ring[first->next];
    second->wr_id = deleted;
    second->does = deleted != 0 ? CQN_WR_DELETES : CQN_WR_TRANSFERS;
}

/* ---- completions ---- */

/* Releases an entry, which stays in its place. A last reference is deferred. */
static void release_entry(cqn_wr_queue *q, const cqn_wr *wr, cqn_object **deferred)
{
    if (wr->last && !(wr->marks & CQN_WR_FORGOTTEN)) {
        q->requests--;
        q->signaled -= wr->signaled;
    }
    if (wr->pinned != NULL) {
        wr->pinned->pins--;
        cqn_decref_later(deferred, wr->pinned);
    }
}

/* Ends the bind whose first entry is at `i`. */
static void finish_bind(const cqn_wr_queue *q, size_t i, bool ok, cqn_object **deferred)
{
    const cqn_wr *wr = entry_at(q, i);
    cqn_object *mr = wr->last ? NULL : entry_at(q, i + 1)->pinned;
    cqn_mw_bound((cqn_mw *)wr->pinned, mr, wr->rkey, ok, deferred);
}

/* Records the effect of an ended request, with its first entry at `i`, on a window. */
static void update_window(cqn_context *ctx, const cqn_wr_queue *q, size_t i, bool ok,
                          cqn_object **deferred)
{
    const cqn_wr *wr = entry_at(q, i);
    if (wr->does == CQN_WR_BINDS) {
        finish_bind(q, i, ok, deferred);
    }
    else if (wr->does == CQN_WR_INVALIDATES && ok) {
        cqn_mw_invalidated(ctx, wr->rkey, deferred);
    }
}

void cqn_wr_queue_flushes(cqn_wr_queue *q, size_t *count)
{
    if (q->flushes == NULL && q->requests > 0) {
        q->flushes = count;
        ++*count;
    }
}

static inline void see_if_flushed(cqn_wr_queue *q)
{
    if (q->flushes != NULL && q->requests == 0) {
        --*q->flushes;
        q->flushes = NULL;
    }
}

/* Retires the first n entries. All requests were carried out, except the last one if it is not
 * `ok`: a failed request always has a completion, and so has an awaited one. */
static void pop_entries(cqn_context *ctx, cqn_wr_queue *q, size_t n, bool ok, cqn_object **deferred)
{
    for (size_t i = 0; i < n; i++) {
        const cqn_wr *wr = entry_at(q, i);
        if (wr->does != CQN_WR_TRANSFERS) {
            update_window(ctx, q, i, ok || i + (wr->last ? 1 : 2) < n, deferred);
        }
        if (i + 1 < n && wr->last && (wr->marks & CQN_WR_AWAITED)) {
            ctx->base.state->awaiting->lost(wr->awaitable, NULL);
        }
        release_entry(q, wr, deferred);
    }
    q->len -= (uint32_t)n;
    see_if_flushed(q);
}

/* A run of completions whose requests kept the same object alive, as most do; it is released once
 * for all of them. */
typedef struct {
    cqn_object *object; /* or NULL */
    const struct ibv_wc *since;
} pinned_run;

static inline void unpin_run(const pinned_run *run, const struct ibv_wc *end, cqn_object **deferred)
{
    if (run->object != NULL) {
        const size_t n = (size_t)(end - run->since);
        run->object->pins -= n;
        cqn_decref_many_later(deferred, run->object, n);
    }
}

static inline void add_to_run(pinned_run *run, cqn_object *object, const struct ibv_wc *wc,
                              cqn_object **deferred)
{
    if (object != run->object) {
        unpin_run(run, wc, deferred);
        *run = (pinned_run){object, wc};
    }
}

/* Whether `wc` reports only the success of a plain request, and its length. (rxe sets GRH for every
 * receive.) */
static inline bool is_plain_success(const cqn_wr *wr, const struct ibv_wc *wc)
{
    return wc->status == IBV_WC_SUCCESS && (wc->wc_flags & ~(unsigned)IBV_WC_GRH) == 0 && wr->plain;
}

/* Like cqn_wr_completed() if `wc` belongs to the first request of the queue, and a plain one.
 * Returns false otherwise, as for any SRQ. */
static inline bool complete_first(cqn_wr_queue *q, struct ibv_wc *wc, pinned_run *pinned,
                                  cqn_object **deferred)
{
    const uint64_t position = cqn_wr_position(wc->wr_id), first = q->next - q->len;
    if (q->len == 0 || ((position - first) & (CQN_WR_SLOTS - 1)) != 0) {
        return false;
    }
    const cqn_wr *wr = cqn_wr_at(q, position);
    if (wr->generation != cqn_wr_generation(position) || !is_plain_success(wr, wc)) {
        return false;
    }
    wc->wr_id = wr->wr_id;
    add_to_run(pinned, wr->pinned, wc, deferred);
    q->len--;
    q->requests--;
    q->signaled -= wr->signaled;
    see_if_flushed(q);
    return true;
}

/* The same for as many of n completions as belong to consecutive requests from the first one on.
 * Returns their number. */
static inline size_t complete_next(cqn_wr_queue *q, struct ibv_wc *wcs, size_t n,
                                   pinned_run *pinned, cqn_object **deferred)
{
    const uint64_t first = q->next - q->len, mask = q->capacity - 1;
    uint64_t place = cqn_wr_id(q, first & (CQN_WR_SLOTS - 1)); /* the id without generation */
    uint32_t i, signaled = 0;
    const uint32_t limit = n < q->len ? (uint32_t)n : q->len;
    for (i = 0; i < limit; i++) {
        const cqn_wr *wr = &q->ring[(first + i) & mask];
        if (wcs[i].wr_id != ((uint64_t)wr->generation << 48) + place ||
            !is_plain_success(wr, &wcs[i])) {
            break;
        }
        place = (place + CQN_WR_NUMBERS) & (((uint64_t)CQN_WR_SLOTS << 24) - 1);
        wcs[i].wr_id = wr->wr_id;
        signaled += wr->signaled;
        add_to_run(pinned, wr->pinned, &wcs[i], deferred);
    }
    q->len -= i;
    q->requests -= i;
    q->signaled -= signaled;
    see_if_flushed(q);
    return i;
}

/* The first completion of a queue is retired separately, since the next one often belongs to
 * another queue. */
size_t cqn_wr_completed_run(const cqn_object *cq, uint32_t special, struct ibv_wc *wcs, size_t n,
                            cqn_wr_queue **last, cqn_object **deferred)
{
    cqn_wr_queue *const *queues = cq->state->queues;
    const uint32_t queues_len = cq->state->queues_len;
    pinned_run pinned = {NULL, wcs};
    cqn_wr_queue *retired = NULL; /* the queue of the last one */
    struct ibv_wc *wc = wcs, *const end = wcs + n;
    do {
        cqn_wr_queue *q;
        if (!cqn_wr_queue_find(queues, queues_len, cq, wc->wr_id, &q) || (q->types & special)) {
            break;
        }
        const size_t run = q == retired
                               ? complete_next(q, wc, (size_t)(end - wc), &pinned, deferred)
                               : complete_first(q, wc, &pinned, deferred);
        if (run == 0) {
            break;
        }
        wc += run;
        retired = q;
    } while (wc < end && retired->waiting.first == NULL);
    unpin_run(&pinned, wc, deferred);
    *last = retired;
    return (size_t)(wc - wcs);
}

/* Returns how many entries of a ring are done when the request with this id completes; 0: it is not
 * in the WR queue. */
static size_t entries_up_to(const cqn_wr_queue *q, uint64_t id)
{
    const uint64_t position = cqn_wr_position(id);
    const size_t i = (position - (q->next - q->len)) & (CQN_WR_SLOTS - 1);
    if (i >= q->len) {
        return 0;
    }
    const cqn_wr *wr = entry_at(q, i);
    return wr->last && wr->generation == cqn_wr_generation(position) ? i + 1 : 0;
}

/* Returns the awaitable, borrowed, if a task awaits the request. */
static cqn_awaitable *completed_in_order(cqn_context *ctx, cqn_wr_queue *q, struct ibv_wc *wc,
                                         cqn_object **deferred)
{
    const size_t n = entries_up_to(q, wc->wr_id);
    if (n == 0) {
        return NULL;
    }
    const cqn_wr *wr = entry_at(q, n - 1);
    if (wr->marks == CQN_WR_PROBE) {
        q->probe = wc->status == IBV_WC_SUCCESS ? CQN_PROBE_ANSWERED : CQN_PROBE_FAILED;
    }
    cqn_awaitable *awaitable = wr->marks & CQN_WR_AWAITED ? wr->awaitable : NULL;
    if (awaitable == NULL) {
        wc->wr_id = wr->wr_id;
    }
    pop_entries(ctx, q, n, wc->status == IBV_WC_SUCCESS, deferred);
    return awaitable;
}

bool cqn_wr_is_probe(const cqn_wr_queue *q, const struct ibv_wc *wc)
{
    if (q->probe == CQN_PROBE_NEVER) {
        return false;
    }
    const size_t n = entries_up_to(q, wc->wr_id);
    return n > 0 && (entry_at(q, n - 1)->marks & CQN_WR_PROBE);
}

/* Returns the first slot of an SRQ's request with this id; NULL: it is not in the WR queue. */
static cqn_wr *slot_of(const cqn_wr_queue *q, uint64_t id)
{
    const uint64_t position = cqn_wr_position(id);
    const uint32_t slot = position & (CQN_WR_SLOTS - 1);
    cqn_wr *wr = slot < q->capacity ? &q->ring[slot] : NULL;
    return wr != NULL && wr->signaled && wr->generation == cqn_wr_generation(position) ? wr : NULL;
}

bool cqn_wr_queue_has(const cqn_wr_queue *q, uint64_t id)
{
    return slot_of(q, id) != NULL;
}

/* Frees the linked slots of a request. Returns the id of the receive that it deletes, or 0. */
static uint64_t free_slots(cqn_wr_queue *q, cqn_wr *first, cqn_object **deferred)
{
    cqn_wr done;
    uint64_t deleted = 0;
    uint32_t at = (uint32_t)(first - q->ring);
    do {
        done = q->ring[at];
        deleted = done.does == CQN_WR_DELETES ? done.wr_id : deleted;
        release_entry(q, &done, deferred);
        q->ring[at] = (cqn_wr){.next = q->free};
        q->free = at;
        q->len--;
        at = done.next;
    } while (!done.last);
    return deleted;
}

/* A device can report a tag match before the data has arrived. */
static bool is_to_come(const struct ibv_wc *wc)
{
    return wc->opcode == IBV_WC_TM_RECV && wc->status == IBV_WC_SUCCESS &&
           !(wc->wc_flags & IBV_WC_TM_DATA_VALID);
}

static void completed_shared(cqn_wr_queue *q, struct ibv_wc *wc, cqn_object **deferred)
{
    cqn_wr *first = slot_of(q, wc->wr_id);
    if (first == NULL) {
        return;
    }
    wc->wr_id = first->wr_id;
    if (is_to_come(wc)) {
        return;
    }
    const uint64_t deleted = free_slots(q, first, deferred);
    first = deleted != 0 && wc->status == IBV_WC_SUCCESS ? slot_of(q, deleted) : NULL;
    if (first != NULL) {
        free_slots(q, first, deferred);
    }
}

/* A completion whose request is not in the WR queue stays as it is. */
cqn_awaitable *cqn_wr_completed(cqn_context *ctx, cqn_wr_queue *q, struct ibv_wc *wc,
                                cqn_object **deferred)
{
    if (!q->is_shared) {
        return completed_in_order(ctx, q, wc, deferred);
    }
    completed_shared(q, wc, deferred);
    return NULL;
}

/* ---- without completions ---- */

void cqn_wr_queue_forget(cqn_wr_queue *q, cqn_object **deferred)
{
    const size_t n = q->is_shared ? q->capacity : q->len;
    for (size_t i = 0; i < n; i++) {
        cqn_wr *wr = q->is_shared ? &q->ring[i] : entry_at(q, i);
        if (wr->does == CQN_WR_BINDS) {
            finish_bind(q, i, true, deferred); /* unknown whether the device did: counts as done */
        }
        if (wr->pinned != NULL) {
            wr->pinned->pins--;
            cqn_decref_later(deferred, wr->pinned);
        }
        if (wr->last && (wr->marks & CQN_WR_AWAITED)) {
            q->qp->base.state->awaiting->lost(wr->awaitable, q->qp);
        }
        wr->pinned = NULL;
        wr->does = CQN_WR_TRANSFERS;
        wr->marks = CQN_WR_FORGOTTEN | (wr->marks & CQN_WR_PROBE);
        wr->plain = false;
    }
    while (q->waiting.first != NULL) { /* lost() removes it from the list */
        q->qp->base.state->awaiting->lost(q->waiting.first, q->qp);
    }
    q->requests = q->signaled = 0;
    q->probe = q->probe == CQN_PROBE_NEVER ? CQN_PROBE_NEVER : CQN_PROBE_ANSWERED;
    see_if_flushed(q);
    if (!q->is_shared) {
        cqn_wr_queue_refused(q, 1);
    }
}

int cqn_wr_queue_traverse(const cqn_wr_queue *q, visitproc visit, void *arg)
{
    const size_t n = q == NULL ? 0 : q->is_shared ? q->capacity : q->len;
    for (size_t i = 0; i < n; i++) {
        Py_VISIT((q->is_shared ? &q->ring[i] : entry_at(q, i))->pinned);
    }
    return 0;
}

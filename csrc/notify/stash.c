/* SPDX-License-Identifier: MIT */
/*
 * The stash of a CQ: completions that were read from the device but not returned yet, in their
 * order. Its unused memory is zeroed, because a provider need not write fields that are not valid.
 *
 * completion() removes an entry from inside, by its wr_id, and leaves a hole. A long stash has an
 * index by wr_id, built on first use and extended on each lookup.
 */

#include "notify/cq.h"

#define CAPACITY 64 /* at first */
#define SEARCHED 32 /* the longest stash that is searched without an index */

/* Hash chains: the entries of each bucket, in their order. */
typedef struct {
    uint32_t *first, *last;  /* by bucket */
    uint32_t *before, *next; /* by slot */
} chains;

/* A slot is a place modulo the capacity, stored plus one: 0 is none. */
struct cqn_stash_index {
    size_t capacity;     /* a power of two, not less than the length of the stash */
    uint64_t until;      /* the first place that is not in the index yet */
    chains by_id, by_qp; /* keys: the wr_id, and wr_id with QP number */
};

/* ---- the index ---- */

/* Most wr_ids are small consecutive numbers, and some are pointers: multiplying spreads both. */
static size_t bucket_of(const cqn_stash_index *index, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (index->capacity - 1);
}

/* A place is the number of completions before it since the CQ was created; one that is put back
 * gets the place before the first. */
static struct ibv_wc *stash_at(const cqn_cq *self, uint64_t place)
{
    return &self->stash[self->stash_head + (size_t)(place - self->popped)];
}

static uint64_t place_of(const cqn_cq *self, uint32_t slot)
{
    return self->popped + ((slot - 1 - self->popped) & (self->index->capacity - 1));
}

static void free_index(cqn_cq *self)
{
    if (self->index != NULL) {
        PyMem_Free(self->index->by_id.first);
        PyMem_Free(self->index);
        self->index = NULL;
    }
}

static chains chains_in(uint32_t *arrays, size_t capacity)
{
    return (chains){arrays, arrays + capacity, arrays + 2 * capacity, arrays + 3 * capacity};
}

/* Returns false if there is no memory; the stash is then searched without an index. */
static bool make_index(cqn_cq *self)
{
    size_t capacity = 4 * SEARCHED;
    while (capacity < 2 * self->stash_len) {
        capacity *= 2;
    }
    cqn_stash_index *index = capacity < UINT32_MAX ? PyMem_Malloc(sizeof(*index)) : NULL;
    uint32_t *arrays = index == NULL ? NULL : PyMem_Calloc(8 * capacity, sizeof(*arrays));
    if (arrays == NULL) {
        PyMem_Free(index);
        return false;
    }
    *index = (cqn_stash_index){capacity, self->popped, chains_in(arrays, capacity),
                               chains_in(arrays + 4 * capacity, capacity)};
    self->index = index;
    return true;
}

static void link_slot(chains *c, size_t bucket, uint32_t slot)
{
    const uint32_t last = c->last[bucket];
    c->before[slot - 1] = last;
    c->next[slot - 1] = 0;
    *(last ? &c->next[last - 1] : &c->first[bucket]) = slot;
    c->last[bucket] = slot;
}

static void link_slot_first(chains *c, size_t bucket, uint32_t slot)
{
    const uint32_t first = c->first[bucket];
    c->before[slot - 1] = 0;
    c->next[slot - 1] = first;
    *(first ? &c->before[first - 1] : &c->last[bucket]) = slot;
    c->first[bucket] = slot;
}

static void unlink_slot(chains *c, size_t bucket, uint32_t slot)
{
    const uint32_t before = c->before[slot - 1], after = c->next[slot - 1];
    *(before ? &c->next[before - 1] : &c->first[bucket]) = after;
    *(after ? &c->before[after - 1] : &c->last[bucket]) = before;
}

static void change_index(cqn_cq *self, uint64_t place,
                         void (*change)(chains *c, size_t bucket, uint32_t slot))
{
    cqn_stash_index *index = self->index;
    const struct ibv_wc *wc = stash_at(self, place);
    const uint32_t slot = (uint32_t)(place & (index->capacity - 1)) + 1;
    change(&index->by_id, bucket_of(index, wc->wr_id), slot);
    change(&index->by_qp, bucket_of(index, cqn_wc_key(wc->wr_id, wc->qp_num)), slot);
}

static bool knows_place(const cqn_cq *self, uint64_t place)
{
    return self->index != NULL && (int64_t)(self->index->until - place) > 0;
}

static void extend_index(cqn_cq *self)
{
    cqn_stash_index *index = self->index;
    const uint64_t end = self->popped + self->stash_len;
    /* Entries may have been removed since the index was last extended. */
    uint64_t place = knows_place(self, self->popped) ? index->until : self->popped;
    for (; place != end; place++) {
        if (!cqn_stash_is_hole(stash_at(self, place))) {
            change_index(self, place, link_slot);
        }
    }
    index->until = end;
}

/* Returns an index of the whole stash, borrowed; NULL if there is no memory. */
static cqn_stash_index *whole_index(cqn_cq *self)
{
    if (self->index != NULL && self->index->capacity < self->stash_len) {
        free_index(self);
    }
    if (self->index == NULL && !make_index(self)) {
        return NULL;
    }
    extend_index(self);
    return self->index;
}

/* Removes an entry from the index, unless it is a hole already. */
static void leave_index(cqn_cq *self, uint64_t place)
{
    if (knows_place(self, place) && !cqn_stash_is_hole(stash_at(self, place))) {
        change_index(self, place, unlink_slot);
    }
}

/* ---- memory ---- */

void cqn_stash_free(cqn_cq *self)
{
    free_index(self);
    PyMem_Free(self->stash);
    PyMem_Free(self->extra);
    self->stash = NULL;
    self->extra = NULL;
    self->stash_head = self->stash_len = self->stash_capacity = self->holes = 0;
}

/* Moves the entries within the arrays. */
static void move_to(cqn_cq *self, size_t head)
{
    const size_t from = self->stash_head, n = self->stash_len;
    memmove(self->stash + head, self->stash + from, n * sizeof(*self->stash));
    if (self->extra != NULL) {
        memmove(self->extra + head, self->extra + from, n * sizeof(*self->extra));
    }
    const size_t left = head < from ? head + n : from,
                 gap = head < from ? from - head : head - from;
    memset(self->stash + left, 0, gap * sizeof(*self->stash));
    self->stash_head = head;
}

/* New memory is zeroed, see above. */
static int grow_stash(cqn_cq *self, size_t least)
{
    size_t capacity = self->stash_capacity ? self->stash_capacity : CAPACITY;
    while (capacity < least) {
        capacity *= 2;
    }
    struct ibv_wc *stash = PyMem_Realloc(self->stash, capacity * sizeof(*stash));
    if (stash == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->stash = stash;
    if (self->wc_flags & CQN_WC_EX_EXTRA) {
        cqn_wc_extra *extra = PyMem_Realloc(self->extra, capacity * sizeof(*extra));
        if (extra == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->extra = extra;
    }
    memset(stash + self->stash_capacity, 0, (capacity - self->stash_capacity) * sizeof(*stash));
    self->stash_capacity = capacity;
    return 0;
}

/* Called if n more entries do not fit after the last one: uses the memory of removed entries at the
 * front, or enlarges the arrays. */
int cqn_stash_grow(cqn_cq *self, size_t n)
{
    const size_t end = self->stash_head + self->stash_len;
    if (self->stash_len + n <= self->stash_capacity) {
        move_to(self, 0);
        return 0;
    }
    return grow_stash(self, end + n);
}

/* ---- popping ---- */

/* Removes the first n entries, including holes. */
static void drop_front(cqn_cq *self, size_t n)
{
    for (size_t i = 0; i < n && (self->index != NULL || self->holes > 0); i++) {
        leave_index(self, self->popped + i);
        self->holes -= cqn_stash_is_hole(stash_at(self, self->popped + i));
    }
    memset(self->stash + self->stash_head, 0, n * sizeof(*self->stash));
    self->stash_head += n;
    self->stash_len -= n;
    self->popped += n;
}

/* Removes holes at either end, so the first and last entries are never holes, and a stash without
 * completions has no entries. */
static void trim_holes(cqn_cq *self)
{
    while (self->holes > 0 && cqn_stash_is_hole(stash_at(self, self->popped))) {
        drop_front(self, 1);
    }
    while (self->holes > 0 &&
           cqn_stash_is_hole(stash_at(self, self->popped + self->stash_len - 1))) {
        self->stash_len--;
        self->holes--;
        *stash_at(self, self->popped + self->stash_len) = (struct ibv_wc){.wr_id = 0};
        if (knows_place(self, self->popped + self->stash_len)) {
            self->index->until = self->popped + self->stash_len;
        }
    }
}

void cqn_stash_drop(cqn_cq *self, size_t n)
{
    size_t span = n;
    if (self->holes > 0) {
        size_t seen = 0;
        for (span = 0; seen < n; span++) {
            seen += !cqn_stash_is_hole(stash_at(self, self->popped + span));
        }
    }
    drop_front(self, span);
    trim_holes(self);
    self->stats.completions += n;
    CQN_STEP(take, self, n, 0, 0);
}

static void leave_hole(cqn_cq *self, uint64_t place, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    *wc = *stash_at(self, place);
    if (self->extra != NULL) {
        *extra = self->extra[self->stash_head + (size_t)(place - self->popped)];
    }
    stash_at(self, place)->status = CQN_HOLE;
    self->holes++;
    self->stats.completions++;
    trim_holes(self);
    CQN_STEP(pop, self, 1, 0, 0);
}

/* Compares the number of the queue pair, if one is given, because the queue pair itself may be
 * gone. */
static bool is_sought(const struct ibv_wc *wc, uint64_t wr_id, const cqn_qp *qp)
{
    return !cqn_stash_is_hole(wc) && wc->wr_id == wr_id && (qp == NULL || wc->qp_num == qp->qp_num);
}

static bool find_in_index(const cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, uint64_t *place)
{
    const cqn_stash_index *index = self->index;
    const chains *c = qp == NULL ? &index->by_id : &index->by_qp;
    uint32_t slot = c->first[bucket_of(index, qp == NULL ? wr_id : cqn_wc_key(wr_id, qp->qp_num))];
    for (; slot != 0; slot = c->next[slot - 1]) {
        *place = place_of(self, slot);
        if (is_sought(stash_at(self, *place), wr_id, qp)) {
            return true;
        }
    }
    return false;
}

/* Finds the first completion with that wr_id, of that QP or of any. */
static bool find_in_stash(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, uint64_t *place)
{
    if (self->stash_len > SEARCHED && whole_index(self) != NULL) {
        return find_in_index(self, wr_id, qp, place);
    }
    const uint64_t end = self->popped + self->stash_len;
    for (*place = self->popped; *place != end; ++*place) {
        if (is_sought(stash_at(self, *place), wr_id, qp)) {
            return true;
        }
    }
    return false;
}

bool cqn_stash_has(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp)
{
    uint64_t place;
    return find_in_stash(self, wr_id, qp, &place);
}

bool cqn_stash_pop(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, struct ibv_wc *wc,
                   cqn_wc_extra *extra)
{
    uint64_t place;
    if (!find_in_stash(self, wr_id, qp, &place)) {
        return false;
    }
    leave_index(self, place);
    leave_hole(self, place, wc, extra);
    return true;
}

/* Makes the completions contiguous, so they can be copied in one piece. */
void cqn_stash_pack(cqn_cq *self)
{
    struct ibv_wc *first = self->stash + self->stash_head;
    size_t kept = 0;
    free_index(self);
    for (size_t i = 0; i < self->stash_len; i++) {
        if (!cqn_stash_is_hole(&first[i])) {
            first[kept] = first[i];
            if (self->extra != NULL) {
                self->extra[self->stash_head + kept] = self->extra[self->stash_head + i];
            }
            kept++;
        }
    }
    memset(first + kept, 0, (self->stash_len - kept) * sizeof(*first));
    self->stash_len = kept;
    self->holes = 0;
}

void cqn_stash_put_back(cqn_cq *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    if (self->stash_head == 0 || self->stash_len == 0) {
        const size_t front = 1 + self->stash_len / 2; /* later ones fit, too */
        if (cqn_stash_reserve(self, front) < 0) {
            PyErr_WriteUnraisable((PyObject *)self);
            return;
        }
        move_to(self, front);
    }
    const bool indexed = self->index != NULL && (int64_t)(self->index->until - self->popped) >= 0;
    self->stash_head--;
    self->stash_len++;
    self->popped--;
    self->stash[self->stash_head] = *wc;
    CQN_STEP(put_back, self, 1, 0, 0);
    if (self->extra != NULL) {
        self->extra[self->stash_head] = *extra;
    }
    if (indexed && self->stash_len <= self->index->capacity) {
        change_index(self, self->popped, link_slot_first);
    }
    else {
        free_index(self);
    }
}

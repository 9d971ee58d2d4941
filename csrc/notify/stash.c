/* SPDX-License-Identifier: MIT */
/*
 * The stash of a CQ: completions that were taken from the device and not yet handed
 * out, in their order. Memory of it that holds none is zeroed: a provider need not
 * write what is not valid.
 *
 * A completion() takes one from the midst, by its wr_id, and leaves a hole there. Where
 * many wait, an index tells where it is; it is made when first asked for, and exact up
 * to where it has been extended.
 */

#include "notify/cq.h"

#define ROOM 64     /* at first */
#define SEARCHED 32 /* so many completions are looked through without an index */

/* Places are counted since the CQ was made, and kept plus one: 0 is none. Those of one
 * bucket are linked in their order. */
struct cqn_stash_index {
    size_t room;    /* a power of two, at least as many as the stash holds */
    uint64_t until; /* entries from this place on are not in the index yet */
    uint64_t *first, *last, *next;
};

/* ---- the index ---- */

/* wr_ids are mostly small and in a row, and some are pointers: multiplying spreads both. */
static size_t bucket_of(const cqn_stash_index *index, uint64_t wr_id)
{
    return (size_t)((wr_id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (index->room - 1);
}

/* From a place, which counts from the beginning of the CQ, to the entry. */
static struct ibv_wc *stash_at(const cqn_cq *self, uint64_t place)
{
    return &self->stash[self->stash_head + (size_t)(place - self->taken)];
}

/* The index is only a way to find entries faster: without one, the stash is searched. */
static void free_index(cqn_cq *self)
{
    if (self->index != NULL) {
        PyMem_Free(self->index->first);
        PyMem_Free(self->index);
        self->index = NULL;
    }
}

/* No memory for an index is no failure: the stash is searched then. */
static bool make_index(cqn_cq *self)
{
    size_t room = 4 * SEARCHED;
    while (room < 2 * self->stash_len) {
        room *= 2;
    }
    cqn_stash_index *index = PyMem_Malloc(sizeof(*index));
    uint64_t *arrays = index == NULL ? NULL : PyMem_Calloc(3 * room, sizeof(*arrays));
    if (arrays == NULL) {
        PyMem_Free(index);
        return false;
    }
    *index = (cqn_stash_index){room, self->taken, arrays, arrays + room, arrays + 2 * room};
    self->index = index;
    return true;
}

static void extend_index(cqn_cq *self)
{
    cqn_stash_index *index = self->index;
    const uint64_t end = self->taken + self->stash_len;
    /* Of the entries that came since the index was extended, some may have been handed out. */
    uint64_t place = index->until > self->taken ? index->until : self->taken;
    for (; place < end; place++) {
        if (cqn_stash_is_hole(stash_at(self, place))) {
            continue;
        }
        const size_t bucket = bucket_of(index, stash_at(self, place)->wr_id);
        const uint64_t last = index->last[bucket];
        index->next[place & (index->room - 1)] = 0;
        *(last ? &index->next[(last - 1) & (index->room - 1)] : &index->first[bucket]) = place + 1;
        index->last[bucket] = place + 1;
    }
    index->until = end;
}

/* An index of all that the stash holds, or NULL if there is no memory for one. */
static cqn_stash_index *whole_index(cqn_cq *self)
{
    if (self->index != NULL && self->index->room < self->stash_len) {
        free_index(self);
    }
    if (self->index == NULL && !make_index(self)) {
        return NULL;
    }
    extend_index(self);
    return self->index;
}

/* Takes the entry out of its bucket that stands there after `before`, or first if that is 0. */
static void unlink_place(cqn_stash_index *index, size_t bucket, uint64_t before, uint64_t place)
{
    const uint64_t after = index->next[place & (index->room - 1)];
    *(before ? &index->next[(before - 1) & (index->room - 1)] : &index->first[bucket]) = after;
    if (after == 0) {
        index->last[bucket] = before;
    }
}

/* Entries are handed out from the oldest on, so one that goes is the first in its bucket. */
static void leave_index(cqn_cq *self, uint64_t place)
{
    if (self->index != NULL && place < self->index->until &&
        !cqn_stash_is_hole(stash_at(self, place))) {
        unlink_place(self->index, bucket_of(self->index, stash_at(self, place)->wr_id), 0, place);
    }
}

/* ---- room ---- */

/* The CQ is closed: completions that were not handed out are gone. */
void cqn_stash_free(cqn_cq *self)
{
    free_index(self);
    PyMem_Free(self->stash);
    PyMem_Free(self->extra);
    self->stash = NULL;
    self->extra = NULL;
    self->stash_head = self->stash_len = self->stash_room = self->holes = 0;
}

/* Moves the entries to another place in the arrays. */
static void move_to(cqn_cq *self, size_t head)
{
    const size_t from = self->stash_head, n = self->stash_len;
    memmove(self->stash + head, self->stash + from, n * sizeof(*self->stash));
    if (self->extra != NULL) {
        memmove(self->extra + head, self->extra + from, n * sizeof(*self->extra));
    }
    if (head < from) {
        memset(self->stash + head + n, 0, (from - head) * sizeof(*self->stash));
    }
    self->stash_head = head;
}

/* New memory is zeroed, see above. */
static int grow_stash(cqn_cq *self, size_t least)
{
    size_t room = self->stash_room ? self->stash_room : ROOM;
    while (room < least) {
        room *= 2;
    }
    struct ibv_wc *stash = PyMem_Realloc(self->stash, room * sizeof(*stash));
    if (stash == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->stash = stash;
    if (self->wc_flags & CQN_WC_EX_EXTRA) {
        cqn_wc_extra *extra = PyMem_Realloc(self->extra, room * sizeof(*extra));
        if (extra == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->extra = extra;
    }
    memset(stash + self->stash_room, 0, (room - self->stash_room) * sizeof(*stash));
    self->stash_room = room;
    return 0;
}

/* Called if there is not enough room behind the last entry: what was handed out has left some in
 * front, or the arrays grow. */
int cqn_stash_make_room(cqn_cq *self, size_t n)
{
    const size_t end = self->stash_head + self->stash_len;
    if (self->stash_len + n <= self->stash_room) {
        move_to(self, 0);
        return 0;
    }
    return grow_stash(self, end + n);
}

/* ---- taking ---- */

/* The first n entries go, holes among them. */
static void drop_front(cqn_cq *self, size_t n)
{
    for (size_t i = 0; i < n && (self->index != NULL || self->holes > 0); i++) {
        leave_index(self, self->taken + i);
        self->holes -= cqn_stash_is_hole(stash_at(self, self->taken + i));
    }
    memset(self->stash + self->stash_head, 0, n * sizeof(*self->stash));
    self->stash_head += n;
    self->stash_len -= n;
    self->taken += n;
}

/* Holes at either end are dropped: so the first and the last entry are never holes, and a stash
 * without completions has no entries. */
static void trim_holes(cqn_cq *self)
{
    while (self->holes > 0 && cqn_stash_is_hole(stash_at(self, self->taken))) {
        drop_front(self, 1);
    }
    while (self->holes > 0 &&
           cqn_stash_is_hole(stash_at(self, self->taken + self->stash_len - 1))) {
        self->stash_len--;
        self->holes--;
        *stash_at(self, self->taken + self->stash_len) = (struct ibv_wc){.wr_id = 0};
        if (self->index != NULL && self->index->until > self->taken + self->stash_len) {
            self->index->until = self->taken + self->stash_len;
        }
    }
}

/* The first n completions were handed out. */
void cqn_stash_drop(cqn_cq *self, size_t n)
{
    size_t span = n;
    if (self->holes > 0) {
        size_t seen = 0;
        for (span = 0; seen < n; span++) {
            seen += !cqn_stash_is_hole(stash_at(self, self->taken + span));
        }
    }
    drop_front(self, span);
    trim_holes(self);
    self->stats.completions += n;
}

static void take_at(cqn_cq *self, uint64_t place, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    *wc = *stash_at(self, place);
    if (self->extra != NULL) {
        *extra = self->extra[self->stash_head + (size_t)(place - self->taken)];
    }
    stash_at(self, place)->status = CQN_HOLE;
    self->holes++;
    self->stats.completions++;
    trim_holes(self);
}

/* Whether an entry is the completion that is sought, by the number of the queue pair if one is
 * given: the queue pair itself may be gone. */
static bool is_sought(const struct ibv_wc *wc, uint64_t wr_id, const cqn_qp *qp)
{
    return !cqn_stash_is_hole(wc) && wc->wr_id == wr_id && (qp == NULL || wc->qp_num == qp->qp_num);
}

/* The place, plus one, of the first completion with that wr_id, of that QP or of any; 0 if there is
 * none. `before` gets the entry before it in its bucket. */
static uint64_t find_in_stash(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, uint64_t *before)
{
    const cqn_stash_index *index = self->stash_len > SEARCHED ? whole_index(self) : NULL;
    const uint64_t end = self->taken + self->stash_len;
    *before = 0;
    if (index == NULL) {
        free_index(self); /* the index would not know which entries are taken */
        uint64_t place = self->taken;
        while (place < end && !is_sought(stash_at(self, place), wr_id, qp)) {
            place++;
        }
        return place < end ? place + 1 : 0;
    }
    uint64_t one = index->first[bucket_of(index, wr_id)];
    while (one != 0 && !is_sought(stash_at(self, one - 1), wr_id, qp)) {
        *before = one;
        one = index->next[(one - 1) & (index->room - 1)];
    }
    return one;
}

bool cqn_stash_has(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp)
{
    uint64_t before;
    return find_in_stash(self, wr_id, qp, &before) != 0;
}

/* Takes that completion out of the stash. Returns whether there was one. */
bool cqn_stash_take(cqn_cq *self, uint64_t wr_id, const cqn_qp *qp, struct ibv_wc *wc,
                    cqn_wc_extra *extra)
{
    uint64_t before;
    const uint64_t one = find_in_stash(self, wr_id, qp, &before);
    if (one == 0) {
        return false;
    }
    if (self->index != NULL) {
        unlink_place(self->index, bucket_of(self->index, wr_id), before, one - 1);
    }
    take_at(self, one - 1, wc, extra);
    return true;
}

/* Closes the holes, for what takes entries in one piece. */
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

/* A completion was taken for a task, and the task did not take it: it is the first of the stash
 * again. */
void cqn_stash_put_back(cqn_cq *self, const struct ibv_wc *wc, const cqn_wc_extra *extra)
{
    if (cqn_stash_reserve(self, 1) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
        return;
    }
    free_index(self); /* the places of all entries change */
    if (self->stash_head == 0) {
        move_to(self, 1);
    }
    self->stash_head--;
    self->stash_len++;
    self->stash[self->stash_head] = *wc;
    if (self->extra != NULL) {
        self->extra[self->stash_head] = *extra;
    }
}

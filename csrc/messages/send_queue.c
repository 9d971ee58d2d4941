/* SPDX-License-Identifier: MIT */
/*
 * The send queue of a connection: frames in a ring of registered memory, and reads.
 *
 * The queue completes in order, so a completion stands for everything posted before it, and few
 * frames are signaled; a failure always has a completion. A work request takes a slot when it gets
 * its number. Frames get theirs when they are added, and are posted together; everything else is
 * posted after them.
 */

#include "messages/send_queue.h"

#define SIGNAL_EACH 16 /* frames; also after each quarter of the ring */

/* ---- creation and end ---- */

int cqn_send_queue_init(cqn_send_queue *self, cqn_qp *qp, cqn_mr *mr, cqn_ring *ring,
                        uint64_t start, uint32_t depth)
{
    self->qp = (cqn_qp *)Py_NewRef((PyObject *)qp);
    self->mr = (cqn_mr *)Py_NewRef((PyObject *)mr);
    self->ring = (cqn_ring *)Py_NewRef((PyObject *)ring);
    self->memory = (uint8_t *)mr->memory.addr + start;
    self->address = mr->iova + start;
    self->depth = depth;
    self->signaled = PyMem_Calloc(depth, sizeof(*self->signaled));
    self->wrs = PyMem_Calloc(depth, sizeof(*self->wrs));
    self->sges = PyMem_Calloc(depth, sizeof(*self->sges));
    if (self->signaled == NULL || self->wrs == NULL || self->sges == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static cqn_signaled *signaled_at(const cqn_send_queue *self, uint32_t i)
{
    return &self->signaled[(self->signaled_first + i) % self->depth];
}

int cqn_send_queue_traverse(const cqn_send_queue *self, visitproc visit, void *arg)
{
    Py_VISIT(self->qp);
    Py_VISIT(self->mr);
    Py_VISIT(self->ring);
    for (uint32_t i = 0; i < self->signaled_len; i++) {
        Py_VISIT(signaled_at(self, i)->done);
    }
    return 0;
}

void cqn_send_queue_clear(cqn_send_queue *self)
{
    for (uint32_t i = 0; i < self->signaled_len; i++) {
        Py_CLEAR(signaled_at(self, i)->done);
    }
    self->calls = 0;
    Py_CLEAR(self->qp);
    Py_CLEAR(self->mr);
}

void cqn_send_queue_free(cqn_send_queue *self)
{
    Py_CLEAR(self->ring);
    PyMem_Free(self->signaled);
    PyMem_Free(self->wrs);
    PyMem_Free(self->sges);
}

/* ---- frames ---- */

uint8_t *cqn_send_queue_reserve(cqn_send_queue *self, uint64_t length)
{
    uint64_t at;
    self->before = self->ring->taken;
    if (self->taken == self->depth || !cqn_ring_allocate(self->ring, length, &at)) {
        return NULL;
    }
    self->at = at;
    self->length = length;
    return self->memory + at;
}

void cqn_send_queue_shorten(cqn_send_queue *self, uint64_t length)
{
    cqn_ring_shorten(self->ring, self->length, length);
    self->length = length;
}

void cqn_send_queue_drop_frame(cqn_send_queue *self)
{
    self->ring->taken = self->before;
}

/* Gives a number to another work request. */
static void count(cqn_send_queue *self, bool is_signaled, PyObject *done)
{
    assert(self->taken < self->depth && self->signaled_len < self->depth);
    self->number++;
    self->taken++;
    self->unsignaled++;
    if (is_signaled) {
        self->signaled_to = self->ring->taken;
        *signaled_at(self, self->signaled_len++) = (cqn_signaled){.number = self->number,
                                                                  .mark = self->signaled_to,
                                                                  .slots = self->unsignaled,
                                                                  .done = Py_XNewRef(done)};
        self->unsignaled = 0;
        self->calls += done != NULL;
    }
    assert(self->unsignaled <= self->taken);
}

void cqn_send_queue_add(cqn_send_queue *self, bool solicited, PyObject *done)
{
    const uint64_t mark = self->before = self->ring->taken;
    const bool is_quarter = 4 * (mark - self->signaled_to) >= self->ring->size;
    const bool is_signaled = done != NULL || is_quarter || self->unsignaled >= SIGNAL_EACH - 1;
    struct ibv_sge *sge = &self->sges[self->pending];
    *sge = (struct ibv_sge){
        .addr = self->address + self->at, .length = (uint32_t)self->length, .lkey = self->mr->lkey};
    self->wrs[self->pending] = (struct ibv_send_wr){
        .sg_list = sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = (solicited ? IBV_SEND_SOLICITED : 0u) |
                      (is_signaled ? IBV_SEND_SIGNALED : 0u) |
                      (self->length <= self->qp->cap.max_inline_data ? IBV_SEND_INLINE : 0u)};
    self->pending++;
    count(self, is_signaled, done);
}

int cqn_send_queue_flush(cqn_send_queue *self)
{
    const uint32_t n = self->pending;
    self->pending = 0;
    return n == 0 ? 0 : cqn_post_own_sends(self->qp, self->mr, self->wrs, n, self->number - n + 1);
}

/* ---- reads and probes ---- */

int cqn_send_queue_begin_reads(cqn_send_queue *self, uint32_t n)
{
    if (n > cqn_send_queue_free_slots(self)) {
        PyErr_SetString(PyExc_ValueError, "there are not so many slots");
        return -1;
    }
    return cqn_send_queue_flush(self);
}

void cqn_send_queue_set_read(cqn_send_queue *self, uint32_t i, const cqn_mr *mr, uint64_t addr,
                             uint64_t length, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_sge *sge = &self->sges[i];
    struct ibv_send_wr *wr = &self->wrs[i];
    assert(i < self->depth && self->pending == 0);
    *sge = (struct ibv_sge){.addr = addr, .length = (uint32_t)length, .lkey = mr->lkey};
    *wr = (struct ibv_send_wr){.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
    wr->wr.rdma.remote_addr = remote_addr;
    wr->wr.rdma.rkey = rkey;
}

int cqn_send_queue_post_set(cqn_send_queue *self, uint32_t n, cqn_mr *mr, PyObject *done)
{
    for (uint32_t i = 0; i < n; i++) {
        const bool is_last = i + 1 == n;
        self->wrs[i].send_flags = is_last ? IBV_SEND_SIGNALED : 0u;
        count(self, is_last, is_last ? done : NULL);
    }
    return n == 0 ? 0 : cqn_post_own_sends(self->qp, mr, self->wrs, n, self->number - n + 1);
}

/* Sets read i from a pair of an SGE and a remote tuple. Returns -1 with TypeError or ValueError. */
static int set_read(cqn_send_queue *self, uint32_t i, PyObject *pair, cqn_mr **mr)
{
    const cqn_state *st = self->qp->base.state;
    PyObject *element, *remote;
    unsigned long long length, addr;
    unsigned int rkey;
    if (!PyArg_ParseTuple(pair, "O!O!:reads", st->SGE, &element, &PyTuple_Type, &remote) ||
        !PyArg_ParseTuple(remote, "KKI:remote", &length, &addr, &rkey)) {
        return -1;
    }
    const cqn_sge *local = (cqn_sge *)element;
    if (i > 0 && *mr != local->mr) {
        PyErr_SetString(PyExc_ValueError, "reads of a list go into one memory region");
        return -1;
    }
    *mr = local->mr;
    cqn_send_queue_set_read(self, i, local->mr, local->addr, local->length, addr, rkey);
    return 0;
}

int cqn_send_queue_post_reads(cqn_send_queue *self, PyObject *reads, PyObject *done)
{
    const uint32_t n = (uint32_t)PyList_GET_SIZE(reads);
    cqn_mr *mr = NULL;
    if (cqn_send_queue_begin_reads(self, n) < 0) {
        return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (set_read(self, i, PyList_GET_ITEM(reads, i), &mr) < 0) {
            return -1;
        }
    }
    return cqn_send_queue_post_set(self, n, mr, done);
}

int cqn_send_queue_post_probe(cqn_send_queue *self)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    if (self->taken == self->depth) {
        return 0;
    }
    if (cqn_send_queue_flush(self) < 0) {
        return -1;
    }
    count(self, true, NULL);
    return cqn_post_own_sends(self->qp, self->mr, &wr, 1, self->number);
}

/* ---- completions ---- */

uint64_t cqn_send_queue_oldest(const cqn_send_queue *self)
{
    return self->signaled_len > 0 ? signaled_at(self, 0)->number : self->number + 1;
}

static int call_done(const cqn_send_queue *self, PyObject *done)
{
    return Py_IS_TYPE(done, self->qp->base.state->MessageReading)
               ? self->reading_completed(done)
               : cqn_do_method(done, "completed", NULL);
}

/* Each entry is removed before its completed() is called, which can run arbitrary code. */
int cqn_send_queue_completed(cqn_send_queue *self, uint64_t number)
{
    while (self->signaled_len > 0 && signaled_at(self, 0)->number <= number) {
        const cqn_signaled one = *signaled_at(self, 0);
        self->signaled_first = (self->signaled_first + 1) % self->depth;
        self->signaled_len--;
        assert(one.slots <= self->taken);
        self->taken -= one.slots;
        cqn_ring_free_to(self->ring, one.mark);
        if (one.done != NULL) {
            assert(self->calls > 0);
            self->calls--;
            const int rc = call_done(self, one.done);
            Py_DECREF(one.done);
            if (rc < 0) {
                return -1;
            }
        }
    }
    return 0;
}

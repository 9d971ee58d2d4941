/* SPDX-License-Identifier: MIT */
/*
 * The completions of a CQ. They go from the device into the stash, and from
 * there to Python.
 *
 * The stash is what makes polling safe: completions leave it only when all
 * that is made of them has been made. When a queue pair is made or reset, all
 * that the device still has goes to the stash, so that old completions are
 * never taken for those of new work requests, whatever their numbers. Memory of
 * it that holds none is zeroed: a provider need not write what is not valid.
 *
 * A thread that spins polls without the GIL, so it can't touch the stash. What
 * it takes lands in a small array beside it, from where whoever has the GIL and
 * wants completions takes it, before he asks the device for more. One lock is
 * around both, so completions keep their order, whoever took them: of those of
 * a send queue, each says that all before it are done. And nobody ever waits for
 * the end of a spin, nor needs memory for what has landed.
 */

#include "core.h"
#include <endian.h>
#include <math.h>

#define BATCH 64                /* of one ibv_poll_cq() */
#define LOOK 16                 /* when only asked whether there are any */
#define SLICE INT64_C(10000000) /* ns without the GIL: then signals get their turn */
#define VENDOR_RXE 0xffffff

struct cqn_landing {
    pthread_mutex_t lock; /* of what has landed, and of polling the device meanwhile */
    atomic_bool wanted;   /* with the GIL; who spins keeps off, or would lock him out */
    atomic_bool stashed;  /* there are completions in the stash: the spin is over */
    unsigned spinning;    /* threads that may be without the GIL; guarded by it */
    size_t head, len;
    struct ibv_wc wc[LOOK];
    cqn_wc_extra extra[LOOK];
};

void cqn_stash_free(cqn_cq *self)
{
    if (self->landing != NULL) {
        pthread_mutex_destroy(&self->landing->lock);
        PyMem_Free(self->landing);
        self->landing = NULL;
    }
    PyMem_Free(self->stash);
    PyMem_Free(self->extra);
    self->stash = NULL;
    self->extra = NULL;
    self->stash_head = self->stash_len = self->stash_room = 0;
}

/* To the front of the arrays, where there is room behind. */
static void stash_pack(cqn_cq *self)
{
    memmove(self->stash, self->stash + self->stash_head, self->stash_len * sizeof(*self->stash));
    if (self->extra != NULL) {
        memmove(self->extra, self->extra + self->stash_head,
                self->stash_len * sizeof(*self->extra));
    }
    memset(self->stash + self->stash_len, 0, self->stash_head * sizeof(*self->stash));
    self->stash_head = 0;
}

static int stash_grow(cqn_cq *self, size_t least)
{
    size_t room = self->stash_room ? self->stash_room : BATCH;
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

/* Room for n more behind what it holds. */
static int stash_reserve(cqn_cq *self, size_t n)
{
    if (self->stash_len == 0) {
        self->stash_head = 0;
    }
    size_t end = self->stash_head + self->stash_len;
    if (end + n <= self->stash_room) {
        return 0;
    }
    if (self->stash_len + n <= self->stash_room) {
        stash_pack(self);
        return 0;
    }
    return stash_grow(self, end + n);
}

/* The QP of a completion, or NULL: it is gone. */
static cqn_qp *find_qp(cqn_cq *self, uint32_t qp_num)
{
    const cqn_qp *last = self->last_qp;
    if (last == NULL || last->qp_num != qp_num || last->base.handle == NULL) {
        self->last_qp = cqn_qp_table_find(self->base.context, qp_num, self);
    }
    return self->last_qp;
}

static uint16_t small(uint32_t value)
{
    return (uint16_t)value;
}

/* The current completion of an extended CQ: what was asked of the device, nothing else. */
static void read_extended(cqn_cq *self, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    struct ibv_cq_ex *ex = self->ex;
    const uint32_t flags = self->wc_flags;
    *wc = (struct ibv_wc){.wr_id = ex->wr_id, .status = ex->status};
    wc->qp_num = ibv_wc_read_qp_num(ex);
    if (wc->status != IBV_WC_SUCCESS) {
        wc->vendor_err = ibv_wc_read_vendor_err(ex);
        return;
    }
    wc->opcode = ibv_wc_read_opcode(ex);
    wc->wc_flags = ibv_wc_read_wc_flags(ex);
    wc->byte_len = flags & IBV_WC_EX_WITH_BYTE_LEN ? ibv_wc_read_byte_len(ex) : 0;
    wc->imm_data = ibv_wc_read_imm_data(ex); /* or a key, see create_extended() */
    wc->src_qp = flags & IBV_WC_EX_WITH_SRC_QP ? ibv_wc_read_src_qp(ex) : 0;
    wc->slid = flags & IBV_WC_EX_WITH_SLID ? small(ibv_wc_read_slid(ex)) : 0;
    wc->sl = flags & IBV_WC_EX_WITH_SL ? ibv_wc_read_sl(ex) : 0;
    wc->dlid_path_bits = flags & IBV_WC_EX_WITH_DLID_PATH_BITS ? ibv_wc_read_dlid_path_bits(ex) : 0;
    if (extra == NULL) {
        return;
    }
    *extra = (cqn_wc_extra){
        .timestamp =
            flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP ? ibv_wc_read_completion_ts(ex) : 0,
        .wallclock_ns = flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
                            ? ibv_wc_read_completion_wallclock_ns(ex)
                            : 0,
        .flow_tag = flags & IBV_WC_EX_WITH_FLOW_TAG ? ibv_wc_read_flow_tag(ex) : 0,
        .cvlan = flags & IBV_WC_EX_WITH_CVLAN ? ibv_wc_read_cvlan(ex) : small(0),
    };
}

/* As ibv_poll_cq(), but it returns the error negated. Never asks for a next completion: at the end
 * of the queue, rxe's provider counted one too many then (until rdma-core 55), and released its
 * lock twice (until 61). One start and end for each works everywhere. */
static int poll_extended(cqn_cq *self, int n, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    struct ibv_poll_cq_attr attr = {.comp_mask = 0};
    for (int got = 0; got < n; got++) {
        int err = ibv_start_poll(self->ex, &attr);
        if (err != 0) {
            return err == ENOENT || got > 0 ? got : -err;
        }
        read_extended(self, &wc[got], extra ? &extra[got] : NULL);
        ibv_end_poll(self->ex);
    }
    return n;
}

/* What the device has, up to n, into memory that is zeroed. The handle is not read from the CQ:
 * without the GIL that could be too late. */
static inline int poll_device(cqn_cq *self, struct ibv_cq *handle, size_t n, struct ibv_wc *wc,
                              cqn_wc_extra *extra)
{
    return self->ex == NULL ? ibv_poll_cq(handle, (int)n, wc)
                            : poll_extended(self, (int)n, wc, extra);
}

static void refuse_poll(cqn_cq *self, int got)
{
    cqn_verbs_error(self->base.state, self->ex ? -got : EPROTO,
                    self->ex ? "ibv_start_poll" : "ibv_poll_cq", "the CQ can't be polled (%d)",
                    got);
}

/* Takes off n of those that have landed. */
static void unload(cqn_landing *landing, size_t n, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    memcpy(wc, landing->wc + landing->head, n * sizeof(*wc));
    if (extra != NULL) {
        memcpy(extra, landing->extra + landing->head, n * sizeof(*extra));
    }
    landing->head += n;
    landing->len -= n;
}

/* Up to *n completions, in the order in which the device had them: what landed,
 * and then *n is how many that were, or what the device has. The lock is never
 * held for longer than one poll of the device. */
static int obtain(cqn_cq *self, size_t *n, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    cqn_landing *landing = self->landing;
    if (landing == NULL || (landing->spinning == 0 && landing->len == 0)) {
        return poll_device(self, self->base.handle, *n, wc, extra);
    }
    int got;
    atomic_store(&landing->wanted, true);
    pthread_mutex_lock(&landing->lock);
    atomic_store(&landing->wanted, false);
    if (landing->len > 0) {
        *n = *n < landing->len ? *n : landing->len;
        unload(landing, *n, wc, extra);
        got = (int)*n;
    }
    else {
        got = poll_device(self, self->base.handle, *n, wc, extra);
    }
    pthread_mutex_unlock(&landing->lock);
    if (got > 0) {
        atomic_store(&landing->stashed, true);
    }
    return got;
}

/* Leaves no field undefined, and does what is done once: the byte order. */
static void settle_fields(cqn_cq *self, struct ibv_wc *wc, const cqn_qp *qp)
{
    if (wc->status != IBV_WC_SUCCESS) {
        *wc = (struct ibv_wc){.wr_id = wc->wr_id,
                              .status = wc->status,
                              .qp_num = wc->qp_num,
                              .vendor_err = wc->vendor_err};
        return;
    }
    wc->wc_flags &= ~CQN_WC_OURS;
    if ((wc->wc_flags & IBV_WC_IP_CSUM_OK) && self->base.context->attr.vendor_id == VENDOR_RXE) {
        /* The kernel's value of WITH_INV, and no checksum, which it never looks at. */
        wc->wc_flags ^= IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV;
    }
    if (wc->wc_flags & IBV_WC_WITH_IMM) {
        wc->imm_data = be32toh(wc->imm_data);
    }
    if (qp != NULL && qp->type == IBV_QPT_UD) {
        wc->wc_flags |= CQN_WC_DATAGRAM;
    }
    if (self->ex != NULL) {
        wc->wc_flags |= CQN_WC_LACKS(IBV_WC_STANDARD_FLAGS & ~self->wc_flags);
    }
}

/* Takes up to *n completions into the stash, see obtain(), and lets go of what
 * their work requests kept alive. What goes with that is collected in `trash`:
 * dropping it here could run code that comes back to this CQ. Returns how many
 * came, or -1. */
static int fetch_batch(cqn_cq *self, size_t *n, cqn_object **trash)
{
    if (stash_reserve(self, *n) < 0) {
        return -1;
    }
    const size_t end = self->stash_head + self->stash_len;
    struct ibv_wc *wc = self->stash + end;
    int got = obtain(self, n, wc, self->extra ? self->extra + end : NULL);
    if (got < 0) {
        memset(wc, 0, *n * sizeof(*wc));
        refuse_poll(self, got);
        return -1;
    }
    self->stash_len += (size_t)got;
    for (int i = 0; i < got; i++) {
        cqn_qp *qp = find_qp(self, wc[i].qp_num);
        settle_fields(self, &wc[i], qp);
        if (wc[i].wc_flags & IBV_WC_WITH_INV) {
            cqn_mw_invalidated(self->base.context, wc[i].invalidated_rkey, trash);
        }
        if (qp != NULL) {
            cqn_qp_completed(qp, self, &wc[i], trash);
        }
    }
    return got;
}

/* Until the stash holds `want`, or the device has no more. */
static int fetch(cqn_cq *self, size_t want, cqn_object **trash)
{
    while (self->stash_len < want) {
        size_t n = want - self->stash_len;
        n = n < BATCH ? n : BATCH;
        int got = fetch_batch(self, &n, trash);
        if (got < 0) {
            return -1;
        }
        if ((size_t)got < n) {
            break;
        }
    }
    return 0;
}

/* Takes everything that the device has for this CQ into the stash. */
int cqn_cq_settle(cqn_cq *self, cqn_object **trash)
{
    return fetch(self, SIZE_MAX, trash);
}

/* As fetch(). -1: there are none, and the device is to blame. */
static int fetch_some(cqn_cq *self, size_t want, cqn_object **trash)
{
    if (fetch(self, want, trash) < 0) {
        if (self->stash_len == 0) {
            return -1;
        }
        PyErr_Clear(); /* first what there is; the next call says what is wrong */
    }
    return 0;
}

/* Looks for completions, as those do who want to hand some out. */
static int look(cqn_cq *self, size_t want, cqn_object **trash)
{
    self->stats.polls++;
    if (fetch_some(self, want, trash) < 0) {
        return -1;
    }
    if (self->event_unpolled) {
        self->event_unpolled = false;
        self->stats.spurious += self->stash_len == 0;
    }
    return 0;
}

int cqn_cq_look(cqn_cq *self, cqn_object **trash)
{
    return look(self, LOOK, trash);
}

/* ---- spinning ---- */

static int make_landing(cqn_cq *self)
{
    if (self->landing != NULL) {
        return 0;
    }
    cqn_landing *landing = PyMem_Calloc(1, sizeof(*landing));
    if (landing == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pthread_mutex_init(&landing->lock, NULL);
    self->landing = landing;
    return 0;
}

/* Without the GIL: looks once. Returns how many completions have landed, also
 * those that another thread took, or the device's error. */
static int land(cqn_cq *self, struct ibv_cq *handle)
{
    cqn_landing *landing = self->landing;
    if (atomic_load(&landing->wanted) || pthread_mutex_trylock(&landing->lock) != 0) {
        return 0; /* who has it looks as well */
    }
    int got = (int)landing->len;
    if (got == 0) {
        memset(landing->wc, 0, sizeof(landing->wc));
        got = poll_device(self, handle, LOOK, landing->wc, landing->extra);
        landing->head = 0;
        landing->len = got > 0 ? (size_t)got : 0;
    }
    pthread_mutex_unlock(&landing->lock);
    return got;
}

/* Tells the CPU that this is a loop that waits. */
static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Until one has landed or is in the stash, somebody closes the CQ or its
 * context, or the time has come. As land(). */
static int spin_slice(cqn_cq *self, int64_t until)
{
    struct ibv_cq *handle = self->base.handle;
    cqn_context *ctx = self->base.context;
    cqn_landing *landing = self->landing;
    int got;
    atomic_store(&landing->stashed, false);
    landing->spinning++;
    cqn_enter(&self->base);
    Py_BEGIN_ALLOW_THREADS
        while ((got = land(self, handle)) == 0 && !atomic_load(&landing->stashed) &&
               atomic_load(&self->base.closing) == 0 && atomic_load(&ctx->base.closing) == 0 &&
               cqn_now_ns() < until) {
            relax();
        }
    Py_END_ALLOW_THREADS
    cqn_leave(&self->base);
    landing->spinning--;
    return got;
}

/* Looks again and again until the stash holds something or the time is over. */
static int spin_for(cqn_cq *self, size_t want, double seconds, cqn_object **trash)
{
    if (make_landing(self) < 0) {
        return -1;
    }
    int64_t now = cqn_now_ns();
    const int64_t end = now + (int64_t)ceil(seconds * 1e9);
    for (; self->stash_len == 0 && now < end; now = cqn_now_ns()) {
        int got = spin_slice(self, end - now > SLICE ? now + SLICE : end);
        /* A handler can do anything, so what has landed stays there until it is over. */
        int rc;
        CQN_UNLOCKED(rc = PyErr_CheckSignals());
        if (rc < 0 || cqn_open(&self->base) == NULL) {
            return -1;
        }
        if (got < 0 && self->stash_len == 0) {
            refuse_poll(self, got);
            return -1;
        }
        if (got > 0 && fetch_some(self, want, trash) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- handing out ---- */

static const struct ibv_wc *stashed(const cqn_cq *self, size_t i)
{
    return &self->stash[self->stash_head + i];
}

static void consume(cqn_cq *self, size_t n)
{
    memset(self->stash + self->stash_head, 0, n * sizeof(*self->stash));
    self->stash_head += n;
    self->stash_len -= n;
    self->stats.completions += n;
}

/* How many can be handed out; with only_ok, up to the first failed one. */
static size_t count_ready(const cqn_cq *self, size_t max, bool only_ok)
{
    size_t n = self->stash_len < max ? self->stash_len : max;
    for (size_t i = 0; only_ok && i < n; i++) {
        if (stashed(self, i)->status != IBV_WC_SUCCESS) {
            return i;
        }
    }
    return n;
}

/* A list for that many. Making it can run the garbage collector, and so code
 * that polls this CQ: then there is less. */
static PyObject *new_list(const cqn_cq *self, size_t max, bool only_ok)
{
    for (;;) {
        size_t n = count_ready(self, max, only_ok);
        PyObject *list = PyList_New((Py_ssize_t)n);
        if (list == NULL || n <= count_ready(self, max, only_ok)) {
            return list;
        }
        Py_DECREF(list);
    }
}

static PyObject *new_wc(const cqn_cq *self, size_t i)
{
    const cqn_wc_extra *extra = self->extra ? &self->extra[self->stash_head + i] : NULL;
    return cqn_wc_new(self->base.state, stashed(self, i), extra, self->wc_flags);
}

static PyObject *new_id(const cqn_cq *self, size_t i)
{
    return PyLong_FromUnsignedLongLong(stashed(self, i)->wr_id);
}

/* Hands out up to `max` completions of the stash, as what `make` makes. */
static PyObject *hand_out(cqn_cq *self, size_t max, bool only_ok,
                          PyObject *(*make)(const cqn_cq *, size_t))
{
    PyObject *list = new_list(self, max, only_ok);
    size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    for (size_t i = 0; i < n; i++) {
        PyObject *item = make(self, i);
        if (item == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    consume(self, n);
    return list;
}

/* Raises the first one, which failed, and takes it out of the stash. Making the
 * exception can fail, and can run code that takes it out first: then nothing is
 * raised. */
static void raise_first(cqn_cq *self)
{
    const struct ibv_wc failed = *stashed(self, 0);
    const uint64_t before = self->stats.completions;
    PyObject *wc = new_wc(self, 0);
    if (wc == NULL) {
        return;
    }
    cqn_completion_error(self->base.state, wc, &failed);
    Py_DECREF(wc);
    if (self->stats.completions != before) {
        PyErr_Clear();
    }
    else if (PyErr_ExceptionMatches(self->base.state->CompletionError)) {
        consume(self, 1);
    }
}

static bool first_failed(const cqn_cq *self)
{
    return self->stash_len > 0 && stashed(self, 0)->status != IBV_WC_SUCCESS;
}

/* The arguments max_entries and, unless `spin` is NULL, spin, of an open CQ. */
static int parse(cqn_cq *self, const char *function, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames, uint64_t *max, double *spin)
{
    static const char *const both[] = {"max_entries", "spin", NULL};
    static const char *const only_max[] = {"max_entries", NULL};
    PyObject *in[2] = {NULL, NULL};
    *max = 16;
    return cqn_open(&self->base) == NULL ||
                   cqn_args(function, spin ? both : only_max, 1, 0, args, nargs, kwnames, in) < 0 ||
                   (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, max) < 0) ||
                   (in[1] != NULL && cqn_spin(in[1], spin) < 0) ||
                   !cqn_still_open(&self->base, in[0] != NULL || in[1] != NULL)
               ? -1
               : 0;
}

/* With a consumer there is one form of polling. */
static int refuse_consumer(cqn_cq *self)
{
    PyObject *consumer = cqn_consumer_of(self);
    if (consumer == NULL) {
        return 0;
    }
    Py_DECREF(consumer);
    PyErr_SetString(PyExc_ValueError, "the completions of this CQ go to its AsyncCQ: use poll()");
    return -1;
}

static PyObject *take(cqn_cq *self, uint64_t max, double spin)
{
    cqn_object *trash = NULL;
    int rc = look(self, max, &trash);
    if (rc == 0 && self->stash_len == 0 && spin > 0) {
        rc = spin_for(self, max, spin, &trash);
    }
    PyObject *list = rc < 0 ? NULL : hand_out(self, max, false, new_wc);
    cqn_trash_empty(trash);
    return list;
}

/* The same for who has just looked, and found some: not again where there were no more. */
PyObject *cqn_cq_take_found(cqn_cq *self, uint64_t max)
{
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    bool all = self->stash_len > 0 && (self->stash_len < LOOK || self->stash_len >= max);
    return all ? hand_out(self, max, false, new_wc) : take(self, max, 0);
}

PyObject *cqn_cq_take(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    double spin = 0;
    return parse(self, "take", args, nargs, kwnames, &max, &spin) < 0 ? NULL
                                                                      : take(self, max, spin);
}

PyObject *cqn_cq_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    double spin = 0;
    if (parse(self, "poll", args, nargs, kwnames, &max, &spin) < 0) {
        return NULL;
    }
    for (;;) {
        PyObject *consumer = cqn_consumer_of(self);
        if (consumer == NULL) {
            return take(self, max, spin);
        }
        PyObject *list = cqn_consumer_poll(consumer, max, spin);
        PyObject *now = cqn_consumer_of(self);
        const bool left = list == NULL && now != consumer && cqn_is_open(&self->base) &&
                          PyErr_ExceptionMatches(self->base.state->ClosedError);
        if (left) {
            PyErr_Clear();
        }
        Py_XDECREF(now);
        Py_DECREF(consumer);
        if (!left) {
            return list;
        }
        if (cqn_open(&self->base) == NULL) { /* to let go of it can run any code */
            return NULL;
        }
    }
}

PyObject *cqn_cq_poll_ids(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    if (parse(self, "poll_ids", args, nargs, kwnames, &max, NULL) < 0 ||
        refuse_consumer(self) < 0) {
        return NULL;
    }
    cqn_object *trash = NULL;
    PyObject *list = NULL;
    if (look(self, max, &trash) == 0) {
        while (first_failed(self) && !PyErr_Occurred()) {
            raise_first(self);
        }
        list = PyErr_Occurred() ? NULL : hand_out(self, max, true, new_id);
    }
    cqn_trash_empty(trash);
    return list;
}

PyObject *cqn_cq_poll_into(PyObject *op, PyObject *array)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(array, self->base.state->WCArray)) {
        return PyErr_Format(PyExc_TypeError, "wcs must be a cqnotify.WCArray, not %s",
                            Py_TYPE(array)->tp_name);
    }
    if (refuse_consumer(self) < 0) {
        return NULL;
    }
    const size_t room = cqn_wc_array_room(array);
    cqn_object *trash = NULL;
    PyObject *count = NULL;
    if (look(self, room, &trash) == 0) {
        size_t n = count_ready(self, room, false);
        count = PyLong_FromSize_t(n);
        if (count != NULL) {
            cqn_wc_array_set(array, stashed(self, 0), n);
            consume(self, n);
        }
    }
    cqn_trash_empty(trash);
    return count;
}

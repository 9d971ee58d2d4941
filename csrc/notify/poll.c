/* SPDX-License-Identifier: MIT */
/*
 * The completions of a CQ. They go from the device into the stash, and from
 * there to Python; but those of requests that are awaited, see engine.h.
 *
 * The stash is what makes polling safe: completions leave it only when all
 * that is made of them has been made. On the way there each gets the wr_id of the
 * user back, see wr_ids.c. When a queue pair is closed or reset, all that the
 * device still has goes to the stash, so that it is known what has completed.
 *
 * A thread that spins polls without the GIL, so it can't touch the stash. What
 * it takes lands in a small array beside it, from where a thread that has the GIL
 * and wants completions takes it, before it asks the device for more. One lock is
 * around both, so completions keep their order, whichever thread took them: of those
 * of a send queue, each says that all before it are done. And no thread ever waits for
 * the end of a spin, nor needs memory for what has landed.
 */

#include "await/engine.h"
#include <endian.h>
#include <math.h>

#define BATCH 64                /* of one ibv_poll_cq() */
#define LOOK 16                 /* when only asked whether there are any */
#define SLICE INT64_C(10000000) /* ns without the GIL: then signals get their turn */
#define VENDOR_RXE 0xffffff

struct cqn_landing {
    pthread_mutex_t lock; /* of what has landed, and of polling the device meanwhile */
    atomic_bool wanted;   /* with the GIL; a spinning thread keeps off, or would lock that out */
    atomic_bool stashed;  /* there are completions in the stash: the spin is over */
    unsigned spinning;    /* threads that may be without the GIL; guarded by it */
    size_t head, len;
    struct ibv_wc wc[LOOK];
    cqn_wc_extra extra[LOOK];
};

static void free_landing(cqn_cq *self)
{
    if (self->landing != NULL) {
        pthread_mutex_destroy(&self->landing->lock);
        PyMem_Free(self->landing);
        self->landing = NULL;
    }
}

/* It is not polled any more. */
void cqn_cq_forget_completions(cqn_cq *self)
{
    free_landing(self);
    cqn_cq_drop_left(self);
    cqn_stash_free(self);
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

/* Whether it was a datagram's queue pair. Of an SRQ that serves other types, too, only the
 * number of the queue pair tells, while that is open. */
static bool is_datagram(const cqn_cq *self, const cqn_wr_queue *q, const struct ibv_wc *wc)
{
    const uint32_t ud = 1u << IBV_QPT_UD;
    if (q == NULL || !(q->types & ud) || q->types == ud) {
        return q != NULL && q->types == ud;
    }
    for (const cqn_object *o = self->base.context->first[CQN_RANK_QP]; o != NULL; o = o->next) {
        const cqn_qp *qp = (const cqn_qp *)o;
        if (qp->qp_num == wc->qp_num && qp->recv_cq == self) {
            return qp->type == IBV_QPT_UD;
        }
    }
    return false;
}

/* Leaves no field undefined, and does what is done once: the byte order. */
static void settle_fields(cqn_cq *self, struct ibv_wc *wc, const cqn_wr_queue *q)
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
    if (is_datagram(self, q, wc)) {
        wc->wc_flags |= CQN_WC_DATAGRAM;
    }
    if (self->ex != NULL) {
        wc->wc_flags |= CQN_WC_LACKS(IBV_WC_STANDARD_FLAGS & ~self->wc_flags);
    }
}

/* Whether it was for a request that is awaited. */
static bool complete_one(cqn_cq *self, cqn_wr_queue *q, struct ibv_wc *wc,
                         const cqn_wc_extra *extra, cqn_object **trash)
{
    settle_fields(self, wc, q);
    if (wc->wc_flags & IBV_WC_WITH_INV) {
        cqn_mw_invalidated(self->base.context, wc->invalidated_rkey, trash);
    }
    cqn_request *request = q != NULL ? cqn_wr_completed(self, q, wc, trash) : NULL;
    if (wc->status != IBV_WC_SUCCESS) {
        cqn_engine_failed(self, q, wc);
    }
    return (request != NULL && cqn_request_completed(request, wc, extra)) ||
           (self->engine != NULL && cqn_engine_claim(self->engine, wc, extra));
}

/* One stays, behind `kept` others that do. */
static void keep(struct ibv_wc *wcs, cqn_wc_extra *extra, size_t kept, size_t i, size_t n)
{
    if (kept != i) {
        memmove(&wcs[kept], &wcs[i], n * sizeof(*wcs));
        if (extra != NULL) {
            memmove(&extra[kept], &extra[i], n * sizeof(*extra));
        }
    }
}

/* Mostly many in a row are of one queue, and there is nothing else to do for them. Returns how
 * many no task awaits, which are the first then. */
static size_t complete(cqn_cq *self, struct ibv_wc *wcs, cqn_wc_extra *extra, size_t n,
                       cqn_object **trash)
{
    const bool alone = self->ex != NULL || (self->engine != NULL && cqn_engine_wants(self->engine));
    const uint32_t special = alone ? UINT32_MAX : 1u << IBV_QPT_UD;
    size_t kept = 0;
    for (size_t i = 0, run; i < n; i += run) {
        cqn_wr_queue *q = cqn_wr_queue_of(self->base.state, wcs[i].wr_id);
        const bool may_run = q != NULL && !q->is_shared && !(q->types & special);
        size_t stay = run = may_run ? cqn_wr_completed_run(q, &wcs[i], n - i, trash) : 0;
        if (run == 0) {
            run = 1;
            stay = !complete_one(self, q, &wcs[i], extra ? &extra[i] : NULL, trash);
        }
        if (q != NULL && q->waiting.first != NULL) {
            cqn_engine_room(self->engine, q->qp);
        }
        keep(wcs, extra, kept, i, stay);
        kept += stay;
    }
    return kept;
}

/* Takes up to *n completions from the device, see obtain(), hands those on that are awaited, puts
 * the others into the stash, and lets go of what their work requests kept alive. What goes with
 * that is collected in `trash`: dropping it here could run code that comes back to this CQ.
 * Returns how many came, or -1. */
static int fetch_batch(cqn_cq *self, size_t *n, cqn_object **trash)
{
    if (cqn_stash_reserve(self, *n) < 0) {
        return -1;
    }
    const size_t end = self->stash_head + self->stash_len;
    struct ibv_wc *wc = self->stash + end;
    cqn_wc_extra *extra = self->extra ? self->extra + end : NULL;
    int got = obtain(self, n, wc, extra);
    if (got < 0) {
        memset(wc, 0, *n * sizeof(*wc));
        refuse_poll(self, got);
        return -1;
    }
    const size_t kept = complete(self, wc, extra, (size_t)got, trash);
    memset(wc + kept, 0, ((size_t)got - kept) * sizeof(*wc));
    self->stash_len += kept;
    if (got == 0 && self->left != NULL) {
        cqn_cq_drop_left(self);
    }
    return got;
}

/* Until the stash holds `want`, or the device has no more. */
static int fetch(cqn_cq *self, size_t want, cqn_object **trash)
{
    while (cqn_stash_len(self) < want) {
        size_t n = want - cqn_stash_len(self);
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

/* Takes everything that the device has for this CQ into the stash, until it was found empty. */
int cqn_cq_settle(cqn_cq *self, cqn_object **trash)
{
    int got;
    do {
        size_t n = BATCH;
        got = fetch_batch(self, &n, trash);
    } while (got > 0);
    return got;
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

/* A thread has looked. */
static void count_look(cqn_cq *self, bool in_vain)
{
    self->stats.polls++;
    if (self->event_unpolled) {
        self->event_unpolled = false;
        self->stats.spurious += in_vain;
    }
}

/* Looks for completions, in order to hand some out. */
static int look(cqn_cq *self, size_t want, cqn_object **trash)
{
    const uint64_t before = self->stats.completions;
    if (fetch_some(self, want, trash) < 0) {
        self->stats.polls++;
        return -1;
    }
    count_look(self, self->stash_len == 0 && self->stats.completions == before);
    return 0;
}

/* Asks the device for up to n, once. `more`: there may be others. Returns how many came, or -1. */
int cqn_cq_look_once(cqn_cq *self, size_t n, bool *more, cqn_object **trash)
{
    int got = fetch_batch(self, &n, trash);
    count_look(self, got == 0 && self->stash_len == 0);
    *more = got > 0 && (size_t)got == n;
    return got;
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
        return 0; /* its holder looks as well */
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

/* Whether to look on. */
static bool found_nothing(const cqn_cq *self)
{
    return self->stash_len == 0 && (self->engine == NULL || !cqn_engine_has_news(self->engine));
}

/* Looks again and again until it has found something or the time is over. */
static int spin_for(cqn_cq *self, size_t want, double seconds, cqn_object **trash)
{
    if (make_landing(self) < 0) {
        return -1;
    }
    int64_t now = cqn_now_ns();
    const int64_t end = now + (int64_t)ceil(seconds * 1e9);
    for (; found_nothing(self) && now < end; now = cqn_now_ns()) {
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

/* Of the first n entries, those up to the first failed one. */
static size_t count_ok(const cqn_cq *self, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (stashed(self, i)->status != IBV_WC_SUCCESS) {
            return i;
        }
    }
    return n;
}

/* How many can be handed out; with only_ok, up to the first failed one. */
static size_t count_ready(cqn_cq *self, size_t max, bool only_ok)
{
    if (only_ok && self->holes > 0) { /* which an AsyncCQ has left */
        cqn_stash_pack(self);
    }
    const size_t n = cqn_stash_len(self) < max ? cqn_stash_len(self) : max;
    return only_ok ? count_ok(self, n) : n;
}

/* A list for that many. Making it can run the garbage collector, and so code
 * that polls this CQ, or closes it: then there is less. */
static PyObject *new_list(cqn_cq *self, size_t max, bool only_ok)
{
    for (;;) {
        const uint64_t before = self->stats.completions;
        const size_t n = count_ready(self, max, only_ok);
        PyObject *list = PyList_New((Py_ssize_t)n);
        if (list == NULL || (self->stats.completions == before && n <= cqn_stash_len(self))) {
            return list;
        }
        Py_DECREF(list);
    }
}

static inline PyObject *new_wc(const cqn_cq *self, const struct ibv_wc *wc)
{
    const cqn_wc_extra *extra = self->extra ? &self->extra[wc - self->stash] : NULL;
    return cqn_wc_new(self->base.state, wc, extra, self->wc_flags);
}

static inline PyObject *new_id(const cqn_cq *self, const struct ibv_wc *wc)
{
    (void)self;
    return PyLong_FromUnsignedLongLong(wc->wr_id);
}

/* Hands out up to `max` completions of the stash, as what `make` makes, which
 * runs no code that could change the stash. */
static inline PyObject *hand_out(cqn_cq *self, size_t max, bool only_ok,
                                 PyObject *(*make)(const cqn_cq *, const struct ibv_wc *))
{
    PyObject *list = new_list(self, max, only_ok);
    const struct ibv_wc *wc = stashed(self, 0);
    const bool holes = self->holes > 0;
    size_t n = list == NULL ? 0 : (size_t)PyList_GET_SIZE(list);
    for (size_t i = 0; i < n; i++, wc++) {
        while (holes && cqn_stash_is_hole(wc)) {
            wc++;
        }
        PyObject *item = make(self, wc);
        if (item == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    if (n > 0) {
        cqn_stash_drop(self, n);
    }
    return list;
}

PyObject *cqn_cq_hand_out(cqn_cq *self, uint64_t max)
{
    return hand_out(self, max, false, new_wc);
}

/* Raises the first one, which failed, and takes it out of the stash. Making the
 * exception can fail, and can run code that takes it out first: then nothing is
 * raised. */
static void raise_first(cqn_cq *self)
{
    const struct ibv_wc failed = *stashed(self, 0);
    const uint64_t before = self->stats.completions;
    PyObject *wc = new_wc(self, stashed(self, 0));
    if (wc == NULL) {
        return;
    }
    cqn_completion_error(self->base.state, wc, &failed, NULL);
    Py_DECREF(wc);
    if (self->stats.completions != before) {
        PyErr_Clear();
    }
    else if (PyErr_ExceptionMatches(self->base.state->CompletionError)) {
        cqn_stash_drop(self, 1);
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

/* With an AsyncCQ there is one form of polling. */
static int refuse_engine(const cqn_cq *self)
{
    if (self->engine == NULL) {
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "the completions of this CQ go to its AsyncCQ: use poll()");
    return -1;
}

/* Looks until the stash holds `want`, or nothing more is there; if it is empty then, for `spin`
 * seconds more. */
int cqn_cq_look_for(cqn_cq *self, size_t want, double spin)
{
    cqn_object *trash = NULL;
    int rc = look(self, want, &trash);
    if (rc == 0 && spin > 0 && found_nothing(self)) {
        rc = spin_for(self, want, spin, &trash);
    }
    cqn_trash_empty(trash);
    return rc;
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

PyObject *cqn_cq_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    double spin = 0;
    if (parse(self, "poll", args, nargs, kwnames, &max, &spin) < 0) {
        return NULL;
    }
    cqn_engine *engine = cqn_engine_of(self);
    if (engine == NULL) {
        return take(self, max, spin);
    }
    PyObject *list = cqn_engine_poll(engine, max, spin);
    Py_DECREF(engine);
    return list;
}

PyObject *cqn_cq_poll_ids(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    uint64_t max;
    if (parse(self, "poll_ids", args, nargs, kwnames, &max, NULL) < 0 || refuse_engine(self) < 0) {
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

/* An AsyncCQ that is closed now may have left holes. */
static void set_rows(cqn_cq *self, PyObject *array, size_t n)
{
    if (self->holes > 0) {
        cqn_stash_pack(self);
    }
    cqn_wc_array_set(array, stashed(self, 0), n);
    if (n > 0) {
        cqn_stash_drop(self, n);
    }
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
    if (refuse_engine(self) < 0) {
        return NULL;
    }
    const size_t room = cqn_wc_array_room(array);
    cqn_object *trash = NULL;
    PyObject *count = NULL;
    if (look(self, room, &trash) == 0) {
        size_t n = count_ready(self, room, false);
        count = PyLong_FromSize_t(n);
        if (count != NULL) {
            set_rows(self, array, n);
        }
    }
    cqn_trash_empty(trash);
    return count;
}

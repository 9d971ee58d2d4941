/* SPDX-License-Identifier: MIT */
/*
 * Moves completions from the device to the Awaitable that waits for them (await/await.h), or else
 * into the stash, where they stay until Python polls them.
 *
 * The stash makes polling safe: completions leave it only after their Python objects were created.
 * On the way there each completion gets the user's wr_id back, see work/wr_queue.c. When a queue
 * pair is closed or reset, all of the device's completions go to the stash, so no result is
 * lost.
 *
 * A thread that spins polls without the GIL, so it cannot touch the stash: the completions that it
 * reads go to the spin buffer, a small array. A thread that has the GIL and wants completions
 * empties that array before it polls the device. One lock guards both, so completions keep their
 * order, whichever thread read them: the completion of a send implies that all earlier work
 * requests of its queue are done. No thread ever waits for the end of a spin, and none needs memory
 * for what was read.
 */

#include "notify/cq.h"
#include <endian.h>
#include <sched.h>

#define BATCH 64                /* completions per ibv_poll_cq() */
#define FEW 16                  /* enough completions to know whether there are any */
#define SLICE INT64_C(10000000) /* ns without the GIL; then signals are handled */
#define SPIN_BATCH 16
#define ASK_EVERY 64 /* waits between two checks of the thread's CPU affinity */

/* ---- from the device, even while a thread spins ---- */

struct cqn_spin_buffer {
    pthread_mutex_t lock; /* guards the buffer, and polling the device while a thread spins */
    atomic_bool wanted;   /* by a thread with the GIL; spinning threads then keep off the lock */
    atomic_bool stashed;  /* the stash has completions now: spinning ends */
    unsigned spinning;    /* threads that may be without the GIL; guarded by the GIL */
    cqn_spin_estimate estimates[CQN_SPIN_KINDS]; /* guarded by the GIL, too */
    bool one_cpu; /* the last thread that checked may run on one CPU only */
    unsigned int until_asked;
    uint64_t polls;
    size_t head, len;
    struct ibv_wc wc[SPIN_BATCH];
    cqn_wc_extra extra[SPIN_BATCH];
};

/* Allocated by the first poll with spin, since most CQs have none. */
static int make_spin_buffer(cqn_cq *self)
{
    if (self->spin_buffer != NULL) {
        return 0;
    }
    cqn_spin_buffer *spin_buffer = PyMem_Calloc(1, sizeof(*spin_buffer));
    if (spin_buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pthread_mutex_init(&spin_buffer->lock, NULL);
    self->spin_buffer = spin_buffer;
    return 0;
}

static void free_spin_buffer(cqn_cq *self)
{
    if (self->spin_buffer != NULL) {
        pthread_mutex_destroy(&self->spin_buffer->lock);
        PyMem_Free(self->spin_buffer);
        self->spin_buffer = NULL;
    }
}

/* For -Wconversion: the verbs return some fields of 16 bits as 32. */
static uint16_t to_uint16(uint32_t value)
{
    return (uint16_t)value;
}

/* Reads the current completion of an extended CQ: only the fields that the CQ was created with,
 * because the device may not have others. */
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
    wc->imm_data = ibv_wc_read_imm_data(ex); /* or the invalidated rkey, see create_extended() */
    wc->src_qp = flags & IBV_WC_EX_WITH_SRC_QP ? ibv_wc_read_src_qp(ex) : 0;
    wc->slid = flags & IBV_WC_EX_WITH_SLID ? to_uint16(ibv_wc_read_slid(ex)) : 0;
    wc->sl = flags & IBV_WC_EX_WITH_SL ? ibv_wc_read_sl(ex) : 0;
    wc->dlid_path_bits = flags & IBV_WC_EX_WITH_DLID_PATH_BITS ? ibv_wc_read_dlid_path_bits(ex) : 0;
    if (extra == NULL) {
        return;
    }
    struct ibv_wc_tm_info tm = {.tag = 0};
    if ((flags & IBV_WC_EX_WITH_TM_INFO) && cqn_wc_has_tag(wc)) {
        ibv_wc_read_tm_info(ex, &tm);
    }
    *extra = (cqn_wc_extra){
        .tm_tag = tm.tag,
        .tm_priv = tm.priv,
        .timestamp =
            flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP ? ibv_wc_read_completion_ts(ex) : 0,
        .wallclock_ns = flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
                            ? ibv_wc_read_completion_wallclock_ns(ex)
                            : 0,
        .flow_tag = flags & IBV_WC_EX_WITH_FLOW_TAG ? ibv_wc_read_flow_tag(ex) : 0,
        .cvlan = flags & IBV_WC_EX_WITH_CVLAN ? ibv_wc_read_cvlan(ex) : to_uint16(0),
    };
}

/* Like ibv_poll_cq(), but returns an error negated. It never calls ibv_next_poll(): at the end of
 * the queue, rxe's provider counted one completion too many there (until rdma-core 55), and
 * unlocked twice (until 61). One start and end for each completion works with every provider. */
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

/* Reads up to n completions from the device into zeroed memory. The handle is an argument, because
 * without the GIL it may be too late to read it from the CQ. */
static inline int poll_device(cqn_cq *self, struct ibv_cq *handle, size_t n, struct ibv_wc *wc,
                              cqn_wc_extra *extra)
{
    return self->ex == NULL ? ibv_poll_cq(handle, (int)n, wc)
                            : poll_extended(self, (int)n, wc, extra);
}

static void *raise_poll_error(cqn_cq *self, int got)
{
    return cqn_verbs_error(self->base.state, self->ex ? -got : EPROTO,
                           self->ex ? "ibv_start_poll" : "ibv_poll_cq",
                           "the CQ can't be polled (%d)", got);
}

/* For a thread with the GIL. */
static void lock_spin_buffer(cqn_spin_buffer *spin_buffer)
{
    atomic_store(&spin_buffer->wanted, true);
    pthread_mutex_lock(&spin_buffer->lock);
    atomic_store(&spin_buffer->wanted, false);
}

static void pop_from_spin_buffer(cqn_spin_buffer *spin_buffer, size_t n, struct ibv_wc *wc,
                                 cqn_wc_extra *extra)
{
    memcpy(wc, spin_buffer->wc + spin_buffer->head, n * sizeof(*wc));
    if (extra != NULL) {
        memcpy(extra, spin_buffer->extra + spin_buffer->head, n * sizeof(*extra));
    }
    spin_buffer->head += n;
    spin_buffer->len -= n;
}

/* Reads up to *n completions, in the device's order: those in the spin buffer, and then *n becomes
 * their number; otherwise those of the device. Returns their number, or a negative value without an
 * exception if the device failed. The lock is held for at most one poll of the device. */
static int fetch_raw(cqn_cq *self, size_t *n, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    if (spin_buffer == NULL || (spin_buffer->spinning == 0 && spin_buffer->len == 0)) {
        return poll_device(self, self->base.handle, *n, wc, extra);
    }
    int got;
    lock_spin_buffer(spin_buffer);
    if (spin_buffer->len > 0) {
        *n = *n < spin_buffer->len ? *n : spin_buffer->len;
        pop_from_spin_buffer(spin_buffer, *n, wc, extra);
        got = (int)*n;
    }
    else {
        got = poll_device(self, self->base.handle, *n, wc, extra);
    }
    pthread_mutex_unlock(&spin_buffer->lock);
    if (got > 0) {
        atomic_store(&spin_buffer->stashed, true);
    }
    return got;
}

/* Polls once into the buffer if it is empty; the caller has its lock. Returns the number of
 * completions in the buffer, or the device's error. */
static int fill(cqn_cq *self, struct ibv_cq *handle)
{
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    int got = (int)spin_buffer->len;
    if (got == 0) {
        memset(spin_buffer->wc, 0, sizeof(spin_buffer->wc));
        got = poll_device(self, handle, SPIN_BATCH, spin_buffer->wc, spin_buffer->extra);
        spin_buffer->head = 0;
        spin_buffer->len = got > 0 ? (size_t)got : 0;
    }
    return got;
}

/* Polls once, without the GIL. Returns the number of completions in the buffer, even if another
 * thread read them, or the device's error. */
static int fill_spin_buffer(cqn_cq *self, struct ibv_cq *handle)
{
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    if (atomic_load(&spin_buffer->wanted) || pthread_mutex_trylock(&spin_buffer->lock) != 0) {
        return 0; /* the holder of the lock polls as well */
    }
    const int got = fill(self, handle);
    pthread_mutex_unlock(&spin_buffer->lock);
    return got;
}

/* Hints to the CPU that this is a spin loop. */
static void relax_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Polls until the buffer or the stash has a completion, another thread closes the CQ or its
 * context, or `until` is reached. Returns the result of fill_spin_buffer(). */
static int spin_once(cqn_cq *self, int64_t until)
{
    struct ibv_cq *handle = self->base.handle;
    cqn_context *ctx = self->base.context;
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    uint64_t polls = 1;
    int got;
    atomic_store(&spin_buffer->stashed, false);
    spin_buffer->spinning++;
    cqn_enter(&self->base);
    Py_BEGIN_ALLOW_THREADS
        while ((got = fill_spin_buffer(self, handle)) == 0 && !atomic_load(&spin_buffer->stashed) &&
               atomic_load(&self->base.closing) == 0 && atomic_load(&ctx->base.closing) == 0 &&
               cqn_now_ns() < until) {
            relax_cpu();
            polls++;
        }
    Py_END_ALLOW_THREADS
    cqn_leave(&self->base);
    spin_buffer->spinning--;
    spin_buffer->polls += polls;
    return got;
}

/* ---- WR queues of destroyed queue pairs ---- */

/* The CQ owns the queue from here on, and frees it when no completion of it can arrive any more. */
void cqn_cq_inherit(cqn_cq *cq, cqn_wr_queue *q)
{
    q->qp = NULL;
    q->next_orphan = cq->orphans;
    cq->orphans = q;
}

/* Called when the CQ was found empty or is closed: no completion of the orphans can arrive any
 * more. */
static void drop_orphans(cqn_cq *cq)
{
    cqn_wr_queue *q;
    while ((q = cq->orphans) != NULL) {
        cq->orphans = q->next_orphan;
        cqn_wr_queue_drop(cq->base.state, q);
    }
}

void cqn_cq_forget_completions(cqn_cq *self)
{
    free_spin_buffer(self);
    drop_orphans(self);
    cqn_stash_free(self);
}

/* ---- one batch ---- */

/* Returns whether the completion is that of a datagram, on a UD queue pair. For an SRQ that also
 * serves other types, the number identifies the queue pair while that is open. */
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

/* Leaves no field undefined, and converts fields in network byte order. */
static void normalize_fields(cqn_cq *self, struct ibv_wc *wc, const cqn_wr_queue *q)
{
    if (wc->status != IBV_WC_SUCCESS) {
        *wc = (struct ibv_wc){.wr_id = wc->wr_id,
                              .status = wc->status,
                              .qp_num = wc->qp_num,
                              .vendor_err = wc->vendor_err};
        return;
    }
    wc->wc_flags &= ~CQN_WC_OURS;
    if ((wc->wc_flags & IBV_WC_IP_CSUM_OK) && cqn_is_rxe(&self->base)) {
        /* rxe reports the kernel's value of WITH_INV here, which is this bit; it never checks
         * checksums. */
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

/* Counts a failed work request on its queue pair, which may be in an error state now. */
static void suspect_qp(cqn_cq *cq, cqn_wr_queue *queue, const struct ibv_wc *wc)
{
    cqn_qp *qp = queue == NULL ? NULL : queue->qp;
    if (qp == NULL) { /* SRQ: the number identifies the queue pair while that is open */
        cqn_object *o = cq->base.context->first[CQN_RANK_QP];
        while (o != NULL && ((cqn_qp *)o)->qp_num != wc->qp_num) {
            o = o->next;
        }
        qp = (cqn_qp *)o;
    }
    if (qp != NULL) {
        qp->errors_seen++;
    }
}

/* Routes one completion. Returns whether it stays out of the stash, because a task awaits it or it
 * belongs to a probe. */
static bool route_one(cqn_cq *self, cqn_wr_queue *q, struct ibv_wc *wc, const cqn_wc_extra *extra,
                      cqn_object **deferred)
{
    const cqn_awaiting *awaiting = self->base.state->awaiting;
    normalize_fields(self, wc, q);
    if (wc->wc_flags & IBV_WC_WITH_INV) {
        cqn_mw_invalidated(self->base.context, wc->invalidated_rkey, deferred);
    }
    const bool is_probe = q != NULL && cqn_wr_is_probe(q, wc);
    cqn_awaitable *awaitable =
        q != NULL ? cqn_wr_completed(self->base.context, q, wc, deferred) : NULL;
    if (wc->status != IBV_WC_SUCCESS) {
        suspect_qp(self, q, wc);
    }
    const bool taken = is_probe ||
                       (awaitable != NULL && awaiting->completed(awaitable, wc, extra)) ||
                       (self->engine != NULL && awaiting->claim(self->engine, wc, extra));
    CQN_STEP(route, self, taken, 0, 0);
    return taken;
}

/* Moves n completions for the stash behind the `kept` ones before them. */
static void keep_for_stash(struct ibv_wc *wcs, cqn_wc_extra *extra, size_t kept, size_t i, size_t n)
{
    if (kept != i) {
        memmove(&wcs[kept], &wcs[i], n * sizeof(*wcs));
        if (extra != NULL) {
            memmove(&extra[kept], &extra[i], n * sizeof(*extra));
        }
    }
}

/* Routes a batch. Usually many completions in a row only have their work requests retired. Returns
 * the number of completions for the stash, which become the first of the batch. */
static size_t route_batch(cqn_cq *self, struct ibv_wc *wcs, cqn_wc_extra *extra, size_t n,
                          cqn_object **deferred)
{
    const cqn_awaiting *awaiting = self->base.state->awaiting;
    const bool alone = self->ex != NULL || (self->engine != NULL && awaiting->wants(self->engine));
    const uint32_t datagrams = 1u << IBV_QPT_UD;
    size_t kept = 0;
    for (size_t i = 0, run; i < n; i += run) {
        cqn_wr_queue *q;
        size_t stay = run =
            alone ? 0 : cqn_wr_completed_run(&self->base, datagrams, &wcs[i], n - i, &q, deferred);
        if (run == 0) {
            run = 1;
            q = cqn_wr_queue_of(&self->base, wcs[i].wr_id);
            stay = !route_one(self, q, &wcs[i], extra ? &extra[i] : NULL, deferred);
        }
        if (q != NULL && q->waiting.first != NULL) {
            awaiting->has_capacity(self->engine, q->qp);
        }
        keep_for_stash(wcs, extra, kept, i, stay);
        kept += stay;
    }
    return kept;
}

/* Whether no field can be that of an earlier completion, see stash.c. */
static inline bool is_zeroed(const struct ibv_wc *wc, size_t n)
{
    static const struct ibv_wc zero;
    size_t i = 0;
    while (i < n && memcmp(&wc[i], &zero, sizeof(zero)) == 0) {
        i++;
    }
    return i == n;
}

/* Only for rxe, see reads.c. The next completions, if a verdict needs them, are polled into the
 * spin buffer; *n then becomes `got`, so the caller polls again. */
static void check_reads(cqn_cq *self, struct ibv_wc *wcs, size_t *n, size_t got)
{
    if (!cqn_cq_check_reads(self, wcs, got, NULL, 0)) {
        return;
    }
    if (make_spin_buffer(self) < 0) {
        PyErr_Clear();
        cqn_cq_check_reads(self, wcs, got, wcs, 0);
        return;
    }
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    lock_spin_buffer(spin_buffer);
    fill(self, self->base.handle);
    cqn_cq_check_reads(self, wcs, got, spin_buffer->wc + spin_buffer->head, spin_buffer->len);
    pthread_mutex_unlock(&spin_buffer->lock);
    *n = got;
}

/* Reads up to *n completions (fetch_raw()), routes those that are awaited, and puts the others into
 * the stash. The references that their work requests held go to `deferred`, since releasing them
 * here could run code that polls this CQ. Returns the number of completions, or -1 with an
 * exception. */
static int fetch_batch(cqn_cq *self, size_t *n, cqn_object **deferred)
{
    if (self->base.handle == NULL) { /* another thread is closing it */
        cqn_refuse_closed(&self->base);
        return -1;
    }
    if (cqn_stash_reserve(self, *n) < 0) {
        return -1;
    }
    const size_t end = self->stash_head + self->stash_len;
    struct ibv_wc *wc = self->stash + end;
    cqn_wc_extra *extra = self->extra ? self->extra + end : NULL;
    assert(is_zeroed(wc, *n));
    int got = fetch_raw(self, n, wc, extra);
    CQN_TRACE_N(poll, self, got);
    if (got < 0) {
        memset(wc, 0, *n * sizeof(*wc));
        raise_poll_error(self, got);
        return -1;
    }
    self->stats.fetched += (size_t)got;
    if (self->base.context->has_read && cqn_is_rxe(&self->base)) {
        check_reads(self, wc, n, (size_t)got);
    }
    const size_t kept = route_batch(self, wc, extra, (size_t)got, deferred);
    memset(wc + kept, 0, ((size_t)got - kept) * sizeof(*wc));
    self->stash_len += kept;
    CQN_STEP(poll, self, *n, got, kept);
    if (got == 0 && self->orphans != NULL &&
        CQN_HOLDS_ALL) { /* orphans are in the module's table */
        drop_orphans(self);
    }
    return got;
}

/* An error of the device is raised only if the stash is empty; otherwise the next call raises
 * it. */
static int fetch_into_stash(cqn_cq *self, size_t want, cqn_object **deferred)
{
    size_t n, got;
    do {
        const size_t len = cqn_stash_len(self);
        if (len >= want) {
            return 0;
        }
        n = want - len < BATCH ? want - len : BATCH;
        const int rc = fetch_batch(self, &n, deferred);
        if (rc < 0 && self->stash_len == 0) {
            return -1;
        }
        if (rc < 0) {
            PyErr_Clear();
            return 0;
        }
        got = (size_t)rc;
    } while (got == n);
    return 0;
}

int cqn_cq_drain(cqn_cq *self, cqn_object **deferred)
{
    int got;
    do {
        size_t n = BATCH;
        got = fetch_batch(self, &n, deferred);
    } while (got > 0);
    return got;
}

/* Counts a poll by a thread. */
static void count_poll(cqn_cq *self, bool in_vain)
{
    self->stats.polls++;
    if (self->event_unpolled) {
        self->event_unpolled = false;
        self->stats.spurious += in_vain;
    }
}

int cqn_cq_fetch(cqn_cq *self, size_t want, cqn_object **deferred)
{
    const uint64_t before = self->stats.completions;
    if (fetch_into_stash(self, want, deferred) < 0) {
        self->stats.polls++;
        return -1;
    }
    count_poll(self, self->stash_len == 0 && self->stats.completions == before);
    return 0;
}

int cqn_cq_poll_once(cqn_cq *self, size_t n, bool *more, cqn_object **deferred)
{
    int got = fetch_batch(self, &n, deferred);
    count_poll(self, got == 0 && self->stash_len == 0);
    *more = got > 0 && (size_t)got == n;
    return got;
}

int cqn_cq_poll_few(cqn_cq *self, cqn_object **deferred)
{
    return cqn_cq_fetch(self, FEW, deferred);
}

/* An error of the device is left to the next poll. */
bool cqn_cq_peek(cqn_cq *self, cqn_object **deferred)
{
    if (fetch_into_stash(self, FEW, deferred) < 0) {
        PyErr_Clear();
    }
    return cqn_stash_len(self) >= FEW;
}

/* ---- spinning ---- */

/* Returns whether to go on spinning. */
static bool found_nothing(const cqn_cq *self)
{
    return self->stash_len == 0 &&
           (self->engine == NULL || !self->base.state->awaiting->has_work(self->engine));
}

int cqn_cq_spin(cqn_cq *self, size_t want, int64_t ns, bool any, cqn_object **deferred)
{
    if (make_spin_buffer(self) < 0) {
        return -1;
    }
    const uint64_t before = self->stats.fetched;
    int64_t now = cqn_now_ns();
    const int64_t end = now + ns;
    for (; found_nothing(self) && !(any && self->stats.fetched != before) && now < end;
         now = cqn_now_ns()) {
        int got = spin_once(self, end - now > SLICE ? now + SLICE : end);
        /* A signal handler can run arbitrary code, so completions stay in the buffer until it
         * returns. */
        int rc;
        CQN_UNLOCKED(rc = PyErr_CheckSignals());
        if (rc < 0 || cqn_open(&self->base) == NULL) {
            return -1;
        }
        if (got < 0 && self->stash_len == 0) {
            raise_poll_error(self, got);
            return -1;
        }
        if (got > 0 && fetch_into_stash(self, want, deferred) < 0) {
            return -1;
        }
    }
    return 0;
}

/* With one CPU, whatever completes the wait can need the CPU that spinning takes. The affinity of a
 * thread can change, so it is checked again now and then. */
static bool has_one_cpu(cqn_spin_buffer *self)
{
    if (self->until_asked == 0) {
        cpu_set_t cpus;
        self->until_asked = ASK_EVERY;
        self->one_cpu = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) == 1;
    }
    self->until_asked--;
    return self->one_cpu;
}

int64_t cqn_cq_spin_begin(cqn_cq *self, cqn_spin_kind kind)
{
    if (make_spin_buffer(self) < 0) {
        return -1;
    }
    cqn_spin_buffer *spin_buffer = self->spin_buffer;
    return has_one_cpu(spin_buffer) ? 0 : cqn_spin_begin(&spin_buffer->estimates[kind]);
}

void cqn_cq_spin_end(cqn_cq *self, cqn_spin_kind kind, int64_t limit, bool found, int64_t took)
{
    if (self->spin_buffer != NULL) { /* else the CQ was closed */
        cqn_spin_end(&self->spin_buffer->estimates[kind], (uint32_t)limit, found, took);
    }
}

static int spin_by_estimate(cqn_cq *self, size_t want, cqn_object **deferred)
{
    const int64_t limit = cqn_cq_spin_begin(self, CQN_SPIN_FOR_PEER);
    if (limit <= 0) {
        return limit < 0 ? -1 : 0;
    }
    const int64_t began = cqn_now_ns();
    const int rc = cqn_cq_spin(self, want, limit, false, deferred);
    if (rc == 0) {
        cqn_cq_spin_end(self, CQN_SPIN_FOR_PEER, limit, !found_nothing(self), cqn_now_ns() - began);
    }
    return rc;
}

int cqn_cq_spin_after_fetch(cqn_cq *self, size_t want, int64_t spin, cqn_object **deferred)
{
    if (!found_nothing(self)) {
        return 0;
    }
    return spin == CQN_SPIN_AUTO ? spin_by_estimate(self, want, deferred)
                                 : cqn_cq_spin(self, want, spin, false, deferred);
}

int cqn_cq_fetch_or_spin(cqn_cq *self, size_t want, int64_t spin)
{
    cqn_object *deferred = NULL;
    int rc = cqn_cq_fetch(self, want, &deferred);
    if (rc == 0 && spin != 0) {
        rc = cqn_cq_spin_after_fetch(self, want, spin, &deferred);
    }
    cqn_decref_deferred(deferred);
    return rc;
}

PyObject *cqn_cq_get_spin(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_spin_buffer *spin_buffer = ((cqn_cq *)op)->spin_buffer;
    if (spin_buffer == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(IIK)", cqn_spin_usual(&spin_buffer->estimates[CQN_SPIN_FOR_OWN]),
                         cqn_spin_usual(&spin_buffer->estimates[CQN_SPIN_FOR_PEER]),
                         (unsigned long long)spin_buffer->polls);
}

/* SPDX-License-Identifier: MIT */
/*
 * Completions from the device; and where they land while a thread spins.
 *
 * A thread that spins polls without the GIL, so it can't touch the stash. The completions that it
 * fetches land in a small array beside the stash. A thread that has the GIL and wants completions
 * takes those first, before it asks the device for more. One lock is around both, so completions
 * keep their order, whichever thread fetched them: a completion of a send queue says that all work
 * requests before it are done. And no thread ever waits for the end of a spin, nor needs memory for
 * what has landed.
 */

#include "notify/cq.h"

#define LANDS 16

struct cqn_landing {
    pthread_mutex_t lock; /* guards what has landed, and polling the device while a thread spins */
    atomic_bool
        wanted; /* by a thread with the GIL; spinning threads then keep off, or would lock it out */
    atomic_bool stashed; /* there are completions in the stash now: the spin is over */
    unsigned spinning;   /* threads that may be without the GIL, which guards the number */
    size_t head, len;
    struct ibv_wc wc[LANDS];
    cqn_wc_extra extra[LANDS];
};

/* Most CQs are never polled with spin, so the landing is made by the first poll that is. */
int cqn_landing_make(cqn_cq *self)
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

void cqn_landing_free(cqn_cq *self)
{
    if (self->landing != NULL) {
        pthread_mutex_destroy(&self->landing->lock);
        PyMem_Free(self->landing);
        self->landing = NULL;
    }
}

/* For -Wconversion: the verbs return some fields of 16 bits as 32. */
static uint16_t to_uint16(uint32_t value)
{
    return (uint16_t)value;
}

/* Reads the current completion of an extended CQ: the fields that the CQ was made with, and no
 * other, which the device may not have. */
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

/* Fetches what the device has, up to n, into memory that is zeroed. The handle is not read from the
 * CQ: without the GIL that could be too late. */
static inline int poll_device(cqn_cq *self, struct ibv_cq *handle, size_t n, struct ibv_wc *wc,
                              cqn_wc_extra *extra)
{
    return self->ex == NULL ? ibv_poll_cq(handle, (int)n, wc)
                            : poll_extended(self, (int)n, wc, extra);
}

void *cqn_landing_refuse(cqn_cq *self, int got)
{
    return cqn_verbs_error(self->base.state, self->ex ? -got : EPROTO,
                           self->ex ? "ibv_start_poll" : "ibv_poll_cq",
                           "the CQ can't be polled (%d)", got);
}

/* Takes n of the completions that have landed. */
static void unload_landed(cqn_landing *landing, size_t n, struct ibv_wc *wc, cqn_wc_extra *extra)
{
    memcpy(wc, landing->wc + landing->head, n * sizeof(*wc));
    if (extra != NULL) {
        memcpy(extra, landing->extra + landing->head, n * sizeof(*extra));
    }
    landing->head += n;
    landing->len -= n;
}

/* Obtains up to *n completions, in the order in which the device had them: those that have landed,
 * and then *n becomes their number; or else those that the device has. The lock is never held for
 * longer than one poll of the device. */
int cqn_landing_obtain(cqn_cq *self, size_t *n, struct ibv_wc *wc, cqn_wc_extra *extra)
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
        unload_landed(landing, *n, wc, extra);
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

/* Looks once, without the GIL. Returns how many completions have landed, also if another thread
 * fetched them, or the error of the device. */
static int land_batch(cqn_cq *self, struct ibv_cq *handle)
{
    cqn_landing *landing = self->landing;
    if (atomic_load(&landing->wanted) || pthread_mutex_trylock(&landing->lock) != 0) {
        return 0; /* the holder of the lock looks as well */
    }
    int got = (int)landing->len;
    if (got == 0) {
        memset(landing->wc, 0, sizeof(landing->wc));
        got = poll_device(self, handle, LANDS, landing->wc, landing->extra);
        landing->head = 0;
        landing->len = got > 0 ? (size_t)got : 0;
    }
    pthread_mutex_unlock(&landing->lock);
    return got;
}

/* Tells the CPU that this is a loop that waits. */
static void relax_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Polls until a completion has landed or is in the stash, another thread closes the CQ or its
 * context, or the time has come. Returns as land_batch(). */
int cqn_landing_spin(cqn_cq *self, int64_t until)
{
    struct ibv_cq *handle = self->base.handle;
    cqn_context *ctx = self->base.context;
    cqn_landing *landing = self->landing;
    int got;
    atomic_store(&landing->stashed, false);
    landing->spinning++;
    cqn_enter(&self->base);
    Py_BEGIN_ALLOW_THREADS
        while ((got = land_batch(self, handle)) == 0 && !atomic_load(&landing->stashed) &&
               atomic_load(&self->base.closing) == 0 && atomic_load(&ctx->base.closing) == 0 &&
               cqn_now_ns() < until) {
            relax_cpu();
        }
    Py_END_ALLOW_THREADS
    cqn_leave(&self->base);
    landing->spinning--;
    return got;
}

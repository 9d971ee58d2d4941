/* SPDX-License-Identifier: MIT */
/*
 * Engine: the base type of an AsyncCQ, its methods and its life. The methods that a task awaits are
 * in calls.c.
 */

#include "await/abandoned.h"
#include "await/calls.h"
#include "await/engine.h"
#include "await/loop.h"
#include "await/post.h"
#include "await/awaitable.h"
#include "await/step.h"
#include "await/taker.h"
#include "await/waitlist.h"

/* ---- polling and waking ---- */

static PyObject *poll_closed(cqn_engine *self, uint64_t max)
{
    if (cqn_is_open(&self->cq->base) && self->cq->stash_len > 0) {
        return cqn_cq_pop_wcs(self->cq, max);
    }
    cqn_engine_refuse(self);
    return NULL;
}

static PyObject *engine_poll(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_entries", "spin", NULL};
    cqn_engine *self = (cqn_engine *)op;
    PyObject *in[2] = {NULL, NULL};
    uint64_t max = CQN_BATCH;
    int64_t spin = 0;
    if (cqn_engine_check_made(self) < 0 ||
        cqn_args("poll", names, 1, 0, args, nargs, kwnames, in) < 0 ||
        (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, &max) < 0) ||
        (in[1] != NULL && cqn_spin(in[1], &spin) < 0)) {
        return NULL;
    }
    if (self->closed) {
        return poll_closed(self, max);
    }
    if (self->error == NULL && cqn_open(&self->cq->base) == NULL) {
        return NULL;
    }
    return cqn_engine_poll(self, max, spin);
}

static PyObject *engine_wake(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_engine_wake_listed((cqn_engine *)op, false) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *engine_poll_again(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    self->polls_later = false;
    CQN_STEP(later, self->cq, self, 0, 0);
    if (!self->closed) {
        cqn_engine_prepare(self, false);
    }
    return cqn_engine_wake_listed(self, false) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Reads everything that the device has: an operation that is pending afterwards has not
 * completed. */
static PyObject *engine_drain(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    cqn_object *deferred = NULL;
    if (cqn_engine_check_made(self) < 0) {
        return NULL;
    }
    int rc = self->closed || !cqn_is_open(&self->cq->base) ? 0 : cqn_cq_drain(self->cq, &deferred);
    cqn_decref_deferred(deferred);
    if (rc < 0) {
        cqn_engine_fail_with_exception(self);
    }
    cqn_engine_update(self);
    Py_RETURN_NONE;
}

/* ---- failures and the end ---- */

static PyObject *engine_notify(PyObject *op, PyObject *args)
{
    CQN_LOCKED;
    PyObject *error, *qp = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:_notify", &error, &qp)) {
        return NULL;
    }
    const bool notified = cqn_engine_notify((cqn_engine *)op, error, qp == Py_None ? NULL : qp);
    return cqn_engine_wake_in_loop((cqn_engine *)op) < 0 ? NULL : PyBool_FromLong(notified);
}

static PyObject *engine_fail(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    return cqn_engine_fail_for_good((cqn_engine *)op, error) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Detaches the engine from its CQ, and acknowledges the events that were read for it. */
static void leave_cq(cqn_engine *self)
{
    self->closed = true;
    if (self->cq != NULL && self->cq->engine == self) {
        self->cq->engine = NULL;
        if (cqn_is_open(&self->cq->base)) {
            cqn_cq_ack_dispatched(self->cq);
        }
    }
}

/* Returns False if the AsyncCQ is closed already. */
static PyObject *engine_shut(PyObject *op, PyObject *error)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    if (self->closed) {
        Py_RETURN_FALSE;
    }
    leave_cq(self);
    cqn_taker_drop(self);
    cqn_engine_notify(self, error, NULL);
    cqn_engine_drop_all(self);
    CQN_CHECK_ENGINE(self);
    Py_RETURN_TRUE;
}

/* Called after the event loop was closed: the waiting tasks will never run again. Abandoning one
 * can run code that changes the list, so the loop restarts each time. */
static PyObject *engine_forget_tasks(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    self->polls_later = false;
    CQN_STEP(later, self->cq, self, 0, 0);
    cqn_taker_drop(self);
    cqn_awaitable *r = self->first;
    while (r != NULL) {
        if (r->owner != CQN_PENDING || cqn_awaitable_ref(r) == NULL) {
            r = r->next;
            continue;
        }
        cqn_awaitable_abandon(r);
        Py_DECREF(r);
        r = self->first;
    }
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static int get_asyncio(cqn_state *st)
{
    if (st->anyio_name == NULL) {
        st->anyio_name = PyUnicode_InternFromString("anyio");
    }
    return st->anyio_name == NULL ? -1 : cqn_loop_know_asyncio(st);
}

/* The CQ must be open, and have a channel and no AsyncCQ. */
static int check_cq(cqn_state *st, PyObject *value)
{
    if (!PyObject_TypeCheck(value, st->CQ)) {
        PyErr_Format(PyExc_TypeError, "cq must be a CQ, not %s", Py_TYPE(value)->tp_name);
        return -1;
    }
    const cqn_cq *cq = (cqn_cq *)value;
    if (cqn_open(&cq->base) == NULL) {
        return -1;
    }
    if (cq->channel == NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "this CQ has no completion channel: nothing can wake a waiter");
        return -1;
    }
    if (cq->engine != NULL) {
        PyErr_SetString(PyExc_ValueError, "this CQ has an open AsyncCQ already");
        return -1;
    }
    return 0;
}

static int engine_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    static char *names[] = {"cq", "spin", NULL};
    CQN_COPY copy = NULL;
    cqn_engine *self = (cqn_engine *)op;
    cqn_state *st = cqn_state_of(Py_TYPE(op));
    PyObject *cq, *spin = NULL;
    int64_t spin_ns = 0;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:AsyncCQ", names, &cq, &spin) ||
        (spin != NULL && cqn_spin(spin, &spin_ns) < 0) || get_asyncio(st) < 0 ||
        check_cq(st, cq) < 0) {
        return -1;
    }
    if (self->cq != NULL || self->closed) {
        PyErr_SetString(PyExc_RuntimeError, "this AsyncCQ was made or closed before");
        return -1;
    }
    cqn_enable_try_ref(op);
    self->state = st;
    self->spin = spin_ns;
    self->cq = (cqn_cq *)Py_NewRef(cq);
    self->channel = (cqn_channel *)Py_NewRef((PyObject *)self->cq->channel);
    cqn_cq_ack_dispatched(self->cq);
    self->cq->engine = self;
    CQN_STEP(new_engine, self->cq, self, 0, 0);
    return 0;
}

static int engine_traverse(PyObject *op, visitproc visit, void *arg)
{
    cqn_engine *self = (cqn_engine *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->cq);
    Py_VISIT(self->channel);
    Py_VISIT(self->error);
    Py_VISIT(self->reports);
    Py_VISIT(self->taker);
    Py_VISIT(self->taker_error);
    for (cqn_awaitable *r = self->first; r != NULL; r = r->next) {
        if (r->owner == CQN_ABANDONED) {
            Py_VISIT(r);
        }
        else {
            Py_VISIT(r->anchor);
        }
    }
    for (cqn_awaitable *r = self->woken; r != NULL; r = r->woken_next) {
        Py_VISIT(r);
    }
    for (size_t i = 0; i < self->abandoned_recvs.capacity; i++) {
        for (cqn_awaitable *r = self->abandoned_recvs.waitlists[i].first; r != NULL;
             r = r->behind) {
            if (r->owner == CQN_STASHED) {
                Py_VISIT(r);
            }
        }
    }
    for (cqn_qp *qp = self->qps_with_capacity; qp != NULL; qp = qp->next_with_capacity) {
        Py_VISIT(qp);
    }
    return 0;
}

static void drop_woken(cqn_engine *self)
{
    cqn_awaitable *awaitable;
    while ((awaitable = cqn_engine_pop_woken(self)) != NULL) {
        Py_DECREF(awaitable);
    }
}

static int engine_clear(PyObject *op)
{
    CQN_LOCKED;
    cqn_engine *self = (cqn_engine *)op;
    leave_cq(self);
    cqn_taker_drop(self);
    cqn_engine_drop_all(self);
    drop_woken(self);
    cqn_engine_forget_capacity(self);
    Py_CLEAR(self->error);
    Py_CLEAR(self->reports);
    return 0;
}

static void engine_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op); /* before the lock: the collector can run during the wait */
    CQN_LOCKED;
    PyTypeObject *type = Py_TYPE(op);
    cqn_engine *self = (cqn_engine *)op;
    leave_cq(self); /* before callbacks of weak references run */
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    engine_clear(op);
    cqn_table_free(&self->claims);
    cqn_table_free(&self->qp_claims);
    cqn_table_free(&self->abandoned_recvs);
    Py_CLEAR(self->channel);
    Py_CLEAR(self->cq);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *engine_get_cq(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_engine *self = (cqn_engine *)op;
    return cqn_engine_check_made(self) < 0 ? NULL : Py_NewRef((PyObject *)self->cq);
}

static PyObject *engine_get_closed(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyBool_FromLong(((cqn_engine *)op)->closed);
}

static PyObject *engine_get_awaited(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return PyLong_FromSsize_t(((cqn_engine *)op)->len);
}

static PyObject *engine_get_woken(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_engine *self = (cqn_engine *)op;
    return Py_BuildValue("(KKKK)", (unsigned long long)self->wakeups,
                         (unsigned long long)self->max_per_wake, (unsigned long long)self->spins,
                         (unsigned long long)self->spared);
}

static PyObject *engine_get_spin(PyObject *op, void *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_engine *self = (cqn_engine *)op;
    return self->spin == CQN_SPIN_AUTO ? PyUnicode_FromString("auto")
                                       : PyFloat_FromDouble((double)self->spin / 1e9);
}

/* Creating the list can run the garbage collector, see cqn_open_objects(). */
CQN_RARE static PyObject *engine_pending(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    const cqn_engine *self = (cqn_engine *)op;
    const Py_ssize_t len = self->len;
    PyObject *list = PyList_New(len);
    Py_ssize_t n = 0;
    for (cqn_awaitable *r = self->first; list != NULL && r != NULL && n < len; r = r->next) {
        if (r->owner == CQN_PENDING && cqn_awaitable_ref(r)) {
            PyList_SET_ITEM(list, n++, (PyObject *)r);
        }
    }
    if (list != NULL && PyList_SetSlice(list, n, len, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static PyMethodDef engine_methods[] = {
    {"poll", (PyCFunction)(void (*)(void))engine_poll, METH_FASTCALL | METH_KEYWORDS,
     "poll($self, /, max_entries=16, *, spin=0.0)\n--\n\n"
     "Return the completions that are there and that no task awaits, without waiting; none\n"
     "while a task is in wait().\n\n"
     "The parameters are those of `cqnotify.CQ.poll`. After close() it returns what had been\n"
     "taken from the CQ and not been handed out by then, and raises ClosedError when nothing\n"
     "is left. Any thread may call it, as CQ.poll(), which comes here.\n\n"
     "Wraps ibv_poll_cq(3)."},
    {"wait", (PyCFunction)(void (*)(void))cqn_engine_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait($self, /, max_entries=16, *, spin=None, solicited_only=False)\n--\n\n"
     "Await the next completions, and return a list of at least one.\n\n"
     "max_entries: how many at most, from 1 on.\n"
     "spin: poll for up to this number of seconds, 0 to 60, without the GIL, before sleeping;\n"
     "    the loop stands still meanwhile. With \"auto\", or with None, as the AsyncCQ's `spin`\n"
     "    says, it polls only while nothing else is ready in the loop.\n"
     "solicited_only: only a solicited completion wakes the task, together with all that came\n"
     "    before. Some devices (rxe among them) count a failed one as unsolicited, so such a\n"
     "    task can sleep through the death of its QP, unless the program itself moved it to\n"
     "    ERR. It is woken by others, too, while some other task waits for any completion.\n\n"
     "Completions that another task awaits by completion(), send() and so on are not among\n"
     "them. If there are completions already, they are returned at once. Tasks that wait are\n"
     "served in the order in which they came. A wait can be cancelled, or end by a timeout: a\n"
     "completion that no task took stays queued.\n\n"
     "Raises ClosedError when this, the CQ or the channel is closed, also while waiting and by\n"
     "another thread; AsyncEventError when the device reports a failure after which\n"
     "completions may be missing, once, and when it is a fatal one from then on; RuntimeError\n"
     "while another event loop that is not closed uses the channel, VerbsError for what the\n"
     "device refuses.\n\n"
     "Wraps ibv_req_notify_cq(3), ibv_get_cq_event(3) and ibv_poll_cq(3)."},
    {"completion", (PyCFunction)(void (*)(void))cqn_engine_completion,
     METH_FASTCALL | METH_KEYWORDS,
     "completion($self, /, wr_id, *, qp=None)\n--\n\n"
     "Await the completion of a work request, whatever its status; leave all others.\n\n"
     "wr_id: that of the request, which was posted with QP.post_send() or post_recv().\n"
     "qp: count only requests of this QP; None: of any.\n\n"
     "The completion may be there already; wait() does not get it. If several tasks await the\n"
     "same one, the first of them gets it. Errors and cancellation are as for wait(); with\n"
     "`qp`, closing or resetting that QP raises ClosedError, too. Wraps the same verbs."},
    {"send", (PyCFunction)(void (*)(void))cqn_engine_sends, METH_FASTCALL | METH_KEYWORDS,
     "send($self, /, qp, sg, *, imm_data=None, send_flags=2, wr_id=None, ah=None, "
     "remote_qpn=None, remote_qkey=None, remote_srqn=None)\n--\n\n"
     "Post a SEND, or a SEND_WITH_IMM if `imm_data` is given, and await its completion.\n\n"
     "qp: the QP, which must send on this CQ.\n"
     "sg: the memory, as for QP.post_send().\n"
     "imm_data: 32 bits for the receiver.\n"
     "send_flags: SendFlags; SIGNALED is always set.\n"
     "wr_id: 64 bits; None: one is chosen (`2**63` and above) that no other request has.\n"
     "ah, remote_qpn, remote_qkey: the receiver on UD, as for QP.post_send().\n"
     "remote_srqn: the receiver on XRC_SEND, as for QP.post_send().\n\n"
     "If the send queue is full, it waits for a free slot, first come, first served. If the\n"
     "awaiting task is cancelled, the device still carries the send out: the memory is kept\n"
     "until the completion, which is then dropped, or, if you gave a `wr_id`, stays queued for\n"
     "completion().\n\n"
     "Raises CompletionError (with status, qp_num, wr_id) if it failed, ValueError and\n"
     "VerbsError for what cannot be posted, AsyncEventError and ClosedError as wait(),\n"
     "ClosedError also when the QP is closed or reset.\n\n"
     "Wraps ibv_post_send(3) and ibv_poll_cq(3)."},
    {"recv", (PyCFunction)(void (*)(void))cqn_engine_receives, METH_FASTCALL | METH_KEYWORDS,
     "recv($self, /, qp, sg, *, wr_id=None)\n--\n\n"
     "Post a receive, and await the message.\n\n"
     "qp: the QP, which must receive on this CQ, and not from an SRQ.\n"
     "sg: the memory, as for QP.post_recv().\n"
     "wr_id: as for send().\n\n"
     "Like send(), except that a receive whose task was cancelled stays posted. The next recv()\n"
     "of the same memory on that QP continues with it instead of posting another: so a recv()\n"
     "under a timeout can be called again and again, and no message is lost. A message that\n"
     "arrives in between goes to a task in wait() if there is one, else to the next recv(). If\n"
     "you gave a `wr_id`, give the next recv() the same one; completion(wr_id) can get the\n"
     "message, too.\n\n"
     "Wraps ibv_post_recv(3) and ibv_poll_cq(3)."},
    {"write", (PyCFunction)(void (*)(void))cqn_engine_writes, METH_FASTCALL | METH_KEYWORDS,
     "write($self, /, qp, sg, remote_addr, rkey, *, imm_data=None, send_flags=2, "
     "wr_id=None, remote_srqn=None)\n--\n\n"
     "Post an RDMA_WRITE, or an RDMA_WRITE_WITH_IMM if `imm_data` is given, and await its\n"
     "completion.\n\n"
     "remote_addr, rkey: the peer's memory and its key.\n\n"
     "The other parameters are those of `AsyncCQ.send`, and so are the errors."},
    {"read", (PyCFunction)(void (*)(void))cqn_engine_reads, METH_FASTCALL | METH_KEYWORDS,
     "read($self, /, qp, sg, remote_addr, rkey, *, send_flags=2, wr_id=None)\n--\n\n"
     "Post an RDMA_READ into `sg`, and await its completion.\n\n"
     "The parameters are those of `AsyncCQ.write`, and so are the errors."},
    {"atomic_cmp_and_swp", (PyCFunction)(void (*)(void))cqn_engine_swaps,
     METH_FASTCALL | METH_KEYWORDS,
     "atomic_cmp_and_swp($self, /, qp, sg, remote_addr, rkey, compare_add, swap, *, send_flags=2, "
     "wr_id=None)\n--\n\n"
     "Post an ATOMIC_CMP_AND_SWP, and await its completion: a number of the peer's is replaced\n"
     "if it equals another one.\n\n"
     "sg: 8 bytes, for the number from before.\n"
     "remote_addr, rkey: the place of the number, a multiple of 8, and the key.\n"
     "compare_add: 64 bits, to compare with.\n"
     "swap: 64 bits, to store.\n\n"
     "The other parameters are those of `AsyncCQ.send`, and so are the errors."},
    {"atomic_fetch_and_add", (PyCFunction)(void (*)(void))cqn_engine_adds,
     METH_FASTCALL | METH_KEYWORDS,
     "atomic_fetch_and_add($self, /, qp, sg, remote_addr, rkey, compare_add, *, send_flags=2, "
     "wr_id=None)\n--\n\n"
     "Post an ATOMIC_FETCH_AND_ADD, and await its completion: a number of the peer's is\n"
     "increased.\n\n"
     "sg: 8 bytes, for the number from before.\n"
     "remote_addr, rkey: the place of the number, a multiple of 8, and the key.\n"
     "compare_add: 64 bits, to add.\n\n"
     "The other parameters are those of `AsyncCQ.send`, and so are the errors."},
    {"_notify", engine_notify, METH_VARARGS,
     "_notify($self, error, qp=None, /)\n--\n\n"
     "Let every task that waits raise `error`, as far as it may be for `qp`; was there one?"},
    {"_fail", engine_fail, METH_O,
     "_fail($self, error, /)\n--\n\n"
     "For good: every wait, and every later one, raises `error`."},
    {"_shut", engine_shut, METH_O,
     "_shut($self, error, /)\n--\n\n"
     "Leave the CQ; every task that waits is to raise `error`. False if it was closed before."},
    {"_wake", engine_wake, METH_NOARGS,
     "_wake($self, /)\n--\n\nIn the loop's thread: wake those that have something."},
    {"_poll_again", engine_poll_again, METH_NOARGS,
     "_poll_again($self, /)\n--\n\nIn the loop's thread: poll the CQ, and wake."},
    {"_pending", engine_pending, METH_NOARGS,
     "_pending($self, /)\n--\n\nThe requests in which tasks wait."},
    {"_drain", engine_drain, METH_NOARGS,
     "_drain($self, /)\n--\n\nTake all that the device has. Wraps ibv_poll_cq(3)."},
    {"_forget_tasks", engine_forget_tasks, METH_NOARGS,
     "_forget_tasks($self, /)\n--\n\nTheir loop was closed: none of them will run again."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef engine_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(cqn_engine, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef engine_getset[] = {
    {"cq", engine_get_cq, NULL, "The CQ that it was made for.", NULL},
    {"closed", engine_get_closed, NULL,
     "True once close() was called; closing only the CQ leaves it False.", NULL},
    {"_awaited", engine_get_awaited, NULL,
     "Tasks that wait, and operations whose completion is due.", NULL},
    {"_channel", cqn_get_object, NULL, "Of its CQ.", (void *)offsetof(cqn_engine, channel)},
    {"_error", cqn_get_object, NULL, "What every wait raises, or None.",
     (void *)offsetof(cqn_engine, error)},
    {"_reports", cqn_get_object, cqn_set_object,
     "The failures that were not reported yet, or None.", (void *)offsetof(cqn_engine, reports)},
    {"_woken", engine_get_woken, NULL,
     "How many tasks slept and got completions, the most that one of them got, how many spun, and "
     "how many of these did not have to sleep.",
     NULL},
    {"spin", engine_get_spin, NULL, "How long a task polls before it sleeps: seconds, or \"auto\".",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, "Engine(cq, *, spin=0.0)\n--\n\nWhat an AsyncCQ is built on."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, engine_init},
    {Py_tp_traverse, engine_traverse},
    {Py_tp_clear, engine_clear},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_members, engine_members},
    {Py_tp_getset, engine_getset},
    {0, NULL},
};

PyType_Spec cqn_engine_spec = {
    .name = "cqnotify.Engine",
    .basicsize = sizeof(cqn_engine),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};

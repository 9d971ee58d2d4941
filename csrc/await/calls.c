/* SPDX-License-Identifier: MIT */
/*
 * The methods of an AsyncCQ that a task awaits: send(), recv() and so on, which post, and wait()
 * and completion(), which do not.
 *
 * A method only parses its arguments and creates an awaitable. The first step of the task converts
 * them, because a conversion can run arbitrary code, and its exceptions belong to the task that
 * awaits, like those of the checks and of the post. If the queue is full, the operation is queued,
 * see post.c. A receive whose task is cancelled stays posted, see abandoned.c.
 */

#include "await/calls.h"
#include "await/abandoned.h"
#include "await/engine.h"
#include "await/loop.h"
#include "await/post.h"
#include "await/awaitable.h"
#include "await/waitlist.h"

#define FIRST_OWN_ID (UINT64_C(1) << 63) /* the first generated wr_id; the user's are below */

/* ---- their result ---- */

/* Older anyio accepts only native Python coroutines (before its TaskHandle). Every call checks
 * whether an old anyio was imported, so the check must be almost free: it compares the size of
 * sys.modules. Python has no version number of a dict, and looking up the name in each call costs
 * more. An import that removes as many modules as it adds keeps the size; then an old anyio refuses
 * to start an awaitable, with an error, until the next import. Returns -1 with an exception. */
static int wants_coroutines(cqn_engine *self)
{
    cqn_state *st = self->state;
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GET_SIZE(modules) == st->modules_seen) {
        return st->anyio_is_old;
    }
    st->modules_seen = PyDict_GET_SIZE(modules);
    PyObject *anyio = PyDict_GetItemWithError(modules, st->anyio_name);
    if (anyio == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (anyio != st->anyio) {
        PyObject *wants = cqn_engine_call(self, "_wants_coroutines", anyio);
        if (wants == NULL) {
            return -1;
        }
        st->anyio_is_old = wants == Py_True;
        Py_DECREF(wants);
        Py_XSETREF(st->anyio, Py_NewRef(anyio));
    }
    return st->anyio_is_old;
}

/* Returns the awaitable itself, or for an old anyio a new coroutine around it. Steals the
 * reference; NULL with an exception. */
static PyObject *as_coroutine(cqn_engine *self, cqn_awaitable *awaitable)
{
    int wanted = awaitable == NULL ? -1 : wants_coroutines(self);
    if (wanted == 0) {
        return (PyObject *)awaitable;
    }
    PyObject *coroutine = NULL, *name = NULL;
    if (wanted > 0) {
        coroutine = cqn_engine_call(self, "_coroutine", (PyObject *)awaitable);
        name = coroutine == NULL ? NULL
                                 : PyObject_GetAttrString((PyObject *)awaitable, "__qualname__");
    }
    if (name == NULL || PyObject_SetAttrString(coroutine, "__qualname__", name) < 0) {
        Py_CLEAR(coroutine);
    }
    if (awaitable != NULL) {
        awaitable->is_wrapped = true; /* the coroutine warns if it is never awaited */
    }
    Py_XDECREF(name);
    Py_XDECREF(awaitable);
    return coroutine;
}

/* ---- methods that post ---- */

#define MAX_ARGS 9

typedef struct {
    const char *name;
    cqn_awaitable_kind kind;
    uint8_t opcode, opcode_with_imm;
    uint8_t required; /* number of required arguments */
    const char *names[MAX_ARGS + 1];
    uint8_t as[MAX_ARGS]; /* index of each among the arguments of a send; the first is qp */
} method;

static const method sends = {
    .name = "send",
    .kind = CQN_OF_SEND,
    .opcode = IBV_WR_SEND,
    .opcode_with_imm = IBV_WR_SEND_WITH_IMM,
    .required = 2,
    .names = {"qp", "sg", "imm_data", "send_flags", "wr_id", "ah", "remote_qpn", "remote_qkey",
              "remote_srqn"},
    .as = {0, CQN_SG, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID, CQN_AH, CQN_REMOTE_QPN,
           CQN_REMOTE_QKEY, CQN_REMOTE_SRQN},
};
static const method receives = {
    .name = "recv",
    .kind = CQN_OF_RECV,
    .required = 2,
    .names = {"qp", "sg", "wr_id"},
    .as = {0, CQN_SG, CQN_WR_ID},
};
static const method writes = {
    .name = "write",
    .kind = CQN_OF_SEND,
    .opcode = IBV_WR_RDMA_WRITE,
    .opcode_with_imm = IBV_WR_RDMA_WRITE_WITH_IMM,
    .required = 4,
    .names = {"qp", "sg", "remote_addr", "rkey", "imm_data", "send_flags", "wr_id", "remote_srqn"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_IMM_DATA, CQN_SEND_FLAGS, CQN_WR_ID,
           CQN_REMOTE_SRQN},
};
static const method reads = {
    .name = "read",
    .kind = CQN_OF_SEND,
    .opcode = IBV_WR_RDMA_READ,
    .required = 4,
    .names = {"qp", "sg", "remote_addr", "rkey", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_SEND_FLAGS, CQN_WR_ID},
};
static const method swaps = {
    .name = "atomic_cmp_and_swp",
    .kind = CQN_OF_SEND,
    .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
    .required = 6,
    .names = {"qp", "sg", "remote_addr", "rkey", "compare_add", "swap", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_COMPARE_ADD, CQN_SWAP, CQN_SEND_FLAGS,
           CQN_WR_ID},
};
static const method adds = {
    .name = "atomic_fetch_and_add",
    .kind = CQN_OF_SEND,
    .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
    .required = 5,
    .names = {"qp", "sg", "remote_addr", "rkey", "compare_add", "send_flags", "wr_id"},
    .as = {0, CQN_SG, CQN_REMOTE_ADDR, CQN_RKEY, CQN_COMPARE_ADD, CQN_SEND_FLAGS, CQN_WR_ID},
};

/* A program without scopes does not pay for reading the context variable. */
static int enter_scope(cqn_awaitable *awaitable)
{
    cqn_engine *engine = awaitable->engine;
    PyObject *value;
    if (engine->state->scopes == 0) {
        return 0;
    }
    if (PyContextVar_Get(engine->state->innermost_scope, NULL, &value) < 0) {
        return -1;
    }
    for (PyObject *at = value; at != NULL && PyObject_TypeCheck(at, engine->state->Scope);
         at = ((cqn_scope *)at)->outer) {
        cqn_scope *scope = (cqn_scope *)at;
        if (scope->engine == engine && !scope->ended) {
            scope->pending++;
            awaitable->scope = (cqn_scope *)Py_NewRef(at);
            break;
        }
    }
    Py_XDECREF(value);
    return 0;
}

/* The common part of the six methods: the awaitable holds the arguments until it is awaited. */
static PyObject *make_operation(const method *m, PyObject *op, PyObject *const *args,
                                Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *in[MAX_ARGS] = {NULL};
    if (cqn_args(m->name, m->names, m->required, m->required, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_awaitable *self = cqn_awaitable_new((cqn_engine *)op, m->kind, m->name);
    if (self == NULL) {
        return NULL;
    }
    self->qp = (cqn_qp *)Py_NewRef(in[0]); /* the first step checks whether it is a QP */
    for (int i = 1; m->names[i] != NULL; i++) {
        assert(m->as[i] < CQN_AWAITED_NAMES);
        if (in[i] != NULL && (in[i] != Py_None || m->as[i] == CQN_SG)) {
            self->in[m->as[i]] = Py_NewRef(in[i]);
            self->given = self->given > m->as[i] ? self->given : m->as[i] + 1;
        }
    }
    self->opcode = self->in[CQN_IMM_DATA] != NULL ? m->opcode_with_imm : m->opcode;
    if (enter_scope(self) < 0) {
        Py_CLEAR(self);
    }
    return as_coroutine((cqn_engine *)op, self);
}

#define METHOD(name)                                              \
    CQN_CALL(name)                                                \
    {                                                             \
        CQN_LOCKED;                                               \
        return make_operation(&name, self, args, nargs, kwnames); \
    }
METHOD(sends)
METHOD(receives)
METHOD(writes)
METHOD(reads)
METHOD(swaps)
METHOD(adds)
#undef METHOD

/* ---- methods that wait ---- */

/* The arguments are only parsed; everything else happens when the awaitable is awaited. */
PyObject *cqn_engine_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"max_entries", "spin", "solicited_only", NULL};
    PyObject *in[3] = {NULL, NULL, NULL};
    if (cqn_args("wait", names, 1, 0, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_awaitable *awaitable = cqn_awaitable_new((cqn_engine *)op, CQN_OF_WAIT, "wait");
    for (int i = 0; awaitable != NULL && i < 3; i++) {
        awaitable->in[i] = Py_XNewRef(in[i]);
        awaitable->given = i + 1;
    }
    return as_coroutine((cqn_engine *)op, awaitable);
}

PyObject *cqn_engine_completion(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"wr_id", "qp", NULL};
    PyObject *in[2] = {NULL, NULL};
    if (cqn_args("completion", names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    cqn_awaitable *awaitable = cqn_awaitable_new((cqn_engine *)op, CQN_OF_COMPLETION, "completion");
    if (awaitable != NULL) {
        awaitable->in[0] = Py_NewRef(in[0]);
        awaitable->given = 1;
        awaitable->qp = in[1] == NULL || in[1] == Py_None ? NULL : (cqn_qp *)Py_NewRef(in[1]);
    }
    return as_coroutine((cqn_engine *)op, awaitable);
}

/* ---- the common part of the first step ---- */

/* Raises a failure that no task got yet, if it affects this QP; NULL means any. Returns -1
 * with an exception, 0 if there is none. */
static int raise_report(cqn_engine *self, cqn_qp *qp)
{
    if (self->reports == NULL || self->reports == Py_None) {
        return 0;
    }
    PyObject *error = cqn_engine_call(self, "_take_report", qp ? (PyObject *)qp : Py_None);
    CQN_PLACE("report");
    if (error != NULL && !PyExceptionInstance_Check(error)) { /* None: does not affect it */
        Py_DECREF(error);
        return cqn_engine_check_open(self);
    }
    if (error != NULL) {
        cqn_put_exception(error); /* steals the reference */
    }
    return -1;
}

/* Checks that a task can wait: the AsyncCQ works, the running loop reads its channel, and no
 * unreported failure affects this QP; NULL means any. Returns -1 with an exception. */
static int check_can_wait(cqn_engine *self, cqn_qp *qp)
{
    return cqn_engine_check_open(self) < 0 || cqn_loop_attach(self) < 0 ||
                   cqn_engine_check_open(self) < 0
               ? -1
               : raise_report(self, qp);
}

static int check_is_qp(const cqn_awaitable *self)
{
    const cqn_state *st = self->engine->state;
    PyObject *qp = (PyObject *)self->qp;
    if (PyObject_TypeCheck(qp, st->QP)) {
        return cqn_open(&self->qp->base) == NULL ? -1 : 0;
    }
    if (PyObject_TypeCheck(qp, st->SRQ)) {
        PyErr_SetString(PyExc_TypeError,
                        "qp must be a QP, not an SRQ, whose receives complete on the CQs of all "
                        "its QPs: use its post_recv(), and wait() or completion() here");
    }
    else {
        PyErr_Format(PyExc_TypeError, "qp must be a QP, not %s", Py_TYPE(qp)->tp_name);
    }
    return -1;
}

/* Checks that the queues used by the call complete on the CQ of this engine; for a completion() one
 * of them is enough. */
static int check_qp(const cqn_awaitable *self)
{
    if (check_is_qp(self) < 0) {
        return -1;
    }
    const cqn_cq *cq = self->engine->cq;
    const bool sends = self->kind != CQN_OF_RECV, receives = self->kind != CQN_OF_SEND;
    if ((sends && self->qp->send_cq == cq) || (receives && self->qp->recv_cq == cq)) {
        return 0;
    }
    const char *const both = sends && receives ? " and " : "";
    PyErr_Format(PyExc_ValueError,
                 "QP %u %s%s%s on another CQ than that of this AsyncCQ: see QP.%s%s%s",
                 self->qp->qp_num, sends ? "sends" : "", both, receives ? "receives" : "",
                 sends ? "send_cq" : "", both, receives ? "recv_cq" : "");
    return -1;
}

/* ---- the first step of an operation ---- */

/* Sets the wr_id: the user's, or a generated one that no other operation has. */
static int choose_id(cqn_awaitable *self)
{
    PyObject *value = self->in[CQN_WR_ID];
    if (value == NULL) {
        self->wr_id = FIRST_OWN_ID + self->engine->state->ids_chosen++;
        return 0;
    }
    if (cqn_uint(value, "wr_id", UINT64_MAX, &self->wr_id) < 0) {
        return -1;
    }
    if (self->wr_id >= FIRST_OWN_ID) {
        PyErr_Format(PyExc_ValueError,
                     "wr_id is %S: it must be 0 to 2**63 - 1; larger ones are chosen by cqnotify",
                     value);
        return -1;
    }
    self->own_id = true;
    return 0;
}

/* Takes over an abandoned receive of the same memory if there is one, and then posts nothing. */
static int begin_recv(cqn_awaitable *self)
{
    cqn_sg_arrays arrays;
    cqn_send send;
    send.sg = (cqn_sg)CQN_SG_IN(arrays);
    const int gathered = cqn_sg_gather(&send.sg, self->engine->state, self->in[CQN_SG]);
    CQN_PLACE("memory");
    if (gathered < 0 || cqn_recv_check(&send.sg) < 0 || cqn_engine_check(self->engine) < 0 ||
        cqn_abandoned_remember(self, &send.sg) < 0) {
        return -1;
    }
    self->operation = "RECV";
    if (self->engine->abandoned_recvs.len > 0 && cqn_abandoned_take_over(self)) {
        return 0;
    }
    return cqn_operation_post(self, &send);
}

/* The arguments of a send are parsed and gathered on the stack. If the queue is full, the awaitable
 * keeps a copy with its own references. */
static int begin_send(cqn_awaitable *self)
{
    const cqn_state *st = self->engine->state;
    PyObject *in[CQN_SEND_NAMES] = {NULL};
    cqn_sg_arrays arrays;
    cqn_send send;
    memcpy(in, self->in, sizeof(self->in));
    in[CQN_WR_ID] = NULL;
    send.sg = (cqn_sg)CQN_SG_IN(arrays);
    if (cqn_send_parse(in, self->qp, self->opcode, &send) < 0) {
        return -1;
    }
    send.wr.send_flags |= IBV_SEND_SIGNALED; /* a task that awaits a completion needs one */
    self->operation = send.opcode->name;
    int rc = cqn_send_gather(in, (cqn_state *)st, &send);
    CQN_PLACE("memory");
    rc = rc == 0 && cqn_open(&self->qp->base) != NULL ? cqn_operation_post(self, &send) : -1;
    if (self->kept == NULL) {
        cqn_sg_drop_bytes(&send.sg);
    }
    return rc;
}

static int begin_operation(cqn_awaitable *self)
{
    cqn_engine *engine = self->engine;
    if (choose_id(self) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    if (check_qp(self) < 0 || check_can_wait(engine, self->qp) < 0 ||
        cqn_open(&self->qp->base) == NULL) {
        return -1;
    }
    int rc = self->kind == CQN_OF_RECV ? begin_recv(self) : begin_send(self);
    return rc < 0 || self->state == CQN_COMPLETE ? rc : cqn_engine_poll_for(self);
}

/* ---- the first step of wait() ---- */

/* A number for `spin` is a time to spin now, in any case (*spin_now). Without one, or with "auto",
 * the task spins before it sleeps. */
static int parse_wait(cqn_awaitable *self, int64_t *spin_now)
{
    PyObject *const *in = self->in;
    uint64_t max = CQN_BATCH;
    int64_t spin = self->spin;
    const bool is_given = in[1] != NULL && in[1] != Py_None;
    int solicited_only = in[2] == NULL ? 0 : PyObject_IsTrue(in[2]);
    if (solicited_only < 0 ||
        (in[0] != NULL && cqn_range(in[0], "max_entries", 1, INT32_MAX, &max) < 0) ||
        (is_given && cqn_spin(in[1], &spin) < 0)) {
        return -1;
    }
    *spin_now = is_given && spin != CQN_SPIN_AUTO ? spin : 0;
    self->spin = *spin_now > 0 ? 0 : spin;
    self->max_entries = (uint32_t)max;
    self->solicited_only = solicited_only;
    return 0;
}

/* A wait() joins the waitlist even if the stash has completions, so they are returned in the
 * order of the waits. */
static int join_waiters(cqn_awaitable *awaitable, int64_t spin)
{
    cqn_engine *self = awaitable->engine;
    if (self->waiters.first == NULL && self->cq->stash_len == 0) {
        const size_t max = awaitable->max_entries, want = max > CQN_BATCH ? max : CQN_BATCH;
        const uint64_t fetched = self->cq->stats.fetched;
        awaitable->polled_at = self->cq->stats.arms + 1;
        if (cqn_cq_fetch_or_spin(self->cq, want, spin) < 0) {
            return -1;
        }
        if (self->cq->stats.fetched - fetched >= want) {
            /* The device may have more, and another thread may have taken these. */
            awaitable->polled_at = 0;
        }
        CQN_PLACE("fetch");
        cqn_engine_post_queued(self);
        if (cqn_engine_check(self) < 0) {
            return -1;
        }
    }
    cqn_waitlist_add(&self->waiters, awaitable);
    self->solicited_waiters += awaitable->solicited_only;
    cqn_awaitable_becomes(awaitable, CQN_WAITING);
    cqn_awaitable_link(awaitable);
    return 0;
}

static int begin_wait(cqn_awaitable *self)
{
    int64_t spin_now;
    if (parse_wait(self, &spin_now) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    return check_can_wait(self->engine, NULL) < 0 ? -1 : join_waiters(self, spin_now);
}

/* ---- the first step of completion() ---- */

static int parse_completion(cqn_awaitable *self)
{
    if (PyBool_Check(self->in[0])) {
        PyErr_SetString(PyExc_TypeError, "wr_id must be an integer, not bool");
        return -1;
    }
    return cqn_uint(self->in[0], "wr_id", UINT64_MAX, &self->wr_id) < 0 ||
                   (self->qp != NULL && check_qp(self) < 0)
               ? -1
               : 0;
}

/* Polls once, since the device or the stash may have the completion already. */
static int join_claims(cqn_awaitable *awaitable)
{
    cqn_engine *self = awaitable->engine;
    if (cqn_engine_poll_for(awaitable) < 0 || cqn_engine_check(self) < 0) {
        return -1;
    }
    if (cqn_stash_pop(self->cq, awaitable->wr_id, awaitable->qp, &awaitable->wc,
                      &awaitable->extra)) {
        cqn_awaitable_becomes(awaitable, CQN_COMPLETE);
        return 0;
    }
    if ((awaitable->qp != NULL && cqn_open(&awaitable->qp->base) == NULL) ||
        cqn_claims_add(awaitable) < 0) {
        return -1;
    }
    cqn_awaitable_becomes(awaitable, CQN_WAITING);
    cqn_awaitable_link(awaitable);
    return 0;
}

static int begin_completion(cqn_awaitable *self)
{
    if (parse_completion(self) < 0) {
        return -1;
    }
    CQN_PLACE("arguments");
    return check_can_wait(self->engine, self->qp) < 0 ? -1 : join_claims(self);
}

int cqn_call_begin(cqn_awaitable *self)
{
    self->spin = self->engine->spin;
    return self->kind == CQN_OF_WAIT         ? begin_wait(self)
           : self->kind == CQN_OF_COMPLETION ? begin_completion(self)
                                             : begin_operation(self);
}

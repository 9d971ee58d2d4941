/* SPDX-License-Identifier: MIT */
/*
 * QP.modify() and check_modify(): the attributes of a queue pair, its transitions, and the effect
 * of a reset on its work requests.
 *
 * Before a queue pair is reset or closed, all completions in its CQs are fetched: they tell which
 * requests were executed.
 */

#include "verbs/qp.h"

/* ---- arguments ---- */

static int cap_fields_from(PyObject *mapping, struct ibv_qp_cap *cap)
{
    Py_ssize_t known = 0;
    for (const cqn_field *f = cqn_cap_fields; f->name != NULL; f++) {
        known += PyDict_GetItemString(mapping, f->name) != NULL;
    }
    if (known != PyDict_GET_SIZE(mapping)) {
        PyErr_SetString(PyExc_TypeError, "cap has a key that is no field of QPCap");
        return -1;
    }
    for (const cqn_field *f = cqn_cap_fields; f->name != NULL; f++) {
        PyObject *value = PyDict_GetItemString(mapping, f->name);
        if (value != NULL && cqn_field_from(value, cap, f) < 0) {
            return -1;
        }
    }
    return 0;
}

static int cap_from(PyObject *mapping, struct ibv_qp_cap *cap)
{
    PyObject *copy = cqn_dict_copy(mapping, "cap", "a QPCap");
    int rc = copy == NULL ? -1 : cap_fields_from(copy, cap);
    Py_XDECREF(copy);
    return rc;
}

/* Sets one attribute of modify(). Returns its bit of the mask; -1 with an exception. */
static int set_attribute(const cqn_qp *self, PyObject *name, PyObject *value, int ports,
                         struct ibv_qp_attr *attr)
{
    const cqn_field *field = cqn_field_of(cqn_qp_fields, name);
    if (field != NULL && field->mask != 0) {
        return cqn_field_from(value, attr, field) < 0 ? -1 : field->mask;
    }
    if (PyUnicode_CompareWithASCIIString(name, "ah_attr") == 0) {
        return cqn_ah_attr_from(value, "ah_attr", ports, &attr->ah_attr) < 0 ? -1 : IBV_QP_AV;
    }
    if (PyUnicode_CompareWithASCIIString(name, "alt_ah_attr") == 0) {
        return cqn_ah_attr_from(value, "alt_ah_attr", ports, &attr->alt_ah_attr) < 0
                   ? -1
                   : IBV_QP_ALT_PATH;
    }
    if (PyUnicode_CompareWithASCIIString(name, "cap") == 0) {
        attr->cap = self->cap;
        return cap_from(value, &attr->cap) < 0 ? -1 : IBV_QP_CAP;
    }
    PyErr_Format(PyExc_TypeError, "modify() got an unexpected keyword argument '%U'", name);
    return -1;
}

static int check_port(int port, const char *name, int ports)
{
    if (port < 1 || port > ports) {
        PyErr_Format(PyExc_ValueError, "%s is %d: this device has port 1 to %d", name, port, ports);
        return -1;
    }
    return 0;
}

/* A single bit of the mask covers all four attributes of the alternate path. Returns -1 with an
 * exception. */
static int complete_alternate_path(struct ibv_qp_attr *attr, int ports)
{
    if (attr->alt_ah_attr.port_num == 0) {
        PyErr_SetString(PyExc_TypeError,
                        "alt_port_num, alt_pkey_index and alt_timeout go with alt_ah_attr");
        return -1;
    }
    if (attr->alt_port_num == 0) {
        attr->alt_port_num = attr->alt_ah_attr.port_num;
    }
    return check_port(attr->alt_port_num, "alt_port_num", ports);
}

/* A device may accept a higher value than its limit, and then use 0, or fail the operations. Some
 * devices do not report their limit. Returns -1 with ValueError. */
static int check_depth(const cqn_qp *self, const char *name, int value, int limit, const char *of)
{
    if (limit > 0 && value > limit) {
        PyErr_Format(PyExc_ValueError, "%s is %d: %s has at most %d (%s)", name, value,
                     cqn_device_name(&self->base), limit, of);
        return -1;
    }
    return 0;
}

static int check_depths(const cqn_qp *self, const struct ibv_qp_attr *attr, int mask)
{
    const struct ibv_device_attr *has = &self->base.context->attr;
    return ((mask & IBV_QP_MAX_QP_RD_ATOMIC) &&
            check_depth(self, "max_rd_atomic", attr->max_rd_atomic, has->max_qp_init_rd_atom,
                        "max_qp_init_rd_atom") < 0) ||
                   ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) &&
                    check_depth(self, "max_dest_rd_atomic", attr->max_dest_rd_atomic,
                                has->max_qp_rd_atom, "max_qp_rd_atom") < 0)
               ? -1
               : 0;
}

/* Every table has index 0; for any other the port is queried. Returns -1 with an exception. */
static int check_pkey(const cqn_qp *self, const char *name, uint16_t index, uint8_t port)
{
    uint64_t entries;
    if (index == 0 || port == 0) {
        return 0;
    }
    if (cqn_open(&self->base) ==
        NULL) { /* querying the port for another index can let another thread close it */
        return -1;
    }
    /* Another thread can close the QP during the query, and release the context. */
    cqn_context *ctx = (cqn_context *)Py_NewRef((PyObject *)self->base.context);
    const int rc = cqn_context_pkey_entries(ctx, port, &entries);
    Py_DECREF(ctx);
    if (rc < 0) {
        return -1;
    }
    if (index >= entries) {
        PyErr_Format(PyExc_ValueError, "%s is %d: port %d has %llu P_Key%s, from index 0 on", name,
                     index, port, (unsigned long long)entries, entries == 1 ? "" : "s");
        return -1;
    }
    return 0;
}

static int check_pkeys(const cqn_qp *self, const struct ibv_qp_attr *attr, int mask)
{
    return ((mask & IBV_QP_PKEY_INDEX) &&
            check_pkey(self, "pkey_index", attr->pkey_index,
                       mask & IBV_QP_PORT ? attr->port_num : self->port_num) < 0) ||
                   ((mask & IBV_QP_ALT_PATH) &&
                    check_pkey(self, "alt_pkey_index", attr->alt_pkey_index, attr->alt_port_num) <
                        0)
               ? -1
               : 0;
}

/* Converting the values can run Python code, which can close the QP. `kwargs` is a copy. Returns
 * the mask; -1 with an exception. */
CQN_RARE static int collect_attributes(const cqn_qp *self, PyObject *kwargs,
                                       struct ibv_qp_attr *attr)
{
    const int ports = self->base.context->attr.phys_port_cnt;
    int mask = 0;
    PyObject *name, *value;
    Py_ssize_t pos = 0;
    while (kwargs != NULL && PyDict_Next(kwargs, &pos, &name, &value)) {
        if (!PyUnicode_Check(name)) { /* Python does not check this */
            PyErr_SetString(PyExc_TypeError, "keywords must be strings");
            return -1;
        }
        int bit = set_attribute(self, name, value, ports, attr);
        if (bit < 0) {
            return -1;
        }
        mask |= bit;
    }
    if (mask == 0) {
        PyErr_SetString(PyExc_TypeError, "modify() needs at least one attribute");
        return -1;
    }
    if (cqn_open(&self->base) == NULL) {
        return -1;
    }
    return ((mask & IBV_QP_PORT) && check_port(attr->port_num, "port_num", ports) < 0) ||
                   ((mask & IBV_QP_ALT_PATH) && complete_alternate_path(attr, ports) < 0) ||
                   check_depths(self, attr, mask) < 0 || check_pkeys(self, attr, mask) < 0
               ? -1
               : mask;
}

/* ---- modify() ---- */

/* A refused call: its arguments, the state of the queue pair, and whether the send queue was
 * draining. */
typedef struct {
    int err, mask;
    enum ibv_qp_state state;
    bool draining;
    struct ibv_qp_attr attr;
} refusal;

static const char *modify_hint(const refusal *why)
{
    switch (why->err) {
    case EINVAL:
        return why->draining
                   ? "the send queue is still draining: wait until the device reports SQ_DRAINED, "
                     "or until sq_draining of query() is 0; before that it can only go to ERR"
               : why->mask & IBV_QP_ALT_PATH
                   ? "a value is wrong, or the port is of RoCE, which has no alternate path"
                   : "a value is wrong, or the peer's GID can't be reached from ours";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "the peer's GID could not be reached: check that both GIDs are of one subnet and "
               "that its link is up";
    case EOPNOTSUPP:
        return why->mask & IBV_QP_RATE_LIMIT ? "rate_limit" : "one of the attributes";
    default:
        return "see ibv_modify_qp(3)";
    }
}

/* The result of ibv_modify_qp(). */
typedef struct {
    int err;                 /* if not 0, only the next two are set */
    enum ibv_qp_state state; /* at the refusal: the device may have moved to ERR */
    bool draining;           /* the send queue was draining at the refusal */
    bool has_cap;
    struct ibv_qp_cap cap;
    uint32_t max_message; /* of the port that was set */
} changes;

/* The known limit of a port. It is constant, except for datagrams, which are limited by the MTU. */
typedef struct {
    uint8_t port_num; /* or 0 */
    uint32_t max_message;
} limit_of_port;

static limit_of_port known_limit(const cqn_qp *self)
{
    const cqn_context *ctx = self->base.context;
    const struct ibv_qp *qp = self->base.handle;
    if (qp->qp_type == IBV_QPT_UD) {
        return (limit_of_port){0};
    }
    return (limit_of_port){ctx->limited_port, ctx->max_message};
}

static refusal refusal_of(const changes *made, int mask, const struct ibv_qp_attr *attr)
{
    return (refusal){made->err, mask, made->state, made->draining, *attr};
}

/* Called without the GIL. A device may set other capacities than the requested ones. */
static changes carry_out(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, limit_of_port known)
{
    const uint32_t limit = known.port_num == attr->port_num ? known.max_message : 0;
    changes made = {.err = ibv_modify_qp(qp, attr, mask), .max_message = limit};
    if (made.err != 0) {
        made.state = cqn_qp_query_state(qp, IBV_QPS_UNKNOWN, &made.draining);
    }
    if (made.err == 0 && (mask & IBV_QP_CAP)) {
        struct ibv_qp_attr now = {.qp_state = IBV_QPS_RESET};
        struct ibv_qp_init_attr init;
        made.has_cap = ibv_query_qp(qp, &now, IBV_QP_CAP, &init) == 0;
        made.cap = now.cap;
    }
    if (made.err == 0 && (mask & IBV_QP_PORT) && limit == 0) {
        made.max_message = cqn_qp_query_limit(qp, attr->port_num);
    }
    return made;
}

/* A queue pair with an SRQ has no receive queue, whatever the device reports. */
static void enter_capacities(cqn_qp *self, const struct ibv_qp_cap *cap)
{
    self->cap = *cap;
    if (self->srq != NULL) {
        self->cap.max_recv_wr = self->cap.max_recv_sge = 0;
    }
}

static void enter_port(cqn_qp *self, uint8_t port_num, uint32_t max_message)
{
    cqn_context *ctx = self->base.context;
    self->port_num = port_num;
    self->max_message = max_message;
    if (((struct ibv_qp *)self->base.handle)->qp_type != IBV_QPT_UD && max_message != UINT32_MAX) {
        ctx->limited_port = port_num;
        ctx->max_message = max_message;
    }
}

static uint32_t bytes_of_mtu(enum ibv_mtu mtu)
{
    return UINT32_C(128) << mtu;
}

/* The depth limits the reads and atomics in flight: with 0, posting refuses them. */
static void enter_depth(cqn_qp *self, uint8_t max_rd_atomic, bool granted)
{
    self->max_rd_atomic = max_rd_atomic;
    self->depth_granted = granted;
}

static int no_such_gid(const cqn_qp *self, const refusal *why)
{
    const bool alt = !(why->mask & IBV_QP_AV);
    const struct ibv_ah_attr *path = alt ? &why->attr.alt_ah_attr : &why->attr.ah_attr;
    PyObject *there = cqn_context_gid_indices(self->base.context, path->port_num);
    cqn_verbs_error(self->base.state, why->err, "ibv_modify_qp",
                    "QP %u: port %d has no GID at index %d (sgid_index of %s); it has GIDs at %V",
                    self->qp_num, path->port_num, path->grh.sgid_index,
                    alt ? "alt_ah_attr" : "ah_attr", there, "?");
    Py_XDECREF(there);
    return -1;
}

static int modify_failed(const cqn_qp *self, const refusal *why)
{
    char explained[CQN_EXPLAINED];
    const struct ibv_qp *qp = self->base.handle;
    const enum ibv_qp_state from = why->state == IBV_QPS_UNKNOWN ? self->state : why->state;
    const enum ibv_qp_state to = why->mask & IBV_QP_STATE ? why->attr.qp_state : from;
    if (why->err == ENODATA && (why->mask & (IBV_QP_AV | IBV_QP_ALT_PATH))) {
        return no_such_gid(self, why);
    }
    /* iWARP has a table of its own. */
    const bool known = why->err == EINVAL &&
                       qp->context->device->transport_type != IBV_TRANSPORT_IWARP &&
                       cqn_qp_explain(self->type, from, to, why->mask, explained);
    cqn_verbs_error(self->base.state, why->err, "ibv_modify_qp", "QP %u from %s to %s: %s",
                    self->qp_num, cqn_qp_state_name(from), cqn_qp_state_name(to),
                    known ? explained : modify_hint(why));
    return -1;
}

/* Moves the completions of a queue to the stash, which releases the objects of its requests; if the
 * CQ cannot be polled, the next poll does that. Returns whether the CQ has no more completions of
 * this queue. */
static bool drain_queue(const cqn_qp *self, const cqn_wr_queue *q, cqn_cq *cq,
                        cqn_object **deferred)
{
    if (q == NULL || (q->len == 0 && q->source == NULL) || cqn_forked(&self->base)) {
        return true;
    }
    if (cq->base.handle == NULL || PyErr_Occurred()) {
        return false;
    }
    const bool ok = cqn_cq_drain(cq, deferred) == 0;
    if (!ok) {
        PyErr_Clear();
    }
    return ok;
}

cqn_drained cqn_qp_drain(const cqn_qp *self, cqn_object **deferred)
{
    const bool send = drain_queue(self, self->sq, self->send_cq, deferred);
    const bool recv = drain_queue(self, self->rq, self->recv_cq, deferred);
    return (cqn_drained){.send = send, .recv = recv};
}

void cqn_qp_forget_requests(cqn_qp *self)
{
    cqn_object *deferred = NULL;
    const cqn_drained known = cqn_qp_drain(self, &deferred);
    if (self->sq != NULL) { /* it was not closed in between */
        cqn_wr_queue_forget(self->sq, &deferred);
        cqn_wr_queue_forget(self->rq, &deferred);
        self->sq->len = known.send ? 0 : self->sq->len;
        self->rq->len = known.recv ? 0 : self->rq->len;
    }
    cqn_decref_deferred(deferred);
}

/* Whether requests posted before can no longer succeed in this state. */
static bool gives_up(enum ibv_qp_state state)
{
    return state == IBV_QPS_RESET || state == IBV_QPS_SQE || state == IBV_QPS_ERR;
}

/* A reset drops the work requests without completing them. Posting is refused from the moment the
 * device may be in RESET. Returns -1 with an exception. */
static int change(cqn_qp *self, struct ibv_qp_attr *attr, int mask)
{
    if (cqn_qp_await_turn(self) < 0) {
        return -1;
    }
    struct ibv_qp *qp = self->base.handle;
    enum ibv_qp_state before = self->state;
    enum ibv_qp_state after = mask & IBV_QP_STATE ? attr->qp_state : before;
    if (gives_up(after)) {
        cqn_qp_record_failure(self);
    }
    if (after == IBV_QPS_RESET) {
        self->state = after;
    }
    const limit_of_port known = known_limit(self);
    changes made;
    CQN_IN_KERNEL(CQN_OBJ(self), made = carry_out(qp, attr, mask, known));
    if (made.err != 0) {
        self->state = before;
        const refusal why = refusal_of(&made, mask, attr);
        return modify_failed(self, &why);
    }
    self->state = after;
    if (made.has_cap) {
        enter_capacities(self, &made.cap);
    }
    if (mask & IBV_QP_PORT) {
        enter_port(self, attr->port_num, made.max_message);
    }
    if (mask & IBV_QP_PATH_MTU) {
        self->path_mtu = bytes_of_mtu(attr->path_mtu);
    }
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) {
        enter_depth(self, attr->max_rd_atomic, false);
    }
    if (after == IBV_QPS_RESET) {
        enter_depth(self, CQN_DEPTH_UNKNOWN, false);
        cqn_qp_forget_requests(self);
        self->has_failed = false;
    }
    return 0;
}

/* The result of several transitions. */
typedef struct {
    enum ibv_qp_state reached;
    limit_of_port port; /* the port that was set, or 0 */
    bool has_depth;
    uint8_t max_rd_atomic; /* if has_depth */
    uint32_t path_mtu;     /* in bytes, or 0 */
    int unknown;           /* the errno of querying the next one's attributes, or 0 */
    refusal failed;        /* the next one was refused if its `err` is not 0 */
} climbed;

/* Called without the GIL. */
static climbed climb(struct ibv_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
                     const cqn_qp_source *source, limit_of_port known)
{
    climbed done = {.reached = from};
    while (done.reached < to) {
        struct ibv_qp_attr attr = {.qp_state = done.reached + 1};
        const int mask = source->query(source->of, &attr);
        if (mask < 0) {
            done.unknown = errno;
            break;
        }
        const changes made = carry_out(qp, &attr, mask, known);
        if (made.err != 0) {
            done.failed = refusal_of(&made, mask, &attr);
            break;
        }
        if (mask & IBV_QP_PORT) {
            done.port = (limit_of_port){attr.port_num, made.max_message};
        }
        if (mask & IBV_QP_PATH_MTU) {
            done.path_mtu = bytes_of_mtu(attr.path_mtu);
        }
        if (mask & IBV_QP_MAX_QP_RD_ATOMIC) {
            done.has_depth = true;
            done.max_rd_atomic = attr.max_rd_atomic;
        }
        done.reached = attr.qp_state;
    }
    return done;
}

CQN_RARE int cqn_qp_climb(cqn_qp *self, enum ibv_qp_state from, enum ibv_qp_state to,
                          const cqn_qp_source *source)
{
    if (cqn_qp_await_turn(self) < 0) {
        return -1;
    }
    struct ibv_qp *qp = self->base.handle;
    const limit_of_port known = known_limit(self);
    climbed done;
    CQN_IN_KERNEL(CQN_OBJ(self), done = climb(qp, from, to, source, known));
    if (done.reached != from) {
        self->state = done.reached;
    }
    if (done.port.port_num != 0) {
        enter_port(self, done.port.port_num, done.port.max_message);
    }
    if (done.path_mtu != 0) {
        self->path_mtu = done.path_mtu;
    }
    if (done.has_depth) {
        enter_depth(self, done.max_rd_atomic, source->depth_granted);
    }
    if (done.unknown != 0) {
        cqn_verbs_error(self->base.state, done.unknown, source->verb, "");
        return -1;
    }
    return done.failed.err != 0 ? modify_failed(self, &done.failed) : 0;
}

/* Makes posting check the state, and makes flushed requests wake tasks that wait only for solicited
 * events. */
static void note_failure(cqn_qp *self)
{
    self->errors_seen++;
    if (self->state != IBV_QPS_RESET && self->send_cq != NULL) {
        cqn_wr_queue_flushes(self->sq, &self->send_cq->flushing);
        cqn_wr_queue_flushes(self->rq, &self->recv_cq->flushing);
    }
}

/* Modifies the queue pair, and notifies the engines of its CQs. NULL with an exception. */
CQN_RARE static PyObject *modify(cqn_qp *self, struct ibv_qp_attr *attr, int mask)
{
    PyObject *interrupt = NULL;
    if (change(self, attr, mask) < 0) {
        return NULL;
    }
    if ((mask & IBV_QP_STATE) && gives_up(attr->qp_state) && cqn_is_open(&self->base)) {
        note_failure(self);
        cqn_engines_notify(self, &interrupt);
    }
    if (interrupt != NULL) {
        cqn_raise_interrupt(interrupt);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *cqn_qp_modify(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    cqn_qp *self = (cqn_qp *)op;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    if (!PyArg_ParseTuple(args, ";modify() takes attributes by name only") ||
        cqn_freeze_keywords(&kwargs, &copy) < 0 || cqn_open(&self->base) == NULL) {
        return NULL;
    }
    int mask = collect_attributes(self, kwargs, &attr);
    return mask < 0 ? NULL : modify(self, &attr, mask);
}

PyObject *cqn_qp_fail(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    return self->state == IBV_QPS_RESET ? Py_NewRef(Py_None) : modify(self, &attr, IBV_QP_STATE);
}

/* ---- check_modify() ---- */

PyObject *cqn_qp_check_modify(PyObject *op, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    if (!PyArg_ParseTuple(args, ";check_modify() takes attributes by name only") ||
        cqn_freeze_keywords(&kwargs, &copy) < 0 || cqn_open(CQN_OBJ(op)) == NULL ||
        collect_attributes((cqn_qp *)op, kwargs, &attr) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* SPDX-License-Identifier: MIT */
/*
 * Posting receives to a queue pair or an SRQ.
 *
 * Both have a queue of receives (cqn_recv_queue) and share the path from the arguments to the WR
 * queue. The most common call, one SGE for a queue pair, has a fast path, which leaves everything
 * else to the general one.
 */

#include "work/wr.h"

/* The common case is checked inline; the reason is determined only after a refusal. Returns -1 with
 * an exception. */
static int admit_recv(const cqn_recv_queue *q, const cqn_sg *sg)
{
    return cqn_sg_fits(sg, q->pd, q->max_sge) ? 0 : cqn_sg_refuse(sg, q->owner, q->pd, q->max_sge);
}

/* Posts the n work requests of an array. Returns 0 or an errno; *posted: how many were posted. */
static int post_recvs(const cqn_recv_queue *q, struct ibv_recv_wr *first, size_t n, size_t *posted)
{
    struct ibv_recv_wr *bad = NULL;
    int err = cqn_errno_of(q->post(q->owner->handle, first, &bad));
    *posted = err == 0 || bad == NULL ? n : (size_t)(bad - first);
    return err;
}

static PyObject *refuse_recv(const cqn_recv_queue *q, int err, PyObject *bad_wr, size_t posted,
                             size_t of)
{
    return cqn_wr_refused(&(cqn_wr_refusal){.owner = q->owner,
                                            .verb = q->verb,
                                            .max_wr = q->max_wr,
                                            .requests = q->wr_queue->requests,
                                            .err = err,
                                            .posted = posted,
                                            .of = of,
                                            .bad_wr = bad_wr});
}

/* `object` is the RecvWR, or NULL. Posting writes to the request; without a GIL to a copy, because
 * another thread can post the same RecvWR with the other half of the lock. */
static PyObject *post_one_recv(const cqn_recv_queue *q, struct ibv_recv_wr *wr, uint64_t wr_id,
                               const cqn_sg *sg, PyObject *object)
{
    size_t posted;
#ifdef Py_GIL_DISABLED
    struct ibv_recv_wr copy = *wr;
    wr = &copy;
#endif
    const size_t entries = cqn_wr_entries(sg);
    if (admit_recv(q, sg) < 0 || cqn_wr_queue_reserve(q->wr_queue, entries) < 0) {
        return NULL;
    }
    cqn_wr_cursor at = cqn_wr_queue_cursor(q->wr_queue);
    wr->wr_id = cqn_wr_queue_next_id(q->wr_queue, &at, entries);
    int err = post_recvs(q, wr, 1, &posted);
    if (posted > 0) {
        cqn_wr_queue_push_recv(q->wr_queue, wr_id, sg);
    }
    else {
        cqn_wr_queue_refused(q->wr_queue, 1);
    }
    return err == 0 ? Py_NewRef(Py_None)
                    : refuse_recv(q, err, posted == 0 ? object : NULL, posted, 1);
}

static PyObject *post_recv_arguments(const cqn_recv_queue *q, PyObject *memory, uint64_t wr_id)
{
    cqn_sg_arrays arrays;
    cqn_sg sg = CQN_SG_IN(arrays);
    if (cqn_sg_gather(&sg, q->owner->state, memory) < 0 || cqn_recv_check(&sg) < 0) {
        return NULL;
    }
    struct ibv_recv_wr wr = {.sg_list = sg.sge, .num_sge = (int)sg.num_sge};
    return post_one_recv(q, &wr, wr_id, &sg, NULL);
}

static cqn_recv_wr *recv_item(PyObject *list, size_t i)
{
    return (cqn_recv_wr *)PyTuple_GET_ITEM(list, (Py_ssize_t)i);
}

/* Copies the work requests, because one can be in the list more than once, and links the copies.
 * Returns the number of entries for the WR queue, or -1 with an exception. */
static Py_ssize_t link_recvs(const cqn_recv_queue *q, PyObject *list, struct ibv_recv_wr *wrs,
                             size_t n)
{
    size_t entries = 0;
    for (size_t i = 0; i < n; i++) {
        if (admit_recv(q, &recv_item(list, i)->sg) < 0) {
            cqn_blame_item((Py_ssize_t)i);
            return -1;
        }
        entries += cqn_wr_entries(&recv_item(list, i)->sg);
        wrs[i] = recv_item(list, i)->wr;
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    return (Py_ssize_t)entries;
}

/* Adds the work requests to the WR queue, up to the first one refused by the device. */
static PyObject *post_linked_recvs(const cqn_recv_queue *q, PyObject *list, struct ibv_recv_wr *wrs,
                                   size_t n)
{
    size_t posted;
    cqn_wr_cursor at = cqn_wr_queue_cursor(q->wr_queue);
    for (size_t i = 0; i < n; i++) {
        wrs[i].wr_id =
            cqn_wr_queue_next_id(q->wr_queue, &at, cqn_wr_entries(&recv_item(list, i)->sg));
    }
    int err = post_recvs(q, wrs, n, &posted);
    for (size_t i = 0; i < posted; i++) {
        cqn_wr_queue_push_recv(q->wr_queue, recv_item(list, i)->wr_id, &recv_item(list, i)->sg);
    }
    if (posted < n) {
        cqn_wr_queue_refused(q->wr_queue, n - posted);
    }
    PyObject *bad_wr = posted < n ? (PyObject *)recv_item(list, posted) : NULL;
    return err == 0 ? Py_NewRef(Py_None) : refuse_recv(q, err, bad_wr, posted, n);
}

/* The copies are on the heap, because a list can have any length. */
static PyObject *post_recv_list(const cqn_recv_queue *q, PyObject *list)
{
    const size_t n = (size_t)PyTuple_GET_SIZE(list);
    struct ibv_recv_wr *wrs = PyMem_New(struct ibv_recv_wr, n);
    if (wrs == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *result = NULL;
    Py_ssize_t entries = link_recvs(q, list, wrs, n);
    if (entries >= 0 && cqn_wr_queue_reserve(q->wr_queue, (size_t)entries) == 0) {
        result = post_linked_recvs(q, list, wrs, n);
    }
    PyMem_Free(wrs);
    return result;
}

/* Posts a RecvWR or a list of them. */
static PyObject *post_prebuilt_recv(cqn_object *owner, cqn_recv_queue_of queue_of, PyObject *what)
{
    PyTypeObject *type = owner->state->RecvWR;
    cqn_recv_queue q;
    if (Py_IS_TYPE(what, type)) {
        cqn_recv_wr *wr = (cqn_recv_wr *)what;
        return queue_of(owner, &q) < 0 ? NULL
                                       : post_one_recv(&q, &wr->wr, wr->wr_id, &wr->sg, what);
    }
    PyObject *list = cqn_wr_list(what, type);
    PyObject *result = list == NULL || queue_of(owner, &q) < 0 ? NULL : post_recv_list(&q, list);
    Py_XDECREF(list);
    return result;
}

PyObject *cqn_post_recv(cqn_object *owner, cqn_recv_queue_of queue_of, PyObject *const *args,
                        Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"sg", "wr_id", NULL};
    PyTypeObject *type = owner->state->RecvWR;
    PyObject *in[2] = {NULL, NULL};
    CQN_COPY copy = NULL;
    uint64_t wr_id = 0;
    cqn_recv_queue q;
    if (cqn_open(owner) == NULL ||
        cqn_args("post_recv", names, 1, 1, args, nargs, kwnames, in) < 0 ||
        cqn_freeze(&in[0], &copy) < 0) {
        return NULL;
    }
    if (Py_IS_TYPE(in[0], type) || cqn_wr_is_list(in[0], type)) {
        return cqn_wr_is_alone(names, in) < 0 ? NULL : post_prebuilt_recv(owner, queue_of, in[0]);
    }
    return (in[1] != NULL && cqn_uint(in[1], "wr_id", UINT64_MAX, &wr_id) < 0) ||
                   queue_of(owner, &q) < 0
               ? NULL
               : post_recv_arguments(&q, in[0], wr_id);
}

/* ---- queue pairs ---- */

static int post_to_qp(void *handle, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
    return ibv_post_recv((struct ibv_qp *)handle, first, bad);
}

/* A queue pair with an SRQ has no receive queue, and one in RESET accepts no receives. */
static int queue_of_qp(cqn_object *op, cqn_recv_queue *out)
{
    cqn_qp *qp = (cqn_qp *)op;
    if (cqn_is_open(op) && qp->srq != NULL) {
        PyErr_Format(PyExc_ValueError,
                     "QP %u receives from its SRQ: post there, qp.srq.post_recv()", qp->qp_num);
        return -1;
    }
    if (cqn_is_open(op) && qp->no_recvs) {
        PyErr_Format(PyExc_ValueError, "QP %u is of type %s and has no receive queue%s", qp->qp_num,
                     cqn_qp_type_name(qp->type),
                     qp->type == IBV_QPT_XRC_RECV ? ": post to the SRQ that its messages name"
                     : qp->rwq_ind_tbl != NULL    ? ": post to the WQs of its rwq_ind_tbl"
                                                  : "");
        return -1;
    }
    *out = (cqn_recv_queue){.owner = op,
                            .pd = qp->pd,
                            .wr_queue = qp->rq,
                            .max_sge = qp->cap.max_recv_sge,
                            .max_wr = qp->cap.max_recv_wr,
                            .verb = "ibv_post_recv",
                            .post = post_to_qp};
    return cqn_open(op) == NULL || cqn_qp_require_state(qp, IBV_QPS_INIT, out->verb) < 0 ? -1 : 0;
}

const char cqn_qp_post_recv_doc[] =
    "post_recv($self, /, sg, *, wr_id=0)\n--\n\n"
    "Post memory for one message to be received.\n\n"
    "sg: mr[a:b], an MR, a list of these, or None for no memory, as is an empty list. Or it\n"
    "    is the only argument, a RecvWR or a list of them, which are posted with one call of\n"
    "    the verb. A UD message begins with 40 bytes of GRH.\n"
    "wr_id: 64 bits, which the completion returns.\n\n"
    "The memory is kept alive until the completion was polled or the QP closed. Raises\n"
    "VerbsError, (ENOMEM) when the queue is full; for a list it says how many were `posted`,\n"
    "and which is the `bad_wr` that was refused.\n\n"
    "Wraps ibv_post_recv(3).";

/* A receive with one SGE, the most common argument. */
typedef struct {
    uint64_t wr_id;
    struct ibv_recv_wr wr;
    struct ibv_sge sge;
    cqn_object *pinned;
    cqn_sg sg;
} simple_recv;

/* Returns whether there is no keyword, or only wr_id with an int in range. */
static inline bool is_simple_id(PyObject *const *values, PyObject *kwnames, uint64_t *out)
{
    *out = 0;
    if (kwnames == NULL) {
        return true;
    }
    PyObject *name = PyTuple_GET_ITEM(kwnames, 0);
    if (PyTuple_GET_SIZE(kwnames) != 1 || !PyLong_CheckExact(values[0]) ||
        !PyUnicode_IS_COMPACT_ASCII(name) || PyUnicode_GET_LENGTH(name) != 5 ||
        memcmp(PyUnicode_DATA(name), "wr_id", 5) != 0) {
        return false;
    }
    *out = cqn_unsigned(values[0]);
    if (*out == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear(); /* the general path raises the error */
        return false;
    }
    return true;
}

static inline bool is_simple(const cqn_state *st, PyObject *const *args, PyObject *kwnames,
                             simple_recv *out)
{
    uint64_t wr_id;
    if (!Py_IS_TYPE(args[0], st->SGE) || !is_simple_id(args + 1, kwnames, &wr_id)) {
        return false;
    }
    const cqn_sge *element = (cqn_sge *)args[0];
    out->sge = (struct ibv_sge){element->addr, element->length, element->lkey};
    out->pinned = CQN_OBJ(element->mr);
    out->sg.sge = &out->sge;
    out->sg.pinned = &out->pinned;
    out->sg.num_sge = out->sg.num_pinned = 1;
    out->sg.changes = element->changes;
    out->wr_id = wr_id;
    out->wr = (struct ibv_recv_wr){.sg_list = &out->sge, .num_sge = 1};
    return element->mr->access & IBV_ACCESS_LOCAL_WRITE;
}

/* Returns whether nothing has to be allocated or refused. */
static inline bool is_recv_ready(const cqn_qp *qp, const cqn_sg *sg)
{
    return cqn_is_open(&qp->base) && qp->state >= IBV_QPS_INIT && qp->srq == NULL &&
           !qp->no_recvs && cqn_sg_fits(sg, qp->pd, qp->cap.max_recv_sge) &&
           cqn_wr_queue_fits(qp->rq, cqn_wr_entries(sg));
}

/* The fast path, and the call of the general one. */
PyObject *cqn_qp_post_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    cqn_qp *qp = (cqn_qp *)op;
    simple_recv simple;
    struct ibv_recv_wr *wr = NULL, *bad = NULL;
    const cqn_sg *sg = NULL;
    uint64_t wr_id = 0;
#ifdef Py_GIL_DISABLED
    struct ibv_recv_wr copy; /* see post_one_recv() */
#endif
    if (nargs == 1 && kwnames == NULL && Py_IS_TYPE(args[0], qp->base.state->RecvWR)) {
        wr = &((cqn_recv_wr *)args[0])->wr;
#ifdef Py_GIL_DISABLED
        copy = *wr;
        wr = &copy;
#endif
        wr_id = ((cqn_recv_wr *)args[0])->wr_id;
        sg = &((cqn_recv_wr *)args[0])->sg;
    }
    else if (nargs == 1 && is_simple(qp->base.state, args, kwnames, &simple)) {
        wr = &simple.wr;
        wr_id = simple.wr_id;
        sg = &simple.sg;
    }
    if (wr == NULL || !is_recv_ready(qp, sg)) {
        return cqn_post_recv(&qp->base, queue_of_qp, args, nargs, kwnames);
    }
    wr->wr_id = cqn_wr_queue_id(qp->rq, cqn_wr_entries(sg));
    int err = ibv_post_recv((struct ibv_qp *)qp->base.handle, wr, &bad);
    if (err == 0 || bad == NULL) {
        cqn_wr_queue_push(qp->rq, &(cqn_wr){.wr_id = wr_id}, sg);
    }
    else {
        cqn_wr_queue_refused(qp->rq, 1);
    }
    if (err != 0) {
        err = cqn_errno_of(err);
        cqn_recv_queue q;
        PyObject *bad_wr = bad == NULL || wr == &simple.wr ? NULL : args[0];
        return queue_of_qp(&qp->base, &q) < 0 ? NULL : refuse_recv(&q, err, bad_wr, bad == NULL, 1);
    }
    Py_RETURN_NONE;
}

int cqn_post_awaited_recv(cqn_qp *qp, const cqn_sg *sg, cqn_awaitable *awaitable)
{
    cqn_recv_queue q;
    const size_t entries = cqn_wr_entries(sg);
    struct ibv_recv_wr wr = {.sg_list = sg->sge, .num_sge = (int)sg->num_sge};
    size_t posted;
    if (!is_recv_ready(qp, sg) && (queue_of_qp(&qp->base, &q) < 0 || admit_recv(&q, sg) < 0 ||
                                   cqn_wr_queue_reserve(qp->rq, entries) < 0)) {
        return -1;
    }
    q = (cqn_recv_queue){.owner = &qp->base, .post = post_to_qp};
    wr.wr_id = cqn_wr_queue_id(qp->rq, entries);
    int err = post_recvs(&q, &wr, 1, &posted);
    if (posted > 0) {
        cqn_wr_queue_push(qp->rq, &(cqn_wr){.awaitable = awaitable, .marks = CQN_WR_AWAITED}, sg);
        return 0;
    }
    cqn_wr_queue_refused(qp->rq, 1);
    return err;
}

int cqn_post_own_recvs(cqn_qp *qp, cqn_mr *mr, struct ibv_recv_wr *wrs, size_t n)
{
    cqn_object *pinned = CQN_OBJ(mr);
    const cqn_sg sg = {.pinned = &pinned, .num_pinned = 1};
    cqn_recv_queue q;
    if (queue_of_qp(&qp->base, &q) < 0 || cqn_open(&mr->base) == NULL ||
        cqn_wr_queue_reserve(qp->rq, n) < 0) {
        return -1;
    }
    const uint64_t first = qp->rq->next;
    for (size_t i = 0; i < n; i++) {
        cqn_wr_queue_push(qp->rq, &(cqn_wr){.wr_id = wrs[i].wr_id}, &sg);
        wrs[i].wr_id = cqn_wr_id(qp->rq, first + i);
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    size_t posted;
    const int err = post_recvs(&q, wrs, n, &posted);
    (void)posted;
    if (err != 0) {
        refuse_recv(&q, err, NULL, posted, n);
    }
    return err == 0 ? 0 : -1;
}

void cqn_refuse_recv(cqn_qp *qp, int err)
{
    cqn_recv_queue q;
    if (queue_of_qp(&qp->base, &q) == 0) {
        refuse_recv(&q, err, NULL, 0, 1);
    }
}

/* ---- SRQs ---- */

static int post_to_srq(void *handle, struct ibv_recv_wr *first, struct ibv_recv_wr **bad)
{
    return ibv_post_srq_recv((struct ibv_srq *)handle, first, bad);
}

/* An SRQ accepts receives in any state. */
static int queue_of_srq(cqn_object *op, cqn_recv_queue *out)
{
    cqn_srq *srq = (cqn_srq *)op;
    *out = (cqn_recv_queue){.owner = op,
                            .pd = op->uses[0],
                            .wr_queue = srq->rq,
                            .max_sge = srq->max_sge,
                            .max_wr = srq->max_wr,
                            .verb = "ibv_post_srq_recv",
                            .post = post_to_srq};
    return cqn_open(op) == NULL ? -1 : 0;
}

const char cqn_srq_post_recv_doc[] =
    "post_recv($self, /, sg, *, wr_id=0)\n--\n\n"
    "Post memory for one message, to whichever of its QPs it comes.\n\n"
    "The parameters are those of `cqnotify.QP.post_recv`. The completion, on the receive CQ\n"
    "of that QP, identifies the memory only by its `wr_id`, so give each its own. The memory,\n"
    "of the SRQ's own PD, is kept alive until its completion was polled or the SRQ closed.\n"
    "Raises VerbsError, (ENOMEM) when the queue is full.\n\n"
    "Wraps ibv_post_srq_recv(3).";

PyObject *cqn_srq_post_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    CQN_HALF_LOCKED(op);
    return cqn_post_recv(CQN_OBJ(op), queue_of_srq, args, nargs, kwnames);
}

/* SPDX-License-Identifier: MIT */
/* The common part of SendWR and RecvWR and of posting them: the wr_id, lists of work requests, the
 * error for a post that the device refused, and the state of the queue pair. */

#include "work/wr.h"

/* `offset` is the offset of the wr_id in the object. */
PyObject *cqn_wr_get_id(PyObject *op, void *offset)
{
    CQN_LOCKED;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)op + (uintptr_t)offset));
}

int cqn_wr_set_id(PyObject *op, PyObject *value, void *offset)
{
    CQN_LOCKED;
    uint64_t wr_id;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "wr_id can't be deleted");
        return -1;
    }
    if (cqn_uint(value, "wr_id", UINT64_MAX, &wr_id) < 0) {
        return -1;
    }
    *(uint64_t *)((char *)op + (uintptr_t)offset) = wr_id;
    return 0;
}

int cqn_wr_is_alone(const char *const *names, PyObject *const *in)
{
    for (int i = 1; names[i] != NULL; i++) {
        if (in[i] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s was given, but a work request that was built before has all its "
                         "arguments: pass it alone (its wr_id can be set)",
                         names[i]);
            return -1;
        }
    }
    return 0;
}

bool cqn_wr_is_list(PyObject *value, PyTypeObject *type)
{
    return value != NULL && (PyList_Check(value) || PyTuple_Check(value)) &&
           PySequence_Fast_GET_SIZE(value) > 0 &&
           Py_IS_TYPE(PySequence_Fast_GET_ITEM(value, 0), type);
}

/* All items must have this type. */
PyObject *cqn_wr_list(PyObject *value, PyTypeObject *type)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(value);
    PyObject *list = PyTuple_New(n); /* can run code that changes the list */
    if (list != NULL && n != PySequence_Fast_GET_SIZE(value)) {
        PyErr_SetString(PyExc_RuntimeError, "the list was changed while it was read");
        Py_CLEAR(list);
    }
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(value, i);
        if (Py_IS_TYPE(item, type)) {
            PyTuple_SET_ITEM(list, i, Py_NewRef(item));
            continue;
        }
        PyErr_Format(
            PyExc_TypeError,
            "[%zd] of the list is a %s: a list that begins with a %s must have nothing else", i,
            Py_TYPE(item)->tp_name, type->tp_name);
        Py_CLEAR(list);
    }
    return list;
}

/* Many iWARP devices lack these features, and no attribute shows it. */
static const char *hint(const cqn_wr_refusal *r)
{
    const struct ibv_context *context = r->owner->context->base.handle;
    const bool iwarp = context != NULL && context->device->transport_type == IBV_TRANSPORT_IWARP;
    return iwarp && r->err == EINVAL ? ": few iWARP devices have immediate data or invalidation, "
                                       "and some no receives without memory"
                                     : "";
}

/* A device that does not report which request it refused may carry out any of them: all count as
 * posted. */
CQN_RARE void *cqn_wr_refused(const cqn_wr_refusal *r)
{
    cqn_state *st = r->owner->state;
    const bool is_qp = PyObject_TypeCheck((PyObject *)r->owner, st->QP);
    char name[32] = "the SRQ", some[96] = "";
    if (is_qp) {
        snprintf(name, sizeof(name), "QP %u", ((const cqn_qp *)r->owner)->qp_num);
    }
    if (r->posted == r->of) {
        snprintf(some, sizeof(some), "; it may still be carried out");
    }
    else if (r->of > 1) {
        snprintf(some, sizeof(some), "; the first %zu of %zu were posted", r->posted, r->of);
    }
    if (r->err != ENOMEM || r->posted == r->of) {
        return cqn_post_error(st, r->err, r->verb, r->posted, r->bad_wr, "%s%s%s", name, some,
                              hint(r));
    }
    return cqn_post_error(st, r->err, r->verb, r->posted, r->bad_wr,
                          "%s%s is full: it was granted %u %s and %zd have not completed; poll %s, "
                          "or ask for more%s",
                          is_qp ? "the queue of " : "", name, r->max_wr,
                          is_qp ? "work requests" : "receives", (Py_ssize_t)r->requests,
                          is_qp ? "its CQ" : "the CQs of its QPs", some);
}

/* ---- the state of a queue pair, for posting and modify() ---- */

/* A datagram must fit into one packet. */
uint32_t cqn_qp_query_limit(struct ibv_qp *qp, uint8_t port_num)
{
    struct ibv_port_attr port = {.flags = 0};
    if (ibv_query_port(qp->context, port_num, &port) != 0) {
        return UINT32_MAX;
    }
    return qp->qp_type == IBV_QPT_UD ? UINT32_C(128) << port.active_mtu : port.max_msg_sz;
}

/* Afterwards qp->state is the state that the device was last set to. */
int cqn_qp_await_turn(cqn_qp *self)
{
    while (cqn_open(&self->base) != NULL) {
        if (self->base.in_use == 0 || cqn_is_ending()) {
            return 0;
        }
        cqn_wait_until_left(self->base.state);
    }
    return -1;
}

int cqn_qp_require_state(const cqn_qp *qp, enum ibv_qp_state least, const char *verb)
{
    if (qp->state >= least) {
        return 0;
    }
    cqn_verbs_error(qp->base.state, EINVAL, verb, "QP %u is in %s, and needs %s: see QP.connect()",
                    qp->qp_num, cqn_qp_state_name(qp->state), cqn_qp_state_name(least));
    return -1;
}

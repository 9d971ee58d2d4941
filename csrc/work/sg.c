/* SPDX-License-Identifier: MIT */
/*
 * The memory of a work request: SGEs and MRs, or the bytes of any buffer for an INLINE send.
 *
 * During a post everything is on the stack and borrowed, since the arguments hold it. A SendWR or
 * RecvWR owns its arrays and references (cqn_sg_keep()).
 */

#include "work/sg.h"

void cqn_sg_pin(cqn_sg *sg, cqn_object *object)
{
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        if (sg->pinned[i] == object) {
            return;
        }
    }
    sg->pinned[sg->num_pinned++] = object;
    sg->changes += object->changes;
}

static int refuse_element(cqn_state *st, PyObject *item)
{
    bool is_wr = Py_IS_TYPE(item, st->SendWR) || Py_IS_TYPE(item, st->RecvWR);
    PyErr_Format(PyExc_TypeError,
                 is_wr ? "sg must not have a %s in it: that is posted by its own method, alone or "
                         "in a list of its kind"
                       : "sg must be mr[a:b], an MR, or a sequence of these, not %s (bytes can "
                         "only be sent with SendFlags.INLINE)",
                 Py_TYPE(item)->tp_name);
    return -1;
}

static int refuse_stale(const char *what)
{
    PyErr_Format(PyExc_ValueError,
                 "%s: its MR was registered anew since it was made, by rereg(): slice that again",
                 what);
    return -1;
}

int cqn_sg_locate(cqn_state *st, PyObject *item, cqn_mr **mr, uint64_t *addr, uint64_t *length)
{
    if (Py_IS_TYPE(item, st->SGE)) {
        const cqn_sge *sge = (const cqn_sge *)item;
        *mr = sge->mr;
        *addr = sge->addr;
        *length = sge->length;
        return sge->changes == sge->mr->base.changes ? 1 : refuse_stale("sg has an old SGE");
    }
    if (PyObject_TypeCheck(item, st->MR)) {
        *mr = (cqn_mr *)item;
        *addr = (*mr)->iova;
        *length = (*mr)->memory.length;
        return 1;
    }
    return 0;
}

/* Runs no Python code, so the arguments keep the borrowed objects alive. */
static int gather_one(cqn_sg *sg, cqn_state *st, PyObject *item)
{
    cqn_mr *mr;
    uint64_t addr, length;
    const int located = cqn_sg_locate(st, item, &mr, &addr, &length);
    if (located <= 0) {
        return located < 0 ? -1 : refuse_element(st, item);
    }
    if (sg->num_sge >= CQN_MAX_SGE) {
        PyErr_Format(PyExc_ValueError, "sg has more elements than the %d that any queue takes",
                     CQN_MAX_SGE);
        return -1;
    }
    if (length > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "sg: the MR has %zu bytes, an element at most %u: slice it",
                     mr->memory.length, UINT32_MAX);
        return -1;
    }
    uint32_t lkey = Py_IS_TYPE(item, st->SGE) ? ((cqn_sge *)item)->lkey : mr->lkey;
    sg->sge[sg->num_sge++] = (struct ibv_sge){addr, (uint32_t)length, lkey};
    sg->length += length;
    sg->writable = sg->writable && (mr->access & IBV_ACCESS_LOCAL_WRITE);
    sg->unreadable =
        sg->unreadable || mr->memory.addr == NULL || mr->iova != (uintptr_t)mr->memory.addr;
    cqn_sg_pin(sg, CQN_OBJ(mr));
    return 0;
}

int cqn_sg_gather(cqn_sg *sg, cqn_state *st, PyObject *value)
{
    if (value == NULL || value == Py_None) {
        return 0;
    }
    if (!PyList_Check(value) && !PyTuple_Check(value)) {
        return gather_one(sg, st, value);
    }
    /* gather_one() runs no Python code, so the sequence cannot change */
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++) {
        if (gather_one(sg, st, PySequence_Fast_GET_ITEM(value, i)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The bytes of an INLINE send are copied during the post, so any buffer is accepted. */
int cqn_sg_gather_bytes(cqn_sg *sg, PyObject *buffer)
{
    if (PyObject_GetBuffer(buffer, &sg->bytes, PyBUF_SIMPLE) < 0) {
        sg->bytes.obj = NULL; /* an exporter that fails need not set it */
        return -1;
    }
    sg->num_sge = 1;
    sg->length = (uint64_t)sg->bytes.len;
    sg->sge[0] = (struct ibv_sge){(uintptr_t)sg->bytes.buf, (uint32_t)sg->length, 0};
    return 0;
}

/* All objects must be open, and on one PD: the queue's, or else the first one's. */
static int check_pinned(const cqn_sg *sg, const cqn_object *pd, const char *whose)
{
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        cqn_object *object = sg->pinned[i];
        if (cqn_open(object) == NULL) {
            return -1;
        }
        pd = pd == NULL ? object->uses[0] : pd;
        if (cqn_root_pd(object->uses[0]) != cqn_root_pd(pd)) {
            PyErr_Format(PyExc_ValueError, "the %s belongs to another PD than the %s",
                         object->kind->name, whose);
            return -1;
        }
    }
    return 0;
}

static int own(cqn_sg *sg)
{
    size_t sges = sg->num_sge * sizeof(*sg->sge), pins = sg->num_pinned * sizeof(*sg->pinned);
    char *own = PyMem_Malloc(sges + pins);
    if (own == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(own, sg->sge, sges);
    memcpy(own + sges, sg->pinned, pins);
    sg->sge = (struct ibv_sge *)(void *)own;
    sg->pinned = (cqn_object **)(void *)(own + sges);
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        Py_INCREF(sg->pinned[i]);
    }
    return 0;
}

int cqn_sg_keep(cqn_sg *sg)
{
    return check_pinned(sg, NULL, "rest of the work request") < 0 ? -1 : own(sg);
}

/* Each copy gets its own view of the buffer. */
CQN_RARE int cqn_sg_copy(cqn_sg *sg)
{
    PyObject *buffer = sg->bytes.obj;
    sg->bytes.obj = NULL;
    if (own(sg) < 0) {
        return -1;
    }
    if (buffer != NULL && cqn_sg_gather_bytes(sg, buffer) < 0) {
        cqn_sg_free(sg);
        return -1;
    }
    return 0;
}

/* The name is for messages: a queue refuses the object because it is closed. */
static const cqn_kind left_kind = {.name = "work request", .clear = cqn_clear};

CQN_RARE int cqn_sg_restore(cqn_sg *sg, PyTypeObject *type, uint64_t length)
{
    cqn_object *left = cqn_new_left(type, &left_kind);
    if (left == NULL) {
        return -1;
    }
    cqn_sg_arrays arrays;
    *sg = (cqn_sg)CQN_SG_IN(arrays);
    sg->length = length;
    cqn_sg_pin(sg, left);
    int rc = own(sg);
    Py_DECREF(left);
    return rc;
}

void cqn_sg_drop_bytes(cqn_sg *sg)
{
    if (sg->bytes.obj != NULL) {
        PyBuffer_Release(&sg->bytes);
    }
}

void cqn_sg_free(cqn_sg *sg)
{
    cqn_sg_drop_bytes(sg);
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        Py_DECREF(sg->pinned[i]);
    }
    PyMem_Free(sg->sge);
}

int cqn_sg_traverse(const cqn_sg *sg, visitproc visit, void *arg)
{
    Py_VISIT(sg->bytes.obj);
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        Py_VISIT(sg->pinned[i]);
    }
    return 0;
}

CQN_RARE int cqn_sg_refuse(const cqn_sg *sg, const cqn_object *owner, const cqn_object *pd,
                           uint32_t max_sge)
{
    if (check_pinned(sg, pd, owner->kind->name) < 0) {
        return -1;
    }
    if (sg->num_sge <= max_sge) {
        return refuse_stale("this work request is out of date");
    }
    PyErr_Format(PyExc_ValueError, "sg has more elements than the %u that this %s takes", max_sge,
                 owner->kind->name);
    return -1;
}

/* SPDX-License-Identifier: MIT */
/*
 * An MR of all memory, for devices that page on demand. It has no bytes that it
 * keeps alive. What is sent from, or received into, is an MR over a buffer that
 * goes by the keys of the implicit one: the device has nothing to register for
 * it, but it pins its buffer, and is pinned by work requests, as any other.
 */

#include "verbs/verbs.h"

int cqn_check_odp(cqn_object *pd, uint64_t needed)
{
    struct ibv_device_attr_ex attr;
    if (cqn_device_attr_ex(pd, &attr) < 0 || cqn_open(pd) == NULL) {
        return -1;
    }
    if ((attr.odp_caps.general_caps & needed) != needed) {
        cqn_verbs_error(pd->state, EOPNOTSUPP, "ibv_reg_mr",
                        "%son-demand paging, see query_device_ex().odp_caps",
                        needed & IBV_ODP_SUPPORT_IMPLICIT ? "implicit " : "");
        return -1;
    }
    return 0;
}

PyObject *cqn_mr_implicit(PyObject *cls, PyObject *args, PyObject *kwargs)
{
    CQN_LOCKED;
    CQN_COPY copy = NULL;
    static char *names[] = {"pd", "access", NULL};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *pd, *access_value = NULL;
    unsigned int access;
    if (cqn_freeze_keywords(&kwargs, &copy) < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:implicit", names, &pd, &access_value) ||
        cqn_expect(pd, cqn_state_of(type)->PD, "pd") < 0 ||
        cqn_mr_access(access_value, &access) < 0) {
        return NULL;
    }
    cqn_object *used = CQN_OBJ(pd);
    cqn_mr *self = cqn_new(type, &cqn_mr_kind, &used, 1);
    if (self == NULL) {
        return NULL;
    }
    self->access = access | IBV_ACCESS_ON_DEMAND;
    self->memory.length = SIZE_MAX;
    self->implicit = true;
    if (cqn_check_odp(used, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT) < 0 ||
        cqn_mr_register(self, used) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int nothing_to_deregister(void *Py_UNUSED(handle))
{
    return 0;
}

/* Its handle is that of the implicit one, which it keeps open. */
static const cqn_kind part_kind = {
    .name = "MR",
    .destroy_verb = "ibv_dereg_mr",
    .rank = CQN_RANK_OTHER,
    .destroy = nothing_to_deregister,
    .after_destroy = cqn_mr_after_destroy,
    .clear = cqn_mr_clear,
};

/* The part uses the whole, which so stays open, and has its keys. */
PyObject *cqn_mr_over(PyObject *op, PyObject *buffer)
{
    CQN_LOCKED;
    cqn_mr *whole = (cqn_mr *)op;
    if (cqn_open(&whole->base) == NULL) {
        return NULL;
    }
    if (!whole->implicit) {
        PyErr_SetString(PyExc_ValueError, "over() is for what MR.implicit() returned");
        return NULL;
    }
    cqn_object *used[2] = {whole->base.uses[0], CQN_OBJ(op)};
    cqn_mr *self = cqn_new(whole->base.state->MR, &part_kind, used, 2);
    if (self == NULL) {
        return NULL;
    }
    self->access = whole->access;
    self->lkey = whole->lkey;
    self->rkey = whole->rkey;
    /* Taking the user's buffer can run Python code, which can close the whole. */
    if (cqn_mr_take_memory(self, buffer) < 0 || cqn_open(&whole->base) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    self->registered = true;
    cqn_adopt(CQN_OBJ(self), whole->base.handle);
    return (PyObject *)self;
}

const char cqn_mr_implicit_doc[] =
    "implicit($type, /, pd, *, access=1)\n--\n\n"
    "An MR of all memory of this process, paged on demand: whatever its addr, no buffer needs to "
    "be registered.\n\n"
    "`implicit.over(buffer)` is what work requests take. With remote access, a peer that knows "
    "its rkey reaches everything, so hand that to nobody; by default `access` is LOCAL_WRITE. "
    "VerbsError (EOPNOTSUPP) where the device has no implicit on-demand paging.\n\n"
    "Wraps ibv_reg_mr(3).";

const char cqn_mr_over_doc[] =
    "over($self, buffer, /)\n--\n\n"
    "An MR over `buffer`, or over so many bytes of its own, by the keys of this implicit one.\n\n"
    "It is like an MR(pd, buffer), but there was nothing to register. Close it before this one.";

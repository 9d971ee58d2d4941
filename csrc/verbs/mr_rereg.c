/* SPDX-License-Identifier: MIT */
/*
 * Registering an MR anew: with other memory, another PD or other access.
 *
 * The MR stays the same object, and may get other keys. What was made of it before (SGEs, work
 * requests that are kept) has the old ones, so each change is counted, and posts compare.
 *
 * While the kernel is at it, which is without the GIL, no work request may be posted with the MR:
 * it counts as being closed. Both its old and its new memory stay pinned until it is known which
 * of them the device uses.
 */

#include "verbs/verbs.h"

typedef struct {
    PyObject *buffer, *pd; /* borrowed; NULL: as before */
    unsigned int access;
    int flags;
    cqn_memory memory; /* of the buffer */
} change;

static bool is_given(PyObject *value)
{
    return value != NULL && value != Py_None;
}

static int parse(cqn_mr *self, PyObject *const *in, change *c)
{
    *c = (change){.access = self->access};
    if (is_given(in[0])) {
        c->buffer = in[0];
        c->flags |= IBV_REREG_MR_CHANGE_TRANSLATION;
    }
    if (is_given(in[1])) {
        c->pd = in[1];
        c->flags |= IBV_REREG_MR_CHANGE_PD;
    }
    if (is_given(in[2])) {
        c->flags |= IBV_REREG_MR_CHANGE_ACCESS;
        if (cqn_mr_access(in[2], &c->access) < 0) {
            return -1;
        }
    }
    if (c->flags == 0) {
        PyErr_SetString(PyExc_TypeError, "rereg() needs buffer, pd or access");
        return -1;
    }
    return 0;
}

/* Whether the MR can be changed now. */
static int check(cqn_mr *self, const change *c)
{
    cqn_state *st = self->base.state;
    if (cqn_open(&self->base) == NULL ||
        (c->pd != NULL &&
         cqn_expect_beside(c->pd, st->PD, "pd", (PyObject *)self, "this MR") < 0)) {
        return -1;
    }
    if (self->base.kind != &cqn_mr_kind || self->memory.addr == NULL ||
        self->iova != (uintptr_t)self->memory.addr) {
        PyErr_SetString(PyExc_ValueError,
                        "rereg() is for an MR over memory of this process, at its own addresses");
        return -1;
    }
    if (self->base.pins > 0 || self->base.users > 0) {
        cqn_busy_error(st, "ibv_rereg_mr",
                       PyUnicode_FromFormat("this MR is still needed by %zu work request%s in "
                                            "flight and %u bound window%s",
                                            self->base.pins, self->base.pins == 1 ? "" : "s",
                                            self->base.users, self->base.users == 1 ? "" : "s"));
        return -1;
    }
    if (c->buffer != NULL && self->exports > 0) {
        PyErr_SetString(PyExc_BufferError, "there are memoryviews of this MR: its memory stays");
        return -1;
    }
    if (c->buffer == NULL && self->memory.view.obj != NULL && self->memory.view.readonly &&
        c->access & CQN_WRITING) {
        PyErr_Format(PyExc_TypeError,
                     "access is 0x%x: this MR is over a read-only buffer, which nothing may write",
                     c->access);
        return -1;
    }
    return 0;
}

/* Takes over what the device has taken over. Drops the old memory, which can run any code. */
static void become(cqn_mr *self, change *c)
{
    cqn_object *trash = NULL;
    const struct ibv_mr *mr = self->base.handle;
    self->lkey = mr->lkey;
    self->rkey = mr->rkey;
    self->access = c->access;
    if (c->pd != NULL) {
        cqn_use(&self->base, 0, CQN_OBJ(c->pd), &trash);
    }
    if (c->buffer != NULL) {
        const cqn_memory old = self->memory;
        self->memory = c->memory;
        self->iova = (uintptr_t)self->memory.addr;
        c->memory = old;
    }
    cqn_trash_empty(trash);
}

typedef enum { IS_NEW, IS_NEW_BUT, IS_OLD, IS_LOST, IS_STUCK } outcome;

/* What a call leaves, by enum ibv_rereg_mr_err_code. What lacks the verb has done nothing. */
static outcome outcome_of(int result, int err)
{
    return result == 0                                ? IS_NEW
           : result == IBV_REREG_MR_ERR_DO_FORK_OLD   ? IS_NEW_BUT
           : result == IBV_REREG_MR_ERR_INPUT         ? IS_OLD
           : result == IBV_REREG_MR_ERR_DONT_FORK_NEW ? IS_OLD
           : err == EOPNOTSUPP || err == ENOSYS       ? IS_OLD
                                                      : IS_LOST;
}

static const char *const ends[] = {
    [IS_NEW] = "",
    [IS_NEW_BUT] = ". The MR was registered anew, but forked children stay without its old memory",
    [IS_OLD] = ". The MR stays as it was",
    [IS_LOST] = ". Nothing is known of the MR any more, so it was closed",
    [IS_STUCK] =
        ". Nothing is known of the MR any more, and it can't be closed now: close it later",
};

/* Closes an MR of which nothing is known. If that fails, the device may use either memory, so both
 * stay pinned: the old until a later close() succeeds, the new for good. */
static outcome give_up(cqn_mr *self, change *c)
{
    if (cqn_close(&self->base, false) == 0) {
        return IS_LOST;
    }
    PyErr_Clear();
    c->memory = (cqn_memory){.addr = NULL};
    return IS_STUCK;
}

static PyObject *carry_out(cqn_mr *self, change *c)
{
    struct ibv_mr *handle = self->base.handle;
    cqn_object *const pd = c->pd == NULL ? NULL : CQN_OBJ(c->pd);
    struct ibv_pd *const pd_handle = pd == NULL ? NULL : pd->handle;
    const int access = c->flags & IBV_REREG_MR_CHANGE_ACCESS ? (int)c->access : 0;
    const cqn_memory memory = c->memory;
    int result, err;
    self->base.changes++;
    self->base.closing++;
    if (pd != NULL) {
        cqn_enter(pd);
    }
    CQN_IN_KERNEL(&self->base, errno = 0; result = ibv_rereg_mr(handle, c->flags, pd_handle,
                                                                memory.addr, memory.length, access);
                  err = errno);
    if (pd != NULL) {
        cqn_leave(pd);
    }
    self->base.closing--;
    outcome out = outcome_of(result, err);
    /* What was made before fits again if nothing has changed. */
    self->base.changes += out == IS_OLD ? UINT32_MAX : 1;
    if (out <= IS_NEW_BUT) {
        become(self, c);
    }
    if (out == IS_NEW) {
        Py_RETURN_NONE;
    }
    out = out == IS_LOST ? give_up(self, c) : out;
    cqn_mr_refuse(self->base.state, err, "ibv_rereg_mr",
                  c->buffer != NULL ? &memory : &self->memory, c->access, ends[out]);
    return NULL;
}

/* The new buffer is taken before the call, which can sleep, and the old one released after it. */
CQN_RARE PyObject *cqn_mr_rereg(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"buffer", "pd", "access", NULL};
    cqn_mr *self = (cqn_mr *)op;
    PyObject *in[3] = {NULL, NULL, NULL}, *result = NULL;
    change c;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("rereg", names, 1, 0, args, nargs, kwnames, in) < 0 || parse(self, in, &c) < 0 ||
        check(self, &c) < 0) {
        return NULL;
    }
    /* A device that can't page would fail in a way after which nothing is known of the MR. */
    if (c.access & ~self->access & IBV_ACCESS_ON_DEMAND &&
        cqn_check_odp(&self->base, IBV_ODP_SUPPORT) < 0) {
        return NULL;
    }
    /* That, and taking the user's buffer, can run Python code: so all is looked at once more. */
    if ((c.buffer == NULL || cqn_memory_take(&c.memory, c.buffer, c.access) == 0) &&
        check(self, &c) == 0) {
        result = carry_out(self, &c);
    }
    PyObject *error = cqn_take_exception();
    cqn_memory_drop(&c.memory);
    cqn_put_exception(error);
    return result;
}

const char cqn_mr_rereg_doc[] =
    "rereg($self, /, buffer=None, *, pd=None, access=None)\n--\n\n"
    "Register it anew: over another `buffer` or so many bytes of its own, in another `pd`, or with "
    "other `access`; what is not given stays.\n\n"
    "The keys may be others afterwards, and what was sliced before, or built as a SendWR or "
    "RecvWR, is refused: slice it again. The new buffer is pinned, and the old one released once "
    "the device is done with it. BusyError while a work request in flight or a bound window needs "
    "the MR, BufferError for a new buffer while there are memoryviews. After VerbsError the text "
    "says whether the MR is as before, or was closed, since nothing is known of it then; "
    "EOPNOTSUPP where the device has no such verb changes nothing.\n\n"
    "Wraps ibv_rereg_mr(3).";

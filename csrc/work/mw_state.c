/* SPDX-License-Identifier: MIT */
/*
 * The effects of work requests on memory windows; the type is in verbs/mw.c.
 *
 * A bind takes effect here when its completion is polled. A type 2 window is bound through one
 * queue pair, and uses that from the moment the bind is posted, because a device may never finish
 * destroying a queue pair that has a window. A bind whose completion never arrives, because its
 * queue pair was reset or closed, counts as carried out.
 */

#include "work/qp.h"

/* Returns the index of the MR in `uses`, after the PD and, for type 2, the QP. */
static size_t mr_slot(const cqn_mw *self)
{
    return self->type == IBV_MW_TYPE_2 ? 2 : 1;
}

/* Releases the QP when nothing is bound through it any more. */
static void release_qp_of_window(cqn_mw *self, cqn_object **deferred)
{
    if (self->type == IBV_MW_TYPE_2 && self->binds == 0 && self->base.uses[2] == NULL) {
        cqn_use(&self->base, 1, NULL, deferred);
    }
}

int cqn_mw_check(const cqn_mw *self, const cqn_qp *qp)
{
    const cqn_object *through = self->type == IBV_MW_TYPE_2 ? self->base.uses[1] : NULL;
    if (through != NULL && through != &qp->base) {
        PyErr_Format(PyExc_ValueError,
                     "mw is bound through QP %u: invalidate it there, and poll the completion, "
                     "before it is bound through QP %u",
                     (unsigned)((const cqn_qp *)through)->qp_num, (unsigned)qp->qp_num);
        return -1;
    }
    return 0;
}

void cqn_mw_posted(cqn_mw *self, cqn_qp *qp, uint32_t rkey)
{
    struct ibv_mw *mw = self->base.handle;
    if (self->type == IBV_MW_TYPE_2 && self->base.uses[1] == NULL) {
        cqn_use(&self->base, 1, &qp->base, NULL);
    }
    if (self->gone_rkey == rkey) {
        self->gone_rkey = ~rkey; /* keys are reused: that was an earlier bind */
    }
    self->binds++;
    self->rkey = mw->rkey = rkey;
}

void cqn_mw_bound(cqn_mw *self, cqn_object *mr, uint32_t rkey, bool ok, cqn_object **deferred)
{
    struct ibv_mw *mw = self->base.handle;
    self->binds--;
    if (mw == NULL) {
        return; /* closed, or being closed */
    }
    if (ok) {
        self->bound_rkey = rkey;
        cqn_use(&self->base, mr_slot(self), rkey == self->gone_rkey ? NULL : mr, deferred);
    }
    if (self->binds == 0) {
        self->rkey = mw->rkey = self->bound_rkey; /* a failed bind leaves no key */
        release_qp_of_window(self, deferred);
    }
}

/* If the completion of the bind was not polled yet, the key is remembered, and the window is
 * unbound when it is polled. */
static void unbind_invalidated(cqn_mw *self, uint32_t rkey, cqn_object **deferred)
{
    if (self->bound_rkey != rkey) {
        self->gone_rkey = rkey;
    }
    else if (self->base.uses[2] != NULL) {
        cqn_use(&self->base, 2, NULL, deferred);
        release_qp_of_window(self, deferred);
    }
}

void cqn_mw_invalidated(cqn_context *ctx, uint32_t rkey, cqn_object **deferred)
{
    PyTypeObject *type = ctx->base.state->MW;
    for (cqn_object *o = ctx->mws > 0 ? ctx->first[CQN_RANK_OTHER] : NULL; o != NULL; o = o->next) {
        cqn_mw *self = (cqn_mw *)o;
        if (PyObject_TypeCheck(o, type) && o->handle != NULL && self->type == IBV_MW_TYPE_2 &&
            (self->bound_rkey == rkey || self->rkey == rkey)) {
            unbind_invalidated(self, rkey, deferred);
            return;
        }
    }
}

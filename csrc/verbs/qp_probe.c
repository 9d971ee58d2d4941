/* SPDX-License-Identifier: MIT */
/*
 * Asking whether the peer of a queue pair still lives, while nothing is sent: an RDMA write of
 * nothing, whose completion no program sees. When it is to be asked, and what follows from silence,
 * is Python's to say, in cqnotify/cm/_keepalive.py.
 */

#include "await/engine.h"
#include "verbs/qp.h"
#include "work/wr.h"

/* Takes what has completed from the CQ, for whom it is. Runs Python code. -1 with an exception. */
static int settle_sends(const cqn_qp *self)
{
    cqn_cq *cq = (cqn_cq *)Py_NewRef((PyObject *)self->send_cq);
    cqn_object *trash = NULL;
    int rc = cq->base.handle == NULL ? 0 : cqn_cq_settle(cq, &trash);
    if (rc == 0) {
        rc = cqn_routed(cq);
    }
    cqn_trash_empty(trash);
    Py_DECREF(cq);
    return rc;
}

const char cqn_qp_probe_doc[] =
    "_probe($self, /)\n--\n\n"
    "Ask the peer for a sign of life, unless sends are under way.\n\n"
    "'posted': it is asked; it had answered before. 'unanswered': it has not answered yet. 'busy': "
    "sends are under way. 'failed': it will not answer.";

static const char *known_of(const cqn_wr_queue *sq)
{
    return sq->probe == CQN_PROBE_POSTED   ? "unanswered"
           : sq->probe == CQN_PROBE_FAILED ? "failed"
           : sq->requests > 0              ? "busy"
                                           : NULL;
}

PyObject *cqn_qp_probe(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    if (cqn_open(&self->base) == NULL || (self->sq->requests > 0 && settle_sends(self) < 0) ||
        cqn_open(&self->base) == NULL) {
        return NULL;
    }
    const char *known = known_of(self->sq);
    if (known == NULL && cqn_post_probe(self) < 0) {
        return NULL;
    }
    return PyUnicode_FromString(known != NULL ? known : "posted");
}

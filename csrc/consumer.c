/* SPDX-License-Identifier: MIT */
/*
 * The consumer of a CQ: who gets its completions while he lives, and hands them
 * on to those who wait for them, as an AsyncCQ does.
 *
 * The CQ knows him weakly. He is asked by poll(), so that a program that polls
 * takes no completion away from a task that awaits it, and is told when work
 * requests may have gone for good without a completion. Both are done last of
 * all in a call, since his code can close everything that the call works with.
 */

#include "core.h"

const char cqn_cq_set_consumer_doc[] =
    "set_consumer($self, consumer, /)\n--\n\n"
    "Let all completions go to `consumer`, which is held weakly; None ends it.\n\n"
    "While it lives, poll() returns consumer.poll(max_entries, spin=spin), and only take() gets "
    "completions from the CQ. consumer.qp_changed(qp) is called when a QP of this CQ was moved to "
    "RESET, SQE or ERR by modify(), and when it was closed: its requests may be gone. "
    "consumer.on_event() is called by CompletionChannel.dispatch(), which also acknowledges the "
    "events that it read, many at once, the last of them when the consumer changes. An exception "
    "in either is reported as unraisable. ValueError if "
    "the CQ has another consumer.";

PyObject *cqn_consumer_if_alive(cqn_cq *cq)
{
    PyObject *consumer;
#if PY_VERSION_HEX >= 0x030D0000
    (void)PyWeakref_GetRef(cq->consumer, &consumer); /* it fails only if that is no reference */
#else
    consumer = PyWeakref_GetObject(cq->consumer);
    consumer = consumer == Py_None ? NULL : Py_XNewRef(consumer);
#endif
    if (consumer == NULL) {
        Py_CLEAR(cq->consumer);
    }
    return consumer;
}

PyObject *cqn_cq_set_consumer(PyObject *op, PyObject *consumer)
{
    CQN_LOCKED;
    cqn_cq *self = (cqn_cq *)op;
    if (cqn_open(&self->base) == NULL) {
        return NULL;
    }
    PyObject *reference = NULL;
    if (consumer != Py_None) {
        reference = PyWeakref_NewRef(consumer, NULL); /* it can run the garbage collector */
        if (reference == NULL || cqn_open(&self->base) == NULL) {
            Py_XDECREF(reference);
            return NULL;
        }
    }
    PyObject *present = cqn_consumer_of(self);
    bool taken = reference != NULL && present != NULL && present != consumer;
    Py_XDECREF(present);
    if (taken) {
        Py_DECREF(reference);
        PyErr_SetString(PyExc_ValueError, "this CQ has an open AsyncCQ already");
        return NULL;
    }
    cqn_cq_ack_dispatched(self);
    self->woken = self->most = 0;
    Py_XSETREF(self->consumer, reference);
    Py_RETURN_NONE;
}

PyObject *cqn_consumer_poll(PyObject *consumer, uint64_t max, double spin)
{
    PyObject *poll = PyObject_GetAttrString(consumer, "poll");
    PyObject *args = poll == NULL ? NULL : Py_BuildValue("(K)", (unsigned long long)max);
    PyObject *kwargs = args == NULL ? NULL : Py_BuildValue("{s:d}", "spin", spin);
    PyObject *list = NULL;
    if (kwargs != NULL) {
        CQN_UNLOCKED(list = PyObject_Call(poll, args, kwargs));
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(poll);
    return list;
}

/* Tells those of both CQs, once if they are the same, that work requests of this
 * QP may be gone. Nobody is told of one that is past saving, being deallocated,
 * nor of one that could not be made, whose exception is on its way. */
void cqn_consumers_tell(cqn_qp *qp)
{
    if (cqn_forked(&qp->base) || PyErr_Occurred() || !cqn_try_ref(&qp->base)) {
        return;
    }
    PyObject *consumers[2] = {cqn_consumer_of(qp->send_cq), cqn_consumer_of(qp->recv_cq)};
    if (consumers[0] == consumers[1]) {
        Py_CLEAR(consumers[1]);
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(consumers); i++) {
        if (consumers[i] == NULL) {
            continue;
        }
        PyObject *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(consumers[i], "qp_changed", "O", qp));
        if (result == NULL) {
            CQN_UNLOCKED(PyErr_WriteUnraisable(consumers[i]));
        }
        Py_XDECREF(result);
        Py_DECREF(consumers[i]);
    }
    Py_DECREF(qp);
}

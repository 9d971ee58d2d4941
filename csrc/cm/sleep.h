/* SPDX-License-Identifier: MIT */
/* One sleep of one task, as a part of the awaited object. */
#ifndef CQN_CM_SLEEP_H
#define CQN_CM_SLEEP_H

#include "cm/cm.h"

/* A deadline that never comes; deadlines are seconds of the monotonic clock. */
#define CQN_CM_NEVER Py_HUGE_VAL

typedef struct {
    PyObject *wakeup;   /* wakes the task; NULL: it does not sleep */
    PyObject *iterator; /* for a library other than asyncio, or NULL */
    PyObject *timer;    /* asyncio's, or NULL */
} cqn_cm_sleep;

static inline double cqn_cm_now(void)
{
    return (double)cqn_now_ns() * 1e-9;
}

/* Creates the wakeup, which can be woken from here on; the deadline `end` wakes it, too. Returns -1
 * with an exception. */
int cqn_cm_sleep_prepare(cqn_cm_sleep *self, cqn_cm_channel *channel, double end);

/* PYGEN_NEXT: the task yields to its loop; PYGEN_RETURN: it need not. */
PySendResult cqn_cm_sleep_begin(cqn_cm_sleep *self, PyObject **result);

/* Called when the loop runs the task again. PYGEN_RETURN: the sleep is over. */
PySendResult cqn_cm_sleep_resume(cqn_cm_sleep *self, PyObject *value, PyObject **result);

/* throw() of the task. Returns what it yields, or NULL with an exception. */
PyObject *cqn_cm_sleep_throw(cqn_cm_sleep *self, PyObject *const *args, Py_ssize_t nargs);

/* close() of the task. Returns -1 with an exception. */
int cqn_cm_sleep_close(cqn_cm_sleep *self);

/* Ends the sleep, for any reason. Keeps the current exception. */
void cqn_cm_sleep_end(cqn_cm_sleep *self);

static inline int cqn_cm_sleep_traverse(const cqn_cm_sleep *self, visitproc visit, void *arg)
{
    Py_VISIT(self->wakeup);
    Py_VISIT(self->iterator);
    Py_VISIT(self->timer);
    return 0;
}

static inline void cqn_cm_sleep_clear(cqn_cm_sleep *self)
{
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->wakeup);
}

#endif

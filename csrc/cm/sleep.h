/* SPDX-License-Identifier: MIT */
/* One sleep of one task, as a part of what it awaits. */
#ifndef CQN_CM_SLEEP_H
#define CQN_CM_SLEEP_H

#include "cm/cm.h"

/* By the monotonic clock, in seconds; what has no end ends then. */
#define CQN_CM_NEVER Py_HUGE_VAL

typedef struct {
    PyObject *wakeup;   /* what wakes it; NULL: it does not sleep */
    PyObject *iterator; /* what a task of another library than asyncio sleeps on, or NULL */
    PyObject *timer;    /* of asyncio, or NULL */
} cqn_cm_sleep;

static inline double cqn_cm_now(void)
{
    return (double)cqn_now_ns() * 1e-9;
}

/* Makes what wakes it, which can be woken from now on, also at `end`. -1 with an exception. */
int cqn_cm_sleep_prepare(cqn_cm_sleep *self, cqn_cm_channel *channel, double end);

/* The task yields to its loop: PYGEN_NEXT; PYGEN_RETURN: it need not. */
PySendResult cqn_cm_sleep_begin(cqn_cm_sleep *self, PyObject **result);

/* The loop brings the task back. PYGEN_RETURN: the sleep is over. */
PySendResult cqn_cm_sleep_resume(cqn_cm_sleep *self, PyObject *value, PyObject **result);

/* throw() of the task: what it yields, or NULL with an exception. */
PyObject *cqn_cm_sleep_throw(cqn_cm_sleep *self, PyObject *const *args, Py_ssize_t nargs);

/* close() of the task. -1 with an exception. */
int cqn_cm_sleep_close(cqn_cm_sleep *self);

/* It is over, whatever has ended it. Keeps the exception that is set. */
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

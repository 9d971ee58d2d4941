/* SPDX-License-Identifier: MIT */
/*
 * One sleep of one task: on a Wakeup for asyncio, otherwise on an object that the event loop
 * creates (aio/_trio.py).
 */

#include "cm/sleep.h"
#include "await/coroutine.h"
#include "await/wakeup.h"

static int start_timer(cqn_cm_sleep *self, PyObject *raw_loop, double left)
{
    PyObject *wake = PyObject_GetAttrString(self->wakeup, "wake"), *timer = NULL;
    if (wake != NULL) {
        CQN_UNLOCKED(timer = PyObject_CallMethod(raw_loop, "call_later", "dO", left, wake));
        Py_DECREF(wake);
    }
    self->timer = timer;
    return timer == NULL ? -1 : 0;
}

static int prepare_of_asyncio(cqn_cm_sleep *self, const cqn_cm_channel *channel, double left)
{
    self->wakeup = cqn_wakeup_new(channel->root.base.state, channel->raw_loop, channel->done);
    return self->wakeup == NULL                                                    ? -1
           : left < CQN_CM_NEVER && start_timer(self, channel->raw_loop, left) < 0 ? -1
                                                                                   : 0;
}

static int prepare_of_another(cqn_cm_sleep *self, const cqn_cm_channel *channel, double left)
{
    PyObject *loop = Py_NewRef(channel->loop), *wakeup, *iterator = NULL;
    CQN_UNLOCKED(wakeup = PyObject_CallMethod(loop, "wakeup", NULL));
    self->wakeup = wakeup;
    if (wakeup != NULL && left < CQN_CM_NEVER) {
        CQN_UNLOCKED(iterator = PyObject_CallMethod(loop, "sleep", "Od", wakeup, left));
    }
    else if (wakeup != NULL) {
        CQN_UNLOCKED(iterator = PyObject_CallMethod(wakeup, "__await__", NULL));
    }
    Py_DECREF(loop);
    self->iterator = iterator;
    return iterator == NULL ? -1 : 0;
}

int cqn_cm_sleep_prepare(cqn_cm_sleep *self, cqn_cm_channel *channel, double end)
{
    const double left = end == CQN_CM_NEVER ? end : Py_MAX(end - cqn_cm_now(), 0);
    const int rc = channel->raw_loop != NULL ? prepare_of_asyncio(self, channel, left)
                                             : prepare_of_another(self, channel, left);
    if (rc < 0) {
        cqn_cm_sleep_end(self);
    }
    return rc;
}

PySendResult cqn_cm_sleep_begin(cqn_cm_sleep *self, PyObject **result)
{
    if (self->iterator != NULL) {
        return cqn_cm_sleep_resume(self, Py_None, result);
    }
    cqn_wakeup_yield(self->wakeup);
    *result = Py_NewRef(self->wakeup);
    return PYGEN_NEXT;
}

PySendResult cqn_cm_sleep_resume(cqn_cm_sleep *self, PyObject *value, PyObject **result)
{
    return self->iterator == NULL ? PYGEN_RETURN : cqn_send_into(self->iterator, value, result);
}

PyObject *cqn_cm_sleep_throw(cqn_cm_sleep *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (self->iterator != NULL) {
        return cqn_throw_into(self->iterator, args, nargs);
    }
    cqn_raise_given(args, nargs);
    return NULL;
}

int cqn_cm_sleep_close(cqn_cm_sleep *self)
{
    if (self->iterator == NULL) {
        return 0;
    }
    PyObject *iterator = Py_NewRef(self->iterator), *result;
    CQN_UNLOCKED(result = PyObject_CallMethod(iterator, "close", NULL));
    Py_DECREF(iterator);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

void cqn_cm_sleep_end(cqn_cm_sleep *self)
{
    PyObject *timer = self->timer;
    self->timer = NULL;
    if (timer != NULL) {
        PyObject *pending = cqn_take_exception(), *result;
        CQN_UNLOCKED(result = PyObject_CallMethod(timer, "cancel", NULL));
        if (result == NULL) {
            PyErr_WriteUnraisable(timer);
        }
        Py_XDECREF(result);
        Py_DECREF(timer);
        cqn_put_exception(pending);
    }
    cqn_cm_sleep_clear(self);
}

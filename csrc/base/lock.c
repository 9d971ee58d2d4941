/* SPDX-License-Identifier: MIT */
/* The lock of lock.h, and its state in a forked child. All interpreters of the process share it. */

#include "base/lock.h"

#ifdef Py_GIL_DISABLED

cqn_half cqn_halves[CQN_HALVES];
_Thread_local cqn_locks cqn_locks_held;
static uint8_t next_half; /* guarded by the lock */

uint8_t cqn_next_half(void)
{
    return next_half++ % CQN_HALVES;
}

/* CPython forks while no other thread runs, so no thread is inside a section. A half may still have
 * been handed to a waiting thread that does not exist in the child. */
static void free_in_child(void)
{
    for (int i = 0; i < CQN_HALVES; i++) {
        if (!(cqn_locks_held.halves & 1 << i)) {
            memset(&cqn_halves[i].mutex, 0, sizeof(cqn_halves[i].mutex));
        }
    }
}

/* Called by each interpreter that imports the module; a repeated registration is harmless. */
int cqn_lock_init(void)
{
    errno = pthread_atfork(NULL, NULL, free_in_child);
    return errno == 0 ? 0 : (PyErr_SetFromErrno(PyExc_OSError), -1);
}

#endif

PyObject *cqn_call_method(PyObject *op, const char *method, PyObject *argument)
{
    PyObject *result;
    CQN_UNLOCKED(result = PyObject_CallMethod(op, method, argument ? "O" : NULL, argument));
    return result;
}

int cqn_do_method(PyObject *op, const char *method, PyObject *argument)
{
    PyObject *result = cqn_call_method(op, method, argument);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

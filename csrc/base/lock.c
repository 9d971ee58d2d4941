/* SPDX-License-Identifier: MIT */
/* The lock of lock.h, and its state in a forked child. It has no owner: all interpreters of the
 * process share it. */

#include "base/lock.h"

#ifdef Py_GIL_DISABLED

PyMutex cqn_lock;
_Thread_local unsigned cqn_sections; /* sections that this thread is in and has not suspended */

/* CPython forks when no other thread runs, so no thread is in a section; but the lock may have been
 * handed to a thread that waited for it, and that the child does not have. */
static void free_in_child(void)
{
    if (cqn_sections == 0) {
        memset(&cqn_lock, 0, sizeof(cqn_lock));
    }
}

/* For each interpreter that imports the module; doing it again is harmless. */
int cqn_lock_init(void)
{
    errno = pthread_atfork(NULL, NULL, free_in_child);
    return errno == 0 ? 0 : (PyErr_SetFromErrno(PyExc_OSError), -1);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Whether a fork leaves registered memory alone. The kernel copies pages that both processes have
 * when one of them writes; where it copies those that a device works with only then, the parent can
 * be the one that gets the copy, and the device goes on with pages that the parent no longer sees.
 * Newer kernels copy them at the fork, for the child. On others the library can keep them out of
 * children, if it is told to before the first of them is registered.
 *
 * That a forked child is refused the parent's objects is in base/object.h and base/close.c.
 */

#include "verbs/verbs.h"

typedef enum ibv_fork_status (*asker)(void);

/* ibv_is_fork_initialized(), which is newer than the library must be; or NULL. */
static asker find_asker(void)
{
    void *found = cqn_library_find("ibv_is_fork_initialized");
    asker ask;
    memcpy(&ask, &found, sizeof(ask)); /* ISO C has no cast for it */
    return ask;
}

/* Of a library that can't tell, what came of ours. */
static enum ibv_fork_status ask_status(const cqn_state *st)
{
    const asker ask = find_asker();
    return ask != NULL ? ask() : st->fork_initialized ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

static int warn_of_fork(int err)
{
    return PyErr_WarnFormat(
        PyExc_RuntimeWarning, 1,
        "ibv_fork_init: %s: on this kernel a fork can make the device and this process work with "
        "different pages of registered memory. Open the first Context before anybody else "
        "registers "
        "memory, or set RDMAV_FORK_SAFE=1 in the environment; else do not fork, or use Linux 5.13 "
        "or later",
        strerror(err));
}

/* Before the first device is opened. With the GIL: another thread must not open one meanwhile. */
int cqn_prepare_for_fork(cqn_state *st)
{
    if (st->fork_prepared) {
        return 0;
    }
    st->fork_prepared = true;
    if (ask_status(st) != IBV_FORK_DISABLED) {
        return 0;
    }
    const int err = ibv_fork_init();
    st->fork_initialized = err == 0;
    return err == 0 ? 0 : warn_of_fork(err);
}

PyObject *cqn_fork_status(PyObject *module, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    return cqn_load_verbs(st) < 0 ? NULL : PyLong_FromLong(ask_status(st));
}

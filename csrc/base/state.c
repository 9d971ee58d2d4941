/* SPDX-License-Identifier: MIT */
/*
 * The state of the module, and how types find it.
 *
 * Each interpreter that imports the module has one state. It is created and freed here; module.c
 * fills it, and its fields belong to the folders above.
 */

#include "base/state.h"
#include <sys/mman.h>
#include <unistd.h>

const char cqn_module_name[] = "cqnotify._core";

static bool is_ours(PyObject *module)
{
    const PyModuleDef *definition = PyModule_GetDef(module);
    return definition != NULL && definition->m_name == cqn_module_name;
}

cqn_state *cqn_state_of(PyTypeObject *type)
{
    for (PyTypeObject *t = type; t != NULL; t = t->tp_base) {
        if (!PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE)) {
            continue;
        }
        PyObject *module = ((PyHeapTypeObject *)t)->ht_module;
        if (module != NULL && is_ours(module)) {
            return PyModule_GetState(module);
        }
    }
    Py_UNREACHABLE();
}

/* The page makes the check cheap that every call makes: is this the process that opened the
 * device? */
int cqn_state_watch_for_fork(cqn_state *st)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || madvise(p, page, MADV_WIPEONFORK) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        if (p != MAP_FAILED) {
            munmap(p, page);
        }
        return -1;
    }
    st->epoch = p;
    *st->epoch = st->last_epoch = 1;
    return 0;
}

/* Does nothing outside a forked child, or after its first object. */
void cqn_state_new_epoch(cqn_state *st)
{
    if (*st->epoch == 0) {
        *st->epoch = ++st->last_epoch;
        /* a thread of the parent may have held it */
        pthread_mutex_init(&st->idle_lock, NULL);
        pthread_cond_init(&st->idle, NULL);
        st->idle_sleepers = 0;
    }
}

void cqn_state_free(cqn_state *st)
{
    PyMem_Free(st->queues);
    if (st->epoch != NULL) {
        munmap((void *)st->epoch, (size_t)sysconf(_SC_PAGESIZE));
        st->epoch = NULL;
    }
}

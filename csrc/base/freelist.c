/* SPDX-License-Identifier: MIT */
/*
 * Freelists: memory of deallocated objects for new ones of the same type, because each message that
 * a task awaits creates and drops an Awaitable. Memory on a freelist holds no references and is
 * unknown to the garbage collector, and its reuse does not count as an allocation there.
 */

#include "base/freelist.h"

/* The GIL guards the lists; without a GIL objects are deallocated under no lock, so nothing is
 * kept. */
#ifdef Py_GIL_DISABLED
#define KEPT 0
#else
#define KEPT CQN_FREELIST_SIZE
#endif

/* AddressSanitizer reports accesses to an object on a freelist. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#endif

/* The newest entry comes first: it is most likely still in the cache. */
static PyObject *pop(cqn_freelist *list)
{
    PyObject *op = list->kept[--list->len];
    ASAN_UNPOISON_MEMORY_REGION(op, list->size);
    return op;
}

/* Zeroed and tracked, as tp_alloc() returns it. */
PyObject *cqn_freelist_alloc(cqn_freelist *list, PyTypeObject *type)
{
    if (list->len == 0) {
        return type->tp_alloc(type, 0);
    }
    PyObject *op = pop(list);
    memset((char *)op + sizeof(PyObject), 0, list->size - sizeof(PyObject));
    (void)PyObject_Init(op, type);
    PyObject_GC_Track(op);
    return op;
}

/* At the end of the interpreter the collector clears types, modules and objects in any order. The
 * list is part of the module's state, which is gone once the type no longer refers to the
 * module. */
static bool are_gone(PyTypeObject *type)
{
    return ((PyHeapTypeObject *)type)->ht_module == NULL;
}

void cqn_freelist_free(cqn_freelist *list, PyObject *op)
{
    if (are_gone(Py_TYPE(op)) || list->over || list->len == KEPT) {
        PyObject_GC_Del(op);
        return;
    }
    list->size = (size_t)Py_TYPE(op)->tp_basicsize;
    ASAN_POISON_MEMORY_REGION(op, list->size);
    list->kept[list->len++] = op;
}

void cqn_freelist_clear(cqn_freelist *list)
{
    list->over = true;
    while (list->len > 0) {
        PyObject_GC_Del(pop(list));
    }
}

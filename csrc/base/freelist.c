/* SPDX-License-Identifier: MIT */
/*
 * Memory of objects that were dropped, for the next ones of their type: a task that awaits makes
 * and drops a request for each message. Kept memory refers to nothing, and the garbage collector
 * does not know it; nor does it count it as new when it is used again.
 */

#include "base/freelist.h"

/* The GIL guards them; without one, objects are deallocated under no lock. */
#ifdef Py_GIL_DISABLED
#define KEPT 0
#else
#define KEPT CQN_FREELIST_SIZE
#endif

/* AddressSanitizer reports the use of an object that was dropped, even while its memory is kept. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void)(addr), (void)(size))
#endif

/* The latest first: it is most likely still in the cache. */
static PyObject *pop(cqn_freelist *list)
{
    PyObject *op = list->kept[--list->len];
    ASAN_UNPOISON_MEMORY_REGION(op, list->size);
    return op;
}

/* As tp_alloc(): zeroed, and known to the collector. */
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

/* The collector takes types, modules and objects apart in any order when the interpreter ends: the
 * list is part of the module's state, and the type no longer refers to the module. */
static bool are_gone(PyTypeObject *type)
{
    return ((PyHeapTypeObject *)type)->ht_module == NULL;
}

/* As tp_free(), for an object that the collector has not finalized. */
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

/* Before the type goes. */
void cqn_freelist_clear(cqn_freelist *list)
{
    list->over = true;
    while (list->len > 0) {
        PyObject_GC_Del(pop(list));
    }
}

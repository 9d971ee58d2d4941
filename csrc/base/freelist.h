/* SPDX-License-Identifier: MIT */
/* Freelists: memory of deallocated objects for new ones of the same type. */
#ifndef CQN_FREELIST_H
#define CQN_FREELIST_H

#include "base/python.h"

#define CQN_FREELIST_SIZE 32

typedef struct {
    PyObject *kept[CQN_FREELIST_SIZE];
    size_t len, size; /* `size` is the size of one object */
    bool over;
} cqn_freelist;

/* Like tp_alloc(), with memory of the list if it has any. */
PyObject *cqn_freelist_alloc(cqn_freelist *list, PyTypeObject *type);

/* Like tp_free(): keeps the memory of an object that holds no references any more, or frees it. The
 * collector must not have finalized the object. */
void cqn_freelist_free(cqn_freelist *list, PyObject *op);

/* Frees the list for good; called before its type is deallocated. */
void cqn_freelist_clear(cqn_freelist *list);

#endif

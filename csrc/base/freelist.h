/* SPDX-License-Identifier: MIT */
/* Memory of objects that were dropped, for the next ones of their type. */
#ifndef CQN_FREELIST_H
#define CQN_FREELIST_H

#include "base/python.h"

#define CQN_FREELIST_SIZE 32

typedef struct {
    PyObject *kept[CQN_FREELIST_SIZE];
    size_t len, size; /* the size is of each */
    bool over;
} cqn_freelist;

/* As tp_alloc(), from memory that was kept if there is some. */
PyObject *cqn_freelist_alloc(cqn_freelist *list, PyTypeObject *type);

/* As tp_free(), for an object without references of its own: its memory is kept, or freed. */
void cqn_freelist_free(cqn_freelist *list, PyObject *op);

/* Frees what is kept, and keeps no more: the type is about to go. */
void cqn_freelist_clear(cqn_freelist *list);

#endif

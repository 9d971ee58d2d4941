/* SPDX-License-Identifier: MIT */
/* Memory of objects that were dropped, for the next ones of their type. */
#ifndef CQN_FREELIST_H
#define CQN_FREELIST_H

#include "base/python.h"

#define CQN_SPARES 32

typedef struct {
    PyObject *kept[CQN_SPARES];
    size_t len, size; /* the size is of each */
    bool over;
} cqn_spares;

/* As tp_alloc(), from memory that was kept if there is some. */
PyObject *cqn_spares_alloc(cqn_spares *spares, PyTypeObject *type);

/* As tp_free(), for an object without references of its own: its memory is kept, or freed. */
void cqn_spares_free(cqn_spares *spares, PyObject *op);

/* Frees what is kept, and keeps no more: the type is about to go. */
void cqn_spares_clear(cqn_spares *spares);

#endif

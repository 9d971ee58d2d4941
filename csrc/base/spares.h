/* SPDX-License-Identifier: MIT */
/* Memory of objects that were dropped, for the next ones of their type. */
#ifndef CQN_SPARES_H
#define CQN_SPARES_H

#include "base/python.h"

#define CQN_SPARES 32

typedef struct {
    PyObject *kept[CQN_SPARES];
    size_t len, size; /* the size is of each */
    bool over;
} cqn_spares;

PyObject *cqn_spares_alloc(cqn_spares *spares, PyTypeObject *type);
void cqn_spares_free(cqn_spares *spares, PyObject *op);
void cqn_spares_clear(cqn_spares *spares);

#endif

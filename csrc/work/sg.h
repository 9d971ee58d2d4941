/* SPDX-License-Identifier: MIT */
/* The memory of a work request, and the other objects that it needs. See sg.c. */
#ifndef CQN_WORK_SG_H
#define CQN_WORK_SG_H

#include "work/qp.h"

#define CQN_MAX_PINNED (CQN_MAX_SGE + 1) /* objects per request: MRs, and an AH */

/* A SendWR or RecvWR owns the arrays and the references in them; otherwise both are borrowed. */
typedef struct {
    struct ibv_sge *sge;
    cqn_object **pinned; /* must outlive the request; all on one PD */
    uint32_t num_sge, num_pinned;
    uint64_t length;
    uint32_t changes; /* sum of the `changes` of the pinned objects */
    bool writable;    /* the device may write to every MR */
    bool unreadable;  /* some MR's addresses are not those of this process */
    Py_buffer bytes;  /* the buffer of an INLINE send; obj == NULL: none */
} cqn_sg;

/* The arrays of the largest request, on the stack. */
typedef struct {
    struct ibv_sge sge[CQN_MAX_SGE];
    cqn_object *pinned[CQN_MAX_PINNED];
} cqn_sg_arrays;
#define CQN_SG_IN(arrays)                                                \
    {                                                                    \
        .sge = (arrays).sge, .pinned = (arrays).pinned, .writable = true \
    }

/* Finds the MR and the range of an item that is an SGE or an MR; borrowed. Returns 1; 0 if it is
 * neither; -1 with ValueError if its MR was re-registered since. */
int cqn_sg_locate(cqn_state *st, PyObject *item, cqn_mr **mr, uint64_t *addr, uint64_t *length);

/* Fills in the memory of a request from its argument: an item, a list of them, or None. Returns -1
 * with an exception. Runs no Python code. */
int cqn_sg_gather(cqn_sg *sg, cqn_state *st, PyObject *value);

/* The same from a buffer, for INLINE; cqn_sg_drop_bytes() releases it. Can run arbitrary code of
 * the exporter. */
int cqn_sg_gather_bytes(cqn_sg *sg, PyObject *buffer);

/* Adds an object that must outlive the request; borrowed. */
void cqn_sg_pin(cqn_sg *sg, cqn_object *object);

/* Copies the arrays to the heap and takes references; cqn_sg_free() undoes both. Returns -1 with an
 * exception. */
int cqn_sg_keep(cqn_sg *sg);

/* Gives a copied struct its own arrays and references. Returns -1 with an exception: nothing is
 * left to be freed. Can run arbitrary code if there is a buffer. */
int cqn_sg_copy(cqn_sg *sg);

/* Sets the memory of an unpickled request: its length, and a closed object of `type`, which every
 * queue refuses. Returns -1 with an exception. */
int cqn_sg_restore(cqn_sg *sg, PyTypeObject *type, uint64_t length);
void cqn_sg_drop_bytes(cqn_sg *sg);
void cqn_sg_free(cqn_sg *sg);
int cqn_sg_traverse(const cqn_sg *sg, visitproc visit, void *arg);

/* Raises the reason why a queue on this PD refuses the memory. Returns -1. */
int cqn_sg_refuse(const cqn_sg *sg, const cqn_object *owner, const cqn_object *pd,
                  uint32_t max_sge);

/* Returns the PD itself, or the PD of a parent domain; borrowed. It is open. */
static inline const cqn_object *cqn_root_pd(const cqn_object *pd)
{
    return pd->uses[0] == CQN_OBJ(pd->context) ? pd : pd->uses[0];
}

/* Whether a queue on this PD accepts the memory; cqn_sg_refuse() raises the reason. */
static inline bool cqn_sg_fits(const cqn_sg *sg, const cqn_object *pd, uint32_t max_sge)
{
    uint32_t changes = 0;
    for (uint32_t i = 0; i < sg->num_pinned; i++) {
        const cqn_object *object = sg->pinned[i];
        /* with the PD of an open queue, its context and process are right, too */
        if (object->handle == NULL || object->closing != 0 ||
            (object->uses[0] != pd && cqn_root_pd(object->uses[0]) != cqn_root_pd(pd))) {
            return false;
        }
        changes += object->changes;
    }
    return sg->num_sge <= max_sge && changes == sg->changes;
}

#endif

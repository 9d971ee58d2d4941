/* SPDX-License-Identifier: MIT */
/* Shared by the files of MR. */
#ifndef CQN_MR_H
#define CQN_MR_H

#include "verbs/verbs.h"

/* mr_memory.c */

/* Access flags that need writable memory. */
#define CQN_WRITING (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* Converts and checks the argument `access`; NULL is LOCAL_WRITE. Returns -1 with an exception. */
int cqn_mr_access(PyObject *value, unsigned int *access);

/* Returns -1 with VerbsError unless the device supports on-demand paging with the bits `needed`,
 * some of IBV_ODP_SUPPORT*. */
int cqn_check_odp(cqn_object *pd, uint64_t needed);

/* Returns -1 with TypeError if the buffer contains references to objects. */
int cqn_refuse_objects(PyObject *buffer, const char *name);

/* Acquires the user's buffer for a new MR, or maps memory if `buffer` is a length. Returns -1 with
 * an exception. Can run arbitrary code. */
int cqn_mr_acquire_memory(cqn_mr *mr, PyObject *buffer);

/* Registers the memory and adopts the handle. Returns the MR; NULL with an exception. */
PyObject *cqn_mr_register(cqn_mr *mr, cqn_object *pd);

/* Sets the handle and the keys of an MR. Returns the MR. */
PyObject *cqn_mr_adopt(cqn_mr *self, struct ibv_mr *mr);

/* Shared by all kinds of MR. */
void cqn_mr_after_destroy(cqn_object *mr);
int cqn_mr_clear(PyObject *mr);

/* Releases the memory unless the device or a memoryview still uses it. */
void cqn_mr_release_memory(cqn_mr *mr);

PyObject *cqn_mr_rereg(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* mr_foreign.c */
PyObject *cqn_mr_from_dm(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_from_dmabuf(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_from_handle(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_null(PyObject *type, PyObject *pd);

#endif

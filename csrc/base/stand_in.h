/* SPDX-License-Identifier: MIT */
/*
 * In the build of faults.h, a device that has what neither rxe nor siw has: its contexts are those
 * of a device that boasts. What it is asked for is noted for the tests to read, and done by means
 * of what the real device has, as far as messages are to come through.
 */
#ifndef CQN_STAND_IN_H
#define CQN_STAND_IN_H

#include <Python.h>
#include <infiniband/verbs.h>
#include <stdbool.h>

PyObject *cqn_stand_in_calls(PyObject *module, PyObject *unused);
PyObject *cqn_stand_in_complete(PyObject *module, PyObject *args);

/* A context that was opened gets the functions that its device lacks. */
void cqn_stand_in(struct ibv_context *context);
bool cqn_is_stand_in(const struct ibv_context *context);
void cqn_stand_in_attr(struct ibv_device_attr_ex *attr);

/* What the calls become, for its contexts; those of others are made as they are. */
struct ibv_qp *cqn_stand_in_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int cqn_stand_in_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int cqn_stand_in_destroy_qp(struct ibv_qp *qp);
int cqn_stand_in_destroy_srq(struct ibv_srq *srq);
int cqn_stand_in_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_stand_in_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_stand_in_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);

/* Notes a call: what it returned or was about, its struct, and what that points to, or text.
 * Returns `result`. */
void *cqn_stand_in_note(const char *verb, void *result, const void *data, size_t size,
                        const void *more, size_t more_size);

/* ---- stand_in_memory.c ---- */

PyObject *cqn_rereg_returns(PyObject *module, PyObject *args);
void cqn_stand_in_memory(struct verbs_context *ops);

int cqn_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                 int access);
struct ibv_mr *cqn_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access);
int cqn_stand_in_dealloc_pd(struct ibv_pd *pd);
struct ibv_context *cqn_import_device(int fd);
struct ibv_pd *cqn_import_pd(struct ibv_context *context, uint32_t handle);
void cqn_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *cqn_import_mr(struct ibv_pd *pd, uint32_t handle);
void cqn_unimport_mr(struct ibv_mr *mr);
struct ibv_dm *cqn_import_dm(struct ibv_context *context, uint32_t handle);
void cqn_unimport_dm(struct ibv_dm *dm);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The fake device, which has the features that both rxe and siw lack. Its contexts are contexts of
 * a real device, opened while devices are faked (features.h). It records each call for the tests,
 * and executes it with the real device, so messages are really transferred.
 */
#ifndef CQN_FAKE_DEVICE_H
#define CQN_FAKE_DEVICE_H

#include "base/python.h"

PyObject *cqn_fake_calls(PyObject *module, PyObject *unused);
PyObject *cqn_fake_complete(PyObject *module, PyObject *args);

/* Adds the functions that its device lacks to an open context. */
void cqn_make_fake(struct ibv_context *context);
bool cqn_is_fake(const struct ibv_context *context);
void cqn_fake_attr(struct ibv_device_attr_ex *attr);

void *cqn_fake_alloc(size_t size); /* zeroed memory; without any, the tests end */

/* Replacements of calls, for its contexts; other contexts get the real calls. */
struct ibv_qp *cqn_fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int cqn_fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int cqn_fake_destroy_qp(struct ibv_qp *qp);
int cqn_fake_destroy_srq(struct ibv_srq *srq);
int cqn_fake_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_fake_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_fake_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);

/* Records a call: its result or object, its struct, and the data of a pointer in it, or text.
 * Returns `result`. */
void *cqn_fake_note(const char *verb, void *result, const void *data, size_t size, const void *more,
                    size_t more_size);

/* ---- fake_memory.c ---- */

PyObject *cqn_rereg_returns(PyObject *module, PyObject *args);
void cqn_make_fake_memory(struct ibv_context *context);

int cqn_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                 int access);
struct ibv_mr *cqn_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access);
int cqn_fake_dealloc_pd(struct ibv_pd *pd);
struct ibv_pd *cqn_import_pd(struct ibv_context *context, uint32_t handle);
void cqn_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *cqn_import_mr(struct ibv_pd *pd, uint32_t handle);
void cqn_unimport_mr(struct ibv_mr *mr);
struct ibv_dm *cqn_import_dm(struct ibv_context *context, uint32_t handle);
void cqn_unimport_dm(struct ibv_dm *dm);

#endif

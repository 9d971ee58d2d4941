/* SPDX-License-Identifier: MIT */
/*
 * The fake device: one that has what neither rxe nor siw has. Its contexts are those of a real
 * device that were opened while devices are faked (features.h). It notes each call for the tests to
 * read, and does what was asked by means of the real device, so that messages come through.
 */
#ifndef CQN_FAKE_DEVICE_H
#define CQN_FAKE_DEVICE_H

#include "base/python.h"

PyObject *cqn_fake_calls(PyObject *module, PyObject *unused);
PyObject *cqn_fake_complete(PyObject *module, PyObject *args);

/* Gives a context that was opened the functions that its device lacks. */
void cqn_make_fake(struct ibv_context *context);
bool cqn_is_fake(const struct ibv_context *context);
void cqn_fake_attr(struct ibv_device_attr_ex *attr);

/* What the calls become, for its contexts; those of others are made as they are. */
struct ibv_qp *cqn_fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int cqn_fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int cqn_fake_destroy_qp(struct ibv_qp *qp);
int cqn_fake_destroy_srq(struct ibv_srq *srq);
int cqn_fake_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_fake_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int cqn_fake_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);

/* Notes a call: what it returned or was about, its struct, and what that points to, or text.
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

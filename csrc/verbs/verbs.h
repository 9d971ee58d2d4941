/* SPDX-License-Identifier: MIT */
/*
 * The types of the verbs: one file each, above the mechanisms that they have in common with others.
 *
 *   device.c, context.c   devices and what is open; netdev.c the names of network devices
 *   pd.c, mr.c, sge.c     memory; mr_memory.c, implicit_mr.c below mr.c
 *   mw.c, ah.c            windows, address handles
 *   channel.c, cq.c       events and completions; cq_poll.c the methods that poll
 *   qp.c, srq.c           queues; mcast.c, atomic_write.c below qp.c
 *   fork.c                whether registered memory survives a fork
 *   inspect.c             what is open, for reports
 */
#ifndef CQN_VERBS_H
#define CQN_VERBS_H

#include "await/engine.h"
#include "notify/reports.h"
#include "work/wr.h"

extern PyType_Spec cqn_context_spec, cqn_pd_spec, cqn_mr_spec, cqn_sge_spec, cqn_channel_spec;
extern PyType_Spec cqn_cq_spec, cqn_srq_spec, cqn_qp_spec, cqn_ah_spec, cqn_mw_spec;
extern PyStructSequence_Desc cqn_cq_stats_desc;

/* atomic_write.c */
int cqn_check_atomic_write(cqn_object *pd);
struct ibv_qp *cqn_create_atomic_write_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* cq_poll.c */
PyObject *cqn_cq_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_poll_into(PyObject *self, PyObject *array);
PyObject *cqn_cq_poll_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);

/* device.c */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out);
extern const char cqn_no_device[];

/* fork.c */
int cqn_prepare_for_fork(cqn_state *st);
PyObject *cqn_fork_status(PyObject *module, PyObject *unused);

/* implicit_mr.c */
int cqn_check_odp(cqn_object *pd, uint64_t needed);
PyObject *cqn_mr_implicit(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_over(PyObject *self, PyObject *buffer);
extern const char cqn_mr_implicit_doc[], cqn_mr_over_doc[];

/* inspect.c */
PyObject *cqn_open_objects(PyObject *module, PyObject *context);
PyObject *cqn_known_async_events(PyObject *module, PyObject *context);

/* mcast.c */
PyObject *cqn_qp_attach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_qp_detach_mcast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
int cqn_qp_destroy_in_groups(struct ibv_qp *qp);
extern const char cqn_qp_attach_mcast_doc[], cqn_qp_detach_mcast_doc[];

/* mr_memory.c */
extern const cqn_kind cqn_mr_kind;
int cqn_mr_access(PyObject *value, unsigned int *access);
int cqn_mr_take_memory(cqn_mr *mr, PyObject *buffer);
PyObject *cqn_mr_register(cqn_mr *mr, cqn_object *pd);
void cqn_mr_after_destroy(cqn_object *mr);
int cqn_mr_clear(PyObject *mr);
void cqn_mr_release(cqn_mr *mr);

/* netdev.c: a socket to ask the names of network devices by, once it was needed */
typedef struct {
    int fd;
    bool is_open;
} cqn_netdev;
PyObject *cqn_netdev_name(cqn_netdev *self, uint32_t ifindex);
void cqn_netdev_close(cqn_netdev *self);

/* qp.c */
void cqn_qps_stop_sending(cqn_context *ctx);

/* sge.c */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The types of the verbs: one file each, above the mechanisms that they have in common with others.
 *
 *   device.c, context.c   devices and what is open; context_query.c what is asked of them, netdev.c
 *                         the names of network devices
 *   pd.c, mr.c, sge.c     memory; mr_memory.c, implicit_mr.c below mr.c
 *   mw.c, ah.c            windows, address handles
 *   channel.c, cq.c       events and completions; cq_create.c making a CQ, cq_poll.c the methods
 *                         that poll
 *   qp.c, srq.c           queues; qp_create.c, qp_modify.c, qp_close.c, qp_probe.c, mcast.c,
 *                         atomic_write.c below qp.c
 *   fork.c                whether registered memory survives a fork
 *   inspect.c             what is open, for reports
 */
#ifndef CQN_VERBS_H
#define CQN_VERBS_H

#include "await/await.h"
#include "notify/reports.h"
#include "work/wr.h"

extern PyType_Spec cqn_context_spec, cqn_pd_spec, cqn_mr_spec, cqn_sge_spec, cqn_channel_spec;
extern PyType_Spec cqn_cq_spec, cqn_srq_spec, cqn_qp_spec, cqn_ah_spec, cqn_mw_spec;
extern PyStructSequence_Desc cqn_cq_stats_desc;

/* atomic_write.c */

/* -1 with VerbsError if the device has no ATOMIC_WRITE. */
int cqn_check_atomic_write(cqn_object *pd);
struct ibv_qp *cqn_create_atomic_write_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* cq_create.c */
PyObject *cqn_cq_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Converts the argument `cqe`, which the device limits. -1 with an exception. */
int cqn_check_cqe(const cqn_context *ctx, PyObject *value, uint32_t *out);

/* cq_poll.c */
PyObject *cqn_cq_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_poll_into(PyObject *self, PyObject *array);
PyObject *cqn_cq_poll_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);

/* device.c */

/* Loads libibverbs if that was not done; -1 with VerbsError if it can't be. */
int cqn_load_verbs(cqn_state *st);

/* The module's list_devices(). */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);

/* Asks the device of an open object for all attributes, without the GIL: the object may be closed
 * after it. -1 with an exception. */
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out);

/* The module's why_no_device(): of a machine without a device, what it lacks and how to get it. */
PyObject *cqn_why_no_device(PyObject *module, PyObject *unused);

/* fork.c */

/* Before the first device is opened: makes registered memory survive a fork, where that is still
 * needed. -1 with an exception. */
int cqn_prepare_for_fork(cqn_state *st);
PyObject *cqn_fork_status(PyObject *module, PyObject *unused);

/* implicit_mr.c */

/* -1 with VerbsError if the device can't page on demand as `needed`, bits of IBV_ODP_SUPPORT*. */
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

/* Destroys a queue pair that may be in multicast groups; without the GIL. Returns an errno. */
int cqn_qp_destroy_in_groups(struct ibv_qp *qp);
extern const char cqn_qp_attach_mcast_doc[], cqn_qp_detach_mcast_doc[];

/* mr_memory.c */
extern const cqn_kind cqn_mr_kind;

/* Converts and checks the argument `access`; NULL is LOCAL_WRITE. -1 with an exception. */
int cqn_mr_access(PyObject *value, unsigned int *access);

/* Takes the user's buffer, which the MR owns from here on, or maps memory of its own, if that is
 * a length. -1 with an exception. Can run any code. */
int cqn_mr_take_memory(cqn_mr *mr, PyObject *buffer);

/* Registers the memory, and adopts the handle. Returns the MR, or NULL with an exception. */
PyObject *cqn_mr_register(cqn_mr *mr, cqn_object *pd);

/* What the kinds of MR have in common. */
void cqn_mr_after_destroy(cqn_object *mr);
int cqn_mr_clear(PyObject *mr);

/* Gives the memory back when neither the device nor a memoryview uses it any more. */
void cqn_mr_release(cqn_mr *mr);

/* netdev.c: a socket to ask the names of network devices by, once it was needed */
typedef struct {
    int fd;
    bool is_open;
} cqn_netdev;

/* The name of a network device as str; None: there is none of that index. */
PyObject *cqn_netdev_name(cqn_netdev *self, uint32_t ifindex);
void cqn_netdev_close(cqn_netdev *self);

/* qp_close.c */

/* Before a context closes all its queue pairs one after the other: none sends again meanwhile. */
void cqn_qps_stop_sending(cqn_context *ctx);

/* qp_modify.c */

/* Makes a transition, or sets attributes. -1 with an exception. Whoever moves a queue pair to a
 * state where its work requests fail tells the engines. */
int cqn_qp_carry_out(cqn_qp *qp, struct ibv_qp_attr *attr, int mask);

/* sge.c */

/* A new SGE over a range of an MR, which it holds. */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The types of the verbs: one file each, above the mechanisms that they have in common with others.
 *
 *   device.c, context.c   devices and what is open; context_query.c what is asked of them, netdev.c
 *                         the names of network devices
 *   pd.c, mr.c, sge.c     memory; mr_memory.c, mr_rereg.c, mr_foreign.c, implicit_mr.c below mr.c
 *   dm.c, domains.c       device memory; thread domains and parent domains
 *   mw.c, ah.c            windows, address handles
 *   channel.c, cq.c       events and completions; cq_create.c making a CQ, cq_poll.c the methods
 *                         that poll, tally.c what is counted
 *   qp.c, srq.c           queues; qp_create.c, qp_modify.c, qp_transitions.c, qp_close.c,
 *                         qp_probe.c, mcast.c, qp_ops.c, qp_ece.c below qp.c; srq_create.c,
 *                         srq_ops.c below srq.c
 *   xrcd.c                domains of XRC
 *   flow.c                rules for what packets a queue pair gets; flow_counters.c what
 *                         counts them
 *   wq.c, rwq_ind_table.c queues of receives, and tables of them, for RSS
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
extern PyType_Spec cqn_xrcd_spec, cqn_flow_spec, cqn_wq_spec, cqn_rwq_ind_table_spec;
extern PyType_Spec cqn_flow_counters_spec;
extern PyType_Spec cqn_dm_spec, cqn_td_spec, cqn_parent_domain_spec;
extern PyStructSequence_Desc cqn_cq_stats_desc;

/* qp_ops.c: `ops` are those of IBV_QP_EX_WITH_* that a queue pair must be made for. */

/* -1 with VerbsError if the device lacks one. It may take it all the same, and fail it later. */
int cqn_check_ops(cqn_object *pd, uint64_t ops);

/* Raises that the provider lacks one that the device has. */
void cqn_refuse_provider(cqn_object *qp, uint64_t ops);

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

/* The name that the kernel has for a device now; libibverbs' own where the kernel does not say. */
void cqn_device_name_now(const struct ibv_device *device, char name[IBV_SYSFS_NAME_MAX]);

/* The devices, for ibv_free_device_list(), and their number; NULL with an errno, which is ENOSYS
 * only where the kernel has no RDMA. Without the GIL, inside the library. */
struct ibv_device **cqn_device_list(int *n, int *err);

/* Raises another errno of that; NULL. */
void *cqn_device_list_error(cqn_state *st, int err);

/* What a machine without a device lacks, and how to get it: a str; and as the module's
 * why_no_device(). NULL with VerbsError where the kernel's folders can't be read. */
PyObject *cqn_no_device(cqn_state *st);
PyObject *cqn_why_no_device(PyObject *module, PyObject *unused);

/* dm.c */
typedef struct {
    cqn_object base;
    size_t length;
} cqn_dm;

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
PyObject *cqn_open_contexts(PyObject *module, PyObject *unused);
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

/* mr_foreign.c */
PyObject *cqn_mr_from_dm(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_from_dmabuf(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_from_handle(PyObject *type, PyObject *args, PyObject *kwargs);
PyObject *cqn_mr_null(PyObject *type, PyObject *pd);
extern const char cqn_mr_from_dm_doc[], cqn_mr_from_dmabuf_doc[], cqn_mr_from_handle_doc[];
extern const char cqn_mr_null_doc[];

/* mr_memory.c */
extern const cqn_kind cqn_mr_kind;

/* Access that needs memory which can be written. */
#define CQN_WRITING (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

/* Converts and checks the argument `access`; NULL is LOCAL_WRITE. -1 with an exception. */
int cqn_mr_access(PyObject *value, unsigned int *access);

/* Takes the user's buffer, or maps memory, if that is a length; cqn_memory_drop() gives it back. -1
 * with an exception, and then there may be something to give back, too. Can run any code. */
/* Refuses a buffer that has references to objects instead of bytes: -1 with TypeError. */
int cqn_refuse_objects(PyObject *buffer, const char *name);

int cqn_memory_take(cqn_memory *memory, PyObject *buffer, unsigned int access);
void cqn_memory_drop(cqn_memory *memory);

/* The same for the memory of a new MR. */
int cqn_mr_take_memory(cqn_mr *mr, PyObject *buffer);

/* Registers the memory, and adopts the handle. Returns the MR, or NULL with an exception. */
PyObject *cqn_mr_register(cqn_mr *mr, cqn_object *pd);

/* Gives an MR its handle and keys. Returns it. */
PyObject *cqn_mr_adopt(cqn_mr *self, struct ibv_mr *mr);

/* Raises why memory could not be registered; `end` is put after it. Returns NULL. */
void *cqn_mr_refuse(cqn_state *st, int err, const char *verb, const cqn_memory *memory,
                    unsigned int access, const char *end);

/* What the kinds of MR have in common. */
void cqn_mr_after_destroy(cqn_object *mr);
int cqn_mr_clear(PyObject *mr);

/* Gives the memory back when neither the device nor a memoryview uses it any more. */
void cqn_mr_release(cqn_mr *mr);

/* mr_rereg.c */
PyObject *cqn_mr_rereg(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
extern const char cqn_mr_rereg_doc[];

/* tally.c */

/* That of the CQs of this name, a str, which the context owns. NULL with MemoryError. */
cqn_tally *cqn_tally_for(cqn_context *ctx, PyObject *name);
void cqn_tally_close(cqn_cq *cq);
void cqn_tallies_free(cqn_tally **tallies);
PyObject *cqn_cq_counters(PyObject *self, PyObject *unused);
PyObject *cqn_context_counters(PyObject *self, PyObject *unused);

/* netdev.c: a socket to ask the names of network devices by, once it was needed */
typedef struct {
    int fd;
    bool is_open;
} cqn_netdev;

/* The name of a network device as str; None: there is none of that index. */
PyObject *cqn_netdev_name(cqn_netdev *self, uint32_t ifindex);
void cqn_netdev_close(cqn_netdev *self);

/* pd.c */

/* Deallocates it; also a parent domain, which is one. */
int cqn_dealloc_pd(void *handle);

/* Makes an object that its type's only argument, a context, is enough for: a PD, or what is made
 * alike. NULL with an exception. */
typedef struct {
    void *(*call)(struct ibv_context *context); /* without the GIL; NULL with errno */
    const char *verb, *what;                    /* for messages */
} cqn_alloc;
PyObject *cqn_new_of_context(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                             const cqn_kind *kind, const cqn_alloc *alloc);

/* qp_create.c */

/* The packet sequence number that it has of us, to start sending with. */
uint32_t cqn_qp_psn(cqn_qp *self);

/* qp_close.c */

/* Before a context closes all its queue pairs one after the other: none sends again meanwhile. */
void cqn_qps_stop_sending(cqn_context *ctx);

/* context_query.c */

/* How many P_Keys a port has: the limit of their index. -1 with an exception. */
int cqn_context_pkey_entries(cqn_context *self, uint8_t port, uint64_t *out);

/* The indices of a port's GIDs as new text, for an error; what can't be asked for is left out. NULL
 * without an exception if there is no memory. */
PyObject *cqn_context_gid_indices(cqn_context *self, uint8_t port);

/* qp_modify.c */

/* Who knows the attributes that a transition needs. */
typedef struct {
    /* For attr->qp_state, without the GIL: the mask, or -1 and errno. */
    int (*ask)(const void *of, struct ibv_qp_attr *attr);
    const void *of;
    const char *verb;   /* by which it asks */
    bool depth_granted; /* max_rd_atomic is what the peer has granted */
} cqn_qp_source;

/* Makes the transitions from one state to a later one, in one go without the GIL. -1 with an
 * exception: those before the one that failed are made. */
int cqn_qp_climb(cqn_qp *self, enum ibv_qp_state from, enum ibv_qp_state to,
                 const cqn_qp_source *source);

/* silence.c */

/* Why a wait found nothing, as far as the books tell, for its error message: a str. Can run any
 * code. NULL with an exception. */
PyObject *cqn_channel_why_silent(cqn_channel *channel);
PyObject *cqn_cq_why_silent(PyObject *self, PyObject *unused);
extern const char cqn_cq_why_silent_doc[];

/* sge.c */

/* A new SGE over a range of an MR, which it holds. */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

#endif

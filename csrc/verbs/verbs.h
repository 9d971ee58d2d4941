/* SPDX-License-Identifier: MIT */
/*
 * The types of the verbs, on top of the mechanisms that they share with other types.
 *
 *   channel.c          CompletionChannel
 *   cq.c               CQ: creating, arming and resizing it, its attributes
 *   cq_poll.c          the polling methods of a CQ
 *   silence.c          why a wait found nothing, for its error message
 *   closed_counters.c  the counters of a context's CQs, including closed ones
 *   qp.c               QP: destruction, query(), probes, attributes
 *   qp_create.c        the arguments of QP(), and creating one
 *   qp_modify.c        the arguments of modify(), transitions, the effects of a reset
 *   qp_transitions.c   the attributes that a transition requires and allows, for errors
 *   qp_mcast.c         the multicast groups of a queue pair
 *   srq.c              SRQ: a shared receive queue, its limit and its list of tags
 *   ah.c               AH: an address handle
 *   mw.c               MW: a memory window
 *   mr.c               MR: creating it, implicit ones, access to its bytes
 *   mr_foreign.c       MRs of memory outside this process
 *   mr_memory.c        the memory of an MR: acquiring it, registering it, registering it again
 *   sge.c              SGE: a part of an MR
 *   dm.c               DM: memory on the device
 *   pd.c               PD: a protection domain, and advice on its memory
 *   domains.c          TD and ParentDomain: thread domains, and PDs with one
 *   xrcd.c             XRCD: a domain of XRC
 *   flow.c             Flow: a rule that selects packets for a queue pair
 *   flow_counters.c    FlowCounters: counters for these packets
 *   rwq_ind_table.c    RwqIndTable: a table of WQs, for RSS
 *   wq.c               WQ: a queue of receives
 *   context.c          Context: opening it, its queries, its open objects
 *   ports.c            the tables of a port: P_Keys and GIDs
 *   device.c           the devices of this machine: listing and opening them, and forks
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

/* cq_poll.c */
PyObject *cqn_cq_poll(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *cqn_cq_poll_into(PyObject *self, PyObject *array);
PyObject *cqn_cq_poll_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames);

/* device.c */

/* Loads libibverbs, unless it is loaded. Returns -1 with VerbsError. */
int cqn_load_verbs(cqn_state *st);

/* list_devices() of the module. */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);

/* Queries all attributes of an open object's device, without the GIL: the object may be closed
 * afterwards. Returns -1 with an exception. */
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out);

/* Opens the device `name`, or, if that is NULL, the first that can be opened, and queries its
 * attributes; sets `query_err` to 0 or the errno of the query. NULL with VerbsError. */
struct ibv_context *cqn_device_open(cqn_state *st, const char *name, struct ibv_device_attr *attr,
                                    int *query_err);

/* why_no_device() of the module: why this machine has no device, and how to get one. */
PyObject *cqn_why_no_device(PyObject *module, PyObject *unused);

/* Called before the first device is opened: protects registered memory from forks, if the kernel
 * needs that. Returns -1 with an exception. */
int cqn_prepare_for_fork(cqn_state *st);
PyObject *cqn_fork_status(PyObject *module, PyObject *unused);

/* dm.c */
typedef struct {
    cqn_object base;
    size_t length;
} cqn_dm;

/* mr_memory.c */
extern const cqn_kind cqn_mr_kind;

/* closed_counters.c */

/* Returns the counters of the closed CQs with this name, a str; owned by the context. NULL with
 * MemoryError. */
cqn_closed_counters *cqn_closed_counters_of(cqn_context *ctx, PyObject *name);
void cqn_closed_counters_add(cqn_cq *cq);
void cqn_closed_counters_free(cqn_closed_counters **list);
PyObject *cqn_cq_counters(PyObject *self, PyObject *unused);
PyObject *cqn_context_counters(PyObject *self, PyObject *unused);

/* pd.c */

/* Creates an object whose only argument is a context, such as a PD. NULL with an exception. */
typedef struct {
    void *(*call)(struct ibv_context *context); /* without the GIL; NULL with errno */
    const char *verb, *what;                    /* for messages */
} cqn_alloc;
PyObject *cqn_new_of_context(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                             const cqn_kind *kind, const cqn_alloc *alloc);

/* qp.c */

/* Returns the first packet sequence number of its sends, unless the program sets another. */
uint32_t cqn_qp_psn(cqn_qp *self);

/* Called before a context closes all its queue pairs: stops the retransmitting ones, all at
 * once. */
void cqn_qps_stop_sending(cqn_context *ctx);

/* context.c */
PyObject *cqn_open_contexts(PyObject *module, PyObject *unused);
PyObject *cqn_open_objects(PyObject *module, PyObject *context);
PyObject *cqn_known_async_events(PyObject *module, PyObject *context);

/* ports.c */

/* Queries the number of P_Keys of a port. Returns -1 with an exception. */
int cqn_context_pkey_entries(cqn_context *self, uint8_t port, uint64_t *out);

/* Returns the indices of a port's GIDs as text, for an error; empty if they cannot be queried. NULL
 * without an exception if there is no memory. */
PyObject *cqn_context_gid_indices(cqn_context *self, uint8_t port);

/* qp_modify.c */

/* The source of the attributes of a transition. */
typedef struct {
    /* Sets the attributes for attr->qp_state, without the GIL. Returns the mask, or -1 and errno.
     */
    int (*query)(const void *of, struct ibv_qp_attr *attr);
    const void *of;
    const char *verb;   /* called by `query` */
    bool depth_granted; /* max_rd_atomic was granted by the peer */
} cqn_qp_source;

/* Makes the transitions from one state to a later one, in one call without the GIL. Returns -1 with
 * an exception: the transitions before the failed one remain in effect. */
int cqn_qp_climb(cqn_qp *self, enum ibv_qp_state from, enum ibv_qp_state to,
                 const cqn_qp_source *source);

/* silence.c */

/* Returns a str that explains why a wait may have found nothing, for its error message; NULL with
 * an exception. Can run arbitrary code. */
PyObject *cqn_channel_why_silent(cqn_channel *channel);
PyObject *cqn_cq_why_silent(PyObject *self, PyObject *unused);

/* sge.c */

/* Returns a new SGE for a range of an MR, which it holds; NULL with an exception. */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The types of the verbs, above the mechanisms that they have in common with others. The files of
 * this folder:
 *
 *   channel.c          CompletionChannel
 *   cq.c               CQ: making it, arming, resizing, attributes
 *   cq_poll.c          the methods of a CQ that poll
 *   silence.c          why a wait found nothing, for its error message
 *   closed_counters.c  what the CQs of a context count, the closed ones included
 *   qp.c               QP: its end, query(), probes, attributes
 *   qp_create.c        the arguments of QP(), and making one
 *   qp_modify.c        the arguments of modify(), transitions, and what a reset drops
 *   qp_transitions.c   which attributes a transition needs and takes, for errors
 *   qp_mcast.c         the multicast groups of a queue pair
 *   srq.c              SRQ: a shared receive queue, its limit and its list of tags
 *   ah.c               AH: an address handle
 *   mw.c               MW: a memory window
 *   mr.c               MR: making it, implicit ones, access to its bytes
 *   mr_foreign.c       MRs of memory that is not this process's
 *   mr_memory.c        the memory of an MR: acquiring it, registering it, and registering it anew
 *   sge.c              SGE: a part of an MR
 *   dm.c               DM: memory of the device
 *   pd.c               PD: a protection domain, and advice on its memory
 *   domains.c          TD and ParentDomain: thread domains, and PDs with one
 *   xrcd.c             XRCD: a domain of XRC
 *   flow.c             Flow: a rule for which packets a queue pair gets
 *   flow_counters.c    FlowCounters: what counts these packets
 *   rwq_ind_table.c    RwqIndTable: a table of WQs, for RSS
 *   wq.c               WQ: a queue of receives
 *   context.c          Context: making it, its queries, and what is open on it
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

/* Loads libibverbs, unless it is loaded. -1 with VerbsError. */
int cqn_load_verbs(cqn_state *st);

/* The module's list_devices(). */
PyObject *cqn_list_devices(PyObject *module, PyObject *unused);

/* Queries all attributes of the device of an open object, without the GIL: the object may be closed
 * afterwards. -1 with an exception. */
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out);

/* Opens the device called `name`, or, if that is NULL, the first that can be opened, and queries
 * its attributes: `query_err` is 0 or the errno of that. NULL with VerbsError. */
struct ibv_context *cqn_device_open(cqn_state *st, const char *name, struct ibv_device_attr *attr,
                                    int *query_err);

/* The module's why_no_device(): what a machine without a device lacks, and how to get it. */
PyObject *cqn_why_no_device(PyObject *module, PyObject *unused);

/* Called before the first device is opened: makes registered memory survive a fork, if the kernel
 * needs that. -1 with an exception. */
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

/* The counters of the closed CQs of this name, a str; the context owns them. NULL with
 * MemoryError. */
cqn_closed_counters *cqn_closed_counters_of(cqn_context *ctx, PyObject *name);
void cqn_closed_counters_add(cqn_cq *cq);
void cqn_closed_counters_free(cqn_closed_counters **list);
PyObject *cqn_cq_counters(PyObject *self, PyObject *unused);
PyObject *cqn_context_counters(PyObject *self, PyObject *unused);

/* pd.c */

/* Makes an object whose only argument is a context, such as a PD. NULL with an exception. */
typedef struct {
    void *(*call)(struct ibv_context *context); /* without the GIL; NULL with errno */
    const char *verb, *what;                    /* for messages */
} cqn_alloc;
PyObject *cqn_new_of_context(PyTypeObject *type, PyObject *args, PyObject *kwargs,
                             const cqn_kind *kind, const cqn_alloc *alloc);

/* qp.c */

/* The packet sequence number that it starts sending with, unless the program sets another. */
uint32_t cqn_qp_psn(cqn_qp *self);

/* Called before a context closes all its queue pairs: stops those that send again, all at once. */
void cqn_qps_stop_sending(cqn_context *ctx);

/* context.c */
PyObject *cqn_open_contexts(PyObject *module, PyObject *unused);
PyObject *cqn_open_objects(PyObject *module, PyObject *context);
PyObject *cqn_known_async_events(PyObject *module, PyObject *context);

/* ports.c */

/* Queries how many P_Keys a port has. -1 with an exception. */
int cqn_context_pkey_entries(cqn_context *self, uint8_t port, uint64_t *out);

/* The indices of a port's GIDs as text, for an error; empty if they can't be queried. NULL without
 * an exception if there is no memory. */
PyObject *cqn_context_gid_indices(cqn_context *self, uint8_t port);

/* qp_modify.c */

/* Where the attributes of a transition come from. */
typedef struct {
    /* Fills in the attributes for attr->qp_state, without the GIL. Returns the mask, or -1 and
     * errno. */
    int (*query)(const void *of, struct ibv_qp_attr *attr);
    const void *of;
    const char *verb;   /* that it calls */
    bool depth_granted; /* the peer has granted max_rd_atomic */
} cqn_qp_source;

/* Makes the transitions from one state to a later one, in one call without the GIL. -1 with an
 * exception: those before the one that failed stay made. */
int cqn_qp_climb(cqn_qp *self, enum ibv_qp_state from, enum ibv_qp_state to,
                 const cqn_qp_source *source);

/* silence.c */

/* Says why a wait may have found nothing, for its error message: a str. Can run any code. NULL with
 * an exception. */
PyObject *cqn_channel_why_silent(cqn_channel *channel);
PyObject *cqn_cq_why_silent(PyObject *self, PyObject *unused);

/* sge.c */

/* A new SGE of a range of an MR, which it holds. */
PyObject *cqn_sge_new(cqn_mr *mr, uint64_t addr, uint32_t length);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Each call of libibverbs, and each system call that can fail, asks cqn_fault() first. The selected
 * call is not made, and fails in its own way: NULL or -1 with errno, or the error as its result. A
 * call without the GIL can be held until the test releases it; with the error 0 it is made then.
 * Calls that create and destroy handles are counted.
 *
 * A test can replace the next asynchronous event of a device by one that no device can be made to
 * raise. A device can be made to report fewer features, or XRC, ATOMIC_WRITE and on-demand paging:
 * such memory is then registered as usual, and a page in place of all memory.
 */
#ifndef CQN_REPLACED_CALLS_H
#define CQN_REPLACED_CALLS_H

#include <Python.h>
#include <infiniband/verbs.h>
#include <stdbool.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "faults/fake_device.h"
#include "faults/features.h"
#include "faults/schedule.h"

/* Methods of the module with which tests select what fails, and all others for tests. */
PyObject *cqn_fail_call(PyObject *module, PyObject *args);
PyObject *cqn_fail_alloc(PyObject *module, PyObject *args);
PyObject *cqn_before_call(PyObject *module, PyObject *args);
PyObject *cqn_inject_event(PyObject *module, PyObject *args);
PyObject *cqn_failed(PyObject *module, PyObject *unused);
PyObject *cqn_held(PyObject *module, PyObject *unused);
PyObject *cqn_pretend_fork(PyObject *module, PyObject *args);
PyObject *cqn_live_handles(PyObject *module, PyObject *unused);
int cqn_add_fault_methods(PyObject *module);

void cqn_place(const char *name);

/* Replacements of calls. */
bool cqn_fault(const char *call);
int cqn_fault_errno(void);
int cqn_fault_result(void);
bool cqn_fault_is_held(void);
int cqn_fail_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void *cqn_handle_created(void *handle);
int cqn_handle_destroyed(int rc);
int cqn_posted(int rc, const char *call);
void *cqn_find_unless_pretended(const char *function);

int cqn_fork_init(void);
int cqn_get_async_event_or_injected(struct ibv_context *device, struct ibv_async_event *event);
void cqn_ack_async_event_unless_injected(struct ibv_async_event *event);

#define PyErr_WriteUnraisable(op) (assert(PyErr_Occurred() != NULL), PyErr_WriteUnraisable(op))

#define NULL_OR(call, ...) (cqn_fault(#call) ? NULL : call(__VA_ARGS__))
#define MINUS_1_OR(call, ...) (cqn_fault(#call) ? -1 : call(__VA_ARGS__))
#define ERROR_OR(call, ...) (cqn_fault(#call) ? cqn_fault_errno() : call(__VA_ARGS__))

/* Refuses a post at its first request; if it is held, it is executed nevertheless, like devices
 * that keep refused requests. Or the post is made and reported as failed, without the refused
 * request. */
#define POST_OR(call, wr, bad_wr, made)                                                            \
    (cqn_fault(call) ? ((void)(cqn_fault_is_held() && made), *(bad_wr) = (wr), cqn_fault_result()) \
                     : cqn_posted(made, call " when made"))

/* In the header these are macros around other functions. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* clang-format off */
#define ibv_get_device_list(...) NULL_OR(ibv_get_device_list, __VA_ARGS__)
#define ibv_query_port(...) \
    (cqn_fault("ibv_query_port") ? cqn_fault_errno() : ___ibv_query_port(__VA_ARGS__))
#define ibv_query_device(...) \
    (cqn_fault("ibv_query_device") ? cqn_fault_errno() : cqn_query_device(__VA_ARGS__))
#define ibv_query_device_ex(...) \
    (cqn_fault("ibv_query_device_ex") ? cqn_fault_errno() : cqn_query_device_ex(__VA_ARGS__))
#define ibv_query_rt_values_ex(...) ERROR_OR(ibv_query_rt_values_ex, __VA_ARGS__)
#define ibv_query_pkey(...) MINUS_1_OR(ibv_query_pkey, __VA_ARGS__)
#define ibv_query_gid_ex(...) ERROR_OR(ibv_query_gid_ex, __VA_ARGS__)
#define ibv_query_gid_table(...) \
    (cqn_fault("ibv_query_gid_table") ? -cqn_fault_errno() : ibv_query_gid_table(__VA_ARGS__))

#define ibv_open_device(...) \
    cqn_handle_created(cqn_fault("ibv_open_device") ? NULL : cqn_open_device(__VA_ARGS__))
#define ibv_alloc_pd(...) cqn_handle_created(NULL_OR(ibv_alloc_pd, __VA_ARGS__))
#define ibv_reg_mr(...) \
    cqn_handle_created(cqn_fault("ibv_reg_mr") ? NULL : cqn_reg_mr(__VA_ARGS__))
#define ibv_create_comp_channel(...) cqn_handle_created(NULL_OR(ibv_create_comp_channel, __VA_ARGS__))
#define ibv_create_cq(...) cqn_handle_created(NULL_OR(ibv_create_cq, __VA_ARGS__))
#define ibv_create_cq_ex(...) cqn_handle_created(NULL_OR(ibv_create_cq_ex, __VA_ARGS__))
#define ibv_create_srq(...) cqn_handle_created(NULL_OR(ibv_create_srq, __VA_ARGS__))
#define ibv_create_qp(...) \
    cqn_handle_created(cqn_fault("ibv_create_qp") ? NULL : cqn_fake_create_qp(__VA_ARGS__))
#define ibv_create_qp_ex(...) cqn_handle_created(NULL_OR(ibv_create_qp_ex, __VA_ARGS__))
#define ibv_open_qp(...) cqn_handle_created(NULL_OR(ibv_open_qp, __VA_ARGS__))
#define ibv_open_xrcd(...) cqn_handle_created(NULL_OR(ibv_open_xrcd, __VA_ARGS__))
#define ibv_create_srq_ex(...) cqn_handle_created(NULL_OR(ibv_create_srq_ex, __VA_ARGS__))
#define ibv_create_flow(...) cqn_handle_created(NULL_OR(ibv_create_flow, __VA_ARGS__))
#define ibv_create_counters(...) cqn_handle_created(NULL_OR(ibv_create_counters, __VA_ARGS__))
#define ibv_create_wq(...) cqn_handle_created(NULL_OR(ibv_create_wq, __VA_ARGS__))
#define ibv_create_rwq_ind_table(...) cqn_handle_created(NULL_OR(ibv_create_rwq_ind_table, __VA_ARGS__))
#define ibv_init_ah_from_wc(...) MINUS_1_OR(ibv_init_ah_from_wc, __VA_ARGS__)
#define ibv_alloc_mw(...) cqn_handle_created(NULL_OR(ibv_alloc_mw, __VA_ARGS__))
#define ibv_create_ah(...) cqn_handle_created(NULL_OR(ibv_create_ah, __VA_ARGS__))

#define ibv_close_device(...) cqn_handle_destroyed(MINUS_1_OR(ibv_close_device, __VA_ARGS__))
#define ibv_dealloc_pd(...) \
    cqn_handle_destroyed(cqn_fault("ibv_dealloc_pd") ? cqn_fault_errno() : cqn_fake_dealloc_pd(__VA_ARGS__))
#define ibv_dereg_mr(...) cqn_handle_destroyed(ERROR_OR(ibv_dereg_mr, __VA_ARGS__))
#define ibv_destroy_comp_channel(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_comp_channel, __VA_ARGS__))
#define ibv_destroy_cq(...) \
    cqn_handle_destroyed(cqn_fault("ibv_destroy_cq") ? cqn_fault_errno() : cqn_schedule_destroy_cq(__VA_ARGS__))
#define ibv_ack_cq_events(...) (cqn_schedule_moment("ibv_ack_cq_events"), ibv_ack_cq_events(__VA_ARGS__))
#define ibv_destroy_srq(...) \
    cqn_handle_destroyed(cqn_fault("ibv_destroy_srq") ? cqn_fault_errno() : cqn_fake_destroy_srq(__VA_ARGS__))
#define ibv_destroy_qp(...) \
    cqn_handle_destroyed(cqn_fault("ibv_destroy_qp") ? cqn_fault_errno() : cqn_fake_destroy_qp(__VA_ARGS__))
#define ibv_close_xrcd(...) cqn_handle_destroyed(ERROR_OR(ibv_close_xrcd, __VA_ARGS__))
#define ibv_destroy_flow(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_flow, __VA_ARGS__))
#define ibv_destroy_counters(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_counters, __VA_ARGS__))
#define ibv_destroy_wq(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_wq, __VA_ARGS__))
#define ibv_destroy_rwq_ind_table(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_rwq_ind_table, __VA_ARGS__))
#define ibv_dealloc_mw(...) cqn_handle_destroyed(ERROR_OR(ibv_dealloc_mw, __VA_ARGS__))
#define ibv_destroy_ah(...) cqn_handle_destroyed(ERROR_OR(ibv_destroy_ah, __VA_ARGS__))

#define ibv_rereg_mr(...) \
    (cqn_fault("ibv_rereg_mr") ? IBV_REREG_MR_ERR_CMD : cqn_rereg_mr(__VA_ARGS__))
#define ibv_reg_mr_iova2(...) cqn_handle_created(NULL_OR(ibv_reg_mr_iova2, __VA_ARGS__))
#define ibv_alloc_dm(...) cqn_handle_created(NULL_OR(ibv_alloc_dm, __VA_ARGS__))
#define ibv_free_dm(...) cqn_handle_destroyed(ERROR_OR(ibv_free_dm, __VA_ARGS__))
#define ibv_memcpy_to_dm(...) ERROR_OR(ibv_memcpy_to_dm, __VA_ARGS__)
#define ibv_memcpy_from_dm(...) ERROR_OR(ibv_memcpy_from_dm, __VA_ARGS__)
#define ibv_reg_dm_mr(...) cqn_handle_created(NULL_OR(ibv_reg_dm_mr, __VA_ARGS__))
#define ibv_reg_dmabuf_mr(...) \
    cqn_handle_created(cqn_fault("ibv_reg_dmabuf_mr") ? NULL : cqn_reg_dmabuf_mr(__VA_ARGS__))
#define ibv_alloc_null_mr(...) cqn_handle_created(NULL_OR(ibv_alloc_null_mr, __VA_ARGS__))
#define ibv_advise_mr(...) ERROR_OR(ibv_advise_mr, __VA_ARGS__)
#define ibv_alloc_td(...) cqn_handle_created(NULL_OR(ibv_alloc_td, __VA_ARGS__))
#define ibv_dealloc_td(...) cqn_handle_destroyed(ERROR_OR(ibv_dealloc_td, __VA_ARGS__))
#define ibv_alloc_parent_domain(...) cqn_handle_created(NULL_OR(ibv_alloc_parent_domain, __VA_ARGS__))
#define ibv_import_device(...) \
    cqn_handle_created(cqn_fault("ibv_import_device") ? NULL : cqn_import_device(__VA_ARGS__))
#define ibv_import_pd(...) \
    cqn_handle_created(cqn_fault("ibv_import_pd") ? NULL : cqn_import_pd(__VA_ARGS__))
#define ibv_import_mr(...) \
    cqn_handle_created(cqn_fault("ibv_import_mr") ? NULL : cqn_import_mr(__VA_ARGS__))
#define ibv_import_dm(...) \
    cqn_handle_created(cqn_fault("ibv_import_dm") ? NULL : cqn_import_dm(__VA_ARGS__))
#define ibv_unimport_pd(...) (cqn_unimport_pd(__VA_ARGS__), (void)cqn_handle_destroyed(0))
#define ibv_unimport_mr(...) (cqn_unimport_mr(__VA_ARGS__), (void)cqn_handle_destroyed(0))
#define ibv_unimport_dm(...) (cqn_unimport_dm(__VA_ARGS__), (void)cqn_handle_destroyed(0))

#define ibv_req_notify_cq(...) ERROR_OR(ibv_req_notify_cq, __VA_ARGS__)
#define ibv_resize_cq(...) ERROR_OR(ibv_resize_cq, __VA_ARGS__)
#define ibv_modify_cq(...) ERROR_OR(ibv_modify_cq, __VA_ARGS__)
#define ibv_poll_cq(...) \
    (cqn_fault("ibv_poll_cq") ? cqn_fail_poll_cq(__VA_ARGS__) : ibv_poll_cq(__VA_ARGS__))
#define ibv_start_poll(...) ERROR_OR(ibv_start_poll, __VA_ARGS__)
#define ibv_get_cq_event(...) MINUS_1_OR(ibv_get_cq_event, __VA_ARGS__)
#define ibv_get_async_event(...) \
    (cqn_fault("ibv_get_async_event") ? -1 : cqn_get_async_event_or_injected(__VA_ARGS__))
#define ibv_ack_async_event(...) cqn_ack_async_event_unless_injected(__VA_ARGS__)
#define ibv_modify_srq(...) ERROR_OR(ibv_modify_srq, __VA_ARGS__)
#define ibv_query_srq(...) ERROR_OR(ibv_query_srq, __VA_ARGS__)
#define ibv_modify_qp(...) \
    (cqn_fault("ibv_modify_qp") ? cqn_fault_errno() : cqn_fake_modify_qp(__VA_ARGS__))
#define ibv_get_srq_num(...) ERROR_OR(ibv_get_srq_num, __VA_ARGS__)
#define ibv_attach_counters_point_flow(...) ERROR_OR(ibv_attach_counters_point_flow, __VA_ARGS__)
#define ibv_read_counters(...) ERROR_OR(ibv_read_counters, __VA_ARGS__)
#define ibv_modify_wq(...) ERROR_OR(ibv_modify_wq, __VA_ARGS__)
#define ibv_query_ece(...) \
    (cqn_fault("ibv_query_ece") ? cqn_fault_errno() : cqn_fake_query_ece(__VA_ARGS__))
#define ibv_set_ece(...) \
    (cqn_fault("ibv_set_ece") ? cqn_fault_errno() : cqn_fake_set_ece(__VA_ARGS__))
#define ibv_query_qp_data_in_order(...) \
    (cqn_fault("ibv_query_qp_data_in_order") ? -cqn_fault_errno() \
                                             : cqn_fake_data_in_order(__VA_ARGS__))
#define ibv_query_qp(...) ERROR_OR(ibv_query_qp, __VA_ARGS__)
#define ibv_attach_mcast(...) ERROR_OR(ibv_attach_mcast, __VA_ARGS__)
#define ibv_detach_mcast(...) ERROR_OR(ibv_detach_mcast, __VA_ARGS__)
#define ibv_post_send(qp, wr, bad_wr) \
    POST_OR("ibv_post_send", wr, bad_wr, ibv_post_send(qp, wr, bad_wr))
#define ibv_post_recv(qp, wr, bad_wr) \
    POST_OR("ibv_post_recv", wr, bad_wr, ibv_post_recv(qp, wr, bad_wr))
#define ibv_post_srq_recv(srq, wr, bad_wr) \
    POST_OR("ibv_post_srq_recv", wr, bad_wr, ibv_post_srq_recv(srq, wr, bad_wr))
#define ibv_post_wq_recv(wq, wr, bad_wr) \
    POST_OR("ibv_post_wq_recv", wr, bad_wr, ibv_post_wq_recv(wq, wr, bad_wr))
#define ibv_post_srq_ops(...) ERROR_OR(ibv_post_srq_ops, __VA_ARGS__)
#define ibv_bind_mw(...) ERROR_OR(ibv_bind_mw, __VA_ARGS__)
#define ibv_wr_complete(ex) \
    (cqn_fault("ibv_wr_complete") ? (ibv_wr_abort(ex), cqn_fault_errno()) : ibv_wr_complete(ex))

#define cqn_library_find(function) cqn_find_unless_pretended(function)
#define ibv_fork_init() cqn_fork_init()

#define eventfd(...) MINUS_1_OR(eventfd, __VA_ARGS__)
#define epoll_create1(...) MINUS_1_OR(epoll_create1, __VA_ARGS__)
#define epoll_ctl(...) MINUS_1_OR(epoll_ctl, __VA_ARGS__)
#define epoll_wait(...) (cqn_fault("epoll_wait") ? -1 : cqn_schedule_epoll_wait(__VA_ARGS__))
#define fcntl(...) MINUS_1_OR(fcntl, __VA_ARGS__)
#define ppoll(fds, n, timeout, unused) (cqn_fault("ppoll") ? -1 : cqn_schedule_ppoll(fds, n, timeout))
#define madvise(...) MINUS_1_OR(madvise, __VA_ARGS__)
#define mmap(...) (cqn_fault("mmap") ? MAP_FAILED : mmap(__VA_ARGS__))
/* clang-format on */

#endif

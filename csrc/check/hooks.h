/* SPDX-License-Identifier: MIT */
/* The functions of the program that the observer intercepts. */
#ifndef CQN_CHECK_HOOKS_H
#define CQN_CHECK_HOOKS_H

#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/types.h>

#include "../base/observer.h"
#include "check.h"

#undef ibv_reg_mr /* macros of the header, which select among the functions */
#undef ibv_reg_mr_iova

/* Type, name, arguments. cqn_hook_NAME is the hook, cqn_real.NAME the program's own function: it is
 * in the program's namespace, and sets the program's errno. */
#define HOOKS(HOOK)                                                                          \
    HOOK(struct ibv_context *, ibv_open_device, (struct ibv_device *))                       \
    HOOK(struct ibv_context *, ibv_import_device, (int))                                     \
    HOOK(int, ibv_close_device, (struct ibv_context *))                                      \
    HOOK(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *))                              \
    HOOK(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *))         \
    HOOK(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *))                         \
    HOOK(int, ibv_get_async_event, (struct ibv_context *, struct ibv_async_event *))         \
    HOOK(struct ibv_cq *, ibv_create_cq,                                                     \
         (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                \
    HOOK(int, ibv_resize_cq, (struct ibv_cq *, int))                                         \
    HOOK(int, ibv_destroy_cq, (struct ibv_cq *))                                             \
    HOOK(int, ibv_get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **))      \
    HOOK(void, ibv_ack_cq_events, (struct ibv_cq *, unsigned int))                           \
    HOOK(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))       \
    HOOK(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                   \
    HOOK(int, ibv_destroy_qp, (struct ibv_qp *))                                             \
    HOOK(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *, struct ibv_srq_init_attr *))    \
    HOOK(int, ibv_destroy_srq, (struct ibv_srq *))                                           \
    HOOK(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int))                \
    HOOK(struct ibv_mr *, ibv_reg_mr_iova, (struct ibv_pd *, void *, size_t, uint64_t, int)) \
    HOOK(struct ibv_mr *, ibv_reg_mr_iova2,                                                  \
         (struct ibv_pd *, void *, size_t, uint64_t, unsigned int))                          \
    HOOK(int, ibv_dereg_mr, (struct ibv_mr *))                                               \
    HOOK(ssize_t, read, (int, void *, size_t))                                               \
    HOOK(int, poll, (struct pollfd *, nfds_t, int))                                          \
    HOOK(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))   \
    HOOK(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                 \
    HOOK(int, pselect,                                                                       \
         (int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *))     \
    HOOK(int, epoll_ctl, (int, int, int, struct epoll_event *))                              \
    HOOK(int, epoll_wait, (int, struct epoll_event *, int, int))                             \
    HOOK(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *))          \
    HOOK(int, epoll_pwait2,                                                                  \
         (int, struct epoll_event *, int, const struct timespec *, const sigset_t *))        \
    HOOK(int, close, (int))                                                                  \
    HOOK(int, dup, (int))                                                                    \
    HOOK(int, dup2, (int, int))                                                              \
    HOOK(int, dup3, (int, int, int))                                                         \
    HOOK(int, fcntl, (int, int, ...))                                                        \
    HOOK(int, munmap, (void *, size_t))                                                      \
    HOOK(void, free, (void *))                                                               \
    HOOK(int, setenv, (const char *, const char *, int))                                     \
    HOOK(int, unsetenv, (const char *))                                                      \
    HOOK(pid_t, fork, (void))

struct real {
#define HOOK(type, function, arguments) type(*function) arguments;
    HOOKS(HOOK)
#undef HOOK
};

extern struct real cqn_real;

#define HOOK(type, function, arguments) type cqn_hook_##function arguments;
HOOKS(HOOK)
#undef HOOK
cqn_observe_function cqn_hook_observe;
ssize_t cqn_hook_read_chk(int file, void *buffer, size_t size, size_t space);
int cqn_hook_poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t space);
int cqn_hook_ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                       const sigset_t *mask, size_t space);

#endif

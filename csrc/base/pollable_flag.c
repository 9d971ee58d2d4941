/* SPDX-License-Identifier: MIT */
/*
 * A descriptor for event loops that is readable while the device has unread asynchronous events,
 * and while the flag is raised: an epoll of the device's descriptor and an eventfd.
 */

#include "base/pollable_flag.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int cqn_pollable_flag_open(cqn_pollable_flag *flag, const struct ibv_context *device)
{
    struct epoll_event readable = {.events = EPOLLIN};
    flag->raised_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    flag->fd = epoll_create1(EPOLL_CLOEXEC);
    flag->is_open = true;
    if (flag->raised_fd < 0 || flag->fd < 0 ||
        epoll_ctl(flag->fd, EPOLL_CTL_ADD, flag->raised_fd, &readable) < 0 ||
        epoll_ctl(flag->fd, EPOLL_CTL_ADD, device->async_fd, &readable) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

/* A forked child shares the eventfd with its parent and must not change it. */
void cqn_pollable_flag_set(cqn_pollable_flag *flag, const cqn_object *owner, bool raised)
{
    uint64_t count = 1;
    if (raised != flag->raised && flag->is_open && !cqn_forked(owner)) {
        ssize_t n = raised ? write(flag->raised_fd, &count, sizeof(count))
                           : read(flag->raised_fd, &count, sizeof(count));
        (void)n;
        flag->raised = raised;
    }
}

/* A forked child closes its own copies of the descriptors. */
void cqn_pollable_flag_close(cqn_pollable_flag *flag)
{
    if (flag->is_open) {
        flag->is_open = false;
        close(flag->fd);
        close(flag->raised_fd);
    }
}

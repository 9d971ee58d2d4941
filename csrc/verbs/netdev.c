/* SPDX-License-Identifier: MIT */
/*
 * The names of network devices.
 *
 * if_indextoname(3) makes a socket for each question, which takes longer than the rest of
 * query_gid(). So a context keeps one, opened when it was first needed.
 */

#include "verbs/verbs.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Its name; None where there is none, or not in this network namespace. */
PyObject *cqn_netdev_name(cqn_netdev *self, uint32_t ifindex)
{
    struct ifreq request = {.ifr_ifindex = (int)ifindex};
    if (ifindex == 0) {
        Py_RETURN_NONE;
    }
    if (!self->is_open) {
        self->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        self->is_open = self->fd >= 0;
    }
    return self->is_open && ioctl(self->fd, SIOCGIFNAME, &request) == 0
               ? PyUnicode_DecodeFSDefault(request.ifr_name)
               : Py_NewRef(Py_None);
}

void cqn_netdev_close(cqn_netdev *self)
{
    if (self->is_open) {
        close(self->fd);
        self->is_open = false;
    }
}

/* SPDX-License-Identifier: MIT */
/* The names of network devices. if_indextoname(3) makes a socket for each question, which takes
 * longer than the rest of query_gid(): a context keeps one. */

#include "base/core.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Its name; None where there is none, or not in this network namespace. */
PyObject *cqn_netdev_name(cqn_context *self, uint32_t ifindex)
{
    struct ifreq request = {.ifr_ifindex = (int)ifindex};
    if (ifindex == 0 || !cqn_is_open(&self->base)) {
        Py_RETURN_NONE;
    }
    if (!self->has_net_fd) {
        self->net_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        self->has_net_fd = self->net_fd >= 0;
    }
    return self->has_net_fd && ioctl(self->net_fd, SIOCGIFNAME, &request) == 0
               ? PyUnicode_DecodeFSDefault(request.ifr_name)
               : Py_NewRef(Py_None);
}

void cqn_netdev_close(cqn_context *self)
{
    if (self->has_net_fd) {
        close(self->net_fd);
        self->has_net_fd = false;
    }
}

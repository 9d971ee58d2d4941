/* SPDX-License-Identifier: MIT */
/* Helpers for descriptors that other code opened, and a check for free ones. */

#include "base/descriptors.h"
#include "base/python.h"
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

int cqn_set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

const char cqn_dup_doc[] =
    "_dup($self, /)\n--\n\n"
    "A duplicate of fileno(), the caller's to close. The number that fileno() returns can be "
    "another file's by now, if another thread closed this.";

PyObject *cqn_dup(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(copy);
}

int cqn_check_descriptors(void)
{
    int fds[CQN_DESCRIPTORS], n = 0;
    while (n < CQN_DESCRIPTORS && (fds[n] = eventfd(0, EFD_CLOEXEC)) >= 0) {
        n++;
    }
    const int err = n < CQN_DESCRIPTORS ? errno : 0;
    while (n > 0) {
        close(fds[--n]);
    }
    return err;
}

/* SPDX-License-Identifier: MIT */
/*
 * The tables of a device's ports: P_Keys and GIDs, for queries, and for the errors that name them.
 */

#include "verbs/context.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int cqn_context_pkey_entries(cqn_context *self, uint8_t port, uint64_t *out)
{
    struct ibv_context *handle = cqn_open(&self->base);
    if (handle == NULL) {
        return -1;
    }
    struct ibv_port_attr attr = {.flags = 0};
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_query_port(handle, port, &attr));
    if (err != 0) {
        cqn_verbs_error(self->base.state, err, "ibv_query_port", "port %d", port);
        return -1;
    }
    *out = attr.pkey_tbl_len;
    return 0;
}

/* How many entries the GID tables of all ports can have. Negative with an exception. */
static Py_ssize_t gid_entries(cqn_context *self, struct ibv_context *handle)
{
    Py_ssize_t total = 0;
    for (int port = 1; port <= self->attr.phys_port_cnt; port++) {
        struct ibv_port_attr attr = {.flags = 0};
        int err;
        CQN_IN_KERNEL(&self->base, err = ibv_query_port(handle, (uint8_t)port, &attr));
        if (err != 0) {
            cqn_verbs_error(self->base.state, err, "ibv_query_port", "port %d", port);
            return -1;
        }
        if (cqn_open(&self->base) == NULL) {
            return -1;
        }
        total += attr.gid_tbl_len;
    }
    return total;
}

/* The name of a network device; None if there is none of that index in this network namespace.
 * if_indextoname(3) makes a socket for each question, which takes longer than the rest of
 * query_gid(): so a context keeps one, opened when it is first needed. */
static PyObject *netdev_name(cqn_netdev *self, uint32_t ifindex)
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

PyObject *cqn_gid_entry(cqn_context *self, const struct ibv_gid_entry *e)
{
    PyObject *netdev = netdev_name(&((cqn_device_context *)self)->netdev,
                                   cqn_is_open(&self->base) ? e->ndev_ifindex : 0);
    if (netdev == NULL) {
        return NULL;
    }
    PyObject *fields[] = {
        PyBytes_FromStringAndSize((const char *)e->gid.raw, sizeof(e->gid.raw)),
        PyLong_FromUnsignedLong(e->gid_index),
        PyLong_FromUnsignedLong(e->port_num),
        PyLong_FromUnsignedLong(e->gid_type),
        netdev,
    };
    return cqn_tuple_of(fields, Py_ARRAY_LENGTH(fields));
}

static PyObject *gid_list(cqn_context *self, const struct ibv_gid_entry *entries, ssize_t n)
{
    PyObject *list = PyList_New(n);
    for (ssize_t i = 0; list != NULL && i < n; i++) {
        PyObject *entry = cqn_gid_entry(self, &entries[i]);
        if (entry == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, entry);
        }
    }
    return list;
}

CQN_RARE PyObject *cqn_gid_table(cqn_context *self)
{
    struct ibv_context *handle = cqn_open(&self->base);
    Py_ssize_t most = handle == NULL ? -1 : gid_entries(self, handle);
    if (most < 0) {
        return NULL;
    }
    struct ibv_gid_entry *entries = PyMem_New(struct ibv_gid_entry, (size_t)most);
    if (entries == NULL) {
        return PyErr_NoMemory();
    }
    ssize_t n;
    CQN_IN_KERNEL(&self->base, n = ibv_query_gid_table(handle, entries, (size_t)most, 0));
    PyObject *list = n < 0 ? cqn_verbs_error(self->base.state, (int)-n, "ibv_query_gid_table", "")
                           : gid_list(self, entries, n);
    PyMem_Free(entries);
    return list;
}

/* The indices of one port, from the list of all GIDs. */
static PyObject *indices_of(PyObject *list, uint8_t port)
{
    PyObject *text = PyUnicode_FromString("");
    for (Py_ssize_t i = 0; text != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *entry = PyList_GET_ITEM(list, i), *more;
        if (PyLong_AsLong(PyTuple_GET_ITEM(entry, 2)) == port) {
            more = PyUnicode_FromFormat("%U%s%S", text, PyUnicode_GET_LENGTH(text) > 0 ? ", " : "",
                                        PyTuple_GET_ITEM(entry, 1));
            Py_SETREF(text, more);
        }
    }
    return text;
}

PyObject *cqn_context_gid_indices(cqn_context *self, uint8_t port)
{
    PyObject *list = cqn_gid_table(self);
    PyObject *text = list != NULL ? indices_of(list, port) : PyUnicode_FromString("");
    PyErr_Clear();
    Py_XDECREF(list);
    return text;
}

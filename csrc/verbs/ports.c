/* SPDX-License-Identifier: MIT */
/* The tables of a device's ports: P_Keys and GIDs, for queries and for error messages. */

#include "verbs/context.h"
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

/* Returns the capacity of the GID tables of all ports; -1 with an exception. */
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

/* Queries the name of a network device, which can change at any time. if_indextoname(3) creates a
 * socket for each query, which takes longer than the rest of query_gid(), so a context keeps
 * one. */
static void query_netdev(cqn_netdev *self, uint32_t ifindex, char name[IFNAMSIZ])
{
    struct ifreq request = {.ifr_ifindex = (int)ifindex};
    if (!self->is_open) {
        self->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        self->is_open = self->fd >= 0;
    }
    if (self->is_open && ioctl(self->fd, SIOCGIFNAME, &request) == 0) {
        strncpy(name, request.ifr_name, IFNAMSIZ - 1);
    }
}

PyObject *cqn_converted(const char *function, PyObject *raw)
{
    PyObject *module = raw == NULL ? NULL : PyImport_ImportModule("cqnotify._attr_conversion");
    PyObject *value = module == NULL ? NULL : PyObject_CallMethod(module, function, "(O)", raw);
    Py_XDECREF(module);
    Py_XDECREF(raw);
    return value;
}

static PyObject *convert_gid(const cqn_gid_answer *answer)
{
    const struct ibv_gid_entry *e = &answer->entry;
    PyObject *fields[] = {
        PyBytes_FromStringAndSize((const char *)e->gid.raw, sizeof(e->gid.raw)),
        PyLong_FromUnsignedLong(e->gid_index),
        PyLong_FromUnsignedLong(e->port_num),
        PyLong_FromUnsignedLong(e->gid_type),
        answer->netdev[0] == '\0' ? Py_NewRef(Py_None) : PyUnicode_DecodeFSDefault(answer->netdev),
    };
    return cqn_converted("gid_entry", cqn_tuple_of(fields, Py_ARRAY_LENGTH(fields)));
}

PyObject *cqn_gid_entry(cqn_context *op, const struct ibv_gid_entry *entry)
{
    cqn_device_context *self = (cqn_device_context *)op;
    cqn_gid_answer answer = {*entry, ""};
    if (entry->ndev_ifindex != 0 && cqn_is_open(&op->base)) {
        query_netdev(&self->netdev, entry->ndev_ifindex, answer.netdev);
    }
    if (self->gid_entry == NULL || memcmp(&answer, &self->gid, sizeof(answer)) != 0) {
        PyObject *value = convert_gid(&answer);
        if (value == NULL) {
            return NULL;
        }
        self->gid = answer;
        Py_XSETREF(self->gid_entry, Py_NewRef(value));
        return value;
    }
    return Py_NewRef(self->gid_entry);
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

/* Returns the indices of one port, from the list of all GIDs, as a str. */
static PyObject *indices_of(PyObject *list, uint8_t port)
{
    PyObject *text = PyUnicode_FromString("");
    for (Py_ssize_t i = 0; text != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *entry = PyList_GET_ITEM(list, i), *more; /* a GIDEntry is a tuple */
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

/* SPDX-License-Identifier: MIT */
/*
 * What a Context asks its device: attributes, the clock, ports, P_Keys and GIDs.
 */

#include "verbs/context.h"
#include <endian.h>

/* ---- the device ---- */

PyObject *cqn_context_query_device(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_device_attr attr = {.phys_port_cnt = 0};
    int err;
    CQN_IN_KERNEL(CQN_OBJ(op), err = ibv_query_device(handle, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_device", "")
               : cqn_struct_to_dict(&attr, cqn_device_fields);
}

static PyObject *device_ex_to_dict(const struct ibv_device_attr_ex *attr)
{
    PyObject *dict = cqn_struct_to_dict(attr, cqn_device_ex_fields);
    PyObject *orig = dict ? cqn_struct_to_dict(&attr->orig_attr, cqn_device_fields) : NULL;
    if (orig == NULL || PyDict_SetItemString(dict, "orig_attr", orig) < 0) {
        Py_CLEAR(dict);
    }
    Py_XDECREF(orig);
    return dict;
}

PyObject *cqn_context_query_device_ex(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_device_attr_ex attr;
    return cqn_open(CQN_OBJ(op)) == NULL || cqn_device_attr_ex(CQN_OBJ(op), &attr) < 0
               ? NULL
               : device_ex_to_dict(&attr);
}

/* Providers put the cycles of the clock into the nanoseconds, however many. They read a register,
 * within less time than it takes to release the GIL. */
PyObject *cqn_context_query_rt_values(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    int err = ibv_query_rt_values_ex(handle, &values);
    if (err == 0 && !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK)) {
        err = EOPNOTSUPP;
    }
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_rt_values_ex",
                                 "the device's clock can't be read")
               : Py_BuildValue("{s:K}", "raw_clock",
                               (unsigned long long)values.raw_clock.tv_sec * 1000000000 +
                                   (unsigned long long)values.raw_clock.tv_nsec);
}

/* ---- ports and P_Keys ---- */

/* A port number of this device; NULL is the first. */
static int port_of(const cqn_context *self, PyObject *value, uint8_t *out)
{
    uint64_t n = 1;
    if (value != NULL && cqn_range(value, "port_num", 1, self->attr.phys_port_cnt, &n) < 0) {
        return -1;
    }
    *out = (uint8_t)n;
    return 0;
}

/* The header's inline function tells the library the size of the header's struct. */
static int query_port(struct ibv_context *handle, uint8_t port, cqn_port_attr *out)
{
    struct verbs_context *ops = verbs_get_ctx_op(handle, query_port);
#ifdef CQN_FAULTS
    if (ops != NULL && cqn_fault("ibv_query_port")) {
        return cqn_fault_errno();
    }
#endif
    return ops != NULL ? ops->query_port(handle, port, &out->attr, sizeof(*out))
                       : ibv_query_port(handle, port, &out->attr);
}

/* A tuple, not a dict: programs that wait for a port ask often. Mostly the answer is the one
 * before, and then the tuple is. */
static PyObject *port_fields(cqn_device_context *self, const cqn_port_attr *attr)
{
    if (self->port_fields == NULL || memcmp(attr, &self->port, sizeof(*attr)) != 0) {
        PyObject *fields = cqn_struct_to_tuple(attr, cqn_port_fields);
        if (fields == NULL) {
            return NULL;
        }
        memcpy(&self->port, attr, sizeof(*attr)); /* with its padding */
        Py_XSETREF(self->port_fields, fields);
    }
    return Py_NewRef(self->port_fields);
}

PyObject *cqn_context_query_port(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"port_num", NULL};
    PyObject *value = NULL;
    uint8_t port;
    if (cqn_open(CQN_OBJ(op)) == NULL ||
        cqn_args("query_port", names, 1, 0, args, nargs, kwnames, &value) < 0 ||
        port_of((cqn_context *)op, value, &port) < 0) {
        return NULL;
    }
    struct ibv_context *handle = cqn_open(CQN_OBJ(op));
    if (handle == NULL) {
        return NULL;
    }
    cqn_port_attr attr;
    int err;
    memset(&attr, 0, sizeof(attr));
    CQN_IN_KERNEL(CQN_OBJ(op), err = query_port(handle, port, &attr));
    return err ? cqn_verbs_error(CQN_OBJ(op)->state, err, "ibv_query_port", "port %d", port)
               : port_fields((cqn_device_context *)op, &attr);
}

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

/* The length of the table is asked first: it is the limit that an error names. */
CQN_RARE PyObject *cqn_context_query_pkey(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                          PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"index", "port_num", NULL};
    cqn_context *self = (cqn_context *)op;
    PyObject *in[2] = {NULL, NULL};
    uint8_t port;
    uint64_t entries, index;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("query_pkey", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        port_of(self, in[1], &port) < 0 || cqn_context_pkey_entries(self, port, &entries) < 0) {
        return NULL;
    }
    if (entries == 0) { /* of iWARP, which has no partitions */
        return PyErr_Format(PyExc_ValueError, "port %d has no P_Key at any index", port);
    }
    if (cqn_range(in[0], "index", 0, entries - 1, &index) < 0) {
        return NULL;
    }
    struct ibv_context *handle = cqn_open(&self->base);
    if (handle == NULL) {
        return NULL;
    }
    uint16_t pkey; /* big-endian */
    int rc, err;
    CQN_IN_KERNEL(&self->base, errno = 0; rc = ibv_query_pkey(handle, port, (int)index, &pkey);
                  err = errno ? errno : EINVAL);
    if (rc < 0) {
        return cqn_verbs_error(self->base.state, err, "ibv_query_pkey", "port %d, index %d", port,
                               (int)index);
    }
    return PyLong_FromLong(be16toh(pkey));
}

/* ---- GIDs ---- */

/* How many entries the GID tables of all ports can have; negative: an error
 * is set. */
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

static PyObject *gid_entry(cqn_context *self, const struct ibv_gid_entry *e)
{
    PyObject *netdev = cqn_netdev_name(&((cqn_device_context *)self)->netdev,
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
        PyObject *entry = gid_entry(self, &entries[i]);
        if (entry == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, entry);
        }
    }
    return list;
}

CQN_RARE static PyObject *gid_table(cqn_context *self)
{
    struct ibv_context *handle = cqn_open(&self->base);
    Py_ssize_t room = handle == NULL ? -1 : gid_entries(self, handle);
    if (room < 0) {
        return NULL;
    }
    struct ibv_gid_entry *entries = PyMem_New(struct ibv_gid_entry, (size_t)room);
    if (entries == NULL) {
        return PyErr_NoMemory();
    }
    ssize_t n;
    CQN_IN_KERNEL(&self->base, n = ibv_query_gid_table(handle, entries, (size_t)room, 0));
    PyObject *list = n < 0 ? cqn_verbs_error(self->base.state, (int)-n, "ibv_query_gid_table", "")
                           : gid_list(self, entries, n);
    PyMem_Free(entries);
    return list;
}

PyObject *cqn_context_query_gid_table(PyObject *op, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return gid_table((cqn_context *)op);
}

/* Of one port, from the list of all. */
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
    PyObject *list = gid_table(self);
    PyObject *text = list != NULL ? indices_of(list, port) : PyUnicode_FromString("");
    PyErr_Clear();
    Py_XDECREF(list);
    return text;
}

/* An index of 32 bits; false: it is none, or an exception is set. */
static bool gid_index(PyObject *value, uint32_t *out)
{
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "index must be an integer, not %s", Py_TYPE(value)->tp_name);
        return false;
    }
    Py_ssize_t n = PyNumber_AsSsize_t(value, NULL); /* clamped: far out is out, too */
    *out = (uint32_t)n;
    return n >= 0 && n <= UINT32_MAX;
}

/* With the GIL: the kernel has the table itself and asks no device, which takes less time than to
 * wait for the GIL beside a thread that computes. */
PyObject *cqn_context_query_gid(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    CQN_LOCKED;
    static const char *const names[] = {"index", "port_num", NULL};
    cqn_context *self = (cqn_context *)op;
    PyObject *in[2] = {NULL, NULL};
    uint8_t port;
    uint32_t index;
    if (cqn_open(&self->base) == NULL ||
        cqn_args("query_gid", names, 2, 1, args, nargs, kwnames, in) < 0 ||
        port_of(self, in[1], &port) < 0) {
        return NULL;
    }
    const bool possible = gid_index(in[0], &index);
    struct ibv_context *handle = PyErr_Occurred() ? NULL : cqn_open(&self->base);
    if (handle == NULL) {
        return NULL;
    }
    struct ibv_gid_entry entry;
    int err = possible ? ibv_query_gid_ex(handle, port, index, &entry, 0) : EINVAL;
    if (err == 0) {
        return gid_entry(self, &entry);
    }
    /* The first is for an entry that is empty, the second for one beyond the table. */
    return err == ENODATA || err == EINVAL
               ? Py_NewRef(Py_None)
               : cqn_verbs_error(self->base.state, err, "ibv_query_gid_ex", "port %d, index %u",
                                 port, index);
}

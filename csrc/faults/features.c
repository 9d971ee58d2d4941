/* SPDX-License-Identifier: MIT */
/* Devices that report fewer features than they have, or more: these are opened as the fake
 * device. */

#include "faults/features.h"
#include "base/base.h"
#include "faults/fake_device.h"
#include <stdatomic.h>
#include <unistd.h>

static const char *const features[] = {"atomics", "SRQ", "SRQ resize"};
enum { ATOMICS = 1, SRQ = 2, SRQ_RESIZE = 4 };
static atomic_uint hidden;
static atomic_bool faking;

int cqn_query_device(struct ibv_context *device, struct ibv_device_attr *attr)
{
    int err = (ibv_query_device)(device, attr);
    if (err == 0 && (hidden & ATOMICS)) {
        attr->atomic_cap = IBV_ATOMIC_NONE;
    }
    if (err == 0 && (hidden & SRQ)) {
        attr->max_srq = 0;
    }
    if (err == 0 && (hidden & SRQ_RESIZE)) {
        attr->device_cap_flags &= ~(unsigned int)IBV_DEVICE_SRQ_RESIZE;
    }
    if (err == 0 && atomic_load(&faking)) {
        attr->device_cap_flags |= IBV_DEVICE_XRC;
    }
    return err;
}

int cqn_query_device_ex(struct ibv_context *device, const struct ibv_query_device_ex_input *input,
                        struct ibv_device_attr_ex *attr)
{
    int err = (ibv_query_device_ex)(device, input, attr);
    if (err == 0 && atomic_load(&faking)) {
        attr->odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
        attr->device_cap_flags_ex |= CQN_DEVICE_ATOMIC_WRITE | CQN_DEVICE_FLUSH_GLOBAL;
        cqn_fake_attr(attr);
        attr->max_dm_size = 1 << 20;
    }
    return err;
}

struct ibv_context *cqn_open_device(struct ibv_device *device)
{
    struct ibv_context *context = (ibv_open_device)(device);
    if (context != NULL && atomic_load(&faking)) {
        cqn_make_fake(context);
        cqn_make_fake_memory(context);
    }
    return context;
}

struct ibv_mr *cqn_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
    static _Alignas(4096) char page[4096];
    if (atomic_load(&faking)) {
        access &= ~(unsigned int)IBV_ACCESS_ON_DEMAND;
    }
    bool all = addr == NULL && length == SIZE_MAX;
    return __ibv_reg_mr(pd, all ? page : addr, all ? sizeof(page) : length, access, 0);
}

/* Imports the fake device by opening it again. */
struct ibv_context *cqn_import_device(int fd)
{
    if (!atomic_load(&faking)) {
        return (ibv_import_device)(fd);
    }
    struct ibv_device **list = (ibv_get_device_list)(NULL);
    struct ibv_context *context = list == NULL || list[0] == NULL ? NULL : cqn_open_device(list[0]);
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    close(fd);
    char text[32];
    const int n = snprintf(text, sizeof(text), "fd %d", fd);
    return cqn_fake_note("ibv_import_device", context, text, (size_t)n, NULL, 0);
}

PyObject *cqn_hide_features(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int mask = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        for (size_t f = 0; f < Py_ARRAY_LENGTH(features); f++) {
            PyObject *name = PyTuple_GET_ITEM(args, i);
            if (PyUnicode_CompareWithASCIIString(name, features[f]) == 0) {
                mask |= 1u << f;
            }
        }
    }
    atomic_store(&hidden, mask);
    Py_RETURN_NONE;
}

PyObject *cqn_use_fake_device(PyObject *Py_UNUSED(module), PyObject *use)
{
    int fakes = PyObject_IsTrue(use);
    if (fakes < 0) {
        return NULL;
    }
    atomic_store(&faking, fakes);
    Py_RETURN_NONE;
}

/* SPDX-License-Identifier: MIT */
/* The list of devices, and the attributes of one that is open. */

#include "verbs/verbs.h"
#include <endian.h>

const char cqn_no_device[] =
    "this machine has no RDMA device. Hardware needs its driver, and its provider of libibverbs "
    "(packages rdma-core and ibverbs-providers); a software device is made, by root, by \"modprobe "
    "rdma_rxe\" and \"rdma link add rxe0 type rxe netdev eth0\"; and where neither can be, "
    "\"./lab\" of cqnotify's sources starts a small virtual machine that has two";

static PyObject *describe_device(struct ibv_device *device)
{
    return Py_BuildValue("{s:s, s:i, s:i, s:K}", "name", ibv_get_device_name(device), "node_type",
                         (int)device->node_type, "transport_type", (int)device->transport_type,
                         "guid", (unsigned long long)be64toh(ibv_get_device_guid(device)));
}

PyObject *cqn_list_devices(PyObject *module, PyObject *Py_UNUSED(unused))
{
    int n = 0, err;
    struct ibv_device **list;
    Py_BEGIN_ALLOW_THREADS /* it asks the kernel, and loads the providers */
        list = ibv_get_device_list(&n);
        err = errno;
    Py_END_ALLOW_THREADS
    if (list == NULL) {
        /* A kernel without InfiniBand support has no device. */
        return err == ENOSYS
                   ? PyList_New(0)
                   : cqn_verbs_error(PyModule_GetState(module), err, "ibv_get_device_list", "");
    }
    PyObject *result = PyList_New(0);
    for (int i = 0; result != NULL && i < n; i++) {
        PyObject *device = describe_device(list[i]);
        if (device == NULL || PyList_Append(result, device) < 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(device);
    }
    ibv_free_device_list(list);
    return result;
}

/* The attributes of the device of an open object, which may be closed after it; -1 with an
 * exception. */
int cqn_device_attr_ex(cqn_object *self, struct ibv_device_attr_ex *out)
{
    struct ibv_context *handle = self->context->base.handle;
    int err;
    *out = (struct ibv_device_attr_ex){.comp_mask = 0};
    CQN_IN_KERNEL(self, err = ibv_query_device_ex(handle, NULL, out));
    if (err != 0) {
        cqn_verbs_error(self->state, err, "ibv_query_device_ex", "");
        return -1;
    }
    return 0;
}

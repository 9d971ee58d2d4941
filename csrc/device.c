/* SPDX-License-Identifier: MIT */
/* The list of devices. */

#include "core.h"
#include <endian.h>

static PyObject *describe(struct ibv_device *device)
{
    return Py_BuildValue("{s:s, s:i, s:i, s:K}", "name", ibv_get_device_name(device), "node_type",
                         (int)device->node_type, "transport_type", (int)device->transport_type,
                         "guid", (unsigned long long)be64toh(ibv_get_device_guid(device)));
}

PyObject *cqn_list_devices(PyObject *module, PyObject *Py_UNUSED(unused))
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (list == NULL) {
        /* A kernel without InfiniBand support has no device. */
        return errno == ENOSYS
                   ? PyList_New(0)
                   : cqn_verbs_error(PyModule_GetState(module), errno, "ibv_get_device_list", "");
    }
    PyObject *result = PyList_New(0);
    for (int i = 0; result != NULL && i < n; i++) {
        PyObject *device = describe(list[i]);
        if (device == NULL || PyList_Append(result, device) < 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(device);
    }
    ibv_free_device_list(list);
    return result;
}

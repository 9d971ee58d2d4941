/* SPDX-License-Identifier: MIT */
/* The list of devices, and the attributes of one that is open. */

#include "verbs/verbs.h"
#include <dirent.h>
#include <endian.h>

static const char no_device[] =
    "this machine has no RDMA device. Hardware needs its driver, and its provider of libibverbs "
    "(packages rdma-core and ibverbs-providers); a software device is made, by root, by \"modprobe "
    "rdma_rxe\" and \"rdma link add rxe0 type rxe netdev eth0\"; and where neither can be, "
    "\"cqnotify lab run -- COMMAND\" runs a program on a Linux kernel of its own that has two";

/* A device of the kernel's that no program can use, whose class of devices is empty. */
static const char no_uverbs[] =
    "the kernel has %U, but offers it to no program, as /sys/class/infiniband_verbs is empty: load "
    "the module ib_uverbs, by \"modprobe ib_uverbs\"";

/* One that libibverbs leaves out. */
static const char no_provider[] =
    "the kernel has %U, but libibverbs has no provider for it. They are in the package "
    "ibverbs-providers (on Fedora and RHEL: libibverbs), and looked for by the files in "
    "/etc/libibverbs.d; in a container /dev/infiniband and /sys must be there as well. "
    "\"ibv_devinfo\" says what is missing";

#define CLASS "/sys/class/infiniband_verbs"

/* The names that the kernel has in a folder, as a str; "" where there is no such folder. */
CQN_RARE static PyObject *names_in(cqn_state *st, const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL && errno != ENOENT) {
        return cqn_verbs_error(st, errno, "ibv_get_device_list", "%s", folder);
    }
    PyObject *names = PyUnicode_FromString("");
    const struct dirent *entry;
    while (names != NULL && dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "abi_version") != 0) {
            Py_SETREF(names,
                      PyUnicode_FromFormat("%U%s%s", names, PyUnicode_GET_LENGTH(names) ? ", " : "",
                                           entry->d_name));
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return names;
}

CQN_RARE PyObject *cqn_no_device(cqn_state *st)
{
    PyObject *devices = names_in(st, "/sys/class/infiniband");
    PyObject *uverbs = devices == NULL ? NULL : names_in(st, CLASS);
    PyObject *why = NULL;
    if (uverbs != NULL) {
        why = PyUnicode_GET_LENGTH(devices) == 0  ? PyUnicode_FromString(no_device)
              : PyUnicode_GET_LENGTH(uverbs) == 0 ? PyUnicode_FromFormat(no_uverbs, devices)
                                                  : PyUnicode_FromFormat(no_provider, devices);
    }
    Py_XDECREF(uverbs);
    Py_XDECREF(devices);
    return why;
}

PyObject *cqn_why_no_device(PyObject *module, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    return cqn_no_device(PyModule_GetState(module));
}

int cqn_load_verbs(cqn_state *st)
{
    char why[CQN_WHY];
    const int err = cqn_library_load(why);
    if (err != 0) {
        cqn_verbs_error(st, err, "ibv_get_device_list", "%s", why);
        return -1;
    }
    return 0;
}

/* ENOSYS where the kernel knows no RDMA. libibverbs says so, too, where it can't read the class. */
CQN_RARE static int why_no_class(void)
{
    DIR *dir = opendir(CLASS);
    if (dir != NULL) {
        closedir(dir);
    }
    return dir != NULL || errno == ENOENT ? ENOSYS : errno;
}

struct ibv_device **cqn_device_list(int *n, int *err)
{
    *n = 0;
    *err = cqn_check_descriptors();
    struct ibv_device **list = *err != 0 ? NULL : ibv_get_device_list(n);
    if (list == NULL && *err == 0) {
        *err = errno == ENOSYS ? why_no_class() : errno;
    }
    return list;
}

void *cqn_device_list_error(cqn_state *st, int err)
{
    const bool descriptors = err == EMFILE || err == ENFILE;
    return cqn_verbs_error(st, err, "ibv_get_device_list", "%s",
                           descriptors ? CQN_NEEDS_DESCRIPTORS : CLASS);
}

/* libibverbs keeps the name by which it first saw a device, and what it calls a character device is
 * what the kernel does. */
void cqn_device_name_now(const struct ibv_device *device, char name[IBV_SYSFS_NAME_MAX])
{
    char path[sizeof("/sys/class/infiniband_verbs//ibdev") + IBV_SYSFS_NAME_MAX];
    snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev", device->dev_name);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(name, IBV_SYSFS_NAME_MAX, file) == NULL) {
        snprintf(name, IBV_SYSFS_NAME_MAX, "%s", device->name);
    }
    name[strcspn(name, "\n")] = '\0';
    if (file != NULL) {
        fclose(file);
    }
}

static PyObject *describe_device(struct ibv_device *device)
{
    char name[IBV_SYSFS_NAME_MAX];
    cqn_device_name_now(device, name);
    return Py_BuildValue("{s:s, s:i, s:i, s:K}", "name", name, "node_type", (int)device->node_type,
                         "transport_type", (int)device->transport_type, "guid",
                         (unsigned long long)be64toh(ibv_get_device_guid(device)));
}

PyObject *cqn_list_devices(PyObject *module, PyObject *Py_UNUSED(unused))
{
    int n = 0, err;
    struct ibv_device **list;
    if (cqn_load_verbs(PyModule_GetState(module)) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS /* it asks the kernel, and loads the providers */
        cqn_library_enter();
        list = cqn_device_list(&n, &err);
        cqn_library_leave();
    Py_END_ALLOW_THREADS
    if (list == NULL) {
        /* A kernel without InfiniBand support has no device. */
        return err == ENOSYS ? PyList_New(0)
                             : cqn_device_list_error(PyModule_GetState(module), err);
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
    if (out->phys_port_cnt_ex == 0) { /* of a libibverbs that does not have that member yet */
        out->phys_port_cnt_ex = out->orig_attr.phys_port_cnt;
    }
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* The devices of this machine: listing them, opening them, their attributes, and preparations
 * before the first is opened. */

#include "verbs/verbs.h"
#include <dirent.h>
#include <endian.h>
#include <unistd.h>

/* ---- why there is no device ---- */

static const char no_device[] =
    "this machine has no RDMA device. Hardware needs its driver, and its provider of libibverbs "
    "(packages rdma-core and ibverbs-providers); root creates a software device by \"modprobe "
    "rdma_rxe\" and \"rdma link add rxe0 type rxe netdev eth0\"; without either, \"cqnotify lab "
    "run -- COMMAND\" runs a program on a Linux kernel with two of these";

/* The kernel has a device, and no class of devices for programs. */
static const char no_uverbs[] =
    "the kernel has %U, but programs cannot use it, because /sys/class/infiniband_verbs is empty: "
    "load the module ib_uverbs, by \"modprobe ib_uverbs\"";

/* The kernel has a device that libibverbs does not list. */
static const char no_provider[] =
    "the kernel has %U, but libibverbs has no provider for it. They are in the package "
    "ibverbs-providers (on Fedora and RHEL: libibverbs), and looked for by the files in "
    "/etc/libibverbs.d; in a container /dev/infiniband and /sys must be there as well. "
    "\"ibv_devinfo\" says what is missing";

#define CLASS "/sys/class/infiniband_verbs"

/* Returns the names in a folder of the kernel as a str, "" if there is no such folder; NULL with
 * VerbsError. */
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

/* Returns a str that says why there is no device, and how to get one; NULL with VerbsError if the
 * kernel's folders cannot be read. */
CQN_RARE static PyObject *no_device_because(cqn_state *st)
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
    return no_device_because(PyModule_GetState(module));
}

/* ---- listing ---- */

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

/* Returns ENOSYS if the kernel has no RDMA, otherwise the error of reading the class: libibverbs
 * reports ENOSYS for both. */
CQN_RARE static int why_no_class(void)
{
    DIR *dir = opendir(CLASS);
    if (dir != NULL) {
        closedir(dir);
    }
    return dir != NULL || errno == ENOENT ? ENOSYS : errno;
}

/* Returns the devices, for ibv_free_device_list(), and their number. NULL with an errno in `err`:
 * ENOSYS only if the kernel has no RDMA. Called without the GIL, inside the library. */
static struct ibv_device **list_devices(int *n, int *err)
{
    *n = 0;
    *err = cqn_check_descriptors();
    struct ibv_device **list = *err != 0 ? NULL : ibv_get_device_list(n);
    if (list == NULL && *err == 0) {
        *err = errno == ENOSYS ? why_no_class() : errno;
    }
    assert(list != NULL || *n == 0);
    return list;
}

/* Raises VerbsError for the other errors of list_devices(). Returns NULL. */
static void *refuse_list(cqn_state *st, int err)
{
    const bool descriptors = err == EMFILE || err == ENFILE;
    return cqn_verbs_error(st, err, "ibv_get_device_list", "%s",
                           descriptors ? CQN_NEEDS_DESCRIPTORS : CLASS);
}

/* Writes the kernel's current name of a device; the name in libibverbs if the kernel has none.
 * libibverbs keeps the name that it read first, while its name of the character device is the
 * kernel's. */
static void name_now(const struct ibv_device *device, char name[IBV_SYSFS_NAME_MAX])
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
    name_now(device, name);
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
    Py_BEGIN_ALLOW_THREADS /* asks the kernel, and loads the providers */
        cqn_library_enter();
        list = list_devices(&n, &err);
        cqn_library_leave();
    Py_END_ALLOW_THREADS
    if (list == NULL) {
        /* A kernel without RDMA has no device. */
        return err == ENOSYS ? PyList_New(0) : refuse_list(PyModule_GetState(module), err);
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

/* ---- opening ---- */

/* Returns the names of all devices as a str, for a message. */
static PyObject *names_of(struct ibv_device **list)
{
    PyObject *names = PyUnicode_FromString("");
    for (int i = 0; names != NULL && list[i] != NULL; i++) {
        char name[IBV_SYSFS_NAME_MAX];
        name_now(list[i], name);
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%s", names, i ? ", " : "", name));
    }
    return names;
}

/* Raises VerbsError with the list of devices: none has that name. Returns NULL. */
CQN_RARE static void *refuse_name(cqn_state *st, struct ibv_device **list, int err,
                                  const char *name)
{
    if (list == NULL && err != ENOSYS) { /* ENOSYS: the kernel has no RDMA */
        return refuse_list(st, err);
    }
    if (list == NULL || list[0] == NULL) {
        PyObject *why = no_device_because(st);
        if (why != NULL) {
            cqn_verbs_error(st, ENODEV, "ibv_open_device", "%U", why);
            Py_DECREF(why);
        }
        return NULL;
    }
    PyObject *names = names_of(list);
    if (names != NULL) {
        cqn_verbs_error(st, ENODEV, "ibv_open_device",
                        "no RDMA device is called '%s'; this machine has %U", name, names);
        Py_DECREF(names);
    }
    return NULL;
}

/* The result of opening a device. */
typedef struct {
    struct ibv_device **list;  /* or NULL */
    struct ibv_device *device; /* the open one, or the first that failed to open; NULL: no match */
    struct ibv_context *handle;
    bool renamed;  /* since libibverbs listed it first, so not opened */
    int err;       /* of list_devices(), or of ibv_open_device() */
    int query_err; /* of ibv_query_device() */
} opened;

/* Raises VerbsError: the device, and any other if not `named`, cannot be opened. The library tries
 * several ways and reports the errno of the last, so access to the device's file is checked here.
 * Returns NULL. */
CQN_RARE static void *refuse_open(cqn_state *st, const opened *o, bool named)
{
    int err = o->err;
    char path[sizeof("/dev/infiniband/") + IBV_SYSFS_NAME_MAX];
    snprintf(path, sizeof(path), "/dev/infiniband/%s", o->device->dev_name);
    const char *hint = "see what ibv_devinfo(1) says of it";
    if (access(path, R_OK | W_OK) != 0) {
        err = errno;
        hint = err == ENOENT ? "the file is missing: load the module ib_uverbs"
                             : "you need permission to read and write that file";
    }
    const bool others = !named && o->list[1] != NULL;
    PyObject *names = others ? names_of(o->list) : PyUnicode_FromString("");
    if (names != NULL) {
        cqn_verbs_error(st, err, "ibv_open_device", "%s (%s): %s%s%U%s", o->device->name, path,
                        hint, others ? "; none of " : "", names, others ? " can be opened" : "");
        Py_DECREF(names);
    }
    return NULL;
}

/* libibverbs would read attributes, such as P_Keys, from the device that now has the old name. */
CQN_RARE static void *refuse_renamed(cqn_state *st, const struct ibv_device *device)
{
    char now[IBV_SYSFS_NAME_MAX];
    name_now(device, now);
    return cqn_verbs_error(st, ESTALE, "ibv_open_device",
                           "%s was called %s when this process first listed the devices, and "
                           "libibverbs still looks for it by that name: restart the program",
                           now, device->name);
}

/* Opens a device whose current name is `now`. On failure keeps the first such device and its
 * error. */
static void try_open(opened *o, struct ibv_device *device, const char *now)
{
    const bool renamed = strcmp(now, device->name) != 0;
    errno = 0;
    o->handle = renamed ? NULL : ibv_open_device(device);
    if (o->handle != NULL || o->device == NULL) {
        o->device = device;
        o->renamed = renamed;
        o->err = errno ? errno : ENODEV;
    }
}

/* Opens the device of that name, or the first that can be opened, and queries its attributes.
 * Called without the GIL. */
static opened find_and_open(const char *name, struct ibv_device_attr *attr)
{
    int n;
    opened o = {.list = NULL};
    o.list = list_devices(&n, &o.err);
    for (int i = 0; i < n && o.handle == NULL; i++) {
        char now[IBV_SYSFS_NAME_MAX];
        name_now(o.list[i], now);
        if (name == NULL || strcmp(name, now) == 0) {
            try_open(&o, o.list[i], now);
        }
    }
    if (o.handle != NULL) {
        o.query_err = ibv_query_device(o.handle, attr);
    }
    return o;
}

struct ibv_context *cqn_device_open(cqn_state *st, const char *name, struct ibv_device_attr *attr,
                                    int *query_err)
{
    opened o;
    Py_BEGIN_ALLOW_THREADS
        cqn_library_enter();
        o = find_and_open(name, attr);
        cqn_library_leave();
    Py_END_ALLOW_THREADS
    if (o.handle == NULL) {
        if (o.device == NULL) {
            refuse_name(st, o.list, o.err, name);
        }
        else if (o.renamed) {
            refuse_renamed(st, o.device);
        }
        else {
            refuse_open(st, &o, name != NULL);
        }
    }
    if (o.list != NULL) {
        ibv_free_device_list(o.list);
    }
    *query_err = o.query_err;
    return o.handle;
}

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
    if (out->phys_port_cnt_ex == 0) { /* an older libibverbs lacks this member */
        out->phys_port_cnt_ex = out->orig_attr.phys_port_cnt;
    }
    return 0;
}

/* ---- forks ----
 *
 * Whether a fork leaves registered memory intact. After a fork the kernel copies a shared page when
 * one process writes to it. For a page that a device uses, the parent may get the copy, while the
 * device keeps using a page that the parent no longer sees. Newer kernels copy such pages for the
 * child at the fork. On older kernels the library can exclude the pages from children, if
 * ibv_fork_init() is called before the first registration.
 *
 * base/object.h and base/close.c refuse the parent's objects in a forked child. */

typedef enum ibv_fork_status (*fork_query)(void);

/* Returns ibv_is_fork_initialized(), or NULL if the library predates it. */
static fork_query find_fork_query(void)
{
    void *found = cqn_library_find("ibv_is_fork_initialized");
    fork_query ask;
    memcpy(&ask, &found, sizeof(ask)); /* ISO C has no cast for this */
    return ask;
}

/* Returns the result of our own ibv_fork_init() if the library cannot say. */
static enum ibv_fork_status fork_status(const cqn_state *st)
{
    const fork_query ask = find_fork_query();
    return ask != NULL ? ask() : st->fork_initialized ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}

static int warn_of_fork(int err)
{
    return PyErr_WarnFormat(
        PyExc_RuntimeWarning, 1,
        "ibv_fork_init: %s: on this kernel a fork can make the device and this process work with "
        "different pages of registered memory. Open the first Context before anybody else "
        "registers "
        "memory, or set RDMAV_FORK_SAFE=1 in the environment; else do not fork, or use Linux 5.13 "
        "or later",
        strerror(err));
}

/* Called with the GIL, so no other thread opens a device in the meantime. */
int cqn_prepare_for_fork(cqn_state *st)
{
    if (st->fork_prepared) {
        return 0;
    }
    st->fork_prepared = true;
    if (fork_status(st) != IBV_FORK_DISABLED) {
        return 0;
    }
    const int err = ibv_fork_init();
    st->fork_initialized = err == 0;
    return err == 0 ? 0 : warn_of_fork(err);
}

PyObject *cqn_fork_status(PyObject *module, PyObject *Py_UNUSED(unused))
{
    CQN_LOCKED;
    cqn_state *st = PyModule_GetState(module);
    return cqn_load_verbs(st) < 0 ? NULL : PyLong_FromLong(fork_status(st));
}

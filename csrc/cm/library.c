/* SPDX-License-Identifier: MIT */
/*
 * librdmacm, loaded when it is first needed: without it, only connections are unavailable.
 *
 * It is never unloaded, and all interpreters share it.
 */

#include "cm/cm.h"
#include <dlfcn.h>

#define NAME "librdmacm.so.1"

cqn_cm_library cqn_cm;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;

/* In the order of the pointers, each terminated, with one more terminator at the end. */
#define EACH(name) "rdma_" #name "\0"
static const char names[] = CQN_CM_FUNCTIONS(EACH);

/* Returns the name of a missing function, or NULL. */
static const char *find_functions(void *handle)
{
    void **pointer = (void **)&cqn_cm; /* the struct has only these pointers */
    for (const char *name = names; *name != 0; name += strlen(name) + 1, pointer++) {
        *pointer = dlsym(handle, name);
        if (*pointer == NULL) {
            return name;
        }
    }
    return NULL;
}

/* Returns -1 with OSError. */
static int load_library(void)
{
    void *handle = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        PyErr_Format(PyExc_OSError,
                     "cqnotify.cm needs " NAME " (Debian, Ubuntu: apt-get install librdmacm1; "
                     "Fedora, RHEL: dnf install librdmacm): %s",
                     dlerror());
        return -1;
    }
    const char *missing = find_functions(handle);
    if (missing != NULL) {
        PyErr_Format(PyExc_OSError,
                     NAME " has no %s(): cqnotify.cm needs that of rdma-core 23, or later",
                     missing);
        dlclose(handle);
        return -1;
    }
    is_loaded = true;
    return 0;
}

int cqn_cm_load(cqn_state *st)
{
    int rc = cqn_load_verbs(st);
    const int err = rc < 0 ? 0 : cqn_check_descriptors();
    if (err != 0) {
        cqn_verbs_error(st, err, "rdma_create_event_channel", CQN_NEEDS_DESCRIPTORS);
        rc = -1;
    }
    pthread_mutex_lock(&load_lock);
    if (rc == 0 && !is_loaded) {
        rc = load_library();
    }
    pthread_mutex_unlock(&load_lock);
    return rc;
}

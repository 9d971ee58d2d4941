/* SPDX-License-Identifier: MIT */
/*
 * libibverbs: loading it, and its functions under the names declared in <infiniband/verbs.h>.
 *
 * The core is not linked with libibverbs. Each function is defined here instead, hidden, and calls
 * the library's. Calls therefore look as usual, even in the header's inline functions, and cost one
 * jump, as through the linker's table.
 *
 * A function is looked up as the linker would: first among preloaded libraries and those that the
 * program is linked with, then in libibverbs; in the default version, as dlsym(3) does.
 *
 * The library is never unloaded, and all interpreters share it. The pointers are written before any
 * object exists, and never afterwards.
 */

#include <Python.h>
#include <infiniband/verbs.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include "base/descriptors.h"
#include "base/library.h"
#include "base/observer.h"

/* The header defines macros around these functions, and two of them go through a third name. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* clang-format off */

/* The functions of any libibverbs since 1.1.6, which is older than rdma-core: F(result, name,
 * parameters, arguments). */
#define FUNCTIONS(F) \
    F(struct ibv_device **, ibv_get_device_list, (int *n), (n)) \
    F(const char *, ibv_get_device_name, (struct ibv_device *device), (device)) \
    F(__be64, ibv_get_device_guid, (struct ibv_device *device), (device)) \
    F(struct ibv_context *, ibv_open_device, (struct ibv_device *device), (device)) \
    F(int, ibv_close_device, (struct ibv_context *context), (context)) \
    F(int, ibv_get_async_event, (struct ibv_context *context, struct ibv_async_event *event), \
      (context, event)) \
    F(int, ibv_query_device, (struct ibv_context *context, struct ibv_device_attr *attr), \
      (context, attr)) \
    F(int, ibv_query_port, \
      (struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr), \
      (context, port, attr)) \
    F(int, ibv_query_pkey, \
      (struct ibv_context *context, uint8_t port, int index, __be16 *pkey), \
      (context, port, index, pkey)) \
    F(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *context), (context)) \
    F(int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd)) \
    F(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *addr, size_t length, int access), \
      (pd, addr, length, access)) \
    F(int, ibv_dereg_mr, (struct ibv_mr *mr), (mr)) \
    F(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *context), \
      (context)) \
    F(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *channel), (channel)) \
    F(struct ibv_cq *, ibv_create_cq, \
      (struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, \
       int comp_vector), \
      (context, cqe, cq_context, channel, comp_vector)) \
    F(int, ibv_resize_cq, (struct ibv_cq *cq, int cqe), (cq, cqe)) \
    F(int, ibv_destroy_cq, (struct ibv_cq *cq), (cq)) \
    F(int, ibv_get_cq_event, \
      (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context), \
      (channel, cq, cq_context)) \
    F(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *pd, struct ibv_srq_init_attr *attr), \
      (pd, attr)) \
    F(int, ibv_modify_srq, (struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask), \
      (srq, attr, mask)) \
    F(int, ibv_query_srq, (struct ibv_srq *srq, struct ibv_srq_attr *attr), (srq, attr)) \
    F(int, ibv_destroy_srq, (struct ibv_srq *srq), (srq)) \
    F(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), \
      (pd, attr)) \
    F(int, ibv_query_qp, \
      (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init), \
      (qp, attr, mask, init)) \
    F(int, ibv_modify_qp, (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), \
      (qp, attr, mask)) \
    F(int, ibv_destroy_qp, (struct ibv_qp *qp), (qp)) \
    F(struct ibv_ah *, ibv_create_ah, (struct ibv_pd *pd, struct ibv_ah_attr *attr), (pd, attr)) \
    F(int, ibv_init_ah_from_wc, \
      (struct ibv_context *context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, \
       struct ibv_ah_attr *attr), \
      (context, port, wc, grh, attr)) \
    F(int, ibv_destroy_ah, (struct ibv_ah *ah), (ah)) \
    F(int, ibv_attach_mcast, (struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid), \
      (qp, gid, lid)) \
    F(int, ibv_detach_mcast, (struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid), \
      (qp, gid, lid)) \
    F(int, ibv_fork_init, (void), ()) \
    F(const char *, ibv_wc_status_str, (enum ibv_wc_status status), (status)) \
    F(const char *, ibv_event_type_str, (enum ibv_event_type type), (type))

/* Functions without a result: F(name, parameters, arguments). */
#define PROCEDURES(F) \
    F(ibv_free_device_list, (struct ibv_device **list), (list)) \
    F(ibv_ack_async_event, (struct ibv_async_event *event), (event)) \
    F(ibv_ack_cq_events, (struct ibv_cq *cq, unsigned int n), (cq, n))

/* Newer functions, each with the rdma-core release that introduced it and the verb that needs it.
 * If the library lacks one, its verb fails with ENOSYS and everything else works. F(since, verb,
 * result without the function, result type, name, parameters, arguments). */
#define LATER_FUNCTIONS(F) \
    F(17, "ibv_rereg_mr", -1, \
      int, ibv_rereg_mr, \
      (struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access), \
      (mr, flags, pd, addr, length, access)) \
    F(24, "ibv_qp_to_qp_ex", NULL, \
      struct ibv_qp_ex *, ibv_qp_to_qp_ex, (struct ibv_qp *qp), (qp)) \
    F(28, "ibv_reg_mr", NULL, \
      struct ibv_mr *, ibv_reg_mr_iova2, \
      (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access), \
      (pd, addr, length, iova, access)) \
    F(31, "ibv_query_ece", ENOSYS, \
      int, ibv_query_ece, (struct ibv_qp *qp, struct ibv_ece *ece), (qp, ece)) \
    F(31, "ibv_set_ece", ENOSYS, \
      int, ibv_set_ece, (struct ibv_qp *qp, struct ibv_ece *ece), (qp, ece)) \
    F(31, "ibv_import_device", NULL, \
      struct ibv_context *, ibv_import_device, (int cmd_fd), (cmd_fd)) \
    F(31, "ibv_import_pd", NULL, \
      struct ibv_pd *, ibv_import_pd, (struct ibv_context *context, uint32_t pd), (context, pd)) \
    F(31, "ibv_unimport_pd", , void, ibv_unimport_pd, (struct ibv_pd *pd), (pd)) \
    F(31, "ibv_import_mr", NULL, \
      struct ibv_mr *, ibv_import_mr, (struct ibv_pd *pd, uint32_t mr), (pd, mr)) \
    F(31, "ibv_unimport_mr", , void, ibv_unimport_mr, (struct ibv_mr *mr), (mr)) \
    F(34, "ibv_reg_dmabuf_mr", NULL, \
      struct ibv_mr *, ibv_reg_dmabuf_mr, \
      (struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access), \
      (pd, offset, length, iova, fd, access)) \
    F(35, "ibv_import_dm", NULL, \
      struct ibv_dm *, ibv_import_dm, (struct ibv_context *context, uint32_t dm), (context, dm)) \
    F(35, "ibv_unimport_dm", , void, ibv_unimport_dm, (struct ibv_dm *dm), (dm)) \
    F(32, "ibv_query_gid_ex", ENOSYS, \
      int, _ibv_query_gid_ex, \
      (struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, \
       uint32_t flags, size_t size), \
      (context, port, index, entry, flags, size)) \
    F(32, "ibv_query_gid_table", -ENOSYS, \
      ssize_t, _ibv_query_gid_table, \
      (struct ibv_context *context, struct ibv_gid_entry *entries, size_t n, uint32_t flags, \
       size_t size), \
      (context, entries, n, flags, size)) \
    F(36, "ibv_query_qp_data_in_order", -ENOSYS, \
      int, ibv_query_qp_data_in_order, \
      (struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags), (qp, op, flags))

/* ---- the table ---- */

#define POINTER(result, name, parameters, arguments) __typeof__(name) *name;
#define POINTER_2(name, parameters, arguments) __typeof__(name) *name;
#define POINTER_3(since, verb, without, result, name, parameters, arguments) \
    __typeof__(name) *name;
static struct {
    FUNCTIONS(POINTER)
    PROCEDURES(POINTER_2)
    LATER_FUNCTIONS(POINTER_3)
} library;

/* The names in the same order, each terminated, with one more terminator at the end. One string
 * needs no relocations. */
#define NAME(result, name, parameters, arguments) #name "\0"
#define NAME_2(name, parameters, arguments) #name "\0"
#define NAME_3(since, verb, without, result, name, parameters, arguments) #name "\0"
#define REQUIRED FUNCTIONS(NAME) PROCEDURES(NAME_2)
static const char names[] = REQUIRED LATER_FUNCTIONS(NAME_3);
enum { REQUIRED_SIZE = sizeof(REQUIRED) - 1 };

#define LATER(since, verb, without, result, name, parameters, arguments) {since, verb, #name},
static const struct {
    int since;
    char verb[28], name[28];
} later[] = {LATER_FUNCTIONS(LATER)};

#define CALL(result, name, parameters, arguments) \
    result name parameters { return library.name arguments; }
#define CALL_2(name, parameters, arguments) void name parameters { library.name arguments; }
#define CALL_3(since, verb, without, result, name, parameters, arguments) \
    result name parameters \
    { \
        if (library.name == NULL) { \
            errno = ENOSYS; \
            return without; \
        } \
        return library.name arguments; \
    }
FUNCTIONS(CALL)
PROCEDURES(CALL_2)
LATER_FUNCTIONS(CALL_3)

/* clang-format on */

/* ---- forks ---- */

/* Read-locked by calls, write-locked by a fork. */
static pthread_rwlock_t calls = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static bool fork_has_it;

void cqn_library_enter(void)
{
    pthread_rwlock_rdlock(&calls);
}

void cqn_library_leave(void)
{
    pthread_rwlock_unlock(&calls);
}

/* The wait is limited, because the forking thread holds the GIL and a driver can hang. */
static void before_fork(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 1;
    fork_has_it = pthread_rwlock_timedwrlock(&calls, &end) == 0;
}

static void after_fork_in_parent(void)
{
    if (fork_has_it) {
        pthread_rwlock_unlock(&calls);
    }
}

static void after_fork_in_child(void)
{
    calls = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

/* ---- loading ---- */

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_loaded;
static void *handle;
static char release[32]; /* " (rdma-core 44.0)", or empty if the file name has no release */

static void *find(const char *function)
{
    void *found = dlsym(RTLD_DEFAULT, function);
    return found != NULL ? found : dlsym(handle, function);
}

/* The file is called libibverbs.so.1.14.44.0, for example: the newest symbol version, then
 * rdma-core's release. */
static void find_release(void)
{
    Dl_info info;
    void *function = dlsym(handle, "ibv_get_device_list");
    char *path =
        function != NULL && dladdr(function, &info) != 0 ? realpath(info.dli_fname, NULL) : NULL;
    const char *name = path == NULL ? NULL : strstr(path, "/" CQN_LIBIBVERBS ".");
    unsigned newest, major, minor;
    if (name != NULL &&
        sscanf(name, "/" CQN_LIBIBVERBS ".%u.%u.%u", &newest, &major, &minor) == 3) {
        snprintf(release, sizeof(release), " (rdma-core %u.%u)", major, minor);
    }
    free(path);
}

/* Returns the name of a required function that the library lacks, or NULL. `handle` is open. */
static const char *find_functions(void)
{
    void **pointer = (void **)&library; /* only pointers, in the order of the names */
    for (const char *name = names; *name != 0; name += strlen(name) + 1, pointer++) {
        *pointer = find(name);
        if (*pointer == NULL && name < names + REQUIRED_SIZE) {
            return name;
        }
    }
    return NULL;
}

CQN_RARE static int load_library(char why[CQN_WHY])
{
    const int err = cqn_check_descriptors();
    if (err != 0) {
        snprintf(why, CQN_WHY, CQN_NEEDS_DESCRIPTORS);
        return err;
    }
    handle = dlopen(CQN_LIBIBVERBS, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(why, CQN_WHY,
                 "cqnotify needs " CQN_LIBIBVERBS
                 " (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; "
                 "Fedora, RHEL: dnf install libibverbs): %s",
                 dlerror());
        return ELIBACC;
    }
    const char *missing = find_functions();
    if (missing != NULL) {
        snprintf(why, CQN_WHY, CQN_LIBIBVERBS " has no %s(): it is not that of rdma-core", missing);
        dlclose(handle);
        return ELIBACC;
    }
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
        snprintf(why, CQN_WHY, "pthread_atfork: there is no memory");
        dlclose(handle);
        return ENOMEM;
    }
    find_release();
    cqn_find_observer();
    is_loaded = true;
    return 0;
}

int cqn_library_load(char why[CQN_WHY])
{
    pthread_mutex_lock(&load_lock);
    const int err = is_loaded ? 0 : load_library(why);
    pthread_mutex_unlock(&load_lock);
    return err;
}

void *cqn_library_find(const char *function)
{
    return find(function);
}

/* The newer functions are the last entries of the table. */
static void *const *later_pointer(size_t i)
{
    return (void *const *)(&library + 1) - Py_ARRAY_LENGTH(later) + i;
}

CQN_RARE bool cqn_library_lacks(const char *verb, char why[CQN_WHY])
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(later); i++) {
        if (strcmp(verb, later[i].verb) == 0 && *later_pointer(i) == NULL) {
            snprintf(why, CQN_WHY, "this libibverbs%s has no %s(), which came with rdma-core %d",
                     release, later[i].name, later[i].since);
            return true;
        }
    }
    return false;
}

/* SPDX-License-Identifier: MIT */
/* The memory of the fake device. Device memory, dma-bufs and null MRs are memory of this process,
 * registered as usual, so messages are really stored there. A parent domain is its PD under another
 * address; an import creates a new object. The arguments of each call are recorded as text. */

#include "base/base.h"
#include "faults/fake_device.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int rereg_result, rereg_errno;

PyObject *cqn_rereg_returns(PyObject *Py_UNUSED(module), PyObject *args)
{
    int result, error;
    if (!PyArg_ParseTuple(args, "ii:rereg_returns", &result, &error)) {
        return NULL;
    }
    atomic_store(&rereg_result, result);
    atomic_store(&rereg_errno, error);
    Py_RETURN_NONE;
}

__attribute__((format(printf, 3, 4))) static void *note(const char *verb, void *result,
                                                        const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return cqn_fake_note(verb, result, text, (size_t)n, NULL, 0);
}

/* ---- registering again ---- */

/* The struct that libibverbs has for each MR. */
struct verbs_mr {
    struct ibv_mr mr;
    int type, access;
};

/* Replaces the registration in the same struct by another one. */
static int exchange(struct ibv_mr *mr, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct ibv_mr *other = (ibv_reg_mr_iova2)(pd, addr, length, (uintptr_t)addr, (unsigned)access);
    if (other == NULL) {
        return IBV_REREG_MR_ERR_CMD;
    }
    struct verbs_mr *a = (struct verbs_mr *)mr, *b = (struct verbs_mr *)other, c = *a;
    *a = *b;
    *b = c;
    return (ibv_dereg_mr)(other);
}

int cqn_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
                 int access)
{
    if (!cqn_is_fake(mr->context)) {
        return (ibv_rereg_mr)(mr, flags, pd, addr, length, access);
    }
    note("ibv_rereg_mr", mr, "flags %d, pd %d, %zu bytes, access %d", flags, pd != NULL, length,
         access);
    const int result = atomic_load(&rereg_result);
    if (result < 0 && result != IBV_REREG_MR_ERR_DO_FORK_OLD) {
        errno = atomic_load(&rereg_errno);
        return result;
    }
    const bool moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
    const int rc = exchange(
        mr, pd != NULL ? pd : mr->pd, moved ? addr : mr->addr, moved ? length : mr->length,
        flags & IBV_REREG_MR_CHANGE_ACCESS ? access : (int)((struct verbs_mr *)mr)->access);
    errno = result != 0 ? atomic_load(&rereg_errno) : errno;
    return rc != 0 ? rc : result;
}

/* ---- memory ---- */

typedef struct {
    struct ibv_dm dm;
    char *bytes;
    size_t length;
} fake_dm;

static int copy_to(struct ibv_dm *dm, uint64_t offset, const void *from, size_t length)
{
    memcpy(((fake_dm *)dm)->bytes + offset, from, length);
    return 0;
}

static int copy_from(void *to, struct ibv_dm *dm, uint64_t offset, size_t length)
{
    memcpy(to, ((fake_dm *)dm)->bytes + offset, length);
    return 0;
}

static struct ibv_dm *new_dm(struct ibv_context *context, size_t length, uint32_t handle)
{
    fake_dm *self = cqn_fake_alloc(sizeof(*self));
    *self = (fake_dm){.dm = {.context = context, .handle = handle}, .length = length};
    self->dm.memcpy_to_dm = copy_to;
    self->dm.memcpy_from_dm = copy_from;
    self->bytes = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
    memset(self->bytes, 0, length);
    return &self->dm;
}

static struct ibv_dm *alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
    return note("ibv_alloc_dm", new_dm(context, attr->length, 77),
                "%zu bytes, log_align_req %u, comp_mask %u", attr->length, attr->log_align_req,
                attr->comp_mask);
}

static int free_dm(struct ibv_dm *dm)
{
    free(((fake_dm *)dm)->bytes);
    free(dm);
    return 0;
}

static struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
                                size_t length, unsigned int access)
{
    note("ibv_reg_dm_mr", dm, "%zu bytes at %llu, access %u", length, (unsigned long long)offset,
         access);
    if (offset % 4096 != 0) {
        errno = EINVAL;
        return NULL;
    }
    return (ibv_reg_mr_iova2)(pd, ((fake_dm *)dm)->bytes + offset, length, 0,
                              access & ~(unsigned)IBV_ACCESS_ZERO_BASED);
}

struct ibv_mr *cqn_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                 int fd, int access)
{
    if (!cqn_is_fake(pd->context)) {
        return (ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);
    }
    note("ibv_reg_dmabuf_mr", pd, "%zu bytes at %llu, iova %llu, access %d", length,
         (unsigned long long)offset, (unsigned long long)iova, access);
    void *bytes = (mmap)(NULL, offset + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == NULL || bytes == MAP_FAILED) {
        return NULL;
    } /* otherwise it stays mapped */
    return (ibv_reg_mr_iova2)(pd, (char *)bytes + offset, length, iova, (unsigned)access);
}

/* Registers a page, for a null MR or an imported one. */
static struct ibv_mr *reg_page(struct ibv_pd *pd)
{
    static _Alignas(4096) char page[4096];
    return (ibv_reg_mr_iova2)(pd, page, sizeof(page), 0, IBV_ACCESS_LOCAL_WRITE);
}

static int advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
                     struct ibv_sge *sg, uint32_t n)
{
    note("ibv_advise_mr", pd, "advice %d, flags %u, %u elements, first of %u bytes", (int)advice,
         flags, n, sg[0].length);
    return 0;
}

/* ---- domains ---- */

static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
    struct ibv_td *td = cqn_fake_alloc(sizeof(*td));
    td->context = context;
    return note("ibv_alloc_td", td, "comp_mask %u", attr->comp_mask);
}

static int dealloc_td(struct ibv_td *td)
{
    free(td);
    return 0;
}

/* PDs under other addresses. */
static struct ibv_pd *_Atomic parents[8];

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context,
                                          struct ibv_parent_domain_init_attr *attr)
{
    (void)context;
    struct ibv_pd *pd = cqn_fake_alloc(256); /* with space for the provider's own fields */
    *pd = *attr->pd;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(parents); i++) {
        struct ibv_pd *none = NULL;
        if (atomic_compare_exchange_strong(&parents[i], &none, pd)) {
            return note("ibv_alloc_parent_domain", pd, "td %d, comp_mask %u", attr->td != NULL,
                        attr->comp_mask);
        }
    }
    abort(); /* more than any test uses at a time */
}

int cqn_fake_dealloc_pd(struct ibv_pd *pd)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(parents); i++) {
        struct ibv_pd *this = pd;
        if (atomic_compare_exchange_strong(&parents[i], &this, NULL)) {
            free(pd);
            return 0;
        }
    }
    return (ibv_dealloc_pd)(pd);
}

/* ---- objects of other processes ---- */

struct ibv_pd *cqn_import_pd(struct ibv_context *context, uint32_t handle)
{
    return cqn_is_fake(context)
               ? note("ibv_import_pd", (ibv_alloc_pd)(context), "handle %u", handle)
               : (ibv_import_pd)(context, handle);
}

void cqn_unimport_pd(struct ibv_pd *pd)
{
    (ibv_dealloc_pd)(pd);
}

/* The highest handle means all memory. */
struct ibv_mr *cqn_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    if (!cqn_is_fake(pd->context)) {
        return (ibv_import_mr)(pd, handle);
    }
    struct ibv_mr *mr = reg_page(pd);
    if (mr != NULL && handle == UINT32_MAX) {
        mr->length = SIZE_MAX;
    }
    return note("ibv_import_mr", mr, "handle %u", handle);
}

void cqn_unimport_mr(struct ibv_mr *mr)
{
    (ibv_dereg_mr)(mr);
}

struct ibv_dm *cqn_import_dm(struct ibv_context *context, uint32_t handle)
{
    return cqn_is_fake(context)
               ? note("ibv_import_dm", new_dm(context, 4096, handle), "handle %u", handle)
               : (ibv_import_dm)(context, handle);
}

void cqn_unimport_dm(struct ibv_dm *dm)
{
    free_dm(dm);
}

/* ---- the device ---- */

void cqn_make_fake_memory(struct ibv_context *context)
{
    struct verbs_context *ops = verbs_get_ctx(context);
    assert(ops != NULL);
    atomic_store(&rereg_result, 0);
    ops->alloc_dm = alloc_dm;
    ops->free_dm = free_dm;
    ops->reg_dm_mr = reg_dm_mr;
    ops->alloc_null_mr = reg_page;
    ops->advise_mr = advise_mr;
    ops->alloc_td = alloc_td;
    ops->dealloc_td = dealloc_td;
    ops->alloc_parent_domain = alloc_parent_domain;
}

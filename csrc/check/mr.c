/* SPDX-License-Identifier: MIT */
/* Regions: registered and deregistered; and memory freed while requests use it. */
#include "chaos.h"
#include "hooks.h"
#include "ops.h"

struct region {
    struct region *next;
    struct ibv_mr *ibv;
    struct context *context;
    uint32_t number;
    uint32_t lkey;
    uintptr_t address;
    size_t length;
};

static lock_t lock;
static struct region *regions;
static struct table by_address; /* by start address: the latest region there */
/* The range of all regions: two comparisons rule out nearly every free(). */
static uintptr_t lowest = UINTPTR_MAX, highest;

/* Adds a region. One registering function may call another; the region is already known then. */
static void add(struct ibv_mr *ibv)
{
    bool is_new = ibv && !cqn_object(ibv);
    struct region *region = is_new ? cqn_alloc(sizeof(*region)) : NULL;
    if (!region)
        return;
    region->ibv = ibv;
    region->context = cqn_context(ibv->context);
    region->lkey = ibv->lkey;
    region->address = (uintptr_t)ibv->addr;
    region->length = ibv->length;
    cqn_lock(&lock);
    region->number = ++cqn_counts.regions;
    region->next = regions;
    regions = region;
    if (region->address < lowest)
        lowest = region->address;
    if (region->address + region->length > highest)
        highest = region->address + region->length;
    cqn_table_remove(&by_address, region->address);
    cqn_table_put(&by_address, region->address, region);
    cqn_unlock(&lock);
    cqn_table_put(&cqn_objects, (uintptr_t)ibv, region);
}

struct ibv_mr *cqn_hook_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    cqn_context(pd->context);
    if (cqn_chaos_refuses(CHAOS_REGISTER))
        return NULL;
    struct ibv_mr *ibv = cqn_real.ibv_reg_mr(pd, address, length, access);
    add(ibv);
    return ibv;
}

struct ibv_mr *cqn_hook_ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length,
                                        uint64_t iova, int access)
{
    cqn_context(pd->context);
    if (cqn_chaos_refuses(CHAOS_REGISTER))
        return NULL;
    struct ibv_mr *ibv = cqn_real.ibv_reg_mr_iova(pd, address, length, iova, access);
    add(ibv);
    return ibv;
}

struct ibv_mr *cqn_hook_ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                         uint64_t iova, unsigned int access)
{
    cqn_context(pd->context);
    if (cqn_chaos_refuses(CHAOS_REGISTER))
        return NULL;
    struct ibv_mr *ibv = cqn_real.ibv_reg_mr_iova2(pd, address, length, iova, access);
    add(ibv);
    return ibv;
}

static void report(const struct region *region, const struct use *use, const char *rule,
                   const char *what, const char *call)
{
    struct line line;
    cqn_finding_begin(&line, rule);
    cqn_finding_value(&line, "mr", region->number);
    cqn_finding_value(&line, "address", region->address);
    cqn_finding_value(&line, "length", region->length);
    cqn_finding_value(&line, "requests", use->requests);
    cqn_finding_value(&line, "wr_id", use->wr_id);
    cqn_finding_value(&line, "qp", use->qp);
    cqn_finding_text(&line, "call", call);
    cqn_finding_here(&line, what);
    cqn_finding_site(&line, "post", &use->post);
    cqn_finding_end(&line, 0);
}

int cqn_hook_ibv_dereg_mr(struct ibv_mr *ibv)
{
    struct region *region = cqn_object(ibv);
    if (!region)
        return cqn_real.ibv_dereg_mr(ibv);
    struct use use;
    if (cqn_qp_find_use(region->context, region->lkey, &use))
        report(region, &use, "mr-in-flight", "deregister", "ibv_dereg_mr");
    cqn_table_remove(&cqn_objects, (uintptr_t)ibv);
    cqn_chaos_delays(CHAOS_DESTROY);
    int result = cqn_real.ibv_dereg_mr(ibv);
    if (result != 0) {
        cqn_table_put(&cqn_objects, (uintptr_t)ibv, region);
        return result;
    }
    cqn_lock(&lock);
    CQN_UNLINK(&regions, region, next);
    if (cqn_table_find(&by_address, region->address) == region)
        cqn_table_remove(&by_address, region->address);
    cqn_unlock(&lock);
    cqn_free(region, sizeof(*region));
    return result;
}

/* This thread holds the lock. The functions that it calls may free memory, too. */
static _Thread_local bool inside;

static bool concerns_regions(uintptr_t start, size_t length)
{
    return start < highest && start + length > lowest && !inside;
}

static void enter(void)
{
    inside = true;
    cqn_lock(&lock);
}

static void leave(void)
{
    cqn_unlock(&lock);
    inside = false;
}

int cqn_hook_munmap(void *address, size_t length)
{
    uintptr_t start = (uintptr_t)address;
    if (concerns_regions(start, length)) {
        enter();
        for (const struct region *region = regions; region; region = region->next) {
            struct use use;
            if (region->address < start + length && region->address + region->length > start &&
                cqn_qp_find_use(region->context, region->lkey, &use))
                report(region, &use, "mr-unmapped", "unmap", "munmap");
        }
        leave();
    }
    return cqn_real.munmap(address, length);
}

/* Checks only memory that begins where a region does: memory allocated for it. */
void cqn_hook_free(void *memory)
{
    if (concerns_regions((uintptr_t)memory, 1)) {
        enter();
        const struct region *region = cqn_table_find(&by_address, (uintptr_t)memory);
        struct use use;
        if (region && cqn_qp_find_use(region->context, region->lkey, &use))
            report(region, &use, "mr-unmapped", "unmap", "free");
        leave();
    }
    cqn_real.free(memory);
}

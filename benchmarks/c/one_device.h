/* SPDX-License-Identifier: MIT */
/*
 * The common part of libraries that take the place of libibverbs and know one device, DEVICE_NAME:
 * its list, a port that is active, no asynchronous events, protection domains and memory regions.
 * The file that includes this one opens the device, and makes all other objects.
 */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

static struct ibv_device device = {.node_type = IBV_NODE_CA,
                                   .transport_type = IBV_TRANSPORT_IB,
                                   .name = DEVICE_NAME,
                                   .dev_name = DEVICE_NAME};
static uint32_t last_num = 17; /* of queue pairs and memory regions */

struct ibv_device **ibv_get_device_list(int *num_devices)
{
    struct ibv_device **list = calloc(2, sizeof(*list));
    list[0] = &device;
    if (num_devices != NULL) {
        *num_devices = 1;
    }
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

__be64 ibv_get_device_guid(struct ibv_device *unused)
{
    (void)unused;
    return 0;
}

const char *ibv_get_device_name(struct ibv_device *it)
{
    return it->name;
}

int ibv_close_device(struct ibv_context *ctx)
{
    close(ctx->async_fd);
    free((char *)ctx - offsetof(struct verbs_context, context));
    return 0;
}

/* The header's ibv_query_port() has zeroed the fields that were added later. */
int ibv_query_port(struct ibv_context *ctx, uint8_t port_num, struct _compat_ibv_port_attr *attr)
{
    (void)ctx, (void)port_num;
    struct ibv_port_attr answer = {.state = IBV_PORT_ACTIVE,
                                   .max_mtu = IBV_MTU_4096,
                                   .active_mtu = IBV_MTU_1024,
                                   .max_msg_sz = UINT32_MAX,
                                   .pkey_tbl_len = 1,
                                   .lid = 1,
                                   .link_layer = IBV_LINK_LAYER_INFINIBAND};
    memcpy(attr, &answer, offsetof(struct ibv_port_attr, port_cap_flags2));
    return 0;
}

/* There are none: the descriptor is never readable, and never blocks. */
int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
    (void)ctx, (void)event;
    errno = EAGAIN;
    return -1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = ctx;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    (void)access;
    struct ibv_mr *mr = malloc(sizeof(*mr));
    *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length};
    mr->lkey = mr->rkey = ++last_num;
    return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    free(mr);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* libibverbs is not linked: it is loaded with dlopen(), as plugins and bindings do. */
#include <dlfcn.h>
#include <infiniband/verbs.h>

static void *libibverbs;

#undef ibv_reg_mr
#define LOADED(name) ((__typeof__(&name))dlsym(libibverbs, #name))
#define ibv_get_device_list(...) LOADED(ibv_get_device_list)(__VA_ARGS__)
#define ibv_free_device_list(...) LOADED(ibv_free_device_list)(__VA_ARGS__)
#define ibv_open_device(...) LOADED(ibv_open_device)(__VA_ARGS__)
#define ibv_close_device(...) LOADED(ibv_close_device)(__VA_ARGS__)
#define ibv_query_gid(...) LOADED(ibv_query_gid)(__VA_ARGS__)
#define ibv_alloc_pd(...) LOADED(ibv_alloc_pd)(__VA_ARGS__)
#define ibv_dealloc_pd(...) LOADED(ibv_dealloc_pd)(__VA_ARGS__)
#define ibv_reg_mr(...) LOADED(ibv_reg_mr)(__VA_ARGS__)
#define ibv_dereg_mr(...) LOADED(ibv_dereg_mr)(__VA_ARGS__)
#define ibv_create_comp_channel(...) LOADED(ibv_create_comp_channel)(__VA_ARGS__)
#define ibv_destroy_comp_channel(...) LOADED(ibv_destroy_comp_channel)(__VA_ARGS__)
#define ibv_create_cq(...) LOADED(ibv_create_cq)(__VA_ARGS__)
#define ibv_destroy_cq(...) LOADED(ibv_destroy_cq)(__VA_ARGS__)
#define ibv_get_cq_event(...) LOADED(ibv_get_cq_event)(__VA_ARGS__)
#define ibv_ack_cq_events(...) LOADED(ibv_ack_cq_events)(__VA_ARGS__)
#define ibv_destroy_srq(...) LOADED(ibv_destroy_srq)(__VA_ARGS__)
#define ibv_create_qp(...) LOADED(ibv_create_qp)(__VA_ARGS__)
#define ibv_modify_qp(...) LOADED(ibv_modify_qp)(__VA_ARGS__)
#define ibv_destroy_qp(...) LOADED(ibv_destroy_qp)(__VA_ARGS__)
#define ibv_create_ah(...) LOADED(ibv_create_ah)(__VA_ARGS__)
#define ibv_destroy_ah(...) LOADED(ibv_destroy_ah)(__VA_ARGS__)

#include "pair.h"

int main(void)
{
    struct pair p = {0};
    CHECK(libibverbs = dlopen("libibverbs.so.1", RTLD_NOW));
    open_pair(&p);
    deliver(&p, 1);
    arm(p.recvs);
#ifdef RIGHT
    if (drain(p.recvs) == 0)
#endif
        ibv_ack_cq_events(next_event(p.channel), 1); /* MISTAKE: not polled after the arm */
    drain(p.recvs);
    close_pair(&p);
    return 0;
}

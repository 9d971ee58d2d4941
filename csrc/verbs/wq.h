/* SPDX-License-Identifier: MIT */
/* What WQs and the tables of them share. */
#ifndef CQN_WQ_H
#define CQN_WQ_H

#include "verbs/verbs.h"

/* Its pins are tables that name it. */
typedef struct {
    cqn_object base;
    cqn_cq *cq; /* borrowed from `uses` */
    PyObject *user_data;
    uint32_t wq_num, max_wr, max_sge, type;
    uint32_t state;   /* as last set by us; the device may have moved it to ERR */
    bool is_modified; /* a thread is in ibv_modify_wq() */
    cqn_wr_queue *rq; /* NULL once it was closed */
} cqn_wq;

#endif

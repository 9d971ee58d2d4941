/* SPDX-License-Identifier: MIT */
/* The struct of a WQ, for RwqIndTable. */
#ifndef CQN_WQ_H
#define CQN_WQ_H

#include "verbs/verbs.h"

/* Each RwqIndTable that contains the WQ pins it. */
typedef struct {
    cqn_object base;
    cqn_cq *cq; /* borrowed from `uses` */
    PyObject *user_data;
    uint32_t wq_num, max_wr, max_sge, type;
    uint32_t state;   /* last set by this process; the device may be in ERR */
    bool is_modified; /* a thread is in ibv_modify_wq() */
    cqn_wr_queue *rq; /* NULL once closed */
} cqn_wq;

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The attributes that each transition of a queue pair requires and allows: the table of
 * ibv_modify_qp(3), as the kernel has it for each type. It is consulted after the kernel has
 * reported EINVAL without a reason. Some devices accept more.
 */

#include "verbs/qp.h"

enum { UD, UC, RC, INI, TGT, RAW, TYPES };

typedef struct {
    int required, optional; /* masks, without IBV_QP_STATE */
} attributes;

typedef struct {
    enum ibv_qp_state from, to;
    attributes of[TYPES];
} transition;

/* clang-format off */
#define CUR       IBV_QP_CUR_STATE
#define ACCESS    IBV_QP_ACCESS_FLAGS
#define PKEY      IBV_QP_PKEY_INDEX
#define PORT      IBV_QP_PORT
#define QKEY      IBV_QP_QKEY
#define PATH      (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define TO_US     (IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RNR_TIMER IBV_QP_MIN_RNR_TIMER
#define FROM_US   (IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
#define ALT       IBV_QP_ALT_PATH
#define MIG       IBV_QP_PATH_MIG_STATE
#define ASYNC     IBV_QP_EN_SQD_ASYNC_NOTIFY
#define OF_DEVICES (IBV_QP_RATE_LIMIT | IBV_QP_CAP) /* accepted by some devices only */
#define MOVED     (ALT | ACCESS | MIG)

/* Every state also has transitions to RESET and to ERR, which need no attributes. */
static const transition transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {
        [UD] = {PKEY | PORT | QKEY, 0}, [RAW] = {PORT, 0}, [UC] = {PKEY | PORT | ACCESS, 0},
        [RC] = {PKEY | PORT | ACCESS, 0}, [INI] = {PKEY | PORT | ACCESS, 0},
        [TGT] = {PKEY | PORT | ACCESS, 0}}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {
        [UD] = {0, PKEY | PORT | QKEY}, [UC] = {0, PKEY | PORT | ACCESS},
        [RC] = {0, PKEY | PORT | ACCESS}, [INI] = {0, PKEY | PORT | ACCESS},
        [TGT] = {0, PKEY | PORT | ACCESS}}},
    {IBV_QPS_INIT, IBV_QPS_RTR, {
        [UD] = {0, PKEY | QKEY}, [UC] = {PATH, ALT | ACCESS | PKEY},
        [RC] = {PATH | TO_US, ALT | ACCESS | PKEY}, [INI] = {PATH, ALT | ACCESS | PKEY},
        [TGT] = {PATH | TO_US, ALT | ACCESS | PKEY}}},
    {IBV_QPS_RTR, IBV_QPS_RTS, {
        [UD] = {IBV_QP_SQ_PSN, CUR | QKEY}, [RAW] = {0, IBV_QP_RATE_LIMIT},
        [UC] = {IBV_QP_SQ_PSN, CUR | MOVED},
        [RC] = {IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | FROM_US, CUR | RNR_TIMER | MOVED},
        [INI] = {IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | FROM_US, CUR | MOVED},
        [TGT] = {IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, CUR | RNR_TIMER | MOVED}}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {
        [UD] = {0, CUR | QKEY}, [RAW] = {0, IBV_QP_RATE_LIMIT}, [UC] = {0, CUR | MOVED},
        [RC] = {0, CUR | RNR_TIMER | MOVED}, [INI] = {0, CUR | MOVED},
        [TGT] = {0, CUR | RNR_TIMER | MOVED}}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {
        [UD] = {0, ASYNC}, [UC] = {0, ASYNC}, [RC] = {0, ASYNC}, [INI] = {0, ASYNC},
        [TGT] = {0, ASYNC}}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {
        [UD] = {0, CUR | QKEY}, [UC] = {0, CUR | MOVED}, [RC] = {0, CUR | RNR_TIMER | MOVED},
        [INI] = {0, CUR | MOVED}, [TGT] = {0, CUR | RNR_TIMER | MOVED}}},
    {IBV_QPS_SQD, IBV_QPS_SQD, {
        [UD] = {0, PKEY | QKEY}, [UC] = {0, PKEY | MOVED},
        [RC] = {0, PORT | IBV_QP_AV | IBV_QP_TIMEOUT | FROM_US | TO_US | PKEY | MOVED},
        [INI] = {0, PORT | IBV_QP_AV | IBV_QP_TIMEOUT | FROM_US | PKEY | MOVED},
        [TGT] = {0, PORT | IBV_QP_AV | IBV_QP_TIMEOUT | TO_US | PKEY | MOVED}}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {[UD] = {0, CUR | QKEY}, [UC] = {0, CUR | ACCESS}}},
};
/* clang-format on */

static int column_of(enum ibv_qp_type type)
{
    switch (type) {
    case IBV_QPT_UD:
        return UD;
    case IBV_QPT_UC:
        return UC;
    case IBV_QPT_RC:
        return RC;
    case IBV_QPT_XRC_SEND:
        return INI;
    case IBV_QPT_XRC_RECV:
        return TGT;
    default:
        return RAW;
    }
}

static const transition *find_transition(enum ibv_qp_state from, enum ibv_qp_state to)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(transitions); i++) {
        if (transitions[i].from == from && transitions[i].to == to) {
            return &transitions[i];
        }
    }
    return NULL;
}

/* ---- text ---- */

typedef struct {
    char *at; /* CQN_EXPLAINED bytes */
    size_t len;
} text;

static void add(text *out, const char *more)
{
    const size_t n = strlen(more);
    assert(out->len + n < CQN_EXPLAINED);
    if (out->len + n < CQN_EXPLAINED) {
        memcpy(out->at + out->len, more, n + 1);
        out->len += n;
    }
}

static void add_name(text *out, const char *name, bool *first)
{
    add(out, *first ? " " : ", ");
    add(out, name);
    *first = false;
}

/* Appends the attributes of a mask, by their names in modify(). */
static void add_names(text *out, int mask)
{
    static const struct {
        int bit;
        const char *name;
    } structs[] = {{IBV_QP_AV, "ah_attr"}, {IBV_QP_ALT_PATH, "alt_ah_attr"}, {IBV_QP_CAP, "cap"}};
    bool first = true;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(structs); i++) {
        if (mask & structs[i].bit) {
            add_name(out, structs[i].name, &first);
        }
        mask &= ~structs[i].bit;
    }
    for (const cqn_field *f = cqn_qp_fields; f->name != NULL; f++) {
        if (f->mask & mask) {
            add_name(out, f->name, &first);
        }
    }
}

static void add_ways(text *out, enum ibv_qp_state from)
{
    bool first = true;
    add(out, "there is no such transition, it can go to");
    for (size_t i = 0; i < Py_ARRAY_LENGTH(transitions); i++) {
        if (transitions[i].from == from && transitions[i].to != from) {
            add_name(out, cqn_qp_state_name(transitions[i].to), &first);
        }
    }
    add_name(out, "RESET", &first);
    add_name(out, "ERR", &first);
}

/* Appends `what` and the attributes of the mask, unless the mask is 0. */
static void add_attributes(text *out, const char *what, int mask)
{
    if (mask != 0) {
        add(out, out->len > 0 ? "; " : "");
        add(out, what);
        add_names(out, mask);
    }
}

CQN_RARE bool cqn_qp_explain(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                             int mask, char buffer[CQN_EXPLAINED])
{
    static const attributes none = {0, 0};
    text out = {buffer, 0};
    buffer[0] = '\0';
    const transition *found = find_transition(from, to);
    if (found == NULL && to != IBV_QPS_RESET && to != IBV_QPS_ERR) {
        add_ways(&out, from);
        return true;
    }
    const attributes *of = found != NULL ? &found->of[column_of(type)] : &none;
    add_attributes(&out, "missing:", of->required & ~mask);
    add_attributes(&out, "not of this transition:",
                   mask & ~(of->required | of->optional | IBV_QP_STATE | OF_DEVICES));
    return out.len > 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The list of tags of an SRQ of type TM: receives for messages of a certain tag.
 *
 * Two requests come of an operation that adds one: the operation, and the receive. The books know
 * both. What an operation deletes by its handle never completes, so the SRQ remembers which receive
 * has which handle.
 */

#include "verbs/srq.h"
#include "work/wr.h"

enum { OPCODE, WR_ID, FLAGS, SG, RECV_WR_ID, TAG, MASK, HANDLE, UNEXPECTED, NAMES };
static const char *const op_names[NAMES + 1] = {"opcode",         "wr_id", "flags", "sg",
                                                "recv_wr_id",     "tag",   "mask",  "handle",
                                                "unexpected_cnt", NULL};

/* ---- handles ---- */

/* The place of a handle, or one that is free. Devices count them from 0, mostly. */
static cqn_tagged *place_of(cqn_srq *srq, uint32_t handle)
{
    cqn_tagged *free_place = NULL;
    for (uint32_t i = 0; i < srq->max_num_tags; i++) {
        cqn_tagged *place = &srq->tagged[(handle + i) % srq->max_num_tags];
        const bool is_used = place->id != 0 && cqn_wr_queue_has(srq->rq, place->id);
        if (is_used && place->handle == handle) {
            return place;
        }
        if (!is_used && free_place == NULL) {
            free_place = place;
        }
    }
    return free_place;
}

/* ---- arguments ---- */

static int check_given(PyObject *const *in, int i, bool wanted, const char *opcode)
{
    const bool given = in[i] != NULL && in[i] != Py_None;
    if (given && !wanted) {
        PyErr_Format(PyExc_ValueError, "%s was given, but %s does not take it", op_names[i],
                     opcode);
        return -1;
    }
    if (!given && wanted) {
        PyErr_Format(PyExc_ValueError, "%s is missing: %s needs it", op_names[i], opcode);
        return -1;
    }
    return 0;
}

/* What is a number. The receive's wr_id of the user's is apart: the device gets another. */
static int parse_numbers(PyObject *const *in, struct ibv_ops_wr *op, uint64_t *wr_id,
                         uint64_t *recv_wr_id)
{
    const bool adds = op->opcode == IBV_WR_TAG_ADD, deletes = op->opcode == IBV_WR_TAG_DEL;
    const char *name = adds ? "TAG_ADD" : deletes ? "TAG_DEL" : "TAG_SYNC";
    uint32_t flags = 0;
    op->tm.add.mask = adds ? UINT64_MAX : 0;
    if (check_given(in, TAG, adds, name) < 0 || check_given(in, HANDLE, deletes, name) < 0 ||
        (!adds && (check_given(in, SG, false, name) < 0 || check_given(in, MASK, false, name) < 0 ||
                   check_given(in, RECV_WR_ID, false, name) < 0)) ||
        (in[WR_ID] && cqn_uint(in[WR_ID], "wr_id", UINT64_MAX, wr_id) < 0) ||
        (in[FLAGS] && cqn_member32(in[FLAGS], "flags", "OpsFlags such as OpsFlags.SIGNALED",
                                   IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, &flags) < 0) ||
        (in[UNEXPECTED] &&
         cqn_u32(in[UNEXPECTED], "unexpected_cnt", UINT32_MAX, &op->tm.unexpected_cnt) < 0) ||
        (deletes && cqn_u32(in[HANDLE], "handle", UINT32_MAX, &op->tm.handle) < 0) ||
        (adds && cqn_uint(in[TAG], "tag", UINT64_MAX, &op->tm.add.tag) < 0) ||
        (in[MASK] && in[MASK] != Py_None &&
         cqn_uint(in[MASK], "mask", UINT64_MAX, &op->tm.add.mask) < 0) ||
        (in[RECV_WR_ID] && in[RECV_WR_ID] != Py_None &&
         cqn_uint(in[RECV_WR_ID], "recv_wr_id", UINT64_MAX, recv_wr_id) < 0)) {
        return -1;
    }
    op->flags = (int)(flags | IBV_OPS_SIGNALED); /* else nothing tells when it is done */
    return 0;
}

static int parse_op(PyObject *const *in, struct ibv_ops_wr *op, uint64_t *wr_id,
                    uint64_t *recv_wr_id)
{
    uint32_t opcode;
    if (cqn_member32(in[OPCODE], "opcode", "an OpsWROpcode such as OpsWROpcode.TAG_ADD",
                     IBV_WR_TAG_SYNC, &opcode) < 0) {
        return -1;
    }
    op->opcode = opcode;
    return parse_numbers(in, op, wr_id, recv_wr_id);
}

/* ---- posting ---- */

/* Which receive is to go. 0 with LookupError if there is none of that handle. */
static uint64_t find_tagged(cqn_srq *srq, uint32_t handle)
{
    const cqn_tagged *place = place_of(srq, handle);
    if (place == NULL || place->handle != handle || place->id == 0 ||
        !cqn_wr_queue_has(srq->rq, place->id)) {
        PyErr_Format(PyExc_LookupError, "handle is %u: no receive that was added has it", handle);
        return 0;
    }
    return place->id;
}

/* Nothing of Python runs between the checks and the entry into the books. */
static PyObject *post_op(cqn_srq *srq, struct ibv_ops_wr *op, const cqn_sg *sg, uint64_t wr_id,
                         uint64_t recv_wr_id)
{
    const bool adds = op->opcode == IBV_WR_TAG_ADD;
    uint64_t deleted = 0;
    if (op->opcode == IBV_WR_TAG_DEL && (deleted = find_tagged(srq, op->tm.handle)) == 0) {
        return NULL;
    }
    if (cqn_wr_queue_reserve(srq->rq, 2 + cqn_wr_entries(sg)) < 0) {
        return NULL;
    }
    cqn_wr_cursor at = cqn_wr_queue_cursor(srq->rq);
    op->wr_id = cqn_wr_queue_next_id(srq->rq, &at, 2);
    op->tm.add.recv_wr_id = adds ? cqn_wr_queue_next_id(srq->rq, &at, cqn_wr_entries(sg)) : 0;
    struct ibv_ops_wr *bad = NULL;
    int err = cqn_errno_of(ibv_post_srq_ops((struct ibv_srq *)srq->base.handle, op, &bad));
    if (err != 0) {
        cqn_wr_queue_refused(srq->rq, 2);
        return cqn_verbs_error(srq->base.state, err, "ibv_post_srq_ops",
                               "%s, of up to %u tags and max_ops operations under way: poll those "
                               "that were posted before",
                               adds      ? "TAG_ADD"
                               : deleted ? "TAG_DEL"
                                         : "TAG_SYNC",
                               srq->max_num_tags);
    }
    cqn_wr_queue_push_op(srq->rq, wr_id, deleted);
    if (!adds) {
        Py_RETURN_NONE;
    }
    cqn_wr_queue_push_shared(srq->rq, recv_wr_id, sg);
    cqn_tagged *place = place_of(srq, op->tm.handle);
    if (place != NULL) {
        *place = (cqn_tagged){.id = op->tm.add.recv_wr_id, .handle = op->tm.handle};
    }
    return PyLong_FromUnsignedLong(op->tm.handle);
}

const char cqn_srq_post_ops_doc[] =
    "post_ops($self, /, opcode, *, wr_id=0, flags=1, sg=None, recv_wr_id=0, tag=None, mask=None, "
    "handle=None, unexpected_cnt=0)\n--\n\n"
    "Change the list of tags of an SRQ of type TM.\n\n"
    "TAG_ADD adds the memory `sg`, for one message whose tag is `tag` in the bits of `mask`, by "
    "default all, and returns its handle. TAG_DEL takes the one of that `handle` away, and "
    "TAG_SYNC tells the device that `unexpected_cnt` messages that matched none were seen, as "
    "each of them can. The operation completes under `wr_id`, and the receive under `recv_wr_id`. "
    "`flags` are OpsFlags; SIGNALED is always set.\n\n"
    "VerbsError (ENOMEM) when the list is full or too many operations are under way; LookupError "
    "for a handle that no receive has.\n\n"
    "Wraps ibv_post_srq_ops(3).";

CQN_RARE PyObject *cqn_srq_post_ops(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                    PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_srq *srq = (cqn_srq *)op;
    PyObject *in[NAMES] = {NULL};
    CQN_COPY copy = NULL;
    struct ibv_ops_wr wr = {.wr_id = 0};
    uint64_t wr_id = 0, recv_wr_id = 0;
    if (cqn_open(&srq->base) == NULL ||
        cqn_args("post_ops", op_names, 1, 1, args, nargs, kwnames, in) < 0) {
        return NULL;
    }
    if (srq->type != IBV_SRQT_TM) {
        PyErr_SetString(PyExc_ValueError, "post_ops() is for an SRQ of type TM");
        return NULL;
    }
    cqn_sg_room room;
    cqn_sg sg = CQN_SG_IN(room);
    if (parse_op(in, &wr, &wr_id, &recv_wr_id) < 0 ||
        (in[SG] != NULL && cqn_freeze(&in[SG], &copy) < 0) ||
        cqn_sg_gather(&sg, srq->base.state, in[SG]) < 0 || cqn_recv_check(&sg) < 0 ||
        cqn_open(&srq->base) == NULL) {
        return NULL;
    }
    if (!cqn_sg_fits(&sg, srq->base.uses[0], srq->max_sge)) {
        cqn_sg_refuse(&sg, &srq->base, srq->base.uses[0], srq->max_sge);
        return NULL;
    }
    wr.tm.add.sg_list = wr.opcode == IBV_WR_TAG_ADD ? sg.sge : NULL;
    wr.tm.add.num_sge = (int)sg.num_sge;
    return post_op(srq, &wr, &sg, wr_id, recv_wr_id);
}

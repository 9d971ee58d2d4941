/* SPDX-License-Identifier: MIT */
/*
 * The multicast groups of a queue pair.
 *
 * The kernel does not destroy a queue pair that is attached to a group. The queue pair therefore
 * records its groups, in memory that it owns, and detaches from them when it is destroyed.
 */

#include "verbs/qp.h"
#include <arpa/inet.h>

struct cqn_group {
    union ibv_gid gid;
    uint16_t lid;
};

static bool is_multicast(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return gid->raw[0] == 0xff ||
           (memcmp(gid->raw, mapped, sizeof(mapped)) == 0 && gid->raw[12] >> 4 == 0xe);
}

static cqn_group *find_group(const cqn_qp *qp, const cqn_group *group)
{
    for (size_t i = 0; i < qp->groups_len; i++) {
        cqn_group *g = &qp->groups[i];
        if (g->lid == group->lid && memcmp(&g->gid, &group->gid, sizeof(g->gid)) == 0) {
            return g;
        }
    }
    return NULL;
}

static const char *gid_text(const cqn_group *group, char text[INET6_ADDRSTRLEN])
{
    return inet_ntop(AF_INET6, &group->gid, text, INET6_ADDRSTRLEN);
}

static int parse_group(cqn_qp *self, const char *function, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames, cqn_group *out)
{
    static const char *const names[] = {"gid", "lid", NULL};
    PyObject *in[2] = {NULL, NULL};
    uint32_t lid = 0;
    char text[INET6_ADDRSTRLEN];
    if (cqn_open(&self->base) == NULL ||
        cqn_args(function, names, 2, 1, args, nargs, kwnames, in) < 0 ||
        cqn_gid(in[0], "gid", &out->gid) < 0 ||
        (in[1] != NULL && cqn_u32(in[1], "lid", UINT16_MAX, &lid) < 0)) {
        return -1;
    }
    out->lid = (uint16_t)lid;
    if (self->type != IBV_QPT_UD) {
        PyErr_Format(PyExc_ValueError, "%s() is for queue pairs of type UD; this is %s", function,
                     cqn_qp_type_name(self->type));
        return -1;
    }
    if (!is_multicast(&out->gid)) {
        PyErr_Format(PyExc_ValueError,
                     "gid is %s: it must be a multicast address, of ff00::/8 or 224.0.0.0/4",
                     gid_text(out, text));
        return -1;
    }
    return cqn_qp_await_turn(self);
}

/* Memory is allocated first, so a joined group can always be recorded. Returns -1 with
 * MemoryError. */
static int reserve_group(cqn_qp *self)
{
    cqn_group *groups = PyMem_Realloc(self->groups, (self->groups_len + 1) * sizeof(*groups));
    if (groups == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->groups = groups;
    return 0;
}

static PyObject *refuse_group(cqn_qp *self, int err, const char *verb, const cqn_group *group)
{
    const struct ibv_device_attr *limits = &self->base.context->attr;
    char text[INET6_ADDRSTRLEN];
    gid_text(group, text);
    return err == ENOMEM
               ? cqn_verbs_error(self->base.state, err, verb,
                                 "group %s, lid %d: this device has room for %d groups, "
                                 "and for %d queue pairs in each",
                                 text, group->lid, limits->max_mcast_grp,
                                 limits->max_mcast_qp_attach)
               : cqn_verbs_error(self->base.state, err, verb, "group %s, lid %d", text, group->lid);
}

PyObject *cqn_qp_attach_mcast(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    cqn_group group;
    if (parse_group(self, "attach_mcast", args, nargs, kwnames, &group) < 0) {
        return NULL;
    }
    if (find_group(self, &group) != NULL) {
        Py_RETURN_NONE;
    }
    if (reserve_group(self) < 0) {
        return NULL;
    }
    struct ibv_qp *qp = self->base.handle;
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_attach_mcast(qp, &group.gid, group.lid));
    if (err != 0) {
        return refuse_group(self, err, "ibv_attach_mcast", &group);
    }
    self->groups[self->groups_len++] = group;
    Py_RETURN_NONE;
}

PyObject *cqn_qp_detach_mcast(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    CQN_LOCKED;
    cqn_qp *self = (cqn_qp *)op;
    cqn_group group;
    if (parse_group(self, "detach_mcast", args, nargs, kwnames, &group) < 0) {
        return NULL;
    }
    cqn_group *found = find_group(self, &group);
    if (found == NULL) {
        char text[INET6_ADDRSTRLEN];
        PyErr_Format(PyExc_ValueError, "this QP is not attached to group %s with lid %d",
                     gid_text(&group, text), group.lid);
        return NULL;
    }
    struct ibv_qp *qp = self->base.handle;
    int err;
    CQN_IN_KERNEL(&self->base, err = ibv_detach_mcast(qp, &group.gid, group.lid));
    if (err != 0) {
        return refuse_group(self, err, "ibv_detach_mcast", &group);
    }
    *found = self->groups[--self->groups_len];
    Py_RETURN_NONE;
}

/* Called by the thread that destroys the queue pair, so no other thread changes the groups. A group
 * that cannot be left makes the destruction fail; the queue pair is then attached to all groups
 * again. */
int cqn_qp_destroy_in_groups(struct ibv_qp *qp)
{
    const cqn_qp *self = qp->qp_context;
    for (size_t i = 0; i < self->groups_len; i++) {
        ibv_detach_mcast(qp, &self->groups[i].gid, self->groups[i].lid);
    }
    int err = ibv_destroy_qp(qp);
    for (size_t i = 0; err != 0 && i < self->groups_len; i++) {
        ibv_attach_mcast(qp, &self->groups[i].gid, self->groups[i].lid);
    }
    return err;
}

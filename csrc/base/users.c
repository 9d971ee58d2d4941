/* SPDX-License-Identifier: MIT */
/*
 * Which open objects use one, as close() asks: the next of them to close, or the BusyError that
 * counts them.
 */

#include "base/close.h"
#include "base/errors.h"
#include "base/library.h"

/* ---- the next to close ---- */

/* The latest of a rank that is open, of all that were made on the context. */
static cqn_object *latest_below(const cqn_context *ctx, int rank)
{
    cqn_object *o = ctx->last[rank];
    while (o != NULL && o->handle == NULL) { /* other threads are closing it */
        o = o->prev;
    }
    return o;
}

/* The same of those that use the object. */
static cqn_object *latest_user(const cqn_object *self, int rank)
{
    const cqn_link *link = self->latest[rank];
    while (link != NULL && link->user->handle == NULL) {
        link = link->older;
    }
    return link == NULL ? NULL : link->user;
}

/* The open object to close first if `self` is to go: the latest of the
 * lowest rank. NULL: no open object uses it. */
cqn_object *cqn_next_user(const cqn_object *self)
{
    const cqn_context *ctx = self->context;
    cqn_object *user = NULL;
    for (int rank = 0; self->users > 0 && user == NULL && rank < CQN_RANKS; rank++) {
        user = CQN_OBJ(ctx) == self ? latest_below(ctx, rank) : latest_user(self, rank);
    }
    return user;
}

/* ---- the refusal ---- */

typedef struct {
    const cqn_kind *kind;
    uint64_t first; /* serial of the oldest */
    size_t count;
} users_of_kind;

#define KINDS 8 /* more than use one object */

/* Counts an open user, but only once if it uses `self` in several places. */
static void count_user(users_of_kind *kinds, const cqn_object *self, const cqn_link *link)
{
    const cqn_object *user = link->user;
    size_t slot = 0, i = 0;
    while (user->uses[slot] != self) {
        slot++;
    }
    if (user->handle == NULL || &user->links[slot] != link) {
        return;
    }
    while (i < KINDS - 1 && kinds[i].kind != NULL && kinds[i].kind != user->kind) {
        i++;
    }
    kinds[i].kind = user->kind;
    kinds[i].first = user->serial; /* the oldest comes last */
    kinds[i].count++;
}

/* Takes out the kind whose oldest is the oldest; its count is 0 if there is none. */
static users_of_kind take_oldest(users_of_kind *kinds)
{
    users_of_kind *oldest = &kinds[0];
    for (size_t i = 1; i < KINDS; i++) {
        if (oldest->count == 0 || (kinds[i].count > 0 && kinds[i].first < oldest->first)) {
            oldest = &kinds[i];
        }
    }
    users_of_kind taken = *oldest;
    oldest->count = 0;
    return taken;
}

/* "this PD is still used by 2 QPs, 1 MR: close that first". */
CQN_RARE int cqn_refuse_users(cqn_object *self)
{
    users_of_kind kinds[KINDS] = {{.kind = NULL}}, one;
    for (int rank = 0; rank < CQN_RANKS; rank++) {
        for (const cqn_link *link = self->latest[rank]; link != NULL; link = link->older) {
            count_user(kinds, self, link);
        }
    }
    PyObject *names = PyUnicode_FromString("");
    for (const char *comma = ""; names != NULL && (one = take_oldest(kinds)).count > 0;
         comma = ", ") {
        Py_SETREF(names, PyUnicode_FromFormat("%U%s%zu %s%s", names, comma, one.count,
                                              one.kind->name, one.count > 1 ? "s" : ""));
    }
    PyObject *message = names == NULL
                            ? NULL
                            : PyUnicode_FromFormat("this %s is still used by %U: close that first",
                                                   self->kind->name, names);
    Py_XDECREF(names);
    cqn_busy_error(self->state, self->kind->destroy_verb, message);
    return -1;
}

int cqn_refuse_pins(cqn_object *self)
{
    if (self->kind->pinned_by != NULL) {
        cqn_busy_error(self->state, self->kind->destroy_verb,
                       PyUnicode_FromFormat("this %s is still used by %zu %s%s: close that first",
                                            self->kind->name, self->pins, self->kind->pinned_by,
                                            self->pins == 1 ? "" : "s"));
        return -1;
    }
    cqn_busy_error(
        self->state, self->kind->destroy_verb,
        PyUnicode_FromFormat("this %s is still needed by %zu work request%s in flight: poll the "
                             "completion, or close the QP or SRQ that it was posted to",
                             self->kind->name, self->pins, self->pins == 1 ? "" : "s"));
    return -1;
}

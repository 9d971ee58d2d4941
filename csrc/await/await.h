/* SPDX-License-Identifier: MIT */
/* What the folders above, and the module, use of this one; and the types. */
#ifndef CQN_AWAIT_AWAIT_H
#define CQN_AWAIT_AWAIT_H

#include "await/engine.h"

extern PyType_Spec cqn_wakeup_spec, cqn_engine_spec, cqn_request_spec, cqn_scope_spec;

/* engine.c */
extern const cqn_awaiting cqn_engine_awaiting;

/* An event of that CQ was read by the loop's callback. -1 with what must end the loop. */
int cqn_engine_dispatch(cqn_cq *cq);

/* The CQ may have lost its arming, or its tasks an event. Whether it has an engine, which has seen
 * to it. */
bool cqn_engine_look_again(cqn_cq *cq);

/* The queue pair was closed, reset or moved to an error state: tells the engines of its CQs.
 * `interrupt` as in cqn_callback_failed(). */
void cqn_engines_tell(cqn_qp *qp, PyObject **interrupt);

/* What CQ.poll() does while the CQ has an engine: a new list. */
PyObject *cqn_engine_poll(cqn_engine *engine, uint64_t max, double spin);

/* pending.c */

/* Visits the engines that a channel holds, since they have requests under way. */
int cqn_engine_busy_traverse(const cqn_channel *channel, visitproc visit, void *arg);

/* loop.c */

/* A channel is dispatched, which is once in a turn of its loop. */
void cqn_turn_dispatched(cqn_channel *channel);

/* The method of a channel, and its end. */
PyObject *cqn_channel_set_loop(PyObject *self, PyObject *args);
void cqn_channel_forget_loop(cqn_channel *self);

#endif

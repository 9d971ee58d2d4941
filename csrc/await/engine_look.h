/* SPDX-License-Identifier: MIT */
/* Looking for completions, and arming the CQ. */
#ifndef CQN_AWAIT_ENGINE_LOOK_H
#define CQN_AWAIT_ENGINE_LOOK_H

#include "await/engine.h"

/* Looks once for a request that has just begun. -1 with an exception. */
int cqn_engine_look(cqn_request *request);

/* Makes it safe to sleep for all pending requests: arms the CQ, and looks after that. `looked`: the
 * caller has looked, and nothing was posted since. If the device fails, all tasks are told. */
void cqn_engine_prepare(cqn_engine *self, bool looked);

/* Call after anything that may have changed something for the pending requests. Sets no exception.
 */
void cqn_engine_serve(cqn_engine *self);

#endif

/* SPDX-License-Identifier: MIT */
/* Looking for completions, and arming the CQ. */
#ifndef CQN_AWAIT_ENGINE_LOOK_H
#define CQN_AWAIT_ENGINE_LOOK_H

#include "await/engine.h"

/* Looks once for a request that has just begun. -1 with an exception. */
int cqn_engine_look(cqn_request *request);

/* Makes it safe to sleep for all that are under way: armed, then looked. `looked`: that was done
 * since the last post. A failure of the device is told to them all. */
void cqn_engine_prepare(cqn_engine *self, bool looked);

/* After anything that may have changed something for those under way. Sets no exception. */
void cqn_engine_serve(cqn_engine *self);

#endif

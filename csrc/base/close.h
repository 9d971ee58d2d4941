/* SPDX-License-Identifier: MIT */
/* What the files share that close objects: object.c, users.c, close.c and dealloc.c. Others close
 * by cqn_close(). */
#ifndef CQN_CLOSE_H
#define CQN_CLOSE_H

#include "base/object.h"

/* object.c */

/* Takes the object out of all lists; what it uses still counts it. */
void cqn_unlist(cqn_object *self);

/* users.c */

/* The open object to close first if `self` is to go; NULL: no open object uses it. */
cqn_object *cqn_next_user(const cqn_object *self);

/* Raise BusyError, for open objects that use this one, and for work requests in flight that need
 * it. Return -1. */
int cqn_refuse_users(cqn_object *self);
int cqn_refuse_pins(cqn_object *self);

#endif

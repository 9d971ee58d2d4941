/* SPDX-License-Identifier: MIT */
/*
 * The lowest folder: what every type is made of, and nothing of any one type.
 *
 *   state.h      the state of the module
 *   lock.h       what takes the GIL's place on a free-threaded Python
 *   object.h     the common head of all objects that own a handle, and their lifetime: object.c,
 *                users.c, close.c, dealloc.c, trash.c; what all types have is in object_methods.c
 *   gate.h       where threads sleep
 *   flag.h       a descriptor for event loops
 *   descriptors.h  those that others made, and whether some are free
 *   library.h    libibverbs itself
 *   errors.h     from the errno of a verb to an exception
 *   args.h       from the arguments of a call to values
 *   attr.h       structs of the verbs as dicts and tuples
 *   constants.h  numbers of the verbs by their names
 *   value.h      what is copied and pickled
 *   spares.h     memory of objects that were dropped, for the next ones
 *   trace.h      places that tracers find
 */
#ifndef CQN_BASE_H
#define CQN_BASE_H

#include "base/args.h"
#include "base/attr.h"
#include "base/constants.h"
#include "base/descriptors.h"
#include "base/errors.h"
#include "base/flag.h"
#include "base/gate.h"
#include "base/library.h"
#include "base/object.h"
#include "base/spares.h"
#include "base/state.h"
#include "base/trace.h"
#include "base/value.h"

#endif

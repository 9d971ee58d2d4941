/* SPDX-License-Identifier: MIT */
/*
 * The lowest folder: what every type is made of, and nothing of any one type. Its files, with the
 * headers that have no file of their own:
 *
 *   object.c           the common head of all objects that own a handle, and calls without the GIL
 *   object_methods.c   the methods and attributes that all types have
 *   close.c            closing, for objects of all types; the BusyError that counts what uses one
 *   dealloc.c          the garbage collector, and closing at the last moment
 *   deferred_decref.c  references that are dropped later, when it is safe to run other code
 *   freelist.c         memory of objects that were dropped, for the next ones
 *   wait_queue.c       threads that sleep without the GIL, until a deadline
 *   pollable_flag.c    a descriptor for event loops, readable while there are reports
 *   descriptors.c      descriptors that others made, and whether some are free
 *   lock.c             the lock that takes the GIL's place on a free-threaded Python
 *   state.c            the state of the module
 *   library.c          libibverbs: loading it, and its functions by the names of its header
 *   observer.c         the observer of `cqnotify trace`, if it is there
 *   errors.c           from the errno of a verb to an exception
 *   args.c             from the arguments of a call to values
 *   struct_fields.c    structs of the verbs as dicts and tuples
 *   constants.c        numbers of the verbs by their names
 *   value.c            copying, hashing and pickling values
 *   trace.h            places that tracers find
 *   python.h           what all files need of Python, libibverbs and C
 */
#ifndef CQN_BASE_H
#define CQN_BASE_H

#include "base/args.h"
#include "base/constants.h"
#include "base/descriptors.h"
#include "base/errors.h"
#include "base/freelist.h"
#include "base/library.h"
#include "base/object.h"
#include "base/observer.h"
#include "base/pollable_flag.h"
#include "base/state.h"
#include "base/struct_fields.h"
#include "base/trace.h"
#include "base/value.h"
#include "base/wait_queue.h"

#endif

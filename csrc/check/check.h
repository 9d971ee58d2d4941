/* SPDX-License-Identifier: MIT */
/*
 * The observer of `cqnotify check`: a library that the dynamic linker loads into a program
 * (LD_AUDIT, see rtld-audit(7)), and that intercepts its calls of libibverbs.
 *
 *   audit.c     the interface to the dynamic linker: binding functions of the program to hooks
 *   symbol.c    finding a function of a loaded object by name
 *   hooks.h     the intercepted functions
 *   context.c   contexts, their tables of functions, channels, asynchronous events
 *   ops.h       the functions put into these tables
 *   objects.h   the state of each CQ, QP and region: its number, its requests in flight
 *   cq.c        create, poll, arm, event, acknowledge, destroy
 *   cq_ex.c     extended CQs, polled field by field
 *   qp.c        create, modify, post, destroy; the request that a completion ends
 *   qp_ex.c     extended QPs, whose requests are built call by call
 *   queue.c     the requests in flight in one queue
 *   run.h       a poll that returns only successes, as nearly all do
 *   mr.c        regions, and memory freed under them
 *   sleep.c     calls that sleep on a channel, and looks at the CQs meanwhile
 *   report.c    rules about acknowledging, and rules checked at the end
 *   log.c       the lines of the log, and its findings
 *   site.c      the origins of calls in the program
 *   timeline.c  the records of a timeline, see record.h
 *   task.c      reports of cqnotify's core about its tasks
 *   chaos.c     injected faults that the verbs permit
 *   chaos_post.c  injected faults of posts
 *   memory.c    memory, and the table of the program's objects
 *
 * The observer has its own link-map namespace and its own libc: see lock.h.
 */
#ifndef CQN_CHECK_H
#define CQN_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "log.h"
#include "site.h"
#include "timeline.h"

/* ---- audit.c ------------------------------------------------------------------------------- */

uint32_t cqn_tid(void);
uint64_t cqn_now(void);                     /* timeline.c */
int cqn_create_file(const char *extension); /* creates PID.N.extension in the folder; or -1 */
void cqn_own_code(uintptr_t *from, uintptr_t *to);
ssize_t cqn_read_command(char *buffer, size_t size); /* the arguments, each with a NUL */
bool cqn_is_alone(void);                             /* whether the process has one thread */
int *cqn_errno(void);                                /* the program's errno */
void *cqn_find_verb(const char *symbol);             /* a function of libibverbs; or NULL */
void cqn_report_end(void);                           /* report.c: findings known only at the end */

/* The interval of looks while a thread sleeps, and the number of looks that decides. */
enum { LOOK_MS = 50, LOOKS = 20 };

#endif

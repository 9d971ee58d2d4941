/* SPDX-License-Identifier: MIT */
/*
 * The observer of `cqnotify check`: a library that the dynamic linker loads into a program
 * (LD_AUDIT, see rtld-audit(7)), which stands between the program and libibverbs.
 *
 *   audit.c     what the dynamic linker calls: which functions of the program are bound to ours
 *   symbol.c    a function of a loaded object, by its name
 *   hooks.h     the functions of the program that ours stand for
 *   context.c   contexts, their tables of functions, channels, asynchronous events
 *   ops.h       what is put into these tables
 *   objects.h   what is known of each CQ, QP, region: its numbers, and what is in flight
 *   cq.c        create, poll, arm, event, acknowledge, destroy
 *   cq_ex.c     extended CQs, which are polled field by field
 *   qp.c        create, modify, post, destroy; which request a completion ends
 *   qp_ex.c     extended QPs, whose requests are built call by call
 *   queue.c     the requests of one queue that are in flight
 *   run.h       a poll of successes, which is what nearly every poll gets
 *   mr.c        regions, and memory that is given back under them
 *   sleep.c     calls that sleep on a channel, and the look at what they sleep through
 *   report.c    rules about acknowledging, and those that are decided at the end
 *   log.c       the lines that are written, and the findings among them
 *   site.c      where the program called from
 *   timeline.c  the records of a timeline, see record.h
 *   task.c      what cqnotify's own core tells of its tasks
 *   chaos.c     faults that the verbs allow, made on purpose
 *   chaos_post.c  those of posts
 *   memory.c    memory, and the table of the program's objects
 *
 * It lives in a link-map namespace of its own, with a libc of its own: see lock.h.
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
int cqn_create_file(const char *extension); /* a new one in the folder: PID.N.extension; or -1 */
void cqn_own_code(uintptr_t *from, uintptr_t *to);
ssize_t cqn_read_command(char *buffer, size_t size); /* the arguments, a NUL behind each */
bool cqn_is_alone(void);                             /* whether the process has one thread */
int *cqn_errno(void);                                /* the program's */
void *cqn_find_verb(const char *symbol);             /* of libibverbs; or NULL */
void cqn_report_end(void);                           /* report.c: what is known only at the end */

/* How often a thread looks while it sleeps, and how many looks decide. */
enum { LOOK_MS = 50, LOOKS = 20 };

#endif

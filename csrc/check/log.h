/* SPDX-License-Identifier: MIT */
/*
 * The log: what the observer tells cqnotify check. A file of lines, each a JSON object, in the
 * folder CQNOTIFY_CHECK: PID.N.log, where N counts the programs that one process executed.
 *
 *  {"kind": "process", "pid": 7, "parent": 6, "time": NS, "forked": "", "program": "/usr/bin/a",
 *   "command": ["a", "-e"]}
 *      The first line. Times are CLOCK_MONOTONIC. After fork(), `forked` names the log of the
 *      parent ("6.0"), which has the modules loaded so far.
 *  {"kind": "module", "base": "0x7f0000001000", "path": "/usr/lib/.../libibverbs.so.1"}
 *      A loaded object; an address minus its base is one of the file's. The program's own path is
 *      empty: see `program`.
 *  {"kind": "finding", "rule": "lost-wakeup", "time": NS, "tid": 9, "number": 1,
 *   "values": {"cq": 1, "channel": 1, ...},
 *   "where": [{"what": "sleep", "tid": 9, "frames": ["0x55...", ...]}, {"what": "arm", ...}]}
 *      `frames` are return addresses, innermost first, without those of the observer. Objects are
 *      numbered as in a timeline. A finding may come again with the same number and larger values.
 *  {"kind": "withdrawn", "number": 1, "time": NS}
 *      A finding that turned out not to hold.
 *  {"kind": "chaos", "fault": "eintr", "number": 1, "call": 5, "detail": 3, "time": NS, "tid": 9}
 *      A fault was made, for the so-manieth time, at this one of the calls that could have it. Of
 *      many, after the first 1,000, each 1,000th. `detail`: how many completions a poll handed out
 *      (split) or held back (hold), the sleep that ended (eintr: enum record_call), how many ms
 *      were added (late, destroy), how many requests of the list were posted (post), the status
 *      (fail: enum ibv_wc_status), the event (async: enum ibv_event_type), or an errno.
 *  {"kind": "counts", "time": NS, "contexts": 1, "channels": 1, "cqs": 1, "qps": 2, "arms": 3,
 *   "events": 2, "acks": 2, "polls": 9, "completions": 8, "sleeps": 3, "posts": 9}
 *      Sums of the process, as it ends; not there if a signal or _exit() ended it.
 *  {"kind": "so-far", ...}
 *      The same, before a finding of a thread that hangs: the program may be ended by a signal.
 *
 * The rules, and the values of each, are in cqnotify/check/rules.py.
 */
#ifndef CQN_CHECK_LOG_H
#define CQN_CHECK_LOG_H

#include <stdint.h>

#include "site.h"

/* A line in the making. Lines are cut, never overrun: a reader skips what is no JSON object. */
struct line {
    uint32_t length;
    char text[8000];
};

void cqn_log_open(const char *forked);
void cqn_log_module(uintptr_t base, const char *path);
void cqn_log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cqn_log_withdraw(uint32_t finding);

/* A finding: begin, any number of values, any number of places, end, which writes it. Again with a
 * number that end returned, it replaces that finding. */
void cqn_finding_begin(struct line *line, const char *rule);
void cqn_finding_value(struct line *line, const char *name, uint64_t value);
void cqn_finding_text(struct line *line, const char *name, const char *value);
void cqn_finding_here(struct line *line, const char *what);
void cqn_finding_site(struct line *line, const char *what, const struct site *site);
uint32_t cqn_finding_end(struct line *line, uint32_t number);

#endif

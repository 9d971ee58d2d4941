/* SPDX-License-Identifier: MIT */
/*
 * The log: the report of the observer to cqnotify check. A file of lines, each a JSON object, in
 * the folder CQNOTIFY_CHECK: PID.N.log, where N counts the programs executed by one process.
 *
 *  {"kind": "process", "pid": 7, "parent": 6, "time": NS, "forked": "", "program": "/usr/bin/a",
 *   "command": ["a", "-e"]}
 *      The first line. Times are CLOCK_MONOTONIC. After fork(), `forked` is the name of the log of
 *      the parent ("6.0"), which has the modules loaded so far.
 *  {"kind": "module", "base": "0x7f0000001000", "path": "/usr/lib/.../libibverbs.so.1"}
 *      A loaded object; an address minus its base is an address in the file. The path of the
 *      program itself is empty: see `program`.
 *  {"kind": "finding", "rule": "lost-wakeup", "time": NS, "tid": 9, "number": 1,
 *   "values": {"cq": 1, "channel": 1, ...},
 *   "where": [{"what": "sleep", "tid": 9, "frames": ["0x55...", ...]}, {"what": "arm", ...}]}
 *      `frames` are return addresses, innermost first, without the observer's own. Objects are
 *      numbered as in a timeline. A finding may be repeated with the same number and larger values.
 *  {"kind": "withdrawn", "number": 1, "time": NS}
 *      The finding was wrong.
 *  {"kind": "chaos", "fault": "eintr", "number": 1, "call": 5, "detail": 3, "time": NS, "tid": 9}
 *      An injected fault: its number, and the number of the call among the calls that could have
 *      it. After the first 1,000 only every 1,000th is logged. `detail`: the completions that a
 *      poll returned (split) or withheld (hold), the interrupted sleep (eintr: enum record_call),
 *      the added milliseconds (late, destroy), the posted requests of the list (post), the status
 *      (fail: enum ibv_wc_status), the event (async: enum ibv_event_type), or an errno.
 *  {"kind": "counts", "time": NS, "contexts": 1, "channels": 1, "cqs": 1, "qps": 2, "arms": 3,
 *   "events": 2, "acks": 2, "polls": 9, "completions": 8, "sleeps": 3, "posts": 9}
 *      The sums of the process, at its end; missing if a signal or _exit() ended it.
 *  {"kind": "so-far", ...}
 *      The same, before a finding about a thread that hangs: a signal may end the program.
 *
 * The rules and their values are in cqnotify/check/rules.py.
 */
#ifndef CQN_CHECK_LOG_H
#define CQN_CHECK_LOG_H

#include <stdint.h>

#include "site.h"

/* A line under construction. A line that is too long is cut; readers skip lines that are not
 * JSON. */
struct line {
    uint32_t length;
    char text[8000];
};

void cqn_log_open(const char *forked);
void cqn_log_module(uintptr_t base, const char *path);
void cqn_log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cqn_log_withdraw(uint32_t finding);

/* A finding: begin, any number of values, any number of places, and end, which writes it. With a
 * number returned by an earlier end, it replaces that finding. */
void cqn_finding_begin(struct line *line, const char *rule);
void cqn_finding_value(struct line *line, const char *name, uint64_t value);
void cqn_finding_text(struct line *line, const char *name, const char *value);
void cqn_finding_here(struct line *line, const char *what);
void cqn_finding_site(struct line *line, const char *what, const struct site *site);
uint32_t cqn_finding_end(struct line *line, uint32_t number);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The log: what the observer tells cqnotify check. A file of lines, each a JSON object, in the
 * folder CQNOTIFY_CHECK: PID.N.log, where N counts the programs that one process executed.
 *
 *  {"kind": "process", "pid": 7, "parent": 6, "time": NS, "libc": "2.36", "command": ["./a.out"]}
 *      The first line. Times are CLOCK_MONOTONIC.
 *  {"kind": "module", "base": "0x7f0000001000", "path": "/usr/lib/.../libibverbs.so.1"}
 *      A loaded object; an address minus its base is one of the file's. The program's own path is
 *      that of /proc/self/exe.
 *  {"kind": "finding", "rule": "lost-wakeup", "time": NS, "tid": 9, "number": 1,
 *   "values": {"cq": 1, "channel": 1, ...},
 *   "where": [{"what": "sleep", "tid": 9, "frames": ["0x55...", ...]}, {"what": "arm", ...}]}
 *      `frames` are return addresses, innermost first, those of the observer left out. Objects are
 *      numbered as in a timeline.
 *  {"kind": "withdrawn", "number": 1, "time": NS}
 *      A finding that turned out not to hold.
 *  {"kind": "counts", "time": NS, "cqs": 1, "arms": 3, ...}
 *      Sums of the process; the last line, unless it was killed.
 *
 * The rules, and the values of each, are in cqnotify/check/rules.py.
 */
#ifndef CQN_LOG_H
#define CQN_LOG_H
#endif

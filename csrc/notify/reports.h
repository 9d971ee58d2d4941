/* SPDX-License-Identifier: MIT */
/* The asynchronous events of a device. The files are in the map of cq.h. */
#ifndef CQN_REPORTS_H
#define CQN_REPORTS_H

#include "notify/cq.h"

typedef enum {
    CQN_OF_NOTHING,
    CQN_OF_CQ,
    CQN_OF_QP,
    CQN_OF_SRQ,
    CQN_OF_PORT,
    CQN_OF_DEVICE
} cqn_report_scope;

typedef struct cqn_report cqn_report;

struct cqn_report {
    cqn_report *next;
    uint64_t serial;       /* order of arrival */
    unsigned long read_by; /* the thread that popped this failure, or 0 */
    enum ibv_event_type type;
    cqn_object *element; /* the CQ, QP or SRQ, borrowed; or NULL */
    int port_num;        /* or 0 */
};

/* The reports of a context. */
typedef struct cqn_reports {
    cqn_report *queued;   /* read but not popped */
    cqn_report *failures; /* the latest of each kind, oldest first */
    size_t queued_len;
    uint64_t serial;        /* of the latest report */
    cqn_pollable_flag flag; /* raised while reports are queued */
    cqn_wait_queue wait_queue;
} cqn_reports;

typedef struct {
    PyObject_HEAD
    PyObject *element; /* the CQ, QP or SRQ, or NULL; its repr() after unpickling */
    enum ibv_event_type type;
    int port_num;
} cqn_async_event;

typedef struct {
    cqn_object base;        /* its handle is the watch itself, as there is nothing to destroy */
    cqn_pollable_flag flag; /* raised while a failure is unseen */
    uint64_t latest;        /* serial of the latest failure */
    uint64_t seen_serial;   /* serial of the latest failure that read() returned */
} cqn_failure_watch;

/* reports.c */

/* Returns what a report is about; *failure: completions may be missing after it. */
cqn_report_scope cqn_report_scope_of(enum ibv_event_type type, bool *failure);

/* Whether it is a failure after which queue pairs may go on. */
bool cqn_report_is_transient(enum ibv_event_type type);

/* The first function returns whether a failure may keep completions from a channel. The second one
 * appends the affected open CQs to a list; the caller holds a reference to the failed element. It
 * returns 1; 0 if the failure affects all CQs of the device; -1 with an exception. */
bool cqn_report_affects(const cqn_report *report, const cqn_channel *channel);
int cqn_report_add_cqs(const cqn_context *ctx, const cqn_report *failure, PyObject *cqs);

/* Prepares a new context for reports. Returns -1 with an exception; cqn_async_clear() undoes it. */
int cqn_async_open(cqn_context *ctx);
void cqn_async_clear(cqn_context *ctx);

/* Drops the reports about an element that is closed; NULL: all reports. */
void cqn_async_forget(cqn_context *ctx, const cqn_object *element);

/* Reads the device's reports, up to a limit, and notifies the channels and watches that they
 * affect. Runs no Python code. Returns -1 with an exception. */
int cqn_async_drain(cqn_context *ctx);

/* Reads all of the device's reports, for a new object, which counts them as seen: stores the serial
 * of the latest one in *seen_serial. Returns -1 with an exception. */
int cqn_async_catch_up(cqn_context *ctx, uint64_t *seen_serial);

/* Returns the report of a list with the same type and element, or NULL. */
cqn_report *cqn_report_find_same(cqn_report *list, const cqn_report *report);

/* Returns a new reference to the element; NULL if there is none or it is being deallocated. */
PyObject *cqn_report_own_element(const cqn_report *report);

/* Make the descriptor of the context, or of a watch, readable if there is something to read. */
void cqn_reports_show(cqn_context *ctx);
void cqn_failure_watch_show(cqn_failure_watch *watch);

/* failures.c */

/* Returns -1 with AsyncEventError if a failure after *seen_serial affects this channel. Advances
 * *seen_serial. */
int cqn_async_check(cqn_channel *channel, uint64_t *seen_serial);

/* async_event.c */

/* Returns a new AsyncEvent; steals the reference to the element, even on failure. */
PyObject *cqn_async_event_new(cqn_state *st, const cqn_report *report, PyObject *element);
extern PyType_Spec cqn_async_event_spec, cqn_failure_watch_spec;

/* Returns a new list of AsyncEvents: known failures and unpopped reports. Pops nothing. */
PyObject *cqn_async_known(cqn_context *ctx);
PyObject *cqn_get_async_event(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames);
PyObject *cqn_try_get_async_event(PyObject *self, PyObject *unused);
extern const char cqn_get_async_event_doc[], cqn_try_get_async_event_doc[];

#endif

/* SPDX-License-Identifier: MIT */
/* The state of the module: each interpreter that imports it has one. */
#ifndef CQN_STATE_H
#define CQN_STATE_H

#include "base/python.h"
#include "base/freelist.h"

#define CQN_WC_STATUSES 32
#define CQN_WC_OPCODES 160
#define CQN_EVENT_TYPES 32
#define CQN_FREE_WCS 256

/* What the core would otherwise keep in globals. The references are strong, and module.c visits and
 * clears them. */
typedef struct {
    PyObject *VerbsError, *BusyError, *DeviceRemovedError;
    PyObject *ClosedError, *CompletionError, *AsyncEventError;

    PyTypeObject *Context, *PD, *MR, *SGE, *CompletionChannel, *CQ, *SRQ, *QP, *AH, *MW;
    PyTypeObject *XRCD, *Flow, *FlowCounters, *WQ, *RwqIndTable;
    PyTypeObject *DM, *TD, *ParentDomain;
    PyTypeObject *SendWR, *RecvWR;
    PyTypeObject *WorkCompletion, *WCArray, *CQStats, *AsyncEvent, *FailureWatch, *Wakeup;
    PyTypeObject *Engine, *Awaitable, *Scope, *Selector;
    PyTypeObject *CMChannel, *CMID, *CMConn, *CMWait, *CMCall;
    PyTypeObject *MessageFlow, *MessageRing, *MessageReceive, *MessageSend, *MessageSession,
        *MessageMemory, *MessageReading;
    PyObject *ProtocolError; /* of cqnotify.messages, once that was imported; or NULL */

    /* Members of the Python enums, by value; NULL where there is none, and before they are needed,
     * see base/constants.h. */
    PyObject *wc_status[CQN_WC_STATUSES];
    PyObject *wc_opcode[CQN_WC_OPCODES];
    PyObject *wc_flags, *wc_ex_flags, *access_flags;

    /* For the engine, see await/. */
    PyObject *innermost_scope;    /* a context variable, see await/scope.c */
    size_t scopes;                /* that there are */
    PyObject *get_running_loop;   /* of asyncio; NULL before it is needed, like the next */
    PyObject *anyio_name, *anyio; /* the module, if it was imported */
    bool anyio_is_old;
    Py_ssize_t modules_seen; /* as it was last checked */
    cqn_freelist free_awaitables, free_wakeups;
    uint64_t ids_chosen; /* wr_ids that were generated */
    PyObject *event_type[CQN_EVENT_TYPES];

    /* Memory of WorkCompletions that were dropped, and the int of the latest length; see
     * notify/wc.c. */
    PyObject *free_wcs[CQN_FREE_WCS];
    size_t free_wcs_len;
    PyObject *byte_len;
    uint32_t byte_len_value;

    struct cqn_object *contexts; /* those that are open, the newest first, weak; see object.c */

    /* A page that the kernel wipes in a forked child: *epoch is 0 there, until
     * the child makes an object of its own. Objects are dead in any other epoch
     * than the one in which they were created. */
    volatile uint32_t *epoch;
    uint32_t last_epoch;
    bool fork_prepared, fork_initialized; /* see verbs/device.c */

    /* The queues of work requests by their numbers, see work/wr_queue.c. */
    struct cqn_wr_queue **queues;
    uint32_t queues_len, free_number, queues_made;

    const struct cqn_awaiting
        *awaiting; /* what the folders below the engine call in it, see work/queue.h */

    /* Signalled whenever a call that held an object has left it, if a thread sleeps until then. */
    pthread_mutex_t idle_lock;
    pthread_cond_t idle;
    size_t idle_sleepers; /* guarded by the GIL */
} cqn_state;

extern const char cqn_module_name[]; /* only our own module's definition has this very pointer */

/* The state of the module that made `type`, or the base that it derives from; borrowed. Every
 * method that has no cqn_object at hand gets the state by this. */
cqn_state *cqn_state_of(PyTypeObject *type);

/* Maps the page that distinguishes a forked child from its parent. -1 with OSError. */
int cqn_state_watch_for_fork(cqn_state *st);

/* In a forked child that opens a device: from now on objects live again, except those of the
 * parent. */
void cqn_state_new_epoch(cqn_state *st);

/* Frees what the state itself owns. The references in it are the module's to drop before. */
void cqn_state_free(cqn_state *st);

#endif

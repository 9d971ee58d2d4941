/* SPDX-License-Identifier: MIT */
/* The state of the module: one for each interpreter that imports it. */
#ifndef CQN_STATE_H
#define CQN_STATE_H

#include "base/python.h"
#include "base/freelist.h"

#define CQN_WC_STATUSES 32
#define CQN_WC_OPCODES 160
#define CQN_EVENT_TYPES 32
#define CQN_FREE_WCS 256

/* Everything that would otherwise be global variables. The references are strong; module.c visits
 * and clears them. */
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
        *MessageReading;
    PyTypeObject *WantedMemory, *RegisteredRegion, *RegisteredTable, *Exposure, *ExposureTable;
    PyObject *ProtocolError; /* of cqnotify.messages, or NULL until that is imported */

    /* Members of the Python enums, by value, filled on first use; NULL for unused values. See
     * base/constants.h. */
    PyObject *wc_status[CQN_WC_STATUSES];
    PyObject *wc_opcode[CQN_WC_OPCODES];
    PyObject *wc_flags, *wc_ex_flags, *access_flags;

    /* The engine's, see await/. */
    PyObject *innermost_scope;    /* a context variable, see await/scope.c */
    size_t scopes;                /* number of Scope objects */
    PyObject *get_running_loop;   /* asyncio's; NULL until first used, like the next */
    PyObject *anyio_name, *anyio; /* the module, if it was imported */
    bool anyio_is_old;
    Py_ssize_t modules_seen; /* len(sys.modules) at the last check */
    cqn_freelist free_awaitables, free_wakeups;
    uint64_t ids_chosen; /* number of generated wr_ids */
    PyObject *event_type[CQN_EVENT_TYPES];

    /* Memory of dropped WorkCompletions, and a cached int of the last byte_len; see notify/wc.c. */
    PyObject *free_wcs[CQN_FREE_WCS];
    size_t free_wcs_len;
    PyObject *byte_len;
    uint32_t byte_len_value;

    struct cqn_object *contexts; /* the open ones, newest first; weak, see object.c */

    /* A page that the kernel wipes in a forked child: *epoch is 0 there until the child creates its
     * first object. Objects are dead in every epoch except the one in which they were created. */
    volatile uint32_t *epoch;
    uint32_t last_epoch;
    bool fork_prepared, fork_initialized; /* see verbs/device.c */

    /* The WR queues by number, see work/wr_queue.c. */
    struct cqn_wr_queue **queues;
    uint32_t queues_len, free_number, queues_made;

    const struct cqn_awaiting
        *awaiting; /* the engine's functions that lower folders call, see work/queue.h */

    /* Signalled whenever a call leaves an object, if a thread waits for that. */
    pthread_mutex_t idle_lock;
    pthread_cond_t idle;
    size_t idle_sleepers; /* guarded by the GIL */
} cqn_state;

extern const char cqn_module_name[]; /* compared by pointer: only our module's definition has it */

/* Returns the state of the module that defines `type` or one of its bases; borrowed. For methods
 * without a cqn_object at hand. */
cqn_state *cqn_state_of(PyTypeObject *type);

/* Maps the page that distinguishes a forked child from its parent. Returns -1 with OSError. */
int cqn_state_watch_for_fork(cqn_state *st);

/* In a forked child that opens a device: begins a new epoch. Objects created from now on are alive;
 * those of the parent stay dead. */
void cqn_state_new_epoch(cqn_state *st);

/* Frees the memory owned by the state. The module clears the references before. */
void cqn_state_free(cqn_state *st);

#endif

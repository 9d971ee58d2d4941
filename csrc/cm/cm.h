/* SPDX-License-Identifier: MIT */
/*
 * Connections by rdma_cm: a channel that brings events, and identifiers that have them.
 *
 *   library.c          librdmacm, loaded when it is first needed
 *   sockaddr.c         addresses, from and to Python
 *   events.c           reading events: fetched, copied and acknowledged in one go
 *   calls.c            the methods of a CMID, each for some states
 *   resolve.c          the states of a CMID, and finding the way to an address
 *   connect.c          its queue pair, and the steps to a connection, which follow from events
 *   id.c               CMID: the type, and its end
 *   event_object.c     from events to what Python has of them
 *   conn_state.c       what has happened to a connection or a listener; the backlog of a listener
 *   conn_state_type.c  CMConn: the type
 *   event_wait.c       CMWait: what waits for an event
 *   sleep.c            one sleep of one task
 *   throttle.c         calls that take the kernel long, few in one iteration of an event loop
 *   channel.c          CMChannel: the type
 *
 * librdmacm crashes where its functions are called out of order, and waits for ever in
 * rdma_destroy_id() while an event was not acknowledged. So each CMID has a state, which is checked
 * before each call, and no event is left unacknowledged while other code runs.
 *
 * The queue pairs are the user's own: a CMID knows the number of one, and rdma_init_qp_attr() says
 * how to connect it. The policy (deadlines, what a program awaits) is Python's, in cqnotify/cm;
 * steps that need no decision of the program are taken here, as soon as the event is read.
 *
 * Any thread may close a connection or a listener wherever the code here lets go of the lock. By
 * the names that a debug build has for the places (CQN_PLACE, as in await/await.h):
 *
 *   place        what runs there                        what is checked afterwards
 *   cm prepare   the wakeup and timer of the loop       has_news(), when the task can be found
 *   cm sleep     the other library, which puts the      nothing: the task is found, and a wakeup
 *                task to sleep                          that is woken early ends the sleep
 *   cm end       QP.modify(), rdma_disconnect()         nothing: the end is delivered once
 *   cm leave     the same, in a close                   CMID: takes_long(), its own close()
 *   cm call      a call that was throttled              the queue of calls, from its beginning
 *                the verbs of CQN_CM_CALL, without the  the state of the CMID, which the call has
 *                GIL                                    moved on before
 */
#ifndef CQN_CM_H
#define CQN_CM_H

#include "verbs/verbs.h"
#include <rdma/rdma_cma.h>

/* ---- library.c ---- */

/* The functions of librdmacm, see their man pages. */
typedef struct {
/* clang-format off */
#define CQN_CM_FUNCTIONS(F) \
    F(create_event_channel) F(destroy_event_channel) F(get_cm_event) F(ack_cm_event) \
    F(create_id) F(destroy_id) F(bind_addr) F(resolve_addr) F(resolve_route) F(listen) \
    F(connect) F(accept) F(reject) F(establish) F(disconnect) F(init_qp_attr) \
    F(set_option) F(join_multicast) F(leave_multicast)
/* clang-format on */
#define CQN_CM_POINTER(name) __typeof__(rdma_##name) *name;
    CQN_CM_FUNCTIONS(CQN_CM_POINTER)
} cqn_cm_library;

/* Loads the library if it was not loaded, before a channel is made, which searches for devices. -1
 * with OSError where it is missing. */
int cqn_cm_load(cqn_state *st);

/* The library, which was loaded, since there is an object that needs it. Calls that can fail go
 * through CQN_CM, which in a build for tests lets them. */
extern cqn_cm_library cqn_cm;
#define CQN_CM_FAILS(name) CQN_FAILS("rdma_" #name)
#define CQN_CM(name, ...) (CQN_CM_FAILS(name) ? -1 : CQN_CM_CALLED(cqn_cm.name(__VA_ARGS__)))
#define CQN_CM_OR_NULL(name) (CQN_CM_FAILS(name) ? NULL : CQN_CM_CALLED(cqn_cm.name()))

/* Most functions of librdmacm take a lock of its own. */
#define CQN_CM_CALLED(call)                  \
    __extension__({                          \
        cqn_library_enter();                 \
        __typeof__(call) came_back = (call); \
        cqn_library_leave();                 \
        came_back;                           \
    })

/* ---- what there is ---- */

/* What is known of an identifier. The order is that of a connection's life; calls and events lead
 * from one to the next. */
typedef enum {
    CQN_CM_NEW,
    CQN_CM_BOUND,
    CQN_CM_LISTENING,
    CQN_CM_RESOLVING_ADDR,
    CQN_CM_ADDR_RESOLVED,
    CQN_CM_RESOLVING_ROUTE,
    CQN_CM_ROUTE_RESOLVED,
    CQN_CM_CONNECTING,
    CQN_CM_RESPONDED, /* the peer has accepted; the queue pair is to be connected */
    CQN_CM_REQUESTED, /* a peer wants to connect */
    CQN_CM_ACCEPTING,
    CQN_CM_JOINING, /* a multicast group; then it is ESTABLISHED */
    CQN_CM_ESTABLISHED,
    CQN_CM_DISCONNECTING, /* asked for here; the peer has not answered */
    CQN_CM_DISCONNECTED,
    CQN_CM_FAILED,
    CQN_CM_STATES
} cqn_cm_state;

/* The connection parameters to send to the peer. */
typedef struct {
    struct rdma_conn_param param;
    uint8_t private_data[UINT8_MAX];
} cqn_cm_conn_params;

typedef struct {
    cqn_object base;                /* uses the channel, and then the queue pair, if there is one */
    struct cqn_cm_conn *conn;       /* that its events are delivered to, weak; or NULL */
    struct sockaddr_storage *group; /* of multicast, that it has joined; or NULL */
    cqn_cm_conn_params *params;     /* until they were sent; or NULL */
    struct sockaddr_in6 peer;       /* of any family; once it is closed */
    unsigned int access;            /* what the peer may do by its queue pair */
    uint8_t depth;                  /* initiator_depth; the peer may grant less */
    int left_ms;                    /* for more tries to resolve its address */
    uint8_t state;                  /* a cqn_cm_state */
    uint8_t target;                 /* the state up to which the core takes the steps itself */
    bool datagrams;                 /* RDMA_PS_UDP */
    bool joined;                    /* the group */
    bool lost;                      /* it had been established when it failed */
    bool prepared;                  /* how its queue pair is to be connected is known */
} cqn_cm_id;

/* A copy of an rdma_cm event; the event itself was acknowledged. */
typedef struct cqn_cm_event {
    struct cqn_cm_event *next;
    cqn_cm_id *owner;           /* borrowed */
    struct rdma_cm_id *request; /* of a CONNECT_REQUEST: new, and owned by the event */
    enum rdma_cm_event_type type;
    int status;
    struct rdma_conn_param conn;
    struct rdma_ud_param ud;
    bool datagrams; /* which of the two it is */
    uint8_t private_data[UINT8_MAX];
    uint8_t private_len;
} cqn_cm_event;

typedef struct {
    cqn_context root;           /* lists the identifiers, as a Context does what was made on it */
    cqn_cm_event *first, *last; /* that were read and not returned */
    PyTypeObject *event_type;   /* of what is returned: tuple, or a subtype */
    /* The loop that reads the events, as cqnotify has it; the asyncio loop itself, and a future of
     * it that has a result. Else NULL. */
    PyObject *loop, *raw_loop, *done;
    struct cqn_cm_conn *conns;                  /* the CMConns whose events it brings; weak */
    struct cqn_cm_call *first_call, *last_call; /* calls that wait for an iteration of the loop */
    double spent;                               /* seconds, in calls of this iteration */
    uint8_t timed;                              /* calls that the clock need not be asked for */
    bool callback_scheduled;                    /* the loop will call _run_throttled() */
} cqn_cm_channel;

/* What an event is in Python. */
enum {
    CQN_CM_EVENT_ID,
    CQN_CM_EVENT_TYPE,
    CQN_CM_EVENT_STATUS,
    CQN_CM_EVENT_DATA,
    CQN_CM_EVENT_SAID,
    CQN_CM_EVENT_REQUEST,
    CQN_CM_EVENT_ERROR,
    CQN_CM_EVENT_FIELDS
};

/* ---- sockaddr.c ---- */

/* From a tuple of a numeric address and a port. -1 with an exception. */
int cqn_cm_sockaddr_from(PyObject *address, struct sockaddr_storage *out);

/* A new tuple (address, port); None for an address of no family. */
PyObject *cqn_cm_sockaddr_to(const struct sockaddr *address);

/* ---- events.c ---- */

/* Reads what has arrived, up to `max` events. Runs no Python code. -1 with an exception. */
int cqn_cm_drain(cqn_cm_channel *self, size_t max);

/* Frees an event that is in no list; the request that it owns is rejected. */
void cqn_cm_drop_event(cqn_cm_event *event);

/* Drops the events of an identifier that goes; NULL: all. Requests among them are rejected. */
void cqn_cm_forget_events(cqn_cm_channel *self, const cqn_cm_id *owner);

/* ---- resolve.c ---- */

extern const char *const cqn_cm_state_names[CQN_CM_STATES];

/* ---- calls.c ---- */

extern PyMethodDef cqn_cm_id_methods[];

/* ---- connect.c ---- */

/* Returns 1 if the next step consumed the event; 0 if it is for the program; -1 with an exception
 * if the step failed: then the event is for the program, too. */
int cqn_cm_advance(cqn_cm_id *self, enum rdma_cm_event_type type, int status);

/* ---- id.c ---- */

/* A new CMID; NULL with an exception. */
PyObject *cqn_cm_id_create(PyTypeObject *type, cqn_object *channel, bool datagrams);

/* A CMID for an identifier that came with a CONNECT_REQUEST, which it owns from here on; NULL with
 * an exception: then it does not. */
cqn_cm_id *cqn_cm_id_of_request(cqn_cm_channel *channel, struct rdma_cm_id *request);

/* Whether its address leads to an iWARP device; of an open one. */
static inline bool cqn_cm_is_iwarp(const cqn_cm_id *self)
{
    const struct rdma_cm_id *id = self->base.handle;
    return id->verbs != NULL && id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

/* The channel that brings its events. */
static inline cqn_cm_channel *cqn_cm_channel_of(const cqn_cm_id *self)
{
    return (cqn_cm_channel *)self->base.context;
}

/* ---- event_object.c ---- */

/* Returns the oldest event that was read as a new tuple, or NULL; with an exception the event stays
 * where it is. */
PyObject *cqn_cm_next_event(cqn_cm_channel *self);

/* ---- throttle.c ---- */

#define CQN_CM_BUDGET 0.003 /* seconds for which calls are made in an iteration of the loop */

/* A task that an event has woken closes its connection, and ends another one. The time of so many
 * calls is measured together with that of the event. */
#define CQN_CM_CALLS_OF_AN_EVENT 2

extern const char cqn_cm_throttled_doc[];
PyObject *cqn_cm_throttled(PyObject *channel, PyObject *call);
PyObject *cqn_cm_run_throttled(PyObject *channel, PyObject *unused);

extern PyType_Spec cqn_cm_channel_spec, cqn_cm_id_spec, cqn_cm_conn_spec, cqn_cm_wait_spec,
    cqn_cm_call_spec;

#endif

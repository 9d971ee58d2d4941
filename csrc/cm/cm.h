/* SPDX-License-Identifier: MIT */
/*
 * Connections by rdma_cm: a channel of events, and the identifiers to which these belong.
 *
 *   library.c          librdmacm, loaded when it is first needed
 *   sockaddr.c         addresses, from and to Python
 *   events.c           reading events: fetched, copied and acknowledged in one go
 *   calls.c            the methods of a CMID, each for some states
 *   resolve.c          the states of a CMID; resolving an address and its route
 *   connect.c          the queue pair, and the steps to a connection, which follow from events
 *   id.c               CMID: the type, and its end
 *   event_object.c     events as Python objects
 *   conn_state.c       the events of a connection or a listener; the backlog of a listener
 *   conn_state_type.c  CMConn: the type
 *   event_wait.c       CMWait: waits for an event
 *   sleep.c            one sleep of one task
 *   throttle.c         limits slow calls per iteration of an event loop
 *   channel.c          CMChannel: the type
 *
 * librdmacm crashes if its functions are called out of order, and waits forever in
 * rdma_destroy_id() while an event is not acknowledged. So each CMID has a state, which is checked
 * before each call, and every event is acknowledged before other code runs.
 *
 * The queue pairs are the user's own: a CMID knows the number of one, and rdma_init_qp_attr()
 * returns the attributes to connect it. The policy (deadlines, and what a program awaits) is
 * Python's, in cqnotify/cm. Steps that need no decision of the program are taken here, as soon as
 * the event is read.
 *
 * Any thread may close a connection or a listener wherever this code releases the lock. By the
 * names that a debug build has for these places (CQN_PLACE, as in await/await.h):
 *
 *   place        what runs there                        what is checked afterwards
 *   cm prepare   the wakeup and timer of the loop       has_news(), after the task is listed
 *   cm sleep     the other library, which puts the      nothing: the task is listed, and a wakeup
 *                task to sleep                          that is woken early ends the sleep
 *   cm end       QP.modify(), rdma_disconnect()         nothing: the end is delivered once
 *   cm leave     the same, in a close                   CMID: takes_long(), its own close()
 *   cm call      a call that was throttled              the queue of calls, from its beginning
 *                the verbs of CQN_CM_CALL, without the  the state of the CMID, which the call
 *                GIL                                    changed before
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

/* Loads the library unless it is loaded; called before a channel is created, which searches for
 * devices. Returns -1 with OSError if it is missing. */
int cqn_cm_load(cqn_state *st);

/* The library; it is loaded if an object that needs it exists. Calls that can fail go through
 * CQN_CM, which in a build for tests fails them on demand. */
extern cqn_cm_library cqn_cm;
#define CQN_CM_FAILS(name) CQN_FAILS("rdma_" #name)
#define CQN_CM(name, ...) (CQN_CM_FAILS(name) ? -1 : CQN_CM_CALLED(cqn_cm.name(__VA_ARGS__)))
#define CQN_CM_OR_NULL(name) (CQN_CM_FAILS(name) ? NULL : CQN_CM_CALLED(cqn_cm.name()))

/* Most functions of librdmacm take a lock of the library. */
#define CQN_CM_CALLED(call)                  \
    __extension__({                          \
        cqn_library_enter();                 \
        __typeof__(call) came_back = (call); \
        cqn_library_leave();                 \
        came_back;                           \
    })

/* ---- the structs ---- */

/* The known state of an identifier, in the order of a connection's life; calls and events lead from
 * one to the next. */
typedef enum {
    CQN_CM_NEW,
    CQN_CM_BOUND,
    CQN_CM_LISTENING,
    CQN_CM_RESOLVING_ADDR,
    CQN_CM_ADDR_RESOLVED,
    CQN_CM_RESOLVING_ROUTE,
    CQN_CM_ROUTE_RESOLVED,
    CQN_CM_CONNECTING,
    CQN_CM_RESPONDED, /* the peer accepted; the queue pair is yet to be connected */
    CQN_CM_REQUESTED, /* a peer wants to connect */
    CQN_CM_ACCEPTING,
    CQN_CM_JOINING, /* a multicast group; then it is ESTABLISHED */
    CQN_CM_ESTABLISHED,
    CQN_CM_DISCONNECTING, /* requested here; the peer has not replied */
    CQN_CM_DISCONNECTED,
    CQN_CM_FAILED,
    CQN_CM_STATES
} cqn_cm_state;

/* The connection parameters for the peer. */
typedef struct {
    struct rdma_conn_param param;
    uint8_t private_data[UINT8_MAX];
} cqn_cm_conn_params;

typedef struct {
    cqn_object base;                /* uses the channel and then the queue pair, if any */
    struct cqn_cm_conn *conn;       /* gets its events; weak; or NULL */
    struct sockaddr_storage *group; /* the multicast group that it joins; or NULL */
    cqn_cm_conn_params *params;     /* until they were sent; or NULL */
    struct sockaddr_in6 peer;       /* of any family; set when it is closed */
    unsigned int access;            /* the peer's access rights on its queue pair */
    uint8_t depth;                  /* initiator_depth; the peer may grant less */
    int left_ms;                    /* left for further attempts to resolve its address */
    uint8_t state;                  /* a cqn_cm_state */
    uint8_t target;                 /* the core takes the steps up to this state itself */
    bool datagrams;                 /* RDMA_PS_UDP */
    bool joined;                    /* it joined the group */
    bool lost;                      /* it failed after it was established */
    bool prepared;                  /* prepare() was called */
} cqn_cm_id;

/* A copy of an rdma_cm event; the event itself was acknowledged. */
typedef struct cqn_cm_event {
    struct cqn_cm_event *next;
    cqn_cm_id *owner;           /* borrowed */
    struct rdma_cm_id *request; /* of a CONNECT_REQUEST: the new identifier, owned by the event */
    enum rdma_cm_event_type type;
    int status;
    struct rdma_conn_param conn;
    struct rdma_ud_param ud;
    bool datagrams; /* `ud` is valid; else `conn` */
    uint8_t private_data[UINT8_MAX];
    uint8_t private_len;
} cqn_cm_event;

typedef struct {
    cqn_context root;           /* lists the identifiers, as a Context lists its objects */
    cqn_cm_event *first, *last; /* read but not returned */
    PyTypeObject *event_type;   /* of returned events: tuple or a subtype */
    /* The loop that reads the events, as cqnotify knows it; the asyncio loop behind it; and a
     * finished future of that. NULL if there is none. */
    PyObject *loop, *raw_loop, *done;
    struct cqn_cm_conn *conns;                  /* the CMConns on this channel; weak */
    struct cqn_cm_call *first_call, *last_call; /* calls that wait for an iteration of the loop */
    double spent;                               /* seconds in calls of this iteration */
    uint8_t timed;                              /* calls that need no reading of the clock */
    bool callback_scheduled;                    /* the loop will call _run_throttled() */
} cqn_cm_channel;

/* The items of an event's tuple. */
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

/* Converts a tuple of a numeric address and a port. Returns -1 with an exception. */
int cqn_cm_sockaddr_from(PyObject *address, struct sockaddr_storage *out);

/* Returns a new tuple (address, port); None for an unspecified family; NULL with an exception. */
PyObject *cqn_cm_sockaddr_to(const struct sockaddr *address);

/* ---- events.c ---- */

/* Reads up to `max` events. Runs no Python code. Returns -1 with an exception. */
int cqn_cm_drain(cqn_cm_channel *self, size_t max);

/* Frees an event that is in no list; a request that it owns is rejected. */
void cqn_cm_drop_event(cqn_cm_event *event);

/* Frees the events of an identifier that is closed; NULL: all. Requests among them are rejected. */
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

/* Returns a new CMID; NULL with an exception. */
PyObject *cqn_cm_id_create(PyTypeObject *type, cqn_object *channel, bool datagrams);

/* Returns a new CMID that owns the identifier of a CONNECT_REQUEST; NULL with an exception: then
 * the caller still owns it. */
cqn_cm_id *cqn_cm_id_of_request(cqn_cm_channel *channel, struct rdma_cm_id *request);

/* Whether the address of an open CMID leads to an iWARP device. */
static inline bool cqn_cm_is_iwarp(const cqn_cm_id *self)
{
    const struct rdma_cm_id *id = self->base.handle;
    return id->verbs != NULL && id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

/* Returns the channel of its events; borrowed. */
static inline cqn_cm_channel *cqn_cm_channel_of(const cqn_cm_id *self)
{
    return (cqn_cm_channel *)self->base.context;
}

/* ---- event_object.c ---- */

/* Returns the oldest event as a new tuple, or NULL without an exception if there is none. NULL with
 * an exception: the event stays where it is. */
PyObject *cqn_cm_next_event(cqn_cm_channel *self);

/* ---- throttle.c ---- */

#define CQN_CM_BUDGET 0.003 /* seconds for calls in an iteration of the loop */

/* A task woken by an event usually closes its connection, and ends another one. The time of this
 * number of calls is measured together with the event. */
#define CQN_CM_CALLS_OF_AN_EVENT 2

extern const char cqn_cm_throttled_doc[];
PyObject *cqn_cm_throttled(PyObject *channel, PyObject *call);
PyObject *cqn_cm_run_throttled(PyObject *channel, PyObject *unused);

extern PyType_Spec cqn_cm_channel_spec, cqn_cm_id_spec, cqn_cm_conn_spec, cqn_cm_wait_spec,
    cqn_cm_call_spec;

#endif

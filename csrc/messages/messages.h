/* SPDX-License-Identifier: MIT */
/*
 * The hot path of cqnotify.messages: a session is one end of a connection. The files, from the top:
 *
 *   session_type.c     MessageSession: the base type of the Session in Python
 *   receive.c          MessageReceive: the awaitable of recv()
 *   reading.c          MessageReading: a large message that is read into a buffer of the caller
 *   sending.c          MessageSend: the awaitable of send(), unless the message is sent at once
 *   session.c          dispatches completions and frames
 *   inbox.c            messages that have arrived, and receives that wait for one
 *   outbox.c           messages that wait for credits, or for the peer to read them
 *   offer.c            registers the frames of a large message, and offers it
 *   send.c             copies a message into a frame, and decides when it is posted
 *   post.c             the posts of a session, and ACKs
 *   task.c             a task that sleeps in recv() or send(), and how it is woken
 *   frames.c           the buffers of a message to be sent
 *   copy.c             copies the frames of a received message
 *   register.c         keeps buffers registered while a message uses them
 *   send_queue.c       the send queue, and the memory from which frames are sent
 *   ring.c             MessageRing: memory that is freed in the order of its allocation
 *   flow.c             MessageFlow: credits, and when an ACK is due
 *   wire_functions.c   the Python functions of wire.c
 *   wire.c             the bytes of frames; checks everything in a peer's frames
 *
 * The session takes the completions of two CQs (await/taker.c), in the thread of its event loop.
 * For rare events (offers and reads, ends and failures) it calls the Session, which is Python code;
 * see "called by the core" in _session.py. Such a call can run arbitrary code, which can send,
 * receive, or end the connection, so the session checks after each one whether it is over. While it
 * takes completions it does not take any recursively, so frames keep their order.
 *
 * Frames are posted in the order in which they are written. Receives whose messages were taken are
 * posted again before the next frame, which returns their credits. The first message sent in an
 * iteration of the event loop is posted at once. Later ones in the same iteration are posted
 * together, by one call of the verb: when there are many, when this end is about to wait, or at the
 * end of the iteration (of the callback, if that resumed the sending task). No timer delays
 * anything.
 *
 * The completion of a send wakes this end only if something waits for it: see
 * cqn_session_expect_sends() in post.c.
 */
#ifndef CQN_MESSAGES_MESSAGES_H
#define CQN_MESSAGES_MESSAGES_H

#include "await/await.h"
#include "messages/flow.h"
#include "messages/frames.h"
#include "messages/send_queue.h"

typedef struct cqn_session cqn_session;

/* A message that the program has not received yet, in the memory of a receive. */
typedef struct {
    uint64_t number;       /* order of arrival */
    uint64_t offer_number; /* of an OFFER, from 0 */
    uint32_t slot, length; /* index of the receive; length of the frame */
    bool is_offer;
} cqn_message;

typedef enum {
    CQN_RECEIVE_NEW,
    CQN_RECEIVE_WAITING, /* in the session's list, unless its task is being cancelled */
    CQN_RECEIVE_HAS,     /* has a message; its task has yet to go on */
    CQN_RECEIVE_FAILED,  /* has an error; likewise */
    CQN_RECEIVE_EXPIRED, /* the time is up */
    CQN_RECEIVE_DONE
} cqn_receive_state;

/* A sleeping task of the program; the common head of MessageReceive, MessageSend and
 * MessageReading. */
typedef struct cqn_task {
    PyObject_HEAD
    cqn_session *session;         /* strong, like the next two */
    PyObject *wakeup;             /* what the task sleeps on, or NULL */
    PyObject *error;              /* why it fails, or NULL */
    struct cqn_task *prev, *next; /* in a list of the session, which owns it */
    bool is_stepping;
    bool is_scheduled; /* passed to the event loop, and has yet to go on */
} cqn_task;

typedef struct {
    cqn_task *first, *last; /* strong */
    uint32_t len;
} cqn_task_list;

/* The awaitable of recv(). */
typedef struct {
    cqn_task task;
    PyObject *into; /* a list or a tuple, or NULL */
    cqn_message message;
    uint8_t state; /* cqn_receive_state */
    bool copies;   /* the frames of a DATA are copied here, if that is simple */
    bool is_listed;
} cqn_receive;

typedef enum {
    CQN_SEND_WAITING, /* for credits or free memory */
    CQN_SEND_OFFERED, /* until the peer has read it */
    CQN_SEND_OVER     /* sent, failed or withdrawn */
} cqn_send_state;

/* A waiting message, and the awaitable of send(). It keeps its buffers until it is over. */
typedef struct {
    cqn_task task;
    PyObject *buffers; /* a tuple; or NULL */
    cqn_frame *frames; /* of the buffers */
    Py_ssize_t frames_len;
    uint64_t nbytes;         /* of all frames */
    PyObject *outgoing;      /* Python's object for an offer by the Session; or NULL */
    PyObject *registrations; /* a list, for the large frames of an offered message; or NULL */
    uint8_t state;           /* cqn_send_state */
    bool is_offer;           /* the peer reads it; otherwise it is copied */
    bool is_ended;           /* its task has the result, or gave up */
    bool shares_error;       /* other messages have the same error */
} cqn_sending;

/* An offered message that is read into a buffer of the caller, and the awaitable of its recv(). */
typedef struct {
    cqn_task task;
    PyObject *frames;        /* a list: the result of recv() */
    PyObject *registrations; /* a list, while reads are in flight */
    cqn_mr *mr;              /* of the large frame; strong; likewise */
    uint64_t addr;           /* destination of the large frame */
    cqn_remote remote;       /* its source */
    uint32_t in_flight;      /* reads */
    uint32_t pieces;         /* reads of the first completion, until that arrives; then 0 */
    bool is_listed;
    bool is_read;
    bool is_ended; /* its task has the result, or gave up */
} cqn_reading;

struct cqn_session {
    PyObject_HEAD
    cqn_state *state;
    PyObject *loop; /* of asyncio */
    cqn_engine *send_engine, *recv_engine;
    cqn_flow *flow;
    Py_buffer memory;             /* of the receives and of the sent frames */
    uint32_t receives, slot_size; /* number of receives, and the size of each */
    cqn_limits limits;            /* for the peer's messages */
    uint64_t eager;               /* the largest frame that is copied and sent */
    uint32_t peer_max_frames;     /* for this end's messages */
    uint64_t peer_max_message;
    uint64_t slow;           /* frames from this size on take long to register */
    uint32_t offers;         /* limit of offers that the peer has not read */
    PyObject *registrations; /* of _memory.py */
    PyObject *readable;      /* access: the peer may read */
    PyObject *sink;          /* access: the device may write what it reads from the peer */
    cqn_send_queue queue;

    struct ibv_recv_wr *reposts; /* receives to be posted again */
    struct ibv_sge *repost_sges;
    uint32_t reposts_len;

    cqn_message *messages; /* a ring of `receives` entries, ordered by number */
    uint32_t first_message, messages_len;
    uint64_t messages_come;
    cqn_task_list receiving; /* waiting MessageReceives */
    uint64_t received;       /* messages received by the program */

    cqn_task_list waiting, offered; /* MessageSends, in the order of send() */
    uint64_t waits;                 /* number of sleeps in send() */
    bool is_posting;                /* waiting messages are being posted */

    cqn_task_list readings;   /* MessageReadings with reads in flight */
    uint32_t reads_in_flight; /* of all of them */
    uint64_t oldest_read;     /* work request at the last cqn_readings_probe() */

    cqn_task *resumed;  /* to be resumed by the callback, with its result; strong */
    uint32_t scheduled; /* tasks passed to the loop: none may overtake them */

    PyObject *error;   /* why it is over; NULL or None if it is not */
    bool is_closing;   /* the program closes it */
    bool is_open;      /* this end knows that both have posted their receives */
    bool has_pending;  /* the Session must be called when anything happens */
    bool is_watched;   /* the Session must be called after a send */
    bool is_probed;    /* the Session need not be called when a message waits for the peer */
    bool may_not_send; /* the peer receives no more */
    bool is_solicited; /* failures raise events even if only solicited events are armed */
    bool flush_is_due; /* the loop will call _flush() soon */
    uint64_t turn;     /* iteration in which a message was posted at once; or 0 */
    uint64_t posts;    /* number of posts of frames */
    bool taking;       /* completions are being taken */
    bool may_resume;   /* the first task that gets its result now is resumed */
    bool resuming;     /* a resumed task runs; its frames are flushed afterwards */
};

/* Whether the connection is over: nothing may be sent then. */
static inline bool cqn_session_is_over(const cqn_session *self)
{
    return self->error != NULL && self->error != Py_None;
}

/* Whether the next offer has to wait until the peer has read one. */
static inline bool cqn_offers_are_full(const cqn_session *self)
{
    return self->flow->offers_sent - self->flow->peer_offers_read >= self->offers;
}

extern PyType_Spec cqn_session_spec, cqn_receive_spec, cqn_sending_spec, cqn_reading_spec;
extern PyMethodDef cqn_wire_methods[];

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The hot path of cqnotify.messages: a session is one end of a connection. The files, from above:
 *
 *   session_type.c     MessageSession: the type that the Session of Python is built on
 *   receive.c          MessageReceive: what recv() awaits
 *   reading.c          MessageReading: a large message that is read into a buffer of the caller
 *   sending.c          MessageSend: what send() awaits, unless the message is sent at once
 *   session.c          dispatches completions and frames
 *   inbox.c            messages that have arrived, and the receives that wait for one
 *   outbox.c           messages that wait for credits, or until the peer has read them
 *   offer.c            registers the frames of a large message, and offers it
 *   send.c             copies a message into a frame, and decides when that is posted
 *   post.c             what is posted, and when; ACKs
 *   task.c             a task that sleeps in recv() or send(), and how it is woken
 *   frames.c           the buffers of a message that is sent
 *   copy.c             copies the frames of a message that has come
 *   register.c         has buffers registered while a message uses them
 *   memory.c           MessageMemory: a buffer that is to be registered
 *   send_queue.c       the send queue, and the memory from which frames are sent
 *   ring.c             MessageRing: memory that is freed in the order in which it was allocated
 *   flow.c             MessageFlow: credits, and when an ACK is due
 *   wire_functions.c   what Python calls of the next one
 *   wire.c             the bytes of frames; checks everything that a peer sends in them
 *
 * The session takes the completions of two CQs (await/taker.c), in the thread of its event loop. It
 * calls the Session, which is Python code, for what is rare: offers and reads, ends and failures;
 * see "called by the core" in _session.py. Such a call can run any code, which
 * can send, receive, or end the connection: so after each the session looks whether it is over.
 * While it takes, it takes nothing from within, so that frames keep their order.
 *
 * A frame that is written is posted before any that is written later, and receives whose messages
 * were taken are posted again before the next frame, which returns their credits. The first message
 * that is sent in a turn of the event loop is posted at once; more that follow in the same turn are
 * posted together, by one call of the verb, when there are many, when this end is about to wait, or
 * at the end of the turn: of the callback, if that has resumed the task that sends. No timer delays
 * anything.
 *
 * That a send has completed wakes this end only if something waits for it: see
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
    uint64_t number;       /* its place in the order in which they came */
    uint64_t offer_number; /* of an OFFER, from 0 */
    uint32_t slot, length; /* of the receive, and of the frame */
    bool is_offer;
} cqn_message;

typedef enum {
    CQN_RECEIVE_NEW,
    CQN_RECEIVE_WAITING, /* in the list of the session, unless its task is being cancelled */
    CQN_RECEIVE_HAS,     /* it has a message, and its task has not gone on yet */
    CQN_RECEIVE_FAILED,  /* likewise with an error */
    CQN_RECEIVE_EXPIRED, /* its time is up */
    CQN_RECEIVE_DONE
} cqn_receive_state;

/* What a task of the program sleeps in; MessageReceive, MessageSend and MessageReading begin with
 * it. */
typedef struct cqn_task {
    PyObject_HEAD
    cqn_session *session;         /* strong, as the next two */
    PyObject *wakeup;             /* what the task sleeps on, or NULL */
    PyObject *error;              /* why it fails, or NULL */
    struct cqn_task *prev, *next; /* in a list of the session, which owns it */
    bool is_stepping;
    bool is_scheduled; /* it was passed to the event loop, and has not gone on */
} cqn_task;

typedef struct {
    cqn_task *first, *last; /* strong */
    uint32_t len;
} cqn_task_list;

/* What recv() awaits. */
typedef struct {
    cqn_task task;
    PyObject *into; /* a list or a tuple, or NULL */
    cqn_message message;
    uint8_t state; /* cqn_receive_state */
    bool copies;   /* the frames of a DATA are copied here, if that is simple */
    bool is_listed;
} cqn_receive;

typedef enum {
    CQN_SEND_WAITING, /* for credits or for room */
    CQN_SEND_OFFERED, /* until the peer has read it */
    CQN_SEND_OVER     /* it was sent, has failed, or was given up */
} cqn_send_state;

/* A message that waits, and what send() awaits. It keeps its buffers until it is over. */
typedef struct {
    cqn_task task;
    PyObject *buffers; /* a tuple; or NULL */
    cqn_frame *frames; /* theirs */
    Py_ssize_t frames_len;
    uint64_t nbytes;         /* of all frames */
    PyObject *outgoing;      /* what Python has of it, if it offers it; or NULL */
    PyObject *registrations; /* a list: of its large frames, since it was offered; or NULL */
    uint8_t state;           /* cqn_send_state */
    bool is_offer;           /* the peer is to read it; else it is copied */
    bool is_ended;           /* its task has what it awaited, or has given up */
    bool shares_error;       /* others have the same */
} cqn_sending;

/* An offered message that is read into a buffer of the caller, and what recv() awaits then. */
typedef struct {
    cqn_task task;
    PyObject *frames;        /* a list: what recv() returns */
    PyObject *registrations; /* a list, until nothing is under way */
    cqn_mr *mr;              /* strong: of the large frame; likewise */
    uint64_t addr;           /* where that goes */
    cqn_remote remote;       /* where it is */
    uint32_t in_flight;      /* reads */
    uint32_t pieces;         /* that have one completion, which comes first; then 0 */
    bool is_listed;
    bool is_read;
    bool is_ended; /* its task has what it awaited, or has given up */
} cqn_reading;

struct cqn_session {
    PyObject_HEAD
    cqn_state *state;
    PyObject *loop; /* of asyncio */
    cqn_engine *send_engine, *recv_engine;
    cqn_flow *flow;
    Py_buffer memory;             /* of the receives, and of the frames that are sent */
    uint32_t receives, slot_size; /* how many receives, and the size of each */
    cqn_limits limits;            /* of what the peer may send */
    uint64_t eager;               /* larger frames than this are not sent */
    uint32_t peer_max_frames;     /* of what this end may send */
    uint64_t peer_max_message;
    uint64_t slow;           /* so large a frame takes long to register */
    uint32_t offers;         /* how many the peer need not have read */
    PyObject *registrations; /* of _memory.py */
    PyObject *readable;      /* access: by the peer, to read */
    PyObject *sink;          /* access: where the device puts what it reads from the peer */
    cqn_send_queue queue;

    struct ibv_recv_wr *reposts; /* receives that are to be posted again */
    struct ibv_sge *repost_sges;
    uint32_t reposts_len;

    cqn_message *messages; /* a ring of `receives`, in the order of their numbers */
    uint32_t first_message, messages_len;
    uint64_t messages_come;
    cqn_task_list receiving; /* the MessageReceives that wait */
    uint64_t received;       /* messages, by the program */

    cqn_task_list waiting, offered; /* the MessageSends, in the order of send() */
    uint64_t waits;                 /* how often a task has slept in send() */
    bool is_posting;                /* those that wait are being posted */

    cqn_task_list readings;   /* the MessageReadings whose reads are under way */
    uint32_t reads_in_flight; /* of all of them */
    uint64_t oldest_read;     /* work request, at the last cqn_readings_probe() */

    cqn_task *resumed;  /* which has what it waits for, to be resumed by the callback; strong */
    uint32_t scheduled; /* tasks that were passed to the loop: none overtakes them */

    PyObject *error;   /* why it is over; or NULL, or None */
    bool is_closing;   /* the program closes it */
    bool is_open;      /* this end knows that both have posted their receives */
    bool has_pending;  /* the Session has something to do when anything happens */
    bool is_watched;   /* the Session is to be called when something was sent */
    bool is_probed;    /* the Session need not be called when a message waits for the peer */
    bool may_not_send; /* the peer receives no more */
    bool is_solicited; /* the device raises events for failures, if it is armed for those only */
    bool flush_is_due; /* the loop will call _flush() soon */
    uint64_t turn;     /* of the loop, in which a message was posted at once; or 0 */
    uint64_t posts;    /* how often frames were posted */
    bool taking;       /* completions are being taken */
    bool may_resume;   /* the first task that gets something now will be resumed */
    bool resuming;     /* it is; then this flushes what the task has left */
};

/* Whether the connection is over, so that nothing may be sent any more. */
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

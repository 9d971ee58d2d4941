/* SPDX-License-Identifier: MIT */
/*
 * A timeline: the file that the observer writes if CQNOTIFY_TRACE is set, and that cqnotify.trace
 * reads.
 *
 * A header of one page is followed by a ring of records of 48 bytes and a ring of completions of 16
 * bytes, little endian. The observed process maps the file, so the file is complete however the
 * process ends. A writer takes the next number, fills the record at this number modulo the
 * capacity, and writes `what` last: a record whose `what` is 0 was never finished. Numbers are
 * taken before the time is read, so records of different threads may be out of order by the
 * duration of a call; records of one thread are always in order.
 *
 * Nearly every poll returns successes of one QP in the order of its requests. These completions
 * have no records: the record of the poll refers to the ring of completions. A list of requests has
 * a single time, and so do the completions of other polls of ibv_poll_cq().
 */
#ifndef CQN_RECORD_H
#define CQN_RECORD_H

#include <stdint.h>

#define RECORD_MAGIC "cqntime2"

struct timeline_header {
    char magic[8];
    uint32_t header_size; /* 4096: the offset of the records */
    uint32_t record_size; /* 48 */
    uint64_t capacity;    /* of the ring, in records */
    uint64_t written;     /* the next record's number: above capacity, the oldest are lost */
    uint64_t monotonic;   /* CLOCK_MONOTONIC and CLOCK_REALTIME at one moment, in ns */
    uint64_t realtime;
    uint32_t pid;
    uint32_t unused;
    uint64_t completions; /* the size of their ring, a power of two */
    uint64_t completed;   /* the next completion's number: above that size, the oldest are lost */
    char command[4024];   /* the arguments of the process, separated by spaces */
};

/* Objects are numbered from 1 within their kind. A record of an object has its number in `object`;
 * the comments below give the meaning of `other`, `value`, `number` and `detail`. 0: none, or
 * unknown. The id of a thread is the kernel's (gettid). */
enum record_what {
    /* objects */
    RECORD_CHANNEL_CREATED = 1, /* number: its descriptor */
    RECORD_CHANNEL_DESTROYED,
    RECORD_CQ_CREATED, /* other: channel; number: entries */
    RECORD_CQ_DESTROYED,
    RECORD_QP_CREATED, /* other: CQ of sends; value: CQ of receives; number: qp_num; detail: type */
    RECORD_QP_DESTROYED,
    RECORD_SRQ_CREATED, /* number: capacity */
    RECORD_SRQ_DESTROYED,
    /* work requests and completions */
    RECORD_POST_SEND = 16, /* of QP; value: wr_id; number: bytes; detail: opcode (ibv_wr_opcode) */
    RECORD_POST_RECV,      /* of QP; value: wr_id; number: bytes */
    RECORD_POST_SRQ_RECV,  /* of SRQ; value: wr_id; number: bytes */
    RECORD_POST_REFUSED,   /* of QP; value: wr_id; detail: errno */
    RECORD_COMPLETION,     /* of CQ; other: QP; value: wr_id; number: bytes; detail: opcode
                              (ibv_wc_opcode) + 65,536 * status */
    RECORD_POLL, /* of CQ; number: completions returned, just before it; detail: requested */
    /* notification */
    RECORD_ARM = 32,    /* of CQ; detail: 1 for solicited ones only */
    RECORD_ARM_FAILED,  /* of CQ; detail: errno */
    RECORD_EVENT,       /* of CQ; other: channel: ibv_get_cq_event() returned it */
    RECORD_ACK,         /* of CQ; number: events */
    RECORD_ASYNC_EVENT, /* object: CQ, QP or SRQ, if the event has one; detail: ibv_event_type */
    RECORD_CM_EVENT,    /* of QP; detail: rdma_cm_event_type; number: its status */
    /* sleeping: a call that may sleep, on at least one channel */
    RECORD_SLEEP = 48, /* object: channel, or 0 for none or several; detail: enum record_call;
                          number: descriptors; value: timeout in ns, all ones for none */
    RECORD_WAKE, /* object: channel that is readable, or 0; detail: errno; number: what the call
                    returned */
    /* findings: other: number of the rule's line in the log; object: CQ or 0 */
    RECORD_FINDING = 56,
    RECORD_FAULT, /* injected by cqnotify chaos: detail: enum fault of chaos.h; value: see log.h */
    /* cqnotify's own tasks */
    RECORD_TASK_SLEEP = 60, /* of CQ, or 0; value: what it awaits, a number that is not reused while
                               it sleeps; number, detail and caller: the first 16 bytes of the
                               method's name. The task is that of the thread's last RECORD_TASK. */
    RECORD_TASK_WAKE,       /* of CQ, or 0; value: the same */
    RECORD_TASK, /* value: the task's id; object and other, then number, detail and caller:
                    the first 24 bytes of its name */
};

/* detail of RECORD_SLEEP */
enum record_call {
    CALL_GET_CQ_EVENT = 1,
    CALL_READ,
    CALL_POLL,
    CALL_SELECT,
    CALL_EPOLL_WAIT,
};

enum { RECORD_NAME = 24, RECORD_METHOD = 16 };

enum record_flags {
    RECORD_SIGNALED = 1,  /* of POST_SEND: it has a completion */
    RECORD_SOLICITED = 2, /* of POST_SEND: IBV_SEND_SOLICITED */
    RECORD_SEEN =
        4, /* of COMPLETION: taken by the observer while the program sleeps, handed out later */
    RECORD_INJECTED = 8,          /* by cqnotify chaos */
    RECORD_WITH_COMPLETIONS = 16, /* of POLL: they have no records of their own; other: their QP;
                                     value: the number of the first in the ring of completions */
};

struct record {
    uint64_t time; /* CLOCK_MONOTONIC, ns */
    uint32_t tid;
    uint16_t what;
    uint16_t flags;
    uint32_t object;
    uint32_t other;
    uint64_t value;
    uint32_t number;
    uint32_t detail;
    uint64_t caller; /* the calling address in the program, or 0 */
};

/* A success that a poll returned. */
struct completion {
    uint64_t wr_id;
    uint32_t length; /* bytes */
    uint32_t opcode; /* ibv_wc_opcode */
};

#endif

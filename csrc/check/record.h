/* SPDX-License-Identifier: MIT */
/*
 * A timeline: the file that the observer writes under CQNOTIFY_TRACE, and cqnotify.trace reads.
 *
 * A header of one page, then a ring of records of 48 bytes, little endian. The file is mapped by
 * the process that it is about, so it is complete however that ends. The writer takes the next
 * number, fills the record at this number modulo the capacity, and writes `what` last: a record
 * whose `what` is 0 was never finished. Numbers are taken before the time is read, so the records
 * of different threads may be out of order by the time of one call; those of one thread never are.
 */
#ifndef CQN_RECORD_H
#define CQN_RECORD_H

#include <stdint.h>

#define RECORD_MAGIC "cqntime1"

struct timeline_header {
    char magic[8];
    uint32_t header_size; /* 4096: where the records begin */
    uint32_t record_size; /* 48 */
    uint64_t capacity;    /* of the ring, in records */
    uint64_t written;     /* the next record's number: above capacity, the oldest are lost */
    uint64_t monotonic;   /* CLOCK_MONOTONIC and CLOCK_REALTIME of one moment, in ns */
    uint64_t realtime;
    uint32_t pid;
    uint32_t unused;
    char command[4040]; /* the arguments of the process, with spaces between them */
};

/* Objects are numbered from 1, each kind of object on its own. A record of an object is about
 * `object`; what `other`, `value`, `number` and `detail` are is said behind each. 0: none, or not
 * known. A thread's id is that of the kernel (gettid). */
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
    RECORD_POLL, /* of CQ; number: completions handed out, right before it; detail: asked for */
    /* notification */
    RECORD_ARM = 32,    /* of CQ; detail: 1 for solicited ones only */
    RECORD_ARM_FAILED,  /* of CQ; detail: errno */
    RECORD_EVENT,       /* of CQ; other: channel: ibv_get_cq_event() returned it */
    RECORD_ACK,         /* of CQ; number: events */
    RECORD_ASYNC_EVENT, /* object: CQ, QP or SRQ, if the event has one; detail: ibv_event_type */
    RECORD_CM_EVENT,    /* of QP; detail: rdma_cm_event_type; number: its status */
    /* sleeping: a call that may sleep, in which a channel takes part */
    RECORD_SLEEP = 48, /* object: channel, or 0 for none or several; detail: enum record_call;
                          number: descriptors; value: timeout in ns, all ones for none */
    RECORD_WAKE, /* object: channel that is readable, or 0; detail: errno; number: what the call
                    returned */
    /* findings: other: number of the rule's line in the log; object: CQ or 0 */
    RECORD_FINDING = 56,
    /* cqnotify's own tasks: value: id of the object they wait for */
    RECORD_TASK_SLEEP = 60,
    RECORD_TASK_WAKE,
};

/* detail of RECORD_SLEEP */
enum record_call {
    CALL_GET_CQ_EVENT = 1,
    CALL_READ,
    CALL_POLL,
    CALL_SELECT,
    CALL_EPOLL_WAIT,
};

enum record_flags {
    RECORD_SIGNALED = 1,  /* of POST_SEND: it makes a completion */
    RECORD_SOLICITED = 2, /* of POST_SEND: IBV_SEND_SOLICITED */
    RECORD_SEEN =
        4, /* of COMPLETION: taken by the observer while the program sleeps, handed out later */
    RECORD_INJECTED = 8, /* made by cqnotify chaos */
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
    uint64_t caller; /* the program's address that called, or 0 */
};

#endif

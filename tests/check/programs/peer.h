/* SPDX-License-Identifier: MIT */
/* A peer: a thread that sends its messages once the program sleeps. */
#ifndef PEER_H
#define PEER_H

#include <sys/syscall.h>

#include "pair.h"

struct peer {
    struct pair *pair;
    int messages;
    pid_t program; /* its thread */
    atomic_int may_send;
    pthread_t thread;
};

/* Waits until the kernel says that a thread sleeps. */
static inline void await_asleep(pid_t thread)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    while (state != 'S') {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
}

static inline void *run_peer(void *arg)
{
    struct peer *peer = arg;
    while (!peer->may_send)
        sched_yield();
    await_asleep(peer->program);
    post_sends(peer->pair, peer->messages);
    return NULL;
}

static inline void start_peer(struct peer *peer, struct pair *pair, int messages)
{
    *peer = (struct peer){pair, messages, .program = (pid_t)syscall(SYS_gettid)};
    CHECK(!pthread_create(&peer->thread, NULL, run_peer, peer));
}

/* The program will sleep next. */
static inline void let_send(struct peer *peer)
{
    peer->may_send = 1;
}

static inline void join_peer(struct peer *peer)
{
    CHECK(!pthread_join(peer->thread, NULL));
    await_completions(peer->pair->sends, peer->messages);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * A lock in one word.
 *
 * The observer has its own libc, which does not know about the program's threads: in glibc 2.36 its
 * mutexes and its malloc() assume a single thread, and do not lock at all. The observer therefore
 * uses neither.
 */
#ifndef CQN_CHECK_LOCK_H
#define CQN_CHECK_LOCK_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint32_t state; /* 0: free, 1: held, 2: held, threads may sleep */
} lock_t;

static inline bool cqn_trylock(lock_t *lock)
{
    uint32_t expected = 0;
    return __atomic_compare_exchange_n(&lock->state, &expected, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static inline void cqn_lock(lock_t *lock)
{
    if (cqn_trylock(lock))
        return;
    while (__atomic_exchange_n(&lock->state, 2, __ATOMIC_ACQUIRE) != 0)
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void cqn_unlock(lock_t *lock)
{
    if (__atomic_exchange_n(&lock->state, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif

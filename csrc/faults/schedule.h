/* SPDX-License-Identifier: MIT */
/*
 * Schedules: a seed decides which thread goes on at each point, so a race is found, and repeated.
 *
 * Between schedule_begin() and schedule_end() one thread of the program runs at a time. At each
 * point one is chosen by PCT (Burckhardt et al., "A randomized scheduler with probabilistic
 * guarantees of finding bugs", 2010): each thread has a random priority, and the first of those
 * that can go on does; at some points, chosen at random before, the running thread gets the lowest
 * priority. The points are:
 *
 *   - each release and taking of the GIL in the core, and each place where Python code could have
 *     run: any thread may go on;
 *   - each line of Python that the program traces (schedule_point());
 *   - each verb, each step (CQN_STEP) and each wake-up (CQN_MOMENT): the GIL stays where it is, so
 *     only the device, and threads that are without the GIL, may go on.
 *
 * No thread blocks in a call of the system: where one would, it declares what it waits for, and it
 * can go on once that is there. Two more are chosen like threads: the device
 * (tests/schedules/device.c), whose steps complete work requests, and the clock, whose step is the
 * next deadline. So a schedule depends only on the seed and the program. If nobody can go on and
 * there is no deadline, a wake-up was lost: the process prints where each thread is, and aborts.
 *
 * For Python with a GIL, and 32 threads at a time. Other threads of the process must not run Python
 * meanwhile.
 */
#ifndef CQN_SCHEDULE_H
#define CQN_SCHEDULE_H

#include <Python.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <time.h>

extern PyMethodDef cqn_schedule_methods[];

/* A point at which the caller keeps the GIL, if it has it. */
void cqn_schedule_moment(const char *place);
/* A point at which the caller, which has the GIL, could lose it. */
void cqn_schedule_place(const char *place);

/* Replacements of calls. */
PyThreadState *cqn_schedule_release(const char *place);
void cqn_schedule_take(PyThreadState *ts, const char *place);
int cqn_schedule_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout);
int cqn_schedule_epoll_wait(int fd, struct epoll_event *events, int n, int ms);
int cqn_schedule_clock(clockid_t clock, struct timespec *now);
int cqn_schedule_lock(pthread_mutex_t *mutex);
int cqn_schedule_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int cqn_schedule_broadcast(pthread_cond_t *cond);
int cqn_schedule_destroy_cq(struct ibv_cq *cq);

#ifndef Py_GIL_DISABLED
#define PyEval_SaveThread() cqn_schedule_release(__func__)
#define PyEval_RestoreThread(ts) cqn_schedule_take(ts, __func__)
#define clock_gettime(clock, now) cqn_schedule_clock(clock, now)
#define pthread_mutex_lock(mutex) cqn_schedule_lock(mutex)
#define pthread_cond_wait(cond, mutex) cqn_schedule_cond_wait(cond, mutex)
#define pthread_cond_broadcast(cond) cqn_schedule_broadcast(cond)
#endif

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Calls that sleep on a channel, and looks at their CQs in the meantime.
 *
 * A sleep is safe if each CQ of its channels was armed and then polled to its end: the next
 * completion raises an event. The thread then sleeps in the program's own call. Any other call
 * sleeps in pieces of LOOK_MS, and the CQs are polled after each; the completions found are kept
 * for the program's next poll (cq.c). If LOOKS successive looks find completions, and no event
 * arrives and no thread polls in between, nothing will wake the program for them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "chaos.h"
#include "hooks.h"
#include "ops.h"

enum { RARELY_MS = 500, MAX_CHANNELS = 16, MAX_DEPTH = 4 };

static const uint64_t FOR_EVER = UINT64_MAX;

/* ---- descriptors with a channel behind them ------------------------------------------------- */

struct member {
    struct member *next;
    int descriptor;
};

struct descriptor {
    struct descriptor *next; /* in `all` */
    int number;
    struct channel *channel; /* NULL: an epoll instance */
    struct member *members;
};

static lock_t lock;
static struct table descriptors;
static struct descriptor *all;

static uintptr_t key_of(int descriptor)
{
    return (uintptr_t)(unsigned int)descriptor + 2; /* 0 and 1 are no keys */
}

static struct member **find_member(struct descriptor *epoll, int descriptor)
{
    struct member **place = &epoll->members;
    while (*place && (*place)->descriptor != descriptor)
        place = &(*place)->next;
    return place;
}

static void remove_member(struct member **place)
{
    struct member *member = *place;
    *place = member->next;
    cqn_free(member, sizeof(*member));
}

/* Removes a descriptor, whose number may soon be reused. Called with the lock. */
static void forget(int descriptor)
{
    struct descriptor *known = cqn_table_find(&descriptors, key_of(descriptor));
    if (!known)
        return;
    cqn_table_remove(&descriptors, key_of(descriptor));
    CQN_UNLINK(&all, known, next);
    for (struct descriptor *epoll = all; epoll; epoll = epoll->next) {
        struct member **place = find_member(epoll, descriptor);
        if (*place)
            remove_member(place);
    }
    while (known->members)
        remove_member(&known->members);
    cqn_free(known, sizeof(*known));
}

static struct descriptor *add_descriptor(int descriptor)
{
    struct descriptor *known = cqn_alloc(sizeof(*known));
    if (!known)
        return NULL;
    if (!cqn_table_put(&descriptors, key_of(descriptor), known)) {
        cqn_free(known, sizeof(*known));
        return NULL;
    }
    known->number = descriptor;
    known->next = all;
    all = known;
    return known;
}

static void add_channel(int descriptor, struct channel *channel)
{
    forget(descriptor);
    struct descriptor *known = add_descriptor(descriptor);
    if (known)
        known->channel = channel;
}

void cqn_sleep_channel(int descriptor, struct channel *channel)
{
    cqn_lock(&lock);
    add_channel(descriptor, channel);
    cqn_unlock(&lock);
}

void cqn_sleep_no_channel(const struct channel *channel)
{
    cqn_lock(&lock);
    for (struct descriptor *known = all, *next; known; known = next) {
        next = known->next;
        if (known->channel == channel)
            forget(known->number);
    }
    cqn_unlock(&lock);
}

int cqn_hook_close(int descriptor)
{
    if (cqn_table_find(&descriptors, key_of(descriptor))) {
        cqn_lock(&lock);
        forget(descriptor);
        cqn_unlock(&lock);
    }
    return cqn_real.close(descriptor);
}

/* A duplicate of a channel's descriptor has the same channel. `copy` was closed by duplicating to
 * it. Returns `copy`. */
static int duplicated(int descriptor, int copy)
{
    if (copy < 0 || copy == descriptor ||
        (!cqn_table_find(&descriptors, key_of(descriptor)) &&
         !cqn_table_find(&descriptors, key_of(copy))))
        return copy;
    cqn_lock(&lock);
    const struct descriptor *known = cqn_table_find(&descriptors, key_of(descriptor));
    if (known && known->channel)
        add_channel(copy, known->channel);
    else
        forget(copy);
    cqn_unlock(&lock);
    return copy;
}

int cqn_hook_dup(int descriptor)
{
    return duplicated(descriptor, cqn_real.dup(descriptor));
}

int cqn_hook_dup2(int descriptor, int copy)
{
    return duplicated(descriptor, cqn_real.dup2(descriptor, copy));
}

int cqn_hook_dup3(int descriptor, int copy, int flags)
{
    return duplicated(descriptor, cqn_real.dup3(descriptor, copy, flags));
}

/* Every argument is passed like a pointer, as the libc does. */
int cqn_hook_fcntl(int descriptor, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int result = cqn_real.fcntl(descriptor, command, argument);
    bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    return duplicates ? duplicated(descriptor, result) : result;
}

int cqn_hook_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event)
{
    int result = cqn_real.epoll_ctl(epoll, operation, descriptor, event);
    if (result != 0 || !cqn_table_find(&descriptors, key_of(descriptor)))
        return result;
    cqn_lock(&lock);
    struct descriptor *known = cqn_table_find(&descriptors, key_of(epoll));
    if (!known)
        known = add_descriptor(epoll);
    struct member **place = known ? find_member(known, descriptor) : NULL;
    if (known && operation == EPOLL_CTL_DEL && *place)
        remove_member(place);
    else if (known && operation == EPOLL_CTL_ADD && !*place &&
             (*place = cqn_alloc(sizeof(**place))))
        (*place)->descriptor = descriptor;
    cqn_unlock(&lock);
    return result;
}

/* ---- a sleep -------------------------------------------------------------------------------- */

struct sleep {
    enum record_call call;
    uint32_t count; /* of channels */
    struct channel *channels[MAX_CHANNELS];
    uint32_t descriptors; /* that the call waits for */
    uint64_t timeout;     /* in ns, or FOR_EVER */
    uint64_t deadline;
    uint32_t looks;
};

/* Called with the lock. */
static void collect(struct sleep *sleep, int descriptor, int depth)
{
    const struct descriptor *known = cqn_table_find(&descriptors, key_of(descriptor));
    if (!known || sleep->count == MAX_CHANNELS || depth == MAX_DEPTH)
        return;
    if (known->channel)
        sleep->channels[sleep->count++] = known->channel;
    for (const struct member *member = known->members; member; member = member->next)
        collect(sleep, member->descriptor, depth + 1);
}

static bool any_known(void)
{
    return descriptors.used != 0;
}

static void add(struct sleep *sleep, int descriptor)
{
    if (!cqn_table_find(&descriptors, key_of(descriptor)))
        return;
    cqn_lock(&lock);
    collect(sleep, descriptor, 0);
    cqn_unlock(&lock);
}

static const char *name_of(enum record_call call)
{
    static const char *const names[] = {
        [CALL_GET_CQ_EVENT] = "ibv_get_cq_event",
        [CALL_READ] = "read",
        [CALL_POLL] = "poll",
        [CALL_SELECT] = "select",
        [CALL_EPOLL_WAIT] = "epoll_wait",
    };
    return names[call];
}

/* ---- findings ------------------------------------------------------------------------------- */

const char *cqn_armed_text(enum armed armed)
{
    static const char *const texts[] = {
        [NOT_ARMED] = "no",
        [ARMED_SOLICITED] = "solicited",
        [MAYBE_ARMED] = "unknown",
        [ARMED] = "before",
    };
    return texts[armed];
}

static void add_sites(struct line *line, const struct cq *cq)
{
    cqn_finding_here(line, "sleep");
    cqn_finding_site(line, "arm", &cq->arm);
    cqn_finding_site(line, "poll", &cq->poll);
    cqn_finding_site(line, "ack", &cq->ack);
}

static void report_lost(struct cq *cq, const struct sleep *sleep)
{
    cqn_report_so_far();
    struct line line;
    cqn_finding_begin(&line, "lost-wakeup");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "channel", cq->channel->number);
    cqn_finding_value(&line, "completions", cq->waiting);
    cqn_finding_text(&line, "armed", cqn_armed_text(cq->armed));
    cqn_finding_text(&line, "call", name_of(sleep->call));
    cqn_finding_value(&line, "arms", cq->arms);
    cqn_finding_value(&line, "events", cq->events);
    cqn_finding_value(&line, "polls", cq->polls);
    add_sites(&line, cq);
    cq->lost = cqn_finding_end(&line, 0);
    cq->lost_stays = false;
    RECORD(.what = RECORD_FINDING, .object = cq->number, .other = cq->lost);
}

static void report_solicited(struct cq *cq)
{
    cqn_report_so_far();
    struct line line;
    cqn_finding_begin(&line, "solicited-only");
    cqn_finding_value(&line, "cq", cq->number);
    cqn_finding_value(&line, "arms", cq->arms);
    cqn_finding_value(&line, "completions", cq->completions + cq->waiting);
    add_sites(&line, cq);
    cq->solicited_only = cqn_finding_end(&line, 0);
}

/* The program polls completions that a look found and no event announced. Called with the CQ's
 * lock. */
void cqn_sleep_polled(struct cq *cq)
{
    cq->looks = 0;
    if (cq->lost && cq->lost_stays)
        return;
    if (cq->lost)
        cqn_log_withdraw(cq->lost);
    cq->lost = 0;
    if (cq->armed != ARMED_SOLICITED && cq->late_times++ == 0)
        cqn_report_late(cq);
}

/* The event of the CQ has arrived, so it was not lost. */
void cqn_sleep_event(struct cq *cq)
{
    cq->looks = 0;
    if (cq->lost && !cq->lost_stays) {
        cqn_log_withdraw(cq->lost);
        cq->lost = 0;
    }
}

void cqn_sleep_armed(struct cq *cq)
{
    struct channel *channel = cq->channel;
    if (!channel || !channel->nothing_armed)
        return;
    cqn_log_withdraw(channel->nothing_armed);
    channel->nothing_armed = 0;
}

static void report_nothing_armed(struct channel *channel, const struct sleep *sleep)
{
    uint64_t cqs = 0, in_flight = 0;
    for (const struct cq *cq = channel->cqs; cq; cq = cq->in_channel) {
        cqs++;
        in_flight += cqn_cq_in_flight(cq);
    }
    if (in_flight == 0)
        return;
    cqn_report_so_far();
    struct line line;
    cqn_finding_begin(&line, "nothing-armed");
    cqn_finding_value(&line, "channel", channel->number);
    cqn_finding_value(&line, "cqs", cqs);
    cqn_finding_value(&line, "outstanding", in_flight);
    cqn_finding_text(&line, "call", name_of(sleep->call));
    add_sites(&line, channel->cqs);
    channel->nothing_armed = cqn_finding_end(&line, 0);
}

/* ---- the look ------------------------------------------------------------------------------- */

/* Whether its next completion wakes the program; a CQ that was never armed is not meant to. */
static bool is_safe(const struct cq *cq)
{
    return !cq->was_armed || (cq->armed == ARMED && cq->emptied && cq->waiting == 0);
}

static bool is_readable(const struct channel *channel)
{
    struct pollfd events = {.fd = channel->descriptor, .events = POLLIN};
    return cqn_real.poll(&events, 1, 0) > 0;
}

static void judge(struct cq *cq, const struct sleep *sleep)
{
    cq->looks++;
    if (cq->looks != LOOKS || is_readable(cq->channel))
        return;
    if (cq->armed == ARMED_SOLICITED && !cq->solicited_only)
        report_solicited(cq);
    else if (cq->armed != ARMED_SOLICITED && !cq->lost)
        report_lost(cq, sleep);
}

enum look { SAFE, NOTHING_WAITS, SOMETHING_WAITS };

static enum look look_at(struct cq *cq, const struct sleep *sleep, bool counts)
{
    if (is_safe(cq))
        return SAFE;
    if (!cqn_cq_look(cq))
        return is_safe(cq) ? SAFE : NOTHING_WAITS;
    cq->late_completions = cq->waiting;
    cq->late_call = name_of(sleep->call);
    if (counts && cq->looks < LOOKS)
        judge(cq, sleep);
    return SOMETHING_WAITS;
}

/* Looks at all CQs. Returns the worst result. The lock keeps them from being destroyed. */
static enum look look(struct sleep *sleep)
{
    enum look worst = SAFE;
    bool counts = sleep->looks != 0;
    cqn_lock(&cqn_lists_lock);
    for (uint32_t i = 0; i < sleep->count; i++) {
        struct channel *channel = sleep->channels[i];
        bool armed = channel->cqs == NULL;
        for (struct cq *cq = channel->cqs; cq; cq = cq->in_channel) {
            enum look found = look_at(cq, sleep, counts);
            worst = found > worst ? found : worst;
            armed |= cq->armed != NOT_ARMED || cq->waiting;
        }
        if (armed)
            continue;
        worst = worst > NOTHING_WAITS ? worst : NOTHING_WAITS;
        if (sleep->looks == LOOKS && sleep->timeout == FOR_EVER && !channel->nothing_armed &&
            !is_readable(channel))
            report_nothing_armed(channel, sleep);
    }
    cqn_unlock(&cqn_lists_lock);
    return worst;
}

/* ---- falling asleep and waking -------------------------------------------------------------- */

static void fall_asleep(const struct sleep *sleep)
{
    cqn_lock(&cqn_lists_lock);
    cqn_counts.sleeps++;
    for (uint32_t i = 0; i < sleep->count; i++)
        for (struct cq *cq = sleep->channels[i]->cqs; cq; cq = cq->in_channel) {
            cq->sleeps++;
            if (cq->armed == NOT_ARMED || cq->polled)
                continue;
            cq->slept_unpolled = true;
            if (cq->in_flight_when_armed == 0)
                continue;
            cq->not_polled_requests = cq->in_flight_when_armed;
            if (cq->not_polled_times++ == 0)
                cqn_report_not_polled(cq);
        }
    cqn_unlock(&cqn_lists_lock);
    RECORD(.what = RECORD_SLEEP, .object = sleep->count == 1 ? sleep->channels[0]->number : 0,
           .detail = sleep->call, .number = sleep->descriptors, .value = sleep->timeout);
}

static void wake(const struct sleep *sleep, int result)
{
    cqn_lock(&cqn_lists_lock);
    for (uint32_t i = 0; i < sleep->count && result < 0; i++)
        for (struct cq *cq = sleep->channels[i]->cqs; cq; cq = cq->in_channel)
            cq->lost_stays = true; /* only the signal ended this sleep */
    cqn_unlock(&cqn_lists_lock);
    if (cqn_timeline == NULL)
        return;
    uint32_t readable = 0;
    for (uint32_t i = 0; i < sleep->count && result > 0 && !readable; i++)
        if (sleep->call <= CALL_READ || is_readable(sleep->channels[i]))
            readable = sleep->channels[i]->number;
    RECORD(.what = RECORD_WAKE, .object = readable, .number = (uint32_t)result,
           .detail = result < 0 ? (uint32_t)*cqn_errno() : 0);
}

/* Makes the program's call with this timeout in ms; if negative, with the rest of its own. */
typedef int wait_function(void *call, int ms);

static int left_of(const struct sleep *sleep)
{
    if (sleep->timeout == FOR_EVER)
        return -1;
    uint64_t now = cqn_now();
    if (now >= sleep->deadline)
        return 0;
    uint64_t ms = (sleep->deadline - now + 999999) / 1000000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Whether the call is tracked; one that does not sleep is, if faults are enabled. */
static bool counts(const struct sleep *sleep)
{
    return sleep->timeout != 0 || cqn_chaos_faults;
}

static void note_readable(const struct sleep *sleep)
{
    for (uint32_t i = 0; i < sleep->count; i++)
        if (sleep->call > CALL_READ && is_readable(sleep->channels[i]))
            sleep->channels[i]->known_readable = true;
}

/* Whether to inject EINTR. A signal does not end a call that has something to return, so the
 * program must not know of any event. An event unknown to it may have arrived after the signal. */
static bool is_interrupted(const struct sleep *sleep)
{
    for (uint32_t i = 0; i < sleep->count; i++)
        if (sleep->channels[i]->known_readable)
            return false;
    return cqn_chaos_interrupts(sleep->call);
}

static int sleep_through(struct sleep *sleep, wait_function *wait, void *call)
{
    if (sleep->timeout == 0) {
        int result = wait(call, -1);
        if (result > 0)
            note_readable(sleep);
        return result;
    }
    if (sleep->timeout != FOR_EVER)
        sleep->deadline = cqn_now() + sleep->timeout;
    if (cqn_chaos_faults && is_interrupted(sleep))
        return -1;
    fall_asleep(sleep);
    int result;
    for (;;) {
        enum look found = look(sleep);
        int left = left_of(sleep);
        int piece = found == SOMETHING_WAITS || sleep->looks < LOOKS ? LOOK_MS : RARELY_MS;
        if (found == SAFE || (left >= 0 && left <= piece)) {
            result = wait(call, sleep->looks ? left : -1);
            break;
        }
        sleep->looks++;
        result = wait(call, piece);
        if (result != 0)
            break;
    }
    if (result > 0 && cqn_chaos_faults) {
        note_readable(sleep);
        cqn_chaos_delays(CHAOS_LATE);
    }
    wake(sleep, result);
    return result;
}

static uint64_t from_ms(int ms)
{
    return ms < 0 ? FOR_EVER : (uint64_t)ms * 1000000;
}

static uint64_t from_timespec(const struct timespec *time)
{
    return time ? (uint64_t)time->tv_sec * 1000000000U + (uint64_t)time->tv_nsec : FOR_EVER;
}

static struct timespec to_timespec(int ms)
{
    return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
}

/* ---- read(), and ibv_get_cq_event() through it ---------------------------------------------- */

static _Thread_local bool in_get_cq_event;

struct read_call {
    int descriptor;
    void *buffer;
    size_t size;
    ssize_t result;
};

bool cqn_sleep_has_handler(bool that_restarts)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN && (that_restarts || !(action.sa_flags & SA_RESTART)))
            return true;
    }
    return false;
}

static int wait_read(void *data, int ms)
{
    struct read_call *call = data;
    if (ms >= 0) {
        struct pollfd events = {.fd = call->descriptor, .events = POLLIN};
        int ready = cqn_real.poll(&events, 1, ms);
        /* read() continues after a handler with SA_RESTART; poll() never does. The handler that ran
         * is unknown, so the call continues if all handlers have the flag. */
        if (ready < 0 && !cqn_sleep_has_handler(false))
            return 0;
        if (ready <= 0) {
            call->result = ready;
            return ready;
        }
    }
    call->result = cqn_real.read(call->descriptor, call->buffer, call->size);
    return call->result < 0 ? -1 : 1;
}

static bool blocks(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags >= 0 && !(flags & O_NONBLOCK);
}

ssize_t cqn_hook_read(int descriptor, void *buffer, size_t size)
{
    struct descriptor *known =
        any_known() ? cqn_table_find(&descriptors, key_of(descriptor)) : NULL;
    if (!known || !known->channel)
        return cqn_real.read(descriptor, buffer, size);
    struct channel *channel = known->channel;
    struct read_call call = {
        .descriptor = descriptor, .buffer = buffer, .size = size, .result = -1};
    if (blocks(descriptor)) {
        struct sleep sleep = {.call = in_get_cq_event ? CALL_GET_CQ_EVENT : CALL_READ,
                              .count = 1,
                              .channels = {channel},
                              .descriptors = 1,
                              .timeout = FOR_EVER};
        sleep_through(&sleep, wait_read, &call);
    }
    else
        call.result = cqn_real.read(descriptor, buffer, size);
    channel->known_readable = false;
    /* Each event is the address of a CQ. */
    for (ssize_t i = 0; !in_get_cq_event && i + 8 <= call.result; i += 8) {
        uint64_t handle;
        memcpy(&handle, (char *)buffer + i, sizeof(handle));
        cqn_cq_event((struct ibv_cq *)(uintptr_t)handle, channel);
    }
    return call.result;
}

ssize_t cqn_hook_read_chk(int descriptor, void *buffer, size_t size, size_t space)
{
    (void)space; /* checked by the compiler, or the program's mistake */
    return cqn_hook_read(descriptor, buffer, size);
}

int cqn_hook_ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
    struct channel *channel = cqn_object(ibv);
    in_get_cq_event = true;
    int result = cqn_real.ibv_get_cq_event(ibv, cq, cq_context);
    in_get_cq_event = false;
    if (result == 0)
        cqn_cq_event(*cq, channel);
    return result;
}

/* ---- poll() --------------------------------------------------------------------------------- */

struct poll_call {
    struct pollfd *fds;
    nfds_t count;
    int timeout;
    const struct timespec *precise; /* of ppoll() */
    const sigset_t *mask;
    bool is_ppoll;
};

static int wait_poll(void *data, int ms)
{
    const struct poll_call *call = data;
    if (!call->is_ppoll)
        return cqn_real.poll(call->fds, call->count, ms < 0 ? call->timeout : ms);
    struct timespec piece = to_timespec(ms < 0 ? 0 : ms);
    return cqn_real.ppoll(call->fds, call->count, ms < 0 ? call->precise : &piece, call->mask);
}

static void add_polled(struct sleep *sleep, const struct pollfd *fds, nfds_t count)
{
    for (nfds_t i = 0; i < count && any_known(); i++)
        if (fds[i].events & POLLIN)
            add(sleep, fds[i].fd);
}

int cqn_hook_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    struct sleep sleep = {
        .call = CALL_POLL, .descriptors = (uint32_t)count, .timeout = from_ms(timeout)};
    struct poll_call call = {.fds = fds, .count = count, .timeout = timeout};
    if (counts(&sleep))
        add_polled(&sleep, fds, count);
    return sleep.count ? sleep_through(&sleep, wait_poll, &call) : wait_poll(&call, -1);
}

int cqn_hook_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                   const sigset_t *mask)
{
    struct sleep sleep = {
        .call = CALL_POLL, .descriptors = (uint32_t)count, .timeout = from_timespec(timeout)};
    struct poll_call call = {
        .fds = fds, .count = count, .precise = timeout, .mask = mask, .is_ppoll = true};
    if (counts(&sleep))
        add_polled(&sleep, fds, count);
    return sleep.count ? sleep_through(&sleep, wait_poll, &call) : wait_poll(&call, -1);
}

int cqn_hook_poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t space)
{
    (void)space;
    return cqn_hook_poll(fds, count, timeout);
}

int cqn_hook_ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
                       const sigset_t *mask, size_t space)
{
    (void)space;
    return cqn_hook_ppoll(fds, count, timeout, mask);
}

/* ---- select() ------------------------------------------------------------------------------- */

struct select_call {
    int count;
    fd_set *sets[3];
    struct timespec *timeout; /* or NULL */
    const sigset_t *mask;
};

static int wait_select(void *data, int ms)
{
    const struct select_call *call = data;
    fd_set copies[3];
    fd_set *sets[3];
    for (int i = 0; i < 3; i++) {
        sets[i] = call->sets[i] ? &copies[i] : NULL;
        if (sets[i])
            copies[i] = *call->sets[i];
    }
    struct timespec piece = to_timespec(ms < 0 ? 0 : ms);
    int result = cqn_real.pselect(call->count, sets[0], sets[1], sets[2],
                                  ms < 0 ? call->timeout : &piece, call->mask);
    for (int i = 0; i < 3; i++)
        if (sets[i] && result > 0)
            *call->sets[i] = copies[i];
    return result;
}

static int sleep_in_select(struct select_call *call)
{
    struct sleep sleep = {.call = CALL_SELECT,
                          .descriptors = (uint32_t)call->count,
                          .timeout = from_timespec(call->timeout)};
    for (int i = 0;
         i < call->count && i < FD_SETSIZE && any_known() && call->sets[0] && counts(&sleep); i++)
        if (FD_ISSET(i, call->sets[0]))
            add(&sleep, i);
    if (sleep.count == 0)
        return cqn_real.pselect(call->count, call->sets[0], call->sets[1], call->sets[2],
                                call->timeout, call->mask);
    int result = sleep_through(&sleep, wait_select, call);
    for (int i = 0; i < 3; i++)
        if (result == 0 && call->sets[i])
            FD_ZERO(call->sets[i]);
    return result;
}

/* Stores the remaining time in `timeout`. */
int cqn_hook_select(int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *timeout)
{
    if (!any_known() || !read)
        return cqn_real.select(count, read, write, except, timeout);
    struct timespec time = {0};
    if (timeout)
        time = (struct timespec){timeout->tv_sec, timeout->tv_usec * 1000};
    uint64_t began = cqn_now();
    struct select_call call = {count, {read, write, except}, timeout ? &time : NULL, NULL};
    int result = sleep_in_select(&call);
    uint64_t took = cqn_now() - began;
    uint64_t left = from_timespec(&time) > took ? from_timespec(&time) - took : 0;
    if (timeout)
        *timeout =
            (struct timeval){(time_t)(left / 1000000000), (suseconds_t)(left % 1000000000 / 1000)};
    return result;
}

int cqn_hook_pselect(int count, fd_set *read, fd_set *write, fd_set *except,
                     const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec time = timeout ? *timeout : (struct timespec){0};
    struct select_call call = {count, {read, write, except}, timeout ? &time : NULL, mask};
    return sleep_in_select(&call);
}

/* ---- epoll_wait() --------------------------------------------------------------------------- */

struct epoll_call {
    int epoll;
    struct epoll_event *events;
    int count, timeout;
    const struct timespec *precise; /* of epoll_pwait2() */
    const sigset_t *mask;
    bool is_pwait2;
};

static int wait_epoll(void *data, int ms)
{
    const struct epoll_call *call = data;
    if (call->is_pwait2 && ms < 0)
        return cqn_real.epoll_pwait2(call->epoll, call->events, call->count, call->precise,
                                     call->mask);
    return cqn_real.epoll_pwait(call->epoll, call->events, call->count, ms < 0 ? call->timeout : ms,
                                call->mask);
}

static int sleep_in_epoll(struct epoll_call *call, uint64_t timeout)
{
    struct sleep sleep = {.call = CALL_EPOLL_WAIT, .descriptors = 1, .timeout = timeout};
    if (counts(&sleep) && any_known())
        add(&sleep, call->epoll);
    return sleep.count ? sleep_through(&sleep, wait_epoll, call) : wait_epoll(call, -1);
}

int cqn_hook_epoll_pwait(int epoll, struct epoll_event *events, int count, int timeout,
                         const sigset_t *mask)
{
    struct epoll_call call = {
        .epoll = epoll, .events = events, .count = count, .timeout = timeout, .mask = mask};
    return sleep_in_epoll(&call, from_ms(timeout));
}

int cqn_hook_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout)
{
    return cqn_hook_epoll_pwait(epoll, events, count, timeout, NULL);
}

/* Missing before glibc 2.35, where no program calls it. */
int cqn_hook_epoll_pwait2(int epoll, struct epoll_event *events, int count,
                          const struct timespec *timeout, const sigset_t *mask)
{
    struct epoll_call call = {.epoll = epoll,
                              .events = events,
                              .count = count,
                              .precise = timeout,
                              .mask = mask,
                              .is_pwait2 = true};
    return sleep_in_epoll(&call, from_timespec(timeout));
}

/* SPDX-License-Identifier: MIT */
/* Drawing and injecting faults; those of posts are in chaos_post.c. */
#include "chaos.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hooks.h"
#include "ops.h"

uint32_t cqn_chaos_faults;

static uint64_t seed;
static uint32_t rate; /* one in this many; 0 or 1: the faults' own rates (1 would never end) */
static uint64_t calls[CHAOS_FAULTS], injected[CHAOS_FAULTS];
static _Thread_local uint64_t drawn; /* digits for the details of the last fault drawn */
static _Thread_local uint64_t drawn_call;

static const struct {
    const char *name;
    uint32_t rate;
} faults[] = {
    [CHAOS_SPLIT] = {"split", 3},     [CHAOS_HOLD] = {"hold", 4},
    [CHAOS_EINTR] = {"eintr", 4},     [CHAOS_LATE] = {"late", 8},
    [CHAOS_DESTROY] = {"destroy", 8}, [CHAOS_ARM] = {"arm", 16},
    [CHAOS_CREATE] = {"create", 16},  [CHAOS_REGISTER] = {"register", 16},
    [CHAOS_POST] = {"post", 32},      [CHAOS_FAIL] = {"fail", 64},
    [CHAOS_ASYNC] = {"async", 4},
};

/* ---- settings ------------------------------------------------------------------------------ */

static uint32_t faults_of(const char *text)
{
    uint32_t found = 0;
    while (*text && *text != ',') {
        size_t length = strcspn(text, "+,");
        for (int i = 0; i < CHAOS_FAULTS; i++)
            if (strlen(faults[i].name) == length && strncmp(text, faults[i].name, length) == 0)
                found |= 1u << i;
        text += length + (text[length] == '+');
    }
    return found;
}

void cqn_chaos_set(const char *settings)
{
    cqn_chaos_faults = 0;
    if (!settings)
        return;
    uint32_t found = 0;
    seed = rate = 0;
    for (const char *at = settings; *at; at += strcspn(at, ","), at += *at == ',') {
        if (strncmp(at, "seed=", 5) == 0)
            seed = strtoull(at + 5, NULL, 10);
        else if (strncmp(at, "rate=", 5) == 0)
            rate = (uint32_t)strtoul(at + 5, NULL, 10);
        else if (strncmp(at, "faults=", 7) == 0)
            found = faults_of(at + 7);
    }
    cqn_chaos_forked();
    cqn_chaos_faults = found;
}

void cqn_chaos_forked(void)
{
    memset(calls, 0, sizeof(calls));
    memset(injected, 0, sizeof(injected));
}

int cqn_hook_setenv(const char *name, const char *value, int overwrite)
{
    int result = cqn_real.setenv(name, value, overwrite);
    if (result == 0 && overwrite && strcmp(name, "CQNOTIFY_CHAOS") == 0)
        cqn_chaos_set(value);
    return result;
}

int cqn_hook_unsetenv(const char *name)
{
    int result = cqn_real.unsetenv(name);
    if (result == 0 && strcmp(name, "CQNOTIFY_CHAOS") == 0)
        cqn_chaos_set(NULL);
    return result;
}

/* ---- the draw ------------------------------------------------------------------------------ */

/* splitmix64 */
static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

bool cqn_chaos_draw(enum fault fault)
{
    uint64_t call = __atomic_add_fetch(&calls[fault], 1, __ATOMIC_RELAXED);
    uint64_t digits = mixed(mixed(mixed(seed) + (uint64_t)fault) + call);
    uint32_t one_in = rate > 1 ? rate : faults[fault].rate;
    if (digits % one_in != 0)
        return false;
    drawn_call = call;
    drawn = mixed(digits);
    return true;
}

uint64_t cqn_chaos_digits(void)
{
    return drawn;
}

void cqn_chaos_note(enum fault fault, uint32_t detail)
{
    RECORD(.what = RECORD_FAULT, .flags = RECORD_INJECTED, .value = detail,
           .detail = (uint32_t)fault);
    uint64_t number = __atomic_add_fetch(&injected[fault], 1, __ATOMIC_RELAXED);
    if (number <= 1000 || number % 1000 == 0)
        cqn_log_line("{\"kind\": \"chaos\", \"fault\": \"%s\", \"number\": %llu, \"call\": %llu, "
                     "\"detail\": %u, \"time\": %llu, \"tid\": %u}",
                     faults[fault].name, (unsigned long long)number, (unsigned long long)drawn_call,
                     detail, (unsigned long long)cqn_now(), cqn_tid());
}

/* ---- refusals, delays, interrupts ----------------------------------------------------------- */

bool cqn_chaos_refuses(enum fault fault)
{
    if (!cqn_chaos(fault))
        return false;
    cqn_chaos_note(fault, ENOMEM);
    *cqn_errno() = ENOMEM;
    return true;
}

/* A verb that returns its error leaves errno unchanged. */
bool cqn_chaos_refuses_arm(void)
{
    if (!cqn_chaos(CHAOS_ARM))
        return false;
    cqn_chaos_note(CHAOS_ARM, ENOMEM);
    return true;
}

void cqn_chaos_delays(enum fault fault)
{
    if (!cqn_chaos(fault))
        return;
    uint32_t ms = (uint32_t)(1 + drawn % 20);
    cqn_chaos_note(fault, ms);
    struct timespec time = {.tv_nsec = (long)ms * 1000000};
    nanosleep(&time, NULL);
}

/* After a handler with SA_RESTART, read() continues and the other calls end. Without a handler only
 * epoll_wait() ends, when the process is stopped and continued: see signal(7). */
static bool may_be_interrupted(enum record_call call)
{
    bool restarts = call == CALL_READ || call == CALL_GET_CQ_EVENT;
    return cqn_sleep_has_handler(!restarts) || call == CALL_EPOLL_WAIT;
}

bool cqn_chaos_interrupts(enum record_call call)
{
    if (!(cqn_chaos_faults & 1u << CHAOS_EINTR) || !may_be_interrupted(call) ||
        !cqn_chaos(CHAOS_EINTR))
        return false;
    cqn_chaos_note(CHAOS_EINTR, (uint32_t)call);
    *cqn_errno() = EINTR;
    return true;
}

/* ---- polls --------------------------------------------------------------------------------- */

/*
 * Returns how many completions a poll may return: fewer than there are, as if the others arrived
 * after it.
 *
 * This is done only where a late arrival makes no difference. An armed CQ raises an event for a
 * completion that arrives after the poll, and a program may rely on it: it arms, polls until it
 * gets fewer than it asked for, and sleeps. The observer cannot raise an event, so it withholds
 * nothing while the CQ is armed or may be. While the CQ is not armed, a late completion raises no
 * event, and a correct program arms and polls again before it sleeps; that poll returns everything
 * withheld. An arm by another thread during this poll is later than the poll's start, so the
 * program cannot rely on the order.
 *
 * Completions keep the order of the device. At most one of two successive polls returns nothing.
 */
int cqn_chaos_batch(struct cq *cq, int asked)
{
    if (cq->armed != NOT_ARMED || asked <= 0)
        return asked;
    cqn_cq_fill(cq);
    if (cq->waiting == 0)
        return asked;
    if (!cq->held && cqn_chaos(CHAOS_HOLD)) {
        cq->held = true;
        cqn_chaos_note(CHAOS_HOLD, cq->waiting);
        return 0;
    }
    cq->held = false;
    uint32_t there = cq->waiting < (uint32_t)asked ? cq->waiting : (uint32_t)asked;
    if (there <= 1 || !cqn_chaos(CHAOS_SPLIT))
        return asked;
    uint32_t fewer = (uint32_t)(1 + drawn % (there - 1));
    cqn_chaos_note(CHAOS_SPLIT, fewer);
    return (int)fewer;
}

/* ---- asynchronous events -------------------------------------------------------------------- */

/* Only events without a CQ, QP or SRQ: destroying an object waits until all its events are
 * acknowledged, and the kernel has not raised the injected one. */
bool cqn_chaos_async(struct ibv_async_event *event)
{
    static const enum ibv_event_type types[] = {
        IBV_EVENT_PORT_ERR,    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_LID_CHANGE,  IBV_EVENT_GID_CHANGE,
        IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,   IBV_EVENT_DEVICE_FATAL};
    if (!cqn_chaos(CHAOS_ASYNC))
        return false;
    event->event_type = types[drawn % (sizeof(types) / sizeof(types[0]))];
    event->element.port_num = 1;
    cqn_chaos_note(CHAOS_ASYNC, (uint32_t)event->event_type);
    RECORD(.what = RECORD_ASYNC_EVENT, .flags = RECORD_INJECTED,
           .detail = (uint32_t)event->event_type);
    return true;
}

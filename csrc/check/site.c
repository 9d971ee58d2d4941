/* SPDX-License-Identifier: MIT */
/* Backtraces of calls, each taken once and never freed. */
#include "site.h"

#include <stddef.h>
#include <unwind.h>

#include "check.h"
#include "lock.h"
#include "memory.h"

enum { MAX_BACKTRACES = 4096 };

static lock_t lock;
static struct backtrace *backtraces; /* number 0 is unused */
static uint32_t taken;
static struct table by_place;

struct walk {
    struct backtrace *backtrace;
    uintptr_t from, to; /* the observer's own code */
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data)
{
    struct walk *walk = data;
    uintptr_t address = _Unwind_GetIP(context);
    if (address == 0 || walk->backtrace->count == MAX_FRAMES)
        return _URC_END_OF_STACK;
    if (address < walk->from || address >= walk->to)
        walk->backtrace->frames[walk->backtrace->count++] = address;
    return _URC_NO_REASON;
}

void cqn_backtrace(struct backtrace *backtrace)
{
    struct walk walk = {.backtrace = backtrace};
    cqn_own_code(&walk.from, &walk.to);
    backtrace->count = 0;
    _Unwind_Backtrace(step, &walk);
}

/* The first walk initializes the unwinder, which is not thread-safe. */
void cqn_backtrace_ready(void)
{
    struct backtrace first;
    cqn_backtrace(&first);
}

static uint32_t number_of(uintptr_t caller, uintptr_t stack)
{
    uintptr_t place = caller * 31 + stack;
    cqn_lock(&lock);
    uint32_t number = (uint32_t)(uintptr_t)cqn_table_find(&by_place, place);
    if (number == 0 && taken + 1 < MAX_BACKTRACES) {
        if (!backtraces)
            backtraces = cqn_alloc(MAX_BACKTRACES * sizeof(*backtraces));
        if (backtraces) {
            number = ++taken;
            cqn_backtrace(&backtraces[number]);
            cqn_table_put(&by_place, place, (void *)(uintptr_t)number);
        }
    }
    cqn_unlock(&lock);
    return number;
}

void cqn_site_take(struct site *site, uintptr_t caller, uintptr_t stack)
{
    site->backtrace = number_of(caller, stack);
    site->tid = cqn_tid();
    site->stack = stack;
    site->caller = caller;
}

const struct backtrace *cqn_site_backtrace(const struct site *site, struct backtrace *alone)
{
    if (site->backtrace)
        return &backtraces[site->backtrace];
    alone->count = site->caller != 0;
    alone->frames[0] = site->caller;
    return alone;
}

/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/receiver.py. */

#include "end.h"

#include <time.h>

enum { SIZE = 64, MESSAGES = 2000, BUSY_MESSAGES = 50, INTERVAL = 1000000, SPIN = 50000 };
enum { SOLICITED = 16, BATCH = 64 };

static long take(struct end *end, int n, const struct ibv_wc *wcs)
{
    for (int i = 0; i < n; i++) {
        end_post_recv(end, wcs[i].wr_id);
    }
    return n;
}

static void busy(struct end *end, long left)
{
    struct ibv_wc wcs[BATCH];
    while (left > 0) {
        left -= take(end, end_poll(end, BATCH, wcs), wcs);
    }
}

static void asleep(struct end *end, long left, bool solicited_only)
{
    struct ibv_wc wcs[BATCH];
    while (left > 0) {
        end_get_event(end);
        end_arm(end, solicited_only);
        int n = end_poll(end, BATCH, wcs);
        end->spurious += n == 0;
        left -= take(end, n, wcs);
    }
}

static int spin(struct end *end, struct ibv_wc *wcs)
{
    int64_t deadline = bench_clock() + SPIN;
    int n;
    do {
        n = end_poll(end, BATCH, wcs);
    } while (n == 0 && bench_clock() < deadline);
    return n;
}

static void spin_then_sleep(struct end *end, long left)
{
    struct ibv_wc wcs[BATCH];
    while (left > 0) {
        int n = spin(end, wcs);
        if (n == 0) {
            end_arm(end, false);
            n = end_poll(end, BATCH, wcs);
        }
        if (n == 0) {
            end_get_event(end);
            n = end_poll(end, BATCH, wcs);
            end->spurious += n == 0;
        }
        left -= take(end, n, wcs);
    }
}

enum { BUSY, ANY, SOME, SPINNING, CASES };
static const char *const cases[CASES] = {"busy", "any", "1 in 16", "spin 50 us"};

static void receive(struct end *end, int which, long messages)
{
    if (which == BUSY) {
        busy(end, messages);
    }
    else if (which == SPINNING) {
        spin_then_sleep(end, messages);
    }
    else {
        asleep(end, messages, which == SOME);
    }
}

static void measure(int which)
{
    static struct end end;
    struct meter meter;
    long messages = which == BUSY ? BUSY_MESSAGES : MESSAGES;
    end_connect(&end, SIZE);
    if (which == ANY || which == SOME) {
        end_arm(&end, which == SOME);
    }
    end_order("pace %ld %d %d\n", messages, INTERVAL, SOLICITED);
    meter_start(&meter, CLOCK_PROCESS_CPUTIME_ID, &end);
    receive(&end, which, messages);
    meter_print(&meter, &end, cases[which], messages);
    end_close(&end);
}

int main(void)
{
    while (bench_next_round()) {
        for (int which = BUSY; which < CASES; which++) {
            printf(which == BUSY ? "{" : ", ");
            measure(which);
        }
        printf("}\n");
    }
    return 0;
}

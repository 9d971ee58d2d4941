/* SPDX-License-Identifier: MIT */
/* The floor of benchmarks/throughput.py. */

#include "end.h"

#include <time.h>

enum { CREDIT = 8, BATCH = SLOTS };

static const struct {
    const char *name;
    uint32_t size;
    long messages;
    clockid_t clock;
} cases[] = {
    {"64 B, CPU", 64, 6400, CLOCK_PROCESS_CPUTIME_ID},
    {"64 KiB, time", 65536, 128, CLOCK_MONOTONIC},
};

/* A message requests half a window as soon as that much is free. */
static void receive(struct end *end, long messages)
{
    struct ibv_wc wcs[BATCH];
    for (long asked = 0, got = 0; got < messages;) {
        for (; asked < messages && asked - got <= SLOTS / 2; asked += SLOTS / 2) {
            end_send(end);
        }
        end_get_event(end);
        end_arm(end, false);
        int n = end_poll(end, BATCH, wcs);
        end->spurious += n == 0;
        for (int i = 0; i < n; i++) {
            end_post_recv(end, wcs[i].wr_id);
        }
        got += n;
    }
}

static void measure(size_t which)
{
    static struct end end;
    struct meter meter;
    long messages = cases[which].messages;
    end_connect(&end, cases[which].size);
    end.send_size = CREDIT;
    end_arm(&end, false);
    end_order("stream %ld\n", messages);
    meter_start(&meter, cases[which].clock, &end);
    receive(&end, messages);
    meter_print(&meter, &end, cases[which].name, messages);
    end_close(&end);
}

int main(void)
{
    while (bench_next_round()) {
        for (size_t which = 0; which < sizeof(cases) / sizeof(*cases); which++) {
            printf(which == 0 ? "{" : ", ");
            measure(which);
        }
        printf("}\n");
    }
    return 0;
}

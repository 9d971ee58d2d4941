/* SPDX-License-Identifier: MIT */
/* The other end of all traffic: does what the subject says, a line each, until it has gone.
 *
 *   connect SIZE               a new connection, of messages of that size
 *   echo N                     sends N messages back, asleep in between
 *   pace N INTERVAL SOLICITED  sends N messages, INTERVAL ns apart, each SOLICITED-th is solicited;
 *                              they begin with the time
 *   stream N                   sends N messages, SLOTS / 2 of them for each message that it gets
 *   meet                       says that all this is done */

#include "end.h"

#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void echo(struct end *end, long n)
{
    struct ibv_wc wcs[16];
    while (n > 0) {
        end_get_event(end);
        end_arm(end, false);
        int got = end_poll(end, 16, wcs);
        for (int i = 0; i < got; i++, n--) {
            end_post_recv(end, wcs[i].wr_id);
            end_send(end);
        }
    }
}

static void sleep_until(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == 0);
}

/* With permission, it has priority over a receiver that spins. */
static void pace(struct end *end, long n, long interval, long solicited)
{
    struct sched_param param = {.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &param);
    for (long i = 1; i <= n; i++) {
        sleep_until(bench_clock() + interval);
        end_stamp(end, bench_clock());
        end_post_send(end, IBV_SEND_SIGNALED | (i % solicited ? 0 : IBV_SEND_SOLICITED));
        end_reap_send(end);
    }
}

static void wait_for_one(struct end *end)
{
    struct ibv_wc wc;
    while (end_poll(end, 1, &wc) == 0) {
        end_get_event(end);
        end_arm(end, false);
    }
    end_post_recv(end, wc.wr_id);
}

static void stream(struct end *end, long n)
{
    for (; n > 0; n -= SLOTS / 2) {
        wait_for_one(end);
        for (int i = 0; i < SLOTS / 2; i++) {
            end_send(end);
        }
    }
}

static bool next_order(char *line, size_t size)
{
    for (size_t i = 0; i + 1 < size && read(bench_peer(), line + i, 1) == 1; i++) {
        if (line[i] == '\n') {
            line[i] = '\0';
            return true;
        }
    }
    return false;
}

int main(void)
{
    static struct end end;
    char line[80];
    long n, interval, solicited;
    while (next_order(line, sizeof(line))) {
        if (sscanf(line, "connect %ld", &n) == 1) {
            if (end.qp != NULL) {
                end_close(&end);
            }
            end_open(&end, (uint32_t)n);
            end_arm(&end, false);
            end_meet();
        }
        else if (sscanf(line, "echo %ld", &n) == 1) {
            echo(&end, n);
        }
        else if (sscanf(line, "pace %ld %ld %ld", &n, &interval, &solicited) == 3) {
            pace(&end, n, interval, solicited);
        }
        else if (strcmp(line, "meet") == 0) {
            end_meet();
        }
        else {
            CHECK(sscanf(line, "stream %ld", &n) == 1);
            stream(&end, n);
        }
    }
    return 0;
}

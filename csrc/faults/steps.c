/* SPDX-License-Identifier: MIT */
/*
 * Writes the steps of the core to the file that CQNOTIFY_STEPS names, followed by the number of the
 * process and one that no earlier process of that number has: a line for each step, in the order of
 * the lock. tests/model/replay.py reads them. A process that is killed leaves its latest lines out;
 * a forked child has a file of its own.
 */

#include "base/base.h"
#include "faults/faults.h"

#undef pthread_mutex_lock

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define LINE 128 /* bytes, at most */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *prefix;
static int fd = -1;
static size_t used;
static char buffer[1 << 16];

static void flush(void)
{
    size_t written = 0;
    while (written < used) {
        const ssize_t n = write(fd, buffer + written, used - written);
        if (n < 0) {
            break;
        }
        written += (size_t)n;
    }
    used = 0;
}

static void open_file(void)
{
    char path[1024];
    int n = 0;
    do { /* an earlier process can have had the number */
        snprintf(path, sizeof(path), "%s.%d.%d", prefix, (int)getpid(), n++);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    if (fd >= 0) {
        close(fd);
    }
    fd = -1;
    used = 0;
    pthread_mutex_unlock(&lock);
}

/* Opens the file before a test counts its process' descriptors. */
__attribute__((constructor)) static void begin(void)
{
    prefix = getenv("CQNOTIFY_STEPS");
    if (prefix != NULL) {
        pthread_atfork(before_fork, after_fork, in_child);
        open_file();
    }
}

__attribute__((destructor)) static void end(void)
{
    pthread_mutex_lock(&lock);
    flush();
    pthread_mutex_unlock(&lock);
}

static void write_line(const char *name, const void *object, intptr_t a, intptr_t b, intptr_t c)
{
    pthread_mutex_lock(&lock);
    if (fd < 0) { /* a forked child */
        open_file();
    }
    if (used > sizeof(buffer) - LINE) {
        flush();
    }
    const int n = snprintf(buffer + used, LINE, "%s %zx %zx %zx %zx\n", name, (size_t)object,
                           (size_t)a, (size_t)b, (size_t)c);
    used += (size_t)n;
    pthread_mutex_unlock(&lock);
}

void cqn_step(const char *name, const void *object, intptr_t a, intptr_t b, intptr_t c)
{
    if (prefix != NULL) {
        write_line(name, object, a, b, c);
    }
    cqn_schedule_moment(name);
}

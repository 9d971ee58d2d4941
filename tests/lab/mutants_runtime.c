/* SPDX-License-Identifier: MIT */
/* Which mutant is chosen, and which places were reached: by this process and by those it starts. */

#define _GNU_SOURCE
#include "mutants_runtime.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1 << 16)

int cqn_mutant;
static unsigned char nowhere[SIZE];
unsigned char *cqn_mutants_reached = nowhere;

static __attribute__((constructor)) void begin(void)
{
    const char *number = getenv("CQNOTIFY_MUTANT"), *path = getenv("CQNOTIFY_MUTANTS_REACHED");
    cqn_mutant = number == NULL ? 0 : atoi(number);
    const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        void *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        cqn_mutants_reached = shared == MAP_FAILED ? nowhere : shared;
        close(fd);
    }
}

// SPDX-License-Identifier: MIT
// Loaded before libc into a kernel that runs as a process: what that kernel takes for this
// machine's chance is then decided by LAB_SEED, so that hosts under one virtual clock can be run
// again exactly.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

static uint64_t state;

// splitmix64
static uint64_t next(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

ssize_t getrandom(void *buffer, size_t size, unsigned flags)
{
    (void)flags;
    if (state == 0)
        state = strtoull(getenv("LAB_SEED"), NULL, 10);
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)buffer)[i] = (unsigned char)(next() >> 56);
    return (ssize_t)size;
}

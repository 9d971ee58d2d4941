/* SPDX-License-Identifier: MIT */
/*
 * The registered memory of a protection domain, found by its addresses: see cqnotify/_registered.
 *
 *   registered.c       RegisteredTable: what is registered, used and kept; RegisteredRegion
 *   wanted.c           WantedMemory: a buffer to be registered
 *   exposure.c         Exposure and ExposureTable: exposing what is registered
 *
 * Python registers and deregisters; what is frequent is here: a region is found, used and released.
 * All of it is done under the GIL without running any other code in between, and what can run some,
 * as the release of a reference, is done last. So the garbage collector and the callbacks of weak
 * references may call anything here.
 */
#ifndef CQN_MEMORY_REGISTERED_H
#define CQN_MEMORY_REGISTERED_H

#include "work/qp.h"

typedef struct cqn_registered cqn_registered;

/* Registered memory. While it has users, `holder` keeps the memory where it is. Without users it
 * is kept if `array` is set, a weak reference to the array whose memory it is. */
typedef struct cqn_region {
    PyObject_HEAD
    cqn_registered *table; /* strong */
    cqn_mr *mr;            /* strong */
    PyObject *holder;      /* strong, or NULL */
    PyObject *array;       /* a weak reference, or NULL */
    const void *array_id;  /* where the array is, for as long as `array` is set */
    uint64_t start, end;   /* addresses in this process */
    unsigned int access;
    uint32_t users;
    bool is_listed;                   /* to be found; the table has a reference then */
    bool is_kept;                     /* in the list of these */
    struct cqn_region *older, *newer; /* in that list, weak; `newer` also in a chain of what was
                                       * dropped, strong */
} cqn_region;

/* What has the same access, by `start`. None contains another one, so these are ordered by `end`,
 * too. */
typedef struct {
    unsigned int access;
    cqn_region **regions; /* strong */
    size_t len, capacity;
} cqn_regions;

struct cqn_registered {
    PyObject_HEAD
    cqn_regions *sets; /* one for each access */
    size_t sets_len;
    cqn_region *oldest, *newest; /* that are kept; weak */
    uint64_t kept, kept_bytes, in_use, in_use_bytes, registered, reused;
    uint64_t max_bytes, max_kept; /* of what is kept */
    uint64_t joined;              /* users of the table: without any, nothing is kept */
    PyObject *on_drop;            /* called with a list of MRs to be closed, and a holder */
};

/* Finds the memory of a buffer, and adds a user of it. `access` are flags of ibv_access_flags; the
 * region has all of these, and more only of LOCAL_WRITE and MW_BIND. Returns a new reference, which
 * cqn_registered_release() takes back. NULL: it is not registered, without an exception; or the
 * buffer is not contiguous, or not writable and `access` writes, with one. Otherwise stores where
 * the buffer is: the device's address is region->mr->iova + (*start - region->start). The caller
 * holds the lock. Runs other code only in the buffer's own functions. */
cqn_region *cqn_registered_acquire(cqn_registered *self, PyObject *buffer, unsigned int access,
                                   uint64_t *start, uint64_t *length);

/* The same for addresses of memory that the caller keeps. Never sets an exception. */
cqn_region *cqn_registered_find(cqn_registered *self, uint64_t start, uint64_t end,
                                unsigned int access);

/* Ends one use, and steals the reference. The MRs of what is not kept are passed to on_drop(), as a
 * list, with what held the memory, which on_drop() ends after them. Can run arbitrary code. Keeps
 * the current exception. The caller holds the lock. */
void cqn_registered_release(cqn_region *region);

extern PyType_Spec cqn_registered_spec, cqn_region_spec;

/* exposure.c */
extern PyType_Spec cqn_exposure_spec, cqn_exposure_table_spec;

#endif

/* SPDX-License-Identifier: MIT */
/* Tasks of cqnotify's core, which calls this function in place of its own cqnotify_observe(). */
#include <stddef.h>
#include <string.h>

#include "hooks.h"
#include "objects.h"

_Static_assert(sizeof(struct record) - offsetof(struct record, number) == RECORD_METHOD,
               "the place of a name in a record");

/* A name takes the place of a record's numbers; a long one is truncated. */
static void put_task(const void *task, const char *name)
{
    struct record record = {.what = RECORD_TASK, .value = (uintptr_t)task};
    char text[RECORD_NAME] = "";
    memcpy(text, name, strnlen(name, sizeof(text)));
    memcpy(&record.object, text, RECORD_NAME - RECORD_METHOD);
    memcpy(&record.number, text + RECORD_NAME - RECORD_METHOD, RECORD_METHOD);
    cqn_record_put(&record);
}

static void put_sleep(const struct cq *cq, const void *awaited, const char *method)
{
    struct record record = {.what = RECORD_TASK_SLEEP, .value = (uintptr_t)awaited};
    record.object = cq != NULL ? cq->number : 0;
    memcpy(&record.number, method, strnlen(method, RECORD_METHOD));
    cqn_record_put(&record);
}

void cqn_hook_observe(enum cqn_observation what, const void *subject, const struct ibv_cq *ibv,
                      const char *name)
{
    if (cqn_timeline == NULL)
        return;
    const struct cq *cq = ibv != NULL ? cqn_object(ibv) : NULL;
    if (what == CQN_TASK_RUNS)
        put_task(subject, name);
    else if (what == CQN_TASK_SLEEPS)
        put_sleep(cq, subject, name);
    else
        RECORD(.what = RECORD_TASK_WAKE, .object = cq != NULL ? cq->number : 0,
               .value = (uintptr_t)subject);
}

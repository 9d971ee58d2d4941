/* SPDX-License-Identifier: MIT */
/*
 * Finds the observer, which the dynamic linker loads into a namespace of its own (rtld-audit(7)).
 * Its names cannot be looked up, but it can redirect a lookup. So the core exports a function and
 * looks it up; the result is either that function or the observer's.
 */
#include "base/observer.h"

#include <dlfcn.h>
#include <stddef.h>

cqn_observe_function *cqn_observe;

__attribute__((visibility("default"))) cqn_observe_function cqnotify_observe;

void cqnotify_observe(enum cqn_observation what, const void *subject, const struct ibv_cq *cq,
                      const char *name)
{
    (void)what, (void)subject, (void)cq, (void)name;
}

void cqn_find_observer(void)
{
    void *const found = dlsym(RTLD_DEFAULT, "cqnotify_observe");
    cqn_observe = found == (void *)cqnotify_observe ? NULL : (cqn_observe_function *)found;
}

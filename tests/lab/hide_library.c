/* SPDX-License-Identifier: MIT */
/* For LD_AUDIT: the dynamic linker does not find the library that HIDDEN_LIBRARY names, wherever
 * it is installed, and says so in its own words; see rtld-audit(7). */

#define _GNU_SOURCE
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

unsigned int la_version(unsigned int version)
{
    return version;
}

char *la_objsearch(const char *path, uintptr_t *cookie, unsigned int flag)
{
    (void)cookie;
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    bool is_candidate = flag != LA_SER_ORIG; /* without that name it would be nameless in the end */
    return is_candidate && strcmp(name, getenv("HIDDEN_LIBRARY")) == 0 ? NULL : (char *)path;
}

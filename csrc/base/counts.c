/* SPDX-License-Identifier: MIT */
/* What gcov has counted, for a process that ends without destructors: see tests/lab/gcov.py.
 * It is empty in an ordinary build. */

#include "base/base.h"

#ifdef CQN_COVERAGE

#include <gcov.h>

__attribute__((visibility("default"))) void cqn_write_counts(void);

void cqn_write_counts(void)
{
    __gcov_dump();
}

#endif

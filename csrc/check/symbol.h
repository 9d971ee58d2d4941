/* SPDX-License-Identifier: MIT */
/* Finding functions of loaded objects. */
#ifndef CQN_CHECK_SYMBOL_H
#define CQN_CHECK_SYMBOL_H

#include <link.h>
#include <stdbool.h>

/* Returns the function `name` exported by a loaded object; or NULL. */
void *cqn_symbol(const struct link_map *map, const char *name);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef CQN_CHECK_SYMBOL_H
#define CQN_CHECK_SYMBOL_H

#include <link.h>
#include <stdbool.h>

/* The function `name` that a loaded object has for others; or NULL. */
void *cqn_symbol(const struct link_map *map, const char *name);

#endif

/* SPDX-License-Identifier: MIT */
/* Lines of requests, and tables of lines by a number. Neither holds references. */
#ifndef CQN_AWAIT_LINES_H
#define CQN_AWAIT_LINES_H

#include "await/request.h"

/* A table of lines: requests are found by a number, `key`. Several numbers can share a line. */
typedef struct {
    cqn_line *lines;
    size_t room, len; /* room is a power of two, or 0 */
} cqn_table;

void cqn_line_add(cqn_line *line, cqn_request *request);

/* Takes the request out of the line that it is in, if it is in one. */
void cqn_line_remove(cqn_request *request);

/* -1 with MemoryError. */
int cqn_table_add(cqn_table *table, cqn_request *request, uint64_t key);
void cqn_table_remove(cqn_table *table, cqn_request *request);

/* The line that has all requests of that key, and may have others; never NULL. */
const cqn_line *cqn_table_line(const cqn_table *table, uint64_t key);

/* Frees a table that is empty. */
void cqn_table_free(cqn_table *table);

#endif

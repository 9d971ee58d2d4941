/* SPDX-License-Identifier: MIT */
/*
 * Lines of requests, and tables of lines by a number.
 *
 * A line is a list through the requests themselves, so that a request can leave it in constant
 * time. A table finds the completion() that asks for a wr_id, or the abandoned receive of the same
 * memory. Neither holds references: a request leaves before it goes.
 */

#include "await/lines.h"

void cqn_line_add(cqn_line *line, cqn_request *request)
{
    request->line = line;
    request->behind = NULL;
    request->before = line->last;
    *(line->last ? &line->last->behind : &line->first) = request;
    line->last = request;
}

/* Takes the request out of the line that it is in; the caller need not know which. */
void cqn_line_remove(cqn_request *request)
{
    cqn_line *line = request->line;
    if (line == NULL) {
        return;
    }
    *(request->before ? &request->before->behind : &line->first) = request->behind;
    *(request->behind ? &request->behind->before : &line->last) = request->before;
    request->before = request->behind = NULL;
    request->line = NULL;
}

/* The numbers that users choose are often small, or differ in a few bits only: multiplying spreads
 * them. */
static size_t place_of(const cqn_table *table, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (table->room - 1);
}

const cqn_line *cqn_table_line(const cqn_table *table, uint64_t key)
{
    static const cqn_line nobody;
    return table->len == 0 ? &nobody : &table->lines[place_of(table, key)];
}

static int grow_table(cqn_table *table)
{
    const cqn_table old = *table;
    const size_t room = old.room ? old.room * 2 : 16;
    cqn_line *lines = PyMem_Calloc(room, sizeof(*lines));
    if (lines == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    table->lines = lines;
    table->room = room;
    for (size_t i = 0; i < old.room; i++) {
        while (old.lines[i].first != NULL) {
            cqn_request *request = old.lines[i].first;
            cqn_line_remove(request);
            cqn_line_add(&lines[place_of(table, request->key)], request);
        }
    }
    PyMem_Free(old.lines);
    return 0;
}

int cqn_table_add(cqn_table *table, cqn_request *request, uint64_t key)
{
    if (table->len == table->room && grow_table(table) < 0) {
        return -1;
    }
    request->key = key;
    cqn_line_add(&table->lines[place_of(table, key)], request);
    table->len++;
    return 0;
}

void cqn_table_remove(cqn_table *table, cqn_request *request)
{
    cqn_line_remove(request);
    table->len--;
}

/* The table must be empty. */
void cqn_table_free(cqn_table *table)
{
    PyMem_Free(table->lines);
    *table = (cqn_table){NULL, 0, 0};
}

/* SPDX-License-Identifier: MIT */
/* Writing the log, whose format is in log.h: one write() for each line. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static int descriptor = -1;
static uint32_t findings;

/* ---- lines -------------------------------------------------------------------------------- */

static void add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t space = sizeof(line->text) - line->length;
    int length = vsnprintf(line->text + line->length, space, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->length += (uint32_t)((size_t)length < space ? (size_t)length : space - 1);
}

/* Appends a JSON string. Bytes outside ASCII are not converted: a path may have any encoding. */
static void add_text(struct line *line, const char *text, size_t length)
{
    add(line, "\"");
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            add(line, "\\%c", c);
        else if (c < ' ')
            add(line, "\\u%04x", c);
        else
            add(line, "%c", c);
    }
    add(line, "\"");
}

static void put(struct line *line)
{
    if (descriptor < 0)
        return;
    line->text[line->length++] = '\n';
    ssize_t ignored = write(descriptor, line->text, line->length);
    (void)ignored;
}

void cqn_log_line(const char *format, ...)
{
    struct line line = {0};
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line.text, sizeof(line.text) - 1, format, arguments);
    va_end(arguments);
    line.length = (uint32_t)length;
    if (length > 0 && (size_t)length < sizeof(line.text) - 1)
        put(&line);
}

/* ---- the file ------------------------------------------------------------------------------ */

static void add_command(struct line *line)
{
    char arguments[4096];
    ssize_t length = cqn_read_command(arguments, sizeof(arguments));
    const char *separator = "";
    for (ssize_t i = 0; i < length; i += (ssize_t)strlen(arguments + i) + 1) {
        add(line, "%s", separator);
        size_t words = strlen(arguments + i);
        add_text(line, arguments + i, words < 1000 ? words : 1000);
        separator = ", ";
    }
}

void cqn_log_open(const char *forked)
{
    if (descriptor >= 0)
        close(descriptor);
    findings = 0;
    descriptor = cqn_create_file("log");
    char program[1024];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
    struct line line = {0};
    add(&line, "{\"kind\": \"process\", \"pid\": %d, \"parent\": %d, \"time\": %llu, ", getpid(),
        getppid(), (unsigned long long)cqn_now());
    add(&line, "\"forked\": \"%s\", \"program\": ", forked);
    add_text(&line, program, length > 0 ? (size_t)length : 0);
    add(&line, ", \"command\": [");
    add_command(&line);
    add(&line, "]}");
    put(&line);
}

void cqn_log_module(uintptr_t base, const char *path)
{
    struct line line = {0};
    add(&line, "{\"kind\": \"module\", \"base\": \"%#llx\", \"path\": ", (unsigned long long)base);
    add_text(&line, path, strlen(path));
    add(&line, "}");
    put(&line);
}

void cqn_log_withdraw(uint32_t finding)
{
    cqn_log_line("{\"kind\": \"withdrawn\", \"number\": %u, \"time\": %llu}", finding,
                 (unsigned long long)cqn_now());
}

/* ---- findings ------------------------------------------------------------------------------ */

void cqn_finding_begin(struct line *line, const char *rule)
{
    line->length = 0;
    add(line,
        "{\"kind\": \"finding\", \"rule\": \"%s\", \"time\": %llu, \"tid\": %u, \"values\": {",
        rule, (unsigned long long)cqn_now(), cqn_tid());
}

static void comma(struct line *line)
{
    char last = line->text[line->length - 1];
    if (last != '{' && last != '[')
        add(line, ", ");
}

void cqn_finding_value(struct line *line, const char *name, uint64_t value)
{
    comma(line);
    add(line, "\"%s\": %llu", name, (unsigned long long)value);
}

void cqn_finding_text(struct line *line, const char *name, const char *value)
{
    comma(line);
    add(line, "\"%s\": \"%s\"", name, value);
}

/* Appends a place; places follow the values. */
static void add_place(struct line *line, const char *what, uint32_t tid,
                      const struct backtrace *backtrace)
{
    if (!strstr(line->text, "\"where\""))
        add(line, "}, \"where\": [");
    comma(line);
    add(line, "{\"what\": \"%s\", \"tid\": %u, \"frames\": [", what, tid);
    for (uint32_t i = 0; i < backtrace->count; i++) {
        comma(line);
        add(line, "\"%#llx\"", (unsigned long long)backtrace->frames[i]);
    }
    add(line, "]}");
}

void cqn_finding_here(struct line *line, const char *what)
{
    struct backtrace backtrace;
    cqn_backtrace(&backtrace);
    add_place(line, what, cqn_tid(), &backtrace);
}

void cqn_finding_site(struct line *line, const char *what, const struct site *site)
{
    struct backtrace alone;
    if (site->caller)
        add_place(line, what, site->tid, cqn_site_backtrace(site, &alone));
}

uint32_t cqn_finding_end(struct line *line, uint32_t number)
{
    if (number == 0)
        number = __atomic_add_fetch(&findings, 1, __ATOMIC_RELAXED);
    add(line, strstr(line->text, "\"where\"") ? "]" : "}, \"where\": []");
    add(line, ", \"number\": %u}", number);
    put(line);
    return number;
}

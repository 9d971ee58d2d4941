/* SPDX-License-Identifier: MIT */
/*
 * The interface to the dynamic linker (rtld-audit(7)): it reports each object that it loads and
 * each symbol that it binds, also for dlsym(), and binds the address that the observer returns.
 *
 * Environment variables:
 *  CQNOTIFY_CHECK   the folder of logs and timelines; unset: nothing is observed
 *  CQNOTIFY_CHAOS   the faults to inject, see chaos.h
 *  CQNOTIFY_TRACE   write a timeline of this many records
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chaos.h"
#include "hooks.h"
#include "objects.h"
#include "symbol.h"

#define EXPORTED __attribute__((visibility("default")))

struct real cqn_real;
static const char *folder;
static uint64_t timeline_records;
static char name[64]; /* the name of this process's log, "PID.N" */
static struct link_map *libc_map, *verbs_map;
/* The linker loads the observer first, so the static TLS block has space for it. */
static _Thread_local uint32_t tid __attribute__((tls_model("initial-exec")));

/* ---- hooks ---------------------------------------------------------------------------------- */

struct hook {
    const char *name;
    void *ours;
    void **real;
};

static const struct hook hooks[] = {
#define HOOK(type, function, arguments) \
    {#function, (void *)cqn_hook_##function, (void **)&cqn_real.function},
    HOOKS(HOOK)
#undef HOOK
    /* Called by fortified programs in place of the functions above. */
    {"__read_chk", (void *)cqn_hook_read_chk, NULL},
    {"__poll_chk", (void *)cqn_hook_poll_chk, NULL},
    {"__ppoll_chk", (void *)cqn_hook_ppoll_chk, NULL},
    {"fcntl64", (void *)cqn_hook_fcntl, NULL},
    {"cqnotify_observe", (void *)cqn_hook_observe, NULL},
};

enum { HOOK_COUNT = sizeof(hooks) / sizeof(hooks[0]) };

static const struct hook *find_hook(const char *symbol)
{
    for (size_t i = 0; i < HOOK_COUNT; i++)
        if (symbol[0] == hooks[i].name[0] && strcmp(symbol, hooks[i].name) == 0)
            return &hooks[i];
    return NULL;
}

/* Finds the functions of the libc that the hooks call; the program may bind none of them. */
static void find_in(struct link_map *map)
{
    for (size_t i = 0; i < HOOK_COUNT; i++)
        if (hooks[i].real && !*hooks[i].real)
            *hooks[i].real = cqn_symbol(map, hooks[i].name);
}

/* Before the libc is loaded, an errno that the program never sees. */
int *cqn_errno(void)
{
    static int *(*location)(void);
    if (!location && libc_map)
        *(void **)&location = cqn_symbol(libc_map, "__errno_location");
    return location ? location() : &errno;
}

void *cqn_find_verb(const char *symbol)
{
    return verbs_map ? cqn_symbol(verbs_map, symbol) : NULL;
}

/* ---- the dynamic linker's calls ------------------------------------------------------------ */

EXPORTED unsigned int la_version(unsigned int version)
{
    folder = getenv("CQNOTIFY_CHECK");
    if (!folder || !*folder)
        return 0; /* unloads the observer */
    const char *records = getenv("CQNOTIFY_TRACE");
    timeline_records = records ? strtoull(records, NULL, 10) : 0;
    cqn_log_open("");
    cqn_chaos_set(getenv("CQNOTIFY_CHAOS"));
    if (timeline_records)
        cqn_timeline_open(timeline_records);
    cqn_backtrace_ready();
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

static bool is_library(const char *path, const char *start)
{
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, start, strlen(start)) == 0;
}

EXPORTED unsigned int la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie)
{
    (void)cookie;
    if (namespace == LM_ID_BASE) {
        cqn_log_module(map->l_addr, map->l_name);
        if (is_library(map->l_name, "libc.so.6"))
            libc_map = map;
        else if (is_library(map->l_name, "libibverbs.so.1"))
            verbs_map = map;
    }
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

/* Called when the program's objects are relocated and before any of its code runs. */
EXPORTED void la_preinit(uintptr_t *cookie)
{
    (void)cookie;
    if (libc_map)
        find_in(libc_map);
}

EXPORTED uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *from,
                                uintptr_t *to, unsigned int *flags, const char *symbol_name)
{
    (void)index, (void)from, (void)to, (void)flags;
    const struct hook *hook = find_hook(symbol_name);
    if (!hook || (hook->ours == (void *)cqn_hook_observe && !timeline_records))
        return symbol->st_value;
    if (hook->real) {
        void *real = (void *)symbol->st_value;
        if (*hook->real && *hook->real != real)
            return symbol->st_value; /* another function of that name, or another version of it */
        *hook->real = real;
    }
    return (uintptr_t)hook->ours;
}

__attribute__((destructor)) static void at_exit(void)
{
    if (folder && *folder)
        cqn_report_end();
}

/* ---- the process --------------------------------------------------------------------------- */

uint32_t cqn_tid(void)
{
    if (tid == 0)
        tid = (uint32_t)syscall(SYS_gettid);
    return tid;
}

/* Creates the log under the first free name, or the timeline under the name of its log. Returns a
 * descriptor, or -1. */
int cqn_create_file(const char *extension)
{
    bool is_log = strcmp(extension, "log") == 0;
    int file = -1;
    for (int n = 0; file < 0 && n < 100000; n++) {
        if (is_log)
            snprintf(name, sizeof(name), "%d.%d", getpid(), n);
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s/%s.%s", folder, name, extension);
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (!is_log || (file < 0 && errno != EEXIST))
            break;
    }
    if (file < 0)
        return -1;
    /* A high number, because programs may rely on getting the lowest descriptor next. */
    int high = fcntl(file, F_DUPFD_CLOEXEC, 500);
    if (high < 0)
        return file;
    close(file);
    return high;
}

ssize_t cqn_read_command(char *buffer, size_t size)
{
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, buffer, size - 1);
    if (file >= 0)
        close(file);
    length = length > 0 ? length : 0;
    buffer[length] = '\0';
    return length;
}

void cqn_own_code(uintptr_t *from, uintptr_t *to)
{
    extern const char __ehdr_start[] __attribute__((visibility("hidden")));
    extern const char etext[] __attribute__((visibility("hidden")));
    *from = (uintptr_t)__ehdr_start;
    *to = (uintptr_t)etext;
}

bool cqn_is_alone(void)
{
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink <= 3;
}

pid_t cqn_hook_fork(void)
{
    cqn_lock(&cqn_lists_lock);
    pid_t child = cqn_real.fork();
    if (child == 0) {
        tid = 0;
        cqn_chaos_forked();
        char parent[sizeof(name)];
        strcpy(parent, name);
        cqn_log_open(parent);
        if (timeline_records)
            cqn_timeline_open(timeline_records);
    }
    cqn_unlock(&cqn_lists_lock);
    return child;
}

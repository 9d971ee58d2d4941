/* SPDX-License-Identifier: MIT */
/*
 * Included by each source that has mutants, see mutants_planted.py: which of them is chosen, and
 * which places were reached, by this process and by those it starts. All is weak, so each library
 * that is made of such sources has one of it.
 */
#ifndef CQN_MUTANTS_RUNTIME_H
#define CQN_MUTANTS_RUNTIME_H

/* A test may compile a source with -Wextra -Werror, and mutants compare what always is so. */
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define CQN_MUTANTS (1 << 16)
#define CQN_OF_LIBRARY __attribute__((weak, visibility("default")))

/* The number of the mutant that is chosen, or 0. The environment variable CQNOTIFY_MUTANT sets it
 * when the library is loaded; mutants_guest.py sets it in a child. */
CQN_OF_LIBRARY int cqn_mutant;

/* A byte for each number; of the file that CQNOTIFY_MUTANTS_REACHED names, if there is one. */
CQN_OF_LIBRARY unsigned char cqn_mutants_unseen[CQN_MUTANTS];
CQN_OF_LIBRARY unsigned char *cqn_mutants_reached = cqn_mutants_unseen;

static inline _Bool cqn_is_mutant(int number)
{
    return __builtin_expect(cqn_mutant == number, 0);
}

static inline void cqn_reach(int number)
{
    cqn_mutants_reached[number] = 1;
}

/* No header is included: a source defines what it wants of those before it includes them. And a
 * build for tests has macros of these names, by which the calls fail. */
#pragma push_macro("open")
#pragma push_macro("close")
#pragma push_macro("mmap")
#undef open
#undef close
#undef mmap
char *getenv(const char *name);
int atoi(const char *text);
int open(const char *path, int flags, ...);
int close(int fd);
void *mmap(void *at, unsigned long size, int protection, int flags, int fd, long offset);

__attribute__((weak, constructor)) void cqn_mutants_begin(void)
{
    const char *number = getenv("CQNOTIFY_MUTANT"), *path = getenv("CQNOTIFY_MUTANTS_REACHED");
    cqn_mutant = number ? atoi(number) : 0;
    const int fd = path ? open(path, 02) : -1; /* O_RDWR */
    if (fd >= 0 && cqn_mutants_reached == cqn_mutants_unseen) {
        void *shared = mmap(0, CQN_MUTANTS, 3, 1, fd, 0); /* to read and write, MAP_SHARED */
        cqn_mutants_reached = shared == (void *)-1 ? cqn_mutants_unseen : shared;
    }
    if (fd >= 0) {
        close(fd);
    }
}
#pragma pop_macro("open")
#pragma pop_macro("close")
#pragma pop_macro("mmap")

#endif

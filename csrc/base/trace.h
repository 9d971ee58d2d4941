/* SPDX-License-Identifier: MIT */
/*
 * Trace points: places in the core that tracers such as perf, bpftrace, SystemTap and gdb find by
 * name. These call them USDT probes, or markers, of the provider `cqnotify`.
 *
 * A trace point is a nop, which a tracer replaces while it looks, and a note in the ELF file, which
 * says where the nop is, and in which register, constant or place in memory each argument is. The
 * notes are never loaded. So all that it costs is the nop, if an argument is a value that the code
 * has at hand there. The format is that of <sys/sdt.h>, a header that not every machine has.
 */
#ifndef CQN_TRACE_H
#define CQN_TRACE_H

#if defined(__GNUC__) && defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__))

/* To the compiler a statement is as large as it has lines, and a large one is a reason not to
 * inline a function. With `inline` it counts as small, as it is. */
#if __GNUC__ >= 9 || __clang_major__ >= 11
#define CQN_TRACE_ASM __asm__ __inline__ volatile
#else
#define CQN_TRACE_ASM __asm__ volatile
#endif

/* The base, a byte that all notes name, shows tracers how far the file was moved (prelink). */
#define CQN_TRACE_NOTE(name, arguments, ...)                        \
    CQN_TRACE_ASM("990: nop\n"                                      \
                  ".pushsection .note.stapsdt,\"?\",\"note\"\n"     \
                  ".balign 4\n"                                     \
                  ".4byte 992f-991f, 994f-993f, 3\n"                \
                  "991: .asciz \"stapsdt\"\n"                       \
                  "992: .balign 4\n"                                \
                  "993: .8byte 990b, _.stapsdt.base, 0\n"           \
                  ".asciz \"cqnotify\"\n"                           \
                  ".asciz \"" #name "\"\n"                          \
                  ".asciz \"" arguments "\"\n"                      \
                  "994: .balign 4\n"                                \
                  ".popsection\n"                                   \
                  ".ifndef _.stapsdt.base\n"                        \
                  ".pushsection .stapsdt.base,\"aG\",\"progbits\"," \
                  ".stapsdt.base,comdat\n"                          \
                  ".weak _.stapsdt.base\n"                          \
                  ".hidden _.stapsdt.base\n"                        \
                  "_.stapsdt.base: .space 1\n"                      \
                  ".size _.stapsdt.base, 1\n"                       \
                  ".popsection\n"                                   \
                  ".endif\n" ::__VA_ARGS__)

/* With one argument and with two: a pointer, which is the id() of the object in Python, and a
 * signed number. */
#define CQN_TRACE(name, object) CQN_TRACE_NOTE(name, "8@%[arg1]", [arg1] "nor"((uintptr_t)(object)))
#define CQN_TRACE_N(name, object, number)                                                  \
    CQN_TRACE_NOTE(name, "8@%[arg1] %n[size2]@%[arg2]", [arg1] "nor"((uintptr_t)(object)), \
                   [arg2] "nor"(number), [size2] "n"((int)sizeof(number)))

#else
#define CQN_TRACE(name, object) ((void)0)
#define CQN_TRACE_N(name, object, number) ((void)0)
#endif

#endif

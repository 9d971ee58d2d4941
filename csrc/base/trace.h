/* SPDX-License-Identifier: MIT */
/*
 * Trace points: places in the core that tracers such as perf, bpftrace, SystemTap and gdb find by
 * name, as USDT probes (or markers) of the provider `cqnotify`.
 *
 * A trace point is a nop and a note in the ELF file. A tracer replaces the nop while it traces. The
 * note describes where the nop is, and in which register, constant or memory each argument is;
 * notes are never loaded. A trace point costs only the nop if its arguments are constants, or
 * already in registers or memory. The format is that of <sys/sdt.h>, which is not installed on
 * every machine.
 */
#ifndef CQN_TRACE_H
#define CQN_TRACE_H

#if defined(__GNUC__) && defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__))

/* The compiler estimates the size of an asm statement by its lines, and does not inline large
 * functions. `inline` makes it count as small. */
#if __GNUC__ >= 9 || __clang_major__ >= 11
#define CQN_TRACE_ASM __asm__ __inline__ volatile
#else
#define CQN_TRACE_ASM __asm__ volatile
#endif

/* The base, a byte that all notes refer to, shows tracers how far prelink moved the file. */
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

/* Trace points with one argument, the id() of a Python object, and with a second one, a signed
 * number. */
#define CQN_TRACE(name, object) CQN_TRACE_NOTE(name, "8@%[arg1]", [arg1] "nor"((uintptr_t)(object)))
#define CQN_TRACE_N(name, object, number)                                                  \
    CQN_TRACE_NOTE(name, "8@%[arg1] %n[size2]@%[arg2]", [arg1] "nor"((uintptr_t)(object)), \
                   [arg2] "nor"(number), [size2] "n"((int)sizeof(number)))

#else
#define CQN_TRACE(name, object) ((void)0)
#define CQN_TRACE_N(name, object, number) ((void)0)
#endif

#endif

/* What the ladders share.

   A ladder is a chain of functions with known names, each with another shape of frame, so that a stack taken at any
   instruction is known from the source. Nothing is inlined, cloned or turned into a jump: after its call every rung
   still has work to do.

   Programs print "ready" once every thread stands where it is meant to stand, and end by themselves after SECONDS. */

#ifndef LADDER_H
#define LADDER_H

#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long word;

/* -DCFI_SECTIONS='".eh_frame, .debug_frame"': all of these tables in one file. */
#ifdef CFI_SECTIONS
__asm__(".cfi_sections " CFI_SECTIONS);
#endif

#if defined(__clang__)
#define RUNG __attribute__((noinline))
#else
#define RUNG __attribute__((noipa))
#endif

/* How often a rung goes round before and after its call. Volatile: the loops must stay. */
static volatile word rounds = 1;

static void ladder_over(int signal_number)
{
	(void)signal_number;
	_exit(0);
}

/* End by ourselves whatever happens: no test leaves a process behind. */
__attribute__((unused)) static void end_after(const char *seconds)
{
	struct sigevent event;
	struct itimerspec when = {{0, 0}, {atoi(seconds), 0}};
	timer_t timer;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = SIGHUP;
	signal(SIGHUP, ladder_over);
	if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &when, 0))
		_exit(8);
}

__attribute__((unused)) static void say_ready(void)
{
	if (write(1, "ready\n", 6) != 6)
		_exit(9);
}

#define SPIN(x)                                                                                                        \
	for (volatile word turn = rounds; turn; turn--)                                                                 \
		(x) = (x) * 3 + 1

/* SAVED_REGISTERS: the callee-saved ones that code may overwrite. FRAME_REGISTER: what frame pointers live in. */
#if defined(__x86_64__)
#define OVERWRITE "xor %%ebx, %%ebx; mov $12, %%r12d; mov $13, %%r13d; mov $14, %%r14d; mov $15, %%r15d"
#define SAVED_REGISTERS "rbx", "r12", "r13", "r14", "r15"
#define FRAME_REGISTER "rbp"
#elif defined(__i386__)
#define OVERWRITE "xor %%ebx, %%ebx; mov $6, %%esi; mov $7, %%edi"
#define SAVED_REGISTERS "ebx", "esi", "edi"
#define FRAME_REGISTER "ebp"
#elif defined(__aarch64__)
#define OVERWRITE "mov x19, 19; mov x20, 20; mov x21, 21; mov x27, 27; mov x28, 28"
#define SAVED_REGISTERS "x19", "x20", "x21", "x27", "x28"
#elif defined(__arm__)
#define OVERWRITE "mov r4, #4; mov r5, #5; mov r8, #8; mov r10, #10"
#define SAVED_REGISTERS "r4", "r5", "r8", "r10"
#ifdef __thumb__
#define FRAME_REGISTER "r7"
#else
#define FRAME_REGISTER "r11"
#endif
#elif defined(__s390x__)
#define OVERWRITE "lghi %%r6, 6; lghi %%r7, 7; lghi %%r8, 8; lghi %%r10, 10"
#define SAVED_REGISTERS "r6", "r7", "r8", "r10"
#define FRAME_REGISTER "r11"
#elif defined(__powerpc64__)
#define OVERWRITE "li 14, 14; li 15, 15; li 29, 29"
#define SAVED_REGISTERS "r14", "r15", "r29"
#define FRAME_REGISTER "r31"
#elif defined(__riscv)
#define OVERWRITE "li s1, 1; li s2, 2; li s3, 3; li s10, 10; li s11, 11"
#define SAVED_REGISTERS "s1", "s2", "s3", "s10", "s11"
#define FRAME_REGISTER "s0"
#endif

/* Frame shapes. Each macro makes one function `name` that calls `next`. */

#define RUNG_PLAIN(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		word y = next(x + 1);                                                                                  \
		SPIN(y);                                                                                               \
		return y ^ 1;                                                                                          \
	}

#define RUNG_FIXED(name, next, words)                                                                                  \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile word pad[words];                                                                              \
		pad[0] = x;                                                                                            \
		pad[(words) - 1] = x + 1;                                                                              \
		SPIN(x);                                                                                               \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		return y + pad[0] + pad[(words) - 1];                                                                  \
	}

/* All callee-saved registers are pushed and hold other values during the call. */
#define RUNG_SAVED(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		__asm__ volatile(OVERWRITE ::: SAVED_REGISTERS, "cc");                                                 \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		__asm__ volatile("" ::: SAVED_REGISTERS);                                                              \
		return y + 1;                                                                                          \
	}

/* The frame register is saved and then used for anything but a frame (compilers refuse where it is the frame pointer; for
   AArch64 gcc takes it without saving it). */
#if defined(FRAME_POINTERS) || !defined(FRAME_REGISTER)
#define RUNG_RBP(name, next) RUNG_FIXED(name, next, 4)
#else
#define RUNG_RBP(name, next)                                                                                           \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		register word odd __asm__(FRAME_REGISTER) = x | 1;                                                              \
		__asm__ volatile("" : "+r"(odd));                                                                      \
		word y = next(x);                                                                                      \
		__asm__ volatile("" : "+r"(odd));                                                                      \
		SPIN(y);                                                                                               \
		return y + odd;                                                                                        \
	}
#endif

#define RUNG_ALLOCA(name, next)                                                                                        \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile char *pad = alloca(16 + (x & 7) * 16);                                                        \
		pad[0] = (char)x;                                                                                      \
		word y = next(x);                                                                                      \
		SPIN(y);                                                                                               \
		return y + (word)pad[0];                                                                               \
	}

#define RUNG_VLA(name, next)                                                                                           \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		volatile word pad[1 + (x & 15)];                                                                       \
		pad[x & 15] = x;                                                                                       \
		SPIN(x);                                                                                               \
		word y = next(x);                                                                                      \
		return y + pad[0];                                                                                     \
	}

/* Two leave in the middle, one of them with the frame not yet built (shrink wrapping). */
#define RUNG_EARLY(name, next)                                                                                         \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		if (x == 0)                                                                                            \
			return 7;                                                                                      \
		word y = next(x);                                                                                      \
		if (y == 3)                                                                                            \
			return x;                                                                                      \
		volatile word pad[9] = {0};                                                                            \
		pad[y & 7] = next == 0 ? 1 : y;                                                                        \
		SPIN(y);                                                                                               \
		return y + pad[x & 7];                                                                                 \
	}

/* Nine arguments: three of them are pushed before the call. */
#define RUNG_WIDE(name, wide)                                                                                          \
	RUNG word name(word x)                                                                                         \
	{                                                                                                              \
		word y = wide(x, 2, 3, 4, 5, 6, x + 7, x + 8, x + 9);                                                  \
		SPIN(y);                                                                                               \
		return y + x;                                                                                          \
	}

#define RUNG_NINE(wide, next)                                                                                          \
	RUNG word wide(word x, word b, word c, word d, word e, word f, word g, word h, word i)                         \
	{                                                                                                              \
		word y = next(x + b + c);                                                                              \
		SPIN(y);                                                                                               \
		return y + d + e + f + g + h + i;                                                                      \
	}

/* A ladder of 30 rungs, from p_01 (outermost) to p_30, on top of p_top. */
#define LADDER(p)                                                                                                      \
	RUNG_FIXED(p##_30, p##_top, 1)                                                                                 \
	RUNG_PLAIN(p##_29, p##_30)                                                                                     \
	RUNG_FIXED(p##_28, p##_29, 3)                                                                                  \
	RUNG_SAVED(p##_27, p##_28)                                                                                     \
	RUNG_ALLOCA(p##_26, p##_27)                                                                                    \
	RUNG_FIXED(p##_25, p##_26, 8)                                                                                  \
	RUNG_RBP(p##_24, p##_25)                                                                                       \
	RUNG_VLA(p##_23, p##_24)                                                                                       \
	RUNG_FIXED(p##_22, p##_23, 17)                                                                                 \
	RUNG_EARLY(p##_21, p##_22)                                                                                     \
	RUNG_NINE(p##_20, p##_21)                                                                                      \
	RUNG_WIDE(p##_19, p##_20)                                                                                      \
	RUNG_FIXED(p##_18, p##_19, 130)                                                                                \
	RUNG_PLAIN(p##_17, p##_18)                                                                                     \
	RUNG_SAVED(p##_16, p##_17)                                                                                     \
	RUNG_VLA(p##_15, p##_16)                                                                                       \
	RUNG_RBP(p##_14, p##_15)                                                                                       \
	RUNG_FIXED(p##_13, p##_14, 600)                                                                                \
	RUNG_ALLOCA(p##_12, p##_13)                                                                                    \
	RUNG_EARLY(p##_11, p##_12)                                                                                     \
	RUNG_NINE(p##_10, p##_11)                                                                                      \
	RUNG_WIDE(p##_09, p##_10)                                                                                      \
	RUNG_FIXED(p##_08, p##_09, 2)                                                                                  \
	RUNG_SAVED(p##_07, p##_08)                                                                                     \
	RUNG_ALLOCA(p##_06, p##_07)                                                                                    \
	RUNG_FIXED(p##_05, p##_06, 40)                                                                                 \
	RUNG_RBP(p##_04, p##_05)                                                                                       \
	RUNG_VLA(p##_03, p##_04)                                                                                       \
	RUNG_PLAIN(p##_02, p##_03)                                                                                     \
	RUNG_FIXED(p##_01, p##_02, 5)

#endif

/* SPDX-License-Identifier: MIT */
/* System calls without a C library, and the structures that are passed to them. */
typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;
typedef int s32;
typedef unsigned short u16;
typedef unsigned char u8;

struct timespec {
	s64 sec, nsec;
};

struct iovec {
	u64 base, size;
};

#if defined(__x86_64__)
enum {
	IOCTL = 16,
	PREAD64 = 17,
	PTRACE = 101,
	RT_SIGTIMEDWAIT = 128,
	SCHED_SETSCHEDULER = 144,
	CLOCK_GETTIME = 228,
	CLOCK_NANOSLEEP = 230,
	WAITID = 247,
	PPOLL = 271,
	PROCESS_VM_READV = 310,
	STATX = 332
};
static inline s64 call6(s64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	s64 result;
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
enum {
	IOCTL = 29,
	PREAD64 = 67,
	PPOLL = 73,
	WAITID = 95,
	CLOCK_GETTIME = 113,
	CLOCK_NANOSLEEP = 115,
	PTRACE = 117,
	SCHED_SETSCHEDULER = 119,
	RT_SIGTIMEDWAIT = 137,
	PROCESS_VM_READV = 270,
	STATX = 291
};
static inline s64 call6(s64 number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register s64 x8 __asm__("x8") = number;
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "no system calls are known for this machine"
#endif

static inline s64 call4(s64 number, u64 a, u64 b, u64 c, u64 d)
{
	return call6(number, a, b, c, d, 0, 0);
}

static inline s64 call3(s64 number, u64 a, u64 b, u64 c)
{
	return call6(number, a, b, c, 0, 0, 0);
}

static inline s64 call2(s64 number, u64 a, u64 b)
{
	return call6(number, a, b, 0, 0, 0, 0);
}

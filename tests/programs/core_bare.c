/* Crashes without a C library: for x32, which runs in an emulator. */

#define KEEP __attribute__((noinline, noclone))

static volatile int nowhere;

KEEP int crash_4(int n)
{
	*(volatile int *)(long)nowhere = n;
	return n;
}

KEEP int crash_3(int n)
{
	volatile char pad[300];
	pad[n & 63] = 1;
	return crash_4(n) + pad[n & 63];
}

KEEP int crash_2(int n)
{
	volatile char *pad = __builtin_alloca(16 + n * 16);
	pad[0] = 1;
	return crash_3(n) + pad[0];
}

KEEP int crash_1(int n)
{
	return crash_2(n + 1) + 1;
}

void _start(void)
{
	crash_1(1);
	__builtin_trap();
}

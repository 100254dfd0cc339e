/* Writes minidumps of a busy thread at random moments, and next to each the frames of the system's own unwinder. */
#include <windows.h>
#include <dbghelp.h>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <stdexcept>
#include <string>

static volatile int sink, stop;
#define APART __attribute__((noinline, noclone))

APART int leaf(int n) { volatile char pad[300]; pad[n & 255] = n; sink += pad[n & 255]; return n + 1; }
APART int dynamic(int n) { char *p = (char *)_alloca(n * 16 + 32); for (int i = 0; i < n; i++) p[i] = i; sink += p[n / 2]; return leaf(n) + p[1]; }
APART double floating(double a, int n) { double b = a * 1.5; for (int i = 0; i < n; i++) b += dynamic(i + 3) * a; return b + a; }
APART int large(int n) { volatile char pad[9000]; for (int i = 0; i < n; i++) pad[i * 8] = i; return leaf(pad[8]) + dynamic(n); }
APART int thrower(int n) { std::string s(n, 'x'); if (n % 3 == 0) throw std::runtime_error(s); return dynamic(n) + (int)s.size(); }
APART int catcher(int n) { try { return thrower(n); } catch (std::exception &e) { return large(5) + e.what()[0]; } }
APART int deep(int n, int m) { return n ? deep(n - 1, m) * 3 + leaf(n) : catcher(m); }

static DWORD WINAPI work(void *)
{
	for (int i = 1; !stop; i++)
		sink += deep(i % 7, i % 50 + 1) + (int)floating(i, 3);
	return 0;
}

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	HANDLE thread = CreateThread(0, 0, work, 0, 0, 0);
	for (int i = 0; i < count; i++) {
		char name[64];
		CONTEXT context;
		Sleep(7 + i % 5);
		SuspendThread(thread);
		context.ContextFlags = CONTEXT_FULL;
		GetThreadContext(thread, &context);
		printf("dump %d %lu", i, GetThreadId(thread));
		for (int frame = 0; context.Rip && frame < 200; frame++) {
			DWORD64 base, established;
			void *data;
			printf(" %llx", context.Rip);
			PRUNTIME_FUNCTION entry = RtlLookupFunctionEntry(context.Rip, &base, 0);
			if (entry) {
				RtlVirtualUnwind(0, base, context.Rip, entry, &context, &data, &established, 0);
			} else {
				context.Rip = *(DWORD64 *)context.Rsp;
				context.Rsp += 8;
			}
		}
		printf("\n");
		fflush(stdout);
		sprintf(name, "dump-%d.dmp", i);
		HANDLE file = CreateFileA(name, GENERIC_READ | GENERIC_WRITE, 0, 0, CREATE_ALWAYS, 0, 0);
		BOOL done = MiniDumpWriteDump(GetCurrentProcess(), GetCurrentProcessId(), file, MiniDumpNormal, 0, 0, 0);
		if (!done)
			printf("failed %lx\n", GetLastError());
		CloseHandle(file);
		ResumeThread(thread);
	}
	stop = 1;
	return 0;
}

/* Maps a Windows module as Wine does, at the address that it wants, and calls its last export: headers from the file,
   sections from the file where they are laid out so, else copied into anonymous memory.

   pe_host FILE SECONDS: it ends after so long. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __x86_64__
typedef uint32_t __attribute__((ms_abi)) (*entry_t)(uint32_t);
#else
typedef uint32_t (*entry_t)(uint32_t);
#endif

static uint32_t u32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static uint64_t u64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }
static uint16_t u16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return v; }

static void must(int right, const char *what)
{
	if (!right) {
		perror(what);
		exit(2);
	}
}

__attribute__((noinline)) static uint32_t call(entry_t entry, uint32_t n)
{
	return entry(n) + 1;
}

int main(int argc, char **argv)
{
	static uint8_t head[4096];
	int fd = open(argv[1], O_RDONLY);
	must(fd >= 0 && pread(fd, head, sizeof head, 0) > 512, "headers");
	const uint8_t *pe = head + u32(head + 60), *optional = pe + 24;
	int wide = u16(optional) == 0x20b;
	uint8_t *base = (uint8_t *)(uintptr_t)(wide ? u64(optional + 24) : u32(optional + 28));
	uint32_t size = u32(optional + 56);
	const uint8_t *section = optional + u16(pe + 20);
	must(mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == base, "reserve");
	must(mmap(base, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == base, "headers");
	for (int n = u16(pe + 6); n > 0; n--, section += 40) {
		uint32_t memory = u32(section + 8), rva = u32(section + 12), raw = u32(section + 16), at = u32(section + 20);
		uint32_t flags = u32(section + 36);
		int prot = PROT_READ | (flags & 0x20000000 ? PROT_EXEC : 0) | (flags & 0x80000000 ? PROT_WRITE : 0);
		if (raw && at % 4096 == 0) {
			must(mmap(base + rva, raw, prot, MAP_PRIVATE | MAP_FIXED, fd, at) != MAP_FAILED, "section");
			continue;
		}
		memory = (memory + 4095) & -4096;
		must(!mprotect(base + rva, memory, PROT_READ | PROT_WRITE), "section");
		must(pread(fd, base + rva, raw, at) == (ssize_t)raw, "section");
		must(!mprotect(base + rva, memory, prot), "section");
	}
	const uint8_t *exports = base + u32(optional + (wide ? 112 : 96));
	const uint8_t *functions = base + u32(exports + 28);
	entry_t entry = (entry_t)(uintptr_t)(base + u32(functions + 4 * (u32(exports + 20) - 1)));
	alarm(argc > 2 ? atoi(argv[2]) : 10);
	puts("ready");
	fflush(stdout);
	return call(entry, argc) == 0;
}

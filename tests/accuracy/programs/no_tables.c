/* Functions with a known call graph and many kinds of frames, to be built without unwind tables.

   main calls work forever. work calls each function with a frame of its own kind. Some of them call the C library,
   which calls compare back. Nothing is inlined, cloned or turned into a jump. */

#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long word;
#define OWN __attribute__((noinline, noclone, noipa))
#define AFTER_CALL() __asm__ volatile("" ::: "memory")

static volatile word sink;

OWN word spin(word n)
{
	for (word i = 0; i < 40; i++)
		n = n * 6364136223846793005UL + 1442695040888963407UL;
	return n;
}

OWN int compare(const void *a, const void *b)
{
	word x = *(const word *)a, y = *(const word *)b;
	sink = spin(x);
	return (x > y) - (x < y);
}

OWN void sort_numbers(word seed)
{
	word numbers[32];
	for (int i = 0; i < 32; i++)
		numbers[i] = seed = seed * 7919 % 1009;
	qsort(numbers, 32, sizeof *numbers, compare);
	sink = numbers[3];
}

OWN void print_numbers(word seed)
{
	char text[512];
	int n = snprintf(text, sizeof text, "%.17g %e %a %Lf %-20s|%08lx", 1.0 / (double)seed, 6.02e23, 0.1, 3.5L, "text", seed);
	sink = (word)n + strlen(text);
}

OWN void parse_numbers(void)
{
	double x = strtod("1.5e-300", 0) + strtod("123456789.123456789e17", 0);
	sink = (word)(x > 1);
}

OWN void allocate(word n)
{
	char *one = malloc(n % 5000 + 1), *other = malloc(n % 70 + 1);
	if (!one || !other)
		abort();
	memset(one, 1, n % 5000 + 1);
	sink = (word)one[0];
	free(one);
	free(other);
}

OWN word recurse(word n)
{
	volatile word pad[5] = {n};
	word found = n ? recurse(n - 1) : spin(n);
	AFTER_CALL();
	return found + pad[0];
}

OWN word variable_frame(word n)
{
	volatile char *room = alloca(n % 300 + 16);
	room[0] = 1;
	return spin(n) + (word)room[0];
}

OWN word aligned_frame(word n)
{
	volatile word lines[8] __attribute__((aligned(64)));
	lines[n & 7] = n;
	return spin(n) + lines[n & 7];
}

OWN word chosen(word n)
{
	volatile word x = n;
	switch (n & 7) {
	case 0: x += spin(n); break;
	case 1: x ^= spin(n + 1) * 3; break;
	case 2: x -= spin(n) >> 3; break;
	case 3: x = spin(x) | 1; break;
	case 4: x = spin(x + 2) + x; break;
	case 5: x *= spin(4); break;
	case 6: x = ~spin(x); break;
	default: x = spin(x) % 77;
	}
	return x;
}

OWN word many_arguments(word a, word b, word c, word d, word e, word f, word g, word h)
{
	word found = spin(a + b) + spin(c ^ d) + spin(e - f);
	if (found == g)
		abort();
	return found + spin(g | h);
}

OWN word work(word n)
{
	word found = recurse(n % 9) + variable_frame(n) + aligned_frame(n) + chosen(n) + chosen(n + 3);
	found += many_arguments(n, 1, 2, 3, 4, 5, found, n);
	sort_numbers(n);
	print_numbers(n | 1);
	parse_numbers();
	allocate(n);
	return found;
}

int main(void)
{
	puts("ready");
	fflush(stdout);
	for (word n = 0;; n++)
		sink = work(n);
}

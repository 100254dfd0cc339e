/* libc on the way: callbacks out of qsort and bsearch, printf and scanf of doubles, wide characters, setjmp,
   pthread_once, a thread that is joined, a child, exit handlers.

   ladder_libc once */

#include "ladder.h"

#include <pthread.h>
#include <search.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <wchar.h>

static jmp_buf place;
static pthread_once_t once = PTHREAD_ONCE_INIT;

RUNG int compare(const void *a, const void *b)
{
	word x = *(const word *)a, y = *(const word *)b;
	SPIN(x);
	return (x > *(const word *)a * 3) - (y > 1000) + (*(const word *)a > *(const word *)b);
}

RUNG int plain_compare(const void *a, const void *b)
{
	return (*(const word *)a > *(const word *)b) - (*(const word *)a < *(const word *)b);
}

RUNG word sorted(void)
{
	word numbers[24];
	for (int i = 0; i < 24; i++)
		numbers[i] = (word)(i * 7919 % 101);
	qsort(numbers, 24, sizeof *numbers, plain_compare);
	const word key = numbers[7];
	const word *found = bsearch(&key, numbers, 24, sizeof *numbers, plain_compare);
	qsort(numbers, 6, sizeof *numbers, compare);
	return *found;
}

RUNG word printed(void)
{
	char text[400];
	wchar_t wide[80];
	double x = 0;
	int n = snprintf(text, sizeof text, "%.17g %e %a %Lf %-20s|%08lx %p", 1.0 / 3, 6.02e23, 0.1, 3.5L, "text", 99UL,
			 (void *)text);
	n += sscanf(text, "%lf", &x);
	n += swprintf(wide, 80, L"%ls %f", L"wide", x);
	return (word)n + (word)strtod("1.5e-300", 0);
}

RUNG void jump(int depth) /* ends by longjmp */
{
	volatile word pad[5] = {0};
	pad[depth & 3] = 1;
	if (depth)
		jump(depth - 1);
	else
		longjmp(place, 3);
	pad[0]++;
}

RUNG void first_time(void)
{
	volatile word x = 3;
	SPIN(x);
}

RUNG void *thread(void *x)
{
	return x;
}

RUNG void at_exit(void)
{
	volatile word x = 4;
	SPIN(x);
}

RUNG void visit(const void *node, VISIT which, int depth)
{
	(void)node;
	volatile word x = (word)which + (word)depth;
	SPIN(x);
}

int main(void)
{
	volatile word x = 0;
	pthread_t id;
	void *tree = 0;
	static word keys[] = {4, 2, 6, 1, 3, 5, 7};
	atexit(at_exit);
	x += sorted() + printed();
	if (setjmp(place) == 0)
		jump(3);
	pthread_once(&once, first_time);
	if (pthread_create(&id, 0, thread, 0) == 0)
		pthread_join(id, 0);
	for (int i = 0; i < 7; i++)
		tsearch(&keys[i], &tree, plain_compare);
	twalk(tree, visit);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, 0, 0);
	char *copy = strdup("a string");
	x += strlen(copy) + (word)system("true");
	free(copy);
	return 0;
}

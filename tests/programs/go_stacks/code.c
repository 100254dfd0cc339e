#include "_cgo_export.h"

static double __attribute__((noinline)) c_leaf(int n)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += sum / (i + 1) + i;
	return sum;
}

double __attribute__((noinline)) c_outer(int n)
{
	return c_leaf(n) + 1;
}

double __attribute__((noinline)) c_calling(int n)
{
	return goCalled(n) + 1;
}

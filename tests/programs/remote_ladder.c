/* The ladder of remote_ladder.h in a process. Goes up and down ARGUMENT times (default: once). */

#include "remote_ladder.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
	long times = argc > 1 ? atol(argv[1]) : 1;
	volatile word x = 1;
	while (times--)
		x = r_01(x);
	return 0;
}

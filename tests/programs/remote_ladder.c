/* The ladder of remote_ladder.h in a process: remote_ladder [TIMES [ROUNDS]]. Goes up and down TIMES times. */

#include "remote_ladder.h"

#include <stdlib.h>

int main(int argc, char **argv)
{
	long times = argc > 1 ? atol(argv[1]) : 1;
	volatile word x = 1;
	if (argc > 2)
		rounds = (word)atol(argv[2]);
	while (times--)
		x = r_01(x);
	return 0;
}

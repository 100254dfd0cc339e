/* Children, new images and short threads.

   ladder_fork once             forks a child that goes up the ladder, waits for it
   ladder_fork fork SECONDS     children one after the other, each works some milliseconds on ladder f, then ends
   ladder_fork tree SECONDS     two children that work until the end, one of them a new image (exec of ourselves)
   ladder_fork exec SECONDS     the process replaces its own image again and again, working on ladder f in between
   ladder_fork storm SECONDS    threads that live some milliseconds, four at a time, each on ladder f */

#include "ladder.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

RUNG word f_top(word x)
{
	for (volatile word turn = rounds; turn; turn--)
		SPIN(x);
	return x;
}

LADDER(f)

RUNG word work(word x)
{
	for (volatile word turn = 1 + rounds / 100; turn; turn--)
		x = f_01(x);
	return x;
}

RUNG void child(void)
{
	volatile word x = work(1);
	(void)x;
	_exit(0);
}

RUNG void one_child(void)
{
	pid_t pid = fork();
	if (pid == 0)
		child();
	if (pid < 0 || waitpid(pid, 0, 0) != pid)
		_exit(6);
}

RUNG void *short_thread(void *unused)
{
	volatile word x = work(1);
	(void)x;
	return unused;
}

RUNG void storm(void)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], 0, short_thread, 0))
			_exit(3);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], 0);
}

/* exec throws timers away: END is a second of CLOCK_MONOTONIC. */
RUNG void next_image(char *name, long end)
{
	char text[24];
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec >= end)
		_exit(0);
	snprintf(text, sizeof text, "%ld", end);
	volatile word x = work(1);
	(void)x;
	execl("/proc/self/exe", name, "again", text, (char *)0);
	_exit(7);
}

RUNG void worker(const char *seconds)
{
	volatile word x = 1;
	end_after(seconds);
	for (;;)
		x = work(x);
}

RUNG void tree(char *name, const char *seconds)
{
	for (int i = 0; i < 2; i++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (i == 0)
			worker(seconds);
		execl("/proc/self/exe", name, "busy", seconds, (char *)0);
		_exit(7);
	}
}

int main(int argc, char **argv)
{
	struct timespec now;
	if (argc == 2) {
		one_child();
		return 0;
	}
	if (argc != 3)
		return 2;
	const char *mode = argv[1];
	rounds = 1000;
	if (!strcmp(mode, "again"))
		next_image(argv[0], atol(argv[2]));
	if (!strcmp(mode, "busy"))
		worker(argv[2]);
	end_after(argv[2]);
	if (!strcmp(mode, "tree"))
		tree(argv[0], argv[2]);
	say_ready();
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!strcmp(mode, "exec"))
		next_image(argv[0], now.tv_sec + atoi(argv[2]));
	for (;;) {
		if (!strcmp(mode, "fork"))
			one_child();
		else if (!strcmp(mode, "storm"))
			storm();
		else
			sleep(1);
	}
}

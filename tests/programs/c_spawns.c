/* New programs without end: "spawn" makes children by vfork and by fork, from two threads; "exec" replaces itself beside
 * a second thread. Ends when standard input ends; prints how many children ended otherwise than they should.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stop;
static volatile long wrong, made;

static void work(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum += i;
}
static void *spin(void *unused) {
    (void)unused;
    for (;;) work(1000);
    return NULL;
}
static void expect(pid_t child, int right) {
    int status;
    made++;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != right) wrong++;
}
static void *by_vfork(void *unused) {
    (void)unused;
    while (!stop) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/proc/self/exe", "c_spawns", "child", NULL);
            _exit(1);
        }
        expect(child, 7);
    }
    return NULL;
}
static void *by_fork(void *unused) {
    (void)unused;
    while (!stop) {
        pid_t child = fork();
        if (child == 0) {
            work(20000);
            _exit(5);
        }
        expect(child, 5);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[2];
    struct pollfd input = {0, POLLIN, 0};
    char byte;
    if (strcmp(words[1], "child") == 0) {
        work(20000);
        return 7;
    }
    if (count < 3) {
        printf("ready\n");
        fflush(stdout);
    }
    if (strcmp(words[1], "exec") == 0) {
        pthread_create(&threads[0], NULL, spin, NULL);
        work(200000);
        if (poll(&input, 1, 0) == 0) execl("/proc/self/exe", words[0], "exec", "again", NULL);
        printf("%d\n", poll(&input, 1, 0) == 0); /* an exec that returns is wrong */
        return 0;
    }
    pthread_create(&threads[0], NULL, by_vfork, NULL);
    pthread_create(&threads[1], NULL, by_fork, NULL);
    while (read(0, &byte, 1) > 0) {
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("%ld\n", wrong + (made == 0));
    return 0;
}

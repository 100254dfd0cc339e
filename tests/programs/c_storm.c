/* Usage: c_storm threads N | exec N | fork N. Prints "ready", works, prints "done RESULT". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long work(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum += i & 7;
    return sum;
}
static void *thread(void *unused) {
    (void)unused;
    return (void *)work(20000);
}
static void *spin(void *unused) {
    (void)unused;
    for (;;) work(1000);
    return NULL;
}

int main(int count, char **words) {
    long n = atol(words[2]), sum = 0;
    alarm(120);
    if (count < 4) {
        printf("ready\n");
        fflush(stdout);
        char byte;
        if (read(0, &byte, 1) < 0) return 1;
    }
    if (strcmp(words[1], "threads") == 0) {
        for (long i = 0; i < n; i++) {
            pthread_t threads[4];
            void *result;
            for (int k = 0; k < 4; k++)
                if (pthread_create(&threads[k], NULL, thread, NULL)) return 1;
            for (int k = 0; k < 4; k++) {
                pthread_join(threads[k], &result);
                sum += (long)result;
            }
        }
    } else if (strcmp(words[1], "fork") == 0) {
        for (long i = 0; i < n; i++) {
            int status;
            pid_t child = fork();
            if (child == 0) _exit(work(10000000) & 127);
            if (waitpid(child, &status, 0) != child) return 1;
            sum += WEXITSTATUS(status);
        }
    } else {
        char left[32];
        pthread_t other;
        work(300000);
        if (n > 0) { /* exec with a second thread running */
            pthread_create(&other, NULL, spin, NULL);
            work(100000);
            snprintf(left, sizeof left, "%ld", n - 1);
            execl("/proc/self/exe", words[0], "exec", left, "again", NULL);
            return 1;
        }
        sum = 1;
    }
    printf("done %ld\n", sum);
    return 0;
}

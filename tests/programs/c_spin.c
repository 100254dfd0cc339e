/* N threads that spin until standard input ends; then "done". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile int stop;

static void *spin(void *unused) {
    (void)unused;
    while (!stop) {
    }
    return NULL;
}

int main(int count, char **words) {
    int n = count > 1 ? atoi(words[1]) : 1;
    pthread_t threads[64];
    char byte;
    alarm(120);
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, spin, NULL);
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    stop = 1;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    printf("done\n");
    return 0;
}

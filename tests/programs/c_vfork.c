/* Waits in vfork (uninterruptible) until standard input ends, which its child waits for; then "done". */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int status;
    alarm(120);
    printf("ready\n");
    fflush(stdout);
    if (vfork() == 0) {
        char byte;
        while (read(0, &byte, 1) > 0) {
        }
        _exit(0);
    }
    wait(&status);
    printf("done\n");
    return 0;
}

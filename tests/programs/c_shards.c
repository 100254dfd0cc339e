/* Runs `enter` of the library that it is given, until its standard input ends or for two minutes. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    void (*enter)(void) = library ? (void (*)(void))dlsym(library, "enter") : NULL;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (!enter) return 2;
    puts("ready");
    fflush(stdout);
    alarm(120);
    while (!poll(&input, 1, 0)) enter();
    return 0;
}

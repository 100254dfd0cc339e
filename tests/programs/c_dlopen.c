/* Loads and unloads two libraries in turn, spinning in each. Usage: c_dlopen A.so B.so. Prints "ready ADDRESS ADDRESS"
 * of nothing; ends when standard input ends.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    char byte;
    long turns = 0;
    alarm(120);
    fcntl(0, F_SETFL, O_NONBLOCK);
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) != 0) {
        void *library = dlopen(words[1 + turns++ % (count - 1)], RTLD_NOW);
        if (!library) return 1;
        void (*spin)(void) = (void (*)(void))dlsym(library, "spin");
        spin();
        dlclose(library);
    }
    printf("done\n");
    return 0;
}

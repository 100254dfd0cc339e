/* c_moves FILE: gives its own program other names, and puts links to others' files and devices in its place.
 * c_moves FILE LIE: it and another program change places, again and again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef SPIN
#define SPIN spin
#endif

static volatile unsigned long turns;

__attribute__((noinline)) static void SPIN(void)
{
    for (int each = 0; each < 200000; each++)
        turns++;
}

int main(int count, char **arguments)
{
    char other[4096];
    const char *own = arguments[1];
    if (count < 2)
        return 2;
    alarm(60);
    snprintf(other, sizeof other, "%s.other", own);
    puts("ready");
    fflush(stdout);
    while (count > 2) {
        SPIN();
        if (renameat2(AT_FDCWD, own, AT_FDCWD, arguments[2], RENAME_EXCHANGE))
            return 1;
    }
    for (unsigned turn = 0;; turn++) {
        int failed = 0;
        SPIN();
        switch (turn % 5) {
        case 0: failed = rename(own, other); break;
        case 1: failed = symlink("/etc/shadow", own); break;
        case 2: failed = unlink(own) | symlink("/dev/zero", own); break;
        case 3: failed = unlink(own); break;
        case 4: failed = rename(other, own); break;
        }
        if (failed)
            return 1;
    }
}

/* c_moves FILE: gives its own program other names, and puts links to others' files and devices in its place. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile unsigned long turns;

__attribute__((noinline)) static void spin(void)
{
    for (int each = 0; each < 200000; each++)
        turns++;
}

int main(int count, char **arguments)
{
    char other[4096];
    const char *own = arguments[1];
    if (count != 2)
        return 2;
    alarm(60);
    snprintf(other, sizeof other, "%s.other", own);
    puts("ready");
    fflush(stdout);
    for (unsigned turn = 0;; turn++) {
        int failed = 0;
        spin();
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

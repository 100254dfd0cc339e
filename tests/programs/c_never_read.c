/* A thread whose stack goes on in memory that nobody who reads it from outside ever gets: userfaultfd, never answered. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, ROOM = 64 * PAGE };

static volatile unsigned long turns;

static void *spin(void *nothing)
{
    (void)nothing;
    puts("ready");
    fflush(stdout);
    for (;;)
        turns++;
}

int main(void)
{
    char *stack = mmap(0, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register area = {
        .range = {.start = (unsigned long)stack + ROOM, .len = ROOM}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &area))
        return 1;
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, ROOM);
    pthread_create(&thread, &attr, spin, 0);
    pthread_join(thread, 0);
}

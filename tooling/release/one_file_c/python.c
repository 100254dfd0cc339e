/* SPDX-License-Identifier: MIT */
/* The interpreter of the one-file executable: Debian's CPython with the extension modules that pyprof needs, for glibc
 * 2.28.
 *
 * Debian compiles its static libraries for a later glibc. This file has the functions that glibc 2.28 lacks.
 */
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* The headers of glibc 2.38 rename these functions, because they accept binary numbers from then on. */
#define NUMBER(type, name, character) \
    type __isoc23_##name(const character *text, character **end, int base) { return name(text, end, base); }
NUMBER(long, strtol, char)
NUMBER(unsigned long, strtoul, char)
NUMBER(long, wcstol, wchar_t)

int __isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int found = vsscanf(text, format, arguments);
    va_end(arguments);
    return found;
}

void arc4random_buf(void *to, size_t size) /* for expat, which asks for a few bytes */
{
    if (getrandom(to, size, 0) != (ssize_t)size)
        abort();
}

int close_range(unsigned first, unsigned last, int flags)
{
    return syscall(SYS_close_range, first, last, flags);
}

void closefrom(int first)
{
    if (close_range(first, ~0U, 0))
        for (int fd = sysconf(_SC_OPEN_MAX); fd-- > first;)
            close(fd);
}

/* one_file.py tells subprocess that it is missing */
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int first)
{
    (void)actions, (void)first;
    return ENOSYS;
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    struct timespec now, deadline;
    clock_gettime(clock, &now);
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += until->tv_sec - now.tv_sec;
    deadline.tv_nsec += until->tv_nsec - now.tv_nsec;
    if (deadline.tv_nsec < 0)
        deadline.tv_sec--, deadline.tv_nsec += 1000000000;
    else if (deadline.tv_nsec >= 1000000000)
        deadline.tv_sec++, deadline.tv_nsec -= 1000000000;
    return sem_timedwait(semaphore, &deadline);
}

#define MODULES(X) \
    X(_asyncio) X(_contextvars) X(_ctypes) X(_hashlib) X(_lzma) X(_multiprocessing) X(_queue) X(_sqlite3) X(_ssl) \
    X(mmap) X(resource) X(termios)
#define DECLARE(name) PyObject *PyInit_##name(void);
#define ADD(name) PyImport_AppendInittab(#name, PyInit_##name);
MODULES(DECLARE)

int main(int argc, char **argv)
{
    MODULES(ADD)
    return Py_BytesMain(argc, argv);
}

/* SPDX-License-Identifier: MIT */
/* The start of the one-file executable. It unpacks its payload into a folder of its user, once, and executes the
 * interpreter there.
 *
 * The folder's name is the hash of its content. It gets that name when it is complete. Only its user can write to it:
 * root's folder is in /var/cache, and a folder that another user owns or may write to is not used.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define BLOCK 512 /* of tar(5) */

__asm__(".section .rodata\npayload: .incbin \"payload.tar.zst\"\npayload_end:\n.previous");
extern const char payload[], payload_end[];

static ZSTD_DStream *stream;
static ZSTD_inBuffer input;
static char failures[3 * PATH_MAX];

static int read_payload(void *to, size_t size)
{
    ZSTD_outBuffer output = {to, size, 0};
    while (output.pos < size) {
        size_t before = output.pos, left = ZSTD_decompressStream(stream, &output, &input);
        if (ZSTD_isError(left) || (output.pos == before && input.pos == input.size)) {
            errno = EBADMSG;
            return -1;
        }
    }
    return 0;
}

static int unpack_file(int folder, const char *name, int mode, size_t size)
{
    static char buffer[1 << 16];
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    if (file < 0)
        return -1;
    for (size_t left = size, padding = -size % BLOCK; left + padding;) {
        size_t part = left ? left : padding;
        part = part < sizeof buffer ? part : sizeof buffer;
        if (read_payload(buffer, part) || (left && write(file, buffer, part) != (ssize_t)part)) {
            close(file);
            return -1;
        }
        *(left ? &left : &padding) -= part;
    }
    return close(file);
}

/* Unpack the payload, a tar archive of files and folders in the form ustar. */
static int unpack(int folder)
{
    char header[BLOCK], name[BLOCK];
    stream = ZSTD_createDStream();
    input = (ZSTD_inBuffer){payload, payload_end - payload, 0};
    while (!read_payload(header, sizeof header)) {
        if (!header[0]) {
            ZSTD_freeDStream(stream);
            return syncfs(folder);
        }
        snprintf(name, sizeof name, "%.155s%s%.100s", header + 345, header[345] ? "/" : "", header);
        int mode = strtoul(header + 100, NULL, 8);
        if (header[156] == '5' ? mkdirat(folder, name, mode) && errno != EEXIST
                               : unpack_file(folder, name, mode, strtoul(header + 124, NULL, 8)))
            return -1;
    }
    return -1;
}

/* Return a descriptor of a folder that only this user can write to, or -1. */
static int open_private(const char *path)
{
    struct stat found;
    if (mkdir(path, 0700) && errno != EEXIST)
        return -1;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0 && !fstat(folder, &found) && found.st_uid == geteuid() && !(found.st_mode & 022))
        return folder;
    if (folder >= 0) {
        close(folder);
        errno = EPERM;
    }
    return -1;
}

/* Unpack the payload into the folder HASH of a cache, if it is not there yet. */
static int fill(int cache)
{
    int folder, failed = 1;
    if (!faccessat(cache, HASH, X_OK, 0))
        return 0;
    if (flock(cache, LOCK_EX))
        return -1;
    if (!faccessat(cache, HASH, X_OK, 0))
        failed = 0; /* another process has unpacked it meanwhile */
    else if ((!mkdirat(cache, HASH ".part", 0700) || errno == EEXIST) &&
             (folder = openat(cache, HASH ".part", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) >= 0)
        failed = unpack(folder) || close(folder) || renameat(cache, HASH ".part", cache, HASH);
    int error = errno;
    flock(cache, LOCK_UN);
    errno = error;
    return -failed;
}

static void start(const char *path, char **argv, int argc)
{
    static char program[PATH_MAX + 64], script[PATH_MAX + 64], this[PATH_MAX + 16] = "one_file=";
    char *command[argc + 7];
    int cache = open_private(path), size = 0;
    if (cache >= 0 && !fill(cache)) {
        snprintf(program, sizeof program, "%s/" HASH "/pyprof", path);
        snprintf(script, sizeof script, "%s/" HASH "/main.py", path);
        readlink("/proc/self/exe", this + strlen(this), PATH_MAX);
        char *first[] = {program, "-I", "-S", "-X", this, script};
        for (; size < 6; size++)
            command[size] = first[size];
        memcpy(command + size, argv + 1, argc * sizeof *argv); /* with the NULL at its end */
        execv(program, command);
    }
    size = strlen(failures);
    snprintf(failures + size, sizeof failures - size, "pyprof: cannot start in %s: %s\n", path, strerror(errno));
    if (cache >= 0)
        close(cache);
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    const char *caches = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!geteuid()) /* another user may be able to replace folders in HOME */
        start("/var/cache/pyprof", argv, argc);
    else if ((caches && *caches == '/') || (home && *home == '/')) {
        int own = caches && *caches == '/';
        snprintf(path, sizeof path, "%s%s", own ? caches : home, own ? "" : "/.cache");
        mkdir(path, 0700);
        strncat(path, "/pyprof", sizeof path - strlen(path) - 1);
        start(path, argv, argc);
    }
    snprintf(path, sizeof path, "/tmp/pyprof-%u", geteuid()); /* sticky: others cannot rename it */
    start(path, argv, argc);
    fputs(failures, stderr);
    return 1;
}

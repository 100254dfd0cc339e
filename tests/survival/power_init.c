/* The first process of the guest: loads the kernel's modules, mounts the host's files read-only and the disk, and runs a
 * shell's command there. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *what, const char *where, const char *type, unsigned long flags, const char *options)
{
    if (mount(what, where, type, flags, options))
        printf("mount %s: %m\n", where);
}

int main(void)
{
    char name[32];
    setvbuf(stdout, 0, _IONBF, 0);
    for (int at = 0;; at++) {
        snprintf(name, sizeof name, "/%03d.ko", at);
        int fd = open(name, O_RDONLY);
        if (fd < 0)
            break;
        if (syscall(SYS_finit_module, fd, "", 0))
            printf("%s: %m\n", name);
        close(fd);
    }
    mkdir("/host", 0755);
    put("host", "/host", "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose");
    put("dev", "/host/dev", "devtmpfs", 0, 0);
    put("proc", "/host/proc", "proc", 0, 0);
    put("sys", "/host/sys", "sysfs", 0, 0);
    put("tmp", "/host/tmp", "tmpfs", 0, 0);
    put("/host/dev/vda", "/host/mnt", "ext4", 0, 0);
    if (chroot("/host") || chdir("/mnt"))
        printf("chroot: %m\n");
    char *words[] = {"/bin/sh", "/mnt/run", 0};
    char *names[] = {"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp", "LC_ALL=C.UTF-8", 0};
    execve(words[0], words, names);
    printf("exec: %m\n");
    return 1;
}

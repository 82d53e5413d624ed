/* Makes calls on the files of one directory fail at random; LD_PRELOAD of a process names it.
 *
 * FAILING_DISK_DIRECTORY is the directory, FAILING_DISK_ORDERS a file with a `struct orders` that a test
 * changes while the process runs. A failed write may have written some of its bytes. The names with 64 are
 * those that Python calls.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation { OPEN, CREATE, READ, WRITE, SYNC, RENAME, REMOVE, LIST, OPERATIONS };

struct orders {
    uint32_t error;               /* an errno */
    uint32_t rates[OPERATIONS];   /* failures in 10,000 calls */
    uint32_t failed[OPERATIONS];  /* calls that have failed */
};

static struct orders *orders;
static const char *directory;
static uint64_t draws;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAILING_DISK_ORDERS");
    directory = getenv("FAILING_DISK_DIRECTORY");
    int fd = path && directory ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        abort();
    void *found = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        abort();
    draws = (uint64_t)getpid();
    orders = found;
}

static uint32_t draw(void)
{
    uint64_t mixed = __atomic_add_fetch(&draws, 1, __ATOMIC_RELAXED) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)((mixed ^ (mixed >> 27)) >> 16);
}

static int fails(enum operation operation, const char *path)
{
    if (!orders || draw() % 10000 >= orders->rates[operation])
        return 0;
    if (strncmp(path, directory, strlen(directory)) != 0)
        return 0;
    __atomic_add_fetch(&orders->failed[operation], 1, __ATOMIC_RELAXED);
    errno = (int)orders->error;
    return 1;
}

static int fails_open(enum operation operation, int fd)
{
    char link[32], path[PATH_MAX];
    if (!orders || orders->rates[operation] == 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return fails(operation, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENING(name, parameters, arguments)                                   \
    int name parameters                                                        \
    {                                                                          \
        va_list rest;                                                          \
        va_start(rest, flags);                                                 \
        int mode = flags & O_CREAT ? va_arg(rest, int) : 0;                    \
        va_end(rest);                                                          \
        return fails(flags & O_CREAT ? CREATE : OPEN, path) ? -1 : NEXT(name) arguments; \
    }
OPENING(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

#define BY_FD(type, operation, name, parameters, arguments)                    \
    type name parameters                                                       \
    {                                                                          \
        return fails_open(operation, fd) ? -1 : NEXT(name) arguments;          \
    }
BY_FD(ssize_t, READ, read, (int fd, void *to, size_t size), (fd, to, size))
BY_FD(ssize_t, READ, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
BY_FD(ssize_t, READ, preadv64v2, (int fd, const struct iovec *to, int count, off64_t at, int flags),
      (fd, to, count, at, flags))
BY_FD(ssize_t, READ, sendfile64, (int to, int fd, off64_t *at, size_t size), (to, fd, at, size))
BY_FD(int, SYNC, fsync, (int fd), (fd))
BY_FD(int, SYNC, fdatasync, (int fd), (fd))
BY_FD(int, WRITE, ftruncate64, (int fd, off64_t size), (fd, size))

ssize_t write(int fd, const void *from, size_t size)
{
    if (!fails_open(WRITE, fd))
        return NEXT(write)(fd, from, size);
    return size > 1 && draw() % 2 ? NEXT(write)(fd, from, size / 2) : -1;
}

ssize_t writev(int fd, const struct iovec *from, int count)
{
    if (!fails_open(WRITE, fd))
        return NEXT(writev)(fd, from, count);
    size_t size = from[0].iov_len;
    return size > 1 && draw() % 2 ? NEXT(write)(fd, from[0].iov_base, size / 2) : -1;
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    return fails_open(WRITE, fd) ? errno : NEXT(posix_fallocate64)(fd, at, size);
}

#define BY_PATH(type, failed, operation, name, parameters, arguments)          \
    type name parameters                                                       \
    {                                                                          \
        return fails(operation, path) ? failed : NEXT(name) arguments;         \
    }
BY_PATH(int, -1, CREATE, mkdir, (const char *path, mode_t mode), (path, mode))
BY_PATH(int, -1, RENAME, rename, (const char *path, const char *to), (path, to))
BY_PATH(int, -1, REMOVE, unlink, (const char *path), (path))
BY_PATH(int, -1, REMOVE, rmdir, (const char *path), (path))
BY_PATH(DIR *, NULL, LIST, opendir, (const char *path), (path))

DIR *fdopendir(int fd)
{
    return fails_open(LIST, fd) ? NULL : NEXT(fdopendir)(fd);
}

int unlinkat(int at, const char *path, int flags)
{
    return fails_open(REMOVE, at) ? -1 : NEXT(unlinkat)(at, path, flags);
}

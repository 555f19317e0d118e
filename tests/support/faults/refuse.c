/* Calls of the system that fail for one process and its children, by LD_PRELOAD. Compiled by tests.
 *
 * REFUSED_CALLS is a list of NAME=ERRNO, separated by commas. Where it names a file of the tests with
 * a leading `@`, the list is in that file, which is read at each call and may change.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define OFD_SETLK 37

/* The errno with which a call is refused; 0 for one that is not. */
static int refused(const char *name)
{
    char list[1024];
    const char *given = getenv("REFUSED_CALLS");
    if (given == NULL)
        return 0;
    snprintf(list, sizeof list, "%s", given);
    if (given[0] == '@') {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, given + 1, O_RDONLY | O_CLOEXEC, 0);
        ssize_t got = fd < 0 ? 0 : read(fd, list, sizeof list - 1);
        list[got < 0 ? 0 : got] = 0;
        if (fd >= 0)
            close(fd);
    }
    char *rest = NULL;
    for (char *one = strtok_r(list, ",\n", &rest); one; one = strtok_r(NULL, ",\n", &rest)) {
        size_t length = strlen(name);
        if (!strncmp(one, name, length) && one[length] == '=')
            return atoi(one + length + 1);
    }
    return 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(name, failed)                                                                        \
    do {                                                                                            \
        int error = refused(name);                                                                  \
        if (error) {                                                                                \
            errno = error;                                                                          \
            return failed;                                                                          \
        }                                                                                           \
    } while (0)

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    if (next == NULL)
        next = NEXT(syscall);
    long a[6];
    va_list given;
    va_start(given, number);
    for (int n = 0; n < 6; n++)
        a[n] = va_arg(given, long);
    va_end(given);
    const char *name = number == SYS_pidfd_open           ? "pidfd_open"
                       : number == SYS_pidfd_send_signal ? "pidfd_send_signal"
                       : number == SYS_sched_setattr     ? "sched_setattr"
                                                         : NULL;
    if (name != NULL)
        REFUSE(name, -1);
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int eventfd(unsigned int count, int flags)
{
    REFUSE("eventfd", -1);
    return ((int (*)(unsigned int, int))dlsym(RTLD_NEXT, "eventfd"))(count, flags);
}

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    REFUSE("fallocate", -1);
    return NEXT(fallocate)(fd, mode, offset, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    int error = refused("fallocate");
    return error ? error : NEXT(posix_fallocate64)(fd, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }

int fcntl64(int fd, int command, ...)
{
    va_list given;
    va_start(given, command);
    void *argument = va_arg(given, void *);
    va_end(given);
    if (command == OFD_SETLK)
        REFUSE("F_OFD_SETLK", -1);
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64"))(fd, command, argument);
}

int fcntl(int fd, int command, ...)
{
    va_list given;
    va_start(given, command);
    void *argument = va_arg(given, void *);
    va_end(given);
    return fcntl64(fd, command, argument);
}

int prctl(int option, ...)
{
    REFUSE("prctl", -1);
    long a[4];
    va_list given;
    va_start(given, option);
    for (int n = 0; n < 4; n++)
        a[n] = va_arg(given, long);
    va_end(given);
    return ((int (*)(int, ...))dlsym(RTLD_NEXT, "prctl"))(option, a[0], a[1], a[2], a[3]);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    REFUSE("sched_getaffinity", -1);
    return ((int (*)(pid_t, size_t, cpu_set_t *))dlsym(RTLD_NEXT, "sched_getaffinity"))(pid, size, set);
}

int sched_yield(void)
{
    REFUSE("sched_yield", -1);
    return ((int (*)(void))dlsym(RTLD_NEXT, "sched_yield"))();
}

int setsockopt(int fd, int level, int option, const void *value, unsigned int size)
{
    if (option == 26)
        REFUSE("SO_ATTACH_FILTER", -1);
    return ((int (*)(int, int, int, const void *, unsigned int))dlsym(RTLD_NEXT, "setsockopt"))(
        fd, level, option, value, size);
}

int posix_fadvise64(int fd, off64_t start, off64_t size, int advice)
{
    int error = refused("posix_fadvise");
    return error ? error : NEXT(posix_fadvise64)(fd, start, size, advice);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t size, unsigned flags)
{
    REFUSE("copy_file_range", -1);
    return NEXT(copy_file_range)(from, at, to, there, size, flags);
}

int nice(int step)
{
    REFUSE("nice", -1);
    return NEXT(nice)(step);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *with, void *(*run)(void *), void *of)
{
    int error = refused("pthread_create");
    return error ? error : NEXT(pthread_create)(thread, with, run, of);
}

/* Of /proc: `/proc/PID/NAME` is not there where `/proc/NAME` is refused. */
static int refused_file(const char *path)
{
    char name[300];
    const char *last = path == NULL || strncmp(path, "/proc/", 6) ? NULL : strrchr(path, '/');
    if (last == NULL)
        return 0;
    snprintf(name, sizeof name, "/proc%s", last);
    return refused(name);
}

#define OPEN(name)                                                                                  \
    int name(const char *path, int flags, ...)                                                      \
    {                                                                                               \
        va_list given;                                                                              \
        va_start(given, flags);                                                                     \
        int mode = va_arg(given, int);                                                              \
        va_end(given);                                                                              \
        int error = refused_file(path);                                                             \
        if (error) {                                                                                \
            errno = error;                                                                          \
            return -1;                                                                              \
        }                                                                                           \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode);       \
    }
OPEN(open)
OPEN(open64)

#define STAT(name, kind)                                                                            \
    int name(const char *path, struct kind *found)                                                  \
    {                                                                                               \
        int error = refused_file(path);                                                             \
        if (error) {                                                                                \
            errno = error;                                                                          \
            return -1;                                                                              \
        }                                                                                           \
        return ((int (*)(const char *, struct kind *))dlsym(RTLD_NEXT, #name))(path, found);        \
    }
STAT(stat, stat)
STAT(stat64, stat64)

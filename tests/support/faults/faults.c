/* Disk faults for one process and its children, by LD_PRELOAD. Compiled by the tests.
 *
 * FAULTS_DIR names a folder with a file `rules`, read again at each call, a rule a line:
 *
 *     NUMBER COMM CALL PATH ACTION ARGUMENT TIMES
 *
 * COMM is the beginning of the process's name, CALL one of the calls below (`sync` for both kinds),
 * PATH a part of the file's path; `*` is any. ACTION is `fail` (ARGUMENT an errno), `delay` (ms, or
 * until the rule is gone) or `lie` (answers success and does nothing). TIMES -1 is for ever. Each
 * time that a rule applies leaves a file `fired-NUMBER-N`, made exclusively, so that TIMES counts
 * over all processes. With a file `trace` in the folder each call on a file of a store is added to
 * it: PID COMM CALL RESULT PATH.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define FIRED_MAX 1000
#define SLICE_MS 10

static const char *folder(void) { return getenv("FAULTS_DIR"); }

static ssize_t slurp(const char *path, char *buffer, size_t size)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    ssize_t got = syscall(SYS_read, fd, buffer, size - 1);
    syscall(SYS_close, fd);
    buffer[got < 0 ? 0 : got] = 0;
    return got;
}

static void name_of_process(char *name, size_t size)
{
    if (slurp("/proc/self/comm", name, size) <= 0)
        snprintf(name, size, "?");
    name[strcspn(name, "\n")] = 0;
}

static void path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, size - 1);
    path[got < 0 ? 0 : got] = 0;
}

/* One more time for the rule: true when there was one left. */
static int take(int number, int times)
{
    char path[4096];
    for (int n = 0; n < (times < 0 ? FIRED_MAX : times); n++) {
        snprintf(path, sizeof path, "%s/fired-%d-%d", folder(), number, n);
        int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0) {
            syscall(SYS_close, fd);
            return 1;
        }
        if (errno != EEXIST)
            break;
    }
    return times < 0;
}

static int matches_call(const char *wanted, const char *call)
{
    if (!strcmp(wanted, "*") || !strcmp(wanted, call))
        return 1;
    return !strcmp(wanted, "sync") && (!strcmp(call, "fsync") || !strcmp(call, "fdatasync"));
}

/* Whether a rule is still in the file of rules. */
static int holds(const char *file, int wanted)
{
    char rules[8192];
    if (slurp(file, rules, sizeof rules) <= 0)
        return 0;
    char *rest = NULL;
    for (char *line = strtok_r(rules, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int number;
        if (sscanf(line, "%d", &number) == 1 && number == wanted)
            return 1;
    }
    return 0;
}

/* What to do instead of a call: an errno, 0 to go on, -1 to lie. Sleeps for a `delay`. */
static int fault(const char *call, int fd, char *path, size_t size)
{
    char file[4096], rules[8192], comm[64];
    path[0] = 0;
    if (folder() == NULL)
        return 0;
    path_of(fd, path, size);
    snprintf(file, sizeof file, "%s/rules", folder());
    if (slurp(file, rules, sizeof rules) <= 0)
        return 0;
    name_of_process(comm, sizeof comm);
    char *rest = NULL;
    for (char *line = strtok_r(rules, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char who[64], what[64], where[1024], action[16];
        int number, argument, times;
        if (sscanf(line, "%d %63s %63s %1023s %15s %d %d", &number, who, what, where, action,
                   &argument, &times) != 7)
            continue;
        if (strcmp(who, "*") && strncmp(comm, who, strlen(who)))
            continue;
        if (!matches_call(what, call) || (strcmp(where, "*") && !strstr(path, where)))
            continue;
        if (!take(number, times))
            continue;
        if (!strcmp(action, "lie"))
            return -1;
        if (!strcmp(action, "fail"))
            return argument;
        for (int slept = 0; slept < argument && holds(file, number); slept += SLICE_MS) {
            struct timespec left = {0, SLICE_MS * 1000000L};
            while (nanosleep(&left, &left) && errno == EINTR)
                ;
        }
    }
    return 0;
}

static void trace(const char *call, const char *path, long result)
{
    char file[4096], line[8192], comm[64];
    if (folder() == NULL || path[0] != '/')
        return;
    snprintf(file, sizeof file, "%s/trace", folder());
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    name_of_process(comm, sizeof comm);
    int size = snprintf(line, sizeof line, "%d %s %s %ld %s\n", (int)getpid(), comm, call, result, path);
    syscall(SYS_write, fd, line, size);
    syscall(SYS_close, fd);
}

/* The call itself, or what a rule says instead; `good` is what a lie answers. */
#define ASK(call, fd, good, real)                                   \
    char path[4096];                                                \
    int instead = fault(call, fd, path, sizeof path);               \
    long result = instead ? (instead < 0 ? (good) : -1) : (real);   \
    int kept = instead > 0 ? instead : errno;                       \
    trace(call, path, result);                                      \
    errno = kept;                                                   \
    return result

#define NEXT(type, name) static type (*next)(); if (!next) next = (type (*)())dlsym(RTLD_NEXT, name)

int fdatasync(int fd) { NEXT(int, "fdatasync"); ASK("fdatasync", fd, 0, next(fd)); }
int fsync(int fd) { NEXT(int, "fsync"); ASK("fsync", fd, 0, next(fd)); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    NEXT(ssize_t, "pwrite");
    ASK("pwrite", fd, (long)size, next(fd, data, size, at));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    NEXT(ssize_t, "pwrite64");
    ASK("pwrite", fd, (long)size, next(fd, data, size, at));
}

int ftruncate(int fd, off_t size) { NEXT(int, "ftruncate"); ASK("ftruncate", fd, 0, next(fd, size)); }
int ftruncate64(int fd, off64_t size) { NEXT(int, "ftruncate64"); ASK("ftruncate", fd, 0, next(fd, size)); }

/* These two answer the errno itself. */
static int allocate(int fd, int (*next)(int, off64_t, off64_t), off64_t at, off64_t size)
{
    char path[4096];
    int instead = fault("fallocate", fd, path, sizeof path);
    int result = instead ? (instead < 0 ? 0 : instead) : next(fd, at, size);
    trace("fallocate", path, result);
    return result;
}

int posix_fallocate(int fd, off_t at, off_t size)
{
    return allocate(fd, (int (*)(int, off64_t, off64_t))dlsym(RTLD_NEXT, "posix_fallocate"), at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    return allocate(fd, (int (*)(int, off64_t, off64_t))dlsym(RTLD_NEXT, "posix_fallocate64"), at, size);
}

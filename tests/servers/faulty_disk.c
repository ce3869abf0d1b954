/* A disk that fails on demand, for one process: preloaded, it stands between SQLite and the kernel.
 *
 * Up to two rules say which calls fail: writes or syncs, of the database, its write-ahead log or both, from the n-th
 * on, how many times, with which errno. A failed write writes nothing, a failed sync syncs nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2 };

struct rule {
    int call;            /* WRITE, SYNC, or both */
    char suffix[16];     /* how the file's name ends */
    int error;           /* errno */
    atomic_long left;    /* calls until it begins */
    atomic_long times;   /* how often it still fails; below zero: for ever */
};

static struct rule rules[2];
static atomic_long failed;
static atomic_uint chance, state = 1;

void disk_fails(int rule, int call, const char *suffix, int error, long nth, long times)
{
    struct rule *r = &rules[rule];
    atomic_store(&r->times, 0);
    r->call = call;
    r->error = error;
    strncpy(r->suffix, suffix, sizeof r->suffix - 1);
    atomic_store(&r->left, nth);
    atomic_store(&r->times, times);
}

/* Any call fails with so many in a thousand, with EIO or ENOSPC. */
void disk_fails_by_chance(unsigned seed, unsigned per_mille)
{
    atomic_store(&state, seed * 2 + 1);
    atomic_store(&chance, per_mille);
}

long disk_failed(void) { return atomic_load(&failed); }
long disk_calls_left(int rule) { return atomic_load(&rules[rule].left); }

static int ends(const char *name, const char *suffix)
{
    size_t a = strlen(name), b = strlen(suffix);
    return a >= b && strcmp(name + a - b, suffix) == 0;
}

static int fails(int call, int fd)
{
    if (!atomic_load(&chance) && !atomic_load(&rules[0].times) && !atomic_load(&rules[1].times))
        return 0;
    char link[40], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0)
        return 0;
    name[length] = 0;
    if (!ends(name, "limpet.db") && !ends(name, "limpet.db-wal"))
        return 0;
    if (atomic_load(&chance)) {
        unsigned drawn = atomic_load(&state) * 1664525u + 1013904223u;
        atomic_store(&state, drawn);
        if ((drawn >> 8) % 1000 < atomic_load(&chance)) {
            atomic_fetch_add(&failed, 1);
            return call == WRITE && (drawn & (1u << 20)) ? ENOSPC : EIO;
        }
    }
    for (int i = 0; i < 2; i++) {
        struct rule *r = &rules[i];
        if (!atomic_load(&r->times) || !(r->call & call) || !ends(name, r->suffix))
            continue;
        if (atomic_fetch_sub(&r->left, 1) > 1)
            continue;
        if (atomic_load(&r->times) > 0)
            atomic_fetch_sub(&r->times, 1);
        atomic_fetch_add(&failed, 1);
        return r->error;
    }
    return 0;
}

#define FAIL_IF(call) do { int e = fails(call, fd); if (e) { errno = e; return -1; } } while (0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { FAIL_IF(WRITE); return REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { FAIL_IF(WRITE); return REAL(pwrite64)(fd, data, size, at); }
ssize_t write(int fd, const void *data, size_t size) { FAIL_IF(WRITE); return REAL(write)(fd, data, size); }
int fsync(int fd) { FAIL_IF(SYNC); return REAL(fsync)(fd); }
int fdatasync(int fd) { FAIL_IF(SYNC); return REAL(fdatasync)(fd); }

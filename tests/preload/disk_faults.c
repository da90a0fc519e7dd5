/*
 * A disk that misbehaves, for whole programs: put into LD_PRELOAD, it makes the file calls below
 * one directory fail, wait or find no room, as a control file says that the test has mapped. It
 * refuses io_uring, so that every read and write passes here.
 *
 *     MC_DISK_FAULTS=<control file>  MC_DISK_FAULTS_UNDER=<directory, as the kernel spells it>
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct control { /* of the test: tests/integration/faults/test_the_ssd_tier_outlives_its_disk.py */
    _Atomic uint32_t read_error_permille, write_error_permille, sync_error_permille;
    _Atomic uint32_t no_space, delay_us;
    /* counted here */
    _Atomic uint32_t calls, read_errors, write_errors, sync_errors, full, slow;
};

struct io_uring;

/* NULL until the control file is there. */
static struct control *control(void) {
    static _Atomic(struct control *) mapped;
    struct control *c = atomic_load_explicit(&mapped, memory_order_acquire);
    const char *path = getenv("MC_DISK_FAULTS");
    if (c == NULL && path != NULL) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *memory = fd >= 0 ? mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                               : MAP_FAILED;
        if (fd >= 0) {
            close(fd);
        }
        c = memory != MAP_FAILED ? memory : NULL;
        atomic_store_explicit(&mapped, c, memory_order_release);
    }
    return c;
}

static int is_ours(int fd) {
    char link[64], path[4096];
    const char *under = getenv("MC_DISK_FAULTS_UNDER");
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof(path) - 1);
    return under != NULL && len > 0 && strncmp(path, under, strlen(under)) == 0;
}

enum kind { READ, WRITE, SYNC };

/* True when this call is to fail; errno says how. */
static int fails(int fd, enum kind kind) {
    static _Atomic uint32_t dice = 12345;
    int saved = errno;
    struct control *c = control();
    if (c == NULL || !is_ours(fd)) {
        errno = saved;
        return 0;
    }
    const _Atomic uint32_t *permille[] = {&c->read_error_permille, &c->write_error_permille,
                                          &c->sync_error_permille};
    _Atomic uint32_t *errors[] = {&c->read_errors, &c->write_errors, &c->sync_errors};
    atomic_fetch_add(&c->calls, 1);
    uint32_t delay = atomic_load(&c->delay_us);
    if (delay > 0) {
        atomic_fetch_add(&c->slow, 1);
        usleep(delay);
    }
    uint32_t thrown = (atomic_fetch_add(&dice, 1) * 2654435761u >> 8) % 1000;
    if (kind == WRITE && atomic_load(&c->no_space)) {
        atomic_fetch_add(&c->full, 1);
        errno = ENOSPC;
        return 1;
    }
    if (thrown < atomic_load(permille[kind])) {
        atomic_fetch_add(errors[kind], 1);
        errno = EIO;
        return 1;
    }
    errno = saved;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define READS(name)                                                                                \
    ssize_t name(int fd, void *buffer, size_t len, off_t at) {                                     \
        return fails(fd, READ) ? -1 : REAL(name)(fd, buffer, len, at);                             \
    }
#define WRITES(name)                                                                               \
    ssize_t name(int fd, const void *buffer, size_t len, off_t at) {                               \
        return fails(fd, WRITE) ? -1 : REAL(name)(fd, buffer, len, at);                            \
    }
#define SYNCS(name)                                                                                \
    int name(int fd) {                                                                             \
        return fails(fd, SYNC) ? -1 : REAL(name)(fd);                                              \
    }
READS(pread)
READS(pread64)
WRITES(pwrite)
WRITES(pwrite64)
SYNCS(fsync)
SYNCS(fdatasync)

ssize_t write(int fd, const void *buffer, size_t len) {
    return fails(fd, WRITE) ? -1 : REAL(write)(fd, buffer, len);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return fails(fd, WRITE) ? -1 : REAL(writev)(fd, parts, count);
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    return -ENOSYS;
}

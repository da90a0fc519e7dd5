/*
 * The page that engines of one host share. See qos_host.h.
 *
 * An entry is a cache line, written by its owner alone. It is taken by moving `owner` from 0, or
 * from a process that is dead, to the own process with compare-and-swap. One word says all about a
 * process, for whoever saw half of it would take a living one for dead: its pid, its start time,
 * which tells it from a later one that was given the same pid, and its pid namespace, for in
 * another one nobody can say who lives: there age alone decides.
 */
#include "te/qos_host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define MAGIC       0x32534f51434d4355ull
#define MAGIC_OLDER 0x31534f51434d4355ull /* entries were laid out differently */

/* A process: pid, start time in clock ticks since boot, inode of the namespace; the low bits. */
#define PID_BITS   22 /* the kernel gives no higher ones */
#define START_BITS 26
#define PID_MASK   ((1ull << PID_BITS) - 1)
#define START_MASK ((1ull << START_BITS) - 1)

struct entry {
    _Atomic uint64_t owner; /* a process; 0 = free */
    _Atomic uint64_t bytes;
    _Atomic uint64_t at_ns;
} __attribute__((aligned(MC_CACHE_LINE)));
_Static_assert(sizeof(struct entry) == MC_CACHE_LINE, "no two processes write one line");

struct page {
    _Atomic uint64_t magic;
    _Atomic uint64_t reserved[15];
    struct entry entries[MC_QOS_HOST_ENTRIES];
};
_Static_assert(sizeof(struct page) == 16384, "the layout is shared between builds");

struct mc_qos_host {
    struct page *page;
    struct entry *own;
    uint64_t self; /* a process */
    _Atomic uint64_t looked_ns;
    _Atomic uint64_t others;
};

/* ---- who lives ---- */

/* Field 22 of /proc/PID/stat; 0 when there is no such process. */
static uint64_t start_time(uint64_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

static uint64_t own_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static uint64_t own_process(void) {
    uint64_t pid = (uint64_t)getpid();
    return (pid & PID_MASK) | (start_time(pid) & START_MASK) << PID_BITS |
           own_namespace() << (PID_BITS + START_BITS);
}

static bool is_dead(const struct mc_qos_host *h, uint64_t process) {
    uint64_t pid = process & PID_MASK;
    bool same_namespace = process >> (PID_BITS + START_BITS) == h->self >> (PID_BITS + START_BITS);
    return same_namespace && (start_time(pid) & START_MASK) != (process >> PID_BITS & START_MASK);
}

/* ---- opening ---- */

static enum mc_status map_page(const char *path, struct page **out) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_size < (off_t)sizeof(struct page) && ftruncate(fd, sizeof(struct page)) != 0)) {
        mc_warn("the page that engines of this host share cannot be used path=%s errno=%d", path,
                errno);
        if (fd >= 0) {
            close(fd);
        }
        return MC_ERR_IO;
    }
    void *page = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) {
        return MC_ERR_IO;
    }
    *out = page;
    return MC_OK;
}

static struct entry *take_entry(struct mc_qos_host *h) {
    for (int round = 0; round < 2; round++) { /* free ones first, then those of the dead */
        for (size_t i = 0; i < MC_QOS_HOST_ENTRIES; i++) {
            struct entry *e = &h->page->entries[i];
            uint64_t owner = atomic_load_explicit(&e->owner, memory_order_acquire);
            if ((owner == 0 || (round == 1 && is_dead(h, owner))) &&
                atomic_compare_exchange_strong(&e->owner, &owner, h->self)) {
                atomic_store_explicit(&e->bytes, 0, memory_order_relaxed);
                return e;
            }
        }
    }
    return NULL;
}

enum mc_status mc_qos_host_open(const char *path, struct mc_qos_host **out) {
    struct page *page = NULL;
    uint64_t magic = 0;
    MC_TRY(map_page(path, &page));
    if (!atomic_compare_exchange_strong(&page->magic, &magic, MAGIC) && magic != MAGIC) {
        mc_warn(magic == MAGIC_OLDER ? "the page is of an older build: delete it when none of its "
                                       "engines runs path=%s"
                                     : "the file is not a page of engines path=%s",
                path);
        munmap(page, sizeof(*page));
        return MC_ERR_PROTOCOL;
    }
    struct mc_qos_host *h = mc_zalloc(sizeof(*h));
    h->page = page;
    h->self = own_process();
    h->own = take_entry(h);
    if (h->own == NULL) {
        mc_warn("the page of engines is full path=%s entries=%d", path, MC_QOS_HOST_ENTRIES);
        munmap(page, sizeof(*page));
        free(h);
        return MC_ERR_LIMIT;
    }
    *out = h;
    return MC_OK;
}

void mc_qos_host_close(struct mc_qos_host *h) {
    if (h == NULL) {
        return;
    }
    atomic_store_explicit(&h->own->bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&h->own->owner, 0, memory_order_release);
    munmap(h->page, sizeof(*h->page));
    free(h);
}

/* ---- telling and looking ---- */

void mc_qos_host_publish(struct mc_qos_host *h, uint64_t bytes, uint64_t now_ns) {
    atomic_store_explicit(&h->own->at_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&h->own->bytes, bytes, memory_order_release);
}

bool mc_qos_host_due(const struct mc_qos_host *h, uint64_t bytes, uint64_t now_ns) {
    uint64_t told = atomic_load_explicit(&h->own->bytes, memory_order_relaxed);
    return (told == 0) != (bytes == 0) ||
           (bytes != 0 && now_ns - atomic_load_explicit(&h->own->at_ns, memory_order_relaxed) >=
                              MC_QOS_HOST_STALE_NS / 10);
}

uint64_t mc_qos_host_others(struct mc_qos_host *h, uint64_t now_ns) {
    uint64_t looked = atomic_load_explicit(&h->looked_ns, memory_order_relaxed);
    if ((looked != 0 && now_ns - looked < MC_QOS_HOST_LOOK_NS) ||
        !atomic_compare_exchange_strong_explicit(&h->looked_ns, &looked, now_ns,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        return atomic_load_explicit(&h->others, memory_order_relaxed);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < MC_QOS_HOST_ENTRIES; i++) {
        const struct entry *e = &h->page->entries[i];
        uint64_t bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
        uint64_t at = atomic_load_explicit(&e->at_ns, memory_order_relaxed);
        uint64_t owner = atomic_load_explicit(&e->owner, memory_order_relaxed);
        if (e == h->own || bytes == 0 || owner == 0 ||
            (now_ns > at && now_ns - at >= MC_QOS_HOST_STALE_NS) || is_dead(h, owner)) {
            continue;
        }
        sum += bytes;
    }
    atomic_store_explicit(&h->others, sum, memory_order_relaxed);
    return sum;
}

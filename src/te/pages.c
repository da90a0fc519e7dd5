/*
 * Memory that same-host peers can map: a memfd of fixed size and its mapping.
 *
 * Sealed, it can neither shrink nor grow, so that no mapping of it, in any process, can fault. Huge
 * pages are asked for by their size (MC_STORE_USE_HUGEPAGE); they come from the pool that the
 * administrator reserved, whole and at once: mapping the file reserves them, so a page fault later
 * cannot find the pool empty. When it has too few, ordinary pages serve, and the log says so.
 *
 * Each mapping is asked for at an address of its own. Left to itself the kernel gives out again
 * what was just freed, and peers know a segment by its engine's name and its address: a store that
 * is closed and opened under the same name would have to wait, before it can be filled, until
 * nobody reads the old bytes there any more.
 */
#include "te/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/log.h"

#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

#define ADDRESS_ALIGN (UINT64_C(2) << 20)

static size_t ordinary_page(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* A wish, from the middle of a 47-bit address space; the kernel passes over one that cannot be. */
static void *some_address(void) {
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    uint64_t low = 1ull << 45, high = 1ull << 46;
    return (void *)(uintptr_t)((low + mc_rng_below(&rng, high - low)) & ~(ADDRESS_ALIGN - 1));
}

/* NULL, or the system call that failed; errno says why. */
static const char *map(size_t length, size_t page_bytes, unsigned flags, struct mc_pages *out) {
    size_t bytes = (length + page_bytes - 1) / page_bytes * page_bytes;
    int fd = memfd_create("mooncake", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) {
        return "memfd_create";
    }
    const char *failed;
    void *ptr;
    if (ftruncate(fd, (off_t)bytes) != 0) {
        failed = "ftruncate";
    } else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        failed = "fcntl";
    } else if ((ptr = mmap(some_address(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
               MAP_FAILED) {
        failed = "mmap";
    } else {
        *out = (struct mc_pages){ptr, bytes, page_bytes, fd};
        return NULL;
    }
    int error = errno;
    close(fd);
    errno = error;
    return failed;
}

/* The kernel promises any amount and kills somebody when the promise comes due. */
static enum mc_status check_machine_has(size_t length) {
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * ordinary_page();
    if (length > total) {
        mc_error("more memory asked for than this machine has: length=%zu machine=%llu", length,
                 (unsigned long long)total);
        return MC_ERR_NO_MEMORY;
    }
    return MC_OK;
}

enum mc_status mc_pages_map(size_t length, uint64_t huge_bytes, struct mc_pages *out) {
    MC_TRY(check_machine_has(length));
    if (huge_bytes != 0) {
        unsigned size = (unsigned)__builtin_ctzll(huge_bytes) << MFD_HUGE_SHIFT;
        if (map(length, huge_bytes, MFD_HUGETLB | size, out) == NULL) {
            return MC_OK;
        }
        mc_warn("ordinary pages instead of huge ones, of which too few are free: length=%zu "
                "page=%llu errno=%d",
                length, (unsigned long long)huge_bytes, errno);
    }
    const char *failed = map(length, ordinary_page(), 0, out);
    if (failed != NULL) {
        mc_error("no shared memory: %s failed: length=%zu errno=%d", failed, length, errno);
        return MC_ERR_NO_MEMORY;
    }
    /* Fewer page faults where the kernel allows huge pages for shared memory; a hint. */
    (void)madvise(out->ptr, out->bytes, MADV_HUGEPAGE);
    return MC_OK;
}

bool mc_pages_are_huge(const struct mc_pages *pages) {
    return pages->page_bytes != ordinary_page();
}

void mc_pages_unmap(const struct mc_pages *pages) {
    munmap(pages->ptr, pages->bytes);
    close(pages->fd);
}

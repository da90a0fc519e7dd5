/*
 * shm, the guest's side of an attachment: proving who the owner is, mapping its memory, and
 * counting copies.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "te/transport/shm.h"

#define HUGETLBFS_MAGIC 0x958458f6u /* linux/magic.h */

/* ---- counting copies ---- */

uint32_t shm_host_enter(struct shm_host *host) {
    uint32_t phase = atomic_load(&host->control->phase) & 1;
    /* Sequentially consistent, before the check of the slot: either the owner, who changes the slot
     * first and looks at the counters second, sees this count, or we see that the slot has changed.
     */
    atomic_fetch_add(&host->line->active[phase], 1);
    return phase;
}

void shm_host_leave(struct shm_host *host, uint32_t token) {
    atomic_fetch_sub_explicit(&host->line->active[token], 1, memory_order_release);
}

bool shm_host_alive(struct shm_host *host) {
    return mc_process_alive(host->process.pidfd) && atomic_load(&host->control->state) == SHM_OPEN;
}

/* ---- attaching ---- */

/* A mapping of huge pages is whole pages of them. */
static uint64_t mapped_length(int fd, const struct stat *st, uint64_t length) {
    struct statfs fs;
    bool huge = fstatfs(fd, &fs) == 0 && (uint32_t)fs.f_type == HUGETLBFS_MAGIC;
    uint64_t page = huge && st->st_blksize > 0 ? (uint64_t)st->st_blksize : 1;
    return (length + page - 1) / page * page;
}

/* Maps a memfd that can never get shorter than *length, which becomes the length of the mapping. */
static enum mc_status map_sealed(int fd, uint64_t *length, void **out) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 || st.st_size < 0 ||
        (uint64_t)st.st_size < *length) {
        return MC_ERR_PROTOCOL;
    }
    *length = mapped_length(fd, &st, *length);
    void *ptr = mmap(NULL, *length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (ptr == MAP_FAILED) {
        mc_warn("mapping a peer's memory failed length=%llu errno=%d", (unsigned long long)*length,
                errno);
        return MC_ERR_NO_MEMORY;
    }
    (void)madvise(ptr, *length, MADV_HUGEPAGE);
    *out = ptr;
    return MC_OK;
}

static enum mc_status ask(struct shm_host *host, enum shm_ask what, uint32_t slot,
                          struct shm_reply *reply, int *fd) {
    struct shm_request request = {SHM_MAGIC, what, slot};
    MC_TRY(mc_local_send(host->connection, &request, sizeof(request), -1));
    MC_TRY(mc_local_recv(host->connection, reply, sizeof(*reply), fd));
    enum mc_status status = MC_OK;
    if (reply->magic != SHM_MAGIC || reply->engine_hi != host->engine_id.hi ||
        reply->engine_lo != host->engine_id.lo) {
        status = MC_ERR_PROTOCOL;
    } else if (reply->status != MC_OK) {
        status = MC_ERR_REJECTED;
    } else if (*fd < 0) {
        status = MC_ERR_PROTOCOL;
    }
    if (status != MC_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

/* Reads the control page through the process id:
 * proof that the id is the owner's and that we may. */
static bool may_copy(const struct shm_host *host) {
    uint64_t seen[3] = {0};
    struct iovec local = {seen, sizeof(seen)};
    struct iovec remote = {(void *)(uintptr_t)host->control->self, sizeof(seen)};
    return process_vm_readv(host->process.pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(seen) &&
           seen[0] == SHM_MAGIC && seen[1] == host->engine_id.hi && seen[2] == host->engine_id.lo;
}

static enum mc_status greet(struct shm_host *host) {
    struct shm_reply reply;
    int fd = -1;
    void *control = NULL;
    MC_TRY(mc_local_peer(host->connection, &host->process));
    if (host->process.uid != geteuid() && geteuid() != 0) {
        return MC_ERR_REJECTED;
    }
    MC_TRY(ask(host, SHM_ASK_ATTACH, 0, &reply, &fd));
    uint64_t length = sizeof(struct shm_control);
    enum mc_status status = map_sealed(fd, &length, &control);
    close(fd);
    MC_TRY(status);
    host->control = control;
    if (reply.guest >= SHM_GUESTS || host->control->magic != SHM_MAGIC ||
        host->control->engine_hi != host->engine_id.hi ||
        host->control->engine_lo != host->engine_id.lo) {
        return MC_ERR_PROTOCOL;
    }
    host->line = &host->control->guests[reply.guest];
    host->can_copy = may_copy(host);
    return MC_OK;
}

enum mc_status shm_host_attach(const struct mc_peer_desc *desc, struct shm_host **out) {
    struct shm_host *host = mc_zalloc(sizeof(*host));
    atomic_store_explicit(&host->refs, 1, memory_order_relaxed);
    host->engine_id = desc->engine_id;
    host->process.pidfd = -1;
    host->connection = -1;
    enum mc_status status = mc_local_connect(desc->shm_socket, SHM_ATTACH_MS, &host->connection);
    if (status == MC_OK) {
        status = greet(host);
    }
    if (status != MC_OK) {
        mc_info("no shared memory with a peer of this host peer=%s status=%s", desc->name,
                mc_status_name(status));
        shm_host_put(host);
        return status;
    }
    mc_debug("attached to a peer's memory peer=%s pid=%d process_vm=%d", desc->name,
             (int)host->process.pid, (int)host->can_copy);
    *out = host;
    return MC_OK;
}

void shm_host_put(struct shm_host *host) {
    if (atomic_fetch_sub_explicit(&host->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    if (host->control != NULL) {
        munmap(host->control, sizeof(*host->control));
    }
    if (host->process.pidfd >= 0) {
        close(host->process.pidfd);
    }
    if (host->connection >= 0) {
        close(host->connection);
    }
    free(host);
}

enum mc_status shm_host_map(struct shm_host *host, uint32_t slot, uint64_t *length, char **out,
                            uint32_t *generation) {
    struct shm_reply reply;
    int fd = -1;
    void *ptr = NULL;
    MC_TRY(ask(host, SHM_ASK_BUFFER, slot, &reply, &fd));
    enum mc_status status = map_sealed(fd, length, &ptr);
    close(fd);
    MC_TRY(status);
    *out = ptr;
    *generation = reply.generation;
    return MC_OK;
}

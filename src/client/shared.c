/*
 * Memory that can be handed to a store node. See client/shared.h.
 *
 * The list is of the process, not of a store: a caller allocates before it has a store, and may
 * register the same memory with several.
 */
#include "client/shared.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/export.h"
#include "base/log.h"
#include "mooncake/store.h"

struct shared {
    struct shared *next;
    void *memory;
    size_t size;
    int fd;
};

static struct {
    pthread_mutex_t lock;
    struct shared *list;
} registry = {PTHREAD_MUTEX_INITIALIZER, NULL};

enum mc_status mc_shared_map(size_t size, void **memory, int *out) {
    int fd = memfd_create("mooncake_shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *mapped = MAP_FAILED;
    if (fd >= 0 && size > 0 && size <= INT64_MAX && ftruncate(fd, (off_t)size) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
        mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (mapped == MAP_FAILED) {
        mc_warn_limited("shared memory cannot be made: size=%zu", size);
        if (fd >= 0) {
            close(fd);
        }
        return MC_ERR_NO_MEMORY;
    }
    *memory = mapped;
    *out = fd;
    return MC_OK;
}

MC_PUBLIC void *mc_shared_alloc(size_t size) {
    struct shared *entry = mc_zalloc(sizeof(*entry));
    if (mc_shared_map(size, &entry->memory, &entry->fd) != MC_OK) {
        free(entry);
        return NULL;
    }
    entry->size = size;
    pthread_mutex_lock(&registry.lock);
    entry->next = registry.list;
    registry.list = entry;
    pthread_mutex_unlock(&registry.lock);
    return entry->memory;
}

MC_PUBLIC bool mc_shared_free(void *memory) {
    pthread_mutex_lock(&registry.lock);
    struct shared **at = &registry.list;
    while (*at != NULL && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    struct shared *entry = *at;
    if (entry != NULL) {
        *at = entry->next;
    }
    pthread_mutex_unlock(&registry.lock);
    if (entry == NULL) {
        return false;
    }
    munmap(entry->memory, entry->size);
    close(entry->fd);
    free(entry);
    return true;
}

enum mc_status mc_shared_fd(const void *memory, size_t size, int *fd) {
    enum mc_status status = MC_ERR_NOT_FOUND;
    pthread_mutex_lock(&registry.lock);
    for (struct shared *s = registry.list; s != NULL; s = s->next) {
        if (s->memory == memory && s->size == size) {
            *fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
            status = *fd >= 0 ? MC_OK : MC_ERR_LIMIT;
        }
    }
    pthread_mutex_unlock(&registry.lock);
    return status;
}

/*
 * shm, the owner's side: the control page, the socket that hands it out, and the wait for guests'
 * copies.
 *
 * Guests' connections are served on the engine's first reactor, each message at once; nothing
 * waits. A connection lives as long as the attachment; its end frees the guest's line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "te/transport/shm.h"

#define WAIT_FIRST_US 20
#define WAIT_MOST_US  1000
#define WARN_EVERY_NS (1 * MC_SEC)
/* Guests, and those that have yet to say that they are one: anybody on this host can connect. */
#define CONNECTIONS_MAX (SHM_GUESTS + 64)

struct guest {
    struct shm_owner *owner;
    struct mc_list link;
    struct mc_reactor_fd io;
    struct mc_process process; /* pidfd -1 before the guest has attached */
    int32_t line;              /* -1 before */
};

struct shm_owner {
    struct mc_engine *engine;
    struct mc_reactor *reactor;
    char socket[64];
    int control_fd;
    struct shm_control *control;
    struct mc_acceptor acceptor;
    unsigned connection_count; /* the reactor's */
    pthread_mutex_t lock;      /* guests, slots */
    struct mc_list guests;
    struct guest *lines[SHM_GUESTS];
    struct mc_memory *memory[SHM_SLOTS];
    pthread_mutex_t removal_lock; /* one grace period at a time */
    struct mc_metric guest_count;
    struct mc_metric refused;
};

/* ---- slots ---- */

void shm_owner_add(struct shm_owner *owner, struct mc_memory *memory) {
    pthread_mutex_lock(&owner->lock);
    for (uint32_t i = 0; i < SHM_SLOTS; i++) {
        if (owner->memory[i] != NULL) {
            continue;
        }
        struct shm_slot *slot = &owner->control->slots[i];
        slot->addr = memory->addr;
        slot->length = memory->length;
        slot->mappable = memory->memfd >= 0;
        owner->memory[i] = memory;
        memory->shm_slot = (int32_t)i;
        /* Release: who sees the odd number sees address and length. */
        atomic_fetch_add_explicit(&slot->generation, 1, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&owner->lock);
}

/* Whether a guest that lives has a copy in the counter; `pid` names one. */
static bool copies_under_way(struct shm_owner *owner, uint32_t phase, int32_t *pid) {
    bool found = false;
    pthread_mutex_lock(&owner->lock);
    for (struct mc_list *at = owner->guests.next; at != &owner->guests; at = at->next) {
        struct guest *g = mc_container_of(at, struct guest, link);
        if (g->line >= 0 && atomic_load(&owner->control->guests[g->line].active[phase]) != 0 &&
            mc_process_alive(g->process.pidfd)) {
            *pid = g->process.pid;
            found = true;
        }
    }
    pthread_mutex_unlock(&owner->lock);
    return found;
}

/* Every copy that began before the call has ended when it returns. */
static void wait_for_copies(struct shm_owner *owner) {
    pthread_mutex_lock(&owner->removal_lock);
    uint64_t warn_at = mc_now_ns(mc_clock_system()) + WARN_EVERY_NS;
    for (int round = 0; round < 2; round++) {
        uint32_t old = atomic_fetch_xor(&owner->control->phase, 1) & 1;
        uint32_t pause = WAIT_FIRST_US;
        int32_t pid = 0;
        while (copies_under_way(owner, old, &pid)) {
            usleep(pause);
            pause = (uint32_t)mc_min_u64(pause * 2, WAIT_MOST_US);
            if (mc_now_ns(mc_clock_system()) >= warn_at) {
                mc_warn("memory cannot be released: a process of this host is copying from or to "
                        "it pid=%d",
                        (int)pid);
                warn_at += WARN_EVERY_NS;
            }
        }
    }
    pthread_mutex_unlock(&owner->removal_lock);
}

void shm_owner_remove(struct shm_owner *owner, struct mc_memory *memory) {
    if (memory->shm_slot < 0) {
        return;
    }
    uint32_t i = (uint32_t)memory->shm_slot;
    /* Sequentially consistent: a guest that counts itself in after wait_for_copies looked sees
     * this. */
    atomic_fetch_add(&owner->control->slots[i].generation, 1);
    if (memory->memfd < 0) {
        wait_for_copies(owner);
    }
    pthread_mutex_lock(&owner->lock);
    owner->memory[i] = NULL;
    pthread_mutex_unlock(&owner->lock);
    memory->shm_slot = -1;
}

/* ---- guests ---- */

static void guest_free(struct guest *g) {
    struct shm_owner *owner = g->owner;
    mc_reactor_remove(owner->reactor, &g->io);
    close(g->io.fd);
    owner->connection_count--;
    pthread_mutex_lock(&owner->lock);
    mc_list_del(&g->link);
    if (g->line >= 0) {
        owner->lines[g->line] = NULL;
        mc_metric_add(&owner->guest_count, -1);
    }
    pthread_mutex_unlock(&owner->lock);
    if (g->process.pidfd >= 0) {
        close(g->process.pidfd);
    }
    free(g);
}

/* A process of the same user (or root) gets a line of its own. */
static enum mc_status admit(struct guest *g) {
    struct shm_owner *owner = g->owner;
    struct mc_process process;
    if (g->line >= 0) {
        return MC_ERR_PROTOCOL;
    }
    MC_TRY(mc_local_peer(g->io.fd, &process));
    if (process.uid != geteuid() && process.uid != 0) {
        close(process.pidfd);
        return MC_ERR_REJECTED;
    }
    enum mc_status status = MC_ERR_LIMIT;
    pthread_mutex_lock(&owner->lock);
    for (int32_t i = 0; i < SHM_GUESTS; i++) {
        if (owner->lines[i] == NULL) {
            /* What a dead guest left in the counters goes. */
            atomic_store(&owner->control->guests[i].active[0], 0);
            atomic_store(&owner->control->guests[i].active[1], 0);
            owner->lines[i] = g;
            g->line = i;
            g->process = process;
            mc_metric_add(&owner->guest_count, 1);
            status = MC_OK;
            break;
        }
    }
    pthread_mutex_unlock(&owner->lock);
    if (status != MC_OK) {
        close(process.pidfd);
    }
    return status;
}

/* A copy of the slot's memfd; the memory may go away while we speak of it. */
static enum mc_status find_buffer(struct guest *g, uint32_t slot, struct shm_reply *reply,
                                  int *fd) {
    struct shm_owner *owner = g->owner;
    enum mc_status status = MC_ERR_NOT_FOUND;
    if (g->line < 0 || slot >= SHM_SLOTS) {
        return MC_ERR_PROTOCOL;
    }
    pthread_mutex_lock(&owner->lock);
    uint32_t generation = atomic_load(&owner->control->slots[slot].generation);
    if (owner->memory[slot] != NULL && (generation & 1) != 0 && owner->memory[slot]->memfd >= 0) {
        *fd = fcntl(owner->memory[slot]->memfd, F_DUPFD_CLOEXEC, 0);
        reply->generation = generation;
        status = *fd >= 0 ? MC_OK : MC_ERR_LIMIT;
    }
    pthread_mutex_unlock(&owner->lock);
    return status;
}

static enum mc_status answer(struct guest *g, const struct shm_request *request) {
    struct shm_owner *owner = g->owner;
    struct shm_reply reply = {.magic = SHM_MAGIC,
                              .engine_hi = owner->control->engine_hi,
                              .engine_lo = owner->control->engine_lo};
    int fd = -1;
    if (request->magic != SHM_MAGIC) {
        return MC_ERR_PROTOCOL;
    }
    if (request->ask == SHM_ASK_ATTACH) {
        reply.status = admit(g);
        reply.guest = (uint32_t)g->line;
        fd = reply.status == MC_OK ? owner->control_fd : -1;
    } else if (request->ask == SHM_ASK_BUFFER) {
        reply.status = find_buffer(g, request->slot, &reply, &fd);
    } else {
        return MC_ERR_PROTOCOL;
    }
    if (reply.status != MC_OK) {
        mc_metric_add(&owner->refused, 1);
    }
    enum mc_status status = mc_local_send(g->io.fd, &reply, sizeof(reply), fd);
    if (request->ask == SHM_ASK_BUFFER && fd >= 0) {
        close(fd);
    }
    return status;
}

static void on_guest(struct mc_reactor_fd *io, uint32_t events) {
    struct guest *g = mc_container_of(io, struct guest, io);
    for (;;) {
        struct shm_request request;
        int passed = -1;
        enum mc_status status = mc_local_recv(io->fd, &request, sizeof(request), &passed);
        if (passed >= 0) {
            close(passed); /* nobody asked for it */
        }
        if (status == MC_ERR_TIMEOUT) {
            return;
        }
        if (status != MC_OK || answer(g, &request) != MC_OK) {
            guest_free(g);
            return;
        }
    }
}

static void accepted(struct mc_acceptor *acceptor, int fd, const struct mc_addr *peer) {
    struct shm_owner *owner = mc_container_of(acceptor, struct shm_owner, acceptor);
    if (owner->connection_count >= CONNECTIONS_MAX) {
        mc_warn_limited("shared memory connection refused limit=%d", CONNECTIONS_MAX);
        mc_metric_add(&owner->refused, 1);
        close(fd);
        return;
    }
    struct guest *g = mc_zalloc(sizeof(*g));
    g->owner = owner;
    g->line = -1;
    g->process.pidfd = -1;
    g->io = (struct mc_reactor_fd){.fd = fd, .events = EPOLLIN, .on_ready = on_guest};
    if (mc_reactor_add(owner->reactor, &g->io) != MC_OK) {
        close(fd);
        free(g);
        return;
    }
    owner->connection_count++;
    pthread_mutex_lock(&owner->lock);
    mc_list_push_back(&owner->guests, &g->link);
    pthread_mutex_unlock(&owner->lock);
}

/* ---- life ---- */

static enum mc_status make_control(struct shm_owner *owner) {
    struct mc_uuid id = mc_engine_id(owner->engine);
    int fd = memfd_create("mooncake-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return MC_NOT_SUPPORTED;
    }
    if (ftruncate(fd, sizeof(struct shm_control)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return MC_NOT_SUPPORTED;
    }
    void *ptr = mmap(NULL, sizeof(struct shm_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ptr == MAP_FAILED) {
        close(fd);
        return MC_NOT_SUPPORTED;
    }
    owner->control_fd = fd;
    owner->control = ptr;
    owner->control->magic = SHM_MAGIC;
    owner->control->engine_hi = id.hi;
    owner->control->engine_lo = id.lo;
    owner->control->self = (uint64_t)(uintptr_t)ptr;
    atomic_store(&owner->control->state, SHM_OPEN);
    return MC_OK;
}

static void free_owner(struct shm_owner *owner) {
    if (owner->control != NULL) {
        munmap(owner->control, sizeof(*owner->control));
        close(owner->control_fd);
    }
    pthread_mutex_destroy(&owner->lock);
    pthread_mutex_destroy(&owner->removal_lock);
    free(owner);
}

static void close_all(void *arg) {
    struct shm_owner *owner = arg;
    while (!mc_list_empty(&owner->guests)) {
        guest_free(mc_container_of(owner->guests.next, struct guest, link));
    }
}

static enum mc_status start_listening(struct shm_owner *owner) {
    struct mc_uuid id = mc_engine_id(owner->engine);
    int fd;
    snprintf(owner->socket, sizeof(owner->socket), "mooncake-%016llx%016llx",
             (unsigned long long)id.hi, (unsigned long long)id.lo);
    if (mc_local_listen(owner->socket, &fd) != MC_OK) {
        return MC_NOT_SUPPORTED;
    }
    return mc_acceptor_start(&owner->acceptor, owner->reactor, fd, accepted);
}

enum mc_status shm_owner_start(struct mc_engine *engine, struct shm_owner **out) {
    struct shm_owner *owner = mc_zalloc(sizeof(*owner));
    owner->engine = engine;
    owner->reactor = mc_engine_reactor(engine, 0);
    pthread_mutex_init(&owner->lock, NULL);
    pthread_mutex_init(&owner->removal_lock, NULL);
    mc_list_init(&owner->guests);
    enum mc_status status = make_control(owner);
    if (status == MC_OK) {
        status = start_listening(owner);
    }
    if (status != MC_OK) {
        free_owner(owner);
        return status;
    }
    struct mc_metrics *metrics = mc_engine_registry(engine);
    mc_metrics_register(metrics, MC_METRIC_GAUGE, "mooncake_te_shm_guests", "",
                        "engines of this host that are attached to this one", &owner->guest_count);
    mc_metrics_register(
        metrics, MC_METRIC_COUNTER, "mooncake_te_shm_refused_total", "",
        "requests of same-host engines refused: user, limit, or memory that went away",
        &owner->refused);
    *out = owner;
    return MC_OK;
}

/* Guests' copies have ended when this returns: the application may free its memory. */
void shm_owner_stop(struct shm_owner *owner) {
    atomic_store(&owner->control->state, SHM_CLOSED);
    wait_for_copies(owner);
    mc_acceptor_stop(&owner->acceptor);
    mc_reactor_call(owner->reactor, close_all, owner);
    mc_metrics_unregister_range(mc_engine_registry(owner->engine), owner, sizeof(*owner));
    free_owner(owner);
}

const char *shm_owner_socket(const struct shm_owner *owner) {
    return owner->socket;
}

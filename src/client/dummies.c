/*
 * The dummies of a node and their memory. See client/dummies.h; their RPCs: client/dummy_calls.c;
 * their socket: client/dummies_socket.c.
 *
 * Two counts keep memory in place: a mapping counts the calls that use it, a dummy those that are
 * inside. Forgetting takes both out of sight at once and frees them with the last user. One lock
 * serves all: it is held for look-ups only, never while bytes move.
 */
#include "client/dummies_private.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "client/store_private.h"
#include "io/io.h"
#include "wire/dummy_ipc.h"

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- letting go ---- */

static void mapping_put_locked(struct mc_dummies *ds, struct mc_dummy_mapping *m) {
    if (--m->refs > 0) {
        return;
    }
    if (mc_store_unregister_buffer(ds->store, m->here) != MC_OK) {
        mc_warn("a dummy's memory was not registered: size=%llu", (unsigned long long)m->size);
    }
    munmap(m->here, m->size);
    ds->mapped_bytes -= m->size;
    mc_metric_add(&ds->metrics.mapped_bytes, -(int64_t)m->size);
    free(m);
}

static void dummy_put_locked(struct mc_dummies *ds, struct mc_dummy *d) {
    if (!d->gone || d->users > 0) {
        return;
    }
    while (d->mapping_count > 0) {
        mapping_put_locked(ds, d->mappings[--d->mapping_count]);
    }
    if (d->pidfd >= 0) {
        close(d->pidfd);
    }
    mc_blocks_free(&d->blocks);
    free(d);
}

static void forget_locked(struct mc_dummies *ds, struct mc_dummy *d) {
    mc_list_del(&d->link);
    ds->count--;
    mc_metric_add(&ds->metrics.connected, -1);
    d->gone = true;
    dummy_put_locked(ds, d);
}

static struct mc_dummy *find_locked(struct mc_dummies *ds, struct mc_uuid id) {
    for (struct mc_list *l = ds->list.next; l != &ds->list; l = l->next) {
        struct mc_dummy *d = mc_container_of(l, struct mc_dummy, link);
        if (mc_uuid_eq(d->id, id)) {
            return d;
        }
    }
    return NULL;
}

void mc_dummies_forget(struct mc_dummies *ds, struct mc_uuid client) {
    pthread_mutex_lock(&ds->lock);
    struct mc_dummy *d = find_locked(ds, client);
    if (d != NULL) {
        forget_locked(ds, d);
    }
    pthread_mutex_unlock(&ds->lock);
}

void mc_dummies_sweep(struct mc_dummies *ds) {
    uint64_t now = now_ns();
    pthread_mutex_lock(&ds->lock);
    for (struct mc_list *l = ds->list.next; l != &ds->list;) {
        struct mc_dummy *d = mc_container_of(l, struct mc_dummy, link);
        l = l->next;
        bool dead = d->pidfd >= 0 && !mc_process_alive(d->pidfd);
        if (d->users > 0 && !dead) {
            d->seen_ns = now; /* it waits for us */
        }
        if (dead || now - d->seen_ns > MC_DUMMY_TTL_MS * MC_MS) {
            mc_info("a dummy client is gone: client=%llu-%llu mappings=%zu cause=%s",
                    (unsigned long long)d->id.hi, (unsigned long long)d->id.lo, d->mapping_count,
                    dead ? "ended" : "silent");
            mc_metric_add(&ds->metrics.lost, 1);
            forget_locked(ds, d);
        }
    }
    pthread_mutex_unlock(&ds->lock);
}

/* ---- calls ---- */

void mc_dummy_call_begin(struct mc_dummy_call *call, struct mc_dummies *ds, struct mc_uuid client,
                         struct mc_arena *arena) {
    call->dummies = ds;
    call->held_count = 0;
    call->arena = arena;
    pthread_mutex_lock(&ds->lock);
    call->dummy = find_locked(ds, client);
    if (call->dummy != NULL) {
        call->dummy->users++;
        call->dummy->seen_ns = now_ns();
    }
    pthread_mutex_unlock(&ds->lock);
}

void mc_dummy_call_end(struct mc_dummy_call *call) {
    struct mc_dummies *ds = call->dummies;
    pthread_mutex_lock(&ds->lock);
    while (call->held_count > 0) {
        mapping_put_locked(ds, call->held[--call->held_count]);
    }
    if (call->dummy != NULL) {
        call->dummy->users--;
        dummy_put_locked(ds, call->dummy);
    }
    pthread_mutex_unlock(&ds->lock);
}

static void *translate_locked(struct mc_dummy_call *call, uint64_t address, uint64_t size) {
    struct mc_dummy *d = call->dummy;
    struct mc_dummy_mapping *m = NULL;
    for (size_t i = 0; i < call->held_count; i++) {
        m = call->held[i];
        if (mc_range_inside(address, size, m->base, m->size)) {
            return m->here + (address - m->base);
        }
    }
    for (size_t i = 0; i < d->mapping_count; i++) {
        m = d->mappings[i];
        if (mc_range_inside(address, size, m->base, m->size) &&
            call->held_count < MC_ARRAY_LEN(call->held)) {
            m->refs++;
            call->held[call->held_count++] = m;
            return m->here + (address - m->base);
        }
    }
    return NULL;
}

void *mc_dummy_translate(struct mc_dummy_call *call, uint64_t address, uint64_t size) {
    if (call->dummy == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&call->dummies->lock);
    void *here = translate_locked(call, address, size);
    pthread_mutex_unlock(&call->dummies->lock);
    return here;
}

bool mc_dummies_seen(struct mc_dummies *ds, struct mc_uuid client) {
    pthread_mutex_lock(&ds->lock);
    struct mc_dummy *d = find_locked(ds, client);
    if (d != NULL) {
        d->seen_ns = now_ns();
    }
    pthread_mutex_unlock(&ds->lock);
    return d != NULL;
}

static size_t mapping_index_locked(const struct mc_dummy *d, uint64_t base) {
    size_t i = 0;
    while (i < d->mapping_count && d->mappings[i]->base != base) {
        i++;
    }
    return i;
}

bool mc_dummy_has_mapping(struct mc_dummy_call *call, uint64_t base) {
    if (call->dummy == NULL) {
        return false;
    }
    pthread_mutex_lock(&call->dummies->lock);
    bool has = mapping_index_locked(call->dummy, base) < call->dummy->mapping_count;
    pthread_mutex_unlock(&call->dummies->lock);
    return has;
}

enum mc_status mc_dummy_unmap(struct mc_dummy_call *call, uint64_t base) {
    struct mc_dummy *d = call->dummy;
    enum mc_status status = MC_INVALID_PARAMS;
    if (d == NULL) {
        return status;
    }
    pthread_mutex_lock(&call->dummies->lock);
    size_t i = mapping_index_locked(d, base);
    if (i < d->mapping_count) {
        struct mc_dummy_mapping *m = d->mappings[i];
        d->mappings[i] = d->mappings[--d->mapping_count];
        if (m->local) {
            mc_blocks_free(&d->blocks);
        }
        mapping_put_locked(call->dummies, m);
        status = MC_OK;
    }
    pthread_mutex_unlock(&call->dummies->lock);
    return status;
}

/* ---- blocks of the local mapping ---- */

static struct mc_dummy_mapping *local_mapping(const struct mc_dummy *d) {
    for (size_t i = 0; i < d->mapping_count; i++) {
        if (d->mappings[i]->local) {
            return d->mappings[i];
        }
    }
    return NULL;
}

enum mc_status mc_dummy_block_take(struct mc_dummy_call *call, uint64_t size, uint64_t *address,
                                   void **here) {
    struct mc_dummy *d = call->dummy;
    enum mc_status status = MC_INVALID_PARAMS;
    if (d == NULL || size == 0) {
        return status;
    }
    pthread_mutex_lock(&call->dummies->lock);
    struct mc_dummy_mapping *m = local_mapping(d);
    uint64_t offset = 0;
    if (m != NULL && mc_blocks_take(&d->blocks, m->size, size, &offset)) {
        void *place = translate_locked(call, m->base + offset, size);
        if (place != NULL) {
            *address = m->base + offset;
            *here = place;
            status = MC_OK;
        } else { /* the call holds as many mappings as it can */
            mc_blocks_give(&d->blocks, offset);
        }
    }
    pthread_mutex_unlock(&call->dummies->lock);
    return status;
}

enum mc_status mc_dummy_block_give(struct mc_dummy_call *call, uint64_t address) {
    struct mc_dummy *d = call->dummy;
    enum mc_status status = MC_INVALID_PARAMS;
    if (d == NULL) {
        return status;
    }
    pthread_mutex_lock(&call->dummies->lock);
    struct mc_dummy_mapping *m = local_mapping(d);
    if (m != NULL && address >= m->base && mc_blocks_give(&d->blocks, address - m->base)) {
        status = MC_OK;
    }
    pthread_mutex_unlock(&call->dummies->lock);
    return status;
}

/* ---- taking memory ---- */

/* Why the memory is not taken; NULL when it can be. */
static const char *objection(int memory, int connection, const struct mc_dummy_register *r) {
    struct stat st;
    struct statfs fs;
    uint32_t uid = 0;
    if (memory < 0) {
        return "no descriptor came with it";
    }
    if (r->device != -1) {
        return "it is not host memory";
    }
    if (fstat(memory, &st) != 0 || !S_ISREG(st.st_mode) || fstatfs(memory, &fs) != 0 ||
        (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC)) {
        return "the descriptor is not shared memory";
    }
    if (r->size == 0 || r->size > INT64_MAX || (uint64_t)st.st_size < r->size ||
        r->base > UINT64_MAX - r->size) {
        return "the memory is shorter than it says";
    }
    int seals = fcntl(memory, F_GET_SEALS);
    bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
    if (!sealed && (mc_local_peer_uid(connection, &uid) != MC_OK || uid != geteuid())) {
        return "memory of another user must be sealed against shrinking";
    }
    return NULL;
}

static struct mc_dummy *dummy_of_locked(struct mc_dummies *ds, struct mc_uuid id, int connection) {
    struct mc_dummy *d = find_locked(ds, id);
    if (d != NULL || ds->count == MC_DUMMIES_MAX) {
        return d;
    }
    struct mc_process process = {.pidfd = -1};
    d = mc_zalloc(sizeof(*d));
    d->id = id;
    d->pidfd = mc_local_peer(connection, &process) == MC_OK ? process.pidfd : -1;
    mc_list_push_back(&ds->list, &d->link);
    ds->count++;
    mc_metric_add(&ds->metrics.connected, 1);
    return d;
}

/* Also why not. A mapping of the same address replaces the dummy's older one: the dummy knows
 * better what it has there. */
static const char *add_mapping(struct mc_dummies *ds, const struct mc_dummy_register *r,
                               struct mc_dummy_mapping *m, int connection) {
    pthread_mutex_lock(&ds->lock);
    struct mc_dummy *d = dummy_of_locked(ds, r->client, connection);
    const char *why = d == NULL ? "there are too many dummies" : NULL;
    size_t at = d != NULL ? mapping_index_locked(d, r->base) : 0;
    bool replaces = d != NULL && at < d->mapping_count;
    if (d != NULL && !replaces && d->mapping_count == MC_DUMMY_MAPPINGS_MAX) {
        why = "the dummy has too many mappings";
    } else if (d != NULL && m->local && local_mapping(d) != NULL &&
               local_mapping(d)->base != r->base) {
        why = "the dummy has a local buffer";
    } else if (ds->mapped_bytes > MC_DUMMY_BYTES_MAX - r->size) {
        why = "the dummies have too much memory";
    }
    if (why == NULL) {
        if (replaces) {
            if (d->mappings[at]->local) {
                mc_blocks_free(&d->blocks);
            }
            mapping_put_locked(ds, d->mappings[at]);
        } else {
            d->mapping_count++;
        }
        d->mappings[at] = m;
        d->seen_ns = now_ns();
        ds->mapped_bytes += r->size;
        mc_metric_add(&ds->metrics.mapped_bytes, (int64_t)r->size);
        mc_metric_add(&ds->metrics.registrations, 1);
    }
    pthread_mutex_unlock(&ds->lock);
    return why;
}

const char *mc_dummies_take_memory(struct mc_dummies *ds, const struct mc_dummy_register *r,
                                   int memory, int connection) {
    const char *why = objection(memory, connection, r);
    if (why == NULL && r->size > MC_DUMMY_BYTES_MAX) {
        why = "it is too much";
    }
    if (why != NULL) {
        return why;
    }
    void *here = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (here == MAP_FAILED) {
        return "it cannot be mapped";
    }
    if (mc_store_register_buffer(ds->store, here, r->size) != MC_OK) {
        munmap(here, r->size);
        return "the engine does not take it";
    }
    struct mc_dummy_mapping *m = mc_alloc(sizeof(*m));
    *m = (struct mc_dummy_mapping){
        .base = r->base, .size = r->size, .here = here, .local = r->local == 1, .refs = 1};
    why = add_mapping(ds, r, m, connection);
    if (why != NULL) {
        if (mc_store_unregister_buffer(ds->store, here) != MC_OK) {
            mc_warn("a dummy's memory was not registered: size=%llu", (unsigned long long)r->size);
        }
        munmap(here, r->size);
        free(m);
    }
    return why;
}

/* ---- start and stop ---- */

static void register_metrics(struct mc_dummies *ds) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_GAUGE, "mooncake_client_dummies", "dummy clients", &ds->metrics.connected},
        {MC_METRIC_GAUGE, "mooncake_client_dummy_bytes", "memory of dummy clients that is mapped",
         &ds->metrics.mapped_bytes},
        {MC_METRIC_COUNTER, "mooncake_client_dummy_registrations", "pieces of memory taken",
         &ds->metrics.registrations},
        {MC_METRIC_COUNTER, "mooncake_client_dummy_refusals", "pieces of memory refused",
         &ds->metrics.refused},
        {MC_METRIC_COUNTER, "mooncake_client_dummies_lost",
         "dummy clients that ended or fell silent", &ds->metrics.lost},
    };
    mc_metrics_register_rows(ds->store->metrics, "", rows, MC_ARRAY_LEN(rows));
}

enum mc_status mc_dummies_start(struct mc_store *store, uint16_t rpc_port,
                                struct mc_dummies **out) {
    char name[64];
    struct mc_dummies *ds = mc_zalloc(sizeof(*ds));
    ds->store = store;
    mc_list_init(&ds->list);
    pthread_mutex_init(&ds->lock, NULL);
    snprintf(name, sizeof(name), MC_DUMMY_SOCKET_FORMAT, rpc_port);
    ds->stop_fd = -1;
    enum mc_status status = mc_local_listen_stream(name, &ds->listen_fd);
    if (status != MC_OK) {
        goto fail_listen;
    }
    ds->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ds->stop_fd < 0 || mc_thread_start(&ds->thread, "mc-dummies", mc_dummies_main, ds) != 0) {
        mc_error("the thread for dummy clients cannot be started");
        status = MC_INTERNAL_ERROR;
        goto fail_thread;
    }
    register_metrics(ds);
    *out = ds;
    return MC_OK;
fail_thread:
    if (ds->stop_fd >= 0) {
        close(ds->stop_fd);
    }
    close(ds->listen_fd);
fail_listen:
    pthread_mutex_destroy(&ds->lock);
    free(ds);
    return status;
}

void mc_dummies_stop(struct mc_dummies *ds) {
    uint64_t one = 1;
    if (ds == NULL) {
        return;
    }
    MC_ASSERT(write(ds->stop_fd, &one, sizeof(one)) == sizeof(one));
    pthread_join(ds->thread, NULL);
    close(ds->listen_fd);
    close(ds->stop_fd);
    pthread_mutex_lock(&ds->lock);
    while (!mc_list_empty(&ds->list)) {
        forget_locked(ds, mc_container_of(ds->list.next, struct mc_dummy, link));
    }
    pthread_mutex_unlock(&ds->lock);
    mc_metrics_unregister_range(ds->store->metrics, ds, sizeof(*ds));
    pthread_mutex_destroy(&ds->lock);
    free(ds);
}

/*
 * A dummy's life: its memory, its node, and coming back when the node does. See
 * client/dummy_client.h; the calls: client/dummy_client_calls.c.
 *
 * The node is asked once a second whether it knows us. When it does not (it restarted, or we were
 * silent too long) every piece is registered again at the same addresses, so that what the program
 * holds stays valid; calls in between fail.
 */
#include "client/dummy_client_private.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/shared.h"
#include "io/io.h"
#include "wire/dummy_ipc.h"

#define CONNECTIONS     64
#define CONNECT_MS      3000
#define PING_NS         (1 * MC_SEC)
#define REGISTER_MS     5000
#define ANSWER_GRACE_MS 1000 /* the node gives up by itself, and says so, a little earlier */

/* ---- RPC ---- */

enum mc_status mc_dummy_status(int32_t code) {
    return (enum mc_status)code; /* the store's codes are upstream's */
}

enum mc_status mc_dummy_rpc(struct mc_dummy_client *d, struct mc_dummy_rpc *r,
                            enum mc_client_rpc rpc, const void *args, void *ret) {
    const struct mc_rpc_desc *desc = &mc_client_rpc_table()[rpc];
    uint64_t wait_ms =
        rpc == MC_CLIENT_RPC_ping ? PING_NS / MC_MS : (uint64_t)d->timeout_ms + ANSWER_GRACE_MS;
    mc_buf_clear(&r->request);
    mc_buf_clear(&r->reply);
    mc_master_rpc_encode_args(desc, 0, args, &r->request);
    mc_metric_add(&d->metrics.rpcs, 1);
    enum mc_status status =
        mc_rpc_call(d->rpc, desc->function_id, (struct mc_str){r->request.data, r->request.len},
                    mc_now_ns(mc_clock_system()) + wait_ms * MC_MS, &r->reply, NULL);
    if (status == MC_OK &&
        mc_master_rpc_decode_ret(desc, 0, (struct mc_str){r->reply.data, r->reply.len}, &r->arena,
                                 ret) != MC_OK) {
        mc_error("the node's answer cannot be decoded: rpc=%s bytes=%zu", desc->name, r->reply.len);
        status = MC_RPC_FAIL;
    }
    if (status != MC_OK) {
        mc_metric_add(&d->metrics.failures, 1);
    }
    return status;
}

void mc_dummy_rpc_end(struct mc_dummy_rpc *r) {
    mc_arena_free(&r->arena);
    mc_buf_free(&r->request);
    mc_buf_free(&r->reply);
}

/* ---- staging ---- */

bool mc_dummy_client_reaches(struct mc_dummy_client *d, const void *memory, uint64_t length) {
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->piece_count && !found; i++) {
        found = mc_range_inside((uintptr_t)memory, length, (uintptr_t)d->pieces[i].memory,
                                d->pieces[i].size);
    }
    pthread_mutex_unlock(&d->lock);
    return found;
}

char *mc_dummy_stage(struct mc_dummy_client *d, uint64_t size) {
    uint64_t offset;
    pthread_mutex_lock(&d->lock);
    bool taken = size > 0 && mc_blocks_take(&d->staged, d->stage.size, size, &offset);
    pthread_mutex_unlock(&d->lock);
    if (taken) {
        mc_metric_add(&d->metrics.staged_bytes, (int64_t)size);
    }
    return taken ? d->stage.memory + offset : NULL;
}

static void give_locked(struct mc_dummy_client *d, uint64_t offset) {
    bool was_taken = mc_blocks_give(&d->staged, offset);
    MC_ASSERT(was_taken);
}

static bool node_died_locked(const struct mc_dummy_client *d) {
    return d->node_pidfd >= 0 && !mc_process_alive(d->node_pidfd);
}

void mc_dummy_unstage(struct mc_dummy_client *d, char *memory, bool answered) {
    uint64_t offset = (uint64_t)(memory - d->stage.memory);
    pthread_mutex_lock(&d->lock);
    if (answered || node_died_locked(d)) {
        give_locked(d, offset);
    } else {
        if (d->lost_count == d->lost_capacity) {
            d->lost_capacity = d->lost_capacity > 0 ? 2 * d->lost_capacity : 16;
            d->lost = mc_realloc(d->lost, d->lost_capacity * sizeof(*d->lost));
        }
        d->lost[d->lost_count++] = offset;
        mc_metric_add(&d->metrics.lost_blocks, 1);
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- registration ---- */

/* *pidfd = of the process that answered, -1 when it cannot be told. */
static enum mc_status send_piece(struct mc_dummy_client *d, const struct mc_dummy_piece *piece,
                                 int *pidfd) {
    uint32_t type = MC_DUMMY_IPC_REGISTER;
    struct mc_dummy_register r = {.client = d->id,
                                  .base = (uintptr_t)piece->memory,
                                  .size = piece->size,
                                  .device = -1,
                                  .local = piece->local};
    struct mc_process process = {.pidfd = -1};
    int32_t answer = -1;
    int fd, passed;
    MC_TRY(mc_local_connect_stream(d->socket, REGISTER_MS, &fd));
    enum mc_status status = mc_local_send(fd, &type, sizeof(type), -1);
    if (status == MC_OK) {
        status = mc_local_send(fd, &r, sizeof(r), piece->fd);
    }
    if (status == MC_OK) {
        uint64_t deadline = mc_now_ns(mc_clock_system()) + REGISTER_MS * MC_MS;
        status = mc_local_recv_stream(fd, &answer, sizeof(answer), deadline, &passed);
        if (status == MC_OK && passed >= 0) {
            close(passed);
        }
    }
    if (status == MC_OK && mc_local_peer(fd, &process) != MC_OK) {
        process.pidfd = -1;
    }
    close(fd);
    *pidfd = process.pidfd;
    if (status == MC_OK && answer != 0) {
        mc_error("the node refuses shared memory: socket=%s size=%llu", d->socket,
                 (unsigned long long)piece->size);
        status = MC_INTERNAL_ERROR;
    }
    return status;
}

/* Before the first piece goes to a process, what an earlier one could have touched is free. */
static void node_is(struct mc_dummy_client *d, int pidfd) {
    pthread_mutex_lock(&d->lock);
    if (d->node_pidfd >= 0) {
        close(d->node_pidfd);
    }
    d->node_pidfd = pidfd;
    pthread_mutex_unlock(&d->lock);
}

static void reclaim_lost(struct mc_dummy_client *d) {
    pthread_mutex_lock(&d->lock);
    while (node_died_locked(d) && d->lost_count > 0) {
        give_locked(d, d->lost[--d->lost_count]);
        mc_metric_add(&d->metrics.lost_blocks, -1);
    }
    pthread_mutex_unlock(&d->lock);
}

static enum mc_status register_all(struct mc_dummy_client *d) {
    enum mc_status status = MC_OK;
    pthread_mutex_lock(&d->registering);
    reclaim_lost(d);
    for (size_t i = 0; status == MC_OK; i++) {
        int pidfd = -1;
        pthread_mutex_lock(&d->lock);
        bool more = i < d->piece_count;
        struct mc_dummy_piece piece = more ? d->pieces[i] : (struct mc_dummy_piece){.fd = -1};
        pthread_mutex_unlock(&d->lock);
        if (!more) {
            break;
        }
        status = send_piece(d, &piece, &pidfd);
        if (status == MC_OK) {
            node_is(d, pidfd);
        }
    }
    pthread_mutex_unlock(&d->registering);
    return status;
}

static size_t find_piece_locked(const struct mc_dummy_client *d, const void *memory) {
    size_t i = 0;
    while (i < d->piece_count && d->pieces[i].memory != memory) {
        i++;
    }
    return i;
}

/* Under `registering`. The piece's descriptor is the list's from now on. */
static enum mc_status add_piece(struct mc_dummy_client *d, const struct mc_dummy_piece *piece) {
    int pidfd = -1;
    if (d->piece_count == MC_DUMMY_MAPPINGS_MAX) {
        return MC_ERR_LIMIT;
    }
    MC_TRY(send_piece(d, piece, &pidfd));
    node_is(d, pidfd);
    pthread_mutex_lock(&d->lock);
    d->pieces[d->piece_count++] = *piece;
    pthread_mutex_unlock(&d->lock);
    return MC_OK;
}

enum mc_status mc_dummy_client_register(struct mc_dummy_client *d, void *memory, size_t size) {
    struct mc_dummy_piece piece = {.memory = memory, .size = size, .fd = -1};
    if (mc_shared_fd(memory, size, &piece.fd) != MC_OK) {
        mc_error("a dummy registers only whole memory of mc_shared_alloc: address=%p size=%zu",
                 memory, size);
        return MC_INTERNAL_ERROR; /* upstream's code */
    }
    pthread_mutex_lock(&d->registering);
    pthread_mutex_lock(&d->lock);
    bool known = find_piece_locked(d, memory) < d->piece_count;
    pthread_mutex_unlock(&d->lock);
    enum mc_status status = known ? MC_OK : add_piece(d, &piece);
    pthread_mutex_unlock(&d->registering);
    if (known || status != MC_OK) {
        close(piece.fd);
    }
    return status;
}

enum mc_status mc_dummy_client_unregister(struct mc_dummy_client *d, void *memory) {
    struct mw_a_shm_mapped args = {.address = (uintptr_t)memory, .client = d->id};
    struct mw_e_void ret;
    struct mc_dummy_rpc r = {0};
    pthread_mutex_lock(&d->registering);
    pthread_mutex_lock(&d->lock);
    size_t i = find_piece_locked(d, memory);
    bool known = i < d->piece_count && memory != d->stage.memory && memory != d->local.memory;
    int fd = known ? d->pieces[i].fd : -1;
    if (known) {
        d->pieces[i] = d->pieces[--d->piece_count];
    }
    pthread_mutex_unlock(&d->lock);
    enum mc_status status =
        known ? mc_dummy_rpc(d, &r, MC_CLIENT_RPC_unregister_shm_buffer_internal, &args, &ret)
              : MC_INTERNAL_ERROR;
    pthread_mutex_unlock(&d->registering);
    mc_dummy_rpc_end(&r);
    if (known) {
        close(fd);
    }
    return status != MC_OK ? status : mc_dummy_status(ret.error);
}

/* ---- the node ---- */

static void ping(struct mc_dummy_client *d) {
    struct mw_e_ping ret;
    struct mc_dummy_rpc r = {0};
    enum mc_status status = mc_dummy_rpc(d, &r, MC_CLIENT_RPC_ping, &d->id, &ret);
    pthread_mutex_lock(&d->lock);
    bool has_memory = d->piece_count > 0; /* else there is nothing to know */
    pthread_mutex_unlock(&d->lock);
    bool unknown = status == MC_OK && ret.error == 0 && has_memory &&
                   ret.value.client_status == MC_CLIENT_NEED_REMOUNT;
    status = status == MC_OK ? mc_dummy_status(ret.error) : status;
    mc_dummy_rpc_end(&r);
    if (unknown) {
        status = register_all(d);
        if (status == MC_OK) {
            mc_metric_add(&d->metrics.reconnects, 1);
            mc_info("the node knows this client again: socket=%s", d->socket);
        }
    }
    atomic_store_explicit(&d->healthy, status == MC_OK, memory_order_relaxed);
}

static void *ping_main(void *arg) {
    struct mc_dummy_client *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stopping) {
        uint64_t until = mc_now_ns(mc_clock_system()) + PING_NS;
        struct timespec wait = {(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
        pthread_cond_timedwait(&d->wake, &d->lock, &wait);
        if (!d->stopping) {
            pthread_mutex_unlock(&d->lock);
            ping(d);
            pthread_mutex_lock(&d->lock);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

enum mc_status mc_dummy_client_health(struct mc_dummy_client *d) {
    return atomic_load_explicit(&d->healthy, memory_order_relaxed) ? MC_OK : MC_RPC_FAIL;
}

/* ---- open and close ---- */

static void register_metrics(struct mc_dummy_client *d, struct mc_metrics *metrics) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "mooncake_dummy_rpc_count", "requests to the node", &d->metrics.rpcs},
        {MC_METRIC_COUNTER, "mooncake_dummy_rpc_failures", "of these, not answered",
         &d->metrics.failures},
        {MC_METRIC_COUNTER, "mooncake_dummy_reconnects", "times the memory was registered again",
         &d->metrics.reconnects},
        {MC_METRIC_COUNTER, "mooncake_dummy_staged_bytes", "bytes that were copied into staging",
         &d->metrics.staged_bytes},
        {MC_METRIC_GAUGE, "mooncake_dummy_lost_blocks",
         "staged blocks that a call in doubt may still use", &d->metrics.lost_blocks},
    };
    mc_metrics_register_rows(metrics, "", rows, MC_ARRAY_LEN(rows));
}

static enum mc_status make_buffer(struct mc_dummy_client *d, uint64_t size, bool local,
                                  struct mc_dummy_piece *out) {
    void *memory;
    struct mc_dummy_piece piece = {.size = size, .local = local};
    MC_TRY(mc_shared_map(size, &memory, &piece.fd));
    piece.memory = memory;
    *out = piece;
    enum mc_status status = add_piece(d, &piece);
    if (status != MC_OK) {
        munmap(memory, size);
        close(piece.fd);
        *out = (struct mc_dummy_piece){0};
    }
    return status;
}

static enum mc_status open_steps(struct mc_dummy_client *d, const struct mc_store_options *o) {
    struct mc_hostport place;
    if (mc_hostport_parse(o->real_client, &place) != MC_OK || place.port == 0) {
        mc_error("real_client is no host:port: real_client=%s", o->real_client);
        return MC_ERR_BAD_ADDRESS;
    }
    snprintf(d->socket, sizeof(d->socket), MC_DUMMY_SOCKET_FORMAT, place.port);
    uint32_t connect_ms = (uint32_t)mc_env_u64("MC_RPC_CONNECT_TIMEOUT_MS", 1, 3600000, CONNECT_MS);
    MC_TRY(mc_rpc_client_create(o->real_client, CONNECTIONS, connect_ms, &d->rpc));
    MC_TRY(mc_tls_peers_environment(&d->tls));
    mc_rpc_client_use_peers(d->rpc, &d->tls);
    struct mw_e_void ready;
    struct mc_dummy_rpc r = {0};
    enum mc_status status = mc_dummy_rpc(d, &r, MC_CLIENT_RPC_service_ready_internal, NULL, &ready);
    status = status == MC_OK ? mc_dummy_status(ready.error) : status;
    mc_dummy_rpc_end(&r);
    if (status != MC_OK) {
        mc_error("the real client is not ready: real_client=%s status=%s", o->real_client,
                 mc_status_name(status));
        return status;
    }
    if (o->local_buffer_bytes > 0) {
        MC_TRY(make_buffer(d, o->local_buffer_bytes, true, &d->local));
        MC_TRY(make_buffer(d, o->local_buffer_bytes, false, &d->stage));
    }
    atomic_store_explicit(&d->healthy, true, memory_order_relaxed);
    if (mc_thread_start(&d->thread, "mc-dummy-ping", ping_main, d) != 0) {
        mc_error("the thread that pings the node cannot be started");
        return MC_INTERNAL_ERROR;
    }
    d->thread_runs = true;
    return MC_OK;
}

enum mc_status mc_dummy_client_open(const struct mc_store_options *options,
                                    struct mc_metrics *metrics, struct mc_dummy_client **out) {
    struct mc_dummy_client *d = mc_zalloc(sizeof(*d));
    struct mc_rng rng;
    pthread_condattr_t attributes;
    mc_rng_seed_system(&rng);
    d->id = mc_uuid_make(&rng);
    d->timeout_ms = options->timeout_ms;
    d->node_pidfd = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->registering, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&d->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    enum mc_status status = open_steps(d, options);
    if (status != MC_OK) {
        mc_dummy_client_close(d);
        return status;
    }
    register_metrics(d, metrics);
    *out = d;
    return MC_OK;
}

void mc_dummy_client_close(struct mc_dummy_client *d) {
    if (d == NULL) {
        return;
    }
    if (d->thread_runs) {
        pthread_mutex_lock(&d->lock);
        d->stopping = true;
        pthread_cond_signal(&d->wake);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    if (d->piece_count > 0) {
        struct mw_e_void ret;
        struct mc_dummy_rpc r = {0};
        if (mc_dummy_rpc(d, &r, MC_CLIENT_RPC_unmap_shm_internal, &d->id, &ret) != MC_OK) {
            mc_debug("the node forgets this client by itself");
        }
        mc_dummy_rpc_end(&r);
    }
    for (size_t i = 0; i < d->piece_count; i++) {
        close(d->pieces[i].fd);
    }
    if (d->stage.size > 0) {
        munmap(d->stage.memory, d->stage.size);
    }
    if (d->local.size > 0) {
        munmap(d->local.memory, d->local.size);
    }
    if (d->rpc != NULL) {
        mc_rpc_client_destroy(d->rpc);
        mc_tls_peers_close(&d->tls);
    }
    if (d->node_pidfd >= 0) {
        close(d->node_pidfd);
    }
    mc_blocks_free(&d->staged);
    free(d->lost);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->registering);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/*
 * The port of real programs. See client/port_real.h.
 *
 * The table of endpoints is an open hash of pointers under a read-write lock. An endpoint is pinned
 * (counted) by each move call and each view that uses it, and is closed only when it is suspected
 * and nobody pins it; so an id never changes its meaning under a caller, and a dead node's mapping
 * stays readable while a view holds it.
 *
 * A view of this process's own memory lies in a second, read-only mapping of the same memfd: the
 * memory itself may be replaced (ops_node.c) while somebody still looks at the view.
 */
#include "client/port_real.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "te/te.h"

#define ENDPOINT_BUCKETS 1024
#define SUSPECT_NS       (3 * MC_SEC)  /* how long a failed endpoint is the last choice */
#define RETRY_NS         (500 * MC_MS) /* how long one that could not be opened is not tried */
#define NOT_OPEN         (-1)
/* Endpoints remembered as such; more are forgotten when they may be tried again. */
#define NOT_OPEN_MAX 1024
/* Nodes whose RPC server is known; one that was not called for longest makes room for another. */
#define PEERS_MAX        64
#define PEER_CONNECTIONS 8
#define PEER_CONNECT_MS  3000
#define INLINE_REQUESTS  64 /* a move call of so many uses no heap */

struct endpoint {
    struct endpoint *next;
    struct mc_str name;
    mc_segment_id segment; /* NOT_OPEN: opening failed, and is not tried while it is suspected */
    uint32_t distance;     /* without suspicion */
    _Atomic uint64_t suspect_until_ns;
    _Atomic uint32_t pins;
};

/* The views of one memory of this process. */
struct own_view {
    struct own_view *next;
    struct mc_memory_twin *twin;
    size_t count;
};

/* Another node's RPC server. */
struct peer {
    struct mc_rpc_client *rpc; /* NULL = this place is free */
    char address[280];
    uint64_t used_ns;
    unsigned users;
};

struct mc_real_port {
    struct mc_port port;
    struct mc_rpc_client *rpc;
    struct mc_engine *engine;
    pthread_rwlock_t lock; /* guards the buckets */
    struct endpoint *buckets[ENDPOINT_BUCKETS];
    size_t not_open; /* entries that say so */
    pthread_mutex_t views_lock;
    struct own_view *own_views;
    pthread_mutex_t peers_lock;
    struct peer peers[PEERS_MAX];
};

static struct mc_real_port *of(struct mc_port *port) {
    return mc_container_of(port, struct mc_real_port, port);
}

/* ---- endpoints ---- */

static size_t bucket_of(struct mc_str name) {
    return mc_hash64(name.ptr, name.len, 0) % ENDPOINT_BUCKETS;
}

static struct endpoint *find_locked(struct mc_real_port *real, size_t bucket, struct mc_str name) {
    for (struct endpoint *e = real->buckets[bucket]; e != NULL; e = e->next) {
        if (mc_str_eq(e->name, name)) {
            return e;
        }
    }
    return NULL;
}

static bool suspected(const struct endpoint *e) {
    uint64_t until = atomic_load_explicit(&e->suspect_until_ns, memory_order_relaxed);
    return until != 0 && until > mc_now_ns(mc_clock_system());
}

/* MC_ERR_NOT_FOUND: not known, or to be tried again. MC_ERR_UNREACHABLE: failed a moment ago. */
static enum mc_status pin_known(struct mc_real_port *real, size_t bucket, struct mc_str name,
                                struct endpoint **out) {
    enum mc_status status = MC_ERR_NOT_FOUND;
    pthread_rwlock_rdlock(&real->lock);
    struct endpoint *e = find_locked(real, bucket, name);
    if (e != NULL && e->segment != NOT_OPEN) {
        atomic_fetch_add_explicit(&e->pins, 1, memory_order_relaxed);
        *out = e;
        status = MC_OK;
    } else if (e != NULL && suspected(e)) {
        status = MC_ERR_UNREACHABLE;
    }
    pthread_rwlock_unlock(&real->lock);
    return status;
}

static void unpin(struct endpoint *e) {
    /* Release: what was done with the segment comes before its closing. */
    atomic_fetch_sub_explicit(&e->pins, 1, memory_order_release);
}

static uint32_t distance_of(struct mc_real_port *real, mc_segment_id segment) {
    if (segment == MC_LOCAL_SEGMENT) {
        return MC_DISTANCE_SELF;
    }
    struct mc_segment *opened = mc_engine_segment(real->engine, segment);
    if (opened == NULL) {
        return MC_DISTANCE_NETWORK;
    }
    struct mc_peer_desc *desc = mc_segment_desc(opened);
    const char *boot_id = mc_engine_boot_id(real->engine);
    bool same_host = boot_id[0] != '\0' && strcmp(desc->boot_id, boot_id) == 0;
    mc_peer_desc_put(desc);
    return same_host ? MC_DISTANCE_HOST : MC_DISTANCE_NETWORK;
}

/* Forgets endpoints that could not be opened and whose time is over. */
static void sweep_locked(struct mc_real_port *real) {
    for (size_t i = 0; i < ENDPOINT_BUCKETS; i++) {
        for (struct endpoint **link = &real->buckets[i]; *link != NULL;) {
            struct endpoint *e = *link;
            if (e->segment != NOT_OPEN || suspected(e)) {
                link = &e->next;
                continue;
            }
            *link = e->next;
            free((char *)e->name.ptr);
            free(e);
            real->not_open--;
        }
    }
}

/* Notes that the endpoint is open under this id, or (NOT_OPEN) is not to be tried for a while.
 * *pinned is set in the first case. False: another thread opened it too, and this opening is one
 * too many. */
static bool note(struct mc_real_port *real, size_t bucket, struct mc_str name,
                 mc_segment_id segment, struct endpoint **pinned) {
    uint32_t distance = segment == NOT_OPEN ? MC_DISTANCE_NETWORK : distance_of(real, segment);
    bool used = true;
    pthread_rwlock_wrlock(&real->lock);
    if (segment == NOT_OPEN && real->not_open >= NOT_OPEN_MAX) {
        sweep_locked(real);
    }
    struct endpoint *e = find_locked(real, bucket, name);
    if (e == NULL) {
        e = mc_zalloc(sizeof(*e));
        e->name = (struct mc_str){mc_str_dup(name), name.len};
        e->segment = NOT_OPEN;
        e->next = real->buckets[bucket];
        real->buckets[bucket] = e;
        real->not_open++;
    }
    if (e->segment != NOT_OPEN) {
        used = false;
    } else if (segment == NOT_OPEN) {
        atomic_store_explicit(&e->suspect_until_ns, mc_now_ns(mc_clock_system()) + RETRY_NS,
                              memory_order_relaxed);
    } else {
        e->segment = segment;
        e->distance = distance;
        atomic_store_explicit(&e->suspect_until_ns, 0, memory_order_relaxed);
        real->not_open--;
    }
    if (segment != NOT_OPEN) {
        atomic_fetch_add_explicit(&e->pins, 1, memory_order_relaxed);
        *pinned = e;
    }
    pthread_rwlock_unlock(&real->lock);
    return used;
}

/* The endpoint, opened when it is new; counted as used. */
static enum mc_status pin(struct mc_real_port *real, struct mc_str name, uint64_t deadline_ns,
                          struct endpoint **out) {
    size_t bucket = bucket_of(name);
    enum mc_status status = pin_known(real, bucket, name, out);
    if (status != MC_ERR_NOT_FOUND) {
        return status;
    }
    char *text = mc_str_dup(name);
    mc_segment_id segment;
    status = mc_segment_open_until(real->engine, text, deadline_ns, &segment);
    free(text);
    if (status != MC_OK) {
        note(real, bucket, name, NOT_OPEN, NULL);
        return status;
    }
    if (!note(real, bucket, name, segment, out) &&
        mc_segment_close(real->engine, segment) != MC_OK) {
        mc_warn("a segment opened twice could not be closed once: name=%s", (*out)->name.ptr);
    }
    return MC_OK;
}

static void endpoint_destroy(struct mc_real_port *real, struct endpoint *e) {
    if (e->segment != NOT_OPEN && mc_segment_close(real->engine, e->segment) != MC_OK) {
        mc_warn("a segment could not be closed: name=%s", e->name.ptr);
    }
    free((char *)e->name.ptr);
    free(e);
}

/* After a failed move: the next choice elsewhere, and the handle given back when this was its last
 * user. */
static void suspect(struct mc_real_port *real, struct mc_str name) {
    size_t bucket = bucket_of(name);
    struct endpoint *closing = NULL;
    pthread_rwlock_wrlock(&real->lock);
    for (struct endpoint **link = &real->buckets[bucket]; *link != NULL; link = &(*link)->next) {
        struct endpoint *e = *link;
        if (!mc_str_eq(e->name, name)) {
            continue;
        }
        if (e->segment == NOT_OPEN) {
            break;
        }
        bool again = suspected(e);
        atomic_store_explicit(&e->suspect_until_ns, mc_now_ns(mc_clock_system()) + SUSPECT_NS,
                              memory_order_relaxed);
        if (again && e->segment != MC_LOCAL_SEGMENT &&
            atomic_load_explicit(&e->pins, memory_order_acquire) == 0) {
            *link = e->next;
            closing = e;
        }
        break;
    }
    pthread_rwlock_unlock(&real->lock);
    if (closing != NULL) {
        endpoint_destroy(real, closing);
    }
}

static unsigned real_distance(struct mc_port *port, struct mc_str name) {
    struct mc_real_port *real = of(port);
    unsigned distance = MC_DISTANCE_NETWORK;
    pthread_rwlock_rdlock(&real->lock);
    struct endpoint *e = find_locked(real, bucket_of(name), name);
    if (e != NULL) {
        distance = e->distance + (suspected(e) ? MC_DISTANCE_SUSPECT : 0);
    }
    pthread_rwlock_unlock(&real->lock);
    return distance;
}

/* ---- time and RPC ---- */

static const struct mc_clock *real_clock(struct mc_port *port) {
    return mc_clock_system();
}

static void real_sleep_until(struct mc_port *port, uint64_t deadline_ns) {
    struct timespec until = {(time_t)(deadline_ns / MC_SEC), (long)(deadline_ns % MC_SEC)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
}

static enum mc_status call_by(struct mc_rpc_client *rpc, uint32_t function_id, struct mc_str body,
                              uint64_t deadline_ns, struct mc_buf *reply) {
    enum mc_rpc_errc errc = MC_RPC_OK;
    enum mc_status status = mc_rpc_call(rpc, function_id, body, deadline_ns, reply, &errc);
    if (status == MC_OK || status == MC_RPC_TIMEOUT) {
        return status;
    }
    switch (errc) {
    case MC_RPC_INVALID_ARGUMENTS:
        return MC_ERR_WIRE_HASH;
    case MC_RPC_NOT_REGISTERED:
        return MC_NOT_SUPPORTED;
    default:
        return MC_RPC_FAIL;
    }
}

static enum mc_status real_call(struct mc_port *port, uint32_t function_id, struct mc_str body,
                                uint64_t deadline_ns, struct mc_buf *reply) {
    return call_by(of(port)->rpc, function_id, body, deadline_ns, reply);
}

/* The peer at the address, in use; made in the place that was not used for longest. NULL = all are
 * in use, or it is no address. */
static struct peer *take_peer(struct mc_real_port *real, const char *address) {
    struct peer *found = NULL, *place = NULL;
    pthread_mutex_lock(&real->peers_lock);
    for (size_t i = 0; i < PEERS_MAX && found == NULL; i++) {
        struct peer *p = &real->peers[i];
        if (p->rpc != NULL && strcmp(p->address, address) == 0) {
            found = p;
        } else if (p->users == 0 && (place == NULL || p->used_ns < place->used_ns)) {
            place = p;
        }
    }
    if (found == NULL && place != NULL) {
        struct mc_rpc_client *rpc;
        if (mc_rpc_client_create(address, PEER_CONNECTIONS, PEER_CONNECT_MS, &rpc) == MC_OK) {
            if (place->rpc != NULL) {
                mc_rpc_client_destroy(place->rpc);
            }
            mc_rpc_client_use_peers(rpc, mc_engine_tls(real->engine));
            *place = (struct peer){.rpc = rpc};
            snprintf(place->address, sizeof(place->address), "%s", address);
            found = place;
        }
    }
    if (found != NULL) {
        found->users++;
        found->used_ns = mc_now_ns(mc_clock_system());
    }
    pthread_mutex_unlock(&real->peers_lock);
    return found;
}

static enum mc_status real_peer_call(struct mc_port *port, struct mc_str endpoint,
                                     uint32_t function_id, struct mc_str body, uint64_t deadline_ns,
                                     struct mc_buf *reply) {
    struct mc_real_port *real = of(port);
    char address[280];
    if (endpoint.len == 0 || endpoint.len >= sizeof(address)) {
        return MC_INVALID_PARAMS;
    }
    memcpy(address, endpoint.ptr, endpoint.len);
    address[endpoint.len] = '\0';
    struct peer *peer = take_peer(real, address);
    if (peer == NULL) {
        return MC_RPC_FAIL;
    }
    enum mc_status status = call_by(peer->rpc, function_id, body, deadline_ns, reply);
    pthread_mutex_lock(&real->peers_lock);
    peer->users--;
    pthread_mutex_unlock(&real->peers_lock);
    return status;
}

/* ---- moving bytes ---- */

/* The statuses of the tasks of a batch that ended. */
static void collect(struct mc_batch *batch, struct mc_port_move **moves, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct mc_transfer_status task;
        enum mc_status status = mc_batch_task(batch, i, &task);
        if (status == MC_OK && task.state != MC_TRANSFER_COMPLETED) {
            status = task.error != MC_OK ? task.error : MC_TRANSFER_FAIL;
        }
        moves[i]->status = status;
    }
}

static enum mc_status run_batch(struct mc_real_port *real,
                                const struct mc_transfer_request *requests,
                                struct mc_port_move **moves, size_t count, uint64_t deadline_ns) {
    struct mc_batch *batch;
    MC_TRY(mc_batch_create(real->engine, count, &batch));
    enum mc_status status = mc_batch_submit(batch, requests, count, deadline_ns);
    if (status == MC_OK) {
        /* Every task ends by its own deadline; nothing may touch `local` after this function. */
        status = mc_batch_wait(batch, MC_WAIT_FOREVER);
        if (status != MC_OK) {
            collect(batch, moves, count);
        } else {
            for (size_t i = 0; i < count; i++) {
                moves[i]->status = MC_OK;
            }
        }
        status = MC_OK;
    }
    enum mc_status freed = mc_batch_free(batch);
    MC_ASSERT(freed == MC_OK);
    return status;
}

static void run(struct mc_real_port *real, const struct mc_transfer_request *requests,
                struct mc_port_move **moves, size_t count, uint64_t deadline_ns) {
    if (count == 1) {
        moves[0]->status = mc_transfer(real->engine, requests, 1, deadline_ns);
        return;
    }
    enum mc_status status = run_batch(real, requests, moves, count, deadline_ns);
    if (status != MC_OK) {
        for (size_t i = 0; i < count; i++) {
            moves[i]->status = status;
        }
    }
}

/* Pins the endpoints of all moves; those that cannot be opened end here. Returns how many go on. */
static size_t prepare(struct mc_real_port *real, struct mc_port_move *moves, size_t count,
                      uint64_t deadline_ns, struct mc_transfer_request *requests,
                      struct mc_port_move **going, struct endpoint **pinned) {
    size_t n = 0;
    struct endpoint *last = NULL; /* neighbours mostly name the same endpoint */
    for (size_t i = 0; i < count; i++) {
        struct mc_port_move *m = &moves[i];
        if (last != NULL && mc_str_eq(last->name, m->endpoint)) {
            atomic_fetch_add_explicit(&last->pins, 1, memory_order_relaxed);
        } else {
            m->status = pin(real, m->endpoint, deadline_ns, &last);
            if (m->status != MC_OK) {
                last = NULL;
                continue;
            }
        }
        pinned[n] = last;
        going[n] = m;
        requests[n++] = (struct mc_transfer_request){.op = m->op,
                                                     .local = m->local,
                                                     .segment = last->segment,
                                                     .remote_addr = m->remote_addr,
                                                     .length = m->length};
    }
    return n;
}

struct scratch {
    struct mc_transfer_request requests[INLINE_REQUESTS];
    struct mc_port_move *going[INLINE_REQUESTS];
    struct endpoint *pinned[INLINE_REQUESTS];
};

static void real_move(struct mc_port *port, struct mc_port_move *moves, size_t count,
                      uint64_t deadline_ns) {
    struct mc_real_port *real = of(port);
    struct scratch scratch;
    struct mc_transfer_request *requests = scratch.requests;
    struct mc_port_move **going = scratch.going;
    struct endpoint **pinned = scratch.pinned;
    if (real->engine == NULL) {
        for (size_t i = 0; i < count; i++) {
            moves[i].status = MC_ERR_NO_TRANSPORT;
        }
        return;
    }
    if (count > INLINE_REQUESTS) {
        requests = mc_alloc(count * sizeof(*requests));
        going = mc_alloc(count * sizeof(struct mc_port_move *));
        pinned = mc_alloc(count * sizeof(struct endpoint *));
    }
    mc_engine_notice_devices(real->engine);
    size_t n = prepare(real, moves, count, deadline_ns, requests, going, pinned);
    if (n > 0) {
        run(real, requests, going, n, deadline_ns);
    }
    for (size_t i = 0; i < n; i++) {
        unpin(pinned[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (moves[i].status != MC_OK) {
            suspect(real, moves[i].endpoint);
            if (moves[i].op == MC_TRANSFER_WRITE && !mc_write_is_over(moves[i].status)) {
                moves[i].status = MC_ERR_TIMEOUT; /* what port.h says of a write in doubt */
            }
        }
    }
    if (count > INLINE_REQUESTS) {
        free(requests);
        free(going);
        free(pinned);
    }
}

/* ---- views ---- */

static const void *map_own(struct mc_real_port *real, uint64_t addr, uint64_t length) {
    struct mc_memory *memory = mc_memory_acquire(real->engine, addr, length);
    if (memory == NULL) {
        return NULL;
    }
    struct mc_memory_twin *twin = mc_memory_twin_acquire(memory);
    const void *data = twin != NULL ? twin->bytes + (addr - memory->addr) : NULL;
    mc_memory_release(memory);
    if (twin != NULL) {
        pthread_mutex_lock(&real->views_lock);
        struct own_view *view = real->own_views;
        while (view != NULL && view->twin != twin) {
            view = view->next;
        }
        if (view == NULL) {
            view = mc_alloc(sizeof(*view));
            *view = (struct own_view){.next = real->own_views, .twin = twin};
            real->own_views = view;
        }
        view->count++;
        pthread_mutex_unlock(&real->views_lock);
    }
    return data;
}

static const void *real_map(struct mc_port *port, struct mc_str name, uint64_t remote_addr,
                            uint64_t length, uint64_t deadline_ns) {
    struct mc_real_port *real = of(port);
    struct endpoint *e;
    const void *data = NULL;
    if (real->engine == NULL || pin(real, name, deadline_ns, &e) != MC_OK) {
        return NULL;
    }
    if (e->segment == MC_LOCAL_SEGMENT) {
        data = map_own(real, remote_addr, length);
    } else if (mc_segment_map_until(real->engine, e->segment, remote_addr, length, deadline_ns,
                                    &data) != MC_OK) {
        data = NULL;
    }
    if (data == NULL) { /* else the view holds the pin */
        unpin(e);
    }
    return data;
}

static void unmap_own(struct mc_real_port *real, const void *data) {
    pthread_mutex_lock(&real->views_lock);
    struct own_view **link = &real->own_views;
    while (*link != NULL &&
           (uintptr_t)data - (uintptr_t)(*link)->twin->bytes >= (*link)->twin->length) {
        link = &(*link)->next;
    }
    struct own_view *view = *link;
    MC_ASSERT(view != NULL);
    struct mc_memory_twin *twin = view->twin;
    if (--view->count == 0) {
        *link = view->next;
        free(view);
    }
    pthread_mutex_unlock(&real->views_lock);
    mc_memory_twin_release(twin);
}

static void real_unmap(struct mc_port *port, struct mc_str name, const void *data) {
    struct mc_real_port *real = of(port);
    pthread_rwlock_rdlock(&real->lock);
    struct endpoint *e =
        find_locked(real, bucket_of(name), name); /* it is pinned, so it is there */
    pthread_rwlock_unlock(&real->lock);
    MC_ASSERT(e != NULL);
    if (e->segment == MC_LOCAL_SEGMENT) {
        unmap_own(real, data);
    }
    unpin(e);
}

/* ---- life ---- */

static const struct mc_port_ops REAL_OPS = {
    .clock = real_clock,
    .sleep_until = real_sleep_until,
    .call = real_call,
    .peer_call = real_peer_call,
    .move = real_move,
    .map = real_map,
    .unmap = real_unmap,
    .distance = real_distance,
};

struct mc_real_port *mc_real_port_create(struct mc_rpc_client *rpc, struct mc_engine *engine) {
    struct mc_real_port *real = mc_zalloc(sizeof(*real));
    real->port.ops = &REAL_OPS;
    real->rpc = rpc;
    real->engine = engine;
    pthread_rwlock_init(&real->lock, NULL);
    pthread_mutex_init(&real->views_lock, NULL);
    pthread_mutex_init(&real->peers_lock, NULL);
    return real;
}

void mc_real_port_destroy(struct mc_real_port *real) {
    MC_ASSERT(real->own_views == NULL);
    for (size_t i = 0; i < ENDPOINT_BUCKETS; i++) {
        while (real->buckets[i] != NULL) {
            struct endpoint *e = real->buckets[i];
            real->buckets[i] = e->next;
            endpoint_destroy(real, e);
        }
    }
    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (real->peers[i].rpc != NULL) {
            mc_rpc_client_destroy(real->peers[i].rpc);
        }
    }
    pthread_mutex_destroy(&real->peers_lock);
    pthread_rwlock_destroy(&real->lock);
    pthread_mutex_destroy(&real->views_lock);
    free(real);
}

struct mc_port *mc_real_port_face(struct mc_real_port *real) {
    return &real->port;
}

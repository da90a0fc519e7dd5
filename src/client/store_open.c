/*
 * Opening and closing a store, and its heartbeat.
 *
 * Opening goes from the outside in: RPC to the master, is it ready, engine, a name, memory, mount,
 * heartbeat. Whatever fails, what was made before is taken down in the reverse order.
 */
#include "client/store_private.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/env.h"
#include "base/export.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/hot_cache.h"

#define PING_PERIOD_NS         (1 * MC_SEC)
#define PINGS_BEFORE_COMPLAINT 3
#define RPC_CONNECTIONS        64
#define RPC_CONNECT_TIMEOUT_MS 3000
#define CLOSE_TIMEOUT_MS       1000
#define SMALLEST_SEGMENT       1024
#define NAME_PORT_MIN          12300
#define NAME_PORT_MAX          14300
#define NAME_PORT_ATTEMPTS     20
#define NAME_PORT_PAUSE_US     100000

/* ---- options ---- */

MC_PUBLIC void mc_store_options_init(struct mc_store_options *options) {
    *options = (struct mc_store_options){
        .master = "127.0.0.1:50051",
        .metadata = "P2PHANDSHAKE",
        .local_buffer_bytes = 16u << 20,
        .protocol = "tcp",
        .device = "",
        .tenant = "default",
        .timeout_ms = (uint32_t)mc_env_u64("MC_RPC_TIMEOUT_MS", 1, 3600000, 30000),
        .checksum = mc_env_bool("MOONCAKE_STORE_CHECKSUM", false),
        .stripe_bytes = mc_env_u64("MC_STORE_STRIPE_BYTES", 0, UINT64_MAX, 0),
        .hot_cache_bytes = mc_env_u64("MC_STORE_LOCAL_HOT_CACHE_SIZE", 0, UINT64_MAX / 2, 0),
        .hot_object_bytes =
            mc_env_u64("MC_STORE_LOCAL_HOT_BLOCK_SIZE", 1, UINT64_MAX / 2, 16u << 20),
        .hot_admission = (uint32_t)mc_env_u64("MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD", 1, 255, 2),
        .tls_ca = getenv("MC_TLS_CA"),
        .tls_cert = getenv("MC_TLS_CERT"),
        .tls_key = getenv("MC_TLS_KEY"),
        .disable_local_copy = !mc_env_bool("MC_STORE_MEMCPY", true),
    };
}

static enum mc_status check_options(const struct mc_store_options *o) {
    if (o->real_client != NULL && (o->timeout_ms == 0 || o->engine != NULL)) {
        mc_error("a store by way of a node needs a timeout and takes no engine");
        return MC_INVALID_PARAMS;
    }
    if (o->real_client != NULL) {
        return MC_OK;
    }
    if (o->master == NULL || o->metadata == NULL || o->protocol == NULL || o->tenant == NULL ||
        o->timeout_ms == 0) {
        mc_error("a store needs a master, metadata, protocol, tenant and timeout");
        return MC_INVALID_PARAMS;
    }
    bool rpc_only = strcmp(o->protocol, "rpc_only") == 0;
    if (!rpc_only && strcmp(o->protocol, "tcp") != 0) {
        mc_error("this build has no such protocol: protocol=%s accepted=tcp,rpc_only", o->protocol);
        return MC_INVALID_PARAMS;
    }
    if (o->ssd_offload_path != NULL && (rpc_only || o->segment_bytes == 0)) {
        mc_error("an SSD tier needs memory that is lent: ssd_offload_path=%s", o->ssd_offload_path);
        return MC_INVALID_PARAMS;
    }
    if (o->segment_bytes != 0 && (rpc_only || o->segment_bytes < SMALLEST_SEGMENT)) {
        mc_error("a segment needs a transport and at least %d bytes: segment_bytes=%llu",
                 SMALLEST_SEGMENT, (unsigned long long)o->segment_bytes);
        return MC_INVALID_PARAMS;
    }
    return MC_OK;
}

/* ---- a name ---- */

static bool is_any_address(const char *host) {
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "*") == 0;
}

static bool is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* "host:port" as given; the port is 0 when it is ours to choose. */
static enum mc_status read_name(const char *local_hostname, struct mc_hostport *place) {
    *place = (struct mc_hostport){0};
    if (local_hostname != NULL && local_hostname[0] != '\0') {
        enum mc_status status = mc_hostport_parse(local_hostname, place);
        if (status != MC_OK) {
            mc_error("local_hostname is no host or host:port: local_hostname=%s", local_hostname);
            return status;
        }
    }
    if (is_any_address(place->host)) {
        mc_local_ip(place->host, sizeof(place->host));
    }
    return MC_OK;
}

/* A port of our own, which stays bound while the store is open. */
static enum mc_status draw_port(struct mc_store *store, uint16_t *port) {
    uint16_t min = (uint16_t)mc_env_u64("MC_STORE_CLIENT_MIN_PORT", 1, 65535, NAME_PORT_MIN);
    uint16_t max = (uint16_t)mc_env_u64("MC_STORE_CLIENT_MAX_PORT", 1, 65535, NAME_PORT_MAX);
    return mc_listen_range("", min, max, &store->rng, 1, &store->name_fd, port);
}

static void let_port_go(struct mc_store *store) {
    if (store->name_fd >= 0) {
        close(store->name_fd);
        store->name_fd = -1;
    }
}

static void take_name(struct mc_store *store, const struct mc_hostport *place) {
    mc_hostport_format(place->host, place->port, store->name, sizeof(store->name));
    snprintf(store->host_id, sizeof(store->host_id), "%s",
             is_loopback(place->host) ? "" : place->host);
}

/* ---- engine ---- */

/* The port in the name is a name only, as upstream has it, unless the environment asks for the
 * engine to listen there. */
static enum mc_status start_engine(struct mc_store *store, const struct mc_store_options *o,
                                   const struct mc_hostport *place) {
    bool p2p = strcmp(o->metadata, "P2PHANDSHAKE") == 0;
    if (o->engine != NULL) {
        store->engine = o->engine;
    } else if (strcmp(o->protocol, "rpc_only") != 0) {
        struct mc_engine_options engine;
        mc_engine_options_init(&engine);
        engine.tls_peers = o->tls_peers;
        engine.tls_cert = o->tls_cert;
        engine.tls_key = o->tls_key;
        engine.tls_ca = o->tls_ca;
        engine.metadata = o->metadata;
        engine.host = place->host;
        engine.local_name = p2p ? NULL : store->name;
        if (getenv("MC_LEGACY_RPC_PORT_BINDING") != NULL) {
            let_port_go(store);
            engine.rpc_port = place->port;
        }
        engine.disable_shm = engine.disable_shm || o->disable_shm;
        engine.disable_local = engine.disable_local || o->disable_local_copy;
        MC_TRY(mc_engine_create(&engine, &store->engine));
        store->owns_engine = true;
    }
    if (store->engine != NULL) { /* also right for a given engine, whatever its metadata */
        snprintf(store->te_endpoint, sizeof(store->te_endpoint), "%s",
                 mc_engine_name(store->engine));
    }
    return MC_OK;
}

/* A name and an engine under it. When the port is ours to choose and all are taken, or the engine
 * found the chosen one taken, waits a moment and tries again. */
static enum mc_status name_and_engine(struct mc_store *store, const struct mc_store_options *o) {
    struct mc_hostport place;
    MC_TRY(read_name(o->local_hostname, &place));
    bool given = place.port != 0;
    uint64_t attempts =
        given ? 1 : mc_env_u64("MC_STORE_CLIENT_SETUP_RETRIES", 1, 10000, NAME_PORT_ATTEMPTS);
    for (;;) {
        enum mc_status status = given ? MC_OK : draw_port(store, &place.port);
        if (status == MC_OK) {
            take_name(store, &place);
            status = start_engine(store, o, &place);
        }
        if (status != MC_ERR_ADDRESS_IN_USE || --attempts == 0) {
            return status;
        }
        let_port_go(store);
        usleep(NAME_PORT_PAUSE_US);
    }
}

/* ---- heartbeat ---- */

static void beat(struct mc_store *store) {
    enum mc_status status = mc_store_segments_beat(store);
    atomic_store_explicit(&store->healthy, status == MC_OK, memory_order_relaxed);
    if (status == MC_OK) {
        if (store->failed_pings >= PINGS_BEFORE_COMPLAINT) {
            mc_info("the master answers again: after_failed_pings=%u", store->failed_pings);
        }
        store->failed_pings = 0;
    } else if (++store->failed_pings == PINGS_BEFORE_COMPLAINT) {
        mc_warn("the master does not answer pings, trying on: status=%s", mc_status_name(status));
    }
}

/* Sleeps until `until_ns`, or the earlier moment that a new view asks for; false when the store is
 * closing. */
static bool heartbeat_sleep(struct mc_store *store, uint64_t until_ns) {
    pthread_mutex_lock(&store->lock);
    while (!store->stopping) {
        uint64_t until = mc_min_u64(until_ns, store->view_due_ns);
        struct timespec wait = {(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
        if (until <= mc_now_ns(mc_clock_system())) {
            break;
        }
        store->wake_at_ns = until;
        pthread_cond_timedwait(&store->wake, &store->lock, &wait);
    }
    store->wake_at_ns = 0;
    store->view_due_ns = MC_NO_DEADLINE;
    bool going_on = !store->stopping;
    pthread_mutex_unlock(&store->lock);
    return going_on;
}

static void *heartbeat_main(void *arg) {
    struct mc_store *store = arg;
    const struct mc_clock *clock = mc_clock_system();
    uint64_t ping_at = mc_now_ns(clock) + PING_PERIOD_NS; /* opening has just asked the master */
    struct mc_store_report report;
    mc_store_report_init(&report);
    do {
        if (mc_now_ns(clock) >= ping_at) {
            beat(store);
            ping_at = mc_now_ns(clock) + PING_PERIOD_NS;
        }
        if (mc_now_ns(clock) >= report.due_ns) {
            mc_store_report(store, &report, mc_now_ns(clock));
        }
    } while (heartbeat_sleep(
        store, mc_min_u64(mc_min_u64(ping_at, report.due_ns), mc_ops_view_renew(store->ops))));
    return NULL;
}

void mc_store_view_due(struct mc_store *store, uint64_t due_ns) {
    pthread_mutex_lock(&store->lock);
    store->view_due_ns = mc_min_u64(store->view_due_ns, due_ns);
    if (due_ns < store->wake_at_ns) {
        pthread_cond_signal(&store->wake);
    }
    pthread_mutex_unlock(&store->lock);
}

static enum mc_status start_heartbeat(struct mc_store *store) {
    int error = mc_thread_start(&store->heartbeat, "mc-heartbeat", heartbeat_main, store);
    if (error != 0) {
        mc_error("the heartbeat thread could not be started: errno=%d", error);
        return MC_INTERNAL_ERROR;
    }
    store->heartbeat_runs = true;
    return MC_OK;
}

static void stop_threads(struct mc_store *store) {
    pthread_mutex_lock(&store->lock);
    store->stopping = true;
    pthread_cond_signal(&store->wake);
    pthread_cond_signal(&store->worker_wake);
    pthread_mutex_unlock(&store->lock);
    mc_store_worker_join(store);
    if (store->heartbeat_runs) {
        pthread_join(store->heartbeat, NULL);
        store->heartbeat_runs = false;
    }
}

/* ---- open and close ---- */

static void create_ops(struct mc_store *store, const struct mc_store_options *o) {
    if (o->hot_cache_bytes > 0) {
        store->hot = mc_hot_create(
            &(struct mc_hot_config){.bytes = o->hot_cache_bytes,
                                    .largest_bytes = o->hot_object_bytes,
                                    .admission = o->hot_admission > 0 ? o->hot_admission : 1});
    }
    struct mc_ops_config config = {.client = mc_uuid_make(&store->rng),
                                   .tenant = o->tenant,
                                   .host_id = store->host_id,
                                   .timeout_ms = o->timeout_ms,
                                   .checksum = o->checksum,
                                   .hot = store->hot,
                                   .stripe_bytes = o->stripe_bytes};
    store->port = mc_real_port_create(store->rpc, store->engine);
    store->ops = mc_ops_create(mc_real_port_face(store->port), &config);
    store->node = (struct mc_ops_node){.name = store->name,
                                       .te_endpoint = store->te_endpoint,
                                       .protocol = store->protocol,
                                       .host_id = store->host_id,
                                       .fresh_memory = mc_store_segment_fresh_memory,
                                       .ctx = store};
    mc_store_metrics_of_ops(store);
}

static struct mc_store *store_create(const struct mc_store_options *o) {
    struct mc_store *store = mc_zalloc(sizeof(*store));
    store->name_fd = -1;
    store->view_due_ns = MC_NO_DEADLINE;
    mc_store_metrics_create(store, o);
    snprintf(store->protocol, sizeof(store->protocol), "%s",
             o->protocol != NULL ? o->protocol : "");
    mc_rng_seed_system(&store->rng);
    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->segments_lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&store->wake, &attributes);
    pthread_cond_init(&store->worker_wake, &attributes);
    pthread_condattr_destroy(&attributes);
    return store;
}

static enum mc_status open_steps(struct mc_store *store, const struct mc_store_options *o) {
    if (o->real_client != NULL) {
        return mc_dummy_client_open(o, store->metrics, &store->dummy);
    }
    uint32_t connect_ms =
        (uint32_t)mc_env_u64("MC_RPC_CONNECT_TIMEOUT_MS", 1, 3600000, RPC_CONNECT_TIMEOUT_MS);
    MC_TRY(mc_rpc_client_create(o->master, RPC_CONNECTIONS, connect_ms, &store->rpc));
    const struct mc_tls_config tls = {o->tls_cert, o->tls_key, o->tls_ca};
    if (mc_tls_wanted(&tls)) {
        MC_TRY(mc_tls_create(&tls, false, &store->tls));
        mc_rpc_client_use_tls(store->rpc, store->tls);
    }
    MC_TRY(name_and_engine(store, o));
    create_ops(store, o);
    enum mc_status status = mc_ops_ready(store->ops);
    if (status != MC_OK) {
        mc_error("the master is not ready: master=%s status=%s", o->master, mc_status_name(status));
        return status;
    }
    atomic_store_explicit(&store->healthy, true, memory_order_relaxed);
    mc_ops_find_files(store->ops);
    if (o->ssd_offload_path != NULL) { /* first: what is put into our memory is to be offloaded */
        MC_TRY(mc_store_offload_start(store, o));
    }
    if (o->segment_bytes > 0) {
        MC_TRY(mc_store_segments_lend(store, o->segment_bytes));
    }
    MC_TRY(start_heartbeat(store));
    if (store->engine != NULL) {
        MC_TRY(mc_store_worker_start(store));
    }
    return MC_OK;
}

/* Takes down whatever was made. */
static void store_destroy(struct mc_store *store) {
    mc_store_offload_stop(store);
    stop_threads(store);
    mc_dummy_client_close(store->dummy);
    if (store->ops != NULL) {
        mc_ops_put_session_revoke_all(store->ops);
        mc_store_segments_unmount_all(store);
        mc_ops_destroy(store->ops);
        mc_hot_destroy(store->hot);
        mc_real_port_destroy(store->port);
    }
    mc_store_segments_destroy(store);
    if (store->owns_engine) {
        mc_engine_destroy(store->engine);
    }
    if (store->rpc != NULL) {
        mc_rpc_client_destroy(store->rpc);
    }
    mc_tls_destroy(store->tls);
    let_port_go(store);
    mc_store_metrics_destroy(store);
    pthread_cond_destroy(&store->wake);
    pthread_cond_destroy(&store->worker_wake);
    pthread_mutex_destroy(&store->lock);
    pthread_mutex_destroy(&store->segments_lock);
    free(store);
}

MC_PUBLIC enum mc_status mc_store_open(const struct mc_store_options *options,
                                       struct mc_store **out) {
    MC_TRY(check_options(options));
    struct mc_store *store = store_create(options);
    enum mc_status status = open_steps(store, options);
    if (status != MC_OK) {
        store_destroy(store);
        return status;
    }
    *out = store;
    return MC_OK;
}

MC_PUBLIC void mc_store_close(struct mc_store *store) {
    if (store != NULL) {
        store_destroy(store);
    }
}

/*
 * The engine's life: options, reactors, handshake listener, transports, and their end in the
 * reverse order.
 *
 * Bind, then publish: the listener's port is ours before anybody hears of it, and the name is
 * published last, when everything that a peer may ask for answers.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/env.h"
#include "base/export.h"
#include "base/log.h"
#include "base/thread.h"
#include "te/internal.h"
#include "te/stage_server.h"

#define REPLY_TIMEOUT_MS 10000
#define DEFAULT_LANES    4

MC_PUBLIC uint64_t mc_deadline_in_ms(uint64_t ms) {
    uint64_t now = mc_now_ns(mc_clock_system());
    return ms >= (MC_WAIT_FOREVER - now) / MC_MS ? MC_WAIT_FOREVER : now + ms * MC_MS;
}

/* ---- options and identity ---- */

static enum mc_status adopt_options(struct mc_engine *engine, const struct mc_engine_options *in) {
    struct mc_engine_options *o = &engine->options;
    *o = *in;
    o->metadata = mc_strdup(in->metadata != NULL ? in->metadata : "P2PHANDSHAKE");
    o->local_name =
        in->local_name != NULL && in->local_name[0] != '\0' ? mc_strdup(in->local_name) : NULL;
    o->host = in->host != NULL && in->host[0] != '\0' ? mc_strdup(in->host) : NULL;
    o->policy = in->policy != NULL ? mc_strdup(in->policy) : NULL;
    MC_TRY(mc_policy_load(o->policy, &engine->policy));
    if (engine->policy.qos_page[0] != '\0' &&
        mc_qos_host_open(engine->policy.qos_page, &engine->qos_host) != MC_OK) {
        engine->qos_host = NULL; /* said in the log; it is advice only */
    }
    if (o->port_min > o->port_max || o->port_min == 0) {
        mc_error("port range is empty min=%u max=%u", (unsigned)o->port_min, (unsigned)o->port_max);
        return MC_INVALID_PARAMS;
    }
    if (o->reactors == 0) {
        o->reactors = (unsigned)mc_min_u64(2, mc_usable_cores());
    }
    if (o->reactors > MC_ARRAY_LEN(engine->reactors) || o->lanes_per_peer > 64) {
        return MC_INVALID_PARAMS;
    }
    o->lanes_per_peer = o->lanes_per_peer == 0 ? DEFAULT_LANES : o->lanes_per_peer;
    o->connect_timeout_ms = o->connect_timeout_ms == 0 ? 5000 : o->connect_timeout_ms;
    engine->listen_backlog = (int)mc_env_u64("MC_HANDSHAKE_LISTEN_BACKLOG", 1, 65535, 128);
    engine->slice_timeout_ns = mc_env_u64("MC_SLICE_TIMEOUT", 1, 65535, 0) * MC_SEC;
    engine->cache_descriptors = getenv("MC_DISABLE_METACACHE") == NULL;
    return MC_OK;
}

static enum mc_status open_tls(struct mc_engine *engine) {
    struct mc_engine_options *o = &engine->options;
    struct mc_tls_config config = mc_tls_config_environment();
    enum mc_tls_mode mode;
    MC_TRY(mc_tls_mode_parse(o->tls_peers, &mode));
    config.cert = o->tls_cert != NULL ? o->tls_cert : config.cert;
    config.key = o->tls_key != NULL ? o->tls_key : config.key;
    config.ca = o->tls_ca != NULL ? o->tls_ca : config.ca;
    config.peer_name = o->tls_peer_name != NULL ? o->tls_peer_name : config.peer_name;
    o->tls_peers = o->tls_cert = o->tls_key = NULL; /* the caller's, who may free them now */
    o->tls_ca = o->tls_peer_name = NULL;
    return mc_tls_peers_open(mode, &config, &engine->tls);
}

static void free_options(struct mc_engine_options *o) {
    free((char *)(uintptr_t)o->metadata);
    free((char *)(uintptr_t)o->local_name);
    free((char *)(uintptr_t)o->host);
    free((char *)(uintptr_t)o->policy);
}

/* Same host = same boot id: a name or an address does not say it. */
static void read_boot_id(char out[40]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, 39) : -1;
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (fd >= 0) {
        close(fd);
    }
}

/* With P2P the segment's name is where the handshake listens; in it the host part of local_name, if
 * any, comes before what the machine thinks of itself. */
static enum mc_status choose_host(struct mc_engine *engine) {
    const struct mc_engine_options *o = &engine->options;
    struct mc_hostport named;
    if (o->host != NULL) {
        snprintf(engine->host, sizeof(engine->host), "%s", o->host);
    } else if (mc_meta_is_p2p(engine->meta) && o->local_name != NULL) {
        MC_TRY(mc_hostport_parse(o->local_name, &named));
        snprintf(engine->host, sizeof(engine->host), "%s", named.host);
    } else {
        mc_local_ip(engine->host, sizeof(engine->host));
    }
    return mc_name_ok(engine->host, sizeof(engine->host)) ? MC_OK : MC_ERR_BAD_ADDRESS;
}

static enum mc_status listen_handshake(struct mc_engine *engine, int *fd) {
    const struct mc_engine_options *o = &engine->options;
    const char *bind_host = o->host != NULL ? o->host : "";
    uint16_t port = o->rpc_port;
    struct mc_hostport named;
    if (port == 0 && getenv("MC_LEGACY_RPC_PORT_BINDING") != NULL && o->local_name != NULL &&
        mc_hostport_parse(o->local_name, &named) == MC_OK) {
        port = named.port;
    }
    if (port != 0) {
        return mc_listen(bind_host, port, engine->listen_backlog, fd, &engine->rpc_port);
    }
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    return mc_listen_range(bind_host, o->port_min, o->port_max, &rng, engine->listen_backlog, fd,
                           &engine->rpc_port);
}

static enum mc_status choose_name(struct mc_engine *engine) {
    char text[MC_HOST_MAX + 8];
    if (!mc_meta_is_p2p(engine->meta) && engine->options.local_name != NULL) {
        if (!mc_name_ok(engine->options.local_name, sizeof(engine->name))) {
            return MC_INVALID_PARAMS;
        }
        snprintf(engine->name, sizeof(engine->name), "%s", engine->options.local_name);
        return MC_OK;
    }
    mc_hostport_format(engine->host, engine->rpc_port, text, sizeof(text));
    snprintf(engine->name, sizeof(engine->name), "%s", text);
    return MC_OK;
}

/* ---- parts ---- */

static void on_metadata(void *ctx, struct mc_str request, struct mc_buf *reply) {
    mc_engine_describe_to(ctx, request, reply);
}

static enum mc_status on_notify(void *ctx, struct mc_str name, struct mc_str message) {
    return mc_notify_queue(ctx, name, message);
}

static bool on_connection(void *ctx, struct mc_str body, struct mc_handshake_call *call) {
    struct mc_engine *engine = ctx;
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->handshake != NULL) {
            t->ops->handshake(t, body, call);
            return true;
        }
    }
    return false;
}

static bool on_stage(void *ctx, void **state, struct mc_str body, struct mc_handshake_call *call) {
    struct mc_engine *engine = ctx;
    if (engine->stage_server == NULL) { /* always on this reactor */
        engine->stage_server = mc_stage_server_create(engine);
    }
    return engine->stage_server != NULL &&
           mc_stage_server_request(engine->stage_server, state, body, call);
}

static void on_stage_closed(void *ctx, void *state) {
    struct mc_engine *engine = ctx;
    mc_stage_server_closed(engine->stage_server, state);
}

static enum mc_status start_reactors(struct mc_engine *engine) {
    for (unsigned i = 0; i < engine->options.reactors; i++) {
        char name[24];
        snprintf(name, sizeof(name), "mc-te-%u", i);
        MC_TRY(mc_reactor_create(name, &engine->reactors[i]));
        engine->reactor_count++;
    }
    return MC_OK;
}

static void register_engine_metrics(struct mc_engine *engine) {
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_tasks_failed_total", "",
                        "requests that failed but for their deadline", &engine->tasks_failed);
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_tasks_timed_out_total", "",
                        "requests that failed by their deadline", &engine->tasks_timed_out);
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_populated_bytes_total", "",
                        "bytes of lent memory given their pages in advance", &engine->populated);
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_descriptor_fetches_total",
                        "", "segment descriptors asked for", &engine->refreshes);
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER,
                        "mooncake_te_notifications_received_total", "", "notifications queued",
                        &engine->notify_received);
    mc_metrics_register(
        engine->metrics, MC_METRIC_COUNTER, "mooncake_te_notifications_dropped_total", "",
        "notifications dropped unread, the queue being full", &engine->notify_dropped);
}

/* A name that a policy misspells would otherwise change nothing, or leave a request without a way,
 * and nobody would know why. */
static void check_transport_name(const char *name, const struct mc_transport_ops *const *table,
                                 size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, table[i]->name) == 0) {
            return;
        }
    }
    mc_warn("policy: there is no such transport here transport=%s", name);
}

static void check_policy_names(const struct mc_policy *policy,
                               const struct mc_transport_ops *const *table, size_t count) {
    for (unsigned i = 0; i < policy->disabled_count; i++) {
        check_transport_name(policy->disabled[i], table, count);
    }
    for (unsigned i = 0; i < policy->rule_count; i++) {
        for (unsigned j = 0; j < policy->rules[i].transport_count; j++) {
            check_transport_name(policy->rules[i].transports[j], table, count);
        }
    }
}

static enum mc_status start_transports(struct mc_engine *engine,
                                       const struct mc_transport_ops *const *table, size_t count) {
    check_policy_names(&engine->policy, table, count);
    for (size_t i = 0; i < count; i++) {
        struct mc_transport *t = NULL;
        unsigned index = engine->transport_count;
        if (mc_policy_disables(&engine->policy, table[i]->name)) {
            continue;
        }
        if (engine->tls.mode == MC_TLS_REQUIRE && table[i]->in_the_clear) {
            mc_info("TLS is required, so this transport is not used: transport=%s", table[i]->name);
            continue;
        }
        enum mc_status status = table[i]->start(engine, index, &t);
        if (status == MC_NOT_SUPPORTED) {
            continue;
        }
        if (status != MC_OK) {
            mc_error("transport did not start name=%s status=%s", table[i]->name,
                     mc_status_name(status));
            return status;
        }
        engine->transports[index] = t;
        mc_dispatch_init(&engine->dispatch[index], t);
        engine->transport_count++;
        engine->local = table[i] == &mc_transport_local_ops ? t : engine->local;
        engine->stage = table[i] == &mc_transport_stage_ops ? t : engine->stage;
        mc_dispatch_register(&engine->dispatch[index], engine->metrics);
    }
    return MC_OK;
}

/* Threads that use the engine as an application does end before what they use. */
static void quiesce_transports(struct mc_engine *engine) {
    for (unsigned i = 0; i < engine->transport_count; i++) {
        struct mc_transport *t = engine->transports[i];
        if (t->ops->quiesce != NULL) {
            t->ops->quiesce(t);
        }
    }
}

static void stop_transports(struct mc_engine *engine) {
    while (engine->transport_count > 0) {
        struct mc_dispatch *d = &engine->dispatch[--engine->transport_count];
        d->transport->ops->stop(d->transport);
        mc_dispatch_destroy(d);
    }
}

static void stop_reactors(struct mc_engine *engine) {
    while (engine->reactor_count > 0) {
        mc_reactor_destroy(engine->reactors[--engine->reactor_count]);
    }
}

/* ---- create and destroy ---- */

static void init_parts(struct mc_engine *engine) {
    struct mc_rng rng;
    mc_rng_seed_system(&rng);
    engine->id = mc_uuid_make(&rng);
    engine->clock = mc_clock_system();
    mc_engine_notice_devices(engine);
    read_boot_id(engine->boot_id);
    engine->metrics = mc_metrics_create();
    register_engine_metrics(engine);
    mc_list_init(&engine->batches);
    pthread_mutex_init(&engine->batches_lock, NULL);
    pthread_cond_init(&engine->batches_changed, NULL);
    pthread_mutex_init(&engine->topo_lock, NULL);
    mc_memory_init(engine);
    mc_notify_init(engine);
    mc_publish_init(engine);
    mc_segments_init(engine);
}

static void destroy_parts(struct mc_engine *engine) {
    mc_stage_server_destroy(engine->stage_server);
    quiesce_transports(engine);
    mc_workers_destroy(engine->workers);
    mc_segments_destroy(engine);
    stop_transports(engine);
    stop_reactors(engine);
    pthread_mutex_destroy(&engine->table_lock);
    mc_memory_destroy(engine);
    mc_notify_destroy(engine);
    mc_publish_destroy(engine);
    mc_topology_destroy(engine);
    mc_meta_close(engine->meta);
    mc_metrics_destroy(engine->metrics);
    pthread_mutex_destroy(&engine->batches_lock);
    pthread_cond_destroy(&engine->batches_changed);
    mc_tls_peers_close(&engine->tls);
    free_options(&engine->options);
    mc_qos_host_close(engine->qos_host);
    free(engine);
}

static enum mc_status open_meta(struct mc_engine *engine) {
    struct mc_handshake_limits limits;
    mc_handshake_limits_init(&limits);
    limits.connect_timeout_ms = engine->options.connect_timeout_ms;
    limits.reply_timeout_ms = REPLY_TIMEOUT_MS;
    limits.tls = &engine->tls;
    return mc_meta_open(engine->options.metadata, &limits, &engine->meta);
}

/* The listener serves from here on; the name is known to the store. */
static enum mc_status go_public(struct mc_engine *engine, int listen_fd) {
    const struct mc_handshake_handler handler = {engine,        on_metadata, on_notify,
                                                 on_connection, on_stage,    on_stage_closed};
    MC_TRY(mc_handshake_serve(engine->reactors[0], listen_fd, &handler,
                              mc_meta_limits(engine->meta), engine->metrics, &engine->handshake));
    MC_TRY(mc_publish_start(engine));
    mc_poll_start(engine);
    mc_watch_start(engine);
    return MC_OK;
}

enum mc_status mc_engine_create_with(const struct mc_engine_options *options,
                                     const struct mc_transport_ops *const *table, size_t count,
                                     struct mc_engine **out) {
    if (count > MC_TRANSPORT_MAX) {
        return MC_INVALID_PARAMS;
    }
    struct mc_engine *engine = mc_zalloc(sizeof(*engine));
    int listen_fd = -1;
    init_parts(engine);
    enum mc_status status = adopt_options(engine, options);
    if (status != MC_OK || (status = open_tls(engine)) != MC_OK ||
        (status = mc_topology_init(engine)) != MC_OK || (status = open_meta(engine)) != MC_OK ||
        (status = choose_host(engine)) != MC_OK ||
        (status = listen_handshake(engine, &listen_fd)) != MC_OK) {
        goto fail;
    }
    if ((status = choose_name(engine)) != MC_OK || (status = start_reactors(engine)) != MC_OK ||
        (status = mc_workers_create(&engine->workers)) != MC_OK ||
        (status = start_transports(engine, table, count)) != MC_OK) {
        close(listen_fd);
        goto fail;
    }
    status = go_public(engine, listen_fd); /* owns listen_fd */
    if (status != MC_OK) {
        goto fail_public;
    }
    mc_info("engine started name=%s host=%s rpc_port=%u", engine->name, engine->host,
            (unsigned)engine->rpc_port);
    *out = engine;
    return MC_OK;
fail_public:
    mc_handshake_stop(engine->handshake);
fail:
    destroy_parts(engine);
    return status;
}

MC_PUBLIC enum mc_status mc_engine_create(const struct mc_engine_options *options,
                                          struct mc_engine **engine) {
    return mc_engine_create_with(options, mc_transport_table, mc_transport_count, engine);
}

/* Ends every unfinished task, lets go of batches that the application still holds, waits for
 * threads inside mc_transfer. */
static void end_batches(struct mc_engine *engine) {
    pthread_mutex_lock(&engine->batches_lock);
    for (struct mc_list *at = engine->batches.next; at != &engine->batches; at = at->next) {
        struct mc_batch *batch = mc_container_of(at, struct mc_batch, link);
        batch->pins++; /* without the lock, for who ends a task may need it */
        pthread_mutex_unlock(&engine->batches_lock);
        mc_batch_abort(batch, MC_ERR_CANCELLED);
        pthread_mutex_lock(&engine->batches_lock);
        batch->pins--;
        pthread_cond_broadcast(&engine->batches_changed);
    }
    while (!mc_list_empty(&engine->batches)) {
        struct mc_batch *batch = mc_container_of(engine->batches.next, struct mc_batch, link);
        if (batch->in_call) {
            pthread_cond_wait(&engine->batches_changed, &engine->batches_lock);
            continue;
        }
        mc_list_del(&batch->link);
        while (atomic_load_explicit(&batch->word, memory_order_acquire) != MC_BATCH_DONE ||
               atomic_load_explicit(&batch->waiters, memory_order_acquire) != 0) {
            usleep(100); /* a notification is on its way, or a waiter on its way out */
        }
        mc_batch_drop_segments(batch);
        batch->engine = NULL;
    }
    pthread_mutex_unlock(&engine->batches_lock);
}

MC_PUBLIC void mc_engine_destroy(struct mc_engine *engine) {
    if (engine == NULL) {
        return;
    }
    atomic_store_explicit(&engine->closing, true, memory_order_release);
    mc_poll_stop(engine);
    mc_watch_stop(engine);
    mc_publish_stop(engine);
    mc_handshake_stop(engine->handshake);
    end_batches(engine);
    destroy_parts(engine);
}

/* ---- questions ---- */

MC_PUBLIC const char *mc_engine_name(const struct mc_engine *engine) {
    return engine->name;
}
MC_PUBLIC uint16_t mc_engine_rpc_port(const struct mc_engine *engine) {
    return engine->rpc_port;
}

MC_PUBLIC const char *mc_engine_host(const struct mc_engine *engine) {
    return engine->host;
}
MC_PUBLIC const char *mc_engine_transport(const struct mc_engine *engine, unsigned index) {
    return index < engine->transport_count ? engine->transports[index]->ops->name : NULL;
}

MC_PUBLIC void mc_engine_withdraw(struct mc_engine *engine) {
    mc_publish_stop(engine);
}

MC_PUBLIC char *mc_engine_metrics(struct mc_engine *engine) {
    struct mc_buf text = {0};
    mc_metrics_print(engine->metrics, &text);
    (void)mc_buf_cstr(&text);
    return text.data;
}

const struct mc_tls_peers *mc_engine_tls(const struct mc_engine *engine) {
    return &engine->tls;
}

const struct mc_engine_options *mc_engine_config(const struct mc_engine *engine) {
    return &engine->options;
}
struct mc_uuid mc_engine_id(const struct mc_engine *engine) {
    return engine->id;
}
const char *mc_engine_boot_id(const struct mc_engine *engine) {
    return engine->boot_id;
}
struct mc_metrics *mc_engine_registry(struct mc_engine *engine) {
    return engine->metrics;
}
unsigned mc_engine_reactor_count(const struct mc_engine *engine) {
    return engine->reactor_count;
}
struct mc_reactor *mc_engine_reactor(struct mc_engine *engine, unsigned index) {
    MC_ASSERT(index < engine->reactor_count);
    return engine->reactors[index];
}

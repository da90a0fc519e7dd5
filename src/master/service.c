/*
 * The master as a service. See master/service.h.
 *
 * Start order: events, core, HTTP servers, RPC, janitor. Who finds the RPC port open finds
 * everything open; /health says that the service is ready only when the RPC server accepts. At the
 * end each part goes before what it uses: the admin server looks into the core, the janitor uses
 * the metadata server.
 */
#include "master/service.h"

#include "base/log.h"
#include "base/thread.h"
#include "master/admin.h"
#include "master/metadata_http.h"
#include "wire/schema.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define TICK_NS (10 * MC_MS)

struct mc_master_service {
    struct mc_master_service_config config;
    struct mc_metrics *metrics;
    struct mc_master *core;
    struct mc_rpc_server *rpc;
    struct mc_tls *tls; /* of the RPC server; NULL = plain */
    struct mc_admin *admin;
    struct mc_metadata_http *metadata;
    struct mc_events *events; /* NULL = none */
    uint16_t rpc_port, admin_port, metadata_port;
    uint32_t admin_port_rpc; /* its function id */
    _Atomic bool ready;

    pthread_t janitor;
    pthread_mutex_t mutex; /* guards stopping */
    pthread_cond_t wake;
    bool stopping;
};

void mc_master_service_config_init(struct mc_master_service_config *config) {
    *config = (struct mc_master_service_config){.rpc_host = "0.0.0.0",
                                                .rpc_threads = 1,
                                                .rpc_no_delay = true,
                                                .admin_host = "0.0.0.0",
                                                .metadata_host = "0.0.0.0"};
    mc_master_config_init(&config->core);
}

/* ---- the janitor ---- */

static void segment_lost(void *ctx, struct mc_str segment_name) {
    struct mc_master_service *s = ctx;
    if (s->config.metadata_cleanup && s->metadata != NULL) {
        mc_metadata_http_forget(s->metadata, segment_name);
    }
}

/* Logs the summary when its counters changed since the last one. */
static void report(struct mc_master_service *s, struct mc_summary_rates *rates) {
    struct mc_summary_rates before = *rates;
    struct mc_buf line = {0};
    mc_admin_summary(s->core, s->metrics, rates, &line);
    if (memcmp(before.seen, rates->seen, sizeof(before.seen)) != 0) {
        mc_info("%s", mc_buf_cstr(&line));
    }
    mc_buf_free(&line);
}

/* Waits for the next tick; true when the service stops. */
static bool wait_for_tick(struct mc_master_service *s) {
    uint64_t until_ns = mc_now_ns(mc_clock_system()) + TICK_NS;
    struct timespec until = {(time_t)(until_ns / MC_SEC), (long)(until_ns % MC_SEC)};
    pthread_mutex_lock(&s->mutex);
    if (!s->stopping) {
        pthread_cond_timedwait(&s->wake, &s->mutex, &until); /* early wake-ups do no harm */
    }
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->mutex);
    return stopping;
}

static void *janitor_main(void *arg) {
    struct mc_master_service *s = arg;
    struct mc_summary_rates rates = {0};
    uint64_t next_report_ns = mc_now_ns(mc_clock_system()) + s->config.report_interval_ms * MC_MS;
    while (!wait_for_tick(s)) {
        mc_master_tick(s->core);
        uint64_t now_ns = mc_now_ns(mc_clock_system());
        if (s->config.report_interval_ms > 0 && now_ns >= next_report_ns) {
            report(s, &rates);
            next_report_ns = now_ns + s->config.report_interval_ms * MC_MS;
        }
    }
    return NULL;
}

static enum mc_status start_janitor(struct mc_master_service *s) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->mutex, NULL);
    s->stopping = false;
    int error = mc_thread_start(&s->janitor, "mc-janitor", janitor_main, s);
    if (error != 0) {
        mc_error("the janitor thread cannot be started errno=%d", error);
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->mutex);
        return MC_ERR_LIMIT;
    }
    return MC_OK;
}

static void stop_janitor(struct mc_master_service *s) {
    pthread_mutex_lock(&s->mutex);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->janitor, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
}

/* ---- life ---- */

/* What the service knows and the core does not. */
static void serve(void *ctx, const struct mc_rpc_request *request, struct mc_rpc_reply *reply) {
    struct mc_master_service *s = ctx;
    if (request->function_id == s->admin_port_rpc) {
        bool tls = s->admin_port != 0 && mc_tls_wanted(&s->config.http_tls);
        uint64_t port = s->admin_port | (tls ? MC_MASTER_ADMIN_TLS : 0);
        mc_wire_encode(&mc_t_u64, mc_type_hash(&mc_t_u64), &port, reply->body);
    } else {
        mc_master_serve(s->core, request, reply);
    }
}
static bool serves_slowly(void *ctx, uint32_t function_id) {
    return mc_master_serves_slowly(((struct mc_master_service *)ctx)->core, function_id);
}
static void closed(void *ctx, const uint64_t *peer_words, const char *peer) {
    mc_master_closed(((struct mc_master_service *)ctx)->core, peer_words, peer);
}

static enum mc_status start_rpc(struct mc_master_service *s) {
    if (mc_tls_wanted(&s->config.rpc_tls)) {
        MC_TRY(mc_tls_create(&s->config.rpc_tls, true, &s->tls));
    }
    struct mc_rpc_server_config rpc = {.host = s->config.rpc_host,
                                       .port = s->config.rpc_port,
                                       .threads = s->config.rpc_threads,
                                       .idle_timeout_ms = s->config.rpc_idle_timeout_ms,
                                       .no_delay = s->config.rpc_no_delay,
                                       .tls = s->tls,
                                       .max_buffered_bytes = s->config.rpc_buffer_limit_bytes,
                                       .handler = serve,
                                       .closed = closed,
                                       .slow = serves_slowly,
                                       .ctx = s,
                                       .metrics = s->metrics};
    MC_TRY(mc_rpc_server_start(&rpc, &s->rpc, &s->rpc_port));
    atomic_store_explicit(&s->ready, true, memory_order_release);
    return MC_OK;
}

static enum mc_status start_core(struct mc_master_service *s) {
    if (s->config.events.endpoint != NULL && s->config.events.endpoint[0] != '\0') {
        MC_TRY(mc_events_start(&s->config.events, s->metrics, &s->events));
        s->config.core.on_object_event = mc_events_push;
        s->config.core.on_object_event_ctx = s->events;
    }
    s->core = mc_master_create(&s->config.core, mc_clock_system(), s->metrics);
    return s->core != NULL ? MC_OK : MC_INVALID_PARAMS; /* it has said why */
}

static enum mc_status start_http(struct mc_master_service *s) {
    if (s->config.metadata) {
        MC_TRY(mc_metadata_http_start(s->config.metadata_host, s->config.metadata_port,
                                      &s->config.http_tls, &s->metadata, &s->metadata_port));
    }
    if (s->config.admin) {
        struct mc_admin_config admin = {.host = s->config.admin_host,
                                        .port = s->config.admin_port,
                                        .tls = &s->config.http_tls,
                                        .master = s->core,
                                        .metrics = s->metrics,
                                        .events = s->events,
                                        .service_ready = &s->ready};
        MC_TRY(mc_admin_start(&admin, &s->admin, &s->admin_port));
    }
    return MC_OK;
}

enum mc_status mc_master_service_start(const struct mc_master_service_config *config,
                                       struct mc_master_service **out) {
    struct mc_master_service *s = mc_zalloc(sizeof(*s));
    s->config = *config;
    s->config.core.on_segment_lost = segment_lost;
    s->config.core.on_segment_lost_ctx = s;
    s->admin_port_rpc = mc_rpc_function_id(MC_MASTER_ADMIN_PORT_RPC);
    s->metrics = mc_metrics_create();
    enum mc_status status = start_core(s);
    if (status == MC_OK) {
        status = start_http(s);
    }
    if (status == MC_OK) {
        status = start_rpc(s);
    }
    if (status == MC_OK) {
        status = start_janitor(s);
    }
    if (status != MC_OK) {
        goto fail_parts;
    }
    *out = s;
    return MC_OK;

fail_parts:
    mc_admin_stop(s->admin);
    if (s->rpc != NULL) {
        mc_rpc_server_stop(s->rpc);
    }
    mc_metadata_http_stop(s->metadata);
    mc_events_stop(s->events);
    mc_master_destroy(s->core);
    mc_metrics_destroy(s->metrics);
    mc_tls_destroy(s->tls);
    free(s);
    return status;
}

void mc_master_service_stop(struct mc_master_service *s) {
    if (s == NULL) {
        return;
    }
    atomic_store_explicit(&s->ready, false, memory_order_release);
    mc_admin_stop(s->admin);
    mc_rpc_server_stop(s->rpc);
    stop_janitor(s);
    mc_metadata_http_stop(s->metadata);
    mc_events_stop(s->events);
    mc_master_destroy(s->core);
    mc_metrics_destroy(s->metrics);
    mc_tls_destroy(s->tls);
    free(s);
}

uint16_t mc_master_service_rpc_port(const struct mc_master_service *s) {
    return s->rpc_port;
}
uint16_t mc_master_service_admin_port(const struct mc_master_service *s) {
    return s->admin_port;
}
uint16_t mc_master_service_metadata_port(const struct mc_master_service *s) {
    return s->metadata_port;
}
struct mc_master *mc_master_service_core(struct mc_master_service *s) {
    return s->core;
}
struct mc_metrics *mc_master_service_metrics(struct mc_master_service *s) {
    return s->metrics;
}

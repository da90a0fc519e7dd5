/*
 * The admin endpoints. See master/admin.h.
 *
 * Each handler asks the core through the functions of master.h that look inside without changing
 * anything, and writes the answer into the response. Handlers run one at a time on the HTTP
 * server's thread, so the arena and the rates of the summary need no lock.
 */
#include "master/admin.h"

#include "base/log.h"
#include "io/http.h"

#include <inttypes.h>
#include <stdatomic.h>

#define ADMIN_MAX_BODY       (1u << 20)
#define ADMIN_MAX_KEYS       10000 /* of one batch_query_keys */
#define TYPE_JSON            "application/json; charset=utf-8"
#define TYPE_TEXT            "text/plain; charset=utf-8"
#define TYPE_TEXT_EXPOSITION "text/plain; version=0.0.4"

struct mc_admin {
    struct mc_admin_config config;
    struct mc_http_server *http;
    struct mc_arena arena;
    struct mc_summary_rates rates;
};

typedef const struct mc_http_request request_t;
typedef struct mc_http_response response_t;

static bool service_ready(const struct mc_admin *admin) {
    return atomic_load_explicit(admin->config.service_ready, memory_order_acquire);
}

static void text_answer(response_t *response, int status, const char *text) {
    response->status = status;
    response->content_type = TYPE_TEXT_EXPOSITION;
    mc_buf_puts(&response->body, text);
}

static void error_answer(response_t *response, enum mc_status status, const char *message) {
    response->content_type = TYPE_JSON;
    response->status = mc_json_error(&response->body, status, message);
}

/* ---- health and metrics ---- */

static void handle_health(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    response->content_type = TYPE_JSON;
    mc_buf_printf(
        &response->body,
        "{\"status\":\"ok\",\"role\":\"leader\",\"ha_state\":\"serving\",\"service_ready\":%s,"
        "\"leader_address\":null,\"view_version\":null}",
        service_ready(admin) ? "true" : "false");
}

static void handle_role(void *ctx, request_t *request, response_t *response) {
    response->content_type = TYPE_TEXT;
    mc_buf_puts(&response->body, "leader");
}

static void handle_ha_status(void *ctx, request_t *request, response_t *response) {
    response->content_type = TYPE_TEXT;
    mc_buf_puts(&response->body, "serving");
}

static void handle_leader(void *ctx, request_t *request, response_t *response) {
    response->content_type = TYPE_JSON;
    mc_buf_puts(&response->body,
                "{\"present\":false,\"leader_address\":null,\"view_version\":null}");
}

/* Upstream's members; behind them ours. */
static void handle_kv_events(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    const struct mc_events *events = admin->config.events;
    struct mc_events_stats stats = {0};
    struct mc_buf *out = &response->body;
    if (events != NULL) {
        mc_events_stats(events, &stats);
    }
    response->content_type = TYPE_JSON;
    mc_buf_printf(out,
                  "{\"enabled\":%s,\"published_batches\":%" PRIu64 ",\"published_events\":%" PRIu64
                  ",\"dropped_events\":%" PRIu64 ",\"skipped_unparsed_keys\":%" PRIu64,
                  events ? "true" : "false", stats.published_batches, stats.published_events,
                  stats.dropped_events, stats.skipped_unparsed_keys);
    if (events != NULL) {
        mc_buf_printf(out,
                      ",\"waiting_events\":%" PRIu64 ",\"replays\":%" PRIu64
                      ",\"replayed_batches\":%" PRIu64 ",\"refused_replays\":%" PRIu64
                      ",\"endpoint\":",
                      stats.waiting, stats.replays, stats.replayed_batches, stats.refused_replays);
        mc_json_string(out, mc_str_from(mc_events_endpoint(events)));
        mc_buf_puts(out, ",\"replay_endpoint\":");
        mc_json_string(out, mc_str_from(mc_events_replay_endpoint(events)));
    }
    mc_buf_putc(out, '}');
}

static void handle_metrics(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    response->content_type = TYPE_TEXT_EXPOSITION;
    mc_metrics_print(admin->config.metrics, &response->body);
    mc_master_tenant_metrics(admin->config.master, &response->body);
}

static void handle_summary(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    response->content_type = TYPE_TEXT_EXPOSITION;
    mc_admin_summary(admin->config.master, admin->config.metrics, &admin->rates, &response->body);
}

/* ---- keys ---- */

static bool append_key(void *ctx, struct mc_str tenant, struct mc_str key) {
    struct mc_buf *body = ctx;
    mc_buf_append(body, key.ptr, key.len);
    mc_buf_putc(body, '\n');
    return true;
}

static void handle_all_keys(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    response->content_type = TYPE_TEXT_EXPOSITION;
    mc_master_each_key(admin->config.master, mc_http_query(request, "tenant_id"), append_key,
                       &response->body);
}

/* Ours: a page of keys. */
static void handle_keys(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    const char *tenant = mc_http_query(request, "tenant_id");
    const char *prefix = mc_http_query(request, "prefix");
    const char *after = mc_http_query(request, "after");
    const char *limit_text = mc_http_query(request, "limit");
    uint64_t limit = 1000;
    struct mc_vec keys;
    struct mc_str next;
    if (limit_text != NULL && mc_parse_u64(limit_text, 1, MC_LIST_PAGE_KEYS, &limit) != MC_OK) {
        error_answer(response, MC_INVALID_PARAMS, "limit must be 1 to 100000");
        return;
    }
    mc_arena_reset(&admin->arena);
    enum mc_status status =
        mc_master_list(admin->config.master, mc_str_from(tenant ? tenant : "default"),
                       mc_str_from(prefix ? prefix : ""), mc_str_from(after ? after : ""), limit,
                       &admin->arena, &keys, &next);
    if (status != MC_OK) {
        error_answer(response, status, "a bad tenant_id, or after is not a cursor of this master");
        return;
    }
    struct mc_buf *out = &response->body;
    response->content_type = TYPE_JSON;
    mc_buf_puts(out, "{\"success\":true,\"keys\":[");
    for (size_t i = 0; i < keys.count; i++) {
        if (i > 0) {
            mc_buf_putc(out, ',');
        }
        mc_json_string(out, ((const struct mc_str *)keys.items)[i]);
    }
    mc_buf_puts(out, "],\"next\":");
    mc_json_string(out, next);
    mc_buf_putc(out, '}');
}

static void put_buffer(struct mc_buf *out, const struct mw_buffer *buffer) {
    mc_buf_printf(out, "{\"size_\":%" PRIu64 ",\"buffer_address_\":%" PRIu64 ",\"protocol_\":",
                  buffer->size, buffer->address);
    mc_json_string(out, buffer->protocol);
    mc_buf_puts(out, ",\"transport_endpoint_\":");
    mc_json_string(out, buffer->endpoint);
    mc_buf_putc(out, '}');
}

static void put_disk(struct mc_buf *out, const struct mw_disk *disk) {
    mc_buf_puts(out, "{\"file_path\":");
    mc_json_string(out, disk->file_path);
    mc_buf_printf(out, ",\"object_size\":%" PRIu64 "}", disk->object_size);
}

static void put_local_disk(struct mc_buf *out, const struct mw_local_disk *disk) {
    mc_buf_printf(out,
                  "{\"client_id\":\"%" PRIu64 "-%" PRIu64 "\",\"object_size\":%" PRIu64
                  ",\"transport_endpoint\":",
                  disk->client_id.hi, disk->client_id.lo, disk->object_size);
    mc_json_string(out, disk->endpoint);
    mc_buf_putc(out, '}');
}

/* The replicas of one kind as a list; returns how many there are. */
static size_t put_replicas(struct mc_buf *out, const struct mw_replica_list *list, uint8_t tag) {
    const struct mw_replica *replicas = list->replicas.items;
    size_t count = 0;
    mc_buf_putc(out, '[');
    for (size_t i = 0; i < list->replicas.count; i++) {
        if (replicas[i].tag != tag) {
            continue;
        }
        if (count++ > 0) {
            mc_buf_putc(out, ',');
        }
        switch (tag) {
        case MW_TAG_DISK:
            put_disk(out, &replicas[i].disk);
            break;
        case MW_TAG_LOCAL_DISK:
            put_local_disk(out, &replicas[i].local_disk);
            break;
        default: /* memory and NoF are the same union member by layout and meaning */
            put_buffer(out, tag == MW_TAG_NOF ? &replicas[i].nof : &replicas[i].memory);
            break;
        }
    }
    mc_buf_putc(out, ']');
    return count;
}

static void handle_query_key(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    struct mw_replica_list list = {0};
    struct mc_str key = mc_str_from(mc_http_query(request, "key"));
    mc_arena_reset(&admin->arena);
    enum mc_status status =
        mc_master_peek(admin->config.master, MC_STR("default"), key, &admin->arena, &list);
    if (status != MC_OK) {
        error_answer(response, status, NULL);
        return;
    }
    response->content_type = TYPE_JSON;
    mc_buf_puts(&response->body, "{\"success\":true,\"data\":");
    put_replicas(&response->body, &list, MW_TAG_MEMORY);
    mc_buf_putc(&response->body, '}');
}

static void handle_object(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    const char *tenant = mc_http_query(request, "tenant_id");
    struct mw_object_info info;
    enum mc_status status = mc_master_inspect(
        admin->config.master, tenant != NULL ? mc_str_from(tenant) : MC_STR("default"),
        mc_str_from(mc_http_query(request, "key")), &info);
    if (status != MC_OK) {
        error_answer(response, status, NULL);
        return;
    }
    response->content_type = TYPE_JSON;
    mc_buf_printf(&response->body, "{\"success\":true,\"data\":{\"size\":%llu,\"version\":%llu",
                  (unsigned long long)info.size, (unsigned long long)info.version);
    mc_buf_puts(&response->body, ",\"checksum\":"); /* a text: JSON numbers end earlier */
    mc_buf_printf(&response->body, info.checksum.has ? "\"0x%016llx\"" : "null",
                  (unsigned long long)info.checksum.value);
    mc_buf_puts(&response->body, ",\"ttl_ms\":");
    mc_buf_printf(&response->body, info.has_life ? "%llu" : "null",
                  (unsigned long long)info.life_left_ms);
    mc_buf_printf(&response->body, ",\"replicas\":%u}}", info.replicas);
}

/* "name":[...] or "name":null when the object has no replica of the kind. */
static void put_optional_replicas(struct mc_buf *out, const char *name,
                                  const struct mw_replica_list *list, uint8_t tag) {
    mc_buf_printf(out, ",\"%s\":", name);
    size_t start = out->len;
    if (put_replicas(out, list, tag) == 0) {
        out->len = start;
        mc_buf_puts(out, "null");
    }
}

static void put_key_entry(struct mc_admin *admin, struct mc_buf *out, struct mc_str key) {
    struct mw_replica_list list = {0};
    mc_arena_reset(&admin->arena);
    enum mc_status status =
        mc_master_peek(admin->config.master, MC_STR("default"), key, &admin->arena, &list);
    mc_json_string(out, key);
    if (status != MC_OK) {
        mc_buf_puts(out, ":{\"ok\":false,\"error\":");
        mc_json_string(out, mc_str_from(mc_status_name(status)));
        mc_buf_puts(out, ",\"values\":null,\"disk_values\":null,\"local_disk_values\":null,\"nof_"
                         "values\":null}");
        return;
    }
    mc_buf_puts(out, ":{\"ok\":true,\"error\":null,\"values\":");
    put_replicas(out, &list, MW_TAG_MEMORY);
    put_optional_replicas(out, "disk_values", &list, MW_TAG_DISK);
    put_optional_replicas(out, "local_disk_values", &list, MW_TAG_LOCAL_DISK);
    put_optional_replicas(out, "nof_values", &list, MW_TAG_NOF);
    mc_buf_putc(out, '}');
}

static void handle_batch_query_keys(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    struct mc_buf *out = &response->body;
    const char *at = mc_http_query(request, "keys");
    response->content_type = TYPE_JSON;
    size_t count = 0;
    mc_buf_puts(out, "{\"success\":true,\"data\":{");
    while (at != NULL && *at != '\0' && count < ADMIN_MAX_KEYS) {
        size_t len = strcspn(at, ",");
        if (len > 0) {
            if (count++ > 0) {
                mc_buf_putc(out, ',');
            }
            put_key_entry(admin, out, (struct mc_str){at, len});
        }
        at += len + (at[len] == ',');
    }
    mc_buf_puts(out, "}}");
    if (count == 0) {
        mc_buf_clear(out);
        response->status = 400;
        mc_buf_puts(out,
                    "{\"success\":false,\"error\":\"No keys provided. Use ?keys=key1,key2,...\"}");
    }
}

static void handle_remove_all(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    const char *force_text = mc_http_query(request, "force");
    const char *tenant = mc_http_query(request, "tenant_id");
    bool force = false;
    if (force_text != NULL && mc_parse_bool(force_text, &force) != MC_OK) {
        error_answer(response, MC_INVALID_PARAMS, "force must be true or false");
        return;
    }
    struct mw_a_remove_all args = {.force = force,
                                   .tenant = mc_str_from(tenant ? tenant : "default")};
    int64_t removed = 0;
    mc_arena_reset(&admin->arena);
    mc_master_handle(admin->config.master, MC_RPC_RemoveAll, &args, &admin->arena, &removed);
    if (removed < 0) {
        error_answer(response, (enum mc_status)removed, NULL);
        return;
    }
    response->content_type = TYPE_JSON;
    mc_buf_printf(&response->body, "{\"success\":true,\"removed_count\":%" PRId64 "}", removed);
}

/* ---- segments ---- */

static const char *segment_status_name(int status) {
    switch (status) {
    case MC_SEGMENT_OK:
        return "OK";
    case MC_SEGMENT_DRAINING:
        return "DRAINING";
    case MC_SEGMENT_DRAINED:
        return "DRAINED";
    case MC_SEGMENT_GRACEFULLY_UNMOUNTING:
        return "GRACEFULLY_UNMOUNTING";
    case MC_SEGMENT_UNMOUNTING:
        return "UNMOUNTING";
    default:
        return "UNDEFINED";
    }
}

static struct mc_master_segment_info *segments(struct mc_admin *admin, size_t *count) {
    mc_arena_reset(&admin->arena);
    return mc_master_segments(admin->config.master, &admin->arena, count);
}

static void handle_all_segments(void *ctx, request_t *request, response_t *response) {
    size_t count = 0;
    const struct mc_master_segment_info *all = segments(ctx, &count);
    response->content_type = TYPE_TEXT_EXPOSITION;
    for (size_t i = 0; i < count; i++) {
        mc_buf_append(&response->body, all[i].segment.name.ptr, all[i].segment.name.len);
        mc_buf_putc(&response->body, '\n');
    }
}

static void put_segment(struct mc_buf *out, const struct mc_master_segment_info *info) {
    const struct mw_segment *s = &info->segment;
    mc_buf_puts(out, "{\"segment_name\":");
    mc_json_string(out, s->name);
    mc_buf_printf(out,
                  ",\"segment_id\":\"%" PRIu64 "-%" PRIu64 "\",\"client_id\":\"%" PRIu64 "-%" PRIu64
                  "\"",
                  s->id.hi, s->id.lo, info->client.hi, info->client.lo);
    mc_buf_printf(out,
                  ",\"base_address\":\"0x%" PRIx64 "\",\"size_bytes\":%" PRIu64
                  ",\"size_human\":\"%g GiB\"",
                  s->base, s->size, (double)s->size / (1u << 30));
    mc_buf_puts(out, ",\"te_endpoint\":");
    mc_json_string(out, s->te_endpoint);
    mc_buf_puts(out, ",\"protocol\":");
    mc_json_string(out, s->protocol);
    double percent =
        info->capacity_bytes ? 100.0 * (double)info->used_bytes / (double)info->capacity_bytes : 0;
    mc_buf_printf(out,
                  ",\"status\":\"%s\",\"allocator_used_bytes\":%" PRIu64
                  ",\"allocator_capacity_bytes\":%" PRIu64 ",\"allocator_usage_percent\":%.17g}",
                  segment_status_name(info->status), info->used_bytes, info->capacity_bytes,
                  percent);
}

static void handle_segments_detail(void *ctx, request_t *request, response_t *response) {
    size_t count = 0;
    const struct mc_master_segment_info *all = segments(ctx, &count);
    response->content_type = TYPE_JSON;
    mc_buf_printf(&response->body, "{\"total_segments\":%zu,\"segments\":[", count);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            mc_buf_putc(&response->body, ',');
        }
        put_segment(&response->body, &all[i]);
    }
    mc_buf_puts(&response->body, "]}");
}

/* The sums over all segments of that name, the way clients see one; false when there is none. */
static bool find_segment(struct mc_admin *admin, const char *name,
                         struct mc_master_segment_info *found) {
    size_t count = 0;
    const struct mc_master_segment_info *all = segments(admin, &count);
    bool any = false;
    for (size_t i = 0; i < count && name != NULL; i++) {
        if (!mc_str_eq(all[i].segment.name, mc_str_from(name))) {
            continue;
        }
        if (!any) {
            *found = all[i];
            any = true;
            continue;
        }
        found->used_bytes += all[i].used_bytes;
        found->capacity_bytes += all[i].capacity_bytes;
    }
    return any;
}

static void handle_query_segment(void *ctx, request_t *request, response_t *response) {
    struct mc_master_segment_info info;
    const char *name = mc_http_query(request, "segment");
    if (!find_segment(ctx, name, &info)) {
        text_answer(response, 500, "Failed to query segment");
        return;
    }
    response->content_type = TYPE_TEXT_EXPOSITION;
    mc_buf_printf(&response->body, "%s\nUsed(bytes): %" PRIu64 "\nCapacity(bytes) : %" PRIu64 "\n",
                  name, info.used_bytes, info.capacity_bytes);
}

static void handle_segment_status(void *ctx, request_t *request, response_t *response) {
    struct mc_master_segment_info info;
    const char *name = mc_http_query(request, "segment");
    if (name == NULL || name[0] == '\0') {
        error_answer(response, MC_INVALID_PARAMS, "Missing segment query parameter");
        return;
    }
    if (!find_segment(ctx, name, &info)) {
        error_answer(response, MC_SEGMENT_NOT_FOUND, NULL);
        return;
    }
    response->content_type = TYPE_JSON;
    mc_buf_puts(&response->body, "{\"success\":true,\"segment\":");
    mc_json_string(&response->body, info.segment.name);
    mc_buf_printf(&response->body,
                  ",\"status\":%d,\"status_name\":\"%s\",\"error_code\":0,\"error_message\":\"\"}",
                  info.status, segment_status_name(info.status));
}

static void handle_curve(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    struct mc_master_curve curve;
    mc_master_curve(admin->config.master, &curve);
    response->content_type = TYPE_JSON;
    mc_buf_printf(&response->body,
                  "{\"success\":true,\"uses\":%llu,\"distinct_keys\":%.0f,\"sample_rate\":%.6f,"
                  "\"curve\":[",
                  (unsigned long long)curve.uses, curve.distinct_keys, curve.sample_rate);
    for (unsigned i = 0; i < MC_CURVE_POINTS; i++) {
        mc_buf_printf(&response->body, "%s{\"memory\":%g,\"keys\":%.0f,\"hit_ratio\":%.4f}",
                      i ? "," : "", curve.points[i].memory, curve.points[i].keys,
                      curve.points[i].hit_ratio);
    }
    mc_buf_puts(&response->body, "]}");
}

/* ---- drain jobs ---- */

static void answer_with(response_t *response, int status) {
    response->status = status;
    response->content_type = TYPE_JSON;
}

static void handle_drain(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    answer_with(response, mc_admin_drain(admin->config.master, request->body, &response->body));
}

static void handle_job_query(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    answer_with(response, mc_admin_job(admin->config.master, mc_http_query(request, "job_id"),
                                       &response->body));
}

static void handle_job_cancel(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    answer_with(response, mc_admin_job_cancel(admin->config.master,
                                              mc_http_query(request, "job_id"), &response->body));
}

/* ---- tenants ---- */

static void handle_tenants(void *ctx, request_t *request, response_t *response) {
    struct mc_admin *admin = ctx;
    answer_with(response, mc_admin_tenants(admin->config.master, request->method,
                                           mc_http_query(request, "tenant_id"), request->body,
                                           &response->body));
}

static const struct mc_http_route routes[] = {
    {"GET", "/metrics", handle_metrics},
    {"GET", "/metrics/summary", handle_summary},
    {"GET", "/health", handle_health},
    {"GET", "/role", handle_role},
    {"GET", "/ha_status", handle_ha_status},
    {"GET", "/leader", handle_leader},
    {"GET", "/kv_events/status", handle_kv_events},
    {"GET", "/query_key", handle_query_key},
    {"GET", "/api/v1/object", handle_object},
    {"GET", "/batch_query_keys", handle_batch_query_keys},
    {"GET", "/get_all_keys", handle_all_keys},
    {"GET", "/api/v1/keys", handle_keys},
    {"GET", "/get_all_segments", handle_all_segments},
    {"GET", "/get_segments_detail", handle_segments_detail},
    {"GET", "/query_segment", handle_query_segment},
    {"GET", "/api/v1/segments/status", handle_segment_status},
    {"GET", "/api/v1/mrc", handle_curve},
    {"POST", "/api/v1/remove_all", handle_remove_all},
    {"POST", "/api/v1/drain_jobs", handle_drain},
    {"GET", "/api/v1/drain_jobs/query", handle_job_query},
    {"POST", "/api/v1/drain_jobs/cancel", handle_job_cancel},
    {"GET", "/api/v1/tenant_quotas", handle_tenants},
    {"PUT", "/api/v1/tenant_quotas", handle_tenants},
    {"DELETE", "/api/v1/tenant_quotas", handle_tenants},
};

enum mc_status mc_admin_start(const struct mc_admin_config *config, struct mc_admin **out,
                              uint16_t *bound_port) {
    struct mc_admin *admin = mc_zalloc(sizeof(*admin));
    admin->config = *config;
    const struct mc_http_server_config http = {.host = config->host,
                                               .port = config->port,
                                               .routes = routes,
                                               .route_count = MC_ARRAY_LEN(routes),
                                               .max_body_bytes = ADMIN_MAX_BODY,
                                               .tls = config->tls,
                                               .ctx = admin};
    enum mc_status status = mc_http_server_start(&http, &admin->http, bound_port);
    if (status != MC_OK) {
        free(admin);
        return status;
    }
    *out = admin;
    return MC_OK;
}

void mc_admin_stop(struct mc_admin *admin) {
    if (admin == NULL) {
        return;
    }
    mc_http_server_stop(admin->http);
    mc_arena_free(&admin->arena);
    free(admin);
}

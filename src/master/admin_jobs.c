/*
 * Drain jobs over HTTP, in upstream's JSON. See master/admin.h.
 */
#include "master/admin.h"

#include <inttypes.h>
#include <jansson.h>

#define CONCURRENCY_DEFAULT 4 /* upstream's */

/* A list of names as a vector whose strings belong to the JSON value; absent = empty. */
static enum mc_status names_of(const json_t *list, struct mc_arena *arena, struct mc_vec *out) {
    size_t count = json_array_size(list);
    struct mc_str *names = mc_arena_alloc(arena, (count + 1) * sizeof(*names));
    if (list != NULL && !json_is_array(list)) {
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_array_get(list, i);
        if (!json_is_string(name) || json_string_length(name) == 0) {
            return MC_INVALID_PARAMS;
        }
        names[i] = (struct mc_str){json_string_value(name), json_string_length(name)};
    }
    *out = (struct mc_vec){names, count};
    return MC_OK;
}

static enum mc_status drain(struct mc_master *m, const json_t *body, struct mc_arena *arena,
                            struct mc_uuid *job) {
    struct mc_vec segments, targets;
    const json_t *concurrency = json_object_get(body, "max_concurrency");
    const json_t *leave = json_object_get(body, "leave_disks");
    json_int_t most = CONCURRENCY_DEFAULT;
    MC_TRY(names_of(json_object_get(body, "segments"), arena, &segments));
    MC_TRY(names_of(json_object_get(body, "target_segments"), arena, &targets));
    if (concurrency != NULL && !json_is_null(concurrency)) {
        most = json_is_integer(concurrency) ? json_integer_value(concurrency) : 0;
    }
    if (most <= 0 || (leave != NULL && !json_is_boolean(leave))) {
        return MC_INVALID_PARAMS;
    }
    return mc_master_drain(m, &segments, &targets, (uint64_t)most, json_is_true(leave), job);
}

int mc_admin_drain(struct mc_master *m, struct mc_str request, struct mc_buf *out) {
    json_error_t fault;
    json_t *body = json_loadb(request.len ? request.ptr : "", request.len, 0, &fault);
    if (!json_is_object(body)) {
        struct mc_buf message = {0};
        mc_buf_printf(&message, "Invalid JSON body: %s",
                      body != NULL ? "an object is expected" : fault.text);
        int status = mc_json_error(out, MC_INVALID_PARAMS, mc_buf_cstr(&message));
        mc_buf_free(&message);
        json_decref(body);
        return status;
    }
    struct mc_arena arena = {0};
    struct mc_uuid job;
    enum mc_status status = drain(m, body, &arena, &job);
    mc_arena_free(&arena);
    json_decref(body);
    if (status != MC_OK) {
        return mc_json_error(out, status, NULL);
    }
    mc_buf_printf(out,
                  "{\"success\":true,\"job_id\":\"%" PRIu64 "-%" PRIu64
                  "\",\"status\":\"CREATED\",\"error_code\":0,\"error_message\":\"\"}",
                  job.hi, job.lo);
    return 200;
}

static bool parse_id(const char *text, struct mc_uuid *id) {
    char high[24];
    const char *dash = text != NULL ? strchr(text, '-') : NULL;
    if (dash == NULL || (size_t)(dash - text) >= sizeof(high)) {
        return false;
    }
    memcpy(high, text, (size_t)(dash - text));
    high[dash - text] = '\0';
    return mc_parse_u64(high, 0, UINT64_MAX, &id->hi) == MC_OK &&
           mc_parse_u64(dash + 1, 0, UINT64_MAX, &id->lo) == MC_OK;
}

static int wrong_id(struct mc_buf *out) {
    return mc_json_error(out, MC_INVALID_PARAMS, "Missing or invalid job_id");
}

int mc_admin_job(struct mc_master *m, const char *job, struct mc_buf *out) {
    static const char *const NAMES[] = {"CREATED",   "PLANNING", "RUNNING",
                                        "SUCCEEDED", "FAILED",   "CANCELED"};
    struct mc_master_job_info info;
    struct mc_arena arena = {0};
    struct mc_uuid id;
    if (!parse_id(job, &id)) {
        return wrong_id(out);
    }
    enum mc_status status = mc_master_job(m, id, &arena, &info);
    if (status != MC_OK) {
        return mc_json_error(out, status, NULL);
    }
    mc_buf_printf(out,
                  "{\"success\":true,\"job_id\":\"%" PRIu64 "-%" PRIu64
                  "\",\"type\":0,\"type_name\":\"DRAIN\",\"status\":%d,\"status_name\":\"%s\","
                  "\"created_at_ms_epoch\":%" PRId64 ",\"last_updated_at_ms_epoch\":%" PRId64
                  ",\"segments\":[",
                  id.hi, id.lo, info.status, NAMES[info.status], info.created_ms, info.updated_ms);
    for (size_t i = 0; i < info.segments.count; i++) {
        if (i > 0) {
            mc_buf_putc(out, ',');
        }
        mc_json_string(out, ((const struct mc_str *)info.segments.items)[i]);
    }
    mc_buf_printf(out,
                  "],\"succeeded_units\":%" PRIu64 ",\"failed_units\":%" PRIu64
                  ",\"blocked_units\":%" PRIu64 ",\"active_units\":%" PRIu64
                  ",\"migrated_bytes\":%" PRIu64 ",\"disk_only_units\":%" PRIu64 ",\"message\":",
                  info.succeeded, info.failed, info.blocked, info.active, info.migrated_bytes,
                  info.disk_only);
    mc_json_string(out, info.message);
    mc_buf_puts(out, ",\"error_code\":0,\"error_message\":\"\"}");
    mc_arena_free(&arena);
    return 200;
}

int mc_admin_job_cancel(struct mc_master *m, const char *job, struct mc_buf *out) {
    struct mc_uuid id;
    if (!parse_id(job, &id)) {
        return wrong_id(out);
    }
    enum mc_status status = mc_master_job_cancel(m, id);
    if (status != MC_OK) {
        return mc_json_error(out, status, NULL);
    }
    mc_buf_printf(out,
                  "{\"success\":true,\"job_id\":\"%" PRIu64 "-%" PRIu64
                  "\",\"status\":\"CANCELED\",\"error_code\":0,\"error_message\":\"\"}",
                  id.hi, id.lo);
    return 200;
}

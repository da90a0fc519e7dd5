/*
 * The admin endpoints of tenant quotas. See master/admin.h.
 */
#include "master/admin.h"

#include <inttypes.h>
#include <jansson.h>

static void put_tenant(struct mc_buf *out, const struct mc_tenant_info *t) {
    mc_buf_puts(out, "{\"tenant_id\":");
    mc_json_string(out, t->name);
    mc_buf_printf(out,
                  ",\"requested_quota_bytes\":%" PRIu64 ",\"effective_quota_bytes\":%" PRIu64
                  ",\"charged_bytes\":%" PRIu64
                  ",\"admission_closed\":%s,\"over_quota\":%s,\"has_explicit_policy\":%s}",
                  t->requested, t->effective, t->charged, t->has_policy ? "false" : "true",
                  t->charged > t->effective ? "true" : "false", t->has_policy ? "true" : "false");
}

/* {"success":true,"data":...}: the tenant, or null when nothing is left of it. */
static int answer_one(struct mc_master *master, struct mc_str name, bool must_be,
                      struct mc_buf *out) {
    struct mc_arena arena = {0};
    struct mc_tenant_info *all;
    size_t count = 0;
    int status = 200;
    enum mc_status found = mc_master_tenants(master, &arena, &all, &count);
    size_t i = 0;
    while (i < count && !mc_str_eq(all[i].name, name)) {
        i++;
    }
    if (found != MC_OK || (i == count && must_be)) {
        status = mc_json_error(out, found != MC_OK ? found : MC_OBJECT_NOT_FOUND, NULL);
    } else {
        mc_buf_puts(out, "{\"success\":true,\"data\":");
        if (i < count) {
            put_tenant(out, &all[i]);
        } else {
            mc_buf_puts(out, "null");
        }
        mc_buf_putc(out, '}');
    }
    mc_arena_free(&arena);
    return status;
}

static int answer_all(struct mc_master *master, struct mc_buf *out) {
    struct mc_arena arena = {0};
    struct mc_tenant_info *all;
    size_t count = 0;
    enum mc_status status = mc_master_tenants(master, &arena, &all, &count);
    if (status != MC_OK) {
        return mc_json_error(out, status, NULL);
    }
    mc_buf_puts(out, "{\"success\":true,\"data\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            mc_buf_putc(out, ',');
        }
        put_tenant(out, &all[i]);
    }
    mc_buf_puts(out, "]}");
    mc_arena_free(&arena);
    return 200;
}

static int set(struct mc_master *master, struct mc_str name, struct mc_str request,
               struct mc_buf *out) {
    json_error_t error;
    json_t *body = json_loadb(request.ptr ? request.ptr : "", request.len, 0, &error);
    const json_t *bytes = json_object_get(body, "requested_quota_bytes");
    json_int_t value = json_integer_value(bytes);
    bool number = json_is_integer(bytes);
    json_decref(body);
    if (!number) {
        struct mc_buf text = {0};
        mc_buf_printf(&text, "Invalid JSON body: %s",
                      body ? "requested_quota_bytes must be a whole number" : error.text);
        int status = mc_json_error(out, MC_INVALID_PARAMS, mc_buf_cstr(&text));
        mc_buf_free(&text);
        return status;
    }
    if (value <= 0) {
        return mc_json_error(out, MC_INVALID_PARAMS, "Tenant quota must be in [1, 2^63 - 1] bytes");
    }
    enum mc_status status = mc_master_tenant_set(master, name, (uint64_t)value);
    return status == MC_OK ? answer_one(master, name, true, out) : mc_json_error(out, status, NULL);
}

int mc_admin_tenants(struct mc_master *master, const char *method, const char *tenant,
                     struct mc_str request, struct mc_buf *out) {
    struct mc_arena arena = {0};
    struct mc_tenant_info *all;
    size_t count;
    enum mc_status mode = mc_master_tenants(master, &arena, &all, &count);
    mc_arena_free(&arena);
    if (mode != MC_OK) {
        return mc_json_error(out, mode, NULL);
    }
    struct mc_str name = mc_str_from(tenant);
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (get && tenant == NULL) {
        return answer_all(master, out);
    }
    if (name.len == 0 || !mc_tenant_name_ok(name)) {
        return mc_json_error(out, MC_INVALID_PARAMS,
                             get ? "Invalid tenant_id" : "Missing or invalid tenant_id");
    }
    if (get) {
        return answer_one(master, name, true, out);
    }
    if (strcmp(method, "PUT") == 0) {
        return set(master, name, request, out);
    }
    enum mc_status status = mc_master_tenant_delete(master, name);
    return status == MC_OK ? answer_one(master, name, false, out)
                           : mc_json_error(out, status, NULL);
}

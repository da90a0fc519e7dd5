/*
 * `mooncake stat [KEY...]`: where objects are, or, without a key, what the cluster is made of and
 * how full it is. Asked from the admin endpoint: grants no lease.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"
#include "io/http.h"

#include <jansson.h>
#include <stdio.h>

struct stat_options {
    struct mc_admin_options reach;
};

static const struct mc_option table[] = {MC_ADMIN_OPTIONS(struct stat_options)};

const struct mc_option_set mc_stat_options = {
    .program = "mooncake stat",
    .synopsis = "[options] [KEY...]",
    .about = "Shows where objects are; without a key the nodes of the cluster and how full they "
             "are. Grants no lease.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static const char program[] = "mooncake stat";

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}
static uint64_t number_of(const json_t *object, const char *name) {
    return (uint64_t)json_integer_value(json_object_get(object, name));
}

/* The JSON answer of a path, or NULL after saying why. */
static json_t *ask(const struct mc_admin *admin, const char *path) {
    struct mc_buf body = {0};
    json_t *answer = NULL;
    if (mc_admin_get_or_say(program, admin, path, &body) == MC_OK) {
        answer = json_loadb(body.data, body.len, 0, NULL);
        if (answer == NULL) {
            mc_cmd_fail(program, 0, "%s%s did not answer JSON", admin->address, path);
        }
    }
    mc_buf_free(&body);
    return answer;
}

/* ---- one object ---- */

/* What only a master of ours says: the version, the checksum, what is left of its life. */
static void print_life(const struct mc_admin *admin, const char *key) {
    struct mc_buf path = {0}, body = {0};
    int http_status = 0;
    mc_buf_puts(&path, "/api/v1/object?key=");
    mc_http_escape(&path, mc_str_from(key));
    bool answered = mc_admin_get(admin, mc_buf_cstr(&path), &http_status, &body) == MC_OK;
    json_t *answer =
        answered && http_status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const json_t *info = json_object_get(answer, "data");
    if (info != NULL) {
        printf("  version %llu", (unsigned long long)number_of(info, "version"));
        if (json_is_integer(json_object_get(info, "ttl_ms"))) {
            printf(", ends in %.1f s", (double)number_of(info, "ttl_ms") / 1e3);
        }
        putchar('\n');
    }
    json_decref(answer);
    mc_buf_free(&path);
    mc_buf_free(&body);
}

static int stat_key(const struct mc_admin *admin, const char *key) {
    struct mc_buf path = {0};
    mc_buf_puts(&path, "/query_key?key=");
    mc_http_escape(&path, mc_str_from(key));
    struct mc_buf body = {0};
    int http_status = 0;
    enum mc_status status = mc_admin_ask(program, admin, mc_buf_cstr(&path), &http_status, &body);
    mc_buf_free(&path);
    json_t *answer = status == MC_OK ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    mc_buf_free(&body);
    if (status != MC_OK) {
        return MC_EXIT_FAILED;
    }
    if (http_status != 200) {
        mc_cmd_fail(program, 0, "%s: %s", key, text_of(answer, "error_message"));
        json_decref(answer);
        return MC_EXIT_FAILED;
    }
    const json_t *replicas = json_object_get(answer, "data");
    printf("%s\n", key);
    for (size_t i = 0; i < json_array_size(replicas); i++) {
        const json_t *replica = json_array_get(replicas, i);
        printf("  %llu bytes in memory of %s at 0x%llx (%s)\n",
               (unsigned long long)number_of(replica, "size_"),
               text_of(replica, "transport_endpoint_"),
               (unsigned long long)number_of(replica, "buffer_address_"),
               text_of(replica, "protocol_"));
    }
    if (json_array_size(replicas) == 0) {
        printf("  on a disk only\n");
    }
    json_decref(answer);
    print_life(admin, key);
    return 0;
}

/* ---- the cluster ---- */

static void print_segment(const json_t *segment) {
    struct mc_buf used = {0}, capacity = {0};
    mc_format_size(&used, number_of(segment, "allocator_used_bytes"));
    mc_format_size(&capacity, number_of(segment, "allocator_capacity_bytes"));
    printf("  %-24s %10s of %10s  %5.1f %%  %-8s %s %s\n", text_of(segment, "segment_name"),
           mc_buf_cstr(&used), mc_buf_cstr(&capacity),
           json_number_value(json_object_get(segment, "allocator_usage_percent")),
           text_of(segment, "status"), text_of(segment, "protocol"),
           text_of(segment, "te_endpoint"));
    mc_buf_free(&used);
    mc_buf_free(&capacity);
}

/* What more memory would give; nothing from a master that keeps no curve. */
static void print_curve(const struct mc_admin *admin) {
    struct mc_buf body = {0};
    int http_status = 0;
    enum mc_status status = mc_admin_get(admin, "/api/v1/mrc", &http_status, &body);
    json_t *answer =
        status == MC_OK && http_status == 200 ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const json_t *curve = json_object_get(answer, "curve");
    if (number_of(answer, "uses") > 0 && json_array_size(curve) > 0) {
        printf("LRU would find, of the keys read and stored so far:");
        for (size_t i = 0; i < json_array_size(curve); i++) {
            const json_t *point = json_array_get(curve, i);
            printf("%s %.1f %% with %gx", i ? "," : "",
                   100 * json_number_value(json_object_get(point, "hit_ratio")),
                   json_number_value(json_object_get(point, "memory")));
        }
        printf(" the memory\n");
    }
    json_decref(answer);
    mc_buf_free(&body);
}

static int stat_cluster(const struct mc_admin *admin) {
    struct mc_buf metrics = {0};
    if (mc_admin_get_or_say(program, admin, "/metrics", &metrics) != MC_OK) {
        mc_buf_free(&metrics);
        return MC_EXIT_FAILED;
    }
    struct mc_cluster_state state;
    mc_cluster_state_from_text(mc_buf_cstr(&metrics), &state);
    json_t *detail = ask(admin, "/get_segments_detail");
    if (detail != NULL) {
        const json_t *segments = json_object_get(detail, "segments");
        struct mc_buf sizes = {0};
        mc_format_size(&sizes, state.allocated_bytes);
        mc_buf_puts(&sizes, " of ");
        mc_format_size(&sizes, state.capacity_bytes);
        printf("%llu objects, %s in use, %llu evicted so far\n"
               "%zu segments: name, memory in use, state, address of the engine\n",
               (unsigned long long)state.keys, mc_buf_cstr(&sizes),
               (unsigned long long)state.evicted_keys, json_array_size(segments));
        for (size_t i = 0; i < json_array_size(segments); i++) {
            print_segment(json_array_get(segments, i));
        }
        mc_buf_free(&sizes);
        print_curve(admin);
    }
    bool good = detail != NULL;
    mc_buf_free(&metrics);
    json_decref(detail);
    return good ? 0 : MC_EXIT_FAILED;
}

int mc_cmd_stat(int argc, char **argv) {
    struct stat_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_stat_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_admin admin;
    exit_status = mc_admin_find_or_say(program, &options.reach, &admin);
    bool found = exit_status == 0;
    if (found && result.positional_count == 0) {
        exit_status = stat_cluster(&admin);
    }
    for (size_t i = 0; found && i < result.positional_count; i++) {
        int one = stat_key(&admin, result.positional[i]);
        exit_status = one != 0 ? one : exit_status;
    }
    mc_options_free(&result);
    return exit_status;
}

/*
 * `mooncake drain SEGMENT...`: everything that is on these nodes moves to others, while it stays
 * readable; afterwards the nodes can be stopped. The master does it (master/drain.c); this asks for
 * the job and watches it. Interrupted, it leaves the job to go on, and says how to cancel it.
 */
#include "cmd/admin_client.h"
#include "cmd/cmd.h"
#include "io/http.h"
#include "master/master.h"

#include <jansson.h>
#include <stdio.h>

#define PROGRAM            "mooncake drain"
#define JOBS               "/api/v1/drain_jobs"
#define WATCH_MS           200
#define CANCEL_PATIENCE_MS 30000 /* for the moves that are under way */

struct drain_options {
    struct mc_admin_options reach;
    const char *to, *cancel;
    uint64_t concurrency, timeout_ms;
    bool detach, leave_disks;
};

#define OPT(...) MC_OPTION(struct drain_options, __VA_ARGS__)

static const struct mc_option table[] = {
    MC_ADMIN_OPTIONS(struct drain_options),
    OPT(STRING, to,
        .doc = "segments that take the objects, separated by commas; empty = any other"),
    OPT(U64, concurrency, .default_value = "64", .min = 1, .max = MC_DRAIN_CONCURRENCY_MAX,
        .doc = "objects that are moved at a time"),
    MC_OPTION_AS(struct drain_options, DURATION, "timeout", timeout_ms, .default_value = "0",
                 .doc = "stop watching after this time; the job goes on; 0 = never"),
    OPT(BOOL, detach, .default_value = "false", .doc = "do not watch the job, only print its id"),
    OPT(BOOL, leave_disks, .default_value = "false",
        .doc = "do not move what only the nodes' SSDs have: it goes with them"),
    OPT(STRING, cancel, .doc = "id of a job that is to be cancelled"),
};

const struct mc_option_set mc_drain_options = {
    .program = PROGRAM,
    .synopsis = "[options] SEGMENT... | --cancel JOB",
    .about = "Moves everything off the named segments (as `mooncake stat` shows them) to other "
             "nodes' memory, and with the last segment of a node off its SSD. They take no new "
             "objects meanwhile and are readable all the time; when it "
             "has ended nobody reads or writes there any more and their nodes can be stopped.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

/* The answer as JSON; NULL after saying what is wrong. */
static json_t *understand(const struct mc_admin *admin, enum mc_status status, int http_status,
                          const struct mc_buf *body) {
    if (status != MC_OK) {
        mc_cmd_fail(PROGRAM, 0, "the master's admin endpoint at %s does not answer: %s (%s)",
                    admin->address, mc_status_text(status), admin->origin);
        return NULL;
    }
    json_t *answer = json_loadb(body->data, body->len, 0, NULL);
    const char *why = json_string_value(json_object_get(answer, "error_message"));
    if (http_status == 200 && !json_is_object(answer)) {
        mc_cmd_fail(PROGRAM, 0, "%s answers what no master does", admin->address);
        json_decref(answer);
        return NULL;
    }
    if (http_status != 200) {
        mc_cmd_fail(PROGRAM, 0, "the master refuses (HTTP %d): %s", http_status,
                    why != NULL     ? why
                    : body->len > 0 ? body->data
                                    : "no reason given");
        json_decref(answer);
        return NULL;
    }
    return answer;
}

/* False after saying that the name cannot be sent. */
static bool add_name(json_t *list, const char *name, size_t len) {
    if (json_array_append_new(list, json_stringn(name, len)) == 0) {
        return true;
    }
    mc_cmd_fail(PROGRAM, 0, "the segment name '%.*s' is not UTF-8", (int)len, name);
    return false;
}

static bool add_names(json_t *list, const char *text) {
    bool good = true;
    while (good && text != NULL && *text != '\0') {
        size_t len = strcspn(text, ",");
        good = len == 0 || add_name(list, text, len);
        text += len + (text[len] == ',');
    }
    return good;
}

/* The job that is wanted, as JSON; NULL after saying what is wrong. */
static char *request_of(const struct drain_options *o, const struct mc_option_result *result) {
    json_t *segments = json_array(), *targets = json_array();
    bool good = add_names(targets, o->to);
    for (size_t i = 0; good && i < result->positional_count; i++) {
        good = add_name(segments, result->positional[i], strlen(result->positional[i]));
    }
    json_t *request =
        json_pack("{s:o,s:o,s:I,s:b}", "segments", segments, "target_segments", targets,
                  "max_concurrency", (json_int_t)o->concurrency, "leave_disks", o->leave_disks);
    char *text = good ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    return text;
}

/* Asks for the job and takes its id; false after saying why not. */
static bool begin(const struct mc_admin *admin, const struct drain_options *o,
                  const struct mc_option_result *result, char *job, size_t job_size) {
    char *text = request_of(o, result);
    if (text == NULL) {
        return false;
    }
    struct mc_buf body = {0};
    int http_status = 0;
    enum mc_status status = mc_admin_post(admin, JOBS, mc_str_from(text), &http_status, &body);
    json_t *answer = understand(admin, status, http_status, &body);
    const char *id = json_string_value(json_object_get(answer, "job_id"));
    bool known = id != NULL && id[0] != '\0' && strlen(id) < job_size;
    if (known) {
        snprintf(job, job_size, "%s", id);
    } else if (answer != NULL) {
        mc_cmd_fail(PROGRAM, 0, "%s answers what no master does: no job_id", admin->address);
    }
    json_decref(answer);
    mc_buf_free(&body);
    free(text);
    return known;
}

static bool is_running(const struct mc_admin *admin, const char *job) {
    struct mc_buf path = {0}, body = {0};
    int http_status = 0;
    mc_buf_puts(&path, JOBS "/query?job_id=");
    mc_http_escape(&path, mc_str_from(job));
    bool got = mc_admin_get(admin, mc_buf_cstr(&path), &http_status, &body) == MC_OK;
    json_t *answer = got ? json_loadb(body.data, body.len, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(answer, "status_name"));
    bool running = name != NULL && strcmp(name, "RUNNING") == 0;
    json_decref(answer);
    mc_buf_free(&path);
    mc_buf_free(&body);
    return running;
}

/* The master refuses while objects are being moved, and begins no further move meanwhile. */
static int cancel(const struct mc_admin *admin, const char *job) {
    struct mc_buf path = {0}, body = {0};
    uint64_t until = mc_deadline_in_ms(CANCEL_PATIENCE_MS);
    enum mc_status status;
    int http_status;
    mc_buf_puts(&path, JOBS "/cancel?job_id=");
    mc_http_escape(&path, mc_str_from(job));
    (void)mc_cmd_catch_signals();
    do {
        mc_buf_clear(&body);
        http_status = 0;
        status = mc_admin_post(admin, mc_buf_cstr(&path), (struct mc_str){0}, &http_status, &body);
    } while (status == MC_OK && http_status == 409 && is_running(admin, job) &&
             mc_now_ns(mc_clock_system()) < until && !mc_cmd_wait_for_signal(WATCH_MS));
    json_t *answer = understand(admin, status, http_status, &body);
    bool ok = answer != NULL;
    json_decref(answer);
    mc_buf_free(&path);
    mc_buf_free(&body);
    return ok ? 0 : MC_EXIT_FAILED;
}

static uint64_t number(const json_t *answer, const char *name) {
    json_int_t value = json_integer_value(json_object_get(answer, name));
    return value > 0 ? (uint64_t)value : 0;
}

/* Shows how the job stands when that changed; *over with the exit status when it has ended. */
static int show(const json_t *answer, uint64_t *shown, bool *over) {
    const char *name = json_string_value(json_object_get(answer, "status_name"));
    const char *message = json_string_value(json_object_get(answer, "message"));
    uint64_t moved = number(answer, "succeeded_units"), failed = number(answer, "failed_units");
    uint64_t blocked = number(answer, "blocked_units");
    uint64_t on_ssd = number(answer, "disk_only_units");
    uint64_t state = ((moved * 1000003 + failed) * 1000003 + blocked) * 1000003 + on_ssd;
    name = name != NULL ? name : "?";
    *over = strcmp(name, "SUCCEEDED") == 0 || strcmp(name, "FAILED") == 0 ||
            strcmp(name, "CANCELED") == 0;
    if (*shown != state || *over) {
        *shown = state;
        fprintf(
            stderr,
            "%s: %llu objects moved, %.1f MiB; %llu failed, %llu waited for, %llu on SSD only\n",
            name, (unsigned long long)moved, (double)number(answer, "migrated_bytes") / (1u << 20),
            (unsigned long long)failed, (unsigned long long)blocked, (unsigned long long)on_ssd);
    }
    if (!*over || strcmp(name, "SUCCEEDED") == 0) {
        return 0;
    }
    return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "the job has ended: %s (%s)", name,
                       message != NULL ? message : "");
}

static int watch(const struct mc_admin *admin, const char *job, uint64_t timeout_ms) {
    uint64_t until = timeout_ms != 0 ? mc_deadline_in_ms(timeout_ms) : MC_WAIT_FOREVER;
    uint64_t shown = UINT64_MAX;
    struct mc_buf path = {0};
    bool over = false;
    int exit_status = 0;
    mc_buf_printf(&path, JOBS "/query?job_id=%s", job);
    (void)mc_cmd_catch_signals();
    while (!over) {
        struct mc_buf body = {0};
        int http_status = 0;
        enum mc_status status = mc_admin_get(admin, mc_buf_cstr(&path), &http_status, &body);
        json_t *answer = understand(admin, status, http_status, &body);
        mc_buf_free(&body);
        exit_status = answer != NULL ? show(answer, &shown, &over) : MC_EXIT_FAILED;
        over = over || answer == NULL;
        json_decref(answer);
        if (!over && (mc_cmd_wait_for_signal(WATCH_MS) || mc_now_ns(mc_clock_system()) >= until)) {
            exit_status =
                mc_cmd_fail(PROGRAM, MC_EXIT_FAILED,
                            "the job goes on; to cancel it: mooncake drain --cancel %s", job);
            over = true;
        }
    }
    mc_buf_free(&path);
    return exit_status;
}

static int drain(const struct mc_admin *admin, const struct drain_options *o,
                 const struct mc_option_result *result) {
    char job[64];
    if (o->cancel != NULL && o->cancel[0] != '\0') {
        return cancel(admin, o->cancel);
    }
    if (!begin(admin, o, result, job, sizeof(job))) {
        return MC_EXIT_FAILED;
    }
    puts(job);
    fflush(stdout);
    return o->detach ? 0 : watch(admin, job, o->timeout_ms);
}

int mc_cmd_drain(int argc, char **argv) {
    struct drain_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_drain_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct mc_admin admin;
    bool cancels = options.cancel != NULL && options.cancel[0] != '\0';
    if (cancels == (result.positional_count > 0)) {
        exit_status =
            mc_cmd_fail(PROGRAM, MC_EXIT_USAGE, "either segments or --cancel JOB is expected");
    } else {
        exit_status = mc_admin_find_or_say(PROGRAM, &options.reach, &admin);
    }
    if (exit_status == 0) {
        exit_status = drain(&admin, &options, &result);
    }
    mc_options_free(&result);
    return exit_status;
}

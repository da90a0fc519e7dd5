/*
 * Reading traces. See cmd/trace.h.
 *
 * A file is unpacked whole (it is bounded) and parsed by jansson, a line at a time for JSONL so
 * that a broken line can be named. Everything that the formats promise is checked here - numbers in
 * range, as many ids as the length asks for - so that the replay never meets a request that makes
 * no sense.
 *
 * Blocks get dense numbers through one open-addressing table keyed by (scope of the file, id): the
 * replay then keeps its state of a block in an array.
 */
#include "cmd/trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <zlib.h>

struct loader {
    struct mc_trace *trace;
    struct mc_buf *error;
    size_t request_cap;
    size_t block_cap;
    size_t name_cap;
    uint32_t *slots; /* dense number + 1; 0 = free */
    size_t slot_count;
    const char *path; /* of the file being read */
    int line;
    uint64_t scope;
};

static enum mc_status broken(struct loader *l, const char *format, ...) MC_PRINTF(2, 3);
static enum mc_status broken(struct loader *l, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    mc_buf_clear(l->error);
    if (l->line > 0) {
        mc_buf_printf(l->error, "%s:%d: %s", l->path, l->line, text);
    } else {
        mc_buf_printf(l->error, "%s: %s", l->path, text);
    }
    return MC_ERR_USAGE;
}

/* ---- blocks ---- */

static void grow_slots(struct loader *l) {
    size_t count = l->slot_count ? l->slot_count * 2 : 1024;
    free(l->slots);
    l->slots = mc_zalloc(count * sizeof(*l->slots));
    l->slot_count = count;
    for (size_t i = 0; i < l->trace->distinct_count; i++) {
        size_t at = l->trace->names[i] & (count - 1);
        while (l->slots[at] != 0) {
            at = (at + 1) & (count - 1);
        }
        l->slots[at] = (uint32_t)i + 1;
    }
}

/* The dense number of the block called `name`, a new one when it has none. */
static uint32_t intern_block(struct loader *l, uint64_t name) {
    struct mc_trace *trace = l->trace;
    if (trace->distinct_count * 2 >= l->slot_count) {
        grow_slots(l);
    }
    size_t at = name & (l->slot_count - 1);
    while (l->slots[at] != 0) {
        uint32_t dense = l->slots[at] - 1;
        if (trace->names[dense] == name) {
            return dense;
        }
        at = (at + 1) & (l->slot_count - 1);
    }
    if (trace->distinct_count == l->name_cap) {
        l->name_cap = l->name_cap ? l->name_cap * 2 : 1024;
        trace->names = mc_realloc(trace->names, l->name_cap * sizeof(*trace->names));
    }
    trace->names[trace->distinct_count] = name;
    l->slots[at] = (uint32_t)++trace->distinct_count;
    return (uint32_t)trace->distinct_count - 1;
}

/* ---- one request ---- */

static enum mc_status get_u32(struct loader *l, const json_t *object, const char *name,
                              uint32_t *out) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value)) {
        return broken(l, "\"%s\" is missing or not a whole number", name);
    }
    json_int_t number = json_integer_value(value);
    if (number < 0 || number > UINT32_MAX) {
        return broken(l, "\"%s\" is %lld, not in 0..%u", name, (long long)number, UINT32_MAX);
    }
    *out = (uint32_t)number;
    return MC_OK;
}

static enum mc_status get_time(struct loader *l, const json_t *object, const char *name,
                               double ms_per_unit, uint64_t *out) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) {
        return broken(l, "\"%s\" is missing or not a number", name);
    }
    double ms = json_number_value(value) * ms_per_unit;
    if (!(ms >= 0 && ms <= 1e15)) {
        return broken(l, "\"%s\" is not a time", name);
    }
    *out = (uint64_t)llround(ms);
    return MC_OK;
}

static enum mc_status add_blocks(struct loader *l, const json_t *ids,
                                 struct mc_trace_request *request) {
    struct mc_trace *trace = l->trace;
    size_t count = json_array_size(ids);
    if (count > MC_TRACE_MAX_BLOCKS) {
        return broken(l, "%zu blocks in one request, more than %u", count, MC_TRACE_MAX_BLOCKS);
    }
    if (trace->block_count + count > l->block_cap) {
        l->block_cap = l->block_cap ? l->block_cap * 2 : 4096;
        l->block_cap = (size_t)mc_max_u64(l->block_cap, trace->block_count + count);
        trace->blocks = mc_realloc(trace->blocks, l->block_cap * sizeof(*trace->blocks));
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id)) {
            return broken(l, "\"hash_ids\"[%zu] is not a whole number", i);
        }
        json_int_t number = json_integer_value(id);
        uint64_t name = mc_hash64(&number, sizeof(number), l->scope);
        trace->blocks[trace->block_count + i] = intern_block(l, name);
    }
    request->first_block = trace->block_count;
    request->block_count = (uint32_t)count;
    trace->block_count += count;
    return MC_OK;
}

/* FAST'25 counts the partial last block, sessions do not. */
static enum mc_status add_request(struct loader *l, const json_t *object,
                                  struct mc_trace_request request, bool partial_may_lack) {
    struct mc_trace *trace = l->trace;
    const json_t *ids = json_object_get(object, "hash_ids");
    if (!json_is_array(ids)) {
        return broken(l, "\"hash_ids\" is missing or not a list");
    }
    size_t full = request.input_tokens / request.block_tokens;
    size_t all = full + (request.input_tokens % request.block_tokens != 0);
    size_t count = json_array_size(ids);
    if (count != all && !(partial_may_lack && count == full)) {
        return broken(l, "%zu \"hash_ids\" for %u tokens in blocks of %u", count,
                      request.input_tokens, request.block_tokens);
    }
    MC_TRY(add_blocks(l, ids, &request));
    if (trace->request_count == l->request_cap) {
        l->request_cap = l->request_cap ? l->request_cap * 2 : 1024;
        trace->requests = mc_realloc(trace->requests, l->request_cap * sizeof(*trace->requests));
    }
    trace->requests[trace->request_count++] = request;
    return MC_OK;
}

/* ---- the two formats ---- */

static enum mc_status parse_line(struct loader *l, struct mc_str line) {
    json_error_t why;
    json_t *object = json_loadb(line.ptr, line.len, JSON_REJECT_DUPLICATES, &why);
    if (object == NULL) {
        return broken(l, "not JSON: %s", why.text);
    }
    struct mc_trace_request request = {.block_tokens = MC_TRACE_FAST25_BLOCK_TOKENS};
    enum mc_status status = MC_OK;
    if (!json_is_object(object)) {
        status = broken(l, "not a JSON object");
    }
    if (status == MC_OK) {
        status = get_time(l, object, "timestamp", 1, &request.timestamp_ms);
    }
    if (status == MC_OK) {
        status = get_u32(l, object, "input_length", &request.input_tokens);
    }
    if (status == MC_OK) {
        status = get_u32(l, object, "output_length", &request.output_tokens);
    }
    if (status == MC_OK) {
        status = add_request(l, object, request, false);
    }
    json_decref(object);
    return status;
}

static enum mc_status parse_lines(struct loader *l, struct mc_str text) {
    size_t at = 0;
    while (at < text.len) {
        const char *start = text.ptr + at;
        const char *newline = memchr(start, '\n', text.len - at);
        size_t len = newline ? (size_t)(newline - start) : text.len - at;
        l->line++;
        at += len + 1;
        if (strspn(start, " \t\r") >= len) { /* the text is terminated, so strspn stops */
            continue;
        }
        MC_TRY(parse_line(l, (struct mc_str){start, len}));
    }
    return MC_OK;
}

#define MAX_NESTING 8 /* sub-agents of sub-agents */

static enum mc_status parse_session_requests(struct loader *l, const json_t *list,
                                             uint32_t block_tokens, int depth) {
    if (!json_is_array(list)) {
        return broken(l, "\"requests\" is missing or not a list");
    }
    if (depth > MAX_NESTING) {
        return broken(l, "\"requests\" nested deeper than %d", MAX_NESTING);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *nested = json_object_get(entry, "requests");
        if (nested != NULL) {
            MC_TRY(parse_session_requests(l, nested, block_tokens, depth + 1));
        }
        if (nested != NULL && json_object_get(entry, "hash_ids") == NULL) {
            continue; /* only a wrapper */
        }
        struct mc_trace_request request = {.block_tokens = block_tokens};
        enum mc_status status = get_time(l, entry, "t", 1000, &request.timestamp_ms);
        if (status == MC_OK) {
            status = get_u32(l, entry, "in", &request.input_tokens);
        }
        if (status == MC_OK) {
            status = get_u32(l, entry, "out", &request.output_tokens);
        }
        if (status == MC_OK) {
            status = add_request(l, entry, request, true);
        }
        if (status != MC_OK) {
            mc_buf_printf(l->error, " (request %zu%s)", i, depth > 0 ? " of a sub-agent" : "");
            return status;
        }
    }
    return MC_OK;
}

static enum mc_status parse_session(struct loader *l, struct mc_str text) {
    json_error_t why;
    json_t *session = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES, &why);
    if (session == NULL) {
        l->line = why.line;
        return broken(l, "not JSON: %s", why.text);
    }
    const char *id = json_string_value(json_object_get(session, "id"));
    if (id != NULL) {
        l->scope = mc_hash64(id, strlen(id), 1);
    }
    uint32_t block_tokens = 0;
    enum mc_status status = get_u32(l, session, "block_size", &block_tokens);
    if (status == MC_OK && block_tokens == 0) {
        status = broken(l, "\"block_size\" is 0");
    }
    if (status == MC_OK) {
        status = parse_session_requests(l, json_object_get(session, "requests"), block_tokens, 0);
    }
    json_decref(session);
    return status;
}

/* ---- files ---- */

static enum mc_status read_unpacked(struct loader *l, struct mc_buf *text) {
    gzFile file = gzopen(l->path, "rb"); /* reads plain files as they are */
    if (file == NULL) {
        return broken(l, "cannot be opened: %s", strerror(errno));
    }
    enum mc_status status = MC_OK;
    for (;;) {
        mc_buf_reserve(text, 1u << 20);
        int n = gzread(file, text->data + text->len, 1u << 20);
        if (n < 0) {
            int code = 0;
            status = broken(l, "cannot be read: %s", gzerror(file, &code));
            break;
        }
        text->len += (size_t)n;
        if (n == 0) {
            break;
        }
        if (text->len > MC_TRACE_MAX_BYTES) {
            status = broken(l, "larger than %llu bytes", MC_TRACE_MAX_BYTES);
            break;
        }
    }
    int closed = gzclose(file);
    if (status == MC_OK && closed != Z_OK) {
        status = broken(l, "the gzip stream is cut off");
    }
    mc_buf_cstr(text);
    return status;
}

static struct mc_str base_name(const char *path, bool *is_session) {
    const char *slash = strrchr(path, '/');
    struct mc_str name = mc_str_from(slash ? slash + 1 : path);
    if (name.len > 3 && memcmp(name.ptr + name.len - 3, ".gz", 3) == 0) {
        name.len -= 3;
    }
    *is_session = name.len > 5 && memcmp(name.ptr + name.len - 5, ".json", 5) == 0;
    const char *dot = memrchr(name.ptr, '.', name.len);
    if (dot != NULL && dot > name.ptr) {
        name.len = (size_t)(dot - name.ptr);
    }
    return name;
}

static enum mc_status load_file(struct loader *l, const char *path, struct mc_buf *title) {
    bool is_session = false;
    struct mc_str name = base_name(path, &is_session);
    mc_buf_printf(title, "%s%.*s", title->len ? ", " : "", (int)name.len, name.ptr);
    l->path = path;
    l->line = 0;
    l->scope = mc_hash64(name.ptr, name.len, 0);
    size_t before = l->trace->request_count;
    struct mc_buf text = {0};
    enum mc_status status = read_unpacked(l, &text);
    if (status == MC_OK) {
        struct mc_str all = {text.data, text.len};
        status = is_session ? parse_session(l, all) : parse_lines(l, all);
    }
    if (status == MC_OK && l->trace->request_count == before) {
        l->line = 0;
        status = broken(l, "holds no request");
    }
    mc_buf_free(&text);
    return status;
}

static int by_time(const void *a, const void *b) {
    const struct mc_trace_request *x = a, *y = b;
    if (x->timestamp_ms != y->timestamp_ms) {
        return x->timestamp_ms < y->timestamp_ms ? -1 : 1;
    }
    /* blocks are stored in the order of reading; a request without blocks ties with its neighbour,
     * harmlessly */
    return x->first_block < y->first_block ? -1 : x->first_block > y->first_block;
}

static void summarise(struct mc_trace *trace) {
    trace->input_tokens = 0;
    trace->timestamp_count = 0;
    for (size_t i = 0; i < trace->request_count; i++) {
        const struct mc_trace_request *request = &trace->requests[i];
        trace->input_tokens += request->input_tokens;
        if (i == 0 || request->timestamp_ms != trace->requests[i - 1].timestamp_ms) {
            trace->timestamp_count++;
        }
    }
}

enum mc_status mc_trace_load(const char *const *paths, size_t count, struct mc_trace *trace,
                             struct mc_buf *error) {
    struct mc_buf title = {0};
    *trace = (struct mc_trace){0};
    struct loader l = {.trace = trace, .error = error};
    enum mc_status status = MC_OK;
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        status = load_file(&l, paths[i], &title);
    }
    free(l.slots);
    if (status != MC_OK) {
        mc_buf_free(&title);
        mc_trace_free(trace);
        return status;
    }
    qsort(trace->requests, trace->request_count, sizeof(*trace->requests), by_time);
    summarise(trace);
    mc_buf_cstr(&title);
    trace->title = title.data;
    return MC_OK;
}

void mc_trace_free(struct mc_trace *trace) {
    free(trace->requests);
    free(trace->blocks);
    free(trace->names);
    free(trace->title);
    *trace = (struct mc_trace){0};
}

/* Numbers the blocks anew, only those that are still referenced. */
static void renumber(struct mc_trace *trace) {
    uint32_t *numbers =
        mc_zalloc((trace->distinct_count + 1) * sizeof(*numbers)); /* new + 1; 0 = not yet seen */
    uint64_t *names = mc_alloc((trace->distinct_count + 1) * sizeof(*names));
    uint32_t count = 0;
    trace->block_count = 0;
    for (size_t r = 0; r < trace->request_count; r++) {
        uint32_t *blocks = trace->blocks + trace->requests[r].first_block;
        for (uint32_t b = 0; b < trace->requests[r].block_count; b++) {
            uint32_t old = blocks[b];
            if (numbers[old] == 0) {
                names[count] = trace->names[old];
                numbers[old] = ++count;
            }
            blocks[b] = numbers[old] - 1;
        }
        trace->block_count += trace->requests[r].block_count;
    }
    free(numbers);
    free(trace->names);
    trace->names = names;
    trace->distinct_count = count;
}

void mc_trace_limit(struct mc_trace *trace, size_t count) {
    if (count >= trace->request_count) {
        return;
    }
    trace->request_count = count;
    renumber(trace);
    summarise(trace);
}

uint32_t mc_trace_block_tokens(const struct mc_trace_request *request, uint32_t index) {
    uint64_t before = (uint64_t)index * request->block_tokens;
    MC_ASSERT(index < request->block_count && before < request->input_tokens);
    return (uint32_t)mc_min_u64(request->block_tokens, request->input_tokens - before);
}

struct mc_trace_bound mc_trace_infinite_cache(const struct mc_trace *trace) {
    struct mc_trace_bound bound = {0};
    uint8_t *seen = mc_zalloc(trace->distinct_count + 1);
    for (size_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        const uint32_t *blocks = trace->blocks + request->first_block;
        for (uint32_t b = 0; b < request->block_count; b++) {
            if (seen[blocks[b]]) {
                bound.hit_blocks++;
                bound.hit_tokens += mc_trace_block_tokens(request, b);
            }
        }
        for (uint32_t b = 0; b < request->block_count; b++) {
            seen[blocks[b]] = 1;
        }
    }
    free(seen);
    bound.hit_rate_blocks =
        trace->block_count ? (double)bound.hit_blocks / (double)trace->block_count : 0;
    bound.hit_rate_tokens =
        trace->input_tokens ? (double)bound.hit_tokens / (double)trace->input_tokens : 0;
    return bound;
}

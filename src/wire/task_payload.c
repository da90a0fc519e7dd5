/*
 * Task payloads. See wire/task_payload.h.
 *
 * A small reader of its own, because the libraries know neither numbers above 2^63, which lease ids
 * are, nor strings that are not UTF-8, which keys may be. It never reads past the text, its depth
 * is bounded, and what it unescapes is never longer than the text.
 */
#include "wire/task_payload.h"

#define DEPTH_MAX 16

/* ---- writing ---- */

static void put_string(struct mc_buf *out, struct mc_str s) {
    mc_buf_putc(out, '"');
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c == '"' || c == '\\') {
            mc_buf_putc(out, '\\');
            mc_buf_putc(out, c);
        } else if (c < 0x20) {
            mc_buf_printf(out, "\\u%04x", c);
        } else {
            mc_buf_putc(out, c);
        }
    }
    mc_buf_putc(out, '"');
}

static void put_member(struct mc_buf *out, const char *name, struct mc_str value) {
    mc_buf_printf(out, ",\"%s\":", name);
    put_string(out, value);
}

void mw_task_payload_encode(enum mc_task_type type, const struct mw_task_payload *payload,
                            struct mc_buf *out) {
    const struct mc_str *targets = payload->targets.items;
    mc_buf_puts(out, "{\"tenant_id\":");
    put_string(out, payload->tenant);
    put_member(out, "key", payload->key);
    put_member(out, "source", payload->source);
    if (type == MC_TASK_MOVE) {
        MC_ASSERT(payload->targets.count == 1);
        put_member(out, "target", targets[0]);
    } else {
        mc_buf_puts(out, ",\"targets\":[");
        for (size_t i = 0; i < payload->targets.count; i++) {
            if (i > 0) {
                mc_buf_putc(out, ',');
            }
            put_string(out, targets[i]);
        }
        mc_buf_printf(out,
                      "],\"dynamic_replication_lease_id_high\":%llu,"
                      "\"dynamic_replication_lease_id_low\":%llu,"
                      "\"dynamic_replication_version_epoch\":%llu",
                      (unsigned long long)payload->lease.hi, (unsigned long long)payload->lease.lo,
                      (unsigned long long)payload->epoch);
        if (payload->stripes > 0) {
            mc_buf_printf(out, ",\"stripes\":%llu", (unsigned long long)payload->stripes);
        }
    }
    mc_buf_putc(out, '}');
}

/* ---- reading ---- */

struct reader {
    const char *at, *end;
    struct mc_arena *arena;
    bool failed;
};

static void skip_space(struct reader *r) {
    while (r->at < r->end &&
           (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) {
        r->at++;
    }
}

/* Takes `c` when it is next. */
static bool take(struct reader *r, char c) {
    skip_space(r);
    bool there = r->at < r->end && *r->at == c;
    r->at += there;
    return there;
}

static bool need(struct reader *r, char c) {
    bool there = take(r, c);
    r->failed |= !there;
    return there;
}

/* Four hexadecimal digits. */
static uint32_t read_unit(struct reader *r) {
    uint32_t unit = 0;
    for (unsigned i = 0; i < 4; i++) {
        char c = r->at < r->end ? *r->at++ : 'x';
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        r->failed |= digit == 16;
        unit = unit << 4 | (digit & 15);
    }
    return unit;
}

/* Behind "\u": appends the character as UTF-8; six or twelve bytes of text give at most four. */
static char *read_escape(struct reader *r, char *out) {
    uint32_t c = read_unit(r);
    if (c >= 0xd800 && c < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        uint32_t low = read_unit(r);
        r->failed |= low < 0xdc00 || low > 0xdfff;
        c = 0x10000 + ((c & 0x3ff) << 10) + (low & 0x3ff);
    } else if (c >= 0xd800 && c < 0xe000) {
        r->failed = true;
    }
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xc0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *out++ = (char)(0xe0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    } else {
        *out++ = (char)(0xf0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3f));
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    }
    return out;
}

static struct mc_str read_string(struct reader *r) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    if (!need(r, '"')) {
        return (struct mc_str){"", 0};
    }
    const char *close = r->at;
    while (close < r->end && *close != '"') {
        close += *close == '\\' ? 2 : 1;
    }
    if (close >= r->end) {
        r->failed = true;
        return (struct mc_str){"", 0};
    }
    char *bytes = mc_arena_alloc(r->arena, (size_t)(close - r->at) + 1);
    char *out = bytes;
    while (r->at < close) {
        if (*r->at != '\\') {
            *out++ = *r->at++;
            continue;
        }
        const char *name = r->at[1] != '\0' ? strchr(NAMES, r->at[1]) : NULL;
        bool unit = r->at[1] == 'u';
        r->at += 2;
        if (unit) {
            out = read_escape(r, out);
        } else if (name != NULL) {
            *out++ = VALUES[name - NAMES];
        } else {
            r->failed = true;
        }
    }
    r->failed |= r->at != close;
    r->at = close + 1;
    return (struct mc_str){bytes, (size_t)(out - bytes)};
}

static uint64_t read_number(struct reader *r) {
    uint64_t value = 0;
    skip_space(r);
    const char *begin = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        r->failed |= __builtin_mul_overflow(value, (uint64_t)10, &value) ||
                     __builtin_add_overflow(value, (uint64_t)(*r->at - '0'), &value);
    }
    r->failed |= r->at == begin;
    return value;
}

static struct mc_vec read_strings(struct reader *r) {
    struct mc_str *items = NULL;
    size_t count = 0, capacity = 0;
    if (!need(r, '[') || take(r, ']')) {
        return (struct mc_vec){0};
    }
    do {
        if (count == capacity) {
            struct mc_str *more = mc_arena_alloc(r->arena, (2 * capacity + 4) * sizeof(*more));
            if (count > 0) {
                memcpy(more, items, count * sizeof(*more));
            }
            items = more;
            capacity = 2 * capacity + 4;
        }
        items[count++] = read_string(r);
    } while (!r->failed && take(r, ','));
    need(r, ']');
    return (struct mc_vec){items, count};
}

/* Any value of a member that is not known. */
static void skip_value(struct reader *r, unsigned depth) {
    skip_space(r);
    char open = r->at < r->end ? *r->at : '\0';
    if (depth == DEPTH_MAX || open == '\0') {
        r->failed = true;
    } else if (open == '"') {
        (void)read_string(r);
    } else if (open == '{' || open == '[') {
        char close = open == '{' ? '}' : ']';
        r->at++;
        if (take(r, close)) {
            return;
        }
        do {
            if (open == '{') {
                (void)read_string(r);
                need(r, ':');
            }
            skip_value(r, depth + 1);
        } while (!r->failed && take(r, ','));
        need(r, close);
    } else {
        const char *begin = r->at;
        while (r->at < r->end && strchr(",]} \t\r\n", *r->at) == NULL) {
            r->at++;
        }
        r->failed |= r->at == begin;
    }
}

enum { HAS_TENANT = 1, HAS_KEY = 2, HAS_SOURCE = 4, HAS_TARGETS = 8 };

static unsigned read_member(struct reader *r, enum mc_task_type type, struct mc_str name,
                            struct mw_task_payload *out) {
    if (mc_str_eq(name, MC_STR("tenant_id"))) {
        out->tenant = read_string(r);
        return HAS_TENANT;
    }
    if (mc_str_eq(name, MC_STR("key"))) {
        out->key = read_string(r);
        return HAS_KEY;
    }
    if (mc_str_eq(name, MC_STR("source"))) {
        out->source = read_string(r);
        return HAS_SOURCE;
    }
    if (type == MC_TASK_MOVE && mc_str_eq(name, MC_STR("target"))) {
        struct mc_str *target = mc_arena_alloc(r->arena, sizeof(*target));
        *target = read_string(r);
        out->targets = (struct mc_vec){target, 1};
        return HAS_TARGETS;
    }
    if (type == MC_TASK_COPY && mc_str_eq(name, MC_STR("targets"))) {
        out->targets = read_strings(r);
        return HAS_TARGETS;
    }
    if (mc_str_eq(name, MC_STR("dynamic_replication_lease_id_high"))) {
        out->lease.hi = read_number(r);
    } else if (mc_str_eq(name, MC_STR("dynamic_replication_lease_id_low"))) {
        out->lease.lo = read_number(r);
    } else if (mc_str_eq(name, MC_STR("dynamic_replication_version_epoch"))) {
        out->epoch = read_number(r);
    } else if (mc_str_eq(name, MC_STR("stripes"))) {
        out->stripes = read_number(r);
    } else {
        skip_value(r, 0);
    }
    return 0;
}

enum mc_status mw_task_payload_decode(enum mc_task_type type, struct mc_str text,
                                      struct mc_arena *arena, struct mw_task_payload *out) {
    struct reader r = {.at = text.ptr, .end = text.ptr + text.len, .arena = arena};
    struct mw_task_payload payload = {.tenant = MC_STR("default")}; /* older masters say none */
    unsigned has = HAS_TENANT;
    need(&r, '{');
    if (!r.failed && !take(&r, '}')) {
        do {
            struct mc_str name = read_string(&r);
            if (need(&r, ':')) {
                has |= read_member(&r, type, name, &payload);
            }
        } while (!r.failed && take(&r, ','));
        need(&r, '}');
    }
    skip_space(&r);
    if (r.failed || r.at != r.end || has != (HAS_TENANT | HAS_KEY | HAS_SOURCE | HAS_TARGETS)) {
        return MC_DESERIALIZE_FAIL;
    }
    *out = payload;
    return MC_OK;
}

/*
 * What people write into flags, files and environment: sizes, durations, booleans, numbers. See
 * base/base.h.
 *
 * All arithmetic is in integers, so that "0.1 GB" means the same everywhere and an overflow is seen
 * instead of rounded away. Nothing here logs: the caller knows which option or variable the text
 * came from and says so.
 */
#include "base/base.h"

#include <ctype.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit SIZE_UNITS[] = {
    {"", 1},
    {"b", 1},
    {"k", 1ull << 10},
    {"kb", 1ull << 10},
    {"kib", 1ull << 10},
    {"m", 1ull << 20},
    {"mb", 1ull << 20},
    {"mib", 1ull << 20},
    {"g", 1ull << 30},
    {"gb", 1ull << 30},
    {"gib", 1ull << 30},
    {"t", 1ull << 40},
    {"tb", 1ull << 40},
    {"tib", 1ull << 40},
    {NULL, 0},
};

static const struct unit DURATION_UNITS[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}, {NULL, 0},
};

static struct mc_str trimmed(const char *text) {
    struct mc_str s = mc_str_from(text);
    while (s.len > 0 && isspace((unsigned char)s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && isspace((unsigned char)s.ptr[s.len - 1])) {
        s.len--;
    }
    return s;
}

static bool is_word(struct mc_str s, const char *word) {
    return s.len == strlen(word) && strncasecmp(s.ptr, word, s.len) == 0;
}

static const struct unit *find_unit(const struct unit *units, struct mc_str name) {
    for (; units->name != NULL; units++) {
        if (is_word(name, units->name)) {
            return units;
        }
    }
    return NULL;
}

/* A decimal number with an optional fraction, then an optional unit. A result that is not whole is
 * cut down, but a fraction of the smallest unit is refused: "1.5 bytes" is a mistake. */
static enum mc_status parse_quantity(struct mc_str s, const struct unit *units, uint64_t *out) {
    size_t i = 0;
    uint64_t whole = 0, fraction = 0, scale = 1;
    for (; i < s.len && isdigit((unsigned char)s.ptr[i]); i++) {
        if (__builtin_mul_overflow(whole, 10, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(s.ptr[i] - '0'), &whole)) {
            return MC_INVALID_PARAMS;
        }
    }
    size_t digits = i;
    if (i < s.len && s.ptr[i] == '.') {
        for (i++; i < s.len && isdigit((unsigned char)s.ptr[i]); i++, digits++) {
            if (scale < 1000000000000000ull) { /* later digits are worth less than a byte */
                fraction = fraction * 10 + (uint64_t)(s.ptr[i] - '0');
                scale *= 10;
            }
        }
    }
    if (digits == 0) {
        return MC_INVALID_PARAMS;
    }
    while (i < s.len && isspace((unsigned char)s.ptr[i])) {
        i++;
    }
    const struct unit *unit = find_unit(units, (struct mc_str){s.ptr + i, s.len - i});
    if (unit == NULL || (unit->factor == 1 && fraction != 0)) {
        return MC_INVALID_PARAMS;
    }
    uint64_t value;
    uint64_t part = (uint64_t)((unsigned __int128)fraction * unit->factor / scale);
    if (__builtin_mul_overflow(whole, unit->factor, &value) ||
        __builtin_add_overflow(value, part, &value)) {
        return MC_INVALID_PARAMS;
    }
    *out = value;
    return MC_OK;
}

enum mc_status mc_parse_size(const char *text, uint64_t *bytes) {
    struct mc_str s = trimmed(text);
    if (is_word(s, "infinite")) {
        *bytes = UINT64_MAX;
        return MC_OK;
    }
    return parse_quantity(s, SIZE_UNITS, bytes);
}

enum mc_status mc_parse_duration_ms(const char *text, uint64_t *ms) {
    return parse_quantity(trimmed(text), DURATION_UNITS, ms);
}

enum mc_status mc_parse_bool(const char *text, bool *value) {
    static const char *const YES[] = {"1", "true", "yes", "on"};
    static const char *const NO[] = {"0", "false", "no", "off"};
    struct mc_str s = trimmed(text);
    for (size_t i = 0; i < MC_ARRAY_LEN(YES); i++) {
        if (is_word(s, YES[i]) || is_word(s, NO[i])) {
            *value = is_word(s, YES[i]);
            return MC_OK;
        }
    }
    return MC_INVALID_PARAMS;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

enum mc_status mc_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value) {
    struct mc_str s = mc_str_from(text);
    int base = 10;
    if (s.len > 2 && s.ptr[0] == '0' && (s.ptr[1] == 'x' || s.ptr[1] == 'X')) {
        base = 16;
        s.ptr += 2;
        s.len -= 2;
    }
    if (s.len == 0) {
        return MC_INVALID_PARAMS;
    }
    uint64_t number = 0;
    for (size_t i = 0; i < s.len; i++) {
        int digit = digit_value(s.ptr[i]);
        if (digit >= base || __builtin_mul_overflow(number, (uint64_t)base, &number) ||
            __builtin_add_overflow(number, (uint64_t)digit, &number)) {
            return MC_INVALID_PARAMS;
        }
    }
    if (number < min || number > max) {
        return MC_INVALID_PARAMS;
    }
    *value = number;
    return MC_OK;
}

void mc_format_size(struct mc_buf *buf, uint64_t bytes) {
    static const char *const NAMES[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes == UINT64_MAX) { /* what mc_parse_size reads as "infinite" */
        mc_buf_puts(buf, "infinite");
        return;
    }
    size_t unit = 0;
    uint64_t tenths;
    for (;; unit++) { /* up a unit while the rounded number would show as 1024 or more */
        uint64_t size = 1ull << (10 * unit);
        tenths = (uint64_t)(((unsigned __int128)bytes * 10 + size / 2) / size);
        if (tenths < 10240 || unit + 1 == MC_ARRAY_LEN(NAMES)) {
            break;
        }
    }
    mc_buf_printf(buf, "%llu", (unsigned long long)(tenths / 10));
    if (tenths % 10 != 0) {
        mc_buf_printf(buf, ".%llu", (unsigned long long)(tenths % 10));
    }
    mc_buf_printf(buf, " %s", NAMES[unit]);
}

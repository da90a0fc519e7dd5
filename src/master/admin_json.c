/*
 * JSON pieces of the admin answers. See master/admin.h.
 */
#include "master/admin.h"

/* The length of the UTF-8 sequence at p (1 … 4), or 0 when it is none. */
static size_t utf8_length(const unsigned char *p, size_t left) {
    if (p[0] < 0x80) {
        return 1;
    }
    size_t len = p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    if (len == 0 || p[0] > 0xf4 || len > left) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] > 0x9f;
    bool too_high = p[0] == 0xf4 && p[1] > 0x8f;
    return overlong || surrogate || too_high ? 0 : len;
}

void mc_json_string(struct mc_buf *out, struct mc_str text) {
    mc_buf_putc(out, '"');
    for (size_t i = 0; i < text.len;) {
        const unsigned char *p = (const unsigned char *)text.ptr + i;
        size_t len = utf8_length(p, text.len - i);
        if (len == 0) {
            mc_buf_puts(out, "\\ufffd");
            len = 1;
        } else if (*p == '"' || *p == '\\') {
            mc_buf_putc(out, '\\');
            mc_buf_putc(out, (char)*p);
        } else if (*p < 0x20 || *p == 0x7f) {
            mc_buf_printf(out, "\\u%04x", *p);
        } else {
            mc_buf_append(out, p, len);
        }
        i += len;
    }
    mc_buf_putc(out, '"');
}

static int http_status(enum mc_status status) {
    switch (status) {
    case MC_INVALID_PARAMS:
        return 400;
    case MC_SEGMENT_NOT_FOUND:
    case MC_OBJECT_NOT_FOUND:
    case MC_JOB_NOT_FOUND:
    case MC_TENANT_NOT_REGISTERED:
        return 404;
    case MC_UNAVAILABLE_IN_CURRENT_STATUS:
    case MC_UNAVAILABLE_IN_CURRENT_MODE:
    case MC_TENANT_NOT_EMPTY:
        return 409;
    default:
        return 500;
    }
}

int mc_json_error(struct mc_buf *out, enum mc_status status, const char *message) {
    mc_buf_printf(
        out, "{\"success\":false,\"error_code\":%d,\"error_message\":", mc_status_to_wire(status));
    mc_json_string(out, mc_str_from(message ? message : mc_status_name(mc_status_to_wire(status))));
    mc_buf_putc(out, '}');
    return http_status(status);
}

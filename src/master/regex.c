/*
 * Keys by regular expression.
 *
 * Upstream takes ECMAScript expressions and searches (finds anywhere in the key). PCRE2 in byte
 * mode with ECMAScript's readings of \u, of references to unset groups and of $ stands for it. A
 * pattern comes from a stranger: its length, the work of one match and the time of the whole search
 * are bounded, and a pattern that hits a bound is refused as a whole, before anything was changed.
 * Keys are copied out shard by shard and matched without a lock, and the RPC runs aside, so a slow
 * pattern delays only others of its kind.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "master/core.h"

#include "base/log.h"

#define PATTERN_MAX_BYTES 65536u
#define MATCH_LIMIT       1000000u
#define DEPTH_LIMIT       10000u
#define HEAP_LIMIT_KIB    8192u
#define SEARCH_LIMIT_MS   10000u /* of all keys together */
#define KEYS_A_LOOK       64u    /* matched between two looks at the clock */

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

static void regex_free(struct regex *re) {
    pcre2_match_context_free(re->context);
    pcre2_match_data_free(re->match);
    pcre2_code_free(re->code);
}

static enum mc_status regex_compile(struct mc_str pattern, struct regex *re) {
    int error;
    PCRE2_SIZE at;
    *re = (struct regex){0};
    if (pattern.len > PATTERN_MAX_BYTES) {
        return MC_INVALID_PARAMS;
    }
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    MC_ASSERT(context != NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_ANYCRLF); /* . does not match \n and \r */
    const char *bytes = pattern.ptr ? pattern.ptr : "";
    re->code = pcre2_compile((PCRE2_SPTR)bytes, pattern.len,
                             PCRE2_ALT_BSUX | PCRE2_MATCH_UNSET_BACKREF | PCRE2_DOLLAR_ENDONLY |
                                 PCRE2_NEVER_UTF | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, context);
    pcre2_compile_context_free(context);
    if (!re->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(error, text, sizeof(text));
        mc_info("bad regular expression at=%zu error=\"%s\"", (size_t)at, (const char *)text);
        return MC_INVALID_PARAMS;
    }
    (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    re->match = pcre2_match_data_create_from_pattern(re->code, NULL);
    re->context = pcre2_match_context_create(NULL);
    MC_ASSERT(re->match != NULL && re->context != NULL);
    pcre2_set_match_limit(re->context, MATCH_LIMIT);
    pcre2_set_depth_limit(re->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(re->context, HEAP_LIMIT_KIB);
    return MC_OK;
}

static enum mc_status regex_search(struct regex *re, struct mc_str text, bool *found) {
    int rc = pcre2_match(re->code, (PCRE2_SPTR)text.ptr, text.len, 0, 0, re->match, re->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        mc_warn_limited("regular expression given up error=%d", rc);
        return MC_INVALID_PARAMS;
    }
    *found = rc >= 0;
    return MC_OK;
}

struct key_list {
    struct mc_str *items;
    size_t count, cap;
};

static enum mc_status search_shard(struct mc_call *call, struct mc_shard *shard,
                                   const struct mc_str *tenant, struct regex *re,
                                   struct key_list *found) {
    struct mc_arena scratch = {0}; /* only what matches is worth keeping */
    struct mc_call copy = *call;
    copy.arena = &scratch;
    size_t count;
    const struct mc_key *keys = mc_shard_keys(&copy, shard, tenant, &count);
    enum mc_status status = MC_OK;
    for (size_t i = 0; i < count && status == MC_OK; i++) {
        bool match = false;
        if (i % KEYS_A_LOOK == 0 && mc_now_ms(call->m->clock) >= call->now_ms + SEARCH_LIMIT_MS) {
            mc_warn_limited("regular expression given up after_ms=%u", SEARCH_LIMIT_MS);
            status = MC_INVALID_PARAMS;
            break;
        }
        status = regex_search(re, keys[i].user, &match);
        if (match && found->count == found->cap) {
            found->cap = found->cap ? found->cap * 2 : 64;
            found->items = mc_realloc(found->items, found->cap * sizeof(*found->items));
        }
        if (match) {
            found->items[found->count++] = mc_arena_str(call->arena, keys[i].user);
        }
    }
    mc_arena_free(&scratch);
    return status;
}

enum mc_status mc_regex_keys(struct mc_call *call, struct mc_str tenant, struct mc_str pattern,
                             struct mc_vec *keys) {
    struct regex re;
    struct mc_str scope;
    struct key_list found = {0};
    MC_TRY(mc_tenant_normalise(tenant, &scope));
    MC_TRY(regex_compile(pattern, &re));
    enum mc_status status = MC_OK;
    for (unsigned i = 0; i < MC_SHARDS && status == MC_OK; i++) {
        status = search_shard(call, &call->m->shards[i], &scope, &re, &found);
    }
    regex_free(&re);
    if (status == MC_OK) {
        keys->items = mc_arena_alloc(call->arena, (found.count + 1) * sizeof(*found.items));
        keys->count = found.count;
        if (found.count) {
            memcpy(keys->items, found.items, found.count * sizeof(*found.items));
        }
    }
    free(found.items);
    return status;
}

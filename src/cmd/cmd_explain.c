/*
 * `mooncake explain SRC DST SIZE`: how a transfer would go. One of the two is a segment
 * ("host:port" or a name of the metadata service), the other this machine's memory: "." or a
 * location such as cuda:0. The engine of this command has measured nothing yet; that of a running
 * process tells what it measured by `mooncake links`.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "cmd/cmd.h"
#include "te/te.h"

struct explain_options {
    const char *metadata, *host, *policy, *hint;
    uint64_t priority;
};

#define OPT(...) MC_OPTION(struct explain_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(STRING, metadata, .default_value = "P2PHANDSHAKE", .env = "MOONCAKE_TE_META_DATA_SERVER",
        .doc = "where engines find each other: P2PHANDSHAKE, http://host:port/metadata, "
               "etcd://host:port or redis://host:port"),
    OPT(STRING, host, .env = "MOONCAKE_LOCAL_HOSTNAME",
        .doc = "address of this machine that others reach; empty = chosen"),
    OPT(STRING, policy, .env = "MC_TENT_CONF",
        .doc = "JSON, or a file with it, that says how transports and rails are chosen"),
    OPT(STRING, hint, .doc = "transport that the request would ask for"),
    OPT(U64, priority, .default_value = "0", .max = 2,
        .doc = "of the request: 0 = high, 1 = medium, 2 = low"),
};

const struct mc_option_set mc_explain_options = {
    .program = "mooncake explain",
    .synopsis = "[options] SRC DST SIZE",
    .about = "Says by which transport and rails SIZE bytes would go from SRC to DST, and why. One "
             "is a segment (host:port, or a name of the metadata service), the other \".\" or a "
             "location of this machine's memory (cpu:0, cuda:0).",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

static const char program[] = "mooncake explain";

static bool is_local(const char *place) {
    return strcmp(place, ".") == 0 || strncmp(place, "cpu", 3) == 0 ||
           strncmp(place, "cuda", 4) == 0 || strncmp(place, "gpu", 3) == 0;
}

/* An address for the request: the peer's first buffer that is large enough, else its first. */
static uint64_t find_address(struct mc_engine *engine, mc_segment_id segment, uint64_t length) {
    struct mc_buffer_info buffers[64];
    size_t count = 0;
    if (mc_segment_buffers(engine, segment, buffers, MC_ARRAY_LEN(buffers), &count) != MC_OK ||
        count == 0) {
        return 0;
    }
    for (size_t i = 0; i < count && i < MC_ARRAY_LEN(buffers); i++) {
        if (buffers[i].length >= length) {
            return buffers[i].addr;
        }
    }
    return buffers[0].addr;
}

static int explain_with(struct mc_engine *engine, const struct explain_options *o, const char *src,
                        const char *dst, uint64_t length) {
    bool writes = is_local(src);
    const char *peer = writes ? dst : src, *place = writes ? src : dst;
    struct mc_transfer_request r = {.op = writes ? MC_TRANSFER_WRITE : MC_TRANSFER_READ,
                                    .length = length,
                                    .priority = (uint8_t)o->priority,
                                    .transport_hint = o->hint[0] != '\0' ? o->hint : NULL};
    enum mc_status status = mc_segment_open(engine, peer, &r.segment);
    if (status != MC_OK) {
        return mc_cmd_fail(program, MC_EXIT_FAILED,
                           "%s: no Transfer Engine answers to that (%s); that of a node is the "
                           "last address of its line in 'mooncake stat'",
                           peer, mc_status_name(status));
    }
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "no address space for that much");
    }
    status = mc_memory_register(engine, memory, length, strcmp(place, ".") == 0 ? "*" : place,
                                MC_MEMORY_LOCAL_ONLY);
    struct mc_buf text = {0};
    if (status == MC_OK) {
        r.local = memory;
        r.remote_addr = find_address(engine, r.segment, length);
        status = mc_engine_explain(engine, &r, &text);
        (void)!mc_memory_unregister(engine, memory);
    }
    munmap(memory, length);
    if (status == MC_OK) {
        fputs(mc_buf_cstr(&text), stdout);
    }
    mc_buf_free(&text);
    return status == MC_OK ? 0 : mc_cmd_fail(program, MC_EXIT_FAILED, "%s", mc_status_name(status));
}

static int explain(const struct explain_options *o, char *const *words) {
    uint64_t length = 0;
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    if (is_local(words[0]) == is_local(words[1])) {
        return mc_cmd_fail(program, MC_EXIT_USAGE,
                           "one of SRC and DST is a segment, the other \".\" or a location");
    }
    if (mc_parse_size(words[2], &length) != MC_OK || length == 0 || length > 1ull << 46) {
        return mc_cmd_fail(program, MC_EXIT_USAGE, "%s is not a size", words[2]);
    }
    mc_engine_options_init(&options);
    options.metadata = o->metadata;
    options.host = o->host;
    options.policy = o->policy;
    enum mc_status status = mc_engine_create(&options, &engine);
    if (status != MC_OK) {
        return mc_cmd_fail(program, MC_EXIT_FAILED, "no engine: %s", mc_status_name(status));
    }
    int exit_status = explain_with(engine, o, words[0], words[1], length);
    mc_engine_destroy(engine);
    return exit_status;
}

int mc_cmd_explain(int argc, char **argv) {
    struct explain_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse(&mc_explain_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    exit_status = result.positional_count == 3
                      ? explain(&options, result.positional)
                      : mc_cmd_fail(program, MC_EXIT_USAGE, "SRC, DST and SIZE are needed");
    mc_options_free(&result);
    return exit_status;
}

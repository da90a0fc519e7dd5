/*
 * The options of transfer_engine_bench. See cmd/transfer_bench.h.
 */
#include "cmd/transfer_bench.h"
#include "mooncake/transfer.h"

#define OPT(...) MC_OPTION(struct mc_transfer_bench_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(CHOICE, mode, .default_value = "initiator", .choices = "initiator|target",
        .doc = "target: register a buffer and wait; initiator: move data from or to it"),
    OPT(STRING, metadata_server, .default_value = "P2PHANDSHAKE",
        .doc = "where engines find each other: P2PHANDSHAKE, http://host:port/metadata, "
               "etcd://host:port (or host:port) or redis://host:port"),
    OPT(STRING, local_server_name, .doc = "name of this side: host or host:port; empty = chosen"),
    OPT(STRING, segment_id, .doc = "name of the target"),
    OPT(CHOICE, operation, .default_value = "read", .choices = "read|write",
        .doc = "what the initiator does"),
    OPT(STRING, protocol, .default_value = "tcp",
        .doc = "transport that moves everything: tcp, rdma, efa or another of the engine's; auto = "
               "what the engine chooses (shared memory within a host)"),
    OPT(SIZE, block_size, .default_value = "65536", .min = 1, .max = 1e15,
        .doc = "bytes of one request"),
    OPT(U64, batch_size, .default_value = "128", .min = 1, .max = MC_BATCH_MAX,
        .doc = "requests of one batch"),
    OPT(U64, threads, .default_value = "12", .min = 1, .max = 1024,
        .doc = "threads of the initiator"),
    OPT(U64, duration, .default_value = "10", .min = 1, .max = 86400, .doc = "seconds"),
    OPT(SIZE, buffer_size, .default_value = "1073741824", .min = 1, .max = 1e15,
        .doc = "bytes of the buffer; at least block_size * batch_size * threads are taken"),
    OPT(BOOL, verify,
        .doc =
            "compare every byte: of each batch that is read, of what was written once at the end"),
    OPT(U64, seed, .default_value = "0", .doc = "of the bytes that --verify moves"),
    OPT(BOOL, init_mem, .default_value = "true", .doc = "write the whole buffer before starting"),
    OPT(CHOICE, report_unit, .default_value = "GB", .choices = "GB|GiB|Gb|MB|MiB|Mb|KB|KiB|Kb",
        .doc = "unit of the throughput"),
    OPT(U64, report_precision, .default_value = "2", .max = 9, .doc = "its decimal places"),
    OPT(STRING, device_name,
        .doc = "RDMA cards to use, separated by commas; empty = all; TCP does not look at it"),
    OPT(STRING, nic_priority_matrix,
        .doc = "file that says which RDMA cards serve which memory; TCP does not look at it"),
    OPT(BOOL, auto_discovery, .doc = "use all RDMA cards, whatever device_name says"),
    OPT(CHOICE, backend, .default_value = "classic", .choices = "classic|tent",
        .doc = "accepted for upstream's command lines; there is one engine"),
    OPT(BOOL, use_vram, .default_value = "true",
        .given = offsetof(struct mc_transfer_bench_options, use_vram_given),
        .doc = "move memory of a GPU; not given, on a machine without one: of the host"),
    OPT(I64, gpu_id, .default_value = "0", .min = -1, .max = 1024,
        .given = offsetof(struct mc_transfer_bench_options, gpu_id_given),
        .doc = "which GPU; -1 = a buffer on each, which the threads take in turn"),
    MC_GLOG_OPTIONS(struct mc_transfer_bench_options),
};

const struct mc_option_set mc_transfer_bench_options = {
    .program = "transfer_engine_bench",
    .synopsis = "[options]",
    .about = "Measures the Transfer Engine between two processes, either of which may be "
             "upstream's program of this name.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
    .gflags_words = true,
};

enum mc_status mc_transfer_bench_check(const struct mc_transfer_bench_options *o,
                                       struct mc_buf *error) {
    if (strcmp(o->mode, "initiator") == 0 && o->segment_id[0] == '\0') {
        mc_buf_puts(error, "segment_id: the name of the target is needed");
    } else if (o->block_size > UINT64_MAX / o->batch_size / o->threads) {
        mc_buf_puts(error,
                    "block_size * batch_size * threads is more than there is memory anywhere");
    } else {
        return MC_OK;
    }
    return MC_ERR_USAGE;
}

/*
 * What a store counts, under upstream's names where upstream has them.
 *
 * Three places count: ops each RPC and each key (client/ops.h), the tier each call to its disk
 * (tier/tier.h), and mc_store_count() here each call of the application that moved bytes. This file
 * gives them names. Upstream's series carry its labels: client_mode, cluster_id where
 * MC_STORE_CLUSTER_ID says one, and rpc_name or op_name, of which those appear that were used.
 * Names that are ours alone carry none.
 *
 * op_name is the call of upstream's that does the same: its readers do not know ours.
 */
#include "client/store_private.h"

#include "client/hot_cache.h"

static const struct {
    const char *op_name;
    bool write;
    enum mc_store_transfer transfer;
} OPS[MC_STORE_OPS] = {
    [MC_STORE_PUT] = {"put", true, MC_TRANSFER_PUT},
    [MC_STORE_UPSERT] = {"upsert", true, MC_TRANSFER_PUT},
    [MC_STORE_PUT_BATCH] = {"put_batch", true, MC_TRANSFER_BATCH_PUT},
    [MC_STORE_UPSERT_BATCH] = {"upsert_batch", true, MC_TRANSFER_BATCH_PUT},
    [MC_STORE_GET] = {"get_into", false, MC_TRANSFER_GET},
    [MC_STORE_GET_BATCH] = {"batch_get_into", false, MC_TRANSFER_BATCH_GET},
    [MC_STORE_GET_RANGES] = {"get_into_ranges", false, MC_TRANSFER_BATCH_GET},
    [MC_STORE_VIEW] = {"get_buffer", false, MC_TRANSFER_GET},
};

void mc_store_count(struct mc_store *store, enum mc_store_op op, uint64_t begin_ns,
                    uint64_t bytes) {
    uint64_t us = (mc_now_ns(mc_clock_system()) - begin_ns) / 1000;
    struct mc_store_op_counters *c = &store->counters.ops[op];
    mc_metric_add(&c->count, 1);
    mc_metric_add(&c->bytes, (int64_t)bytes);
    mc_steps_observe(&c->latency, us);
    mc_steps_observe(&store->counters.transfers[OPS[op].transfer], us);
}

/* ---- names ---- */

static void register_hot(struct mc_metrics *metrics, struct mc_hot_counters *c) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "mooncake_client_hot_cache_hits",
         "keys read from copies in this process", &c->hits},
        {MC_METRIC_COUNTER, "mooncake_client_hot_cache_misses", "keys of which there was none",
         &c->misses},
        {MC_METRIC_COUNTER, "mooncake_client_hot_cache_fills", "copies made", &c->fills},
        {MC_METRIC_COUNTER, "mooncake_client_hot_cache_evictions", "copies that went for others",
         &c->evictions},
        {MC_METRIC_GAUGE, "mooncake_client_hot_cache_bytes", "bytes of copies, keys and records",
         &c->bytes},
    };
    mc_metrics_register_rows(metrics, "", rows, MC_ARRAY_LEN(rows));
}

static void register_own(struct mc_store *store, struct mc_ops_counters *c) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "mooncake_client_rpc_failures",
         "requests that were not answered or refused", &c->rpc_failures},
        {MC_METRIC_COUNTER, "mooncake_client_rpc_retries", "requests asked again", &c->rpc_retries},
        {MC_METRIC_COUNTER, "mooncake_client_put_keys", "keys put or upserted", &c->puts},
        {MC_METRIC_COUNTER, "mooncake_client_put_failures", "of these, failed", &c->put_failures},
        {MC_METRIC_COUNTER, "mooncake_client_put_in_doubt",
         "of these, left to the master's timeouts", &c->puts_abandoned},
        {MC_METRIC_COUNTER, "mooncake_client_put_replaced",
         "keys placed again because a node could not be written to", &c->puts_replaced},
        {MC_METRIC_COUNTER, "mooncake_client_put_contested",
         "keys that somebody else was writing at the time", &c->puts_contested},
        {MC_METRIC_COUNTER, "mooncake_client_get_keys", "keys read", &c->gets},
        {MC_METRIC_COUNTER, "mooncake_client_get_failures", "of these, missing or failed",
         &c->get_failures},
        {MC_METRIC_COUNTER, "mooncake_client_replica_failovers",
         "reads that another replica had to serve", &c->failovers},
        {MC_METRIC_COUNTER, "mooncake_client_lease_renewals", "leases renewed", &c->leases_renewed},
        {MC_METRIC_COUNTER, "mooncake_client_lease_expired", "reads that outlived their lease",
         &c->leases_expired},
        {MC_METRIC_COUNTER, "mooncake_client_checksum_mismatches", "reads that a checksum denied",
         &c->checksum_mismatches},
        {MC_METRIC_COUNTER, "mooncake_client_views_opened", "views opened", &c->views_opened},
        {MC_METRIC_COUNTER, "mooncake_client_views_lost", "views whose object went away",
         &c->views_lost},
        {MC_METRIC_COUNTER, "mooncake_client_remounts", "times the segment was mounted again",
         &c->remounts},
        {MC_METRIC_COUNTER, "mooncake_client_tasks", "copies and moves carried out for the master",
         &c->tasks},
        {MC_METRIC_COUNTER, "mooncake_client_task_failures", "copies and moves that failed",
         &c->task_failures},
        {MC_METRIC_COUNTER, "mooncake_client_disk_reads", "keys read from the SSD of a node",
         &c->disk_reads},
        {MC_METRIC_COUNTER, "mooncake_client_disk_read_failures", "of these, failed",
         &c->disk_read_failures},
        {MC_METRIC_COUNTER, "mooncake_client_files_lost",
         "copies in files that were cut or damaged, of which the master was told", &c->files_lost},
        {MC_METRIC_HISTOGRAM, "mooncake_client_exist_latency",
         "duration of a question in microseconds", &store->counters.exist},
    };
    mc_metrics_register_rows(store->metrics, "", rows, MC_ARRAY_LEN(rows));
}

static void register_transfers(struct mc_store *store, struct mc_ops_counters *c) {
    static const char LATENCY[] = "duration of a call in microseconds";
    struct mc_steps *times = store->counters.transfers;
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "mooncake_transfer_read_bytes", "bytes read", &c->read_bytes},
        {MC_METRIC_COUNTER, "mooncake_transfer_write_bytes", "bytes written, each replica",
         &c->written_bytes},
        {MC_METRIC_STEPS, "mooncake_transfer_batch_put_latency", LATENCY,
         &times[MC_TRANSFER_BATCH_PUT]},
        {MC_METRIC_STEPS, "mooncake_transfer_batch_get_latency", LATENCY,
         &times[MC_TRANSFER_BATCH_GET]},
        {MC_METRIC_STEPS, "mooncake_transfer_get_latency", LATENCY, &times[MC_TRANSFER_GET]},
        {MC_METRIC_STEPS, "mooncake_transfer_put_latency", LATENCY, &times[MC_TRANSFER_PUT]},
    };
    mc_metrics_register_rows(store->metrics, store->labels, rows, MC_ARRAY_LEN(rows));
}

/* The store's labels and one more. */
static const char *labelled(const struct mc_store *store, struct mc_buf *text, const char *name,
                            const char *value) {
    mc_buf_clear(text);
    mc_buf_puts(text, store->labels);
    mc_metrics_label(text, name, value);
    return mc_buf_cstr(text);
}

static void register_rpcs(struct mc_store *store, struct mc_ops_counters *c) {
    struct mc_buf text = {0};
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        const char *labels = labelled(store, &text, "rpc_name", mc_master_rpc_table()[i].name);
        mc_metrics_register_quiet(store->metrics, MC_METRIC_COUNTER, "mooncake_client_rpc_count",
                                  labels, "requests to the master", &c->rpc[i].count);
        mc_metrics_register_quiet(store->metrics, MC_METRIC_STEPS, "mooncake_client_rpc_latency",
                                  labels, "time to the master's answer in microseconds",
                                  &c->rpc[i].latency);
    }
    mc_buf_free(&text);
}

static void register_op(struct mc_store *store, enum mc_store_op op) {
    static const char *const NAMES[2][3] = {
        {"mooncake_transfer_read_operation_count", "mooncake_transfer_read_operation_bytes",
         "mooncake_transfer_read_operation_latency"},
        {"mooncake_transfer_write_operation_count", "mooncake_transfer_write_operation_bytes",
         "mooncake_transfer_write_operation_latency"}};
    struct mc_store_op_counters *c = &store->counters.ops[op];
    const char *const *names = NAMES[OPS[op].write];
    struct mc_buf text = {0};
    const char *labels = labelled(store, &text, "op_name", OPS[op].op_name);
    mc_metrics_register_quiet(store->metrics, MC_METRIC_COUNTER, names[0], labels,
                              "calls that moved something", &c->count);
    mc_metrics_register_quiet(store->metrics, MC_METRIC_COUNTER, names[1], labels,
                              "bytes of objects that they moved", &c->bytes);
    mc_metrics_register_quiet(store->metrics, MC_METRIC_STEPS, names[2], labels,
                              "their duration in microseconds", &c->latency);
    mc_buf_free(&text);
}

void mc_store_metrics_create(struct mc_store *store, const struct mc_store_options *options) {
    const char *cluster = getenv("MC_STORE_CLUSTER_ID");
    struct mc_buf labels = {0};
    mc_metrics_label(&labels, "client_mode", options->real_client != NULL ? "dummy" : "real");
    if (cluster != NULL && cluster[0] != '\0') {
        mc_metrics_label(&labels, "cluster_id", cluster);
    }
    store->labels = mc_strdup(mc_buf_cstr(&labels));
    mc_buf_free(&labels);
    store->metrics = mc_metrics_create();
    for (size_t i = 0; i < MC_TRANSFERS; i++) {
        mc_steps_init(&store->counters.transfers[i], mc_ops_latency_bounds);
    }
    for (size_t i = 0; i < MC_STORE_OPS; i++) {
        mc_steps_init(&store->counters.ops[i].latency, mc_ops_latency_bounds);
        register_op(store, (enum mc_store_op)i);
    }
}

void mc_store_metrics_of_ops(struct mc_store *store) {
    struct mc_ops_counters *c = mc_ops_counters(store->ops);
    register_transfers(store, c);
    register_rpcs(store, c);
    register_own(store, c);
    if (store->hot != NULL) {
        register_hot(store->metrics, mc_hot_counters(store->hot));
    }
}

void mc_store_metrics_destroy(struct mc_store *store) {
    mc_metrics_destroy(store->metrics);
    free(store->labels);
}

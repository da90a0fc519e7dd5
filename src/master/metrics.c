/*
 * What the master counts, under upstream's names. Three of a kind are generated from the RPC table.
 */
#include "master/core.h"
#include "master/disks.h"

static void add(struct mc_master *m, enum mc_metric_type type, const char *name, const char *help,
                void *metric) {
    mc_metrics_register(m->metrics, type, name, "", help, metric);
}

static void add_rpc(struct mc_master *m, const struct mc_rpc_method *method,
                    struct mc_rpc_counters *c) {
    const struct {
        const char *suffix;
        const char *help;
        struct mc_metric *metric;
        bool batch_only;
    } kinds[] = {
        {"requests_total", "requests received", &c->requests, false},
        {"failures_total", "requests that failed, batches when every item failed", &c->failures,
         false},
        {"partial_successes_total", "batches of which some items failed", &c->partial_successes,
         true},
        {"items_total", "items in batches", &c->items, true},
        {"failed_items_total", "items of batches that failed", &c->failed_items, true},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        struct mc_buf name = {0};
        if (!kinds[i].batch_only || method->batch) {
            mc_buf_printf(&name, "master_%s_%s", method->metric, kinds[i].suffix);
            add(m, MC_METRIC_COUNTER, mc_buf_cstr(&name), kinds[i].help, kinds[i].metric);
        }
        mc_buf_free(&name);
    }
}

static int64_t read_keys(void *arg) {
    return (int64_t)mc_key_count(arg);
}

static int64_t read_allocated(void *arg) {
    uint64_t used, capacity, count;
    mc_segments_usage(arg, &used, &capacity, &count);
    return (int64_t)used;
}

static int64_t read_capacity(void *arg) {
    uint64_t used, capacity, count;
    mc_segments_usage(arg, &used, &capacity, &count);
    return (int64_t)capacity;
}

static int64_t read_disks_used(void *arg) {
    uint64_t used, capacity;
    mc_disks_usage(arg, &used, &capacity);
    return (int64_t)used;
}

static int64_t read_disks_capacity(void *arg) {
    uint64_t used, capacity;
    mc_disks_usage(arg, &used, &capacity);
    return (int64_t)capacity;
}

static int64_t read_clients(void *arg) {
    struct mc_master_totals totals;
    mc_master_totals(arg, &totals);
    return (int64_t)totals.clients;
}

static int64_t read_tasks_pending(void *arg) {
    return (int64_t)mc_tasks_count(arg, MC_TASK_PENDING);
}

static int64_t read_tasks_processing(void *arg) {
    return (int64_t)mc_tasks_count(arg, MC_TASK_PROCESSING);
}

static int64_t read_metadata_bytes(void *arg) {
    struct mc_master *m = arg;
    return (int64_t)(atomic_load_explicit(&m->pages.pages_in_use, memory_order_relaxed) *
                     MC_PAGE_BYTES);
}

static int64_t read_live_bytes(void *arg) {
    return (int64_t)mc_metadata_bytes(arg);
}

/* Points of the miss-ratio curve, in parts per million. */
static int64_t read_curve(struct mc_master *m, double memory) {
    struct mc_master_curve curve;
    mc_master_curve(m, &curve);
    for (unsigned i = 0; i < MC_CURVE_POINTS; i++) {
        if (curve.points[i].memory == memory) {
            return (int64_t)(curve.points[i].hit_ratio * 1e6);
        }
    }
    return 0;
}
static int64_t read_curve_half(void *arg) {
    return read_curve(arg, 0.5);
}
static int64_t read_curve_same(void *arg) {
    return read_curve(arg, 1);
}
static int64_t read_curve_double(void *arg) {
    return read_curve(arg, 2);
}

static int64_t read_limit(void *arg) {
    return (int64_t)((struct mc_master *)arg)->config.metadata_limit_bytes;
}

static const struct {
    const char *name, *help;
    int64_t (*read)(void *arg);
} computed[] = {
    {"master_key_count", "objects in the index", read_keys},
    {"master_allocated_bytes", "bytes allocated in mounted segments", read_allocated},
    {"master_total_capacity_bytes", "bytes of mounted segments", read_capacity},
    {"master_allocated_file_size_bytes", "bytes of objects on SSDs and in the shared directory",
     read_disks_used},
    {"master_total_file_capacity_bytes", "room on SSDs and in the shared directory, 0 = unknown",
     read_disks_capacity},
    {"master_active_clients", "clients seen within their ttl", read_clients},
    {"master_metadata_bytes", "live bytes of the index, as the limit counts them", read_live_bytes},
    {"master_metadata_limit_bytes", "limit of master_metadata_bytes, 0 = none", read_limit},
    {"master_tasks_pending", "tasks that wait for a node", read_tasks_pending},
    {"master_tasks_processing", "tasks that a node has taken", read_tasks_processing},
    {"master_mrc_half_memory_hit_ppm",
     "uses of keys that LRU would hit with half the memory, per million", read_curve_half},
    {"master_mrc_same_memory_hit_ppm", "the same with the memory there is", read_curve_same},
    {"master_mrc_double_memory_hit_ppm", "the same with twice the memory", read_curve_double},
    {"master_index_bytes", "bytes of pages that hold the index's records", read_metadata_bytes},
};

static const struct {
    enum mc_metric_type type;
    const char *name, *help;
    size_t offset; /* in the counters */
} kept[] = {
    {MC_METRIC_GAUGE, "mem_cache_nums_", "objects with a complete replica in memory",
     offsetof(struct mc_master_counters, in_memory)},
    {MC_METRIC_GAUGE, "file_cache_nums_", "objects with a complete replica on a disk",
     offsetof(struct mc_master_counters, on_disk)},
    {MC_METRIC_HISTOGRAM, "master_value_size_bytes", "size of objects at PutStart",
     offsetof(struct mc_master_counters, value_size)},
    {MC_METRIC_COUNTER, "master_offload_queued_total", "objects queued for a client's SSD",
     offsetof(struct mc_master_counters, offloads_queued)},
    {MC_METRIC_COUNTER, "master_offload_success_total", "of these, written there",
     offsetof(struct mc_master_counters, offloads)},
    {MC_METRIC_COUNTER, "master_offload_success_bytes", "their bytes",
     offsetof(struct mc_master_counters, offloaded_bytes)},
    {MC_METRIC_COUNTER, "master_offload_failures_total",
     "of these, not written or no longer the object that was queued",
     offsetof(struct mc_master_counters, offload_failures)},
    {MC_METRIC_COUNTER, "master_promotion_admitted_total",
     "objects queued to be brought back to memory",
     offsetof(struct mc_master_counters, promotions_admitted)},
    {MC_METRIC_COUNTER, "master_promotion_completed_total", "of these, brought back",
     offsetof(struct mc_master_counters, promotions_done)},
    {MC_METRIC_COUNTER, "master_promotion_completed_bytes_total", "their bytes",
     offsetof(struct mc_master_counters, promoted_bytes)},
    {MC_METRIC_GAUGE, "master_promotion_in_flight", "of these, queued or on their way now",
     offsetof(struct mc_master_counters, promotions_in_flight)},
    {MC_METRIC_COUNTER, "master_promotion_failed_total", "of these, given up by the client",
     offsetof(struct mc_master_counters, promotions_failed)},
    {MC_METRIC_COUNTER, "master_promotion_expired_total", "of these, not done in time",
     offsetof(struct mc_master_counters, promotions_expired)},
    {MC_METRIC_COUNTER, "master_promotion_cancelled_total", "of these, removed meanwhile",
     offsetof(struct mc_master_counters, promotions_cancelled)},
    {MC_METRIC_COUNTER, "master_promotion_rejected_frequency_total",
     "reads from SSD of objects that are not read often enough",
     offsetof(struct mc_master_counters, promotions_rare)},
    {MC_METRIC_COUNTER, "master_promotion_rejected_watermark_total",
     "objects not brought back because memory is full",
     offsetof(struct mc_master_counters, promotions_no_room)},
    {MC_METRIC_COUNTER, "master_promotion_rejected_cap_total",
     "objects not brought back because too many wait",
     offsetof(struct mc_master_counters, promotions_no_place)},
    {MC_METRIC_COUNTER, "master_offload_adopted_total",
     "objects that a client found on its SSD when it came back",
     offsetof(struct mc_master_counters, offload_adopted)},
    {MC_METRIC_GAUGE, "master_dead_files",
     "files of objects that are gone, which wait to be deleted by a client",
     offsetof(struct mc_master_counters, dead_files)},
    {MC_METRIC_COUNTER, "master_dead_files_left_total",
     "files of objects that are gone, left for the next master because too many waited",
     offsetof(struct mc_master_counters, dead_files_left)},
    {MC_METRIC_COUNTER, "master_memory_evictions_total",
     "objects evicted from memory that stay on SSD",
     offsetof(struct mc_master_counters, memory_evictions)},
    {MC_METRIC_GAUGE, "master_soft_pin_key_count", "soft-pinned objects",
     offsetof(struct mc_master_counters, soft_pins)},
    {MC_METRIC_COUNTER, "master_hot_objects_total",
     "objects that were read so often that they want another replica",
     offsetof(struct mc_master_counters, hot_objects)},
    {MC_METRIC_COUNTER, "master_hot_copies_total", "copies asked for them",
     offsetof(struct mc_master_counters, hot_copies)},
    {MC_METRIC_COUNTER, "master_cold_copies_total",
     "of these, taken away when their object was not read so often any more",
     offsetof(struct mc_master_counters, cold_copies)},
    {MC_METRIC_COUNTER, "master_expired_objects_total", "objects whose time to live was over",
     offsetof(struct mc_master_counters, expired_objects)},
    {MC_METRIC_COUNTER, "master_put_start_alloc_failures_total", "puts that found no room",
     offsetof(struct mc_master_counters, put_start_alloc_failures)},
    {MC_METRIC_COUNTER, "master_metadata_refusals_total",
     "new objects refused because the index was at its limit",
     offsetof(struct mc_master_counters, metadata_refusals)},
    {MC_METRIC_COUNTER, "master_put_start_partial_allocations_total",
     "puts that got fewer replicas than asked for",
     offsetof(struct mc_master_counters, put_start_partial_allocations)},
    {MC_METRIC_COUNTER, "master_put_start_discard_cnt",
     "extents kept back until their user is gone", offsetof(struct mc_master_counters, discards)},
    {MC_METRIC_COUNTER, "master_put_start_release_cnt", "of these, freed again",
     offsetof(struct mc_master_counters, discard_releases)},
    {MC_METRIC_GAUGE, "master_put_start_discarded_staging_size", "bytes kept back now",
     offsetof(struct mc_master_counters, discarded_bytes)},
    {MC_METRIC_COUNTER, "master_attempted_evictions_total", "eviction cycles",
     offsetof(struct mc_master_counters, evictions_attempted)},
    {MC_METRIC_COUNTER, "master_attempted_evictions_mem", "eviction cycles in memory",
     offsetof(struct mc_master_counters, evictions_attempted)},
    {MC_METRIC_COUNTER, "master_successful_evictions_total", "eviction cycles that evicted",
     offsetof(struct mc_master_counters, evictions_successful)},
    {MC_METRIC_COUNTER, "master_successful_evictions_mem", "eviction cycles that evicted memory",
     offsetof(struct mc_master_counters, evictions_successful)},
    {MC_METRIC_COUNTER, "master_evicted_key_count", "objects evicted",
     offsetof(struct mc_master_counters, evicted_keys)},
    {MC_METRIC_COUNTER, "master_evicted_key_count_mem", "objects evicted from memory",
     offsetof(struct mc_master_counters, evicted_keys)},
    {MC_METRIC_COUNTER, "master_evicted_size_bytes", "bytes evicted",
     offsetof(struct mc_master_counters, evicted_bytes)},
    {MC_METRIC_COUNTER, "master_evicted_size_bytes_mem", "bytes evicted from memory",
     offsetof(struct mc_master_counters, evicted_bytes)},
    {MC_METRIC_COUNTER, "total_get_nums_", "look-ups of replica lists",
     offsetof(struct mc_master_counters, gets)},
    {MC_METRIC_COUNTER, "valid_get_nums_", "look-ups that found a readable object",
     offsetof(struct mc_master_counters, valid_gets)},
    {MC_METRIC_COUNTER, "mem_cache_hit_nums_", "look-ups that found the object in memory",
     offsetof(struct mc_master_counters, hits)},
    {MC_METRIC_COUNTER, "mem_cache_hit_bytes_total", "bytes of the objects found in memory",
     offsetof(struct mc_master_counters, hit_bytes)},
    {MC_METRIC_COUNTER, "file_cache_hit_nums_", "look-ups that found it on a disk only",
     offsetof(struct mc_master_counters, disk_hits)},
    {MC_METRIC_COUNTER, "file_cache_hit_bytes_total", "bytes of the objects found there",
     offsetof(struct mc_master_counters, disk_hit_bytes)},
};

void mc_master_metrics_register(struct mc_master *m) {
    struct mc_master_counters *c = &m->counters;
    if (!m->metrics) {
        return;
    }
    for (unsigned i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        if (mc_rpc_methods[i].metric) {
            add_rpc(m, &mc_rpc_methods[i], &c->rpc[i]);
        }
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(computed); i++) {
        mc_metrics_register_fn(m->metrics, MC_METRIC_GAUGE, computed[i].name, "", computed[i].help,
                               computed[i].read, m);
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(kept); i++) {
        add(m, kept[i].type, kept[i].name, kept[i].help, (char *)c + kept[i].offset);
    }
}

void mc_master_metrics_unregister(struct mc_master *m) {
    if (m->metrics) {
        mc_metrics_unregister_range(m->metrics, m, sizeof(*m));
    }
}

static int64_t read_segment_used(void *arg) {
    const struct mc_segment *s = arg;
    return (int64_t)mc_allocator_used(s->allocator);
}

static int64_t read_segment_capacity(void *arg) {
    const struct mc_segment *s = arg;
    return mc_segment_gone(s) ? 0 : (int64_t)s->info.size;
}

void mc_segment_metrics_register(struct mc_segment *s) {
    if (!s->metrics) {
        return;
    }
    struct mc_buf labels = {0};
    mc_buf_puts(&labels, "segment=\"");
    for (size_t i = 0; i < s->info.name.len; i++) {
        char c = s->info.name.ptr[i];
        if (c == '"' || c == '\\') {
            mc_buf_putc(&labels, '\\');
        }
        mc_buf_putc(&labels, (unsigned char)c < 0x20 ? '_' : c);
    }
    mc_buf_putc(&labels, '"');
    mc_metrics_register_fn(s->metrics, MC_METRIC_GAUGE, "segment_allocated_bytes",
                           mc_buf_cstr(&labels), "bytes allocated in the segment",
                           read_segment_used, s);
    mc_metrics_register_fn(s->metrics, MC_METRIC_GAUGE, "segment_total_capacity_bytes",
                           mc_buf_cstr(&labels), "size of the segment", read_segment_capacity, s);
    mc_buf_free(&labels);
}

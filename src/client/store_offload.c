/*
 * A store's SSD tier on threads: a worker that runs the heartbeat of client/offload.h and an RPC
 * server for other nodes' reads; and where its options come from.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/offload.h"
#include "client/store_private.h"
#include "te/te.h"

#define NICENESS             10            /* more than the program's */
#define IOPRIO_WHO_PROCESS   1             /* as linux/ioprio.h has them, where it is installed */
#define IOPRIO_LOWEST        (2 << 13 | 7) /* the last level of the class best effort */
#define RPC_THREADS          4
#define RETRY_NS             (1 * MC_SEC)
#define DEFAULT_SCRUB_RATE   (8ull << 20) /* a terabyte in a day and a half */
#define DEFAULT_BUFFER_BYTES (1280ull << 20)

/* What the tier counts, as metrics of the store. */
static const struct {
    const char *name, *help;
    enum mc_metric_type type;
    size_t at; /* in struct mc_tier_stats */
} METRICS[] = {
#define COUNTER(what, help)                                                                        \
    {                                                                                              \
        "mooncake_client_ssd_" #what "_total", help, MC_METRIC_COUNTER,                            \
            offsetof(struct mc_tier_stats, what)                                                   \
    }
#define GAUGE(what, help)                                                                          \
    { "mooncake_client_ssd_" #what, help, MC_METRIC_GAUGE, offsetof(struct mc_tier_stats, what) }
    GAUGE(capacity_bytes, "bytes that the SSD tier may take"),
    GAUGE(used_bytes, "bytes that the SSD tier takes on disk"),
    GAUGE(objects, "objects on the SSD tier"),
    COUNTER(written_objects, "objects written to the SSD tier"),
    COUNTER(borrowed_objects, "of these, read from where they lay in the node's memory"),
    COUNTER(written_bytes, "bytes of objects written to the SSD tier"),
    COUNTER(read_objects, "objects read from the SSD tier"),
    COUNTER(read_bytes, "bytes of objects read from the SSD tier"),
    COUNTER(evicted_objects, "objects that the SSD tier gave up for room"),
    COUNTER(broken_objects, "objects of the SSD tier that were not what was written, and dropped"),
    COUNTER(failed_writes, "writes to the SSD tier that failed"),
    COUNTER(failed_reads, "reads from the SSD tier that failed"),
    COUNTER(scrubbed_objects, "objects that the scrubber has looked at"),
    COUNTER(scrubbed_bytes, "bytes that the scrubber has looked at"),
    COUNTER(scrub_rounds, "times that the scrubber has looked at everything"),
};

struct tier_metric {
    struct mc_offload *offload;
    size_t at;
};

struct mc_store_offload {
    struct mc_store *store;
    struct mc_offload *offload;
    void *memory; /* the engine's; lent to readers */
    struct mc_rpc_server *server;
    char endpoint[MC_HOST_MAX + 8]; /* where it listens */
    uint64_t interval_ns;
    pthread_t worker;
    bool worker_runs;

    struct tier_metric metrics[MC_ARRAY_LEN(METRICS)];

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    bool stopping;
};

/* ---- metrics ---- */

static int64_t read_metric(void *arg) {
    const struct tier_metric *metric = arg;
    struct mc_tier_stats stats;
    uint64_t value;
    mc_offload_stats(metric->offload, &stats);
    memcpy(&value, (const char *)&stats + metric->at, sizeof(value));
    return (int64_t)value;
}

/* What upstream counts, too, under its names. */
static void register_times(struct mc_store *store, struct mc_tier_times *t) {
    static const char BYTES[] = "bytes of objects, of the SSD";
    static const char OBJECTS[] = "objects, of the SSD";
    static const char TIME[] = "duration of a batch, of the SSD, in microseconds";
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "mooncake_ssd_read_bytes_total", BYTES, &t->read.bytes},
        {MC_METRIC_COUNTER, "mooncake_ssd_write_bytes_total", BYTES, &t->write.bytes},
        {MC_METRIC_COUNTER, "mooncake_ssd_total_bytes_total", BYTES, &t->total.bytes},
        {MC_METRIC_COUNTER, "mooncake_ssd_read_ops_total", OBJECTS, &t->read.objects},
        {MC_METRIC_COUNTER, "mooncake_ssd_write_ops_total", OBJECTS, &t->write.objects},
        {MC_METRIC_COUNTER, "mooncake_ssd_total_ops_total", OBJECTS, &t->total.objects},
        {MC_METRIC_STEPS, "mooncake_ssd_read_latency_us", TIME, &t->read.steps},
        {MC_METRIC_STEPS, "mooncake_ssd_write_latency_us", TIME, &t->write.steps},
        {MC_METRIC_STEPS, "mooncake_ssd_total_latency_us", TIME, &t->total.steps},
        {MC_METRIC_SUMMARY, "mooncake_ssd_read_latency_summary_us", TIME, &t->read.fine},
        {MC_METRIC_SUMMARY, "mooncake_ssd_write_latency_summary_us", TIME, &t->write.fine},
        {MC_METRIC_SUMMARY, "mooncake_ssd_total_latency_summary_us", TIME, &t->total.fine},
    };
    mc_metrics_register_rows(store->metrics, store->labels, rows, MC_ARRAY_LEN(rows));
}

static void register_metrics(struct mc_store_offload *off) {
    for (size_t i = 0; i < MC_ARRAY_LEN(METRICS); i++) {
        off->metrics[i] = (struct tier_metric){off->offload, METRICS[i].at};
        mc_metrics_register_fn(off->store->metrics, METRICS[i].type, METRICS[i].name, "",
                               METRICS[i].help, read_metric, &off->metrics[i]);
    }
    register_times(off->store, mc_tier_times(mc_offload_tier(off->offload)));
}

static void unregister_metrics(struct mc_store_offload *off) {
    mc_metrics_unregister_range(off->store->metrics, off->metrics, sizeof(off->metrics));
    if (off->offload != NULL) {
        struct mc_tier_times *times = mc_tier_times(mc_offload_tier(off->offload));
        mc_metrics_unregister_range(off->store->metrics, times, sizeof(*times));
    }
}

/* ---- the worker ---- */

static bool stopping(void *ctx) {
    struct mc_store_offload *off = ctx;
    pthread_mutex_lock(&off->lock);
    bool stop = off->stopping;
    pthread_mutex_unlock(&off->lock);
    return stop;
}

/* False when it is time to end. */
static bool wait_for(struct mc_store_offload *off, uint64_t ns) {
    uint64_t until = mc_now_ns(mc_clock_system()) + ns;
    struct timespec at = {(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
    pthread_mutex_lock(&off->lock);
    while (!off->stopping && mc_now_ns(mc_clock_system()) < until) {
        pthread_cond_timedwait(&off->wake, &off->lock, &at);
    }
    bool going_on = !off->stopping;
    pthread_mutex_unlock(&off->lock);
    return going_on;
}

/* Puts and gets go first, at the processor and at the disk, if they contend for it. When memory is
 * short of what was offloaded puts fail or wait, and leave this thread all it wants. */
static void step_back(void) {
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICENESS); /* this thread */
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_LOWEST);
}

static void *worker_main(void *arg) {
    struct mc_store_offload *off = arg;
    step_back();
    bool busy = false, complained = false;
    do {
        enum mc_status status = mc_offload_beat(off->offload, &busy);
        if (status != MC_OK && !complained) {
            mc_warn("the SSD tier waits for the master: status=%s", mc_status_name(status));
        }
        complained = status != MC_OK;
    } while (wait_for(off, busy ? 0 : complained ? RETRY_NS : off->interval_ns));
    return NULL;
}

/* ---- life ---- */

static enum mc_tier_eviction eviction_from_env(void) {
    const char *text = getenv("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY");
    text = text != NULL ? text : getenv("MOONCAKE_BUCKET_EVICTION_POLICY");
    if (text == NULL || strcmp(text, "fifo") == 0) {
        return MC_TIER_EVICT_FIFO;
    }
    if (strcmp(text, "own") == 0) {
        return MC_TIER_EVICT_OWN;
    }
    return strcmp(text, "lru") == 0 ? MC_TIER_EVICT_LRU : MC_TIER_EVICT_NONE;
}

static uint64_t buffer_bytes(void) {
    return mc_env_u64("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", 1 << 20, INT64_MAX,
                      DEFAULT_BUFFER_BYTES);
}

/* Upstream's names. A command moves no more than either limit allows. */
static void nvme_kv_from_env(struct mc_tier_config *tier) {
    const char *road = getenv("MOONCAKE_NVME_KV_TRANSPORT");
    tier->device = getenv("MOONCAKE_NVME_KV_DEVICE_PATH");
    tier->device_nsid = (uint32_t)mc_env_u64("MOONCAKE_NVME_KV_NSID", 1, UINT32_MAX - 1, 1);
    tier->device_road = road != NULL && strcmp(road, "ioctl") == 0 ? MC_NVME_IOCTL : MC_NVME_AUTO;
    tier->device_value_bytes = (uint32_t)mc_min_u64(
        mc_env_u64("MOONCAKE_NVME_KV_RUNTIME_TRANSFER_LIMIT", 4096, 8 << 20, 264 << 10),
        mc_env_u64("MOONCAKE_NVME_KV_PROTOCOL_MAX_VALUE_SIZE", 4096, 8 << 20, 512 << 10));
    if (tier->backend != NULL && strcmp(tier->backend, "nvme_kv_storage_backend") == 0) {
        tier->depth = (unsigned)mc_env_u64("MOONCAKE_NVME_KV_QUEUE_DEPTH", 1, 4096, 256);
    }
}

static enum mc_status open_offload(struct mc_store_offload *off, const char *path) {
    uint64_t most = mc_env_u64("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", 0, INT64_MAX, 0);
    uint64_t buckets = mc_env_u64("MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", 0, INT64_MAX,
                                  mc_env_u64("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", 0, INT64_MAX, 0));
    struct mc_offload_config config = {
        .ops = off->store->ops,
        .te_endpoint = off->store->te_endpoint,
        .segment = off->store->name,
        .memory = off->memory,
        .memory_bytes = buffer_bytes(),
        .gc_ttl_ms = mc_env_u64("MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_TTL_MS", 100, 3600000, 5000),
        .stop = stopping,
        .stop_ctx = off,
        .tier = {.path = path,
                 .backend = getenv("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR"),
                 .subdirectory = getenv("MOONCAKE_OFFLOAD_FSDIR"),
                 .owner = off->store->name,
                 .capacity_bytes = buckets != 0 ? buckets : most,
                 .eviction = eviction_from_env(),
                 .scrub_bytes_per_second =
                     mc_env_u64("MC_TIER_SCRUB_BYTES_PER_SECOND", 0, INT64_MAX, DEFAULT_SCRUB_RATE),
                 .bucket_bytes = mc_env_u64("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", 4096,
                                            INT64_MAX, 256u << 20),
                 .bucket_keys =
                     (uint32_t)mc_env_u64("MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", 1, 1000000, 500)}};
    nvme_kv_from_env(&config.tier);
    return mc_offload_open(&config, &off->offload);
}

static enum mc_status take_memory(struct mc_store_offload *off) {
    enum mc_status status = mc_memory_alloc(off->store->engine, buffer_bytes(), "*", &off->memory);
    if (status != MC_OK) {
        mc_error("no memory for reads from the SSD tier: bytes=%llu status=%s",
                 (unsigned long long)buffer_bytes(), mc_status_name(status));
    }
    return status;
}

static enum mc_status listen_for_reads(struct mc_store_offload *off) {
    struct mc_hostport place;
    uint16_t port;
    struct mc_rpc_server_config config = {.host = "",
                                          .threads = RPC_THREADS,
                                          .peers = *mc_engine_tls(off->store->engine),
                                          .no_delay = true,
                                          .handler = mc_offload_serve,
                                          .ctx = off->offload};
    MC_TRY(mc_hostport_parse(off->store->name, &place));
    MC_TRY(mc_rpc_server_start(&config, &off->server, &port));
    mc_hostport_format(place.host, port, off->endpoint, sizeof(off->endpoint));
    return MC_OK;
}

static enum mc_status start_steps(struct mc_store_offload *off,
                                  const struct mc_store_options *options) {
    off->interval_ns =
        mc_env_u64("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", 1, 86400, 10) * MC_SEC;
    MC_TRY(take_memory(off));
    MC_TRY(open_offload(off, options->ssd_offload_path));
    register_metrics(off);
    MC_TRY(listen_for_reads(off));
    enum mc_status status = mc_offload_mount(off->offload, off->endpoint);
    if (status != MC_OK) {
        mc_error("the master takes no SSD tier: path=%s status=%s", options->ssd_offload_path,
                 mc_status_name(status));
        return status;
    }
    int error = mc_thread_start(&off->worker, "mc-offload", worker_main, off);
    if (error != 0) {
        mc_error("the thread of the SSD tier could not be started: errno=%d", error);
        return MC_INTERNAL_ERROR;
    }
    off->worker_runs = true;
    return MC_OK;
}

enum mc_status mc_store_offload_start(struct mc_store *store,
                                      const struct mc_store_options *options) {
    struct mc_store_offload *off = mc_zalloc(sizeof(*off));
    pthread_condattr_t attributes;
    off->store = store;
    store->offload = off;
    pthread_mutex_init(&off->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&off->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    return start_steps(off, options); /* mc_store_offload_stop takes down what was made */
}

void mc_store_offload_stop(struct mc_store *store) {
    struct mc_store_offload *off = store->offload;
    if (off == NULL) {
        return;
    }
    pthread_mutex_lock(&off->lock);
    off->stopping = true;
    pthread_cond_signal(&off->wake);
    pthread_mutex_unlock(&off->lock);
    if (off->worker_runs) {
        pthread_join(off->worker, NULL);
        mc_offload_goodbye(off->offload);
    }
    if (off->server != NULL) {
        mc_rpc_server_stop(off->server);
    }
    unregister_metrics(off);
    mc_offload_close(off->offload);
    enum mc_status status =
        off->memory != NULL ? mc_memory_free(store->engine, off->memory) : MC_OK;
    if (status != MC_OK) {
        mc_warn("memory of the SSD tier could not be freed: status=%s", mc_status_name(status));
    }
    pthread_cond_destroy(&off->wake);
    pthread_mutex_destroy(&off->lock);
    free(off);
    store->offload = NULL;
}

/*
 * The replay engine. See cmd/replay.h.
 *
 * One mutex guards the order: taking the next request, claiming its blocks, releasing them. A block
 * is ABSENT until a request names it, CLAIMED while the first that does is running, SETTLED
 * afterwards. A request claims the ABSENT blocks that it names and waits for those that others have
 * claimed. Requests are taken in order and wait only for earlier ones, so there is no cycle. A
 * SETTLED block may have been evicted meanwhile: then its get misses and the request puts it again,
 * which is harmless when two do it.
 *
 * Counters belong to the worker and are summed at the end; only what the progress line shows is
 * shared, as relaxed atomics.
 */
#include "cmd/replay.h"

#include "base/log.h"
#include "cmd/content.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum block_state { BLOCK_ABSENT = 0, BLOCK_CLAIMED, BLOCK_SETTLED };

#define KEY_BYTES            160
#define SAMPLE_INTERVAL_NS   (100 * MC_MS)
#define PROGRESS_INTERVAL_NS (500 * MC_MS)

struct replay {
    const struct mc_replay_config *config;
    uint64_t start_ns;
    uint64_t first_timestamp_ms;
    uint64_t bin_ms;
    uint32_t batch_blocks;

    pthread_mutex_t mutex;
    pthread_cond_t released;
    size_t next_request;
    uint8_t *states;  /* enum block_state, of each distinct block */
    uint32_t *owners; /* request number of the claim */

    struct { /* for the progress line and the samples */
        _Atomic uint64_t requests, blocks, hits, read_bytes, written_bytes;
    } done;
    _Atomic unsigned workers_left;
};

struct worker {
    struct replay *replay;
    pthread_t thread;
    bool running;
    char *buffer; /* batch_blocks objects */
    size_t buffer_bytes;
    struct mc_store_item *items;
    struct mc_slice *slices;
    char (*keys)[KEY_BYTES];
    uint32_t *missing; /* block numbers of the request, to be put */
    uint32_t missing_count;
    struct mc_replay_result result; /* this worker's share */
    size_t get_cap, put_cap;
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

static bool must_stop(const struct replay *r) {
    return r->config->stop != NULL && atomic_load_explicit(r->config->stop, memory_order_relaxed);
}

/* ---- order ---- */

static const uint32_t *blocks_of(const struct replay *r, size_t request) {
    const struct mc_trace *trace = r->config->trace;
    return trace->blocks + trace->requests[request].first_block;
}

/* Takes the next request and claims its blocks; false when there is none. */
static bool take_request(struct replay *r, size_t *request) {
    const struct mc_trace *trace = r->config->trace;
    pthread_mutex_lock(&r->mutex);
    bool taken = r->next_request < trace->request_count && !must_stop(r);
    if (taken) {
        *request = r->next_request++;
        const uint32_t *blocks = blocks_of(r, *request);
        for (uint32_t i = 0; i < trace->requests[*request].block_count; i++) {
            if (r->states[blocks[i]] == BLOCK_ABSENT) {
                r->states[blocks[i]] = BLOCK_CLAIMED;
                r->owners[blocks[i]] = (uint32_t)*request;
            }
        }
    }
    pthread_mutex_unlock(&r->mutex);
    return taken;
}

static void wait_for_earlier(struct replay *r, size_t request) {
    const uint32_t *blocks = blocks_of(r, request);
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < r->config->trace->requests[request].block_count; i++) {
        while (r->states[blocks[i]] == BLOCK_CLAIMED && r->owners[blocks[i]] != request) {
            pthread_cond_wait(&r->released, &r->mutex);
        }
    }
    pthread_mutex_unlock(&r->mutex);
}

static void release_request(struct replay *r, size_t request) {
    const uint32_t *blocks = blocks_of(r, request);
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < r->config->trace->requests[request].block_count; i++) {
        if (r->states[blocks[i]] == BLOCK_CLAIMED && r->owners[blocks[i]] == request) {
            r->states[blocks[i]] = BLOCK_SETTLED;
        }
    }
    pthread_cond_broadcast(&r->released);
    pthread_mutex_unlock(&r->mutex);
}

static void wait_until_due(struct replay *r, uint64_t timestamp_ms) {
    if (r->config->speed <= 0) {
        return;
    }
    double after_ms = (double)(timestamp_ms - r->first_timestamp_ms) / r->config->speed;
    uint64_t due_ns = r->start_ns + (uint64_t)(after_ms * (double)MC_MS);
    while (!must_stop(r)) {
        uint64_t now = now_ns();
        if (now >= due_ns) {
            return;
        }
        uint64_t nap = mc_min_u64(due_ns - now, 100 * MC_MS); /* wakes to see `stop` */
        struct timespec ts = {(time_t)(nap / MC_SEC), (long)(nap % MC_SEC)};
        nanosleep(&ts, NULL);
    }
}

/* ---- reading and writing ---- */

static void count_error(struct mc_replay_result *result, enum mc_status status) {
    if (result->errors++ == 0) {
        result->first_error = status;
    }
}

static void record_latency(struct mc_latencies *latencies, size_t *cap, uint64_t ns) {
    if (latencies->count == *cap) {
        *cap = *cap ? *cap * 2 : 1024;
        latencies->us = mc_realloc(latencies->us, *cap * sizeof(*latencies->us));
    }
    latencies->us[latencies->count++] = (uint32_t)mc_min_u64((ns + 500) / 1000, UINT32_MAX);
}

/* Fills items[0 … count) for the given blocks; the values lie one behind the other in the worker's
 * buffer. */
static void prepare_items(struct worker *w, const uint32_t *blocks, const uint32_t *numbers,
                          uint32_t count) {
    const struct mc_replay_config *config = w->replay->config;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = blocks[numbers ? numbers[i] : i];
        snprintf(w->keys[i], KEY_BYTES, "%s%016llx", config->key_prefix,
                 (unsigned long long)config->trace->names[block]);
        w->slices[i] =
            (struct mc_slice){w->buffer + (size_t)i * config->block_bytes, config->block_bytes};
        w->items[i] =
            (struct mc_store_item){.key = w->keys[i], .slices = &w->slices[i], .slice_count = 1};
    }
}

/* One item that was read: is every byte the one that was written? */
static bool item_is_right(struct worker *w, uint32_t i) {
    const struct mc_replay_config *config = w->replay->config;
    size_t bad_at = 0;
    if (w->items[i].length != config->block_bytes) {
        mc_error("a block has another length key=%s length=%zu expected=%llu", w->keys[i],
                 w->items[i].length, (unsigned long long)config->block_bytes);
        return false;
    }
    if (!mc_content_verify(w->slices[i].ptr, config->block_bytes, mc_content_seed(w->keys[i]),
                           &bad_at)) {
        mc_error("a block has wrong bytes key=%s first_at=%zu", w->keys[i], bad_at);
        return false;
    }
    return true;
}

/* Looks at the answer for block `number` of the request. */
static void account_get(struct worker *w, const struct mc_trace_request *request,
                        struct mc_replay_bin *bin, uint32_t i, uint32_t number,
                        bool *prefix_intact) {
    struct mc_replay_result *result = &w->result;
    enum mc_status status = w->items[i].status;
    if (status == MC_OK) {
        result->gets++;
        result->read_bytes += w->replay->config->block_bytes;
        if (item_is_right(w, i)) {
            result->verified_bytes += w->replay->config->block_bytes;
            bin->hit_blocks++;
            bin->prefix_blocks += *prefix_intact;
            bin->hit_tokens += mc_trace_block_tokens(request, number);
            return;
        }
        result->mismatches++;
    } else if (status == MC_LEASE_EXPIRED) { /* the bytes may be another object's by now */
        result->leases_expired++;
    } else if (status != MC_OBJECT_NOT_FOUND && status != MC_REPLICA_IS_NOT_READY) {
        count_error(result, status);
    }
    *prefix_intact = false;
    w->missing[w->missing_count++] = number;
}

static void read_blocks(struct worker *w, size_t number, struct mc_replay_bin *bin) {
    struct replay *r = w->replay;
    const struct mc_trace_request *request = &r->config->trace->requests[number];
    const uint32_t *blocks = blocks_of(r, number);
    bool prefix_intact = true;
    uint64_t spent_ns = 0;
    w->missing_count = 0;
    for (uint32_t at = 0; at < request->block_count; at += r->batch_blocks) {
        uint32_t count = (uint32_t)mc_min_u64(r->batch_blocks, request->block_count - at);
        prepare_items(w, blocks + at, NULL, count);
        uint64_t begin = now_ns();
        enum mc_status status = mc_store_get_batch(r->config->store, w->items, count);
        spent_ns += now_ns() - begin;
        for (uint32_t i = 0; i < count; i++) {
            if (status != MC_OK) {
                w->items[i].status = status;
            }
            account_get(w, request, bin, i, at + i, &prefix_intact);
        }
    }
    bin->blocks += request->block_count;
    bin->tokens += request->input_tokens;
    if (request->block_count > 0) {
        w->result.get_seconds += (double)spent_ns / (double)MC_SEC;
        record_latency(&w->result.get_latency, &w->get_cap, spent_ns);
    }
}

static void account_put(struct worker *w, enum mc_status status) {
    struct mc_replay_result *result = &w->result;
    if (status == MC_OK) {
        result->puts++;
        result->written_bytes += w->replay->config->block_bytes;
    } else if (status == MC_NO_AVAILABLE_HANDLE) {
        result->puts_refused++;
    } else if (status != MC_OBJECT_ALREADY_EXISTS) { /* put again, by another, after an eviction */
        count_error(result, status);
    }
}

static void write_missing_blocks(struct worker *w, size_t number) {
    struct replay *r = w->replay;
    const uint32_t *blocks = blocks_of(r, number);
    uint64_t spent_ns = 0;
    for (uint32_t at = 0; at < w->missing_count; at += r->batch_blocks) {
        uint32_t count = (uint32_t)mc_min_u64(r->batch_blocks, w->missing_count - at);
        prepare_items(w, blocks, w->missing + at, count);
        for (uint32_t i = 0; i < count; i++) {
            mc_content_fill(w->slices[i].ptr, r->config->block_bytes, mc_content_seed(w->keys[i]));
        }
        uint64_t begin = now_ns();
        enum mc_status status = mc_store_put_batch(r->config->store, w->items, count, NULL);
        spent_ns += now_ns() - begin;
        for (uint32_t i = 0; i < count; i++) {
            account_put(w, status != MC_OK ? status : w->items[i].status);
        }
    }
    if (w->missing_count > 0) {
        w->result.put_seconds += (double)spent_ns / (double)MC_SEC;
        record_latency(&w->result.put_latency, &w->put_cap, spent_ns);
    }
}

static void add_relaxed(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static uint64_t read_relaxed(_Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void run_request(struct worker *w, size_t number) {
    struct replay *r = w->replay;
    const struct mc_trace_request *request = &r->config->trace->requests[number];
    uint64_t bin = (request->timestamp_ms - r->first_timestamp_ms) / r->bin_ms;
    MC_ASSERT(bin < MC_REPLAY_BINS);
    uint64_t gets = w->result.gets, read_bytes = w->result.read_bytes,
             written_bytes = w->result.written_bytes;
    read_blocks(w, number, &w->result.bins[bin]);
    write_missing_blocks(w, number);
    w->result.requests++;
    add_relaxed(&r->done.requests, 1);
    add_relaxed(&r->done.blocks, request->block_count);
    add_relaxed(&r->done.hits, w->result.gets - gets);
    add_relaxed(&r->done.read_bytes, w->result.read_bytes - read_bytes);
    add_relaxed(&r->done.written_bytes, w->result.written_bytes - written_bytes);
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct replay *r = w->replay;
    size_t number;
    while (take_request(r, &number)) {
        wait_until_due(r, r->config->trace->requests[number].timestamp_ms);
        wait_for_earlier(r, number);
        run_request(w, number);
        release_request(r, number);
    }
    atomic_fetch_sub_explicit(&r->workers_left, 1, memory_order_release);
    return NULL;
}

/* ---- watching ---- */

static void take_sample(struct replay *r, struct mc_replay_result *result) {
    struct mc_replay_sample sample = {
        .seconds = (double)(now_ns() - r->start_ns) / (double)MC_SEC,
        .requests = read_relaxed(&r->done.requests),
        .read_bytes = read_relaxed(&r->done.read_bytes),
        .written_bytes = read_relaxed(&r->done.written_bytes),
    };
    if (r->config->cluster_state != NULL) {
        r->config->cluster_state(r->config->cluster_state_ctx, &sample.cluster);
    }
    result->samples[result->sample_count++] = sample;
}

/* Keeps every second sample; the last stays. */
static void thin_samples(struct mc_replay_result *result) {
    size_t kept = 0;
    for (size_t i = 1; i < result->sample_count; i += 2) {
        result->samples[kept++] = result->samples[i];
    }
    result->sample_count = kept;
}

static void draw_progress(struct replay *r, bool on_terminal, bool last) {
    enum { WIDTH = 30 };
    uint64_t requests = read_relaxed(&r->done.requests), all = r->config->trace->request_count;
    uint64_t blocks = read_relaxed(&r->done.blocks), hits = read_relaxed(&r->done.hits);
    double seconds = (double)(now_ns() - r->start_ns) / (double)MC_SEC;
    double bytes =
        (double)(read_relaxed(&r->done.read_bytes) + read_relaxed(&r->done.written_bytes));
    char bar[WIDTH * 3 + 1] = "";
    size_t filled = all ? (size_t)(WIDTH * requests / all) : WIDTH, len = 0;
    for (size_t i = 0; i < WIDTH; i++) {
        const char *cell = i < filled ? "\u2588" : "\u2591";
        memcpy(bar + len, cell, 3);
        len += 3;
    }
    bar[len] = '\0';
    fprintf(stderr, "%s%s %3.0f %%  %llu/%llu requests  hits %.3f  %.2f GB/s  %.0f s%s",
            on_terminal ? "\r" : "", bar, all ? 100.0 * (double)requests / (double)all : 100.0,
            (unsigned long long)requests, (unsigned long long)all, mc_rate(hits, blocks),
            seconds > 0 ? bytes / seconds / 1e9 : 0, seconds,
            on_terminal && !last ? "\x1b[K" : "\n");
}

/* Samples and draws until every worker has ended. */
static void watch(struct replay *r, struct mc_replay_result *result) {
    bool on_terminal = isatty(STDERR_FILENO);
    uint64_t interval_ns = SAMPLE_INTERVAL_NS;
    uint64_t progress_ns = on_terminal ? PROGRESS_INTERVAL_NS : 10 * PROGRESS_INTERVAL_NS;
    uint64_t next_sample = r->start_ns, next_progress = r->start_ns + progress_ns;
    while (atomic_load_explicit(&r->workers_left, memory_order_acquire) > 0) {
        uint64_t now = now_ns();
        if (now >= next_sample) {
            if (result->sample_count ==
                MC_REPLAY_MAX_SAMPLES - 1) { /* the last place is for the end */
                thin_samples(result);
                interval_ns *= 2;
            }
            take_sample(r, result);
            next_sample = now + interval_ns;
        }
        if (r->config->progress && now >= next_progress) {
            draw_progress(r, on_terminal, false);
            next_progress = now + progress_ns;
        }
        struct timespec ts = {0, 5 * MC_MS};
        nanosleep(&ts, NULL);
    }
    take_sample(r, result);
    if (r->config->progress) {
        draw_progress(r, on_terminal, true);
    }
}

/* ---- set-up and sums ---- */

static enum mc_status worker_init(struct worker *w, struct replay *r, uint32_t longest_request) {
    const struct mc_replay_config *config = r->config;
    w->replay = r;
    w->buffer_bytes = ((size_t)r->batch_blocks * config->block_bytes + 4095) & ~(size_t)4095;
    w->buffer =
        mmap(NULL, w->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->buffer == MAP_FAILED) {
        w->buffer = NULL;
        mc_error("no memory for the buffers of a replay thread bytes=%zu", w->buffer_bytes);
        return MC_ERR_NO_MEMORY;
    }
    w->items = mc_zalloc(r->batch_blocks * sizeof(*w->items));
    w->slices = mc_zalloc(r->batch_blocks * sizeof(*w->slices));
    w->keys = mc_zalloc(r->batch_blocks * sizeof(*w->keys));
    w->missing = mc_zalloc(((size_t)longest_request + 1) * sizeof(*w->missing));
    return mc_store_register_buffer(config->store, w->buffer, w->buffer_bytes);
}

static void worker_free(struct worker *w) {
    if (w->buffer != NULL) {
        if (mc_store_unregister_buffer(w->replay->config->store, w->buffer) != MC_OK) {
            mc_debug("a replay buffer was not registered");
        }
        munmap(w->buffer, w->buffer_bytes);
    }
    free(w->items);
    free(w->slices);
    free(w->keys);
    free(w->missing);
    free(w->result.get_latency.us);
    free(w->result.put_latency.us);
}

static void add_bin(struct mc_replay_bin *to, const struct mc_replay_bin *from) {
    to->blocks += from->blocks;
    to->hit_blocks += from->hit_blocks;
    to->prefix_blocks += from->prefix_blocks;
    to->tokens += from->tokens;
    to->hit_tokens += from->hit_tokens;
}

static void add_latencies(struct mc_latencies *to, const struct mc_latencies *from) {
    if (from->count == 0) {
        return;
    }
    to->us = mc_realloc(to->us, (to->count + from->count) * sizeof(*to->us));
    memcpy(to->us + to->count, from->us, from->count * sizeof(*to->us));
    to->count += from->count;
}

static void add_result(struct mc_replay_result *to, const struct mc_replay_result *from) {
    to->requests += from->requests;
    to->gets += from->gets;
    to->puts += from->puts;
    to->puts_refused += from->puts_refused;
    to->leases_expired += from->leases_expired;
    to->verified_bytes += from->verified_bytes;
    to->mismatches += from->mismatches;
    to->first_error = to->errors == 0 ? from->first_error : to->first_error;
    to->errors += from->errors;
    to->read_bytes += from->read_bytes;
    to->written_bytes += from->written_bytes;
    to->get_seconds += from->get_seconds;
    to->put_seconds += from->put_seconds;
    add_latencies(&to->get_latency, &from->get_latency);
    add_latencies(&to->put_latency, &from->put_latency);
    for (size_t i = 0; i < MC_REPLAY_BINS; i++) {
        add_bin(&to->bins[i], &from->bins[i]);
        add_bin(&to->total, &from->bins[i]);
    }
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void sort_latencies(struct mc_latencies *latencies) {
    if (latencies->count > 1) {
        qsort(latencies->us, latencies->count, sizeof(*latencies->us), by_value);
    }
}

uint32_t mc_latencies_at(const struct mc_latencies *latencies, double q) {
    if (latencies->count == 0) {
        return 0;
    }
    size_t at = (size_t)(q * (double)(latencies->count - 1) + 0.5);
    return latencies->us[at];
}

static void replay_init(struct replay *r, const struct mc_replay_config *config) {
    const struct mc_trace *trace = config->trace;
    *r = (struct replay){.config = config};
    r->first_timestamp_ms = trace->requests[0].timestamp_ms;
    uint64_t span_ms =
        trace->requests[trace->request_count - 1].timestamp_ms - r->first_timestamp_ms;
    r->bin_ms = span_ms / MC_REPLAY_BINS + 1;
    r->batch_blocks =
        (uint32_t)mc_min_u64(mc_max_u64(config->batch_bytes / config->block_bytes, 1), 4096);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->released, NULL);
    r->states = mc_zalloc(trace->distinct_count + 1);
    r->owners = mc_zalloc((trace->distinct_count + 1) * sizeof(*r->owners));
}

static void replay_free(struct replay *r) {
    free(r->states);
    free(r->owners);
    pthread_cond_destroy(&r->released);
    pthread_mutex_destroy(&r->mutex);
}

static uint32_t longest_request(const struct mc_trace *trace) {
    uint32_t longest = 0;
    for (size_t i = 0; i < trace->request_count; i++) {
        longest = (uint32_t)mc_max_u64(longest, trace->requests[i].block_count);
    }
    return longest;
}

/* Starts the workers, watches them and joins them. */
static enum mc_status run_workers(struct replay *r, struct worker *workers,
                                  struct mc_replay_result *result) {
    unsigned count = r->config->concurrency;
    uint32_t longest = longest_request(r->config->trace);
    for (unsigned i = 0; i < count; i++) {
        MC_TRY(worker_init(&workers[i], r, longest));
    }
    atomic_store_explicit(&r->workers_left, count, memory_order_relaxed);
    r->start_ns = now_ns();
    for (unsigned i = 0; i < count; i++) {
        workers[i].running = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
        if (!workers[i].running) { /* the others do its share */
            mc_warn("a replay thread cannot be started number=%u", i);
            atomic_fetch_sub_explicit(&r->workers_left, 1, memory_order_relaxed);
        }
    }
    watch(r, result);
    for (unsigned i = 0; i < count; i++) {
        if (workers[i].running) {
            pthread_join(workers[i].thread, NULL);
            add_result(result, &workers[i].result);
        }
    }
    return MC_OK;
}

enum mc_status mc_replay_run(const struct mc_replay_config *config,
                             struct mc_replay_result *result) {
    *result = (struct mc_replay_result){0};
    if (config->block_bytes == 0 || config->concurrency == 0 ||
        config->concurrency > MC_REPLAY_MAX_THREADS || config->trace->request_count == 0 ||
        strlen(config->key_prefix) > KEY_BYTES - 20) {
        return MC_INVALID_PARAMS;
    }
    struct replay r;
    replay_init(&r, config);
    result->bin_ms = r.bin_ms;
    result->samples = mc_zalloc(MC_REPLAY_MAX_SAMPLES * sizeof(*result->samples));
    struct worker *workers = mc_zalloc(config->concurrency * sizeof(*workers));
    enum mc_status status = run_workers(&r, workers, result);
    result->seconds = result->sample_count ? result->samples[result->sample_count - 1].seconds : 0;
    result->stopped_early = result->requests < config->trace->request_count;
    sort_latencies(&result->get_latency);
    sort_latencies(&result->put_latency);
    for (unsigned i = 0; i < config->concurrency && workers[i].replay != NULL; i++) {
        worker_free(&workers[i]);
    }
    free(workers);
    replay_free(&r);
    if (status != MC_OK) {
        mc_replay_result_free(result);
    }
    return status;
}

void mc_replay_result_free(struct mc_replay_result *result) {
    free(result->samples);
    free(result->get_latency.us);
    free(result->put_latency.us);
    *result = (struct mc_replay_result){0};
}

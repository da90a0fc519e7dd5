/*
 * tebench: the target, and the initiator's sweep. See cmd/tebench.h.
 *
 * The threads of an initiator take the buffers of either side in turn, and each owns `stride` bytes
 * of its two, so that no two threads meet and every byte that is read can be told.
 */
#include "cmd/tebench.h"
#include "cmd/bench_config.h"
#include "cmd/bench_memory.h"
#include "io/io.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define PROGRAM            "tebench"
#define TRANSFER_TIMEOUT_S 30
#define TARGETS_MAX        256

struct bench {
    const struct tebench_options *options;
    struct tebench_classes classes;
    struct mc_engine *engine;
    struct mc_bench_memory memory;
    struct mc_bench_gpus gpus;  /* of memory that is VRAM */
    bool host_first, host_last; /* DRAM before or behind it */
    mc_segment_id segment;
    struct mc_buffer_info targets[TARGETS_MAX];
    uint64_t target_count, target_length; /* of the shortest */
    const char *hint;                     /* NULL = none */
    enum mc_intent intent;
    const _Atomic bool *interrupted;
};

struct worker {
    const struct bench *bench;
    pthread_t thread;
    uint64_t number, block_size, batch_size, stride, deadline_us, until_ns;
    enum mc_intent intent;
    size_t class_index;
    struct mc_transfer_request *requests;
    struct tebench_stats stats;
    uint64_t wrong_blocks, verified;
    enum mc_status status;
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- one worker ---- */

static uint64_t seed_of(const struct worker *w, uint64_t block) {
    return w->bench->options->seed * 0x9e3779b97f4a7c15ull + (w->number << 32 | (block + 1));
}

static enum mc_status fill(struct worker *w) {
    for (uint64_t i = 0; i < w->batch_size; i++) {
        MC_TRY(mc_bench_fill(w->requests[i].local, w->block_size, seed_of(w, i)));
    }
    return MC_OK;
}

/* All blocks of a batch, which lie side by side. */
static enum mc_status clear(struct worker *w) {
    return mc_bench_clear(w->requests[0].local, w->block_size * w->batch_size);
}

/* Compares; then spoils, so that the next batch cannot pass on these bytes. */
static enum mc_status compare(struct worker *w) {
    for (uint64_t i = 0; i < w->batch_size; i++) {
        bool same = false;
        MC_TRY(mc_bench_verify(w->requests[i].local, w->block_size, seed_of(w, i), &same));
        w->wrong_blocks += !same;
        w->verified++;
    }
    return clear(w);
}

static enum mc_status move(struct worker *w, enum mc_transfer_op op, uint64_t deadline_ns) {
    struct mc_batch *batch = NULL;
    for (uint64_t i = 0; i < w->batch_size; i++) {
        w->requests[i].op = op;
    }
    if (!w->bench->options->notifi) {
        return mc_transfer(w->bench->engine, w->requests, w->batch_size, deadline_ns);
    }
    MC_TRY(mc_batch_create(w->bench->engine, w->batch_size, &batch));
    enum mc_status status = mc_batch_notify(batch, w->bench->segment, PROGRAM, "batch");
    if (status == MC_OK) {
        status = mc_batch_submit(batch, w->requests, w->batch_size, deadline_ns);
    }
    if (status == MC_OK) {
        status = mc_batch_wait(batch, MC_WAIT_FOREVER);
    }
    MC_ASSERT(mc_batch_free(batch) == MC_OK);
    return status;
}

/* One measured batch. A missed deadline counts and is no failure of the run. */
static void measure(struct worker *w, enum mc_transfer_op op) {
    uint64_t begun = now_ns();
    uint64_t limit_ns = w->deadline_us > 0 ? w->deadline_us * 1000 : TRANSFER_TIMEOUT_S * MC_SEC;
    enum mc_status status = move(w, op, begun + limit_ns);
    if (status == MC_OK) {
        tebench_stats_add(&w->stats, now_ns() - begun, w->batch_size * w->block_size);
    } else if (status == MC_ERR_TIMEOUT && w->deadline_us > 0) {
        w->stats.late++;
    } else {
        w->stats.failed++;
        w->status = status;
    }
}

static void pause_between(const struct worker *w) {
    uint64_t us = w->bench->options->request_interval_us;
    if (us > 0) {
        nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
    }
}

static enum mc_status one_round(struct worker *w, bool reads, bool writes, bool verify) {
    if (writes) {
        if (verify && reads) {
            MC_TRY(fill(w));
        }
        uint64_t before = w->stats.operations;
        measure(w, MC_TRANSFER_WRITE);
        if (w->stats.operations == before) {
            return w->status; /* late: what is there now is not known */
        }
        if (verify && reads) {
            MC_TRY(clear(w));
        }
    }
    if (reads && w->status == MC_OK) {
        uint64_t before = w->stats.operations;
        measure(w, MC_TRANSFER_READ);
        if (verify && w->stats.operations > before) {
            MC_TRY(compare(w));
        }
    }
    return w->status;
}

static void *work(void *arg) {
    struct worker *w = arg;
    const struct tebench_options *o = w->bench->options;
    bool reads = strcmp(o->op_type, "write") != 0, writes = strcmp(o->op_type, "read") != 0;
    uint64_t limit = TRANSFER_TIMEOUT_S * MC_SEC;
    if (o->check_consistency) {
        w->status = fill(w);
        w->status =
            w->status != MC_OK || writes ? w->status : move(w, MC_TRANSFER_WRITE, now_ns() + limit);
    }
    while (w->status == MC_OK && now_ns() < w->until_ns &&
           !atomic_load_explicit(w->bench->interrupted, memory_order_relaxed)) {
        w->status = one_round(w, reads, writes, o->check_consistency);
        pause_between(w);
    }
    if (o->check_consistency && !reads && w->status == MC_OK && w->stats.operations > 0) {
        w->status = clear(w);
        w->status = w->status == MC_OK ? move(w, MC_TRANSFER_READ, now_ns() + limit) : w->status;
        w->status = w->status == MC_OK ? compare(w) : w->status;
    }
    return NULL;
}

/* Where thread `number` begins when threads take `count` buffers in turn from `first` (-1 = 0) on.
 */
static uint64_t place(const struct worker *w, int64_t first, uint64_t count, uint64_t *buffer) {
    *buffer = ((uint64_t)(first < 0 ? 0 : first) + w->number) % count;
    return w->number / count * w->stride;
}

static void lay_out(struct worker *w) {
    const struct bench *bench = w->bench;
    uint64_t here, there;
    uint64_t offset = place(w, 0, bench->memory.count, &here);
    char *local = bench->memory.buffers[here].bytes + offset;
    offset = place(w, bench->options->target_gpu_id, bench->target_count, &there);
    uint64_t remote = bench->targets[there].addr + bench->options->target_offset + offset;
    w->requests = mc_zalloc(w->batch_size * sizeof(*w->requests));
    for (uint64_t i = 0; i < w->batch_size; i++) {
        w->requests[i] = (struct mc_transfer_request){
            .local = local + i * w->block_size,
            .segment = bench->segment,
            .remote_addr = remote + i * w->block_size,
            .length = w->block_size,
            .intent = (uint8_t)w->intent,
            .transport_hint = bench->hint,
        };
    }
}

/* ---- one configuration ---- */

static void shape_worker(struct worker *w, const struct bench *bench,
                         const struct tebench_run *run) {
    const struct tebench_options *o = bench->options;
    uint64_t tight = o->deadline_tight_threads;
    w->bench = bench;
    w->block_size = run->block_size;
    w->batch_size = run->batch_size;
    w->intent = bench->intent;
    w->deadline_us = tight == 0 || w->number < tight ? o->deadline_us : 0;
    uint64_t first = 0;
    for (size_t c = 0; c < bench->classes.count; c++) {
        const struct tebench_class *one = &bench->classes.list[c];
        if (w->number >= first && w->number < first + one->threads) {
            w->class_index = c;
            w->intent = one->intent != MC_INTENT_DEFAULT ? one->intent : w->intent;
            w->deadline_us = one->deadline_us > 0 ? one->deadline_us : w->deadline_us;
            w->block_size = bench->classes.shaped ? one->block_size : w->block_size;
            w->batch_size = bench->classes.shaped ? one->batch_size : w->batch_size;
        }
        first += one->threads;
    }
}

static int gather(const struct bench *bench, struct worker *workers, struct tebench_run *run) {
    uint64_t wrong = 0, verified = 0;
    enum mc_status status = MC_OK;
    for (uint64_t i = 0; i < run->threads; i++) {
        tebench_stats_merge(&run->all, &workers[i].stats);
        if (run->classes->count > 0) {
            tebench_stats_merge(&run->by_class[workers[i].class_index], &workers[i].stats);
        }
        wrong += workers[i].wrong_blocks;
        verified += workers[i].verified;
        status = status == MC_OK ? workers[i].status : status;
    }
    tebench_print_run(run);
    if (run->classes->count > 0) {
        tebench_print_classes(run, bench->options->qos_link_capacity_gbps);
    }
    const char *path = bench->options->qos_output_jsonl;
    if (path[0] != '\0' && tebench_write_jsonl(path, run, bench->options) != MC_OK) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "%s cannot be written", path);
    }
    if (status != MC_OK) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "a transfer failed: %s (%s)",
                           mc_status_text(status), mc_status_name(status));
    }
    if (bench->options->check_consistency) {
        printf("         verified: %llu blocks, %llu wrong\n", (unsigned long long)verified,
               (unsigned long long)wrong);
    }
    return wrong > 0 ? MC_EXIT_FAILED : 0;
}

/* The least that each has on either side. */
static uint64_t room_for_thread(const struct bench *bench, uint64_t threads) {
    uint64_t here = (threads + bench->memory.count - 1) / bench->memory.count;
    uint64_t there = (threads + bench->target_count - 1) / bench->target_count;
    return mc_min_u64(bench->options->total_buffer_size / here, bench->target_length / there);
}

static int run_one(const struct bench *bench, uint64_t threads, uint64_t block, uint64_t batch) {
    struct tebench_run *run = mc_zalloc(sizeof(*run));
    struct worker *workers = mc_zalloc(threads * sizeof(*workers));
    uint64_t stride = 0;
    *run = (struct tebench_run){
        .threads = threads, .block_size = block, .batch_size = batch, .classes = &bench->classes};
    run->by_class = mc_zalloc((bench->classes.count + 1) * sizeof(*run->by_class));
    for (uint64_t i = 0; i < threads; i++) {
        workers[i].number = i;
        shape_worker(&workers[i], bench, run);
        stride = mc_max_u64(stride, workers[i].block_size * workers[i].batch_size);
    }
    int exit_status = 0;
    uint64_t room = room_for_thread(bench, threads);
    if (stride > room) {
        printf("%8llu %12llu %8llu   left out: %llu bytes a thread do not fit, there are %llu\n",
               (unsigned long long)threads, (unsigned long long)block, (unsigned long long)batch,
               (unsigned long long)stride, (unsigned long long)room);
        goto out;
    }
    uint64_t begun = now_ns();
    for (uint64_t i = 0; i < threads; i++) {
        workers[i].stride = stride;
        workers[i].until_ns = begun + bench->options->duration * MC_SEC;
        lay_out(&workers[i]);
        MC_ASSERT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (uint64_t i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        free(workers[i].requests);
    }
    run->seconds = (double)(now_ns() - begun) / (double)MC_SEC;
    exit_status = gather(bench, workers, run);
out:
    free(run->by_class);
    free(run);
    free(workers);
    return exit_status;
}

static uint64_t class_threads(const struct tebench_classes *classes) {
    uint64_t threads = 0;
    for (size_t i = 0; i < classes->count; i++) {
        threads += classes->list[i].threads;
    }
    return threads;
}

static int sweep(const struct bench *bench) {
    const struct tebench_options *o = bench->options;
    int exit_status = 0;
    tebench_print_header();
    if (bench->classes.shaped) {
        return run_one(bench, class_threads(&bench->classes), bench->classes.list[0].block_size,
                       bench->classes.list[0].batch_size);
    }
    uint64_t fixed = class_threads(&bench->classes);
    for (uint64_t t = fixed > 0 ? fixed : o->start_num_threads;
         t <= (fixed > 0 ? fixed : o->max_num_threads); t *= 2) {
        for (uint64_t block = o->start_block_size; block <= o->max_block_size; block *= 2) {
            for (uint64_t batch = o->start_batch_size; batch <= o->max_batch_size; batch *= 2) {
                exit_status = run_one(bench, t, block, batch);
                if (exit_status != 0 ||
                    atomic_load_explicit(bench->interrupted, memory_order_relaxed)) {
                    return exit_status;
                }
            }
        }
    }
    return 0;
}

/* ---- both sides ---- */

/* "cuda:2" before "cuda:10". */
static int by_location(const void *a, const void *b) {
    return strverscmp(((const struct mc_buffer_info *)a)->location,
                      ((const struct mc_buffer_info *)b)->location);
}

static enum mc_status find_target(struct bench *bench) {
    const struct tebench_options *o = bench->options;
    size_t count = 0;
    uint64_t shortest = UINT64_MAX;
    MC_TRY(mc_segment_open(bench->engine, o->target_seg_name, &bench->segment));
    MC_TRY(mc_segment_buffers(bench->engine, bench->segment, bench->targets, TARGETS_MAX, &count));
    bench->target_count = mc_min_u64(count, TARGETS_MAX);
    qsort(bench->targets, bench->target_count, sizeof(bench->targets[0]), by_location);
    for (uint64_t i = 0; i < bench->target_count; i++) {
        shortest = mc_min_u64(shortest, bench->targets[i].length);
    }
    if (count == 0 || o->target_offset >= shortest) {
        return MC_ERR_NOT_REGISTERED;
    }
    bench->target_length = shortest - o->target_offset;
    if (o->target_range_size > 0) {
        bench->target_length = mc_min_u64(bench->target_length, o->target_range_size);
    }
    return MC_OK;
}

static int initiate(struct bench *bench) {
    enum mc_status status = find_target(bench);
    if (status != MC_OK) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "the segment %s cannot be used: %s",
                           bench->options->target_seg_name, mc_status_text(status));
    }
    return sweep(bench);
}

static int wait_as_target(const struct bench *bench) {
    printf("To start initiators, run\n  tebench --target_seg_name=%s --seg_type=%s --backend=%s\n"
           "Press Ctrl-C to terminate\n",
           mc_engine_name(bench->engine), bench->options->seg_type, bench->options->backend);
    fflush(stdout);
    while (!mc_cmd_wait_for_signal(UINT64_MAX)) {
    }
    return 0;
}

static enum mc_status make_engine(struct bench *bench) {
    const struct tebench_options *o = bench->options;
    struct mc_engine_options config;
    struct mc_hostport name = {0};
    struct mc_buf metadata = {0};
    char policy[MC_BENCH_POLICY_BYTES];
    bool p2p = strcmp(o->metadata_type, "p2p") == 0;
    mc_engine_options_init(&config);
    config.rpc_port = (uint16_t)o->rpc_server_port;
    if (!p2p && strstr(o->metadata_url_list, "://") != NULL) {
        mc_buf_puts(&metadata, o->metadata_url_list);
    } else if (!p2p) {
        bool http = strcmp(o->metadata_type, "http") == 0;
        mc_buf_printf(&metadata, http ? "%s://%s/metadata" : "%s://%s", o->metadata_type,
                      o->metadata_url_list);
    }
    if (!p2p) {
        config.metadata = mc_buf_cstr(&metadata);
        config.local_name = o->seg_name;
    } else if (o->seg_name[0] != '\0') {
        MC_TRY(mc_hostport_parse(o->seg_name, &name));
        config.host = name.host;
        config.rpc_port = name.port != 0 ? name.port : config.rpc_port;
    }
    mc_bench_use_transport(o->xport_type, policy, &config);
    enum mc_status status = mc_engine_create(&config, &bench->engine);
    mc_buf_free(&metadata);
    return status;
}

static enum mc_status make_memory(struct bench *bench) {
    struct mc_bench_memory *memory = &bench->memory;
    uint64_t size = bench->options->total_buffer_size;
    memory->engine = bench->engine;
    MC_TRY(bench->host_first ? mc_bench_memory_add_host(memory, size, "cpu:0") : MC_OK);
    MC_TRY(mc_bench_memory_add_gpus(memory, size, &bench->gpus));
    MC_TRY(bench->host_last ? mc_bench_memory_add_host(memory, size, "cpu:0") : MC_OK);
    return mc_bench_memory_touch(memory);
}

static int run_with_engine(struct bench *bench) {
    const struct tebench_options *o = bench->options;
    int exit_status = MC_EXIT_FAILED;
    if (!mc_bench_has_transport(PROGRAM, bench->engine, o->xport_type)) {
        return MC_EXIT_FAILED;
    }
    enum mc_status status = make_memory(bench);
    if (status == MC_OK) {
        mc_bench_memory_print(&bench->memory);
        exit_status = o->target_seg_name[0] == '\0' ? wait_as_target(bench) : initiate(bench);
    } else {
        mc_cmd_fail(PROGRAM, 0, "%llu bytes of memory: %s",
                    (unsigned long long)o->total_buffer_size, mc_status_text(status));
    }
    return mc_bench_memory_free(&bench->memory) == MC_OK ? exit_status : MC_EXIT_FAILED;
}

/* What seg_type_mix, or else seg_type, names; each kind once. */
static int choose_memory(struct bench *bench) {
    const struct tebench_options *o = bench->options;
    const char *at = o->seg_type_mix[0] != '\0' ? o->seg_type_mix : o->seg_type;
    bool vram = false;
    while (*at != '\0') {
        at += strspn(at, " ,");
        size_t length = strcspn(at, " ,");
        if (length == 4 && strncasecmp(at, "dram", 4) == 0 && !bench->host_first &&
            !bench->host_last) {
            *(vram ? &bench->host_last : &bench->host_first) = true;
        } else if (length == 4 && strncasecmp(at, "vram", 4) == 0 && !vram) {
            vram = true;
        } else if (length > 0) {
            return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED,
                               "seg_type_mix: DRAM and VRAM are known, each once");
        }
        at += length;
    }
    if (!vram && !bench->host_first) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "seg_type_mix: no memory is named");
    }
    struct mc_buf why = {0};
    int exit_status = 0;
    if (vram && mc_bench_find_gpus(o->local_gpu_id, &bench->gpus, &why) != MC_OK) {
        exit_status = mc_cmd_fail(PROGRAM, MC_EXIT_FAILED,
                                  "seg_type VRAM: no such GPU can be used: %s", mc_buf_cstr(&why));
    }
    mc_buf_free(&why);
    return exit_status;
}

static int check_options(struct bench *bench) {
    const struct tebench_options *o = bench->options;
    struct mc_buf error = {0};
    if (o->start_block_size > o->max_block_size || o->start_batch_size > o->max_batch_size ||
        o->start_num_threads > o->max_num_threads) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "a sweep begins above its end");
    }
    if (tebench_classes_parse(o, &bench->classes, &error) != MC_OK) {
        int exit_status = mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "classes: %s", mc_buf_cstr(&error));
        mc_buf_free(&error);
        return exit_status;
    }
    if (tebench_intent_parse(o->tent_intent_type, &bench->intent) != MC_OK) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "tent_intent_type is not known");
    }
    bool hinted = strcmp(o->tent_transport_hint, "unspec") != 0;
    bench->hint = hinted ? o->tent_transport_hint : NULL;
    return choose_memory(bench);
}

static int run(const char *program, const void *of) {
    const struct tebench_options *o = of;
    struct bench bench = {.options = o, .interrupted = mc_cmd_catch_signals()};
    struct mc_bench_shape shape = {o->start_block_size, o->max_batch_size, o->max_num_threads,
                                   o->check_consistency, o->request_interval_us};
    int exit_status = check_options(&bench);
    if (exit_status != 0) {
        return exit_status;
    }
    mc_bench_print_config(&mc_tebench_options, o);
    if (o->target_seg_name[0] != '\0') {
        mc_bench_print_warnings(&shape);
    }
    enum mc_status status = make_engine(&bench);
    if (status != MC_OK) {
        return mc_cmd_fail(PROGRAM, MC_EXIT_FAILED, "the Transfer Engine cannot start: %s",
                           mc_status_text(status));
    }
    exit_status = run_with_engine(&bench);
    mc_engine_destroy(bench.engine);
    return exit_status;
}

int main(int argc, char **argv) {
    struct tebench_options options;
    const struct mc_upstream_program program = {.options = &mc_tebench_options,
                                                .config = &options,
                                                .log = &options.log,
                                                .ignores_words = true,
                                                .run = run};
    return mc_upstream_main(argc, argv, &program);
}

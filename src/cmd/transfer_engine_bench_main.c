/*
 * transfer_engine_bench: how fast the Transfer Engine moves blocks between two processes, with
 * upstream's flags and output, so that either side may be upstream's program. With --verify every
 * byte is compared.
 *
 * The target registers a buffer and waits. The initiator runs threads that submit a batch, wait for
 * it and submit the next; block i of a thread's batch is at block_size * (i * threads + thread) of
 * the target's buffer, as upstream's. Where either side has several buffers (--gpu_id=-1: one on
 * each GPU) threads take them in turn.
 */
#include "cmd/bench_config.h"
#include "cmd/bench_memory.h"
#include "cmd/transfer_bench.h"
#include "io/io.h"
#include "mooncake/transfer.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define TRANSFER_TIMEOUT_MS 30000

struct bench {
    const struct mc_transfer_bench_options *options;
    struct mc_engine *engine;
    struct mc_bench_memory memory;
    mc_segment_id segment;
    struct mc_buffer_info *targets;
    size_t target_count;
    uint64_t start_ns;
    uint64_t deadline_ns;
};

struct worker {
    const struct bench *bench;
    pthread_t thread;
    unsigned number;
    struct mc_transfer_request *requests;
    uint64_t batches, wrong_blocks;
    enum mc_status status;
};

/* ---- one worker ---- */

static uint64_t content_seed(const struct worker *w, uint64_t block) {
    return w->bench->options->seed * 0x9e3779b97f4a7c15ull +
           ((uint64_t)w->number << 32 | (block + 1));
}

static enum mc_status fill_blocks(struct worker *w) {
    for (uint64_t i = 0; i < w->bench->options->batch_size; i++) {
        MC_TRY(mc_bench_fill(w->requests[i].local, w->requests[i].length, content_seed(w, i)));
    }
    return MC_OK;
}

/* Compares what was read; then spoils it, so that the next batch cannot pass on these bytes. */
static enum mc_status check_blocks(struct worker *w) {
    for (uint64_t i = 0; i < w->bench->options->batch_size; i++) {
        const struct mc_transfer_request *r = &w->requests[i];
        bool same = false;
        MC_TRY(mc_bench_verify(r->local, r->length, content_seed(w, i), &same));
        w->wrong_blocks += !same;
        MC_TRY(mc_bench_clear(r->local, r->length));
    }
    return MC_OK;
}

static enum mc_status run_batch(struct worker *w, enum mc_transfer_op op) {
    for (uint64_t i = 0; i < w->bench->options->batch_size; i++) {
        w->requests[i].op = op;
    }
    return mc_transfer(w->bench->engine, w->requests, w->bench->options->batch_size,
                       mc_deadline_in_ms(TRANSFER_TIMEOUT_MS));
}

static void *work(void *arg) {
    struct worker *w = arg;
    const struct mc_transfer_bench_options *o = w->bench->options;
    bool reads = strcmp(o->operation, "read") == 0;
    enum mc_transfer_op op = reads ? MC_TRANSFER_READ : MC_TRANSFER_WRITE;
    if (o->verify) {
        w->status = fill_blocks(w);
        w->status = w->status == MC_OK && reads ? run_batch(w, MC_TRANSFER_WRITE) : w->status;
    }
    while (w->status == MC_OK && mc_now_ns(mc_clock_system()) < w->bench->deadline_ns) {
        w->status = run_batch(w, op);
        w->batches += w->status == MC_OK;
        if (o->verify && reads && w->status == MC_OK) {
            w->status = check_blocks(w);
        }
    }
    if (o->verify && !reads && w->status == MC_OK) {
        w->status = run_batch(w, MC_TRANSFER_READ);
        w->status = w->status == MC_OK ? check_blocks(w) : w->status;
    }
    printf(w->status == MC_OK ? "Worker %u stopped!\n" : "Worker %u: FAILED\n", w->number);
    return NULL;
}

static void lay_out_requests(struct worker *w) {
    const struct mc_transfer_bench_options *o = w->bench->options;
    const struct mc_bench_memory *memory = &w->bench->memory;
    const struct mc_buffer_info *target = &w->bench->targets[w->number % w->bench->target_count];
    char *local = memory->buffers[w->number % memory->count].bytes;
    for (uint64_t i = 0; i < o->batch_size; i++) {
        uint64_t offset = o->block_size * (i * o->threads + w->number);
        w->requests[i] = (struct mc_transfer_request){.local = local + offset,
                                                      .segment = w->bench->segment,
                                                      .remote_addr = target->addr + offset,
                                                      .length = o->block_size};
    }
}

/* ---- the initiator ---- */

static double unit_bytes(const char *unit) {
    double scale = unit[0] == 'G' ? 1e9 : unit[0] == 'M' ? 1e6 : 1e3;
    if (unit[1] == 'i') {
        scale = unit[0] == 'G' ? 1 << 30 : unit[0] == 'M' ? 1 << 20 : 1 << 10;
    }
    return unit[strlen(unit) - 1] == 'b' ? scale / 8 : scale;
}

static int report(const struct bench *bench, const struct worker *workers) {
    const struct mc_transfer_bench_options *o = bench->options;
    double seconds = (double)(mc_now_ns(mc_clock_system()) - bench->start_ns) / (double)MC_SEC;
    uint64_t batches = 0, wrong = 0;
    enum mc_status status = MC_OK;
    for (unsigned i = 0; i < o->threads; i++) {
        batches += workers[i].batches;
        wrong += workers[i].wrong_blocks;
        status = status == MC_OK ? workers[i].status : status;
    }
    if (status != MC_OK) {
        return mc_cmd_fail("transfer_engine_bench", MC_EXIT_FAILED, "a transfer failed: %s (%s)",
                           mc_status_text(status), mc_status_name(status));
    }
    double bytes = (double)batches * (double)o->batch_size * (double)o->block_size;
    printf("Test completed: duration %.2f, batch count %llu, throughput %.*f %s/s\n", seconds,
           (unsigned long long)batches, (int)o->report_precision,
           bytes / seconds / unit_bytes(o->report_unit), o->report_unit);
    if (o->verify) {
        printf("Verified: %llu blocks wrong\n", (unsigned long long)wrong);
    }
    return wrong > 0 ? MC_EXIT_FAILED : 0;
}

/* The target's buffers that are large enough. */
static enum mc_status find_targets(struct bench *bench, uint64_t needed) {
    size_t count = 0;
    MC_TRY(mc_segment_open(bench->engine, bench->options->segment_id, &bench->segment));
    MC_TRY(mc_segment_buffers(bench->engine, bench->segment, NULL, 0, &count));
    bench->targets = mc_zalloc((count + 1) * sizeof(*bench->targets));
    size_t capacity = count;
    MC_TRY(mc_segment_buffers(bench->engine, bench->segment, bench->targets, capacity, &count));
    for (size_t i = 0; i < mc_min_u64(count, capacity); i++) {
        if (bench->targets[i].length >= needed) {
            bench->targets[bench->target_count++] = bench->targets[i];
        }
    }
    return bench->target_count > 0 ? MC_OK : MC_ERR_NOT_REGISTERED;
}

static int run_workers(struct bench *bench) {
    const struct mc_transfer_bench_options *o = bench->options;
    struct worker *workers = mc_zalloc(o->threads * sizeof(*workers));
    bench->start_ns = mc_now_ns(mc_clock_system());
    bench->deadline_ns = bench->start_ns + o->duration * MC_SEC;
    for (unsigned i = 0; i < o->threads; i++) {
        workers[i] = (struct worker){.bench = bench, .number = i};
        workers[i].requests = mc_zalloc(o->batch_size * sizeof(*workers[i].requests));
        lay_out_requests(&workers[i]);
        MC_ASSERT(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < o->threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    int exit_status = report(bench, workers);
    for (unsigned i = 0; i < o->threads; i++) {
        free(workers[i].requests);
    }
    free(workers);
    return exit_status;
}

static int initiate(struct bench *bench, uint64_t needed) {
    enum mc_status status = find_targets(bench, needed);
    int exit_status = MC_EXIT_FAILED;
    if (status == MC_OK) {
        exit_status = run_workers(bench);
    } else if (status == MC_ERR_NOT_REGISTERED) {
        mc_cmd_fail("transfer_engine_bench", 0,
                    "%s has no buffer of %llu bytes (block_size * batch_size * threads)",
                    bench->options->segment_id, (unsigned long long)needed);
    } else {
        mc_cmd_fail("transfer_engine_bench", 0, "the segment %s cannot be opened: %s",
                    bench->options->segment_id, mc_status_text(status));
    }
    free(bench->targets);
    return exit_status;
}

/* ---- both sides ---- */

static int wait_as_target(const struct bench *bench) {
    if (strcmp(bench->options->metadata_server, "P2PHANDSHAKE") == 0) {
        printf("Transfer Engine RPC using P2P handshake, listening on %s\n",
               mc_engine_name(bench->engine));
    } else {
        printf("Transfer Engine target %s is ready\n", mc_engine_name(bench->engine));
    }
    fflush(stdout);
    while (!mc_cmd_wait_for_signal(UINT64_MAX)) {
    }
    return 0;
}

/* The engine takes its cards from the environment, as every program of ours has it. */
static void choose_cards(const struct mc_transfer_bench_options *o) {
    if (strcmp(o->protocol, "tcp") == 0) {
        return;
    }
    if (o->device_name[0] != '\0' && !o->auto_discovery) {
        setenv("MC_TE_FILTERS", o->device_name, 1);
    }
    if (o->nic_priority_matrix[0] != '\0') {
        setenv("MC_CUSTOM_TOPO_JSON", o->nic_priority_matrix, 1);
    }
}

static enum mc_status make_engine(const struct mc_transfer_bench_options *o,
                                  struct mc_engine **engine) {
    struct mc_engine_options config;
    struct mc_hostport name = {0};
    char policy[MC_BENCH_POLICY_BYTES];
    choose_cards(o);
    mc_engine_options_init(&config);
    mc_bench_use_transport(o->protocol, policy, &config);
    config.metadata = o->metadata_server;
    if (strcmp(o->metadata_server, "P2PHANDSHAKE") != 0) {
        config.local_name = o->local_server_name;
    } else if (o->local_server_name[0] != '\0') {
        MC_TRY(mc_hostport_parse(o->local_server_name, &name));
        config.host = name.host;
        config.rpc_port = name.port;
    }
    return mc_engine_create(&config, engine);
}

static enum mc_status make_memory(struct bench *bench, const struct mc_bench_gpus *gpus,
                                  uint64_t size) {
    bench->memory.engine = bench->engine;
    MC_TRY(gpus->count > 0 ? mc_bench_memory_add_gpus(&bench->memory, size, gpus)
                           : mc_bench_memory_add_host(&bench->memory, size, "*"));
    return bench->options->init_mem ? mc_bench_memory_touch(&bench->memory) : MC_OK;
}

static int run_with_engine(struct bench *bench, const struct mc_bench_gpus *gpus) {
    const struct mc_transfer_bench_options *o = bench->options;
    uint64_t needed = o->block_size * o->batch_size * o->threads;
    uint64_t size = mc_max_u64(o->buffer_size, needed);
    int exit_status = MC_EXIT_FAILED;
    if (!mc_bench_has_transport("transfer_engine_bench", bench->engine, o->protocol)) {
        return MC_EXIT_FAILED;
    }
    enum mc_status status = make_memory(bench, gpus, size);
    if (status == MC_OK) {
        mc_bench_memory_print(&bench->memory);
        exit_status =
            strcmp(o->mode, "target") == 0 ? wait_as_target(bench) : initiate(bench, needed);
    }
    enum mc_status freed = mc_bench_memory_free(&bench->memory);
    status = status == MC_OK ? freed : status;
    if (status != MC_OK) {
        return mc_cmd_fail("transfer_engine_bench", MC_EXIT_FAILED, "%llu bytes of memory: %s",
                           (unsigned long long)size, mc_status_text(status));
    }
    return exit_status;
}

static int run(const struct mc_transfer_bench_options *o, const struct mc_bench_gpus *gpus) {
    struct bench bench = {.options = o};
    const struct mc_bench_shape shape = {o->block_size, o->batch_size, o->threads, o->verify, 0};
    mc_bench_print_config(&mc_transfer_bench_options, o);
    if (strcmp(o->mode, "initiator") == 0) {
        mc_bench_print_warnings(&shape);
    }
    enum mc_status status = make_engine(o, &bench.engine);
    if (status != MC_OK) {
        return mc_cmd_fail("transfer_engine_bench", MC_EXIT_FAILED,
                           "the Transfer Engine cannot start: %s", mc_status_text(status));
    }
    int exit_status = run_with_engine(&bench, gpus);
    mc_engine_destroy(bench.engine);
    return exit_status;
}

/* The memory that is meant: use_vram is on by default, which must not keep a machine without a GPU
 * from measuring; who asks for it by name gets it or an error. False with the reason. */
static bool choose_memory(struct mc_transfer_bench_options *o, struct mc_bench_gpus *gpus,
                          struct mc_buf *error) {
    struct mc_buf why = {0};
    bool good = true;
    if (o->use_vram && mc_bench_find_gpus(o->gpu_id, gpus, &why) != MC_OK) {
        good = !o->use_vram_given && !o->gpu_id_given;
        o->use_vram = false; /* so that the printed configuration says what is measured */
        if (good) {
            printf("no GPU can be used, so the memory is DRAM: %s\n", mc_buf_cstr(&why));
        } else {
            mc_buf_printf(error, "use_vram: no such GPU can be used: %s", mc_buf_cstr(&why));
        }
    }
    mc_buf_free(&why);
    return good;
}

static int check_and_run(const char *program, const void *of) {
    struct mc_transfer_bench_options options = *(const struct mc_transfer_bench_options *)of;
    struct mc_bench_gpus gpus = {0};
    struct mc_buf error = {0};
    int exit_status;
    mc_cmd_catch_signals();
    if (mc_transfer_bench_check(&options, &error) != MC_OK ||
        !choose_memory(&options, &gpus, &error)) {
        exit_status = mc_cmd_fail(program, MC_EXIT_FAILED, "%s", mc_buf_cstr(&error));
    } else {
        exit_status = run(&options, &gpus);
    }
    mc_buf_free(&error);
    return exit_status;
}

int main(int argc, char **argv) {
    struct mc_transfer_bench_options options;
    const struct mc_upstream_program program = {.options = &mc_transfer_bench_options,
                                                .config = &options,
                                                .log = &options.log,
                                                .ignores_words = true,
                                                .run = check_and_run};
    return mc_upstream_main(argc, argv, &program);
}

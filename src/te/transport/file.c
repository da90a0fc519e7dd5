/*
 * File segments by io_uring: slices become operations on files of this machine.
 *
 * Posting queues; two threads, started with the first file segment, take what is queued, up to
 * RING_DEPTH slices at a time, run it on a ring of their own (io/file.h, which falls back to
 * pread and pwrite where io_uring is refused) and end the slices. So one thread waits for a drive
 * while the other hands in more. A cancelled slice that is on the ring is waited for: a drive
 * cannot be asked to forget an address.
 *
 * Each file is open twice where the file system allows: with O_DIRECT for what is aligned (buffer,
 * offset and length), without for the rest; the kernel keeps the two views the same.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "io/file.h"
#include "te/internal.h"
#include "wire/file_segment.h"

#define SLICE_BYTES (1ull << 20)
#define RING_DEPTH  32
#define THREADS     2
#define ALIGNMENT   4096u /* covers every block size in use */
#define COST        20

struct open_file {
    int fd;        /* -1: cannot be opened */
    int direct_fd; /* -1: no O_DIRECT here */
    bool writable;
    uint64_t length;
    char *path;
};

/* The files of one segment; lives until no slice uses them. */
struct file_set {
    _Atomic uint32_t refs;
    size_t count;
    struct open_file *files;
};

struct file_transport {
    struct mc_transport base; /* first */
    pthread_mutex_t lock;     /* the rest, and transport_state[] of segments */
    pthread_cond_t queued;
    pthread_cond_t ran; /* a thread's run is over */
    struct mc_list queue;
    pthread_t threads[THREADS];
    struct mc_file_ring *rings[THREADS];
    unsigned thread_count;
    unsigned ring_next;                 /* the ring of the next thread to come up */
    void *running[THREADS][RING_DEPTH]; /* tasks whose slices are on the rings */
    bool stopping;
    struct mc_metric operations[2]; /* buffered, direct */
};

static struct file_transport *transport_of(struct mc_transport *t) {
    return (struct file_transport *)t;
}

/* ---- files ---- */

static void set_put(struct file_set *set) {
    if (set == NULL || atomic_fetch_sub_explicit(&set->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < set->count; i++) {
        if (set->files[i].fd >= 0) {
            close(set->files[i].fd);
        }
        if (set->files[i].direct_fd >= 0) {
            close(set->files[i].direct_fd);
        }
        free(set->files[i].path);
    }
    free(set->files);
    free(set);
}

static void open_one(struct open_file *file, const struct mc_file_part *part) {
    bool direct = false;
    *file = (struct open_file){-1, -1, true, part->length, mc_strdup(part->path)};
    file->fd = open(part->path, O_RDWR | O_CLOEXEC);
    if (file->fd < 0) {
        file->writable = false;
        file->fd = open(part->path, O_RDONLY | O_CLOEXEC);
    }
    if (file->fd < 0) {
        mc_error("a file of a segment cannot be opened path=%s", part->path);
        return;
    }
    int flags = file->writable ? O_RDWR : O_RDONLY;
    if (mc_file_open(part->path, flags, true, &file->direct_fd, &direct) != MC_OK) {
        file->direct_fd = -1;
    } else if (!direct) {
        close(file->direct_fd);
        file->direct_fd = -1;
    }
}

static struct file_set *set_open(const struct mc_file_parts *parts) {
    struct file_set *set = mc_zalloc(sizeof(*set));
    atomic_store_explicit(&set->refs, 1, memory_order_relaxed);
    set->count = parts->count;
    set->files = mc_zalloc(parts->count * sizeof(*set->files));
    for (size_t i = 0; i < parts->count; i++) {
        open_one(&set->files[i], &parts->list[i]);
    }
    return set;
}

static bool set_is(const struct file_set *set, const struct mc_file_parts *parts) {
    bool same = set->count == parts->count;
    for (size_t i = 0; same && i < set->count; i++) {
        same = set->files[i].length == parts->list[i].length &&
               strcmp(set->files[i].path, parts->list[i].path) == 0 && set->files[i].fd >= 0;
    }
    return same;
}

/* ---- operations ---- */

struct run {
    struct file_transport *t;
    size_t slice_count;
    struct mc_slice_op *slices[RING_DEPTH];
    enum mc_status statuses[RING_DEPTH];
    size_t op_count, op_cap;
    struct mc_file_op *ops;
    size_t *owner; /* of each operation: index of its slice */
};

static bool is_aligned(const char *local, uint64_t offset, uint64_t length) {
    return ((uint64_t)(uintptr_t)local | offset | length) % ALIGNMENT == 0;
}

static void add_op(struct run *run, size_t slice, const struct open_file *file, char *local,
                   uint64_t offset, uint64_t length) {
    if (run->op_count == run->op_cap) {
        run->op_cap = run->op_cap == 0 ? RING_DEPTH : run->op_cap * 2;
        run->ops = mc_realloc(run->ops, run->op_cap * sizeof(*run->ops));
        run->owner = mc_realloc(run->owner, run->op_cap * sizeof(*run->owner));
    }
    bool direct = file->direct_fd >= 0 && is_aligned(local, offset, length);
    mc_metric_add(&run->t->operations[direct], 1);
    run->owner[run->op_count] = slice;
    run->ops[run->op_count++] = (struct mc_file_op){
        .write = run->slices[slice]->op == MC_TRANSFER_WRITE,
        .fd = direct ? file->direct_fd : file->fd,
        .buffer = local,
        .len = length,
        .offset = offset,
    };
}

/* One operation for each file that the slice touches. */
static enum mc_status add_slice(struct run *run, size_t index, const struct file_set *set) {
    struct mc_slice_op *slice = run->slices[index];
    uint64_t at = slice->remote, left = slice->length;
    char *local = slice->local;
    for (size_t i = 0; i < set->count && left > 0; i++) {
        const struct open_file *file = &set->files[i];
        if (at >= file->length) {
            at -= file->length;
            continue;
        }
        if (file->fd < 0) {
            return MC_FILE_OPEN_FAIL;
        }
        if (slice->op == MC_TRANSFER_WRITE && !file->writable) {
            mc_warn_limited("a file of a segment is read-only path=%s", file->path);
            return MC_FILE_WRITE_FAIL;
        }
        uint64_t length = mc_min_u64(left, file->length - at);
        add_op(run, index, file, local, at, length);
        local += length;
        left -= length;
        at = 0;
    }
    return left == 0 ? MC_OK : MC_ERR_NOT_REGISTERED; /* behind the end */
}

static struct file_set *set_of(const struct mc_slice_op *slice) {
    return (struct file_set *)(uintptr_t)slice->transport_data[0];
}

/* Takes what is queued; false when there is nothing more to come. */
static bool take(struct file_transport *t, unsigned me, struct run *run) {
    pthread_mutex_lock(&t->lock);
    while (mc_list_empty(&t->queue) && !t->stopping) {
        pthread_cond_wait(&t->queued, &t->lock);
    }
    run->slice_count = 0;
    while (!mc_list_empty(&t->queue) && run->slice_count < RING_DEPTH) {
        struct mc_slice_op *slice =
            mc_container_of(t->queue.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        t->running[me][run->slice_count] = slice->task;
        run->slices[run->slice_count++] = slice;
    }
    pthread_mutex_unlock(&t->lock);
    return run->slice_count > 0;
}

static void execute(struct run *run, struct mc_file_ring *ring) {
    run->op_count = 0;
    for (size_t i = 0; i < run->slice_count; i++) {
        size_t before = run->op_count;
        run->statuses[i] = add_slice(run, i, set_of(run->slices[i]));
        run->op_count = run->statuses[i] == MC_OK ? run->op_count : before;
    }
    (void)!mc_file_run(ring, run->ops, run->op_count); /* each operation has its own status */
    for (size_t i = 0; i < run->op_count; i++) {
        size_t slice = run->owner[i];
        if (run->statuses[slice] == MC_OK) {
            run->statuses[slice] = run->ops[i].status;
        }
    }
}

static void finish(struct file_transport *t, unsigned me, struct run *run) {
    pthread_mutex_lock(&t->lock);
    memset(t->running[me], 0, sizeof(t->running[me]));
    pthread_cond_broadcast(&t->ran);
    pthread_mutex_unlock(&t->lock);
    for (size_t i = 0; i < run->slice_count; i++) {
        set_put(set_of(run->slices[i]));
        mc_slice_done(run->slices[i], run->statuses[i], false);
    }
}

static void *work(void *arg) {
    struct file_transport *t = arg;
    struct run run = {.t = t};
    pthread_mutex_lock(&t->lock);
    unsigned me = t->ring_next++;
    pthread_mutex_unlock(&t->lock);
    while (take(t, me, &run)) {
        execute(&run, t->rings[me]);
        finish(t, me, &run);
    }
    free(run.ops);
    free(run.owner);
    return NULL;
}

/* ---- life ---- */

static enum mc_status file_start(struct mc_engine *engine, unsigned index,
                                 struct mc_transport **out) {
    struct file_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){&mc_transport_file_ops, engine, index};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->queued, NULL);
    pthread_cond_init(&t->ran, NULL);
    mc_list_init(&t->queue);
    for (int direct = 0; direct < 2; direct++) {
        mc_metrics_register(mc_engine_registry(engine), MC_METRIC_COUNTER,
                            "mooncake_te_file_operations_total",
                            direct ? "mode=\"direct\"" : "mode=\"buffered\"",
                            "operations on files of segments", &t->operations[direct]);
    }
    *out = &t->base;
    return MC_OK;
}

static void file_stop(struct mc_transport *base) {
    struct file_transport *t = transport_of(base);
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->queued);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->thread_count; i++) {
        pthread_join(t->threads[i], NULL);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        mc_file_ring_destroy(t->rings[i]);
    }
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->queued);
    pthread_cond_destroy(&t->ran);
    free(t);
}

/* Lock held. With one thread at least, files are served. */
static bool threads_up_locked(struct file_transport *t) {
    while (t->thread_count < THREADS) {
        unsigned i = t->thread_count;
        if (t->rings[i] == NULL && mc_file_ring_create(RING_DEPTH, &t->rings[i]) != MC_OK) {
            break;
        }
        char name[24];
        snprintf(name, sizeof(name), "mc-te-file-%u", i);
        if (mc_thread_start(&t->threads[i], name, work, t) != 0) {
            break;
        }
        t->thread_count++;
    }
    return t->thread_count > 0;
}

/* ---- segments ---- */

static uint32_t file_cost(struct mc_transport *t, struct mc_segment *segment,
                          const struct mc_peer_desc *desc) {
    return desc != NULL && desc->files != NULL ? COST : UINT32_MAX;
}

static struct file_set *swap_set(struct file_transport *t, struct mc_segment *segment,
                                 struct file_set *set) {
    pthread_mutex_lock(&t->lock);
    struct file_set *old = segment->transport_state[t->base.index];
    segment->transport_state[t->base.index] = set;
    pthread_mutex_unlock(&t->lock);
    return old;
}

static void file_open(struct mc_transport *base, struct mc_segment *segment,
                      const struct mc_peer_desc *desc) {
    struct file_transport *t = transport_of(base);
    const struct file_set *old = segment->transport_state[base->index];
    if (desc->files != NULL && (old == NULL || !set_is(old, desc->files))) {
        set_put(swap_set(t, segment, set_open(desc->files)));
    }
}

static void file_forget(struct mc_transport *base, struct mc_segment *segment) {
    set_put(swap_set(transport_of(base), segment, NULL));
}

/* ---- slices ---- */

static enum mc_status file_post(struct mc_transport *base, struct mc_slice_op **slices,
                                size_t count) {
    struct file_transport *t = transport_of(base);
    pthread_mutex_lock(&t->lock);
    struct file_set *set = slices[0]->segment->transport_state[base->index];
    if (set == NULL || !threads_up_locked(t)) {
        pthread_mutex_unlock(&t->lock);
        return set == NULL ? MC_FILE_INVALID_HANDLE : MC_ERR_LIMIT;
    }
    atomic_fetch_add_explicit(&set->refs, (uint32_t)count, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        slices[i]->transport_data[0] = (uint64_t)(uintptr_t)set;
        mc_list_push_back(&t->queue, &slices[i]->transport_link);
    }
    if (count > RING_DEPTH) {
        pthread_cond_broadcast(&t->queued);
    } else {
        pthread_cond_signal(&t->queued);
    }
    pthread_mutex_unlock(&t->lock);
    return MC_OK;
}

static bool is_running_locked(const struct file_transport *t, const void *task) {
    for (unsigned i = 0; i < THREADS; i++) {
        for (unsigned j = 0; j < RING_DEPTH; j++) {
            if (t->running[i][j] == task) {
                return true;
            }
        }
    }
    return false;
}

static void file_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct file_transport *t = transport_of(base);
    struct mc_list mine;
    mc_list_init(&mine);
    pthread_mutex_lock(&t->lock);
    for (struct mc_list *at = t->queue.next, *next; at != &t->queue; at = next) {
        next = at->next;
        if (mc_container_of(at, struct mc_slice_op, transport_link)->task == task) {
            mc_list_del(at);
            mc_list_push_back(&mine, at);
        }
    }
    while (is_running_locked(t, task)) {
        pthread_cond_wait(&t->ran, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    while (!mc_list_empty(&mine)) {
        struct mc_slice_op *slice = mc_container_of(mine.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        set_put(set_of(slice));
        mc_slice_done(slice, MC_ERR_TIMEOUT, false);
    }
}

const struct mc_transport_ops mc_transport_file_ops = {
    .name = "file",
    .slice_bytes = SLICE_BYTES,
    .start = file_start,
    .stop = file_stop,
    .cost = file_cost,
    .open = file_open,
    .post = file_post,
    .cancel = file_cancel,
    .forget = file_forget,
};

/*
 * Many file operations at once through io_uring. See io/file.h.
 *
 * A run keeps up to `depth` operations in the kernel, each in a slot. A completion names its slot
 * and the run it belongs to; an operation that moved only a part is handed in again for the rest,
 * so the end of a file is the only short read there is, and that is an error. A run ends when
 * nothing is in flight any more: the kernel never writes into a buffer whose run is over. What has
 * ended is told of after the free slots were filled again, so that the disk has work meanwhile.
 *
 * The kernel may refuse io_uring as a whole (old, or forbidden to containers) or for one file
 * system. The first makes a ring without the native part, the second sends the one operation
 * through pread/pwrite; the results are the same.
 */
#include "io/file.h"

#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"

#define DEPTH_MAX 4096
/* A submission holds 32 bits of length; a multiple of every block size. */
#define STEP_MAX (1u << 30)
/* Registered memory is cut into pieces of STEP_MAX, the most that the kernel takes as one. */
#define FIXED_PIECES 64

struct slot {
    struct mc_file_op *op;
    size_t done;
};

struct mc_file_ring {
    struct io_uring uring;
    bool native;
    unsigned depth;
    uint32_t run;        /* number of the present run, in every completion */
    unsigned free_count; /* free_slots[0 .. free_count) are not in flight */
    unsigned *free_slots;
    struct slot *slots;
    /* the present run; `ops` is NULL between runs */
    struct mc_file_op *ops;
    size_t count, next; /* ops[next ..) have not been started */
    void (*done)(void *ctx, struct mc_file_op *op);
    void *done_ctx;
    unsigned ended_count;
    struct mc_file_op **ended; /* and not told of */
    char *fixed;               /* registered memory */
    size_t fixed_bytes;
    bool fixed_tried;
};

/* ---- one operation ---- */

static enum mc_status op_failed(const struct mc_file_op *op, int error) {
    mc_warn_limited(
        "file operation failed: write=%d fd=%d offset=%llu length=%zu errno=%d reason=\"%s\"",
        op->write, op->fd, (unsigned long long)op->offset, op->len, error,
        error != 0 ? strerror(error) : "end of file");
    if (error == EFAULT || error == EINVAL) { /* with O_DIRECT: not aligned */
        return MC_FILE_INVALID_BUFFER;
    }
    if (error == EBADF) {
        return MC_FILE_INVALID_HANDLE;
    }
    return op->write || op->sync ? MC_FILE_WRITE_FAIL : MC_FILE_READ_FAIL;
}

/* The rest of an operation, without the ring. */
static void finish_in_place(struct mc_file_op *op, size_t done) {
    if (op->sync) {
        op->status = fsync(op->fd) == 0 ? MC_OK : op_failed(op, errno);
        return;
    }
    while (done < op->len) {
        char *at = (char *)op->buffer + done;
        size_t step = mc_min_u64(op->len - done, STEP_MAX);
        off_t offset = (off_t)(op->offset + done);
        ssize_t moved =
            op->write ? pwrite(op->fd, at, step, offset) : pread(op->fd, at, step, offset);
        if (moved < 0 && errno == EINTR) {
            continue;
        }
        if (moved <= 0) {
            op->status = op_failed(op, moved < 0 ? errno : 0);
            return;
        }
        done += (size_t)moved;
    }
    op->status = MC_OK;
}

/* ---- the ring ---- */

static void say_not_native(int error) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said)) {
        mc_warn("the kernel refuses io_uring, files are read and written one by one: errno=%d "
                "reason=\"%s\"",
                error, strerror(error));
    }
}

enum mc_status mc_file_ring_create(unsigned depth, struct mc_file_ring **out) {
    if (depth == 0 || depth > DEPTH_MAX) {
        return MC_INVALID_PARAMS;
    }
    struct mc_file_ring *ring = mc_zalloc(sizeof(*ring));
    int rc = io_uring_queue_init(depth, &ring->uring, IORING_SETUP_COOP_TASKRUN);
    if (rc == -EINVAL) { /* before Linux 5.19 */
        rc = io_uring_queue_init(depth, &ring->uring, 0);
    }
    ring->native = rc == 0;
    ring->depth = depth;
    ring->free_count = depth;
    ring->slots = mc_zalloc(depth * sizeof(*ring->slots));
    ring->free_slots = mc_alloc(depth * sizeof(*ring->free_slots));
    ring->ended = mc_alloc(depth * sizeof(struct mc_file_op *));
    for (unsigned i = 0; i < depth; i++) {
        ring->free_slots[i] = i;
    }
    if (!ring->native) {
        say_not_native(-rc);
    }
    *out = ring;
    return MC_OK;
}

void mc_file_ring_destroy(struct mc_file_ring *ring) {
    if (ring == NULL) {
        return;
    }
    MC_ASSERT(ring->free_count == ring->depth);
    if (ring->native) {
        io_uring_queue_exit(&ring->uring);
    }
    free(ring->ended);
    free(ring->free_slots);
    free(ring->slots);
    free(ring);
}

bool mc_file_ring_register(struct mc_file_ring *ring, void *memory, size_t bytes) {
    struct iovec pieces[FIXED_PIECES];
    unsigned count = 0;
    bool first = !ring->fixed_tried;
    ring->fixed_tried = true;
    if (!ring->native || !first || bytes > FIXED_PIECES * (size_t)STEP_MAX) {
        return false;
    }
    for (size_t at = 0; at < bytes; at += STEP_MAX) {
        pieces[count++] = (struct iovec){(char *)memory + at, mc_min_u64(bytes - at, STEP_MAX)};
    }
    int rc = io_uring_register_buffers(&ring->uring, pieces, count);
    if (rc != 0) {
        mc_info("memory is not registered for reading and writing files: bytes=%zu errno=%d "
                "reason=\"%s\"",
                bytes, -rc, strerror(-rc));
        return false;
    }
    ring->fixed = memory;
    ring->fixed_bytes = bytes;
    return true;
}

/* Which registered piece the bytes lie in; -1 = none. */
static int fixed_piece(const struct mc_file_ring *ring, const char *at, size_t bytes) {
    uintptr_t offset = (uintptr_t)at - (uintptr_t)ring->fixed; /* wraps when it lies before */
    if (ring->fixed == NULL || !mc_range_inside(offset, bytes, 0, ring->fixed_bytes) ||
        offset / STEP_MAX != (offset + bytes - 1) / STEP_MAX) {
        return -1;
    }
    return (int)(offset / STEP_MAX);
}

bool mc_file_ring_has_memory(const struct mc_file_ring *ring) {
    return ring->fixed_tried;
}

bool mc_file_ring_is_native(const struct mc_file_ring *ring) {
    return ring->native;
}

static void submit_rest(struct mc_file_ring *ring, unsigned index) {
    const struct slot *slot = &ring->slots[index];
    const struct mc_file_op *op = slot->op;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    MC_ASSERT(sqe != NULL); /* at most `depth` are queued, and the ring holds as many */
    char *at = (char *)op->buffer + slot->done;
    unsigned step = (unsigned)mc_min_u64(op->len - slot->done, STEP_MAX);
    int piece = fixed_piece(ring, at, step);
    if (op->sync) {
        io_uring_prep_fsync(sqe, op->fd, 0);
    } else if (piece >= 0 && op->write) {
        io_uring_prep_write_fixed(sqe, op->fd, at, step, op->offset + slot->done, piece);
    } else if (piece >= 0) {
        io_uring_prep_read_fixed(sqe, op->fd, at, step, op->offset + slot->done, piece);
    } else if (op->write) {
        io_uring_prep_write(sqe, op->fd, at, step, op->offset + slot->done);
    } else {
        io_uring_prep_read(sqe, op->fd, at, step, op->offset + slot->done);
    }
    io_uring_sqe_set_data64(sqe, (uint64_t)ring->run << 32 | index);
}

static void slot_start(struct mc_file_ring *ring, struct mc_file_op *op) {
    unsigned index = ring->free_slots[--ring->free_count];
    ring->slots[index] = (struct slot){op, 0};
    submit_rest(ring, index);
}

static void slot_completed(struct mc_file_ring *ring, unsigned index, int result) {
    struct slot *slot = &ring->slots[index];
    struct mc_file_op *op = slot->op;
    MC_ASSERT(op != NULL);
    if (result > 0) {
        slot->done += (size_t)result;
        MC_ASSERT(slot->done <= op->len);
    }
    bool again = result == -EINTR || (result > 0 && slot->done < op->len);
    if (again) {
        submit_rest(ring, index);
        return;
    }
    if (slot->done == op->len && result >= 0) {
        op->status = MC_OK;
    } else if (result == -EINVAL || result == -EOPNOTSUPP || result == -EAGAIN) {
        finish_in_place(
            op, slot->done); /* this file does not work with io_uring; or it really is an error */
    } else {
        op->status = op_failed(op, -result);
    }
    slot->op = NULL;
    ring->free_slots[ring->free_count++] = index;
    ring->ended[ring->ended_count++] = op;
}

static void reap(struct mc_file_ring *ring) {
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&ring->uring, &cqe) == 0) {
        uint64_t data = io_uring_cqe_get_data64(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&ring->uring, cqe);
        MC_ASSERT(data >> 32 == ring->run && (uint32_t)data < ring->depth);
        slot_completed(ring, (unsigned)data, result);
    }
}

static bool wait_one(struct mc_file_ring *ring) {
    int rc = io_uring_submit_and_wait(&ring->uring, 1);
    return rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY;
}

static bool op_is_sane(const struct mc_file_op *op) {
    return mc_range_inside(op->offset, op->len, 0, INT64_MAX) &&
           (op->len == 0 || op->buffer != NULL);
}

static void tell(struct mc_file_ring *ring, struct mc_file_op *op) {
    if (ring->done != NULL) {
        ring->done(ring->done_ctx, op);
    }
}

/* Starts operations while there are slots; those that need none end at once. */
static void fill(struct mc_file_ring *ring) {
    while (ring->next < ring->count && ring->free_count > 0) {
        struct mc_file_op *op = &ring->ops[ring->next++];
        if (op_is_sane(op) && ring->native && (op->len > 0 || op->sync)) {
            slot_start(ring, op);
            continue;
        }
        if (op_is_sane(op)) {
            finish_in_place(op, 0);
        } else {
            op->status = MC_INVALID_PARAMS;
        }
        tell(ring, op);
    }
}

static void set_run(struct mc_file_ring *ring, struct mc_file_op *ops, size_t count,
                    void (*done)(void *ctx, struct mc_file_op *op), void *ctx) {
    MC_ASSERT(ring->ops == NULL && ring->free_count == ring->depth); /* one user at a time */
    ring->run++;
    ring->ops = ops;
    ring->count = count;
    ring->next = 0;
    ring->done = done;
    ring->done_ctx = ctx;
}

void mc_file_begin(struct mc_file_ring *ring, struct mc_file_op *ops, size_t count,
                   void (*done)(void *ctx, struct mc_file_op *op), void *ctx) {
    set_run(ring, ops, count, done, ctx);
    if (ring->native) {
        fill(ring);
        (void)io_uring_submit(&ring->uring); /* what it does not take now, finish hands in */
    }
}

enum mc_status mc_file_finish(struct mc_file_ring *ring) {
    const struct mc_file_op *ops = ring->ops;
    while (ring->next < ring->count || ring->free_count < ring->depth) {
        fill(ring);
        if (ring->free_count < ring->depth) {
            /* Else the kernel would keep buffers that the caller gets back. */
            MC_ASSERT(wait_one(ring));
            reap(ring);
            fill(ring);
            (void)io_uring_submit(&ring->uring); /* the wait above hands in the rest */
        }
        for (unsigned i = 0; i < ring->ended_count; i++) {
            tell(ring, ring->ended[i]);
        }
        ring->ended_count = 0;
    }
    ring->ops = NULL;
    for (size_t i = 0; i < ring->count; i++) {
        MC_TRY(ops[i].status);
    }
    return MC_OK;
}

enum mc_status mc_file_run_each(struct mc_file_ring *ring, struct mc_file_op *ops, size_t count,
                                void (*done)(void *ctx, struct mc_file_op *op), void *ctx) {
    set_run(ring, ops, count, done, ctx);
    return mc_file_finish(ring);
}

enum mc_status mc_file_run(struct mc_file_ring *ring, struct mc_file_op *ops, size_t count) {
    return mc_file_run_each(ring, ops, count, NULL, NULL);
}

/*
 * Files by io_uring, with a fall-back to pread/pwrite where the kernel refuses io_uring (said once
 * in the log). Whole transfers only: a short read is an error, never a shorter result.
 */
#ifndef MC_IO_FILE_H
#define MC_IO_FILE_H

#include "base/base.h"

struct mc_file_ring; /* one submission/completion ring; one user at a time */

struct mc_file_op {
    bool write;
    int fd;
    void *buffer;
    size_t len;
    uint64_t offset;
    enum mc_status status; /* set by mc_file_run: each operation has its own */
    bool sync;             /* fsync(fd), and none of the rest */
};

/* depth: 1..4096. */
MC_MUST_USE enum mc_status mc_file_ring_create(unsigned depth, struct mc_file_ring **out);
void mc_file_ring_destroy(struct mc_file_ring *ring);
/* Runs all operations, `depth` at a time, in no order, and waits for all; returns the first failure
 * in the order of `ops`. MC_FILE_READ_FAIL (the end of the file too), MC_FILE_WRITE_FAIL,
 * MC_FILE_INVALID_BUFFER (not mapped, or not aligned for O_DIRECT), MC_FILE_INVALID_HANDLE,
 * MC_INVALID_PARAMS. */
MC_MUST_USE enum mc_status mc_file_run(struct mc_file_ring *ring, struct mc_file_op *ops,
                                       size_t count);
/* The same in two steps, between which the disk works and the caller may: begin hands in the first
 * `depth`, finish the others and waits for all. `done`, which may be NULL, is called in finish for
 * each operation as it ends, while others are under way. The operations and their memory belong to
 * the ring from begin to the end of finish. */
void mc_file_begin(struct mc_file_ring *ring, struct mc_file_op *ops, size_t count,
                   void (*done)(void *ctx, struct mc_file_op *op), void *ctx);
/* Both in one, for who has nothing to do in between: one system call less. */
MC_MUST_USE enum mc_status mc_file_run_each(struct mc_file_ring *ring, struct mc_file_op *ops,
                                            size_t count,
                                            void (*done)(void *ctx, struct mc_file_op *op),
                                            void *ctx);
MC_MUST_USE enum mc_status mc_file_finish(struct mc_file_ring *ring);
/* Memory that operations will use again and again: the kernel keeps its pages at hand. Costs time
 * and locked memory (RLIMIT_MEMLOCK); once a ring. False when the kernel refuses: all goes on as
 * before. The memory must outlive the ring. */
bool mc_file_ring_register(struct mc_file_ring *ring, void *memory, size_t bytes);
bool mc_file_ring_has_memory(const struct mc_file_ring *ring); /* or was refused it */
bool mc_file_ring_is_native(const struct mc_file_ring *ring);

/* Opens with O_DIRECT when asked and possible (*direct says whether); close-on-exec; new files get
 * mode 0644. MC_FILE_NOT_FOUND is an answer and not logged, MC_FILE_OPEN_FAIL is. */
MC_MUST_USE enum mc_status mc_file_open(const char *path, int flags, bool want_direct, int *fd,
                                        bool *direct);
/* Reads a whole small file into `out` (cleared first). MC_FILE_NOT_FOUND; MC_ERR_LIMIT when it is
 * larger than max_bytes. */
MC_MUST_USE enum mc_status mc_file_read_all(const char *path, size_t max_bytes, struct mc_buf *out);
/* Writes path.tmp.<pid>.<tid>, fsyncs, renames, fsyncs the directory: after a crash the file is the
 * old or the new one. */
MC_MUST_USE enum mc_status mc_file_replace(const char *path, struct mc_str content);
/* What was renamed to, or unlinked from, the directory that `path` lies in stays so after a crash.
 * MC_FILE_WRITE_FAIL, logged. */
MC_MUST_USE enum mc_status mc_file_sync_names(const char *path);

#endif

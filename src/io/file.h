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

#endif

/*
 * NVMe passthrough. See io/nvme.h.
 *
 * A queue is an io_uring of the large kind: submissions of 128 bytes, which hold a whole command,
 * and completions of 32, which hold its result. The kernel may have no such rings, or the device no
 * io_uring commands (a block device, an old driver). Both make the whole device go by ioctl from
 * then on; the command that met it is run again that way.
 */
#include "io/nvme.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"

#define QUEUES    4u
#define DEPTH_MAX 4096u

struct mc_nvme {
    char *path;
    int fd;
    uint32_t nsid;
    unsigned depth;
    _Atomic bool uring;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t given;
    struct io_uring queues[QUEUES];
    bool made[QUEUES], taken[QUEUES];
};

_Static_assert(sizeof(struct nvme_uring_cmd) <= 80, "a command fits a large submission");
_Static_assert(offsetof(struct nvme_uring_cmd, rsvd2) == offsetof(struct nvme_passthru_cmd, result),
               "both ways take the same fields at the same places");

/* ---- by ioctl ---- */

/* As the kernel has it: what io_uring takes begins like what ioctl takes. */
static struct nvme_passthru_cmd raw_command(const struct mc_nvme *nvme,
                                            const struct mc_nvme_command *command) {
    return (struct nvme_passthru_cmd){.opcode = command->opcode,
                                      .nsid = nvme->nsid,
                                      .cdw2 = command->cdw2,
                                      .cdw3 = command->cdw3,
                                      .addr = (uintptr_t)command->buffer,
                                      .data_len = command->len,
                                      .cdw10 = command->cdw10,
                                      .cdw11 = command->cdw11,
                                      .cdw14 = command->cdw14,
                                      .cdw15 = command->cdw15};
}

static void run_by_ioctl(struct mc_nvme *nvme, struct mc_nvme_command *command) {
    struct nvme_passthru_cmd raw = raw_command(nvme, command);
    int rc;
    do {
        rc = ioctl(nvme->fd, NVME_IOCTL_IO_CMD, &raw);
    } while (rc < 0 && errno == EINTR);
    command->status = rc < 0 ? MC_NVME_NOT_COMPLETED : rc & MC_NVME_STATUS_MASK;
    command->error = rc < 0 ? errno : 0;
    command->result = raw.result;
}

/* ---- through io_uring ---- */

static void go_by_ioctl(struct mc_nvme *nvme, int error) {
    if (atomic_exchange_explicit(&nvme->uring, false, memory_order_relaxed)) {
        mc_warn("NVMe commands go by ioctl, one after the other: path=%s errno=%d reason=\"%s\"",
                nvme->path, error, strerror(error));
    }
}

static void submit(struct mc_nvme *nvme, struct io_uring *queue,
                   const struct mc_nvme_command *command, uint64_t number) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(queue);
    MC_ASSERT(sqe != NULL); /* at most `depth` are under way, and the ring holds as many */
    memset(sqe, 0, 2 * sizeof(*sqe));
    sqe->opcode = IORING_OP_URING_CMD;
    sqe->fd = nvme->fd;
    sqe->cmd_op = NVME_URING_CMD_IO;
    sqe->user_data = number;
    struct nvme_passthru_cmd raw = raw_command(nvme, command);
    memcpy(sqe->cmd, &raw, offsetof(struct nvme_passthru_cmd, result));
}

static void completed(struct mc_nvme *nvme, struct mc_nvme_command *command,
                      const struct io_uring_cqe *cqe) {
    if (cqe->res == -EOPNOTSUPP || cqe->res == -ENOTTY || cqe->res == -EINVAL) {
        go_by_ioctl(nvme, -cqe->res); /* or it really is an error, which ioctl says, too */
        run_by_ioctl(nvme, command);
        return;
    }
    command->status = cqe->res < 0 ? MC_NVME_NOT_COMPLETED : cqe->res & MC_NVME_STATUS_MASK;
    command->error = cqe->res < 0 ? -cqe->res : 0;
    command->result = (uint32_t)cqe->big_cqe[0];
}

static void run_by_uring(struct mc_nvme *nvme, struct io_uring *queue,
                         struct mc_nvme_command *commands, size_t count) {
    size_t next = 0, under_way = 0;
    while (next < count || under_way > 0) {
        for (; next < count && under_way < nvme->depth; next++, under_way++) {
            submit(nvme, queue, &commands[next], next);
        }
        int rc = io_uring_submit_and_wait(queue, 1);
        /* else the device would write into memory that the caller gets back */
        MC_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(queue, &cqe) == 0) {
            MC_ASSERT(cqe->user_data < count && under_way > 0);
            completed(nvme, &commands[cqe->user_data], cqe);
            io_uring_cqe_seen(queue, cqe);
            under_way--;
        }
    }
}

/* A queue that nobody has; NULL when it cannot be made. */
static struct io_uring *take_queue(struct mc_nvme *nvme) {
    unsigned i = 0;
    pthread_mutex_lock(&nvme->lock);
    for (;;) {
        for (i = 0; i < QUEUES && nvme->taken[i]; i++) {
        }
        if (i < QUEUES) {
            break;
        }
        pthread_cond_wait(&nvme->given, &nvme->lock);
    }
    nvme->taken[i] = true;
    if (!nvme->made[i]) {
        struct io_uring_params params = {.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32};
        int rc = io_uring_queue_init_params(nvme->depth, &nvme->queues[i], &params);
        nvme->made[i] = rc == 0;
        nvme->taken[i] = rc == 0;
        if (rc != 0) {
            go_by_ioctl(nvme, -rc);
        }
    }
    struct io_uring *queue = nvme->taken[i] ? &nvme->queues[i] : NULL;
    pthread_mutex_unlock(&nvme->lock);
    return queue;
}

static void give_queue(struct mc_nvme *nvme, const struct io_uring *queue) {
    pthread_mutex_lock(&nvme->lock);
    nvme->taken[queue - nvme->queues] = false;
    pthread_cond_signal(&nvme->given);
    pthread_mutex_unlock(&nvme->lock);
}

void mc_nvme_run(struct mc_nvme *nvme, struct mc_nvme_command *commands, size_t count) {
    struct io_uring *queue = NULL;
    if (count > 0 && atomic_load_explicit(&nvme->uring, memory_order_relaxed)) {
        queue = take_queue(nvme);
    }
    if (queue != NULL) {
        run_by_uring(nvme, queue, commands, count);
        give_queue(nvme, queue);
    }
    for (size_t i = 0; i < count; i++) {
        if (queue == NULL) {
            run_by_ioctl(nvme, &commands[i]);
        }
        if (commands[i].status == MC_NVME_NOT_COMPLETED) {
            mc_warn_limited("an NVMe command was refused: path=%s opcode=0x%02x errno=%d "
                            "reason=\"%s\"",
                            nvme->path, commands[i].opcode, commands[i].error,
                            strerror(commands[i].error));
        }
    }
}

/* ---- life ---- */

enum mc_status mc_nvme_open(const char *path, uint32_t nsid, unsigned depth, enum mc_nvme_road road,
                            struct mc_nvme **out) {
    if (depth == 0 || depth > DEPTH_MAX) {
        return MC_INVALID_PARAMS;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        mc_error("an NVMe device cannot be opened: path=%s errno=%d reason=\"%s\"", path, error,
                 strerror(error));
        return error == ENOENT ? MC_FILE_NOT_FOUND : MC_FILE_OPEN_FAIL;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        mc_error("another process has the NVMe device: path=%s", path);
        close(fd);
        return MC_UNAVAILABLE_IN_CURRENT_STATUS;
    }
    struct mc_nvme *nvme = mc_zalloc(sizeof(*nvme));
    nvme->path = mc_strdup(path);
    nvme->fd = fd;
    nvme->nsid = nsid;
    nvme->depth = depth;
    atomic_init(&nvme->uring, road != MC_NVME_IOCTL);
    pthread_mutex_init(&nvme->lock, NULL);
    pthread_cond_init(&nvme->given, NULL);
    *out = nvme;
    return MC_OK;
}

void mc_nvme_close(struct mc_nvme *nvme) {
    if (nvme == NULL) {
        return;
    }
    for (unsigned i = 0; i < QUEUES; i++) {
        MC_ASSERT(!nvme->taken[i]);
        if (nvme->made[i]) {
            io_uring_queue_exit(&nvme->queues[i]);
        }
    }
    pthread_cond_destroy(&nvme->given);
    pthread_mutex_destroy(&nvme->lock);
    close(nvme->fd);
    free(nvme->path);
    free(nvme);
}

bool mc_nvme_uses_uring(const struct mc_nvme *nvme) {
    return atomic_load_explicit(&nvme->uring, memory_order_relaxed);
}

/*
 * NVMe commands handed to a namespace as they are: through io_uring where the kernel does that
 * (Linux 5.19, a generic character device /dev/ngXnY), else by ioctl(2), one after the other; which
 * of the two is said once in the log. What the commands mean is the caller's affair.
 *
 * Thread safe: each run takes a queue of its own, and waits for one when all are taken.
 */
#ifndef MC_IO_NVME_H
#define MC_IO_NVME_H

#include "base/base.h"

/* Of a completion: status code and status code type, as the specification numbers them. */
#define MC_NVME_OK            0x000
#define MC_NVME_CAPACITY      0x081
#define MC_NVME_VALUE_SIZE    0x085
#define MC_NVME_KEY_SIZE      0x086
#define MC_NVME_NO_SUCH_KEY   0x087
#define MC_NVME_STATUS_MASK   0x7ff /* without the bits More and Do Not Retry */
#define MC_NVME_NOT_COMPLETED (-1)  /* the kernel refused the command; `error` says why */

struct mc_nvme_command {
    uint8_t opcode;
    uint32_t cdw2, cdw3, cdw10, cdw11, cdw14, cdw15;
    void *buffer; /* NULL = no data */
    uint32_t len;
    /* Set by mc_nvme_run. */
    int status;      /* MC_NVME_... */
    int error;       /* errno, of MC_NVME_NOT_COMPLETED */
    uint32_t result; /* dword 0 of the completion */
};

enum mc_nvme_road { MC_NVME_AUTO, MC_NVME_IOCTL };

struct mc_nvme;
/* depth: 1..4096 commands under way at once, of each run. The device is locked: MC_FILE_NOT_FOUND,
 * MC_FILE_OPEN_FAIL, MC_UNAVAILABLE_IN_CURRENT_STATUS (another process has it). */
MC_MUST_USE enum mc_status mc_nvme_open(const char *path, uint32_t nsid, unsigned depth,
                                        enum mc_nvme_road road, struct mc_nvme **out);
void mc_nvme_close(struct mc_nvme *nvme); /* NULL is allowed; no run is under way */
bool mc_nvme_uses_uring(const struct mc_nvme *nvme);
/* Runs all commands, in no order, and waits for all. Each has its own status; what the kernel
 * refused is logged. */
void mc_nvme_run(struct mc_nvme *nvme, struct mc_nvme_command *commands, size_t count);

#endif

/*
 * disk: the SSD of a simulated node, below libc.
 *
 * The tier's code is linked with its file calls wrapped (ld --wrap, tests.cmake): paths below
 * SIM_DISK_ROOT and the descriptors of files there are served here, all others by the kernel. So
 * the code that runs is the real one, whichever calls a backend uses; io_uring is refused, and
 * files go through pread and pwrite.
 *
 * What a crash leaves: a process that dies leaves all that it wrote. When the power goes, a sector
 * that was not synced is there or not, each by itself, and of the names that were made, changed or
 * deleted since their directory was synced the first few remain. Reads, writes and syncs fail now
 * and then (a failed sync has made nothing durable), the disk fills up, and at rest a bit may turn.
 */
#ifndef MC_TESTS_SIM_DISK_H
#define MC_TESTS_SIM_DISK_H

#include "base/base.h"

#define SIM_DISK_ROOT   "/sim-disk/"
#define SIM_DISK_BLOCK  4096u
#define SIM_DISK_SECTOR 512u
/* Below a disk's root: a device file, and what the namespace behind it holds (disk_nvme.c). */
#define SIM_DISK_DEVICE "/ng0n1"
#define SIM_DISK_KV     "/kv"

struct sim_disk_faults { /* rates in 1/10,000 of an operation */
    unsigned read, write, sync;
};
struct sim_disk_counts {
    uint64_t reads, writes, syncs, errors, full, sectors_lost, names_lost, bits_turned;
};

struct sim_disk;
/* The directory `root`, SIM_DISK_ROOT and a name; statvfs(2) shows a disk of `seen_bytes`, which a
 * quota may make smaller; `on_cut(ctx)` is called, in the middle of an
 * operation, when the power goes by itself. */
struct sim_disk *sim_disk_make(const char *root, struct mc_rng *rng, uint64_t capacity_bytes,
                               uint64_t seen_bytes, void (*on_cut)(void *ctx), void *ctx);
void sim_disk_free(struct sim_disk *disk); /* nothing of it is open */

void sim_disk_set_faults(struct sim_disk *disk, struct sim_disk_faults faults);
/* Before a name is looked up, changed or deleted the caller waits in `pause`, while others go on;
 * false: it is dead. For a file system that many use. */
void sim_disk_set_pause(struct sim_disk *disk, bool (*pause)(void *ctx), void *ctx);
/* While quiet, operations do not fail, take no time and do not count. */
void sim_disk_quiet(struct sim_disk *disk, bool quiet);
/* The power goes in the `operations`-th operation from now on; 0 = it stays. From then on all fail
 * and change nothing, until sim_disk_crash. */
void sim_disk_cut_after(struct sim_disk *disk, unsigned operations);
/* The process that used it is dead. `power`: what was not synced may be lost. */
void sim_disk_crash(struct sim_disk *disk, bool power);
/* Wrong on purpose: what is already described by a .meta file is described so for ever. */
void sim_disk_keep_meta(struct sim_disk *disk);
/* Turns a bit at rest, one in the disk's life (a second one may turn what would reveal the first);
 * false when there is none to turn. */
bool sim_disk_turn_bit(struct sim_disk *disk);

/* Somebody deletes a file, or cuts off its last byte, at rest; what was done, or NULL: there is
 * none.
 */
const char *sim_disk_lose_file(struct sim_disk *disk);
/* There is a file of that name. */
bool sim_disk_has(const struct sim_disk *disk, struct mc_str path);

const struct sim_disk_counts *sim_disk_counts(const struct sim_disk *disk);
/* Time that the operations since the last question take. */
uint64_t sim_disk_busy_ns(struct sim_disk *disk);

#endif

/*
 * qos_host: engines of one host that keep out of each other's way.
 *
 * A page of shared memory holds one entry a process: how many urgent bytes it has on the way.
 * Engines that move bytes of lower priority look there and keep back while others have some. It is
 * advice and nothing depends on it: entries of processes that died (by pid and start time) or that
 * were not renewed for a second are ignored, a page that cannot be opened is done without.
 */
#ifndef MC_TE_QOS_HOST_H
#define MC_TE_QOS_HOST_H

#include "base/base.h"

#define MC_QOS_HOST_ENTRIES  254
#define MC_QOS_HOST_STALE_NS MC_SEC
#define MC_QOS_HOST_LOOK_NS  (1 * MC_MS) /* what others do is looked up so often */

struct mc_qos_host;

/* Opens or makes the page at `path` (of this user alone) and takes an entry in it. MC_ERR_IO,
 * MC_ERR_LIMIT when the page is full, MC_ERR_PROTOCOL when the file is something else. */
MC_MUST_USE enum mc_status mc_qos_host_open(const char *path, struct mc_qos_host **out);
void mc_qos_host_close(struct mc_qos_host *h); /* NULL is allowed */

/* Tells how many urgent bytes this process has on the way. Times are of CLOCK_MONOTONIC, which all
 * processes of a host share. */
void mc_qos_host_publish(struct mc_qos_host *h, uint64_t bytes, uint64_t now_ns);
/* Whether the entry must be written again: `bytes` has become zero or ceased to be, or it grows
 * old. */
bool mc_qos_host_due(const struct mc_qos_host *h, uint64_t bytes, uint64_t now_ns);
/* Urgent bytes of all others, as of at most MC_QOS_HOST_LOOK_NS ago. */
uint64_t mc_qos_host_others(struct mc_qos_host *h, uint64_t now_ns);

#endif

/* Threads for jobs that wait for peers; of the engine, and of transports that set up connections.
 */
#ifndef MC_TE_WORKER_H
#define MC_TE_WORKER_H

#include "base/base.h"

#define MC_WORKERS_MAX 8

struct mc_job {
    struct mc_job *next;
    void (*run)(struct mc_job *job);
};
struct mc_workers;
/* Starts the first thread. MC_ERR_LIMIT. */
MC_MUST_USE enum mc_status mc_workers_create(struct mc_workers **out);
/* Runs what is queued, then ends the threads. NULL is allowed. */
void mc_workers_destroy(struct mc_workers *w);
/* One queueing of a job at a time. A new thread is started when all are busy, up to MC_WORKERS_MAX,
 * so that one peer that does not answer does not delay the others. */
void mc_workers_submit(struct mc_workers *w, struct mc_job *job);

#endif

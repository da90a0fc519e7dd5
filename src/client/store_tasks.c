/*
 * The worker of a store: once a second, and sooner while there is something to do, it asks the
 * master for tasks and carries them out (client/ops_replicate.c), on a thread of its own, because
 * they take as long as their bytes do and pings must not wait. A store that lends nothing is not
 * asked to do anything, and does not ask. Where the clients share a file system it also deletes
 * files of objects that are gone.
 */
#include "client/store_private.h"

#include "base/log.h"
#include "base/thread.h"

#define FETCH_PERIOD_NS (1 * MC_SEC)
#define BUSY_PERIOD_NS  (10 * MC_MS) /* a drain gives the next tasks when it has seen these end */
#define BUSY_ROUNDS     20           /* without a task, before the long period again */

static bool stopping(void *ctx) {
    struct mc_store *store = ctx;
    pthread_mutex_lock(&store->lock);
    bool stop = store->stopping;
    pthread_mutex_unlock(&store->lock);
    return stop;
}

static bool lends(struct mc_store *store) {
    pthread_mutex_lock(&store->segments_lock);
    bool any = store->node.segment_count > 0;
    pthread_mutex_unlock(&store->segments_lock);
    return any;
}

/* False when the store is closing. */
static bool sleep_for(struct mc_store *store, uint64_t ns) {
    uint64_t until = mc_now_ns(mc_clock_system()) + ns;
    struct timespec wait = {(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
    pthread_mutex_lock(&store->lock);
    while (!store->stopping && mc_now_ns(mc_clock_system()) < until) {
        pthread_cond_timedwait(&store->worker_wake, &store->lock, &wait);
    }
    bool going_on = !store->stopping;
    pthread_mutex_unlock(&store->lock);
    return going_on;
}

static void *worker_main(void *arg) {
    struct mc_store *store = arg;
    unsigned idle = BUSY_ROUNDS;
    while (sleep_for(store, idle < BUSY_ROUNDS ? BUSY_PERIOD_NS : FETCH_PERIOD_NS)) {
        size_t done = 0;
        if (lends(store) && mc_ops_run_tasks(store->ops, stopping, store, &done) != MC_OK) {
            idle =
                BUSY_ROUNDS; /* a master that does not answer is the heartbeat's to complain of */
            continue;
        }
        done += mc_ops_tidy_files(store->ops);
        idle = done > 0 ? 0 : mc_min_u64(idle + 1, BUSY_ROUNDS);
    }
    return NULL;
}

enum mc_status mc_store_worker_start(struct mc_store *store) {
    int error = mc_thread_start(&store->worker, "mc-tasks", worker_main, store);
    if (error != 0) {
        mc_error("the thread for tasks could not be started: errno=%d", error);
        return MC_INTERNAL_ERROR;
    }
    store->worker_runs = true;
    return MC_OK;
}

void mc_store_worker_join(struct mc_store *store) {
    if (store->worker_runs) {
        pthread_join(store->worker, NULL);
        store->worker_runs = false;
    }
}

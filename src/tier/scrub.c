/*
 * The scrubber: reads what the tier holds, object by object, so that what the disk has lost is
 * found before somebody wants it. See tier/tier.h.
 *
 * It walks the index with a cursor, holds no lock while it reads, and uses no object up: the order
 * of eviction does not hear of its reads. Between objects it waits as long as its rate asks, and
 * its thread has the disk's idle class where the kernel's scheduler knows one.
 */
#include "tier/scrub.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_CLASS_IDLE  (3 << 13)
#define IDLE_WAIT_NS       (1 * MC_SEC) /* after a round, or when nothing is there */

struct mc_tier_scrubber {
    struct mc_tier_backend *backend;
    uint64_t bytes_per_second;
    pthread_t thread;
    _Atomic uint64_t objects, bytes, rounds; /* relaxed: numbers for people */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    bool stopping;
};

/* ---- one object ---- */

struct walk {
    uint64_t cursor;
    struct mc_buf key;
    char *room;
    uint64_t room_bytes;
};

/* Reads the next object; false at the end of a round. */
static bool step(struct mc_tier_backend *backend, struct walk *walk, uint64_t *bytes) {
    uint64_t size;
    mc_buf_clear(&walk->key);
    if (!mc_tier_backend_next(backend, &walk->cursor, &walk->key, &size)) {
        return false;
    }
    uint64_t wanted = mc_tier_read_room(walk->key.len, size);
    if (wanted > walk->room_bytes) {
        free(walk->room);
        walk->room = aligned_alloc(MC_TIER_BLOCK, wanted);
        MC_ASSERT(walk->room != NULL);
        walk->room_bytes = wanted;
    }
    struct mc_tier_read read = {
        .key = {walk->key.data, walk->key.len}, .size = size, .room = walk->room, .unused = true};
    backend->ops->read(backend, &read, 1); /* says, counts and forgets what is broken */
    *bytes = size;
    return true;
}

static void walk_end(struct walk *walk) {
    mc_buf_free(&walk->key);
    free(walk->room);
}

void mc_tier_scrub_once(struct mc_tier_backend *backend) {
    struct walk walk = {0};
    uint64_t bytes;
    while (step(backend, &walk, &bytes)) {
    }
    walk_end(&walk);
}

/* ---- the thread ---- */

/* False when it is time to end. */
static bool wait_for(struct mc_tier_scrubber *s, uint64_t ns) {
    uint64_t until = mc_now_ns(mc_clock_system()) + ns;
    struct timespec at = {(time_t)(until / MC_SEC), (long)(until % MC_SEC)};
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && mc_now_ns(mc_clock_system()) < until) {
        pthread_cond_timedwait(&s->wake, &s->lock, &at);
    }
    bool going_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return going_on;
}

static void *scrub_main(void *arg) {
    struct mc_tier_scrubber *s = arg;
    struct walk walk = {0};
    uint64_t bytes, ns;
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE);
    do {
        if (step(s->backend, &walk, &bytes)) {
            atomic_fetch_add_explicit(&s->objects, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&s->bytes, bytes, memory_order_relaxed);
            ns = (uint64_t)((double)bytes / (double)s->bytes_per_second * (double)MC_SEC);
        } else {
            atomic_fetch_add_explicit(&s->rounds, 1, memory_order_relaxed);
            ns = IDLE_WAIT_NS;
        }
    } while (wait_for(s, ns));
    walk_end(&walk);
    return NULL;
}

struct mc_tier_scrubber *mc_tier_scrub_start(struct mc_tier_backend *backend,
                                             uint64_t bytes_per_second) {
    struct mc_tier_scrubber *s = mc_zalloc(sizeof(*s));
    pthread_condattr_t attributes;
    s->backend = backend;
    s->bytes_per_second = bytes_per_second;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = mc_thread_start(&s->thread, "mc-scrub", scrub_main, s);
    if (error != 0) {
        mc_warn("the SSD tier is not scrubbed, its thread could not be started: errno=%d", error);
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return NULL;
    }
    return s;
}

void mc_tier_scrub_stop(struct mc_tier_scrubber *s) {
    if (s == NULL) {
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void mc_tier_scrub_stats(const struct mc_tier_scrubber *s, struct mc_tier_stats *out) {
    if (s != NULL) {
        out->scrubbed_objects = atomic_load_explicit(&s->objects, memory_order_relaxed);
        out->scrubbed_bytes = atomic_load_explicit(&s->bytes, memory_order_relaxed);
        out->scrub_rounds = atomic_load_explicit(&s->rounds, memory_order_relaxed);
    }
}

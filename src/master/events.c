/*
 * The publisher of KV events. See master/events.h.
 *
 * The queue is a ring of records under a lock that is held for a few stores; the thread sleeps in
 * zmq_poll on the replay socket and on an eventfd, which is written only when the queue was empty.
 * A batch is encoded once, into memory with a count of its users: the ring of batches for replay
 * and, without copying, every subscriber's pipe.
 */
#include "master/events.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "io/zmq.h"
#include "master/lock.h"
#include "wire/kv_event.h"

#define BATCH_EVENTS   256u
#define PIPE_BATCHES   10000 /* a subscriber may be so far behind */
#define LINGER_MS      500
#define REPLAYS_A_TURN 4u /* answered between two looks at the queue */
#define ENDPOINT_MAX   512u
#define QUEUE_FIRST    256u
#define REQUEST_FRAMES 3u /* who asks, empty, sequence number */
#define END_OF_REPLAY  UINT64_MAX

struct waiting { /* an event in the queue; tenant, group and key behind it */
    uint64_t id;
    uint8_t kind, medium;
    uint32_t tenant_len, group_len, key_len;
    char bytes[];
};

struct batch {
    _Atomic uint32_t users;
    uint64_t sequence;
    size_t len;
    uint8_t bytes[];
};

struct mc_events {
    struct mc_events_config config;
    struct mw_kv_format format;
    const struct mc_zmq *zmq;
    void *context, *publisher, *replay; /* replay may be NULL */
    char endpoint[ENDPOINT_MAX], replay_endpoint[ENDPOINT_MAX];
    char *backend_id;
    int wake_fd;
    pthread_t thread;
    struct mc_metrics *metrics;

    struct mc_lock lock; /* the queue: */
    struct waiting **queue;
    size_t head, count, cap; /* a ring; cap is a power of two */
    uint64_t next_id;
    uint64_t dropped_since; /* the last batch was taken */
    bool stopping;

    /* the thread's own: */
    uint64_t next_sequence;
    struct batch **kept; /* a ring, the oldest at kept_head */
    size_t kept_head, kept_count;
    uint64_t kept_bytes;
    struct mc_buf payload;

    struct mc_metric published_batches, published_events, dropped, skipped, waiting, replays,
        replayed, refused;
};

/* ---- the queue ---- */

static struct waiting *record_of(const struct mc_object_event *event) {
    struct waiting *w =
        mc_alloc(sizeof(*w) + event->tenant.len + event->group.len + event->key.len);
    *w = (struct waiting){.kind = event->removed ? MW_KV_REMOVED : MW_KV_STORED,
                          .medium = event->on_disk ? MW_KV_DISK : MW_KV_CPU,
                          .tenant_len = (uint32_t)event->tenant.len,
                          .group_len = (uint32_t)event->group.len,
                          .key_len = (uint32_t)event->key.len};
    char *at = w->bytes;
    const struct mc_str parts[] = {event->tenant, event->group, event->key};
    for (size_t i = 0; i < MC_ARRAY_LEN(parts); i++) {
        if (parts[i].len) {
            memcpy(at, parts[i].ptr, parts[i].len);
        }
        at += parts[i].len;
    }
    return w;
}

static void queue_grow_locked(struct mc_events *e) {
    size_t cap = e->cap ? e->cap * 2 : QUEUE_FIRST;
    struct waiting **queue = mc_alloc(cap * sizeof(struct waiting *));
    for (size_t i = 0; i < e->count; i++) {
        queue[i] = e->queue[(e->head + i) & (e->cap - 1)];
    }
    free(e->queue);
    e->queue = queue;
    e->head = 0;
    e->cap = cap;
}

static struct waiting *queue_pop_locked(struct mc_events *e) {
    struct waiting *w = e->queue[e->head];
    e->head = (e->head + 1) & (e->cap - 1);
    e->count--;
    return w;
}

static void wake(struct mc_events *e) {
    uint64_t one = 1;
    while (write(e->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

void mc_events_push(void *events, const struct mc_object_event *event) {
    struct mc_events *e = events;
    struct waiting *oldest = NULL;
    uint64_t hash;
    if (!e->config.object_key && !mw_kv_key_hash(event->key, &hash)) {
        mc_metric_add(&e->skipped, 1); /* nothing would say which object it was */
        return;
    }
    struct waiting *w = record_of(event);
    mc_lock_acquire(&e->lock);
    w->id = e->next_id++;
    if (e->config.queue_capacity && e->count >= e->config.queue_capacity) {
        oldest = queue_pop_locked(e);
        e->dropped_since++;
    } else if (e->count == e->cap) {
        queue_grow_locked(e);
    }
    bool was_empty = e->count == 0;
    e->queue[(e->head + e->count++) & (e->cap - 1)] = w;
    mc_metric_set(&e->waiting, (int64_t)e->count);
    mc_lock_release(&e->lock);
    if (oldest) {
        mc_metric_add(&e->dropped, 1);
        free(oldest);
    }
    if (was_empty) {
        wake(e);
    }
}

/* ---- batches ---- */

static void batch_drop(void *bytes, void *hint) { /* a zmq_free_fn */
    struct batch *b = hint;
    /* release: whoever frees sees that the others have finished reading; acquire: pairs with it */
    if (atomic_fetch_sub_explicit(&b->users, 1, memory_order_acq_rel) == 1) {
        free(b);
    }
}

static void keep(struct mc_events *e, struct batch *b) {
    if (!e->replay) {
        batch_drop(NULL, b);
        return;
    }
    while (e->kept_count && (e->kept_count == e->config.replay_batches ||
                             e->kept_bytes + b->len > e->config.replay_bytes)) {
        struct batch *old = e->kept[e->kept_head];
        e->kept_head = (e->kept_head + 1) % e->config.replay_batches;
        e->kept_count--;
        e->kept_bytes -= old->len;
        batch_drop(NULL, old);
    }
    e->kept[(e->kept_head + e->kept_count++) % e->config.replay_batches] = b;
    e->kept_bytes += b->len;
}

static bool send_part(struct mc_events *e, void *socket, const void *bytes, size_t len, int flags) {
    return e->zmq->send(socket, bytes, len, flags | ZMQ_DONTWAIT) >= 0;
}

/* The last two frames: sequence number and payload, which is not copied. */
static bool send_batch(struct mc_events *e, void *socket, struct batch *b) {
    uint8_t sequence[MW_KV_SEQUENCE_BYTES];
    zmq_msg_t msg;
    mw_kv_sequence_put(sequence, b->sequence);
    if (!send_part(e, socket, sequence, sizeof(sequence), ZMQ_SNDMORE)) {
        return false;
    }
    atomic_fetch_add_explicit(&b->users, 1, memory_order_relaxed); /* ours keeps it alive */
    if (e->zmq->msg_init_data(&msg, b->bytes, b->len, batch_drop, b) != 0) {
        batch_drop(NULL, b);
        return false;
    }
    if (e->zmq->msg_send(&msg, socket, ZMQ_DONTWAIT) < 0) {
        e->zmq->msg_close(&msg);
        return false;
    }
    return true;
}

static void publish(struct mc_events *e, struct waiting **events, size_t count) {
    uint64_t time_ms = mc_clock_system()->wall_ms(mc_clock_system());
    mc_buf_clear(&e->payload);
    mw_kv_batch_begin(&e->payload, time_ms, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        const struct waiting *w = events[i];
        const char *group = w->bytes + w->tenant_len, *key = group + w->group_len;
        mw_kv_event_put(&e->payload, &e->format, time_ms,
                        &(struct mw_kv_event){.id = w->id,
                                              .kind = w->kind,
                                              .medium = w->medium,
                                              .tenant = {w->bytes, w->tenant_len},
                                              .group = {group, w->group_len},
                                              .key = {key, w->key_len}});
        free(events[i]);
    }
    mw_kv_batch_end(&e->payload);
    struct batch *b = mc_alloc(sizeof(*b) + e->payload.len);
    atomic_init(&b->users, 1);
    b->sequence = e->next_sequence++;
    b->len = e->payload.len;
    memcpy(b->bytes, e->payload.data, b->len);
    /* A publisher's socket takes everything and leaves out those who are too far behind. */
    if (send_part(e, e->publisher, "", 0, ZMQ_SNDMORE) && send_batch(e, e->publisher, b)) {
        mc_metric_add(&e->published_events, (int64_t)count);
        mc_metric_add(&e->published_batches, 1); /* the last: who sees it sees the events */
    } else {
        mc_metric_add(&e->dropped, (int64_t)count);
        mc_warn("kv events: a batch was not published sequence=%llu reason=\"%s\"",
                (unsigned long long)b->sequence, e->zmq->strerror(errno));
    }
    keep(e, b);
}

/* Publishes one batch; false when nothing waits. */
static bool publish_waiting(struct mc_events *e) {
    struct waiting *events[BATCH_EVENTS];
    size_t count = 0;
    mc_lock_acquire(&e->lock);
    e->next_sequence += e->dropped_since; /* one for each: the gap that a subscriber sees */
    e->dropped_since = 0;
    while (e->count && count < BATCH_EVENTS) {
        events[count++] = queue_pop_locked(e);
    }
    mc_metric_set(&e->waiting, (int64_t)e->count);
    mc_lock_release(&e->lock);
    if (count) {
        publish(e, events, count);
    }
    return count > 0;
}

/* ---- replay ---- */

/* One frame of a request into `frame` (up to its size); the frame's size, or -1. */
static int receive_part(struct mc_events *e, void *frame, size_t size, bool *more) {
    zmq_msg_t msg;
    e->zmq->msg_init(&msg);
    if (e->zmq->msg_recv(&msg, e->replay, ZMQ_DONTWAIT) < 0) {
        e->zmq->msg_close(&msg);
        return -1;
    }
    size_t len = e->zmq->msg_size(&msg);
    if (len) {
        memcpy(frame, e->zmq->msg_data(&msg), mc_min_u64(len, size));
    }
    *more = e->zmq->msg_more(&msg);
    e->zmq->msg_close(&msg);
    return (int)len;
}

static bool send_head(struct mc_events *e, const uint8_t *who, size_t len) {
    return send_part(e, e->replay, who, len, ZMQ_SNDMORE) &&
           send_part(e, e->replay, "", 0, ZMQ_SNDMORE);
}

static bool replay_from(struct mc_events *e, const uint8_t *who, size_t who_len, uint64_t from) {
    uint8_t end[MW_KV_SEQUENCE_BYTES];
    for (size_t i = 0; i < e->kept_count; i++) {
        struct batch *b = e->kept[(e->kept_head + i) % e->config.replay_batches];
        if (b->sequence < from) {
            continue;
        }
        if (!send_head(e, who, who_len) || !send_batch(e, e->replay, b)) {
            return false;
        }
        mc_metric_add(&e->replayed, 1);
    }
    mw_kv_sequence_put(end, END_OF_REPLAY);
    return send_head(e, who, who_len) && send_part(e, e->replay, end, sizeof(end), ZMQ_SNDMORE) &&
           send_part(e, e->replay, "", 0, 0);
}

/* Answers one request; false when there is none. A request of another shape gets no answer. */
static bool serve_replay(struct mc_events *e) {
    uint8_t frames[REQUEST_FRAMES][256]; /* who asks is at most 255 bytes */
    int lens[REQUEST_FRAMES] = {0};
    unsigned count = 0;
    bool more = true;
    for (; more; count++) {
        uint8_t rest[1];
        bool wanted = count < REQUEST_FRAMES;
        int len =
            receive_part(e, wanted ? frames[count] : rest, wanted ? sizeof(frames[0]) : 1, &more);
        if (len < 0) {
            return false;
        }
        if (wanted) {
            lens[count] = len;
        }
    }
    bool understood =
        count == REQUEST_FRAMES && lens[1] == 0 && lens[2] == (int)MW_KV_SEQUENCE_BYTES;
    if (understood && replay_from(e, frames[0], (size_t)lens[0], mw_kv_sequence_get(frames[2]))) {
        mc_metric_add(&e->replays, 1);
    } else {
        mc_metric_add(&e->refused, 1);
    }
    return true;
}

/* ---- the thread ---- */

static bool stop_asked(struct mc_events *e) {
    mc_lock_acquire(&e->lock);
    bool stopping = e->stopping;
    mc_lock_release(&e->lock);
    return stopping;
}

static void *events_main(void *arg) {
    struct mc_events *e = arg;
    for (;;) {
        bool stopping = stop_asked(e); /* before the queue: what was pushed before it is seen */
        bool busy = publish_waiting(e);
        for (unsigned n = 0; e->replay && n < REPLAYS_A_TURN && serve_replay(e); n++) {
            busy = true;
        }
        if (busy) {
            continue;
        }
        if (stopping) {
            return NULL;
        }
        zmq_pollitem_t items[] = {{NULL, e->wake_fd, ZMQ_POLLIN, 0}, {e->replay, 0, ZMQ_POLLIN, 0}};
        uint64_t count;
        if (e->zmq->poll(items, e->replay ? 2 : 1, -1) > 0 && items[0].revents &&
            read(e->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN) {
            mc_warn("kv events: the wake-up cannot be read errno=%d", errno);
        }
    }
}

/* ---- start and stop ---- */

static enum mc_status bound(struct mc_events *e, int type, const char *endpoint, char *actual,
                            void **out) {
    const struct {
        int option, value;
    } options[] = {{ZMQ_LINGER, LINGER_MS},
                   {ZMQ_SNDHWM, type == ZMQ_PUB ? PIPE_BATCHES : (int)e->config.replay_batches + 2},
                   {ZMQ_IPV6, strchr(endpoint, '[') || strstr(endpoint, "://*")},
                   {ZMQ_ROUTER_MANDATORY, 1}}; /* an answer that has no room is an error */
    void *socket = e->zmq->socket(e->context, type);
    size_t size = ENDPOINT_MAX;
    if (!socket) {
        mc_error("kv events: no socket endpoint=%s reason=\"%s\"", endpoint,
                 e->zmq->strerror(errno));
        return MC_ERR_IO;
    }
    *out = socket;
    for (size_t i = 0; i < MC_ARRAY_LEN(options) - (type == ZMQ_PUB); i++) {
        if (e->zmq->setsockopt(socket, options[i].option, &options[i].value, sizeof(int)) != 0) {
            mc_error("kv events: option %d reason=\"%s\"", options[i].option,
                     e->zmq->strerror(errno));
            return MC_ERR_IO;
        }
    }
    if (e->zmq->bind(socket, endpoint) != 0) {
        int error = errno;
        mc_error("kv events: cannot bind endpoint=%s reason=\"%s\"", endpoint,
                 e->zmq->strerror(error));
        return error == EADDRINUSE ? MC_ERR_ADDRESS_IN_USE : MC_ERR_BAD_ADDRESS;
    }
    return e->zmq->getsockopt(socket, ZMQ_LAST_ENDPOINT, actual, &size) == 0 ? MC_OK : MC_ERR_IO;
}

static void register_metrics(struct mc_events *e) {
    const struct mc_metric_row rows[] = {
        {MC_METRIC_COUNTER, "master_kv_events_published_total", "KV events published",
         &e->published_events},
        {MC_METRIC_COUNTER, "master_kv_event_batches_total", "messages with KV events",
         &e->published_batches},
        {MC_METRIC_COUNTER, "master_kv_events_dropped_total",
         "KV events that found the queue full, or no way out", &e->dropped},
        {MC_METRIC_COUNTER, "master_kv_events_skipped_total",
         "KV events of keys that are no number, when keys are not published", &e->skipped},
        {MC_METRIC_GAUGE, "master_kv_events_waiting", "KV events in the queue", &e->waiting},
        {MC_METRIC_COUNTER, "master_kv_event_replays_total", "replays", &e->replays},
        {MC_METRIC_COUNTER, "master_kv_event_batches_replayed_total", "messages sent again",
         &e->replayed},
        {MC_METRIC_COUNTER, "master_kv_event_replays_refused_total",
         "replays that were not understood, or whose reader was too slow", &e->refused},
    };
    mc_metrics_register_rows(e->metrics, "", rows, MC_ARRAY_LEN(rows));
}

static void destroy(struct mc_events *e) {
    for (size_t i = 0; i < e->kept_count; i++) {
        batch_drop(NULL, e->kept[(e->kept_head + i) % e->config.replay_batches]);
    }
    while (e->count) {
        free(queue_pop_locked(e));
    }
    if (e->replay) {
        e->zmq->close(e->replay);
    }
    if (e->publisher) {
        e->zmq->close(e->publisher);
    }
    if (e->context) {
        e->zmq->ctx_term(e->context);
    }
    if (e->wake_fd >= 0) {
        close(e->wake_fd);
    }
    mc_buf_free(&e->payload);
    free(e->kept);
    free(e->queue);
    free(e->backend_id);
    free(e);
}

static enum mc_status open_sockets(struct mc_events *e) {
    const char *replay = e->config.replay_endpoint;
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->context = e->zmq->ctx_new();
    if (e->wake_fd < 0 || !e->context) {
        mc_error("kv events: no eventfd or ZeroMQ context errno=%d", errno);
        return MC_ERR_IO;
    }
    MC_TRY(bound(e, ZMQ_PUB, e->config.endpoint, e->endpoint, &e->publisher));
    if (replay && replay[0] && e->config.replay_batches) {
        MC_TRY(bound(e, ZMQ_ROUTER, replay, e->replay_endpoint, &e->replay));
        e->kept = mc_zalloc(e->config.replay_batches * sizeof(struct batch *));
    }
    return MC_OK;
}

enum mc_status mc_events_start(const struct mc_events_config *config, struct mc_metrics *metrics,
                               struct mc_events **out) {
    const struct mc_zmq *zmq = mc_zmq_load();
    if (!zmq) {
        return MC_NOT_SUPPORTED;
    }
    struct mc_events *e = mc_zalloc(sizeof(*e));
    e->config = *config;
    e->zmq = zmq;
    e->wake_fd = -1;
    e->next_id = 1;
    e->backend_id = mc_strdup(config->backend_id ? config->backend_id : "");
    e->format =
        (struct mw_kv_format){mc_str_from(e->backend_id), config->legacy, config->object_key};
    enum mc_status status = open_sockets(e);
    if (status == MC_OK) {
        int error = mc_thread_start(&e->thread, "mc-kv-events", events_main, e);
        if (error != 0) {
            mc_error("kv events: the thread cannot be started errno=%d", error);
            status = MC_INTERNAL_ERROR;
        }
    }
    if (status != MC_OK) {
        destroy(e);
        return status;
    }
    e->metrics = metrics;
    register_metrics(e);
    mc_info("kv events published endpoint=%s replay=%s backend_id=%s", e->endpoint,
            e->replay ? e->replay_endpoint : "off", e->backend_id);
    *out = e;
    return MC_OK;
}

void mc_events_stop(struct mc_events *e) {
    if (!e) {
        return;
    }
    mc_lock_acquire(&e->lock);
    e->stopping = true;
    mc_lock_release(&e->lock);
    wake(e);
    pthread_join(e->thread, NULL);
    if (e->metrics) {
        mc_metrics_unregister_range(e->metrics, e, sizeof(*e));
    }
    destroy(e);
}

void mc_events_stats(const struct mc_events *e, struct mc_events_stats *out) {
    *out = (struct mc_events_stats){
        .published_batches = (uint64_t)mc_metric_get(&e->published_batches),
        .published_events = (uint64_t)mc_metric_get(&e->published_events),
        .dropped_events = (uint64_t)mc_metric_get(&e->dropped),
        .skipped_unparsed_keys = (uint64_t)mc_metric_get(&e->skipped),
        .waiting = (uint64_t)mc_metric_get(&e->waiting),
        .replays = (uint64_t)mc_metric_get(&e->replays),
        .replayed_batches = (uint64_t)mc_metric_get(&e->replayed),
        .refused_replays = (uint64_t)mc_metric_get(&e->refused)};
}

const char *mc_events_endpoint(const struct mc_events *e) {
    return e->endpoint;
}
const char *mc_events_replay_endpoint(const struct mc_events *e) {
    return e->replay_endpoint;
}

/*
 * The far side of staging. A peer that cannot reach device memory of this process takes a chunk of
 * host memory here, moves bytes to or from it by whatever transport suits (it is registered like
 * any other memory), and asks for the copy between the chunk and the device.
 *
 * A connection has at most one chunk and one request at a time; the chunk is its own until it gives
 * it back. A connection that ends without that may have left a transfer under way: its chunk rests
 * for REST_NS before anybody else gets it. Requests wait for the device, so they run on workers.
 * Chunks come into being with the first request, all at once, as one range of mc_memory_alloc.
 */
#include "te/stage_server.h"

#include <pthread.h>

#include "base/log.h"
#include "te/internal.h"
#include "wire/stage.h"

#define CHUNKS    64
#define REST_NS   (10 * MC_SEC)
#define WANTED_NS (100 * MC_MS) /* so long after a refusal, holders are asked to give back */

enum chunk_state { CHUNK_FREE = 0, CHUNK_TAKEN, CHUNK_RESTS };

struct mc_stage_server {
    struct mc_engine *engine;
    struct mc_workers *workers;
    struct mc_metric copies[2]; /* by enum mc_transfer_op, as the peer sees it */
    struct mc_metric copied_bytes[2];
    struct mc_metric refused; /* no chunk was free */
    pthread_mutex_t lock;     /* the rest */
    char *pool;               /* NULL until the first request */
    bool pinned;
    struct mc_device pinned_by;
    enum chunk_state chunks[CHUNKS];
    uint64_t rests_until_ns[CHUNKS];
    uint64_t refused_at_ns; /* 0 = never */
    /* Copiers not in use: as many as there are workers. */
    struct mc_device_copier copiers[MC_WORKERS_MAX];
    bool copier_busy[MC_WORKERS_MAX];
};

struct session { /* of a connection */
    struct mc_job job;
    struct mc_stage_server *server;
    struct mc_handshake_call *call;
    struct mc_stage_message request;
    int chunk;    /* -1 = none */
    bool running; /* lock: the job is queued or runs */
    bool closed;  /* lock: the connection has ended */
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- chunks ---- */

/* Memory for all chunks; registering waits for the metadata service, so without the lock. */
static enum mc_status make_pool(struct mc_stage_server *s) {
    void *pool = NULL;
    pthread_mutex_lock(&s->lock);
    bool there = s->pool != NULL;
    pthread_mutex_unlock(&s->lock);
    if (there) {
        return MC_OK;
    }
    MC_TRY(mc_memory_alloc_staging(s->engine, CHUNKS * MC_STAGE_CHUNK_BYTES, &pool));
    pthread_mutex_lock(&s->lock);
    if (s->pool == NULL) {
        s->pool = pool;
        pool = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    if (pool != NULL) { /* another request was first */
        return mc_memory_free(s->engine, pool);
    }
    return MC_OK;
}

static int take_chunk(struct mc_stage_server *s) {
    int found = -1;
    uint64_t now = now_ns();
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < CHUNKS && found < 0; i++) {
        if (s->chunks[i] == CHUNK_FREE ||
            (s->chunks[i] == CHUNK_RESTS && now >= s->rests_until_ns[i])) {
            s->chunks[i] = CHUNK_TAKEN;
            found = i;
        }
    }
    s->refused_at_ns = found < 0 ? now : s->refused_at_ns;
    pthread_mutex_unlock(&s->lock);
    if (found < 0) {
        mc_metric_add(&s->refused, 1);
    }
    return found;
}

static void return_chunk_locked(struct mc_stage_server *s, struct session *session, bool clean) {
    if (session->chunk >= 0) {
        s->chunks[session->chunk] = clean ? CHUNK_FREE : CHUNK_RESTS;
        s->rests_until_ns[session->chunk] = now_ns() + REST_NS;
        session->chunk = -1;
    }
}

static uint64_t chunk_addr(const struct mc_stage_server *s, int chunk) {
    return (uint64_t)(uintptr_t)s->pool + (uint64_t)chunk * MC_STAGE_CHUNK_BYTES;
}

/* ---- copies ---- */

static struct mc_device_copier *borrow_copier(struct mc_stage_server *s, struct mc_device device) {
    struct mc_device_copier *copier = NULL;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < MC_WORKERS_MAX && copier == NULL; i++) {
        if (!s->copier_busy[i]) {
            s->copier_busy[i] = true;
            copier = &s->copiers[i];
        }
    }
    bool pin = !s->pinned;
    s->pinned = true;
    s->pinned_by = device;
    pthread_mutex_unlock(&s->lock);
    if (pin && device.ops->pin(device.index, s->pool, CHUNKS * MC_STAGE_CHUNK_BYTES) != MC_OK) {
        mc_warn("staging memory is not pinned: copies to and from devices will be slow");
    }
    MC_ASSERT(copier != NULL); /* one for each worker */
    return copier;
}

static void return_copier(struct mc_stage_server *s, struct mc_device_copier *copier) {
    pthread_mutex_lock(&s->lock);
    s->copier_busy[copier - s->copiers] = false;
    pthread_mutex_unlock(&s->lock);
}

static enum mc_status copy(struct mc_stage_server *s, const struct session *session) {
    const struct mc_stage_message *m = &session->request;
    if (session->chunk < 0 || m->length == 0 ||
        !mc_range_inside(m->chunk, m->length, chunk_addr(s, session->chunk),
                         MC_STAGE_CHUNK_BYTES)) {
        return MC_INVALID_PARAMS;
    }
    struct mc_memory *memory = mc_memory_acquire_device(s->engine, m->device, m->length);
    if (memory == NULL) {
        mc_warn_limited("staging: request outside registered device memory addr=0x%llx length=%llu",
                        (unsigned long long)m->device, (unsigned long long)m->length);
        return MC_ERR_NOT_REGISTERED;
    }
    bool write = m->op == MC_STAGE_TO_DEVICE;
    void *chunk = (void *)(uintptr_t)m->chunk, *there = (void *)(uintptr_t)m->device;
    struct mc_device_copier *copier = borrow_copier(s, memory->device);
    enum mc_status status = mc_device_copy(copier, memory->device, write ? there : chunk,
                                           write ? chunk : there, m->length);
    return_copier(s, copier);
    mc_memory_release(memory);
    if (status == MC_OK) {
        enum mc_transfer_op op = write ? MC_TRANSFER_WRITE : MC_TRANSFER_READ;
        mc_metric_add(&s->copies[op], 1);
        mc_metric_add(&s->copied_bytes[op], (int64_t)m->length);
    }
    return status;
}

/* ---- requests ---- */

static enum mc_status take(struct mc_stage_server *s, struct session *session,
                           struct mc_stage_message *answer) {
    if (session->chunk < 0) {
        MC_TRY(make_pool(s));
        session->chunk = take_chunk(s);
    }
    if (session->chunk < 0) {
        return MC_ERR_LIMIT;
    }
    answer->chunk = chunk_addr(s, session->chunk);
    answer->length = MC_STAGE_CHUNK_BYTES;
    return MC_OK;
}

static enum mc_status serve(struct mc_stage_server *s, struct session *session,
                            struct mc_stage_message *answer) {
    if (!mc_uuid_eq(session->request.engine, s->engine->id)) {
        return MC_ERR_CLOSED; /* who was meant is gone */
    }
    switch (session->request.op) {
    case MC_STAGE_TAKE:
        return take(s, session, answer);
    case MC_STAGE_TO_DEVICE:
    case MC_STAGE_FROM_DEVICE:
        return copy(s, session);
    case MC_STAGE_GIVE_BACK:
        pthread_mutex_lock(&s->lock);
        return_chunk_locked(s, session, true);
        pthread_mutex_unlock(&s->lock);
        return MC_OK;
    }
    return MC_ERR_PROTOCOL;
}

static void run_request(struct mc_job *job) {
    struct session *session = mc_container_of(job, struct session, job);
    struct mc_stage_server *s = session->server;
    struct mc_handshake_call *call = session->call;
    struct mc_stage_message answer = {.op = session->request.op, .engine = s->engine->id};
    uint8_t bytes[MC_STAGE_BYTES];
    answer.status = serve(s, session, &answer);
    pthread_mutex_lock(&s->lock);
    bool wanted = s->refused_at_ns != 0 && now_ns() - s->refused_at_ns < WANTED_NS;
    answer.flags = wanted ? MC_STAGE_WANTED : 0;
    session->running = false;
    bool closed = session->closed;
    if (closed) {
        return_chunk_locked(s, session, false);
    }
    pthread_mutex_unlock(&s->lock);
    if (closed) {
        free(session);
    }
    mc_stage_encode(&answer, bytes);
    mc_handshake_answer(call, (struct mc_str){(const char *)bytes, sizeof(bytes)});
}

bool mc_stage_server_request(struct mc_stage_server *s, void **state, struct mc_str body,
                             struct mc_handshake_call *call) {
    struct mc_stage_message request;
    if (mc_stage_decode(body, &request) != MC_OK) {
        return false;
    }
    struct session *session = *state;
    if (session == NULL) {
        session = mc_zalloc(sizeof(*session));
        session->job.run = run_request;
        session->server = s;
        session->chunk = -1;
        *state = session;
    }
    session->request = request;
    session->call = call;
    pthread_mutex_lock(&s->lock);
    session->running = true;
    pthread_mutex_unlock(&s->lock);
    mc_workers_submit(s->workers, &session->job);
    return true;
}

void mc_stage_server_closed(struct mc_stage_server *s, void *state) {
    struct session *session = state;
    pthread_mutex_lock(&s->lock);
    session->closed = true;
    bool running = session->running;
    if (!running) {
        return_chunk_locked(s, session, false);
    }
    pthread_mutex_unlock(&s->lock);
    if (!running) { /* else the job ends it */
        free(session);
    }
}

/* ---- life ---- */

static void register_metrics(struct mc_stage_server *s) {
    struct mc_metrics *m = s->engine->metrics;
    mc_register_by_op(m, "mooncake_te_stage_served_total",
                      "copies between device memory and chunks for peers", s->copies);
    mc_register_by_op(m, "mooncake_te_stage_served_bytes_total", "their bytes", s->copied_bytes);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_stage_refused_total", "",
                        "peers that found no chunk free", &s->refused);
}

struct mc_stage_server *mc_stage_server_create(struct mc_engine *engine) {
    struct mc_stage_server *s = mc_zalloc(sizeof(*s));
    s->engine = engine;
    pthread_mutex_init(&s->lock, NULL);
    if (mc_workers_create(&s->workers) != MC_OK) {
        pthread_mutex_destroy(&s->lock);
        free(s);
        return NULL;
    }
    register_metrics(s);
    return s;
}

void mc_stage_server_destroy(struct mc_stage_server *s) {
    if (s == NULL) {
        return;
    }
    mc_workers_destroy(s->workers); /* runs what is queued, which ends its sessions */
    for (unsigned i = 0; i < MC_WORKERS_MAX; i++) {
        mc_device_copier_free(&s->copiers[i]);
    }
    if (s->pinned) {
        s->pinned_by.ops->unpin(s->pinned_by.index, s->pool);
    }
    if (s->pool != NULL && mc_memory_free(s->engine, s->pool) != MC_OK) {
        mc_warn("staging memory was not registered any more");
    }
    mc_metrics_unregister_range(s->engine->metrics, s, sizeof(*s));
    pthread_mutex_destroy(&s->lock);
    free(s);
}

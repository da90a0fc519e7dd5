/*
 * Staging: moves to and from device memory that no transport reaches by itself, in chunks through
 * pinned host memory on whichever sides need it.
 *
 *   write:  device --copy--> chunk here --any transport--> chunk there --copy--> device
 *   read:   the reverse; a side that is host memory needs no chunk
 *
 * A lane is a thread with a chunk of its own here and, for each peer that it works with, a session:
 * a connection and a chunk there (stage_server.c). A lane takes a slice and moves it chunk by
 * chunk, waiting at each hop; that the hops overlap is because several lanes are at different ones.
 * The middle hop is a transfer like any other (mc_inner_start): it is routed, sprayed, retried and
 * timed as if the application had asked for it, between host memories.
 *
 * A session whose transfer failed may find late bytes in its chunk: it is closed without giving the
 * chunk back, which then rests at the peer. A slice is complete when the last copy is; a write is
 * in doubt only between asking the peer for its copy and its answer.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/thread.h"
#include "te/internal.h"
#include "te/stage_server.h"
#include "wire/stage.h"

#define COST            200
#define LANES           6
#define SESSIONS        8             /* of a lane */
#define SESSION_IDLE_NS (1 * MC_SEC)  /* then its chunk goes back */
#define GIVE_BACK_NS    (500 * MC_MS) /* for the peer to say that it has it */
#define BUSY_PAUSE_NS   (1 * MC_MS)   /* between two tries to get a chunk of a busy peer */
#define BUSY_MAX_NS     (30 * MC_SEC)

struct session {
    struct mc_uuid engine;
    struct mc_handshake_channel *channel; /* NULL = free */
    uint64_t chunk;
    uint64_t chunk_length;
    uint64_t used_ns;
    bool wanted; /* the peer asked for the chunk */
};

struct lane {
    struct stage_transport *t;
    pthread_t thread;
    bool started;
    char *chunk; /* MC_STAGE_CHUNK_BYTES, pinned; NULL until needed */
    bool pinned;
    struct mc_device pinned_by;
    struct mc_device_copier copier;
    struct session sessions[SESSIONS];
    bool session_failed; /* the last call to a peer had no answer */

    /* Transport's lock: what a canceller needs. */
    struct mc_slice_op *slice; /* being moved; NULL = idle */
    bool cancelled;
    struct mc_inner *inner;               /* under way */
    struct mc_handshake_channel *channel; /* with a call under way */
    unsigned cancellers;                  /* threads inside mc_inner_cancel for `inner` */
};

struct stage_transport {
    struct mc_transport base; /* first */
    pthread_mutex_t lock;
    pthread_cond_t queued;
    pthread_cond_t changed; /* a lane has ended a slice, a canceller has left */
    struct mc_list queue;
    bool stopping;
    struct lane lanes[LANES];
    struct mc_metric copies[2]; /* to and from chunks here, by enum mc_transfer_op */
    struct mc_metric copied_bytes[2];
    struct mc_metric chunks_sent; /* middle hops */
    struct mc_metric sessions;
};

static struct stage_transport *transport_of(struct mc_transport *t) {
    return mc_container_of(t, struct stage_transport, base);
}

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- one hop ---- */

/* Whether the slice is to go on; a canceller wakes whoever waits, and is seen at the next hop. */
static bool is_cancelled(struct lane *lane) {
    pthread_mutex_lock(&lane->t->lock);
    bool cancelled = lane->cancelled;
    pthread_mutex_unlock(&lane->t->lock);
    return cancelled;
}

static enum mc_status may_go_on(struct lane *lane, const struct mc_slice_op *slice) {
    return is_cancelled(lane) ? MC_ERR_CANCELLED
           : slice->deadline_ns != MC_WAIT_FOREVER && now_ns() >= slice->deadline_ns
               ? MC_ERR_TIMEOUT
               : MC_OK;
}

static enum mc_status make_chunk(struct lane *lane, struct mc_device device) {
    if (lane->chunk == NULL) {
        void *chunk = mmap(NULL, MC_STAGE_CHUNK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED) {
            return MC_ERR_NO_MEMORY;
        }
        enum mc_status status = mc_memory_register(lane->t->base.engine, chunk,
                                                   MC_STAGE_CHUNK_BYTES, "*", MC_MEMORY_LOCAL_ONLY);
        if (status != MC_OK) {
            munmap(chunk, MC_STAGE_CHUNK_BYTES);
            return status;
        }
        lane->chunk = chunk;
    }
    if (!lane->pinned) { /* by the first device: portable, so all others have it too */
        MC_TRY(device.ops->pin(device.index, lane->chunk, MC_STAGE_CHUNK_BYTES));
        lane->pinned = true;
        lane->pinned_by = device;
    }
    return MC_OK;
}

static void drop_chunk(struct lane *lane) {
    if (lane->pinned) {
        lane->pinned_by.ops->unpin(lane->pinned_by.index, lane->chunk);
    }
    if (lane->chunk != NULL) {
        enum mc_status status = mc_memory_unregister(lane->t->base.engine, lane->chunk);
        MC_ASSERT(status == MC_OK);
        munmap(lane->chunk, MC_STAGE_CHUNK_BYTES);
    }
}

/* Between the application's device memory and the lane's chunk. */
static enum mc_status copy_here(struct lane *lane, struct mc_device device, char *local,
                                uint64_t length, enum mc_transfer_op op) {
    bool write = op == MC_TRANSFER_WRITE;
    MC_TRY(mc_device_copy(&lane->copier, device, write ? lane->chunk : local,
                          write ? local : lane->chunk, length));
    mc_metric_add(&lane->t->copies[op], 1);
    mc_metric_add(&lane->t->copied_bytes[op], (int64_t)length);
    return MC_OK;
}

/* Between host memories. */
static enum mc_status move(struct lane *lane, const struct mc_slice_op *slice, char *local,
                           uint64_t remote, uint64_t length) {
    struct stage_transport *t = lane->t;
    struct mc_inner inner;
    mc_inner_start(&inner, slice, local, remote, length);
    pthread_mutex_lock(&t->lock);
    bool cancelled = lane->cancelled;
    lane->inner = cancelled ? NULL : &inner;
    pthread_mutex_unlock(&t->lock);
    if (cancelled) {
        mc_inner_cancel(&inner, MC_ERR_CANCELLED);
    }
    enum mc_status status = mc_inner_finish(&inner);
    pthread_mutex_lock(&t->lock);
    lane->inner = NULL;
    while (lane->cancellers > 0) {
        pthread_cond_wait(&t->changed, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    mc_metric_add(&t->chunks_sent, status == MC_OK);
    return status;
}

/* ---- sessions ---- */

static void session_close(struct session *s) {
    mc_handshake_channel_close(s->channel);
    *s = (struct session){0};
}

static enum mc_status ask(struct lane *lane, struct session *s, const struct mc_stage_message *m,
                          uint64_t deadline_ns, struct mc_stage_message *answer) {
    struct stage_transport *t = lane->t;
    struct mc_buf reply = {0};
    uint8_t bytes[MC_STAGE_BYTES];
    mc_stage_encode(m, bytes);
    pthread_mutex_lock(&t->lock);
    enum mc_status status = lane->cancelled ? MC_ERR_CANCELLED : MC_OK;
    lane->channel = s->channel;
    pthread_mutex_unlock(&t->lock);
    if (status == MC_OK) {
        status = mc_handshake_channel_call(
            s->channel, (struct mc_str){(const char *)bytes, sizeof(bytes)}, deadline_ns, &reply);
    }
    pthread_mutex_lock(&t->lock);
    lane->channel = NULL;
    pthread_mutex_unlock(&t->lock);
    status =
        status != MC_OK ? status : mc_stage_decode((struct mc_str){reply.data, reply.len}, answer);
    mc_buf_free(&reply);
    lane->session_failed = status != MC_OK;
    MC_TRY(status);
    s->used_ns = now_ns();
    s->wanted = (answer->flags & MC_STAGE_WANTED) != 0;
    return answer->status;
}

static void give_back(struct lane *lane, struct session *s, uint64_t deadline_ns) {
    const struct mc_stage_message m = {.op = MC_STAGE_GIVE_BACK, .engine = s->engine};
    struct mc_stage_message answer;
    (void)!ask(lane, s, &m, deadline_ns, &answer); /* else it rests there */
    session_close(s);
}

/* A chunk at the peer. While all are taken it is asked again, for others give theirs back. */
static enum mc_status session_take(struct lane *lane, struct session *s,
                                   const struct mc_slice_op *slice) {
    const struct mc_stage_message m = {.op = MC_STAGE_TAKE, .engine = s->engine};
    struct mc_stage_message answer;
    uint64_t give_up_ns = mc_min_u64(slice->deadline_ns, now_ns() + BUSY_MAX_NS);
    for (;;) {
        MC_TRY(may_go_on(lane, slice));
        enum mc_status status = ask(lane, s, &m, slice->deadline_ns, &answer);
        if (status == MC_OK) {
            break;
        }
        if (status != MC_ERR_LIMIT || now_ns() >= give_up_ns) {
            return status;
        }
        nanosleep(&(struct timespec){0, BUSY_PAUSE_NS}, NULL);
    }
    if (answer.chunk == 0 || answer.length == 0 || answer.length > UINT64_MAX - answer.chunk) {
        return MC_ERR_PROTOCOL;
    }
    s->chunk = answer.chunk;
    s->chunk_length = answer.length;
    return MC_OK;
}

static enum mc_status session_open(struct lane *lane, struct session *s,
                                   const struct mc_slice_op *slice) {
    struct mc_engine *engine = lane->t->base.engine;
    struct mc_peer_desc *desc = mc_segment_desc(slice->segment);
    s->engine = desc->engine_id;
    enum mc_status status = mc_handshake_channel_open(
        desc->host, desc->rpc_port, mc_meta_limits(engine->meta), slice->deadline_ns, &s->channel);
    mc_peer_desc_put(desc);
    if (status == MC_OK) {
        mc_metric_add(&lane->t->sessions, 1);
        status = session_take(lane, s, slice);
    }
    if (status != MC_OK) {
        session_close(s);
    }
    return status;
}

/* The lane's session with the slice's peer; made when there is none, in the place of the one that
 * was used the longest ago. */
static enum mc_status session_find(struct lane *lane, const struct mc_slice_op *slice,
                                   struct session **out) {
    struct mc_peer_desc *desc = mc_segment_desc(slice->segment);
    struct mc_uuid engine = desc->engine_id;
    struct session *oldest = &lane->sessions[0];
    mc_peer_desc_put(desc);
    if (slice->incarnation !=
        atomic_load_explicit(&mc_slot_of(slice->segment)->incarnation, memory_order_acquire)) {
        return MC_ERR_CLOSED; /* the address is of another engine */
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct session *s = &lane->sessions[i];
        if (s->channel != NULL && mc_uuid_eq(s->engine, engine)) {
            *out = s;
            return MC_OK;
        }
        oldest = s->used_ns < oldest->used_ns ? s : oldest; /* a free one was never used */
    }
    if (oldest->channel != NULL) {
        give_back(lane, oldest, now_ns() + GIVE_BACK_NS);
    }
    MC_TRY(session_open(lane, oldest, slice));
    *out = oldest;
    return MC_OK;
}

static enum mc_status copy_there(struct lane *lane, struct session *s,
                                 const struct mc_slice_op *slice, uint64_t remote,
                                 uint64_t length) {
    struct mc_stage_message answer;
    const struct mc_stage_message m = {.op = slice->op == MC_TRANSFER_WRITE ? MC_STAGE_TO_DEVICE
                                                                            : MC_STAGE_FROM_DEVICE,
                                       .engine = s->engine,
                                       .chunk = s->chunk,
                                       .device = remote,
                                       .length = length};
    return ask(lane, s, &m, slice->deadline_ns, &answer);
}

/* ---- a slice ---- */

struct piece { /* one chunk's worth of a slice */
    char *local;
    uint64_t remote;
    uint64_t length;
    bool here; /* through the lane's chunk */
    struct mc_device device;
    struct session *there; /* through the peer's; NULL = not */
};

static enum mc_status move_piece(struct lane *lane, const struct mc_slice_op *slice,
                                 const struct piece *p) {
    bool write = slice->op == MC_TRANSFER_WRITE;
    if (p->here && write) {
        MC_TRY(copy_here(lane, p->device, p->local, p->length, slice->op));
    }
    if (p->there != NULL && !write) {
        MC_TRY(copy_there(lane, p->there, slice, p->remote, p->length));
    }
    MC_TRY(may_go_on(lane, slice));
    MC_TRY(move(lane, slice, p->here ? lane->chunk : p->local,
                p->there != NULL ? p->there->chunk : p->remote, p->length));
    MC_TRY(may_go_on(lane, slice));
    if (p->here && !write) {
        MC_TRY(copy_here(lane, p->device, p->local, p->length, slice->op));
    }
    return p->there != NULL && write ? copy_there(lane, p->there, slice, p->remote, p->length)
                                     : MC_OK;
}

/* `*again`: whether another session may help. What the middle hop could not do it has tried by
 * every way. */
static enum mc_status move_slice(struct lane *lane, const struct mc_slice_op *slice, bool *again) {
    *again = false;
    struct piece p = {.here = (slice->devices & MC_DEVICE_LOCAL) != 0};
    uint64_t most = MC_STAGE_CHUNK_BYTES;
    if (p.here) {
        if (!mc_memory_find_device(lane->t->base.engine, (uint64_t)(uintptr_t)slice->local,
                                   slice->length, &p.device)) {
            return MC_ERR_BAD_ADDRESS; /* it was freed meanwhile */
        }
        MC_TRY(make_chunk(lane, p.device));
    }
    if ((slice->devices & MC_DEVICE_REMOTE) != 0) {
        *again = true;
        MC_TRY(session_find(lane, slice, &p.there));
        most = mc_min_u64(most, p.there->chunk_length);
    }
    enum mc_status status = MC_OK;
    for (uint64_t done = 0; done < slice->length && status == MC_OK; done += p.length) {
        p.local = slice->local + done;
        p.remote = slice->remote + done;
        p.length = mc_min_u64(most, slice->length - done);
        status = move_piece(lane, slice, &p);
    }
    *again = p.there != NULL && lane->session_failed;
    if (p.there != NULL && status != MC_OK) {
        session_close(p.there); /* late bytes may come into its chunk */
    } else if (p.there != NULL && p.there->wanted) {
        give_back(lane, p.there, now_ns() + GIVE_BACK_NS);
    }
    return status;
}

/* ---- lanes ---- */

/* Locked. When a session must be given back; MC_WAIT_FOREVER: there is none. */
static uint64_t idle_due(const struct lane *lane) {
    uint64_t due = MC_WAIT_FOREVER;
    for (unsigned i = 0; i < SESSIONS; i++) {
        if (lane->sessions[i].channel != NULL) {
            due = mc_min_u64(due, lane->sessions[i].used_ns + SESSION_IDLE_NS);
        }
    }
    return due;
}

static void give_back_idle(struct lane *lane, bool all) {
    uint64_t deadline_ns = now_ns() + GIVE_BACK_NS; /* of all together */
    for (unsigned i = 0; i < SESSIONS; i++) {
        struct session *s = &lane->sessions[i];
        if (s->channel != NULL && (all || now_ns() >= s->used_ns + SESSION_IDLE_NS)) {
            give_back(lane, s, deadline_ns);
        }
    }
}

/* The next slice, urgent ones first; NULL when there is none now, or none will come. */
static struct mc_slice_op *next_locked(struct stage_transport *t) {
    struct mc_slice_op *best = NULL;
    for (struct mc_list *at = t->queue.next; at != &t->queue; at = at->next) {
        struct mc_slice_op *slice = mc_container_of(at, struct mc_slice_op, transport_link);
        if (best == NULL || slice->priority < best->priority) {
            best = slice;
        }
        if (best->priority == MC_PRIORITY_HIGH) {
            break;
        }
    }
    if (best != NULL) {
        mc_list_del(&best->transport_link);
    }
    return best;
}

/* Waits for a slice; false when the lane ends. */
static bool wait_for_slice(struct lane *lane) {
    struct stage_transport *t = lane->t;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        lane->slice = next_locked(t);
        lane->cancelled = false;
        uint64_t due = idle_due(lane);
        if (lane->slice != NULL || t->stopping) {
            break;
        }
        if (due == MC_WAIT_FOREVER) {
            pthread_cond_wait(&t->queued, &t->lock);
        } else if (now_ns() < due) {
            struct timespec until = {(time_t)(due / MC_SEC), (long)(due % MC_SEC)};
            pthread_cond_timedwait(&t->queued, &t->lock, &until);
        } else {
            pthread_mutex_unlock(&t->lock);
            give_back_idle(lane, false);
            pthread_mutex_lock(&t->lock);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return lane->slice != NULL;
}

static void *work(void *arg) {
    struct lane *lane = arg;
    struct stage_transport *t = lane->t;
    while (wait_for_slice(lane)) {
        struct mc_slice_op *slice = lane->slice;
        bool again;
        enum mc_status status = move_slice(lane, slice, &again);
        pthread_mutex_lock(&t->lock);
        lane->slice = NULL;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        mc_slice_done(slice, status, again);
    }
    give_back_idle(lane, true);
    return NULL;
}

/* Locked. With one thread at least, slices are served. */
static bool start_lanes_locked(struct stage_transport *t) {
    bool any = false;
    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &t->lanes[i];
        char name[24];
        snprintf(name, sizeof(name), "mc-te-stage-%u", i);
        if (!lane->started) {
            lane->started = mc_thread_start(&lane->thread, name, work, lane) == 0;
        }
        any |= lane->started;
    }
    return any;
}

/* ---- transport ---- */

static enum mc_status stage_start(struct mc_engine *engine, unsigned index,
                                  struct mc_transport **out) {
    struct stage_transport *t = mc_zalloc(sizeof(*t));
    struct mc_metrics *m = mc_engine_registry(engine);
    pthread_condattr_t attr;
    t->base = (struct mc_transport){&mc_transport_stage_ops, engine, index};
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->queued, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&t->changed, NULL);
    mc_list_init(&t->queue);
    for (unsigned i = 0; i < LANES; i++) {
        t->lanes[i].t = t;
    }
    mc_register_by_op(m, "mooncake_te_stage_copies_total",
                      "copies between device memory and chunks here", t->copies);
    mc_register_by_op(m, "mooncake_te_stage_copied_bytes_total", "their bytes", t->copied_bytes);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_stage_chunks_total", "",
                        "chunks moved between hosts for staging", &t->chunks_sent);
    mc_metrics_register(m, MC_METRIC_COUNTER, "mooncake_te_stage_sessions_total", "",
                        "connections made to peers' staging", &t->sessions);
    *out = &t->base;
    return MC_OK;
}

static void stage_quiesce(struct mc_transport *base) {
    struct stage_transport *t = transport_of(base);
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->queued);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < LANES; i++) {
        if (t->lanes[i].started) {
            pthread_join(t->lanes[i].thread, NULL);
        }
        drop_chunk(&t->lanes[i]);
    }
}

static void stage_stop(struct mc_transport *base) {
    struct stage_transport *t = transport_of(base);
    for (unsigned i = 0; i < LANES; i++) {
        mc_device_copier_free(&t->lanes[i].copier);
    }
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->queued);
    pthread_cond_destroy(&t->changed);
    free(t);
}

/* Where it is of no use serves() says no; a segment of files or of peers is no matter. */
static uint32_t stage_cost(struct mc_transport *t, struct mc_segment *segment,
                           const struct mc_peer_desc *desc) {
    return segment->id == MC_LOCAL_SEGMENT ? UINT32_MAX : COST;
}

static bool stage_serves(struct mc_transport *t, struct mc_segment *segment,
                         const struct mc_slice_op *slice) {
    return (slice->devices & (MC_DEVICE_LOCAL | MC_DEVICE_REMOTE)) != 0;
}

static enum mc_status stage_post(struct mc_transport *base, struct mc_slice_op **slices,
                                 size_t count) {
    struct stage_transport *t = transport_of(base);
    pthread_mutex_lock(&t->lock);
    bool up = !t->stopping && start_lanes_locked(t);
    for (size_t i = 0; up && i < count; i++) {
        mc_list_push_back(&t->queue, &slices[i]->transport_link);
    }
    pthread_cond_broadcast(&t->queued);
    pthread_mutex_unlock(&t->lock);
    return up ? MC_OK : MC_ERR_LIMIT;
}

static void cancel_lane_locked(struct stage_transport *t, struct lane *lane) {
    lane->cancelled = true;
    if (lane->channel != NULL) {
        mc_handshake_channel_abort(lane->channel);
    }
    if (lane->inner != NULL) {
        struct mc_inner *inner = lane->inner;
        lane->cancellers++;
        pthread_mutex_unlock(&t->lock);
        mc_inner_cancel(inner, MC_ERR_CANCELLED);
        pthread_mutex_lock(&t->lock);
        lane->cancellers--;
        pthread_cond_broadcast(&t->changed);
    }
}

static void stage_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct stage_transport *t = transport_of(base);
    struct mc_list mine;
    mc_list_init(&mine);
    pthread_mutex_lock(&t->lock);
    for (struct mc_list *at = t->queue.next, *next; at != &t->queue; at = next) {
        next = at->next;
        if (mc_container_of(at, struct mc_slice_op, transport_link)->task == task) {
            mc_list_del(at);
            mc_list_push_back(&mine, at);
        }
    }
    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &t->lanes[i];
        while (lane->slice != NULL && lane->slice->task == task) {
            cancel_lane_locked(t, lane);
            if (lane->slice != NULL && lane->slice->task == task && lane->cancelled) {
                pthread_cond_wait(&t->changed, &t->lock);
            }
        }
    }
    pthread_mutex_unlock(&t->lock);
    while (!mc_list_empty(&mine)) {
        struct mc_slice_op *slice = mc_container_of(mine.next, struct mc_slice_op, transport_link);
        mc_list_del(&slice->transport_link);
        mc_slice_done(slice, MC_ERR_TIMEOUT, false);
    }
}

const struct mc_transport_ops mc_transport_stage_ops = {
    .name = "stage",
    .slice_bytes = MC_STAGE_CHUNK_BYTES,
    .devices = MC_DEVICE_LOCAL | MC_DEVICE_REMOTE | MC_DEVICE_FOREIGN,
    .start = stage_start,
    .quiesce = stage_quiesce,
    .stop = stage_stop,
    .cost = stage_cost,
    .serves = stage_serves,
    .post = stage_post,
    .cancel = stage_cancel,
};

/*
 * Drain jobs: everything leaves some nodes, and no reader notices.
 *
 * A job marks its segments DRAINING, so that they take nothing new, and walks through the index
 * again and again; for each object that has a complete replica there it makes a move task, as many
 * at a time as the job allows. Where no other segment can take the object, but another one has it,
 * the move only takes the replica away. An object that is being written, copied or moved is looked
 * at again in the next walk. The walk after which no extent is left on the segments is the last
 * one: until then somebody holds a lease on bytes there, or may be writing.
 *
 * A client all of whose segments are being drained goes with its SSD. What only such SSDs have is
 * brought back to the memory of others (promote.c), and an SSD's replica of what can be read
 * elsewhere is forgotten, so that eviction does not take the SSD for a second home. The job has
 * succeeded only when no replica there is left, and DRAINED segments' clients get no new ones
 * (disks.c). Who asks that SSDs be left alone is told how much goes with them.
 *
 * A job that makes no progress for FAILURES_IN_A_ROW tasks has failed, as has one whose segment was
 * unmounted (and perhaps mounted anew) before it was empty; its segments take objects again.
 *
 * A job is cancelled only while nothing is being moved, as upstream's. Asking for it holds further
 * moves back for a while, so that who asks again in that time is heard.
 *
 * All of it happens in the tick, a bounded part at a time; the lock only keeps questions and the
 * tick apart. It is taken before any other lock of the core.
 */
#include "master/core.h"
#include "master/disks.h"
#include "master/promote.h"

#include "base/log.h"

#define FAILURES_IN_A_ROW  32u
#define OBJECTS_PER_TICK   32768u
#define CANDIDATES_MAX     1024u
#define CANDIDATES_PER_JOB (4 * CANDIDATES_MAX)
#define WALK_PAUSE_MS      100u /* after one that found nothing to do */
#define CANCEL_HOLD_MS     10000u

struct candidate {
    char *tenant; /* and behind it the key, in one allocation */
    struct mc_key key;
    bool on_disk; /* only: to be brought back to memory */
};

struct unit { /* an object that is being moved */
    struct mc_uuid task;
    uint64_t size;
    struct candidate promoted; /* tenant NULL: it is a task */
    uint64_t give_up_ms;       /* the promotion, if memory was not asked for by then */
};

struct job {
    struct job *next;
    struct mc_uuid id;
    enum mc_job_status status;
    int64_t created_wall_ms, updated_wall_ms;
    struct mc_vec segments, targets; /* of struct mc_str, owned */
    uint64_t max_concurrency;
    uint64_t succeeded, failed, migrated_bytes;
    bool leave_disks;
    /* Objects that only the SSDs of the segments' clients have, as of the last whole walk, and in
     * this one. */
    uint64_t disk_only, disk_only_in_walk;
    struct mc_uuid clients[MC_DRAIN_SEGMENTS_MAX]; /* who has no other segment */
    size_t client_count;
    uint64_t readers_until_ms; /* who was told of a replica on those disks may still come for it */
    uint64_t blocked, blocked_in_walk, found_in_walk;
    uint64_t failures_in_a_row;
    const char *message;

    struct unit *active;
    size_t active_count;
    struct candidate *queue; /* found, not yet a task; the last comes first */
    size_t queue_count;
    uint32_t next_shard; /* of the walk */
    uint64_t walk_after_ms;
    uint64_t hold_until_ms; /* no move begins: somebody wants to cancel the job */
};

struct mc_drains {
    pthread_mutex_t lock;
    struct job *jobs; /* the newest first */
    _Atomic size_t running;
};

struct mc_drains *mc_drains_create(void) {
    struct mc_drains *drains = mc_zalloc(sizeof(*drains));
    pthread_mutex_init(&drains->lock, NULL);
    return drains;
}

/* ---- names ---- */

static struct mc_vec own_names(const struct mc_vec *names) {
    struct mc_str *copy = mc_alloc((names->count + 1) * sizeof(*copy));
    for (size_t i = 0; i < names->count; i++) {
        struct mc_str name = ((const struct mc_str *)names->items)[i];
        copy[i] = (struct mc_str){mc_str_dup(name), name.len};
    }
    return (struct mc_vec){copy, names->count};
}

static void free_names(struct mc_vec *names) {
    for (size_t i = 0; i < names->count; i++) {
        free((char *)((struct mc_str *)names->items)[i].ptr);
    }
    free(names->items);
}

static struct mc_str name_at(const struct mc_vec *names, size_t i) {
    return ((const struct mc_str *)names->items)[i];
}

static bool contains(const struct mc_vec *names, struct mc_str name) {
    for (size_t i = 0; i < names->count; i++) {
        if (mc_str_eq(name_at(names, i), name)) {
            return true;
        }
    }
    return false;
}

static void drop_queue(struct job *job) {
    for (size_t i = 0; i < job->queue_count; i++) {
        free(job->queue[i].tenant);
    }
    job->queue_count = 0;
}

static void job_free(struct job *job) {
    drop_queue(job);
    for (size_t i = 0; i < job->active_count; i++) {
        free(job->active[i].promoted.tenant);
    }
    free(job->queue);
    free(job->active);
    free_names(&job->segments);
    free_names(&job->targets);
    free(job);
}

void mc_drains_destroy(struct mc_drains *drains) {
    for (struct job *job = drains->jobs, *next; job; job = next) {
        next = job->next;
        job_free(job);
    }
    pthread_mutex_destroy(&drains->lock);
    free(drains);
}

/* ---- one job: needs the lock ---- */

static bool ended(const struct job *job) {
    return job->status >= MC_JOB_SUCCEEDED;
}

static void touch(struct mc_call *call, struct job *job) {
    job->updated_wall_ms = (int64_t)call->m->clock->wall_ms(call->m->clock);
}

static void end_locked(struct mc_call *call, struct job *job, enum mc_job_status status,
                       int segments_become, const char *message) {
    for (size_t i = 0; i < job->segments.count; i++) {
        struct mc_str name = name_at(&job->segments, i);
        mc_segments_set_status(call->m, name, MC_SEGMENT_DRAINING, segments_become);
        mc_info("a drain of a segment has ended: segment=%.*s how=%s moved=%llu bytes=%llu "
                "disk_only=%llu",
                (int)name.len, name.ptr, message, (unsigned long long)job->succeeded,
                (unsigned long long)job->migrated_bytes, (unsigned long long)job->disk_only);
    }
    drop_queue(job);
    job->status = status;
    job->message = message;
    job->blocked = status == MC_JOB_SUCCEEDED ? 0 : job->blocked;
    touch(call, job);
    atomic_fetch_sub_explicit(&call->m->drains->running, 1, memory_order_relaxed);
}

static bool on_their_disk(const struct job *job, const struct mc_replica *r) {
    for (size_t c = 0; r->type == MC_REPLICA_LOCAL_DISK && c < job->client_count; c++) {
        if (mc_uuid_eq(r->segment->client, job->clients[c])) {
            return true;
        }
    }
    return false;
}

/* Where an object can be read, the drained segments' memory aside. */
static void homes(const struct job *job, struct mc_object *o, bool *theirs, bool *others) {
    *theirs = *others = false;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (r->status == MC_REPLICA_COMPLETE && !mc_segment_gone(r->segment)) {
            bool *where = on_their_disk(job, r) ? theirs : others;
            *where = true;
        }
    }
}

/* Of an object that can be read elsewhere: their disks are no home for it any more. Needs the
 * shard's lock. */
static void forget_disks(struct mc_call *call, struct job *job, struct mc_shard *shard,
                         struct mc_object *o) {
    job->readers_until_ms = mc_max_u64(job->readers_until_ms, mc_lease_end(call->m, o));
    for (unsigned i = 0; i < o->replica_count;) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (on_their_disk(job, r)) {
            mc_disk_replica_ends(call->m, o, r);
            mc_object_remove_replica(call->m, shard, o, i, 0);
        } else {
            i++;
        }
    }
}

enum progress { UNDER_WAY, DONE, FAILED, IN_VAIN };

static enum progress look_at_task(struct mc_call *call, const struct unit *unit) {
    struct mw_task_info info;
    enum mc_status known = mc_task_query(call, unit->task, &info);
    if (known == MC_OK && info.status != MC_TASK_SUCCESS && info.status != MC_TASK_FAILED) {
        return UNDER_WAY;
    }
    return known == MC_OK && info.status == MC_TASK_SUCCESS ? DONE : FAILED;
}

/* One that came to nothing is tried again in the next walk: memory may be full just now. */
static enum progress look_at_promotion(struct mc_call *call, struct job *job,
                                       const struct unit *unit) {
    const struct mc_key *key = &unit->promoted.key;
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    enum progress progress = IN_VAIN;
    bool theirs = false, others = false;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    if (o) {
        homes(job, o, &theirs, &others);
    }
    bool patient = call->now_ms < unit->give_up_ms && call->now_ms >= job->hold_until_ms;
    if (o && mc_promoting(o) && patient) {
        progress = UNDER_WAY;
    } else if (o && mc_replicating(o)) {
        progress = UNDER_WAY; /* it ends by itself */
    } else if (theirs && !others) {
        mc_promote_withdraw(call->m, o);
        job->blocked_in_walk++;
    } else if (theirs && o->list != MC_LIST_PROCESSING) {
        forget_disks(call, job, shard, o);
        progress = DONE;
    }
    mc_lock_release(&shard->lock);
    return progress;
}

/* Looks how the moves stand. */
static void collect_locked(struct mc_call *call, struct job *job) {
    for (size_t i = 0; i < job->active_count;) {
        struct unit *unit = &job->active[i];
        enum progress progress = unit->promoted.tenant != NULL ? look_at_promotion(call, job, unit)
                                                               : look_at_task(call, unit);
        if (progress == UNDER_WAY) {
            i++;
            continue;
        }
        if (progress == DONE) {
            job->succeeded++;
            job->migrated_bytes += unit->size;
            job->failures_in_a_row = 0;
        } else if (progress == FAILED) {
            job->failed++;
            job->failures_in_a_row++;
        }
        touch(call, job);
        free(unit->promoted.tenant);
        *unit = job->active[--job->active_count];
    }
}

/* ---- finding what to move ---- */

struct walk {
    struct mc_call *call;
    struct job *job;
};

static int replica_there(const struct job *job, struct mc_object *o, bool *busy) {
    int found = -1;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        if (!mc_segment_gone(r->segment) && contains(&job->segments, r->segment->info.name)) {
            *busy = *busy || r->status != MC_REPLICA_COMPLETE;
            found = found < 0 ? (int)i : found;
        }
    }
    return found;
}

static void add_candidate(struct walk *walk, struct mc_object *o, bool on_disk) {
    struct mc_str tenant = mc_object_tenant(o), user = mc_object_key(o);
    struct candidate *c = &walk->job->queue[walk->job->queue_count++];
    c->tenant = mc_alloc(tenant.len + user.len + 1);
    char *key = c->tenant + tenant.len;
    if (tenant.len) {
        memcpy(c->tenant, tenant.ptr, tenant.len);
    }
    memcpy(key, user.ptr, user.len);
    c->key = (struct mc_key){.tenant = {c->tenant, tenant.len},
                             .user = {key, user.len},
                             .hash = mc_object_hash(walk->call->m, o)};
    c->on_disk = on_disk;
}

/* No memory of the drained segments has it: do their disks? */
static void look_at_disks(struct walk *walk, struct mc_shard *shard, struct mc_object *o,
                          bool busy) {
    struct job *job = walk->job;
    bool theirs, others;
    homes(job, o, &theirs, &others);
    job->disk_only_in_walk += theirs && !others;
    if (job->leave_disks || !theirs) {
        return;
    }
    if (busy) {
        job->found_in_walk++;
        job->blocked_in_walk++;
    } else if (!others) {
        job->found_in_walk++;
        add_candidate(walk, o, true);
    } else {
        forget_disks(walk->call, job, shard, o);
    }
}

static bool look(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    struct walk *walk = ctx;
    struct job *job = walk->job;
    bool busy = mc_replicating(o);
    if (replica_there(job, o, &busy) < 0) {
        look_at_disks(walk, shard, o, busy || o->list == MC_LIST_PROCESSING);
    } else {
        job->found_in_walk++;
        if (busy) {
            job->blocked_in_walk++;
        } else {
            add_candidate(walk, o, false);
        }
    }
    return job->queue_count < CANDIDATES_PER_JOB;
}

/* What the disks still have that go with the segments. */
static uint64_t on_disks(struct mc_master *m, const struct job *job) {
    uint64_t replicas = 0;
    for (size_t c = 0; !job->leave_disks && c < job->client_count; c++) {
        replicas += mc_disk_replicas(m, job->clients[c]);
    }
    return replicas;
}

static void set_status_locked(struct mc_master *m, const struct job *job, int from, int to) {
    for (size_t i = 0; i < job->segments.count; i++) {
        mc_segments_set_status(m, name_at(&job->segments, i), from, to);
    }
}

/* From DRAINED on their disks get nothing new, so what is not there then is never. */
static bool empty_locked(struct mc_master *m, const struct job *job, uint64_t now_ms) {
    if (on_disks(m, job) > 0 || now_ms < job->readers_until_ms) {
        return false;
    }
    set_status_locked(m, job, MC_SEGMENT_DRAINING, MC_SEGMENT_DRAINED);
    if (on_disks(m, job) == 0) {
        return true;
    }
    set_status_locked(m, job, MC_SEGMENT_DRAINED, MC_SEGMENT_DRAINING);
    return false;
}

/* The end of a walk: is this the end of the job? */
static void walked_locked(struct mc_call *call, struct job *job) {
    uint64_t extents = 0;
    bool lost = false;
    job->blocked = job->blocked_in_walk;
    job->disk_only = job->disk_only_in_walk;
    for (size_t i = 0; i < job->segments.count; i++) {
        struct mc_str name = name_at(&job->segments, i);
        int32_t segment;
        extents += mc_segments_extents(call->m, name);
        lost = lost || mc_segment_status_by_name(call->m, name, &segment) != MC_OK ||
               segment != MC_SEGMENT_DRAINING;
    }
    extents = call->m->config.break_mode == MC_BREAK_DRAIN_EARLY ? 0 : extents;
    if (lost) {
        end_locked(call, job, MC_JOB_FAILED, MC_SEGMENT_OK,
                   "a segment was unmounted before it was empty");
    } else if (job->found_in_walk == 0 && extents == 0 &&
               empty_locked(call->m, job, call->now_ms)) {
        end_locked(call, job, MC_JOB_SUCCEEDED, MC_SEGMENT_DRAINED, "Drain job finished");
    }
    job->walk_after_ms = call->now_ms + WALK_PAUSE_MS;
    job->found_in_walk = job->blocked_in_walk = job->disk_only_in_walk = 0;
    job->next_shard = 0;
}

/* Who has nothing but segments of this job goes, and its disk with it. */
static void find_clients_locked(struct mc_master *m, struct job *job) {
    job->client_count = 0;
    pthread_rwlock_rdlock(&m->segments_lock);
    for (size_t i = 0; i < m->segment_count && job->client_count < MC_DRAIN_SEGMENTS_MAX; i++) {
        struct mc_uuid client = m->segments[i]->client;
        bool goes = contains(&job->segments, m->segments[i]->info.name);
        for (size_t k = 0; goes && k < m->segment_count; k++) {
            goes = !mc_uuid_eq(m->segments[k]->client, client) ||
                   contains(&job->segments, m->segments[k]->info.name);
        }
        if (goes) {
            job->clients[job->client_count++] = client;
        }
    }
    pthread_rwlock_unlock(&m->segments_lock);
}

/* Goes on with the walk until there is enough to do. */
static void walk_locked(struct mc_call *call, struct job *job) {
    struct walk walk = {call, job};
    uint64_t objects = 0;
    if (job->next_shard == 0 && call->now_ms < job->walk_after_ms) {
        return;
    }
    if (job->next_shard == 0) {
        find_clients_locked(call->m, job);
    }
    while (job->next_shard < MC_SHARDS && objects < OBJECTS_PER_TICK &&
           job->queue_count < CANDIDATES_MAX) {
        struct mc_shard *shard = &call->m->shards[job->next_shard++];
        mc_lock_acquire(&shard->lock);
        objects += mc_shard_count(shard);
        mc_shard_each(shard, look, &walk);
        mc_lock_release(&shard->lock);
    }
    if (job->next_shard == MC_SHARDS && job->queue_count == 0 && job->active_count == 0) {
        walked_locked(call, job);
    }
}

/* ---- moving ---- */

/* What a move of the object needs to know, read under the shard's lock. */
struct plan {
    struct mc_str source;
    struct mc_vec has;       /* names that have the object or are drained: no target */
    struct mc_str elsewhere; /* another segment that has it; "" = none */
    uint64_t size;
};

static bool plan(struct mc_call *call, const struct job *job, const struct mc_key *key,
                 struct plan *out) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    bool busy = false;
    *out = (struct plan){0};
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    int at = o && !mc_replicating(o) ? replica_there(job, o, &busy) : -1;
    if (at >= 0 && !busy) {
        struct mc_str *names =
            mc_arena_alloc(call->arena, (o->replica_count + job->segments.count) * sizeof(*names));
        size_t n = 0;
        const struct mc_replica *moved = mc_object_replica(o, (unsigned)at);
        for (unsigned i = 0; i < o->replica_count; i++) {
            const struct mc_replica *r = mc_object_replica(o, i);
            if (r->stripe != moved->stripe) {
                continue; /* a node may have several stripes, but each once */
            }
            names[n] = mc_arena_str(call->arena, r->segment->info.name);
            if (r->status == MC_REPLICA_COMPLETE && r->type == MC_REPLICA_MEMORY &&
                !contains(&job->segments, names[n])) {
                out->elsewhere = names[n];
            }
            n++;
        }
        out->source = mc_arena_str(call->arena, moved->segment->info.name);
        out->size = mc_replica_bytes(moved, o->size);
        for (size_t i = 0; i < job->segments.count; i++) {
            names[n++] = name_at(&job->segments, i);
        }
        out->has = (struct mc_vec){names, n};
    }
    mc_lock_release(&shard->lock);
    return out->source.len > 0;
}

/* Takes over the candidate's names. */
static void promote_locked(struct mc_call *call, struct job *job, struct candidate *c) {
    uint64_t size;
    if (mc_promote_ask(call, &c->key, &size) == MC_OK) {
        uint64_t give_up_ms = call->now_ms + call->m->config.put_start_discard_timeout_ms;
        job->active[job->active_count++] =
            (struct unit){.size = size, .promoted = *c, .give_up_ms = give_up_ms};
        c->tenant = NULL;
        touch(call, job);
    }
}

/* False when no more can be begun now. */
static bool begin_locked(struct mc_call *call, struct job *job, struct candidate *c) {
    struct plan p;
    struct mc_str target;
    struct unit unit = {0};
    if (c->on_disk) {
        promote_locked(call, job, c);
        return true; /* else it has gone, or is in memory again: the next walk will see */
    }
    if (!plan(call, job, &c->key, &p)) {
        return true; /* it has gone, or is busy: the next walk will see */
    }
    if (!mc_place_target(call, p.size, &job->targets, &p.has, &target)) {
        target = p.elsewhere;
    }
    if (target.len == 0) {
        job->blocked_in_walk++;
        return true;
    }
    enum mc_status status = mc_move_task(call, &c->key, p.source, target, &unit.task);
    if (status == MC_OK) {
        unit.size = p.size;
        job->active[job->active_count++] = unit;
        touch(call, job);
    }
    return status != MC_TASK_PENDING_LIMIT_EXCEEDED;
}

static void advance_locked(struct mc_call *call, struct job *job) {
    job->status = MC_JOB_RUNNING;
    job->message = "Drain job running";
    collect_locked(call, job);
    if (job->failures_in_a_row >= FAILURES_IN_A_ROW) {
        if (job->active_count == 0) {
            end_locked(call, job, MC_JOB_FAILED, MC_SEGMENT_OK, "too many moves in a row failed");
        }
        return;
    }
    if (job->queue_count == 0) {
        walk_locked(call, job);
    }
    while (!ended(job) && job->queue_count > 0 && job->active_count < job->max_concurrency &&
           call->now_ms >= job->hold_until_ms) {
        struct candidate *c = &job->queue[job->queue_count - 1];
        if (!begin_locked(call, job, c)) {
            break;
        }
        free(c->tenant);
        job->queue_count--;
    }
}

bool mc_drains_running(const struct mc_master *m) {
    return atomic_load_explicit(&m->drains->running, memory_order_relaxed) > 0;
}

bool mc_drain_targets(struct mc_call *call, struct mc_uuid client, struct mc_vec *targets) {
    struct mc_drains *drains = call->m->drains;
    bool drained = false;
    *targets = (struct mc_vec){0};
    if (!mc_drains_running(call->m)) {
        return false;
    }
    pthread_mutex_lock(&drains->lock);
    for (const struct job *job = drains->jobs; job && !drained; job = job->next) {
        for (size_t c = 0; !ended(job) && c < job->client_count; c++) {
            drained = drained || mc_same_client(job->clients[c], client);
        }
        struct mc_str *names =
            drained ? mc_arena_alloc(call->arena, (job->targets.count + 1) * sizeof(*names)) : NULL;
        for (size_t i = 0; drained && i < job->targets.count; i++) {
            names[targets->count++] = mc_arena_str(call->arena, name_at(&job->targets, i));
        }
        targets->items = names;
    }
    pthread_mutex_unlock(&drains->lock);
    return drained;
}

void mc_drains_tick(struct mc_call *call) {
    struct mc_drains *drains = call->m->drains;
    if (!mc_drains_running(call->m)) {
        return;
    }
    pthread_mutex_lock(&drains->lock);
    for (struct job *job = drains->jobs; job; job = job->next) {
        if (!ended(job)) {
            advance_locked(call, job);
        }
    }
    pthread_mutex_unlock(&drains->lock);
}

/* ---- asking for it ---- */

static enum mc_status check_names(struct mc_master *m, const struct mc_vec *segments,
                                  const struct mc_vec *targets) {
    for (size_t i = 0; i < targets->count; i++) {
        int32_t status;
        if (contains(segments, name_at(targets, i))) {
            return MC_INVALID_PARAMS;
        }
        MC_TRY(mc_segment_status_by_name(m, name_at(targets, i), &status));
    }
    for (size_t i = 0; i < segments->count; i++) {
        int32_t status;
        MC_TRY(mc_segment_status_by_name(m, name_at(segments, i), &status));
        if (status != MC_SEGMENT_OK) {
            return MC_UNAVAILABLE_IN_CURRENT_STATUS;
        }
    }
    return MC_OK;
}

/* Forgets the oldest that has ended when there are too many; false when none has. */
static bool make_room_locked(struct mc_drains *drains) {
    size_t count = 0;
    struct job **oldest = NULL;
    for (struct job **at = &drains->jobs; *at; at = &(*at)->next) {
        count++;
        oldest = ended(*at) ? at : oldest;
    }
    if (count < MC_DRAIN_JOBS_MAX) {
        return true;
    }
    if (oldest) {
        struct job *job = *oldest;
        *oldest = job->next;
        job_free(job);
    }
    return oldest != NULL;
}

enum mc_status mc_master_drain(struct mc_master *m, const struct mc_vec *segments,
                               const struct mc_vec *targets, uint64_t max_concurrency,
                               bool leave_disks, struct mc_uuid *id) {
    struct mc_drains *drains = m->drains;
    if (segments->count == 0 || segments->count > MC_DRAIN_SEGMENTS_MAX ||
        targets->count > MC_DRAIN_SEGMENTS_MAX || max_concurrency == 0 ||
        max_concurrency > MC_DRAIN_CONCURRENCY_MAX) {
        return MC_INVALID_PARAMS;
    }
    pthread_mutex_lock(&drains->lock); /* two jobs may not take the same segment */
    enum mc_status status = check_names(m, segments, targets);
    if (status == MC_OK && !make_room_locked(drains)) {
        status = MC_TASK_PENDING_LIMIT_EXCEEDED;
    }
    if (status == MC_OK) {
        struct job *job = mc_zalloc(sizeof(*job));
        *job = (struct job){.next = drains->jobs,
                            .id = {mc_random(m), mc_random(m)},
                            .status = MC_JOB_CREATED,
                            .created_wall_ms = (int64_t)m->clock->wall_ms(m->clock),
                            .segments = own_names(segments),
                            .targets = own_names(targets),
                            .max_concurrency = max_concurrency,
                            .leave_disks =
                                leave_disks || m->config.break_mode == MC_BREAK_DRAIN_MEMORY,
                            .message = "Drain job created"};
        job->updated_wall_ms = job->created_wall_ms;
        job->active = mc_alloc(max_concurrency * sizeof(*job->active));
        job->queue = mc_alloc(CANDIDATES_PER_JOB * sizeof(*job->queue));
        for (size_t i = 0; i < segments->count; i++) {
            mc_segments_set_status(m, name_at(segments, i), MC_SEGMENT_OK, MC_SEGMENT_DRAINING);
        }
        *id = job->id;
        drains->jobs = job;
        atomic_fetch_add_explicit(&drains->running, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&drains->lock);
    return status;
}

static struct job *find_locked(struct mc_drains *drains, struct mc_uuid id) {
    struct job *job = drains->jobs;
    while (job && !mc_uuid_eq(job->id, id)) {
        job = job->next;
    }
    return job;
}

enum mc_status mc_master_job(struct mc_master *m, struct mc_uuid id, struct mc_arena *arena,
                             struct mc_master_job_info *out) {
    struct mc_drains *drains = m->drains;
    pthread_mutex_lock(&drains->lock);
    const struct job *job = find_locked(drains, id);
    if (job) {
        struct mc_str *names = mc_arena_alloc(arena, (job->segments.count + 1) * sizeof(*names));
        for (size_t i = 0; i < job->segments.count; i++) {
            names[i] = mc_arena_str(arena, name_at(&job->segments, i));
        }
        *out = (struct mc_master_job_info){.id = job->id,
                                           .status = job->status,
                                           .created_ms = job->created_wall_ms,
                                           .updated_ms = job->updated_wall_ms,
                                           .segments = {names, job->segments.count},
                                           .succeeded = job->succeeded,
                                           .failed = job->failed,
                                           .blocked = job->blocked,
                                           .active = job->active_count,
                                           .migrated_bytes = job->migrated_bytes,
                                           .disk_only = job->disk_only,
                                           .message = mc_str_from(job->message)};
    }
    pthread_mutex_unlock(&drains->lock);
    return job ? MC_OK : MC_JOB_NOT_FOUND;
}

enum mc_status mc_master_job_cancel(struct mc_master *m, struct mc_uuid id) {
    struct mc_drains *drains = m->drains;
    struct mc_call call = {.m = m, .now_ms = mc_now_ms(m->clock)};
    enum mc_status status = MC_JOB_NOT_FOUND;
    pthread_mutex_lock(&drains->lock);
    struct job *job = find_locked(drains, id);
    if (job && (ended(job) || job->active_count > 0)) {
        job->hold_until_ms = call.now_ms + CANCEL_HOLD_MS;
        status = MC_UNAVAILABLE_IN_CURRENT_STATUS;
    } else if (job) {
        end_locked(&call, job, MC_JOB_CANCELED, MC_SEGMENT_OK, "Drain job canceled");
        status = MC_OK;
    }
    pthread_mutex_unlock(&drains->lock);
    return status;
}

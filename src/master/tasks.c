/*
 * Tasks: what nodes are asked to do, and what became of it.
 *
 * A task belongs to the client that owns the bytes; it fetches its tasks, oldest first, does them
 * and tells how they ended. A task is pending, then processing, then finished; each state has a
 * bound and a list in the order of entering it, so that time-outs look only at heads. Pending tasks
 * are also in a queue of their client's bucket. Finished ones are kept, the oldest are forgotten.
 *
 * Whoever created a task asks for its state like anybody else: there are no call-backs, and the
 * lock is a leaf.
 */
#include "master/core.h"

#include "wire/task_payload.h"

#define BUCKETS       1024u
#define MESSAGE_BYTES 4096u

struct task {
    struct task *next;       /* of its bucket by id */
    struct mc_list link;     /* in the list of its state */
    struct mc_list of_owner; /* in the queue of its client's bucket, when pending */
    struct mc_uuid id, client;
    enum mc_task_type type;
    enum mc_task_status status;
    struct mc_str payload, message;
    uint64_t since_ms; /* in this state */
    int64_t created_wall_ms, updated_wall_ms;
};

enum { PENDING, PROCESSING, FINISHED, STATES };

struct mc_tasks {
    struct mc_lock lock;
    struct task *by_id[BUCKETS];
    struct mc_list by_owner[BUCKETS];
    struct mc_list states[STATES];
    uint64_t counts[STATES];
    uint64_t ended[2]; /* failed, succeeded: ever */
};

struct mc_tasks *mc_tasks_create(void) {
    struct mc_tasks *tasks = mc_zalloc(sizeof(*tasks));
    for (unsigned i = 0; i < BUCKETS; i++) {
        mc_list_init(&tasks->by_owner[i]);
    }
    for (unsigned i = 0; i < STATES; i++) {
        mc_list_init(&tasks->states[i]);
    }
    return tasks;
}

static void task_free(struct task *t) {
    free((char *)t->payload.ptr);
    free((char *)t->message.ptr);
    free(t);
}

void mc_tasks_destroy(struct mc_tasks *tasks) {
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct task *t = tasks->by_id[i], *next; t; t = next) {
            next = t->next;
            task_free(t);
        }
    }
    free(tasks);
}

/* ---- states: need the lock ---- */

static unsigned bucket_of(struct mc_uuid id) {
    return (unsigned)(mc_hash64(&id, sizeof(id), 0) % BUCKETS);
}

static struct task **find_locked(struct mc_tasks *tasks, struct mc_uuid id) {
    struct task **at = &tasks->by_id[bucket_of(id)];
    while (*at && !mc_uuid_eq((*at)->id, id)) {
        at = &(*at)->next;
    }
    return at;
}

static unsigned state_of(const struct task *t) {
    return t->status == MC_TASK_PENDING      ? PENDING
           : t->status == MC_TASK_PROCESSING ? PROCESSING
                                             : FINISHED;
}

static void enter_locked(struct mc_call *call, struct task *t, enum mc_task_status status) {
    struct mc_tasks *tasks = call->m->tasks;
    mc_list_del(&t->link);
    mc_list_del(&t->of_owner);
    tasks->counts[state_of(t)]--;
    t->status = status;
    t->since_ms = call->now_ms;
    t->updated_wall_ms = (int64_t)call->m->clock->wall_ms(call->m->clock);
    mc_list_push_back(&tasks->states[state_of(t)], &t->link);
    tasks->counts[state_of(t)]++;
}

static void forget_locked(struct mc_tasks *tasks, struct task *t) {
    struct task **at = find_locked(tasks, t->id);
    *at = t->next;
    mc_list_del(&t->link);
    mc_list_del(&t->of_owner);
    tasks->counts[state_of(t)]--;
    task_free(t);
}

static struct task *oldest_locked(struct mc_tasks *tasks, unsigned state) {
    struct mc_list *list = &tasks->states[state];
    return mc_list_empty(list) ? NULL : mc_container_of(list->next, struct task, link);
}

static void finish_locked(struct mc_call *call, struct task *t, enum mc_task_status status,
                          struct mc_str message) {
    struct mc_tasks *tasks = call->m->tasks;
    struct mc_str kept = {message.ptr, mc_min_u64(message.len, MESSAGE_BYTES)};
    free((char *)t->message.ptr);
    t->message = (struct mc_str){mc_str_dup(kept), kept.len};
    tasks->ended[status == MC_TASK_SUCCESS]++;
    enter_locked(call, t, status);
    while (tasks->counts[FINISHED] > call->m->config.max_total_finished_tasks) {
        forget_locked(tasks, oldest_locked(tasks, FINISHED));
    }
}

/* ---- what the RPCs do ---- */

enum mc_status mc_task_create(struct mc_call *call, enum mc_task_type type, struct mc_uuid client,
                              struct mc_str payload, struct mc_uuid *id) {
    struct mc_tasks *tasks = call->m->tasks;
    struct task *t = mc_zalloc(sizeof(*t));
    *t = (struct task){.id = {mc_random(call->m), mc_random(call->m)},
                       .client = client,
                       .type = type,
                       .status = MC_TASK_PENDING,
                       .payload = {mc_str_dup(payload), payload.len},
                       .since_ms = call->now_ms,
                       .created_wall_ms = (int64_t)call->m->clock->wall_ms(call->m->clock)};
    t->updated_wall_ms = t->created_wall_ms;
    struct mc_uuid made = t->id;
    mc_lock_acquire(&tasks->lock);
    bool room = tasks->counts[PENDING] < call->m->config.max_total_pending_tasks;
    if (room) {
        struct task **at = find_locked(tasks, t->id);
        t->next = *at;
        *at = t;
        mc_list_push_back(&tasks->states[PENDING], &t->link);
        mc_list_push_back(&tasks->by_owner[bucket_of(client)], &t->of_owner);
        tasks->counts[PENDING]++;
    }
    mc_lock_release(&tasks->lock);
    if (!room) {
        task_free(t);
        return MC_TASK_PENDING_LIMIT_EXCEEDED;
    }
    *id = made;
    return MC_OK;
}

enum mc_status mc_task_query(struct mc_call *call, struct mc_uuid id, struct mw_task_info *out) {
    struct mc_tasks *tasks = call->m->tasks;
    mc_lock_acquire(&tasks->lock);
    const struct task *t = *find_locked(tasks, id);
    if (t) {
        *out = (struct mw_task_info){.id = t->id,
                                     .type = t->type,
                                     .status = t->status,
                                     .created = t->created_wall_ms,
                                     .updated = t->updated_wall_ms,
                                     .client = t->client,
                                     .message = mc_arena_str(call->arena, t->message)};
    }
    mc_lock_release(&tasks->lock);
    return t ? MC_OK : MC_TASK_NOT_FOUND;
}

void mc_tasks_fetch(struct mc_call *call, struct mc_uuid client, uint64_t count,
                    struct mc_vec *out) {
    struct mc_tasks *tasks = call->m->tasks;
    const struct mc_master_config *config = &call->m->config;
    struct mc_list *queue = &tasks->by_owner[bucket_of(client)];
    mc_lock_acquire(&tasks->lock);
    uint64_t room = config->max_total_processing_tasks -
                    mc_min_u64(config->max_total_processing_tasks, tasks->counts[PROCESSING]);
    uint64_t most = mc_min_u64(mc_min_u64(count, room), tasks->counts[PENDING]);
    struct mw_task_assignment *items = mc_arena_alloc(call->arena, (most + 1) * sizeof(*items));
    size_t n = 0;
    for (struct mc_list *l = queue->next, *next; l != queue && n < most; l = next) {
        struct task *t = mc_container_of(l, struct task, of_owner);
        next = l->next;
        if (!mc_uuid_eq(t->client, client)) {
            continue;
        }
        enter_locked(call, t, MC_TASK_PROCESSING);
        items[n++] =
            (struct mw_task_assignment){.id = t->id,
                                        .type = t->type,
                                        .payload = mc_arena_str(call->arena, t->payload),
                                        .created_at_ms = t->created_wall_ms,
                                        .max_retry_attempts = (uint32_t)config->max_retry_attempts};
    }
    mc_lock_release(&tasks->lock);
    *out = (struct mc_vec){items, n};
}

/* As upstream's: a task that has ended stays as it ended, and saying so again is no error. */
enum mc_status mc_task_complete(struct mc_call *call, struct mc_uuid client,
                                const struct mw_task_complete *done) {
    struct mc_tasks *tasks = call->m->tasks;
    enum mc_status status = MC_OK;
    mc_lock_acquire(&tasks->lock);
    struct task *t = *find_locked(tasks, done->id);
    if (!t) {
        status = MC_TASK_NOT_FOUND;
    } else if (!mc_uuid_eq(t->client, client)) {
        status = MC_ILLEGAL_CLIENT;
    } else if (done->status != MC_TASK_SUCCESS && done->status != MC_TASK_FAILED) {
        status = MC_INVALID_PARAMS;
    } else if (state_of(t) != FINISHED) {
        finish_locked(call, t, (enum mc_task_status)done->status, done->message);
    }
    mc_lock_release(&tasks->lock);
    return status;
}

void mc_tasks_drop_client(struct mc_call *call, struct mc_uuid client) {
    struct mc_tasks *tasks = call->m->tasks;
    mc_lock_acquire(&tasks->lock);
    for (unsigned state = PENDING; state <= PROCESSING; state++) {
        struct mc_list *list = &tasks->states[state];
        for (struct mc_list *l = list->next, *next; l != list; l = next) {
            struct task *t = mc_container_of(l, struct task, link);
            next = l->next;
            if (mc_uuid_eq(t->client, client)) {
                finish_locked(call, t, MC_TASK_FAILED, MC_STR("the client has gone"));
            }
        }
    }
    mc_lock_release(&tasks->lock);
}

static void expire_locked(struct mc_call *call, unsigned state, uint64_t timeout_ms,
                          struct mc_str message) {
    struct task *t;
    while (timeout_ms != 0 && (t = oldest_locked(call->m->tasks, state)) != NULL &&
           call->now_ms >= t->since_ms && call->now_ms - t->since_ms >= timeout_ms) {
        finish_locked(call, t, MC_TASK_FAILED, message);
    }
}

void mc_tasks_tick(struct mc_call *call) {
    const struct mc_master_config *config = &call->m->config;
    mc_lock_acquire(&call->m->tasks->lock);
    expire_locked(call, PENDING, config->pending_task_timeout_ms,
                  MC_STR("timed out before anybody took it"));
    expire_locked(call, PROCESSING, config->processing_task_timeout_ms,
                  MC_STR("timed out before it was done"));
    mc_lock_release(&call->m->tasks->lock);
}

uint64_t mc_tasks_count(struct mc_master *m, enum mc_task_status status) {
    struct mc_tasks *tasks = m->tasks;
    mc_lock_acquire(&tasks->lock);
    uint64_t count = status == MC_TASK_PENDING      ? tasks->counts[PENDING]
                     : status == MC_TASK_PROCESSING ? tasks->counts[PROCESSING]
                                                    : tasks->ended[status == MC_TASK_SUCCESS];
    mc_lock_release(&tasks->lock);
    return count;
}

/* ---- copy and move ---- */

/* The replica to copy from: on `source`, or, when that is empty, any, readable ones first. */
static enum mc_status find_source(struct mc_call *call, const struct mc_key *key,
                                  struct mc_str source, struct mw_task_payload *payload,
                                  struct mc_uuid *client) {
    struct mc_shard *shard = mc_shard_of(call->m, key->hash);
    const struct mc_segment *found = NULL;
    mc_lock_acquire(&shard->lock);
    struct mc_object *o = mc_object_find(call->m, shard, key);
    unsigned first = o ? (unsigned)(mc_random(call->m) % o->replica_count) : 0;
    for (unsigned i = 0; o && i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, (first + i) % o->replica_count);
        bool readable = r->status == MC_REPLICA_COMPLETE;
        if (r->type != MC_REPLICA_MEMORY) {
            continue; /* tasks copy memory */
        }
        if (source.len ? mc_str_eq(r->segment->info.name, source) : readable || !found) {
            found = r->segment;
            if (readable) {
                break;
            }
        }
    }
    if (found) {
        *client = found->client;
        payload->source = mc_arena_str(call->arena, found->info.name);
        payload->stripes = o->first.stripes;
    }
    mc_lock_release(&shard->lock);
    return !o ? MC_OBJECT_NOT_FOUND : found ? MC_OK : MC_INVALID_PARAMS;
}

/* An unknown segment is INVALID_PARAMS here, as upstream answers. */
static enum mc_status check_target(struct mc_call *call, struct mc_str name) {
    pthread_rwlock_rdlock(&call->m->segments_lock);
    enum mc_status status = mc_place_check(call, name);
    pthread_rwlock_unlock(&call->m->segments_lock);
    return status == MC_SEGMENT_NOT_FOUND ? MC_INVALID_PARAMS : status;
}

static enum mc_status create(struct mc_call *call, enum mc_task_type type, const struct mc_key *key,
                             struct mc_str source, const struct mc_vec *targets,
                             struct mc_uuid *id) {
    struct mw_task_payload payload = {.tenant = key->tenant.len ? key->tenant : MC_STR("default"),
                                      .key = key->user,
                                      .targets = *targets};
    struct mc_uuid client;
    MC_TRY(find_source(call, key, source, &payload, &client));
    for (size_t i = 0; i < targets->count; i++) {
        MC_TRY(check_target(call, ((const struct mc_str *)targets->items)[i]));
    }
    struct mc_buf text = {0};
    mw_task_payload_encode(type, &payload, &text);
    enum mc_status status =
        mc_task_create(call, type, client, (struct mc_str){text.data, text.len}, id);
    mc_buf_free(&text);
    return status;
}

enum mc_status mc_copy_task(struct mc_call *call, const struct mc_key *key,
                            const struct mc_vec *targets, struct mc_uuid *id) {
    if (targets->count == 0 || targets->count > MC_MAX_REPLICAS) {
        return MC_INVALID_PARAMS;
    }
    return create(call, MC_TASK_COPY, key, (struct mc_str){"", 0}, targets, id);
}

enum mc_status mc_move_task(struct mc_call *call, const struct mc_key *key, struct mc_str source,
                            struct mc_str target, struct mc_uuid *id) {
    struct mc_vec targets = {&target, 1};
    if (source.len == 0 || mc_str_eq(source, target)) {
        return MC_INVALID_PARAMS;
    }
    return create(call, MC_TASK_MOVE, key, source, &targets, id);
}

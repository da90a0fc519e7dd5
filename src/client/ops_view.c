/*
 * Views: objects read in place, under a lease that the heartbeat renews until the view is released.
 *
 * A record belongs to whoever opened the view; the renewal, which may not hold the lock while it
 * asks the master, counts itself as a second owner. A view is lost, for good, when a renewal finds
 * its replica gone or was answered after the lease had ended: between the two the bytes may have
 * been somebody else's.
 *
 * An object that is on disk only, or striped, has nothing that could be mapped: its view holds a
 * copy, which no lease bounds. So is that of an object with a copy in the hot cache: the copy
 * itself, which stays what the object was when the view was opened.
 */
#include "client/ops_internal.h"

#include <stdatomic.h>

#include "base/log.h"
#include "client/checksum.h"
#include "client/hot_cache.h"

#define RENEW_TIMEOUT_NS (3 * MC_SEC) /* the pings that follow must not be late */
/* At least, between two renewals: a tiny lease must not become a busy loop. */
#define RENEW_PAUSE_NS (20 * MC_MS)

struct mc_view_record {
    struct mc_list link;
    struct mc_ops *ops;
    struct mc_str key;
    struct mc_str endpoint;
    const void *data;
    void *copy; /* not NULL: the data, of an object that is nowhere in one piece; the rest is unused
                 */
    struct mc_hot_entry *hot; /* or the same of an entry of the cache */
    uint64_t replica_id;
    uint64_t address;
    uint64_t size;
    bool counted;                  /* it is the application's */
    uint64_t renew_at_ns;          /* written by the renewal only */
    _Atomic uint64_t lease_end_ns; /* 0 = lost */
    uint32_t owners;               /* guarded by ops->lock */
};

static struct mc_view_record *record_create(struct mc_ops *ops, struct mc_str key,
                                            const struct mw_replica *replica, const void *data) {
    struct mc_view_record *record = mc_zalloc(sizeof(*record));
    record->ops = ops;
    record->data = data;
    record->key = (struct mc_str){mc_str_dup(key), key.len};
    record->endpoint =
        (struct mc_str){mc_str_dup(replica->memory.endpoint), replica->memory.endpoint.len};
    record->replica_id = replica->id;
    record->address = replica->memory.address;
    record->size = replica->memory.size;
    record->owners = 1;
    return record;
}

static void record_destroy(struct mc_view_record *record) {
    struct mc_port *port = record->ops->port;
    if (record->hot != NULL) {
        mc_hot_put(record->ops->hot, record->hot);
    } else if (record->copy == NULL) {
        port->ops->unmap(port, record->endpoint, record->data);
    }
    free(record->copy);
    free((char *)record->key.ptr);
    free((char *)record->endpoint.ptr);
    free(record);
}

static void record_put(struct mc_view_record *record) {
    struct mc_ops *ops = record->ops;
    pthread_mutex_lock(&ops->lock);
    bool last = --record->owners == 0;
    if (last) {
        mc_list_del(&record->link);
        ops->view_count--;
    }
    pthread_mutex_unlock(&ops->lock);
    if (last) {
        record_destroy(record);
    }
}

static uint64_t lease_end_ns(uint64_t asked_ns, uint64_t ttl_ms) {
    return asked_ns + mc_min_u64(ttl_ms, UINT32_MAX) * MC_MS;
}

static void set_lease(struct mc_view_record *record, uint64_t asked_ns, uint64_t ttl_ms) {
    uint64_t end_ns = lease_end_ns(asked_ns, ttl_ms);
    record->renew_at_ns = asked_ns + (end_ns - asked_ns) / 2;
    atomic_store_explicit(&record->lease_end_ns, end_ns, memory_order_release);
}

bool mc_ops_view_valid(const struct mc_view_record *record) {
    uint64_t end = atomic_load_explicit(&record->lease_end_ns, memory_order_acquire);
    return end != 0 && mc_ops_now(record->ops) < end;
}

/* Whether the bytes are those that were written. Those that were mapped after the lease may be
 * another object's: nothing is wrong with them. */
static enum mc_status check_mapped(struct mc_ops *ops, const struct mc_ops_call *call,
                                   struct mc_str key, const struct mw_replica_list *list,
                                   const struct mw_replica *replica, const void *data) {
    struct mc_slice slice = {(void *)(uintptr_t)data, replica->memory.size}; /* only read */
    if (!ops->checksum || !list->checksum.has ||
        mc_checksum_slices(&slice, 1, slice.length) == list->checksum.value) {
        return MC_OK;
    }
    if (mc_ops_now(ops) >= lease_end_ns(call->asked_ns, list->lease_ttl_ms)) {
        return MC_LEASE_EXPIRED;
    }
    mc_metric_add(&ops->counters.checksum_mismatches, 1);
    mc_error("the bytes mapped are not the bytes written: key=%.*s replica=%llu endpoint=%.*s",
             (int)key.len, key.ptr, (unsigned long long)replica->id,
             (int)replica->memory.endpoint.len, replica->memory.endpoint.ptr);
    return MC_CHECKSUM_MISMATCH;
}

/* The nearest replica that can be mapped and is intact. */
static enum mc_status map_nearest(struct mc_ops *ops, const struct mc_ops_call *call,
                                  struct mc_str key, const struct mw_replica_list *list,
                                  uint64_t deadline_ns, const struct mw_replica **out,
                                  const void **data) {
    enum mc_status status = MC_REPLICA_NOT_IN_LOCAL_MEMORY;
    uint64_t tried = 0;
    size_t index;
    const struct mw_replica *replica;
    while ((replica = mc_ops_choose(ops, list, tried, &index)) != NULL) {
        *data = ops->port->ops->map(ops->port, replica->memory.endpoint, replica->memory.address,
                                    replica->memory.size, deadline_ns);
        if (*data != NULL) {
            status = check_mapped(ops, call, key, list, replica, *data);
            if (status == MC_OK) {
                *out = replica;
                return MC_OK;
            }
            ops->port->ops->unmap(ops->port, replica->memory.endpoint, *data);
        }
        tried |= 1ull << index;
    }
    return status;
}

static void keep(struct mc_ops *ops, struct mc_view_record *record) {
    pthread_mutex_lock(&ops->lock);
    mc_list_push_back(&ops->views, &record->link);
    ops->view_count++;
    pthread_mutex_unlock(&ops->lock);
    mc_metric_add(&ops->counters.views_opened, record->counted);
}

static bool on_disk_only(const struct mc_ops *ops, const struct mw_replica_list *list) {
    const struct mw_replica *replica = list->replicas.items;
    bool on_disk = false;
    for (size_t i = 0; i < list->replicas.count; i++) {
        if (mc_ops_replica_readable(&replica[i])) {
            return false;
        }
        on_disk = on_disk || mc_ops_replica_on_disk(ops, &replica[i]);
    }
    return on_disk;
}

/* A view of bytes that no lease bounds; who they are of is the caller's to write down. */
static struct mc_view_record *show(struct mc_ops *ops, const void *bytes, uint64_t length,
                                   struct mc_ops_view *view) {
    struct mc_view_record *record = mc_zalloc(sizeof(*record));
    record->ops = ops;
    record->data = bytes;
    record->counted = true;
    record->renew_at_ns = MC_NO_DEADLINE;
    atomic_store_explicit(&record->lease_end_ns, MC_NO_DEADLINE, memory_order_relaxed);
    record->owners = 1;
    *view = (struct mc_ops_view){
        .data = bytes, .length = length, .renew_at_ns = MC_NO_DEADLINE, .record = record};
    keep(ops, record);
    return record;
}

void mc_ops_view_of_hot(struct mc_ops *ops, struct mc_hot_entry *entry, const void *bytes,
                        uint64_t length, struct mc_ops_view *view) {
    show(ops, bytes, length, view)->hot = entry;
}

static void *make_copy(void *ctx, size_t length) {
    void **copy = ctx;
    free(*copy);
    *copy = malloc(length);
    return *copy;
}

/* A view of what is nowhere in memory in one piece: whatever a get gives. */
static enum mc_status view_copy(struct mc_ops *ops, struct mc_str key, struct mc_ops_view *view) {
    void *copy = NULL;
    char *name = mc_str_dup(key);
    struct mc_store_item item = {.key = name, .allocate = make_copy, .allocate_ctx = &copy};
    enum mc_status status = mc_ops_get(ops, &item, 1);
    status = status == MC_OK ? item.status : status;
    if (status != MC_OK) {
        free(copy);
        free(name);
        return status;
    }
    free(name);
    show(ops, copy, item.length, view)->copy = copy;
    return MC_OK;
}

/* The master's answer; *done when the view is a copy of the cache already. MC_NOT_SUPPORTED: the
 * object is striped, nowhere in one piece. */
static enum mc_status ask(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str key,
                          uint64_t deadline_ns, struct mw_replica_list *list,
                          struct mc_ops_view *view, bool *done) {
    struct mw_a_key args = {.key = key, .tenant = ops->tenant};
    struct mw_e_list answer;
    *done = false;
    if (ops->hot != NULL && mc_ops_master_is_ours(ops)) {
        struct mc_vec answers;
        enum mc_status status = mc_ops_get_objects(ops, call, &key, 1, deadline_ns, &answers);
        const struct mw_e_object *object = answers.items;
        if (status == MC_OK) {
            MC_TRY(mc_ops_status(object->error));
            *list = object->value.list;
            *done = mc_ops_view_hot(ops, key, object->value.version, &list->checksum, view);
            return *done || object->value.stripes <= 1 ? MC_OK : MC_NOT_SUPPORTED;
        }
        if (status != MC_NOT_SUPPORTED) {
            return status;
        }
        mc_ops_master_refused(ops, "the hot cache is off, as no versions are told");
    }
    MC_TRY(mc_ops_rpc(ops, call, MC_RPC_GetReplicaList, &args, &answer, deadline_ns,
                      MC_OPS_IDEMPOTENT));
    *list = answer.value;
    return mc_ops_status(answer.error);
}

/* What the list is of, where it lies. */
static enum mc_status show_in_place(struct mc_ops *ops, const struct mc_ops_call *call,
                                    struct mc_str key, const struct mw_replica_list *list,
                                    uint64_t deadline_ns, bool counted, struct mc_ops_view *view) {
    const void *data = NULL;
    const struct mw_replica *replica = NULL;
    MC_TRY(map_nearest(ops, call, key, list, deadline_ns, &replica, &data));
    struct mc_view_record *record = record_create(ops, key, replica, data);
    record->counted = counted;
    set_lease(record, call->asked_ns, list->lease_ttl_ms);
    if (!mc_ops_view_valid(record)) {
        record_destroy(record);
        return MC_LEASE_EXPIRED;
    }
    *view = (struct mc_ops_view){.data = data,
                                 .length = replica->memory.size,
                                 .renew_at_ns = record->renew_at_ns,
                                 .record = record};
    keep(ops, record);
    return MC_OK;
}

static enum mc_status view_open(struct mc_ops *ops, struct mc_ops_call *call, struct mc_str key,
                                struct mc_ops_view *view) {
    uint64_t deadline_ns = mc_ops_deadline(ops);
    struct mw_replica_list list;
    bool done;
    enum mc_status status = ask(ops, call, key, deadline_ns, &list, view, &done);
    if (status == MC_NOT_SUPPORTED || (status == MC_OK && !done && on_disk_only(ops, &list))) {
        return view_copy(ops, key, view);
    }
    if (status != MC_OK || done) {
        return status;
    }
    return show_in_place(ops, call, key, &list, deadline_ns, true, view);
}

enum mc_status mc_ops_view_open(struct mc_ops *ops, const char *key, struct mc_ops_view *view) {
    struct mc_str name;
    MC_TRY(mc_ops_key(key, &name));
    struct mc_ops_call *call = mc_ops_begin(ops);
    enum mc_status status = view_open(ops, call, name, view);
    mc_ops_end(ops, call);
    return status;
}

/* Those at [0, n), which one request asks for. */
static void views_open(struct mc_ops *ops, struct mc_ops_call *call, const struct mc_str *keys,
                       size_t n, struct mc_ops_view *views, enum mc_status *statuses) {
    struct mw_a_keys args = {.keys = {(void *)(uintptr_t)keys, n}, .tenant = ops->tenant};
    uint64_t deadline_ns = mc_ops_deadline(ops);
    struct mc_vec answers;
    enum mc_status status = mc_ops_rpc_batch(ops, call, MC_RPC_BatchGetReplicaList, &args, &answers,
                                             n, deadline_ns, MC_OPS_IDEMPOTENT);
    for (size_t i = 0; i < n; i++) {
        statuses[i] = status;
        if (status == MC_OK) {
            const struct mw_e_list *answer = (const struct mw_e_list *)answers.items + i;
            statuses[i] = mc_ops_status(answer->error);
            if (statuses[i] == MC_OK) {
                statuses[i] = show_in_place(ops, call, keys[i], &answer->value, deadline_ns, false,
                                            &views[i]);
            }
        }
        /* an object in stripes, of which the words of this question do not speak */
        statuses[i] =
            statuses[i] == MC_NOT_SUPPORTED ? MC_REPLICA_NOT_IN_LOCAL_MEMORY : statuses[i];
    }
}

void mc_ops_views_open(struct mc_ops *ops, const struct mc_str *keys, size_t count,
                       struct mc_ops_view *views, enum mc_status *statuses) {
    for (size_t done = 0, n; done < count; done += n) {
        size_t bytes = 0;
        for (n = 0; done + n < count && n < MC_STORE_BATCH_CHUNK; n++) {
            bytes += keys[done + n].len;
            if (n > 0 && bytes > OPS_CHUNK_KEY_BYTES) {
                break;
            }
        }
        struct mc_ops_call *call = mc_ops_begin(ops);
        views_open(ops, call, keys + done, n, views + done, statuses + done);
        mc_ops_end(ops, call);
    }
}

void mc_ops_view_release(struct mc_ops *ops, struct mc_view_record *record) {
    MC_ASSERT(record->ops == ops);
    record_put(record);
}

void mc_ops_view_release_all(struct mc_ops *ops) {
    if (!mc_list_empty(&ops->views)) {
        mc_warn("views are still open at the end of their store: count=%zu", ops->view_count);
    }
    while (!mc_list_empty(&ops->views)) {
        record_put(mc_container_of(ops->views.next, struct mc_view_record, link));
    }
}

/* ---- renewal ---- */

static bool still_there(const struct mc_view_record *record, const struct mw_e_list *answer) {
    if (answer->error != 0) {
        return false;
    }
    const struct mw_replica *replica = answer->value.replicas.items;
    for (size_t i = 0; i < answer->value.replicas.count; i++) {
        if (mc_ops_replica_readable(&replica[i]) && replica[i].id == record->replica_id &&
            replica[i].memory.address == record->address &&
            replica[i].memory.size == record->size &&
            mc_str_eq(replica[i].memory.endpoint, record->endpoint)) {
            return true;
        }
    }
    return false;
}

static void renew_records(struct mc_ops *ops, struct mc_ops_call *call,
                          struct mc_view_record **records, size_t count) {
    struct mc_str *names = mc_arena_alloc(&call->arena, count * sizeof(*names));
    for (size_t i = 0; i < count; i++) {
        names[i] = records[i]->key;
    }
    struct mw_a_keys args = {.keys = {names, count}, .tenant = ops->tenant};
    struct mc_vec answers;
    if (mc_ops_rpc_batch(ops, call, MC_RPC_BatchGetReplicaList, &args, &answers, count,
                         mc_ops_now(ops) + mc_min_u64(ops->timeout_ns, RENEW_TIMEOUT_NS),
                         MC_OPS_IDEMPOTENT) != MC_OK) {
        return; /* the leases run out by themselves unless the next renewal is in time */
    }
    uint64_t answered = mc_ops_now(ops);
    for (size_t i = 0; i < count; i++) {
        const struct mw_e_list *answer = (const struct mw_e_list *)answers.items + i;
        uint64_t end = atomic_load_explicit(&records[i]->lease_end_ns, memory_order_relaxed);
        if (answered < end && still_there(records[i], answer)) {
            set_lease(records[i], call->asked_ns, answer->value.lease_ttl_ms);
            mc_metric_add(&ops->counters.leases_renewed, 1);
        } else {
            atomic_store_explicit(&records[i]->lease_end_ns, 0, memory_order_release);
            if (records[i]->counted) {
                mc_metric_add(&ops->counters.views_lost, 1);
                mc_warn_limited("a view was lost: key=%.*s", (int)records[i]->key.len,
                                records[i]->key.ptr);
            }
        }
    }
}

/* The records whose renewal is due, each counted as owned; NULL when none. *next = when the
 * earliest other is due. */
static struct mc_view_record **take_due(struct mc_ops *ops, struct mc_ops_call *call, size_t *count,
                                        uint64_t *next) {
    uint64_t now = mc_ops_now(ops);
    *count = 0;
    *next = MC_NO_DEADLINE;
    pthread_mutex_lock(&ops->lock);
    struct mc_view_record **due =
        mc_arena_alloc(&call->arena, (ops->view_count + 1) * sizeof(*due));
    for (struct mc_list *l = ops->views.next; l != &ops->views; l = l->next) {
        struct mc_view_record *record = mc_container_of(l, struct mc_view_record, link);
        if (atomic_load_explicit(&record->lease_end_ns, memory_order_relaxed) == 0) {
            continue;
        }
        if (now >= record->renew_at_ns) {
            record->owners++;
            due[(*count)++] = record;
        } else {
            *next = mc_min_u64(*next, record->renew_at_ns);
        }
    }
    pthread_mutex_unlock(&ops->lock);
    return due;
}

uint64_t mc_ops_view_renew(struct mc_ops *ops) {
    struct mc_ops_call *call = mc_ops_begin(ops);
    size_t count;
    uint64_t next;
    struct mc_view_record **due = take_due(ops, call, &count, &next);
    for (size_t done = 0; done < count;) {
        size_t n = 0;
        size_t bytes = 0;
        while (done + n < count && n < MC_STORE_BATCH_CHUNK &&
               (n == 0 || bytes < OPS_CHUNK_KEY_BYTES)) {
            bytes += due[done + n++]->key.len;
        }
        renew_records(ops, call, due + done, n);
        done += n;
    }
    for (size_t i = 0; i < count; i++) {
        next = mc_min_u64(next, due[i]->renew_at_ns);
        record_put(due[i]);
    }
    mc_ops_end(ops, call);
    return next == MC_NO_DEADLINE ? next : mc_max_u64(next, mc_ops_now(ops) + RENEW_PAUSE_NS);
}

/*
 * Tenants with quotas: who may write, and how much.
 *
 * An account holds what the replicas in memory of a tenant's objects take: charged when their
 * extents are allocated, given back when a replica leaves its object. So the charge equals the sum
 * over the objects at every moment (fsck proves it), and is never above the quota by a charge. It
 * may be above after the quota was lowered or the cluster has shrunk; then new charges are refused.
 *
 * Quotas that together are more than the memory of the cluster are scaled down to it, in
 * proportion; what rounding leaves goes to those who lost most by it. A tenant whose policy was
 * taken away keeps its account; accounts stay for the master's life.
 *
 * The table's lock is held (read) across a charge, so a policy is not taken away between the look
 * at it and the charge.
 */
#include "master/core.h"
#include "master/tenants.h"

#include <inttypes.h>

#include "base/log.h"

#define BUCKETS 1024u

struct account {
    struct account *next;
    _Atomic uint64_t charged, effective;
    _Atomic uint64_t evicted, rejected;
    uint64_t requested; /* 0 = no policy */
    uint64_t audited;
    uint64_t rest;     /* while shares are computed */
    uint32_t name_len; /* 0 = "default" */
    char name[];
};

struct mc_tenants {
    pthread_rwlock_t lock;
    struct mc_lock policy_lock; /* one change of policies, with its file, at a time */
    struct account *buckets[BUCKETS];
    size_t count;
    uint64_t capacity;
    char *path;
};

static struct mc_str name_of(const struct account *a) {
    return (struct mc_str){a->name, a->name_len};
}
static struct mc_str shown_name(const struct account *a) {
    return a->name_len ? name_of(a) : MC_STR("default");
}

static struct account **slot_locked(struct mc_tenants *t, struct mc_str name) {
    struct account **at = &t->buckets[mc_hash64(name.ptr, name.len, 0) % BUCKETS];
    while (*at && !mc_str_eq(name_of(*at), name)) {
        at = &(*at)->next;
    }
    return at;
}

/* Made when it is not there; NULL at the limit. */
static struct account *account_locked(struct mc_tenants *t, struct mc_str name) {
    struct account **at = slot_locked(t, name);
    if (!*at && t->count < MC_TENANTS_MAX) {
        *at = mc_zalloc(sizeof(**at) + name.len);
        (*at)->name_len = (uint32_t)name.len;
        if (name.len) {
            memcpy((*at)->name, name.ptr, name.len);
        }
        t->count++;
    }
    return *at;
}

/* ---- shares ---- */

static int by_rest(const void *x, const void *y) {
    const struct account *a = *(struct account *const *)x, *b = *(struct account *const *)y;
    return (a->rest < b->rest) - (a->rest > b->rest);
}

/* The accounts, malloc'ed. */
static struct account **all_locked(struct mc_tenants *t) {
    struct account **all = mc_alloc((t->count + 1) * sizeof(struct account *));
    size_t n = 0;
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (struct account *a = t->buckets[b]; a; a = a->next) {
            all[n++] = a;
        }
    }
    return all;
}

static void share_locked(struct mc_tenants *t) {
    unsigned __int128 sum = 0;
    uint64_t given = 0;
    struct account **all = all_locked(t);
    for (size_t i = 0; i < t->count; i++) {
        sum += all[i]->requested;
    }
    for (size_t i = 0; i < t->count; i++) {
        uint64_t share = all[i]->requested;
        all[i]->rest = 0;
        if (sum > t->capacity) {
            unsigned __int128 scaled = (unsigned __int128)share * t->capacity;
            share = (uint64_t)(scaled / sum);
            all[i]->rest = (uint64_t)((scaled % sum) >> 16); /* order is all that matters */
        }
        atomic_store_explicit(&all[i]->effective, share, memory_order_relaxed);
        given += share;
    }
    if (sum > t->capacity) {
        qsort(all, t->count, sizeof(struct account *), by_rest);
        for (size_t i = 0; i < t->count && given < t->capacity; i++, given++) {
            atomic_fetch_add_explicit(&all[i]->effective, 1, memory_order_relaxed);
        }
    }
    free(all);
}

void mc_tenants_resize(struct mc_master *m) {
    struct mc_tenants *t = m->tenants;
    uint64_t used, capacity, segments;
    if (!t) {
        return;
    }
    mc_segments_usage(m, &used, &capacity, &segments);
    pthread_rwlock_wrlock(&t->lock);
    if (t->capacity != capacity) {
        t->capacity = capacity;
        share_locked(t);
    }
    pthread_rwlock_unlock(&t->lock);
}

/* ---- charges ---- */

enum mc_status mc_tenant_charge(struct mc_master *m, struct mc_str tenant, uint64_t bytes,
                                uint64_t credit) {
    struct mc_tenants *t = m->tenants;
    if (!t) {
        return MC_OK;
    }
    enum mc_status status = MC_TENANT_NOT_REGISTERED;
    pthread_rwlock_rdlock(&t->lock);
    struct account *a = *slot_locked(t, tenant);
    if (a && a->requested) {
        uint64_t charged = atomic_load_explicit(&a->charged, memory_order_relaxed);
        uint64_t limit = atomic_load_explicit(&a->effective, memory_order_relaxed);
        status = MC_OK;
        do {
            uint64_t kept = charged - mc_min_u64(charged, credit);
            bool looks = m->config.break_mode != MC_BREAK_NO_QUOTA;
            if (looks && (kept > limit || bytes > limit - kept)) {
                status = MC_TENANT_QUOTA_EXCEEDED;
                break;
            }
        } while (!atomic_compare_exchange_weak_explicit(
            &a->charged, &charged, charged + bytes, memory_order_relaxed, memory_order_relaxed));
    }
    pthread_rwlock_unlock(&t->lock);
    return status;
}

static void with_account(struct mc_master *m, struct mc_str tenant, size_t counter_offset,
                         uint64_t n) {
    if (!m->tenants) {
        return;
    }
    pthread_rwlock_rdlock(&m->tenants->lock);
    struct account *a = *slot_locked(m->tenants, tenant);
    MC_ASSERT(a);
    _Atomic uint64_t *counter = (_Atomic uint64_t *)(void *)((char *)a + counter_offset);
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
    pthread_rwlock_unlock(&m->tenants->lock);
}

void mc_tenant_refund(struct mc_master *m, struct mc_str tenant, uint64_t bytes) {
    if (bytes && m->config.break_mode != MC_BREAK_NO_REFUND) {
        with_account(m, tenant, offsetof(struct account, charged), 0 - bytes);
    }
}
void mc_tenant_evicted(struct mc_master *m, struct mc_str tenant, uint64_t bytes) {
    with_account(m, tenant, offsetof(struct account, evicted), bytes);
}
void mc_tenant_rejected(struct mc_master *m, struct mc_str tenant) {
    with_account(m, tenant, offsetof(struct account, rejected), 1);
}

uint64_t mc_object_charge(struct mc_object *o) {
    uint64_t in_memory = 0;
    for (unsigned i = 0; i < o->replica_count; i++) {
        const struct mc_replica *r = mc_object_replica(o, i);
        in_memory += r->type == MC_REPLICA_MEMORY ? mc_replica_bytes(r, o->size) : 0;
    }
    return in_memory;
}

uint64_t mc_tenant_deficit(struct mc_master *m, struct mc_str tenant, uint64_t bytes) {
    uint64_t deficit = 0;
    pthread_rwlock_rdlock(&m->tenants->lock);
    const struct account *a = *slot_locked(m->tenants, tenant);
    uint64_t limit = a ? atomic_load_explicit(&a->effective, memory_order_relaxed) : 0;
    uint64_t charged = a ? atomic_load_explicit(&a->charged, memory_order_relaxed) : 0;
    if (bytes <= limit && charged > limit - bytes) {
        deficit = charged - (limit - bytes);
    }
    pthread_rwlock_unlock(&m->tenants->lock);
    return deficit;
}

/* ---- policies ---- */

bool mc_tenant_name_ok(struct mc_str name) {
    struct mc_str scope;
    return mc_tenant_normalise(name, &scope) == MC_OK;
}

static struct mc_tenant_info info_of(const struct account *a, struct mc_arena *arena) {
    return (struct mc_tenant_info){
        .name = mc_arena_str(arena, shown_name(a)),
        .requested = a->requested,
        .effective = atomic_load_explicit(&a->effective, memory_order_relaxed),
        .charged = atomic_load_explicit(&a->charged, memory_order_relaxed),
        .has_policy = a->requested > 0};
}

static int by_name(const void *x, const void *y) {
    const struct mc_tenant_info *a = x, *b = y;
    int order = memcmp(a->name.ptr, b->name.ptr, mc_min_u64(a->name.len, b->name.len));
    return order ? order : (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

enum mc_status mc_master_tenants(struct mc_master *m, struct mc_arena *arena,
                                 struct mc_tenant_info **out, size_t *count) {
    struct mc_tenants *t = m->tenants;
    if (!t) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    size_t n = 0;
    pthread_rwlock_rdlock(&t->lock);
    struct mc_tenant_info *infos = mc_arena_alloc(arena, (t->count + 1) * sizeof(*infos));
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (struct account *a = t->buckets[b]; a; a = a->next) {
            infos[n] = info_of(a, arena);
            n += infos[n].has_policy || infos[n].charged > 0;
        }
    }
    pthread_rwlock_unlock(&t->lock);
    qsort(infos, n, sizeof(*infos), by_name);
    *out = infos;
    *count = n;
    return MC_OK;
}

/* Writes the file as it will be when `name` has `bytes` (0 = no policy). */
static enum mc_status save(struct mc_master *m, struct mc_str name, uint64_t bytes) {
    struct mc_arena arena = {0};
    struct mc_tenant_info *all;
    size_t count, n = 0;
    MC_TRY(mc_master_tenants(m, &arena, &all, &count));
    struct mc_tenant_info *kept = mc_arena_alloc(&arena, (count + 1) * sizeof(*kept));
    for (size_t i = 0; i < count; i++) {
        if (all[i].has_policy && !mc_str_eq(all[i].name, name)) {
            kept[n++] = all[i];
        }
    }
    if (bytes) {
        kept[n++] = (struct mc_tenant_info){.name = mc_arena_str(&arena, name), .requested = bytes};
        qsort(kept, n, sizeof(*kept), by_name);
    }
    struct mc_tenant_policy *policies = mc_arena_alloc(&arena, (n + 1) * sizeof(*policies));
    for (size_t i = 0; i < n; i++) {
        policies[i] = (struct mc_tenant_policy){(char *)kept[i].name.ptr, kept[i].requested};
    }
    enum mc_status status =
        mc_tenant_policy_save(m->tenants->path, &m->config.tenant_quota_store, policies, n);
    mc_arena_free(&arena);
    return status;
}

static enum mc_status set_locked(struct mc_master *m, struct mc_str shown, struct mc_str name,
                                 uint64_t bytes) {
    struct mc_tenants *t = m->tenants;
    pthread_rwlock_wrlock(&t->lock);
    struct account *a = account_locked(t, name);
    pthread_rwlock_unlock(&t->lock);
    if (!a) {
        return MC_INVALID_PARAMS;
    }
    MC_TRY(save(m, shown, bytes));
    pthread_rwlock_wrlock(&t->lock);
    a->requested = bytes;
    share_locked(t);
    pthread_rwlock_unlock(&t->lock);
    return MC_OK;
}

enum mc_status mc_master_tenant_set(struct mc_master *m, struct mc_str name, uint64_t bytes) {
    struct mc_str scope;
    if (!m->tenants) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    MC_TRY(mc_tenant_normalise(name, &scope));
    if (bytes == 0 || bytes > MC_TENANT_QUOTA_MAX) {
        return MC_INVALID_PARAMS;
    }
    mc_lock_acquire(&m->tenants->policy_lock);
    enum mc_status status = set_locked(m, scope.len ? scope : MC_STR("default"), scope, bytes);
    mc_lock_release(&m->tenants->policy_lock);
    return status;
}

/* The policy goes first, so that nothing can be charged any more; it comes back when it may not. */
static enum mc_status delete_locked(struct mc_master *m, struct mc_str shown, struct mc_str name) {
    struct mc_tenants *t = m->tenants;
    pthread_rwlock_wrlock(&t->lock);
    struct account *a = *slot_locked(t, name);
    uint64_t requested = a ? a->requested : 0;
    bool empty = a && atomic_load_explicit(&a->charged, memory_order_relaxed) == 0;
    if (requested && empty) {
        a->requested = 0;
    }
    pthread_rwlock_unlock(&t->lock);
    if (!requested || !empty) {
        return requested ? MC_TENANT_NOT_EMPTY : MC_OBJECT_NOT_FOUND;
    }
    enum mc_status status = save(m, shown, 0);
    pthread_rwlock_wrlock(&t->lock);
    a->requested = status == MC_OK ? 0 : requested;
    share_locked(t);
    pthread_rwlock_unlock(&t->lock);
    return status;
}

enum mc_status mc_master_tenant_delete(struct mc_master *m, struct mc_str name) {
    struct mc_str scope;
    if (!m->tenants) {
        return MC_UNAVAILABLE_IN_CURRENT_MODE;
    }
    MC_TRY(mc_tenant_normalise(name, &scope));
    mc_lock_acquire(&m->tenants->policy_lock);
    enum mc_status status = delete_locked(m, scope.len ? scope : MC_STR("default"), scope);
    mc_lock_release(&m->tenants->policy_lock);
    return status;
}

struct mc_tenants *mc_tenants_create(const struct mc_master_config *config) {
    const char *path = config->tenant_quota_policy;
    struct mc_tenant_policy *policies;
    size_t count;
    if (mc_tenant_policy_load(path, &config->tenant_quota_store, &policies, &count) != MC_OK) {
        return NULL;
    }
    struct mc_tenants *t = mc_zalloc(sizeof(*t));
    pthread_rwlock_init(&t->lock, NULL);
    t->path = mc_strdup(path);
    for (size_t i = 0; i < count; i++) {
        struct mc_str name = {"", 0};
        enum mc_status status = mc_tenant_normalise(mc_str_from(policies[i].name), &name);
        MC_ASSERT(status == MC_OK); /* the file's reader has looked */
        account_locked(t, name)->requested = policies[i].bytes;
    }
    mc_tenant_policy_free(policies, count);
    share_locked(t);
    mc_info("tenant quotas loaded file=%s tenants=%zu", path, count);
    return t;
}

void mc_tenants_destroy(struct mc_tenants *t) {
    if (!t) {
        return;
    }
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (struct account *a = t->buckets[b], *next; a; a = next) {
            next = a->next;
            free(a);
        }
    }
    pthread_rwlock_destroy(&t->lock);
    free(t->path);
    free(t);
}

/* ---- the books ---- */

struct mc_tenant_audit {
    struct mc_tenants *tenants;
    uint64_t homeless; /* bytes of objects whose tenant has no account */
};

struct mc_tenant_audit *mc_tenant_audit_begin(struct mc_master *m) {
    if (!m->tenants) {
        return NULL;
    }
    struct mc_tenant_audit *audit = mc_zalloc(sizeof(*audit));
    audit->tenants = m->tenants;
    return audit;
}

void mc_tenant_audit_add(struct mc_tenant_audit *audit, struct mc_object *o) {
    if (audit) {
        struct account *a = *slot_locked(audit->tenants, mc_object_tenant(o));
        *(a ? &a->audited : &audit->homeless) += mc_object_charge(o);
    }
}

void mc_tenant_audit_end(struct mc_tenant_audit *audit, struct mc_buf *report) {
    if (!audit) {
        return;
    }
    for (unsigned b = 0; b < BUCKETS; b++) {
        for (struct account *a = audit->tenants->buckets[b]; a; a = a->next) {
            uint64_t charged = atomic_load_explicit(&a->charged, memory_order_relaxed);
            if (charged != a->audited) {
                mc_buf_printf(report,
                              "tenant %.*s: its objects take %" PRIu64
                              " bytes, charged are %" PRIu64 "\n",
                              (int)shown_name(a).len, shown_name(a).ptr, a->audited, charged);
            }
            a->audited = 0;
        }
    }
    if (audit->homeless) {
        mc_buf_printf(report, "%" PRIu64 " bytes of objects are of tenants without an account\n",
                      audit->homeless);
    }
    free(audit);
}

/* ---- metrics, under upstream's names ---- */

static void put_label(struct mc_buf *out, struct mc_str name) {
    mc_buf_puts(out, "{tenant_id=\"");
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '"' || name.ptr[i] == '\\') {
            mc_buf_putc(out, '\\');
        }
        mc_buf_putc(out, name.ptr[i]);
    }
    mc_buf_putc(out, '"');
}

static uint64_t sample(const struct account *a, unsigned which) {
    uint64_t charged = atomic_load_explicit(&a->charged, memory_order_relaxed);
    uint64_t effective = atomic_load_explicit(&a->effective, memory_order_relaxed);
    const uint64_t all[] = {a->requested,
                            effective,
                            charged,
                            a->requested == 0,
                            charged > effective,
                            a->requested > 0,
                            atomic_load_explicit(&a->rejected, memory_order_relaxed),
                            atomic_load_explicit(&a->evicted, memory_order_relaxed)};
    return all[which];
}

static void put_family(struct mc_buf *out, struct account *const *all, size_t count, unsigned which,
                       const char *name, const char *type, const char *help, const char *label) {
    mc_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
    for (size_t i = 0; i < count; i++) {
        mc_buf_puts(out, name);
        put_label(out, shown_name(all[i]));
        mc_buf_printf(out, "%s} %" PRIu64 "\n", label, sample(all[i], which));
    }
}

void mc_master_tenant_metrics(struct mc_master *m, struct mc_buf *out) {
    static const struct {
        const char *name, *type, *help, *label;
    } families[] = {
        {"mooncake_tenant_quota_requested_bytes", "gauge", "quota that was asked for", ""},
        {"mooncake_tenant_quota_effective_bytes", "gauge", "quota, scaled to the memory", ""},
        {"mooncake_tenant_quota_charged_bytes", "gauge", "what the tenant's objects take", ""},
        {"mooncake_tenant_quota_admission_closed", "gauge", "1: it has no quota any more", ""},
        {"mooncake_tenant_quota_over_quota", "gauge", "1: it has more than its quota", ""},
        {"mooncake_tenant_quota_explicit_policy", "gauge", "1: it has a quota", ""},
        {"mooncake_tenant_quota_reject_total", "counter", "puts that its quota refused",
         ",reason=\"quota_exceeded\""},
        {"mooncake_tenant_evict_bytes_total", "counter", "evicted to make room in its quota", ""}};
    struct mc_tenants *t = m->tenants;
    if (!t) {
        return;
    }
    uint64_t requested = 0, effective = 0;
    pthread_rwlock_rdlock(&t->lock);
    struct account **all = all_locked(t);
    for (unsigned f = 0; f < MC_ARRAY_LEN(families); f++) {
        put_family(out, all, t->count, f, families[f].name, families[f].type, families[f].help,
                   families[f].label);
    }
    for (size_t i = 0; i < t->count; i++) {
        requested += all[i]->requested;
        effective += sample(all[i], 1);
    }
    mc_buf_printf(out,
                  "mooncake_tenant_quota_allocatable_capacity_bytes %" PRIu64
                  "\nmooncake_tenant_quota_requested_bytes_sum %" PRIu64
                  "\nmooncake_tenant_quota_effective_bytes_sum %" PRIu64 "\n",
                  t->capacity, requested, effective);
    pthread_rwlock_unlock(&t->lock);
    free(all);
}

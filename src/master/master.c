/*
 * Making a master, its tick, and the ways to look inside. See master/master.h.
 */
#include "master/core.h"
#include "master/disks.h"
#include "master/files.h"
#include "master/promote.h"
#include "master/tenants.h"

#include "base/log.h"

void mc_master_config_init(struct mc_master_config *config) {
    *config = (struct mc_master_config){.default_kv_lease_ttl_ms = 10000,
                                        .default_kv_soft_pin_ttl_ms = 30 * 60 * 1000,
                                        .max_kv_soft_pin_ttl_ms = 24ull * 3600 * 1000,
                                        .allow_evict_soft_pinned_objects = true,
                                        .eviction_ratio = 0.05,
                                        .eviction_high_watermark_ratio = 0.90,
                                        .eviction_policy = "lru",
                                        .client_ttl_ms = 10000,
                                        .put_start_discard_timeout_ms = 30000,
                                        .put_start_release_timeout_ms = 600000,
                                        .max_total_finished_tasks = 10000,
                                        .max_total_pending_tasks = 10000,
                                        .max_total_processing_tasks = 10000,
                                        .pending_task_timeout_ms = 300000,
                                        .processing_task_timeout_ms = 300000,
                                        .max_retry_attempts = 10,
                                        .allocation_strategy = "random",
                                        .root_fs_dir = "",
                                        .enable_disk_eviction = true,
                                        .offloading_queue_limit = 50000,
                                        .offload_cap_ratio = 0.5,
                                        .offload_high_watermark_ratio = 0,
                                        .promotion_admission_threshold = 2,
                                        .promotion_queue_limit = 50000,
                                        .promotion_max_per_heartbeat = 1,
                                        .quota_bytes = 0,
                                        .dynamic_window_ms = 10000,
                                        .dynamic_qps = 0.8,
                                        .dynamic_max_replicas = 2};
}

static const char *config_fault(const struct mc_master_config *c) {
    if (!(c->eviction_ratio >= 0 && c->eviction_ratio <= 1)) {
        return "eviction_ratio must be between 0 and 1";
    }
    if (!(c->eviction_high_watermark_ratio >= 0 && c->eviction_high_watermark_ratio <= 1)) {
        return "eviction_high_watermark_ratio must be between 0 and 1";
    }
    if (!(c->offload_high_watermark_ratio >= 0 && c->offload_high_watermark_ratio <= 1)) {
        return "offload_high_watermark_ratio must be between 0 and 1";
    }
    if (c->default_kv_soft_pin_ttl_ms == 0 ||
        c->default_kv_soft_pin_ttl_ms > c->max_kv_soft_pin_ttl_ms) {
        return "default_kv_soft_pin_ttl must be between 1 and max_kv_soft_pin_ttl";
    }
    if (!c->allocation_strategy || !mc_placement_find(c->allocation_strategy)) {
        return "allocation_strategy must be random, free_ratio_first, local_first, "
               "ssd_free_ratio_first or cxl";
    }
    if (c->dynamic_replication != MC_DYNAMIC_OFF &&
        (c->dynamic_window_ms == 0 || !(c->dynamic_qps >= 0))) {
        return "dynamic replication needs a window and a rate that is not negative";
    }
    if (c->enable_multi_tenants && (!c->tenant_quota_policy || !c->tenant_quota_policy[0])) {
        return "enable_multi_tenants needs the file of quotas, tenant_quota_connector_uri";
    }
    if (!c->eviction_policy || !mc_traffic_policy_exists(c->eviction_policy)) {
        return "eviction_policy must be lru, s3fifo or chain";
    }
    return NULL;
}

/* The cluster's own below what its clients share; "" = no files. */
static char *own_directory(const struct mc_master_config *config) {
    struct mc_buf path = {0};
    if (config->root_fs_dir && config->root_fs_dir[0] != '\0') {
        mc_buf_puts(&path, config->root_fs_dir);
        if (config->cluster_id && config->cluster_id[0] != '\0') {
            mc_buf_printf(&path, "/%s", config->cluster_id);
        }
    }
    char *own = mc_strdup(mc_buf_cstr(&path));
    mc_buf_free(&path);
    return own;
}

struct mc_master *mc_master_create(const struct mc_master_config *config,
                                   const struct mc_clock *clock, struct mc_metrics *metrics) {
    const char *fault = config_fault(config);
    struct mc_tenants *tenants = NULL;
    if (fault) {
        mc_error("master configuration: %s", fault);
        return NULL;
    }
    if (config->enable_multi_tenants && (tenants = mc_tenants_create(config)) == NULL) {
        return NULL;
    }
    struct mc_rng rng;
    struct mc_master *m = NULL;
    if (posix_memalign((void **)&m, MC_CACHE_LINE, sizeof(*m)) != 0) {
        mc_tenants_destroy(tenants);
        return NULL;
    }
    memset(m, 0, sizeof(*m));
    m->config = *config;
    m->config.root_fs_dir = own_directory(config);
    m->clock = clock;
    m->metrics = metrics;
    m->placement = mc_placement_find(config->allocation_strategy);
    if (config->seed) {
        mc_rng_seed(&rng, config->seed);
    } else {
        mc_rng_seed_system(&rng);
    }
    m->changes = mc_changes_create(config, &rng, mc_now_ms(clock));
    m->next_version = mc_changes_versions(m->changes);
    m->hash_seed = mc_changes_hash_seed(m->changes);
    atomic_init(&m->rng_state, mc_rng_next(&rng));
    atomic_init(&m->next_replica_id, 1);
    pthread_rwlock_init(&m->segments_lock, NULL);
    m->dialects = mc_dialects_create(clock);
    m->tenants = tenants;
    m->tasks = mc_tasks_create();
    m->drains = mc_drains_create();
    m->disks = mc_disks_create();
    m->promotions = mc_promotions_create();
    m->traffic = mc_traffic_create(config);
    m->heat = mc_heat_create(config);
    m->files = mc_files_create(m);
    mc_page_pool_init(&m->pages);
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        mc_shard_init(&m->shards[i], &m->pages);
    }
    mc_master_metrics_register(m);
    return m;
}

static bool forget(void *ctx, struct mc_shard *shard, struct mc_object *o) {
    mc_object_erase(ctx, shard, o);
    return true;
}

void mc_master_destroy(struct mc_master *m) {
    if (!m) {
        return;
    }
    mc_master_metrics_unregister(m);
    m->config.on_object_event = NULL;
    mc_changes_end(m->changes);
    mc_files_end(m->files);
    for (unsigned i = 0; i < MC_SHARDS; i++) {
        mc_shard_each(&m->shards[i], forget, m);
        free(m->shards[i].slots);
        free(m->shards[i].heap);
    }
    for (unsigned i = 0; i < MC_GROUP_SHARDS; i++) {
        free(m->groups[i].buckets);
    }
    mc_discard_destroy(m);
    mc_disks_destroy(m);
    mc_changes_destroy(m->changes);
    mc_files_destroy(m->files);
    mc_promotions_destroy(m->promotions);
    mc_segment_table_destroy(m);
    mc_clients_destroy(m);
    mc_page_pool_free(&m->pages);
    mc_dialects_destroy(m->dialects);
    mc_drains_destroy(m->drains);
    mc_tasks_destroy(m->tasks);
    mc_traffic_destroy(m->traffic);
    mc_heat_destroy(m->heat);
    mc_tenants_destroy(m->tenants);
    pthread_rwlock_destroy(&m->segments_lock);
    free((char *)m->config.root_fs_dir);
    free(m);
}

void mc_master_tick(struct mc_master *m) {
    struct mc_arena arena = {0};
    struct mc_call call = {.m = m, .arena = &arena, .now_ms = mc_now_ms(m->clock)};
    if (!mc_lock_try(&m->tick_lock)) {
        return; /* somebody else is at it */
    }
    mc_clients_tick(&call);
    mc_segments_tick(&call);
    mc_tenants_resize(m);
    mc_discard_tick(&call);
    mc_put_expire_tick(&call);
    mc_budget_tick(&call);
    mc_tasks_tick(&call);
    mc_heat_tick(&call);
    mc_disks_tick(&call);
    mc_changes_tick(&call);
    mc_promotions_tick(&call);
    mc_offload_early_tick(&call);
    mc_evict_tick(&call);
    mc_drains_tick(&call); /* last: it counts what eviction has left to disks that go */
    mc_lock_release(&m->tick_lock);
    mc_arena_free(&arena);
}

/* ---- looking inside ---- */

void mc_master_totals(struct mc_master *m, struct mc_master_totals *out) {
    mc_segments_usage(m, &out->allocated_bytes, &out->capacity_bytes, &out->segments);
    out->keys = mc_key_count(m);
    mc_lock_acquire(&m->clients_lock);
    out->clients = m->client_count;
    mc_lock_release(&m->clients_lock);
}

void mc_master_each_key(struct mc_master *m, const char *tenant,
                        bool (*fn)(void *ctx, struct mc_str tenant, struct mc_str key), void *ctx) {
    struct mc_arena arena = {0};
    struct mc_call call = {.m = m, .arena = &arena};
    struct mc_str scope;
    if (tenant && mc_tenant_normalise(mc_str_from(tenant), &scope) != MC_OK) {
        return; /* no key has that tenant */
    }
    bool more = true;
    for (unsigned i = 0; i < MC_SHARDS && more; i++) {
        size_t count;
        const struct mc_key *keys =
            mc_shard_keys(&call, &m->shards[i], tenant ? &scope : NULL, &count);
        for (size_t k = 0; k < count && more; k++) {
            more = fn(ctx, keys[k].tenant.len ? keys[k].tenant : MC_STR("default"), keys[k].user);
        }
        mc_arena_reset(&arena);
    }
    mc_arena_free(&arena);
}

int64_t mc_master_remove_all(struct mc_master *m, const char *tenant, bool force) {
    struct mc_call call = {.m = m, .now_ms = mc_now_ms(m->clock)};
    struct mc_str scope;
    if (tenant && mc_tenant_normalise(mc_str_from(tenant), &scope) != MC_OK) {
        return 0;
    }
    return mc_remove_all(&call, tenant ? &scope : NULL, force);
}

struct mc_master_segment_info *mc_master_segments(struct mc_master *m, struct mc_arena *arena,
                                                  size_t *count) {
    pthread_rwlock_rdlock(&m->segments_lock);
    struct mc_master_segment_info *all =
        mc_arena_zalloc(arena, (m->segment_count + 1) * sizeof(*all));
    *count = m->segment_count;
    for (size_t i = 0; i < m->segment_count; i++) {
        const struct mc_segment *s = m->segments[i];
        all[i] = (struct mc_master_segment_info){
            .segment = s->info,
            .client = s->client,
            .status = atomic_load_explicit(&s->status, memory_order_relaxed),
            .used_bytes = mc_allocator_used(s->allocator),
            .capacity_bytes = s->info.size};
        all[i].segment.name = mc_arena_str(arena, s->info.name);
        all[i].segment.te_endpoint = mc_arena_str(arena, s->info.te_endpoint);
        all[i].segment.protocol = mc_arena_str(arena, s->info.protocol);
        all[i].segment.host_id = mc_arena_str(arena, s->info.host_id);
    }
    pthread_rwlock_unlock(&m->segments_lock);
    return all;
}

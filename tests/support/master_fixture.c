/* See master_fixture.h. */
#include "support/master_fixture.h"

#include <stdatomic.h>

const struct mc_uuid client_a = {1, 100}, client_b = {2, 200};

static uint64_t now_ns(const struct mc_clock *clock) {
    struct fixture *f = mc_container_of(clock, struct fixture, clock);
    return atomic_load_explicit(&f->now_ns, memory_order_relaxed);
}
static uint64_t wall_ms(const struct mc_clock *clock) {
    return now_ns(clock) / MC_MS;
}

void fixture_restart(struct fixture *f) {
    mc_master_destroy(f->m);
    f->m = mc_master_create(&f->config, &f->clock, f->metrics);
    assert_non_null(f->m);
}

int fixture_setup(void **state) {
    struct fixture *f = mc_zalloc(sizeof(*f));
    f->clock = (struct mc_clock){now_ns, wall_ms};
    f->now_ns = 1000 * MC_SEC;
    f->next_base = 1ull << 40;
    f->metrics = mc_metrics_create();
    mc_master_config_init(&f->config);
    f->config.seed = 7;
    fixture_restart(f);
    *state = f;
    return 0;
}

void fixture_check(struct fixture *f) {
    struct mc_buf report = {0};
    if (mc_master_fsck(f->m, &report) != MC_OK) {
        fail_msg("fsck: %s", mc_buf_cstr(&report));
    }
    mc_buf_free(&report);
}

int fixture_teardown(void **state) {
    struct fixture *f = *state;
    fixture_check(f);
    mc_master_destroy(f->m);
    mc_metrics_destroy(f->metrics);
    mc_arena_free(&f->arena);
    free(f);
    return 0;
}

void advance_ms(struct fixture *f, uint64_t ms) {
    atomic_fetch_add_explicit(&f->now_ns, ms * MC_MS, memory_order_relaxed);
}

void tick(struct fixture *f) {
    mc_master_tick(f->m);
}

void tick_for_ms(struct fixture *f, uint64_t ms) {
    for (uint64_t t = 0; t < ms; t += 10) {
        advance_ms(f, 10);
        tick(f);
    }
}

void call(struct fixture *f, enum mc_master_rpc rpc, const void *args, void *ret) {
    mc_master_handle(f->m, rpc, args, &f->arena, ret);
}

struct mc_str str(const char *text) {
    return mc_str_from(text);
}

struct mc_vec strs(struct fixture *f, size_t count, const char *const *texts) {
    struct mc_str *items = mc_arena_alloc(&f->arena, (count + 1) * sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        items[i] = str(texts[i]);
    }
    return (struct mc_vec){items, count};
}

/* ---- segments and clients ---- */

struct mw_segment segment_of(struct fixture *f, const char *name, uint64_t size) {
    struct mw_segment s = {.id = {9, f->next_base >> 20},
                           .name = str(name),
                           .base = f->next_base,
                           .size = size,
                           .te_endpoint = str(name),
                           .protocol = MC_STR("tcp")};
    f->next_base += size + (2u << 20);
    return s;
}

int32_t mount_as(struct fixture *f, struct mc_uuid client, struct mw_segment segment) {
    struct mw_a_mount args = {segment, client};
    struct mw_e_void r;
    call(f, MC_RPC_MountSegment, &args, &r);
    return r.error;
}

struct mc_uuid mount_for(struct fixture *f, struct mc_uuid client, const char *name,
                         uint64_t size) {
    struct mw_segment s = segment_of(f, name, size);
    assert_int_equal(mount_as(f, client, s), MC_OK);
    assert_int_equal(remount(f, client, &s, 1), MC_OK);
    return s.id;
}

struct mc_uuid mount(struct fixture *f, const char *name, uint64_t size) {
    return mount_for(f, client_a, name, size);
}

int32_t unmount(struct fixture *f, struct mc_uuid id) {
    struct mw_a_unmount args = {id, client_a};
    struct mw_e_void r;
    call(f, MC_RPC_UnmountSegment, &args, &r);
    return r.error;
}

int32_t ping(struct fixture *f, struct mc_uuid client) {
    struct mw_e_ping r;
    call(f, MC_RPC_Ping, &client, &r);
    assert_int_equal(r.error, MC_OK);
    return r.value.client_status;
}

int32_t remount(struct fixture *f, struct mc_uuid client, struct mw_segment *segments,
                size_t count) {
    struct mw_a_remount args = {{segments, count}, client};
    struct mw_e_void r;
    call(f, MC_RPC_ReMountSegment, &args, &r);
    return r.error;
}

/* ---- objects ---- */

struct mw_replicate_config replicas(uint64_t count) {
    return (struct mw_replicate_config){.replica_num = count};
}

int32_t put_start_with(struct fixture *f, struct mc_uuid client, const char *tenant,
                       const char *key, uint64_t size, struct mw_replicate_config config,
                       struct mc_vec *out) {
    struct mw_a_put_start args = {client, str(key), size, config, str(tenant)};
    struct mw_e_vec r;
    call(f, MC_RPC_PutStart, &args, &r);
    if (out) {
        *out = r.value;
    }
    return r.error;
}

int32_t put_start(struct fixture *f, const char *key, uint64_t size) {
    return put_start_with(f, client_a, "default", key, size, replicas(1), NULL);
}

int32_t put_end_as(struct fixture *f, struct mc_uuid client, const char *tenant, const char *key,
                   int32_t type) {
    struct mw_a_put_end args = {client, {.key = str(key)}, type, str(tenant)};
    struct mw_e_void r;
    call(f, MC_RPC_PutEnd, &args, &r);
    return r.error;
}

int32_t put_end(struct fixture *f, const char *key) {
    return put_end_as(f, client_a, "default", key, MC_REPLICA_ALL);
}

int32_t put_revoke_as(struct fixture *f, struct mc_uuid client, const char *tenant, const char *key,
                      int32_t type) {
    struct mw_a_put_revoke args = {client, str(key), type, str(tenant)};
    struct mw_e_void r;
    call(f, MC_RPC_PutRevoke, &args, &r);
    return r.error;
}

int32_t put_revoke(struct fixture *f, const char *key) {
    return put_revoke_as(f, client_a, "default", key, MC_REPLICA_ALL);
}

int32_t put_with(struct fixture *f, const char *key, uint64_t size,
                 struct mw_replicate_config config) {
    int32_t error = put_start_with(f, client_a, "default", key, size, config, NULL);
    return error ? error : put_end(f, key);
}

int32_t put(struct fixture *f, const char *key, uint64_t size) {
    return put_with(f, key, size, replicas(1));
}

int32_t upsert_start(struct fixture *f, const char *key, uint64_t size,
                     struct mw_replicate_config config, struct mc_vec *out) {
    struct mw_a_put_start args = {client_a, str(key), size, config, MC_STR("default")};
    struct mw_e_vec r;
    call(f, MC_RPC_UpsertStart, &args, &r);
    if (out) {
        *out = r.value;
    }
    return r.error;
}

int32_t get_list(struct fixture *f, const char *tenant, const char *key,
                 struct mw_replica_list *out) {
    struct mw_a_key args = {str(key), str(tenant)};
    struct mw_e_list r;
    call(f, MC_RPC_GetReplicaList, &args, &r);
    if (out && r.error == MC_OK) {
        *out = r.value;
    }
    return r.error;
}

int32_t get(struct fixture *f, const char *key) {
    return get_list(f, "default", key, NULL);
}

bool exists(struct fixture *f, const char *key) {
    struct mw_a_key args = {str(key), MC_STR("default")};
    struct mw_e_bool r;
    call(f, MC_RPC_ExistKey, &args, &r);
    assert_int_equal(r.error, MC_OK);
    return r.value;
}

bool peek(struct fixture *f, const char *key) {
    struct mw_replica_list list;
    return mc_master_peek(f->m, MC_STR("default"), str(key), &f->arena, &list) == MC_OK;
}

int32_t remove_key(struct fixture *f, const char *key, bool force) {
    struct mw_a_remove args = {str(key), force, MC_STR("default")};
    struct mw_e_void r;
    call(f, MC_RPC_Remove, &args, &r);
    return r.error;
}

int64_t remove_all(struct fixture *f, const char *tenant, bool force) {
    struct mw_a_remove_all args = {force, str(tenant)};
    int64_t removed;
    call(f, MC_RPC_RemoveAll, &args, &removed);
    return removed;
}

/* ---- numbers ---- */

uint64_t used_bytes(struct fixture *f) {
    struct mc_master_totals t;
    mc_master_totals(f->m, &t);
    return t.allocated_bytes;
}

uint64_t key_count(struct fixture *f) {
    struct mc_master_totals t;
    mc_master_totals(f->m, &t);
    return t.keys;
}

int64_t metric(struct fixture *f, const char *name) {
    struct mc_buf text = {0};
    mc_metrics_print(f->metrics, &text);
    struct mc_str wanted = mc_arena_printf(&f->arena, "\n%s ", name);
    const char *at = strstr(mc_buf_cstr(&text), wanted.ptr);
    if (!at) {
        fail_msg("no metric %s", name);
    }
    int64_t value = strtoll(at + wanted.len, NULL, 10);
    mc_buf_free(&text);
    return value;
}

/*
 * The auditor: what a calm cluster owes.
 *
 * It comes when the clients have gone and nothing is lost or late any more. Within bounded time all
 * nodes are mounted again, puts and gets succeed, what was begun and never ended has given its
 * space back, and the master's books say so: the allocated bytes are those of the objects that can
 * be read, and none at all when everything was removed.
 */
#include <stdio.h>

#include "client/ops_internal.h"
#include "sim/sim.h"

#define LIVE_OBJECTS 6
#define LIVE_WITHIN  (25 * MC_SEC)
#define MOUNT_WITHIN (15 * MC_SEC)
#define LIVE_BYTES   700

static bool nodes_mounted(struct sim *sim) {
    struct mc_master_totals totals;
    for (unsigned i = 0; i < SIM_NODES; i++) {
        if (!sim->nodes[i].up || !sim->nodes[i].ops.segments[0].confirmed) {
            return false;
        }
    }
    mc_master_totals(sim->master, &totals);
    return totals.segments == SIM_NODES;
}

static void await_nodes(struct sim *sim, struct sim_process *process) {
    uint64_t until = sim->now_ns + MOUNT_WITHIN;
    while (!process->dead && !nodes_mounted(sim)) {
        if (sim->now_ns > until) {
            struct mc_master_totals totals;
            mc_master_totals(sim->master, &totals);
            sim_fail(sim, "a calm cluster has %llu segments, not its %d nodes', after %.0f s",
                     (unsigned long long)totals.segments, SIM_NODES, (double)MOUNT_WITHIN / 1e9);
            return;
        }
        sim_sleep(process, 100 * MC_MS);
    }
}

static enum mc_status put_once(struct sim_process *process, const char *key, uint8_t *bytes) {
    struct mc_slice slice = {bytes, LIVE_BYTES};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    MC_ASSERT(mc_ops_put(process->ops, &item, 1, NULL, false) == MC_OK);
    return item.status;
}

static enum mc_status get_once(struct sim_process *process, const char *key, const uint8_t *bytes) {
    uint8_t buffer[LIVE_BYTES] = {0};
    struct mc_slice slice = {buffer, sizeof(buffer)};
    struct mc_store_item item = {.key = key, .slices = &slice, .slice_count = 1};
    MC_ASSERT(mc_ops_get(process->ops, &item, 1) == MC_OK);
    if (item.status == MC_OK &&
        (item.length != LIVE_BYTES || memcmp(buffer, bytes, LIVE_BYTES) != 0)) {
        sim_fail(process->sim, "a calm cluster returns other bytes than were put");
    }
    return item.status;
}

/* Puts and gets until both succeed: what is in the way is leased, pinned or left behind for a while
 * only, and a full cluster may evict at once what nobody has asked for. */
static void check_live(struct sim *sim, struct sim_process *process, const char *key,
                       uint8_t *bytes) {
    uint64_t until = sim->now_ns + LIVE_WITHIN;
    while (!process->dead) {
        enum mc_status put = put_once(process, key, bytes);
        enum mc_status get = put == MC_OK ? get_once(process, key, bytes) : put;
        if (get == MC_OK) {
            return;
        }
        if (sim->now_ns > until && !process->dead) {
            sim_fail(sim, "a calm cluster still refuses a put (%s) or a get (%s) of it",
                     mc_status_name(put), mc_status_name(get));
            return;
        }
        sim_sleep(process, 200 * MC_MS);
    }
}

static void check_liveness(struct sim *sim, struct sim_process *process) {
    for (unsigned i = 0; i < LIVE_OBJECTS && !process->dead; i++) {
        char key[16];
        uint8_t bytes[LIVE_BYTES];
        snprintf(key, sizeof(key), "live/%u", i);
        for (size_t k = 0; k < sizeof(bytes); k++) {
            bytes[k] = (uint8_t)mc_rng_next(&sim->rng);
        }
        check_live(sim, process, key, bytes);
    }
}

/* The file that the master names for the process's key is there. */
static bool file_is_there(struct sim *sim, const struct sim_process *process, const char *key) {
    struct mc_arena arena = {0};
    struct mw_replica_list list;
    bool there = false;
    if (mc_master_peek(sim->master, process->ops->tenant, mc_str_from(key), &arena, &list) ==
        MC_OK) {
        const struct mw_replica *replica = list.replicas.items;
        for (size_t i = 0; i < list.replicas.count; i++) {
            there = there || (replica[i].tag == MW_TAG_DISK &&
                              sim_disk_has(sim->shared, replica[i].disk.file_path));
        }
    }
    mc_arena_free(&arena);
    return there;
}

/* The master names files that were cut only until somebody has asked for them. (Of one that is
 * missing it is never told.) */
static void check_files(struct sim *sim, struct sim_process *process) {
    mc_ops_find_files(process->ops);
    for (unsigned key = 0; sim->shared != NULL && key < SIM_KEYS && !process->dead; key++) {
        uint8_t buffer[SIM_VALUE_MAX];
        struct mc_slice slice = {buffer, sizeof(buffer)};
        struct mc_store_item item = {.slices = &slice, .slice_count = 1};
        item.key = sim_key_text(sim, key);
        for (unsigned i = 0; i < 2 && !sim_key_is_guests(sim, key); i++) {
            MC_ASSERT(mc_ops_get(process->ops, &item, 1) == MC_OK);
        }
        if (item.status == MC_FILE_READ_FAIL && !process->dead &&
            file_is_there(sim, process, item.key)) {
            sim_fail(sim, "the master still names a file for %s that was cut", item.key);
        }
    }
}

/* ---- the books ---- */

struct books {
    struct sim *sim;
    struct mc_arena arena;
    uint64_t bytes;
    uint64_t keys;
};

static bool add_key(void *ctx, struct mc_str tenant, struct mc_str key) {
    struct books *books = ctx;
    struct mw_replica_list list;
    if (mc_master_peek(books->sim->master, tenant, key, &books->arena, &list) != MC_OK) {
        sim_fail(books->sim, "the put of %.*s was never ended and is still there", (int)key.len,
                 key.ptr);
        return false;
    }
    const struct mw_replica *replica = list.replicas.items;
    for (size_t i = 0; i < list.replicas.count; i++) {
        books->bytes += replica[i].tag == MW_TAG_MEMORY ? replica[i].memory.size : 0;
    }
    books->keys++;
    return true;
}

static void check_books(struct sim *sim) {
    struct books books = {.sim = sim};
    struct mc_master_totals totals;
    mc_master_each_key(sim->master, NULL, add_key, &books);
    mc_master_totals(sim->master, &totals);
    mc_arena_free(&books.arena);
    if (totals.allocated_bytes != books.bytes || totals.keys != books.keys) {
        sim_fail(sim,
                 "at rest, %llu bytes are allocated for %llu keys, but objects of %llu keys "
                 "need %llu",
                 (unsigned long long)totals.allocated_bytes, (unsigned long long)totals.keys,
                 (unsigned long long)books.keys, (unsigned long long)books.bytes);
    }
}

static bool name_key(void *ctx, struct mc_str tenant, struct mc_str key) {
    struct sim *sim = ctx;
    struct mc_arena arena = {0};
    struct mw_replica_list list = {0};
    enum mc_status status = mc_master_peek(sim->master, tenant, key, &arena, &list);
    sim_fail(sim, "%.*s of %.*s is left when all is removed, with %zu replicas: %s", (int)key.len,
             key.ptr, (int)tenant.len, tenant.ptr, list.replicas.count, mc_status_name(status));
    mc_arena_free(&arena);
    return false;
}

static void check_empty(struct sim *sim) {
    struct mc_master_totals totals;
    mc_master_each_key(sim->master, NULL, name_key, sim);
    mc_master_totals(sim->master, &totals);
    if (totals.keys != 0 || totals.allocated_bytes != 0) {
        sim_fail(sim, "when all is removed, %llu keys and %llu allocated bytes are left",
                 (unsigned long long)totals.keys, (unsigned long long)totals.allocated_bytes);
    }
}

static void audit(struct sim *sim, struct sim_process *process) {
    const struct sim_profile *profile = &sim->profile;
    uint64_t removed;
    sim_sleep(process, SIM_LATE_NS); /* what is still on its way arrives */
    await_nodes(sim, process);
    check_files(sim, process);
    check_liveness(sim, process);
    sim_sleep(process, profile->release_ms * MC_MS + MC_SEC);
    if (process->dead || sim->result->failed) {
        return;
    }
    check_books(sim);
    if (mc_ops_remove_all(process->ops, true, &removed) != MC_OK && !process->dead) {
        sim_fail(sim, "a calm cluster does not remove its objects");
    }
    /* a bit may turn in a name, too, which nobody can read then; and the other tenant's are left */
    if ((profile->bit_rot > 0 || profile->guest_quota > 0) && !process->dead) {
        mc_master_remove_all(sim->master, NULL, true);
    }
    sim_sleep(process, profile->lease_ms * MC_MS + MC_SEC);
    if (!process->dead && !sim->result->failed) {
        check_empty(sim);
        sim->over = true;
    }
}

static void auditor_main(void *arg) {
    struct sim_client *auditor = arg;
    audit(auditor->process.sim, &auditor->process);
    sim_process_end(&auditor->process);
}

void sim_auditor_start(struct sim *sim) {
    sim_process_start(&sim->clients[SIM_AUDITOR].process, auditor_main, &sim->clients[SIM_AUDITOR]);
}

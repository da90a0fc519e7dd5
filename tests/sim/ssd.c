/*
 * A node's SSD: the process that serves it, which runs the real protocol (client/offload.h) over
 * the real tier, on a disk of its own that outlives its crashes.
 *
 * The process has the node's id. It does what store_offload.c does on a thread; reads by others are
 * served between its steps, as the tier blocks only on the disk, which here takes no time: the time
 * that it should have taken passes before the next message of whoever used it.
 *
 * What had been lost may be back when the master learns of a disk anew: such a return is seen here,
 * at the very request that brings it, and told to the oracle, which knows whether it may be
 * (docs/tier.md).
 */
#include <stdio.h>
#include <sys/mman.h>

#include "client/ops_internal.h"
#include "sim/sim.h"

#define LENT_BASE 0x300000000000ull
#define REPLACED  5 /* of 100: a node that starts again has a new disk */
#define RETRY_NS  (300 * MC_MS)

/* ---- the disk ---- */

/* In the middle of an operation: nothing of the node works from here on. */
static void power_lost(struct sim *sim, void *arg, uint64_t word) {
    struct sim_node *node = arg;
    if (!sim->closing && node->power_lost) {
        sim_node_crash(node, true);
    }
}

static void power_goes(void *ctx) {
    struct sim_node *node = ctx;
    struct sim *sim = node->process.sim;
    node->power_lost = true;
    node->up = false;
    node->process.dead = node->worker.dead = node->ssd.dead = true;
    SIM_COUNT(sim, power_cuts);
    sim_trace(sim, "%s loses its power", node->process.name);
    sim_at(sim, sim->now_ns, power_lost, node, 0);
}

void sim_ssd_make(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    char root[64];
    if (sim->profile.ssd) {
        snprintf(root, sizeof(root), SIM_DISK_ROOT "%s", node->process.name);
        node->disk = sim_disk_make(root, &sim->rng, sim->profile.disk_bytes,
                                   sim->profile.disk_seen_bytes, power_goes, node);
        node->ssd.disk = node->disk;
        if (sim->options.client_break == SIM_BREAK_KEEP_META) {
            sim_disk_keep_meta(node->disk);
        }
    }
}

void sim_ssd_free(struct sim_node *node) {
    if (node->disk != NULL) {
        struct sim_coverage *coverage = &node->process.sim->result->coverage;
        const struct sim_disk_counts *counts = sim_disk_counts(node->disk);
        coverage->disk_writes += counts->writes;
        coverage->disk_errors += counts->errors;
        coverage->disks_full += counts->full;
        coverage->sectors_lost += counts->sectors_lost;
        coverage->names_lost += counts->names_lost;
        coverage->bits_turned += counts->bits_turned;
        sim_disk_free(node->disk);
        node->disk = NULL;
    }
}

/* ---- what comes back ---- */

static bool may_return(const struct sim *sim, uint32_t function_id) {
    return sim->profile.ssd &&
           mc_master_rpc_index(mc_master_rpc_find(function_id)) == MC_RPC_OnDisk;
}

/* The replicas of a key that the master knows; false when it cannot be read. */
static bool replicas_of(struct sim *sim, unsigned key, struct sim_known *known) {
    struct mc_arena arena = {0};
    struct mw_replica_list list;
    struct mc_str name = mc_str_from(sim_key_text(sim, key));
    struct mc_str tenant = mc_str_from(sim_key_tenant(sim, key));
    *known = (struct sim_known){0};
    bool readable = mc_master_peek(sim->master, tenant, name, &arena, &list) == MC_OK;
    const struct mw_replica *replicas = readable ? list.replicas.items : NULL;
    for (size_t i = 0; readable && i < list.replicas.count; i++) {
        for (unsigned n = 0; replicas[i].tag == MW_TAG_LOCAL_DISK && n < SIM_NODES; n++) {
            const char *name_of = sim->nodes[n].process.name;
            size_t len = strlen(name_of);
            struct mc_str at = replicas[i].local_disk.endpoint;
            if (at.len > len && at.ptr[len] == ':' && memcmp(at.ptr, name_of, len) == 0) {
                known->on_disk[n] = mc_ops_replica_size(&replicas[i]);
            }
        }
        MC_ASSERT(known->count < SIM_KNOWN_REPLICAS);
        known->replicas[known->count++] = replicas[i].id;
    }
    mc_arena_free(&arena);
    return readable;
}

void sim_ssd_before(struct sim *sim, uint32_t function_id) {
    for (unsigned key = 0; key < SIM_KEYS && may_return(sim, function_id); key++) {
        replicas_of(sim, key, &sim->known[key]);
    }
}

/* It can be read, and not where it could be before. */
static bool is_back(struct sim *sim, unsigned key) {
    struct sim_known now;
    bool back = replicas_of(sim, key, &now);
    memcpy(sim->known[key].on_disk, now.on_disk, sizeof(now.on_disk));
    for (unsigned i = 0; i < now.count; i++) {
        for (unsigned k = 0; k < sim->known[key].count; k++) {
            back = back && now.replicas[i] != sim->known[key].replicas[k];
        }
    }
    return back;
}

/* `size`: what readers will ask for. */
static void look_at(struct sim *sim, struct sim_node *node, unsigned key, uint64_t size) {
    static _Alignas(SIM_DISK_BLOCK) char room[4 * SIM_DISK_BLOCK];
    char name[32];
    size_t len = (size_t)snprintf(name, sizeof(name), "%s%c%s", sim_key_tenant(sim, key), 0,
                                  sim_key_text(sim, key));
    struct mc_tier_read read = {.key = {name, len}, .room = room};
    struct mc_tier *tier = node->offload != NULL ? mc_offload_tier(node->offload) : NULL;
    if (tier == NULL || !mc_tier_find(tier, read.key, &read.size) || read.size != size) {
        sim_oracle_returned(sim, key, NULL, 0); /* it is gone again, or never was here */
        return;
    }
    MC_ASSERT(mc_tier_read_room(len, read.size) <= sizeof(room));
    sim_disk_quiet(node->disk, true);
    bool good = mc_tier_read(tier, &read, 1) == MC_OK;
    sim_oracle_returned(sim, key, good ? read.value : NULL, good ? read.size : 0);
    sim_disk_quiet(node->disk, false);
}

/* Readers reach the disk under the address that it had before, where the master still lists it. */
static void reopened(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    for (unsigned key = 0; key < SIM_KEYS && sim->master != NULL; key++) {
        struct sim_known known;
        if (replicas_of(sim, key, &known) && known.on_disk[node->index] > 0) {
            look_at(sim, node, key, known.on_disk[node->index]);
        }
    }
}

void sim_ssd_after(struct sim *sim, uint32_t function_id, struct sim_process *process) {
    struct sim_node *node = mc_container_of(process, struct sim_node, ssd);
    for (unsigned key = 0; key < SIM_KEYS && may_return(sim, function_id); key++) {
        if (is_back(sim, key)) {
            look_at(sim, node, key, sim->known[key].on_disk[node->index]);
        }
    }
}

/* ---- the memory that is lent ---- */

/* At an address that no other ever had, and the same in each run of the seed. */
static void lend_memory(struct sim_node *node) {
    uint64_t size = node->process.sim->profile.lent_bytes;
    uint64_t base =
        LENT_BASE + (uint64_t)node->index * (1ull << 40) + node->generations * (1ull << 24);
    void *memory = mmap((void *)(uintptr_t)base, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MC_ASSERT(memory == (void *)(uintptr_t)base);
    node->lent = mc_alloc(sizeof(*node->lent));
    *node->lent = (struct sim_region){
        .refs = 1, .base = base, .size = size, .bytes = memory, .in_place = true};
}

/* ---- the process ---- */

static bool stops(void *ctx) {
    const struct sim_node *node = ctx;
    return node->ssd.dead || !node->up || node->leaving;
}

static enum mc_status open_tier(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    const struct sim_profile *profile = &sim->profile;
    char path[64], device[80];
    snprintf(path, sizeof(path), SIM_DISK_ROOT "%s", node->process.name);
    snprintf(device, sizeof(device), "%s" SIM_DISK_DEVICE, path);
    struct mc_offload_config config = {.ops = node->ssd.ops,
                                       .te_endpoint = node->process.name,
                                       .segment = node->process.name,
                                       .memory = node->lent->bytes,
                                       .memory_bytes = node->lent->size,
                                       .gc_ttl_ms = profile->gc_ttl_ms,
                                       .stop = stops,
                                       .stop_ctx = node,
                                       .tier = {.path = path,
                                                .backend = profile->backend,
                                                .device = device,
                                                .device_nsid = 1,
                                                .device_value_bytes = SIM_DISK_BLOCK,
                                                .owner = node->process.name,
                                                .capacity_bytes = profile->tier_bytes,
                                                .eviction = profile->tier_eviction,
                                                .bucket_bytes = profile->bucket_bytes,
                                                .bucket_keys = 4}};
    return mc_offload_open(&config, &node->offload);
}

static void close_tier(struct sim_node *node) {
    struct sim_coverage *coverage = &node->process.sim->result->coverage;
    struct mc_offload *offload = node->offload;
    struct mc_tier_stats stats;
    mc_tier_stats(mc_offload_tier(offload), &stats);
    coverage->tier_broken += stats.broken_objects;
    coverage->tier_evicted += stats.evicted_objects;
    coverage->tier_borrowed += stats.borrowed_objects;
    node->offload = NULL; /* no read comes in from here on */
    mc_offload_close(offload);
}

static void serve(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    char endpoint[32];
    snprintf(endpoint, sizeof(endpoint), "%s:1", node->process.name);
    while (!stops(node) && open_tier(node) != MC_OK) { /* its directory cannot be read just now */
        sim_sleep(&node->ssd, RETRY_NS);
    }
    if (node->offload == NULL) {
        return;
    }
    reopened(node);
    enum mc_status status = mc_offload_mount(node->offload, endpoint);
    while (!stops(node)) {
        bool busy = false;
        sim_trace(sim, "%s: %s", node->ssd.name, mc_status_name(status));
        sim_sleep(&node->ssd, sim->profile.ping_ns);
        do {
            status = stops(node) ? MC_OK : mc_offload_beat(node->offload, &busy);
        } while (busy && !stops(node));
    }
    if (!node->ssd.dead) {
        mc_offload_goodbye(node->offload);
    }
    close_tier(node);
}

static void ssd_main(void *arg) {
    struct sim_node *node = arg;
    serve(node);
    sim_region_unref(node->lent);
    node->lent = NULL;
    sim_process_end(&node->ssd);
}

void sim_ssd_start(struct sim_node *node) {
    struct sim *sim = node->process.sim;
    if (!sim->profile.ssd) {
        return;
    }
    if (node->generations > 1 && sim_odds(sim, REPLACED)) {
        sim_trace(sim, "%s has a new disk", node->process.name);
        sim_ssd_free(node);
        sim_ssd_make(node);
    }
    unsigned faults = sim->calm ? 0 : sim->profile.disk_faults;
    sim_disk_set_faults(node->disk, (struct sim_disk_faults){faults, faults, faults});
    lend_memory(node);
    sim_process_start(&node->ssd, ssd_main, node);
}

/*
 * What the clients do: puts, gets, upserts, removals, probes and views of a dozen keys, one by one
 * and in batches, each result told to the oracle.
 *
 * Every operation must end within its timeout and what ops.h adds to it for cleaning up, whatever
 * the network does. In a run without faults no operation may fail for want of an answer.
 */
#include "sim/sim.h"

#define CLEANUP_NS (3 * MC_SEC) /* OPS_CLEANUP_MS for the end and for the revocation, and some */
#define SHARED_NS  (10 * MC_SEC) /* a file system that waits has no deadline */
#define VIEW_STEPS 6
#define SESSION_NS (400 * MC_MS)

struct batch {
    struct mc_store_item items[SIM_BATCH];
    struct mc_slice slices[SIM_BATCH][3];
    unsigned keys[SIM_BATCH];
    size_t count;
};

static const uint64_t SIZES[] = {40, 190, 700, 1400};

/* ---- choosing ---- */

/* One of the client's tenant. */
static unsigned some_key(struct sim_client *client) {
    struct sim *sim = client->process.sim;
    unsigned own = sim->profile.guest_quota > 0 ? SIM_GUEST_KEY : SIM_KEYS;
    if (client->process.guest) {
        return SIM_GUEST_KEY + (unsigned)mc_rng_below(&sim->rng, SIM_KEYS - SIM_GUEST_KEY);
    }
    /* the first ones are hot */
    return (unsigned)mc_rng_below(&sim->rng, sim_odds(sim, 50) ? 4 : own);
}

static bool mine(const struct sim_client *client, unsigned key) {
    return sim_key_is_guests(client->process.sim, key) == client->process.guest;
}

static unsigned find_own(const struct sim_client *client, const char *text) {
    struct mc_str tenant = client->process.guest ? MC_STR(SIM_GUEST) : MC_STR("default");
    return sim_key_find(client->process.sim, tenant, mc_str_from(text));
}

/* Each key has its usual size, so that upserts often find one of equal size. */
static uint64_t some_size(struct sim *sim, unsigned key) {
    unsigned which = sim_odds(sim, 75) ? key % 4 : (unsigned)mc_rng_below(&sim->rng, 4);
    return SIZES[which];
}

/* Cuts [bytes, bytes + size) into slices. */
static void slice(struct sim *sim, struct batch *b, size_t i, uint8_t *bytes, uint64_t size) {
    size_t count = (size_t)sim_between(sim, 1, 3);
    uint64_t done = 0;
    for (size_t s = 0; s < count; s++) {
        uint64_t end = s + 1 == count ? size : sim_between(sim, done, size);
        b->slices[i][s] = (struct mc_slice){bytes + done, end - done};
        done = end;
    }
    b->items[i] = (struct mc_store_item){
        .key = sim_key_text(sim, b->keys[i]), .slices = b->slices[i], .slice_count = count};
}

/* Distinct keys. */
static void choose_keys(struct sim_client *client, struct batch *b, size_t count) {
    unsigned taken = 0;
    b->count = 0;
    for (size_t tries = 0; tries < 2 * count && b->count < count; tries++) {
        unsigned key = some_key(client);
        if ((taken >> key & 1) == 0) {
            taken |= 1u << key;
            b->keys[b->count++] = key;
        }
    }
}

static void group_names(const struct sim *sim, struct batch *b, const char **names) {
    static const char *const GROUPS[SIM_GROUPS] = {"", "even", "odd"};
    for (size_t i = 0; i < b->count; i++) { /* a key's group never changes; "b/" keys have one */
        bool grouped = sim_key_text(sim, b->keys[i])[0] == 'b';
        names[i] = GROUPS[grouped ? 1 + b->keys[i] % 2 : 0];
    }
}

/* ---- telling ---- */

static bool answered(enum mc_status status) {
    return status != MC_RPC_FAIL && status != MC_RPC_TIMEOUT && status != MC_TRANSFER_FAIL;
}

/* Checks what holds for every operation. */
static void ended(struct sim_client *client, const char *what, enum mc_status status,
                  uint64_t began_ns, unsigned chunks) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    sim_note(sim, (uint64_t)(unsigned)status);
    sim_trace(sim, "%s: %s = %s", process->name, what, mc_status_name(status));
    if (process->dead) {
        return;
    }
    if (status == MC_NOT_SUPPORTED) {
        sim_fail(sim, "%s: the master does not know %s", process->name, what);
    }
    if (!answered(status) && !sim->profile.faulty) {
        sim_fail(sim, "%s: %s failed without any fault: %s", process->name, what,
                 mc_status_name(status));
    }
    /* a disk may turn bits, and holds other bytes soon after an object was replaced */
    if (status == MC_CHECKSUM_MISMATCH && !sim->profile.reuse_addresses && !sim->profile.ssd) {
        sim_fail(sim, "%s: %s read bytes under a lease that were not the object's", process->name,
                 what);
    }
    uint64_t limit = chunks * (sim->profile.timeout_ms * MC_MS + CLEANUP_NS);
    limit += sim->profile.files ? chunks * SHARED_NS : 0;
    if (sim->now_ns - began_ns > limit && sim->options.client_break == SIM_BREAK_NONE) {
        sim_fail(sim, "%s: %s took %.3f s", process->name, what,
                 (double)(sim->now_ns - began_ns) / 1e9);
    }
}

static void count_get(struct sim_client *client, enum mc_status status) {
    struct sim_coverage *coverage = &client->process.sim->result->coverage;
    coverage->gets++;
    coverage->guest_gets_ok += client->process.guest && status == MC_OK;
    switch (status) {
    case MC_OK:
        coverage->gets_ok++;
        break;
    case MC_OBJECT_NOT_FOUND:
        coverage->gets_missing++;
        break;
    case MC_REPLICA_IS_NOT_READY:
        coverage->gets_not_ready++;
        break;
    case MC_LEASE_EXPIRED:
        coverage->gets_lease_expired++;
        break;
    default:
        coverage->gets_failed++;
    }
}

/* ---- operations ---- */

static void get(struct sim_client *client, size_t count) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    struct batch b;
    choose_keys(client, &b, count);
    for (size_t i = 0; i < b.count; i++) {
        memset(client->buffer[i], 0xee, SIM_VALUE_MAX);
        slice(sim, &b, i, client->buffer[i], SIM_VALUE_MAX);
    }
    const struct mc_metric *disk_reads = &mc_ops_counters(process->ops)->disk_reads;
    int64_t disk_reads_before = mc_metric_get(disk_reads);
    enum mc_status status = mc_ops_get(process->ops, b.items, b.count);
    MC_ASSERT(status == MC_OK);
    /* else it may be a disk that lost what the master believes it has */
    bool all_told = process->dead || mc_metric_get(disk_reads) == disk_reads_before;
    for (size_t i = 0; i < b.count; i++) {
        enum mc_status own = b.items[i].status;
        ended(client, "get", own, began, 1);
        if (process->dead) {
            continue;
        }
        count_get(client, own);
        if (own == MC_OK) {
            sim_oracle_read(sim, process->name, b.keys[i], client->buffer[i], b.items[i].length,
                            began);
        } else if (all_told && (own == MC_OBJECT_NOT_FOUND || own == MC_REPLICA_IS_NOT_READY)) {
            sim_oracle_absent(sim, b.keys[i], began);
        }
    }
}

static void count_put(struct sim_client *client, enum mc_status status, bool upsert) {
    struct sim_coverage *coverage = &client->process.sim->result->coverage;
    bool ok = status == MC_OK;
    coverage->guest_puts_ok += client->process.guest && ok;
    if (upsert) {
        coverage->upserts++;
        coverage->upserts_ok += ok;
        coverage->upserts_failed += !ok;
    } else {
        coverage->puts++;
        coverage->puts_ok += ok;
        coverage->puts_refused += status == MC_NO_AVAILABLE_HANDLE;
        coverage->puts_over_quota += status == MC_TENANT_QUOTA_EXCEEDED;
        coverage->puts_failed += !ok && status != MC_NO_AVAILABLE_HANDLE;
    }
}

static void put(struct sim_client *client, size_t count, bool upsert) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    uint64_t operation = process->operation;
    struct batch b;
    const char *groups[SIM_BATCH];
    size_t values[SIM_BATCH];
    choose_keys(client, &b, count);
    unsigned chunks = 1;
    if (b.count > 1 && b.count < SIM_BATCH && sim_odds(sim, 10)) {
        chunks = 2;
        b.keys[b.count++] = b.keys[0]; /* a caller who names a key twice */
    }
    for (size_t i = 0; i < b.count; i++) {
        uint64_t size = some_size(sim, b.keys[i]);
        values[i] = sim_value_make(sim, process, b.keys[i], size, client->buffer[i],
                                   upsert ? SIM_OP_WRITE : SIM_OP_PUT);
        slice(sim, &b, i, client->buffer[i], size);
        sim_trace(sim, "%s: value %zu for %s, %llu bytes", process->name, values[i],
                  sim_key_name(b.keys[i]), (unsigned long long)size);
    }
    group_names(sim, &b, groups);
    struct mc_replicate_config config = {.replica_num = sim_odds(sim, 40) ? 2 : 1,
                                         .with_soft_pin = sim_odds(sim, 10),
                                         .with_hard_pin =
                                             sim_odds(sim, 2) && sim->profile.quota == 0,
                                         .group_ids = groups,
                                         .group_id_count = b.count};
    enum mc_status status = mc_ops_put(process->ops, b.items, b.count, &config, upsert);
    MC_ASSERT(status == MC_OK);
    for (size_t i = 0; i < b.count; i++) {
        enum mc_status own = b.items[i].status;
        ended(client, upsert ? "upsert" : "put", own, began, chunks);
        bool certain = own == MC_OK && !process->dead;
        sim_value_settle(sim, values[i], certain);
        if (process->dead) {
            continue;
        }
        count_put(client, own, upsert);
        if (upsert && certain) {
            sim_oracle_replaced(sim, operation, b.keys[i], began);
        }
    }
}

/* Reserved, written in two parts in any order, ended; given up when it takes long, since the place
 * is the writer's only until the release timeout. */
static void put_session(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    unsigned key = some_key(client);
    const char *name = sim_key_text(sim, key);
    uint8_t *bytes = client->buffer[0];
    uint64_t size = some_size(sim, key), cut = sim_between(sim, 1, size - 1);
    size_t value = sim_value_make(sim, process, key, size, bytes, SIM_OP_PUT);
    struct mc_store_range ranges[2] = {{.ptr = bytes, .length = cut},
                                       {.ptr = bytes + cut, .length = size - cut, .offset = cut}};
    const char *group = name[0] == 'b' ? (key % 2 ? "odd" : "even") : "";
    struct mc_replicate_config config = {
        .replica_num = sim_odds(sim, 40) ? 2 : 1, .group_ids = &group, .group_id_count = 1};
    enum mc_status own, ignored;
    SIM_COUNT(sim, put_sessions);
    MC_ASSERT(mc_ops_put_session_start(process->ops, &name, &size, 1, &config, &own) == MC_OK);
    ended(client, "start of a put session", own, began, 1);
    bool open = own == MC_OK;
    unsigned first = sim_odds(sim, 50);
    for (unsigned i = 0; i < 2 && own == MC_OK && !process->dead; i++) {
        uint64_t asked = sim->now_ns;
        struct mc_store_range_item item = {
            .key = name, .ranges = &ranges[i ^ first], .range_count = 1};
        if (asked - began > SESSION_NS) {
            own = MC_RPC_TIMEOUT;
            break;
        }
        MC_ASSERT(mc_ops_put_session_write(process->ops, &item, 1) == MC_OK);
        own = item.status == MC_OK ? item.ranges[0].status : item.status;
        ended(client, "write of a put session", own, asked, 1);
        sim_sleep(process, sim_between(sim, 0, 20 * MC_MS));
    }
    uint64_t asked = sim->now_ns;
    if (own == MC_OK && !process->dead) {
        MC_ASSERT(mc_ops_put_session_end(process->ops, &name, 1, &own) == MC_OK);
        ended(client, "end of a put session", own, asked, 1);
    }
    bool certain = own == MC_OK && !process->dead;
    sim_value_settle(sim, value, certain);
    sim->result->coverage.put_sessions_ok += certain;
    if (open && !certain && !process->dead) {
        asked = sim->now_ns;
        MC_ASSERT(mc_ops_put_session_revoke(process->ops, &name, 1, &ignored) == MC_OK);
        ended(client, "revocation of a put session", ignored, asked, 1);
    }
}

/* Two reads of one session are of one object; nothing verifies them but its lease. */
static void get_session(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns, size = 0;
    unsigned key = some_key(client);
    const char *name = sim_key_text(sim, key);
    uint8_t *bytes = client->buffer[0];
    enum mc_status own = mc_ops_size(process->ops, name, &size);
    ended(client, "question of a size", own, began, 1);
    if (own != MC_OK || process->dead) {
        return;
    }
    SIM_COUNT(sim, get_sessions);
    began = sim->now_ns;
    MC_ASSERT(mc_ops_get_session_start(process->ops, &name, 1, &own) == MC_OK);
    ended(client, "start of a get session", own, began, 1);
    uint64_t cut = sim_between(sim, 1, size - 1);
    for (unsigned i = 0; i < 2 && own == MC_OK && !process->dead; i++) {
        struct mc_store_range range = {
            .ptr = bytes + (i ? cut : 0), .length = i ? size - cut : cut, .offset = i ? cut : 0};
        struct mc_store_range_item item = {.key = name, .ranges = &range, .range_count = 1};
        uint64_t asked = sim->now_ns;
        MC_ASSERT(mc_ops_get_session_read(process->ops, &item, 1) == MC_OK);
        own = item.status == MC_OK ? range.status : item.status;
        ended(client, "read of a get session", own, asked, 1);
        sim_sleep(process, sim_between(sim, 0, sim->profile.lease_ms * MC_MS));
    }
    if (own == MC_OK && !process->dead) {
        SIM_COUNT(sim, get_sessions_ok);
        sim_oracle_read_part(sim, process->name, key, bytes, size, began);
    }
    if (!process->dead) {
        MC_ASSERT(mc_ops_get_session_end(process->ops, &name, 1) == MC_OK);
    }
}

/* One key, with a time to live, and perhaps only when it is absent or still what it was. */
static void put_on_terms(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t operation = process->operation;
    struct batch b = {.keys = {some_key(client)}, .count = 1};
    const char *name = sim_key_text(sim, b.keys[0]), *group;
    struct mc_object_info info;
    enum mc_status known = MC_OK;
    unsigned terms = (unsigned)mc_rng_below(&sim->rng, 3);
    group_names(sim, &b, &group);
    struct mc_replicate_config config = {
        .ttl_ms = sim_odds(sim, 60) ? sim_between(sim, 1, 2000) : 0,
        .with_hard_pin = sim_odds(sim, 10) && sim->profile.quota == 0,
        .with_soft_pin = sim_odds(sim, 20),
        .group_ids = &group,
        .group_id_count = 1};
    uint64_t began = sim->now_ns;
    uint64_t size = some_size(sim, b.keys[0]);
    /* before anything waits: the oracle wants values in the order of operations */
    size_t value = sim_value_make(sim, process, b.keys[0], size, client->buffer[0], SIM_OP_WRITE);
    slice(sim, &b, 0, client->buffer[0], size);
    if (terms == 2) {
        enum mc_status asked = mc_ops_inspect(process->ops, &name, 1, &info, &known);
        MC_ASSERT(asked == MC_OK);
        ended(client, "inspection", known, began, 1);
        if (known != MC_OK || process->dead) {
            sim_value_settle(sim, value, false);
            return;
        }
        sim_sleep(process, sim_between(sim, 0, 20 * MC_MS));
        config.condition = MC_PUT_IF_VERSION;
        config.expected = &info.version;
        config.expected_count = 1;
    } else if (terms == 1) {
        config.condition = MC_PUT_IF_ABSENT;
    }
    began = sim->now_ns;
    enum mc_status status = mc_ops_put(process->ops, b.items, 1, &config, terms == 0);
    MC_ASSERT(status == MC_OK);
    status = b.items[0].status;
    ended(client, "put on terms", status, began, 1);
    bool certain = status == MC_OK && !process->dead;
    sim_value_settle(sim, value, certain);
    if (process->dead) {
        return;
    }
    if (status == MC_OBJECT_ALREADY_EXISTS) {
        sim_oracle_present(sim, b.keys[0], began);
    }
    struct sim_coverage *coverage = &sim->result->coverage;
    coverage->conditional_puts += terms != 0;
    coverage->conditional_puts_ok += terms != 0 && certain;
    coverage->conditional_puts_refused +=
        status == MC_OBJECT_ALREADY_EXISTS || status == MC_INVALID_VERSION;
    if (!certain) {
        return;
    }
    sim_oracle_replaced(sim, operation, b.keys[0], began);
    if (terms == 2) {
        sim_oracle_replaced_version(sim, process->name, b.keys[0], info.version);
    }
    if (config.ttl_ms > 0) {
        coverage->mortal_puts++;
        sim_oracle_mortal(sim, value, config.ttl_ms);
    }
}

/* All keys, page by page: none comes twice, and one that was not listed was absent for a moment. */
static void list(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    bool seen[SIM_KEYS] = {0};
    char after[64] = "";
    do {
        struct mc_store_keys page = {0};
        uint64_t asked = sim->now_ns;
        enum mc_status status =
            mc_ops_list(process->ops, NULL, after, sim_between(sim, 1, 8), &page);
        ended(client, "listing", status, asked, 1);
        if (status != MC_OK || process->dead) { /* also: the master is another now */
            free((void *)page.keys);
            return;
        }
        for (size_t i = 0; i < page.count; i++) {
            unsigned key = find_own(client, page.keys[i]);
            if (key < SIM_KEYS && seen[key]) {
                sim_fail(sim, "%s was listed twice", page.keys[i]);
            } else if (key < SIM_KEYS) {
                seen[key] = true;
                SIM_COUNT(sim, keys_listed);
            }
        }
        memcpy(after, page.next, sizeof(after));
        free((void *)page.keys);
        sim_sleep(process, sim_between(sim, 0, 5 * MC_MS));
    } while (after[0] != '\0' && !process->dead);
    SIM_COUNT(sim, listings);
    for (unsigned key = 0; key < SIM_KEYS && !process->dead; key++) {
        if (!seen[key] && mine(client, key)) {
            sim_oracle_absent(sim, key, began);
        }
    }
}

static void exist(struct sim_client *client, size_t count) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    struct batch b;
    const char *names[SIM_BATCH];
    bool found[SIM_BATCH];
    enum mc_status results[SIM_BATCH];
    choose_keys(client, &b, count);
    for (size_t i = 0; i < b.count; i++) {
        names[i] = sim_key_text(sim, b.keys[i]);
    }
    enum mc_status status = mc_ops_exist(process->ops, names, b.count, found, results);
    MC_ASSERT(status == MC_OK);
    for (size_t i = 0; i < b.count; i++) {
        ended(client, "exist", results[i], began, 1);
        if (!process->dead && results[i] == MC_OK) {
            SIM_COUNT(sim, exist_answers);
            if (found[i]) {
                sim_oracle_present(sim, b.keys[i], began);
            } else {
                sim_oracle_absent(sim, b.keys[i], began);
            }
        }
    }
}

static void remove_keys(struct sim_client *client, size_t count) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    struct batch b;
    const char *names[SIM_BATCH];
    enum mc_status results[SIM_BATCH];
    bool force = sim->profile.force && sim_odds(sim, 50);
    choose_keys(client, &b, count);
    for (size_t i = 0; i < b.count; i++) {
        names[i] = sim_key_text(sim, b.keys[i]);
    }
    enum mc_status status = mc_ops_remove(process->ops, names, b.count, force, results);
    MC_ASSERT(status == MC_OK);
    for (size_t i = 0; i < b.count; i++) {
        ended(client, force ? "forced removal" : "removal", results[i], began, 1);
        if (process->dead) {
            continue;
        }
        if (results[i] == MC_OK || results[i] == MC_OBJECT_NOT_FOUND) {
            sim_oracle_absent(sim, b.keys[i], began);
            sim->result->coverage.removes_ok += results[i] == MC_OK;
        }
        sim->result->coverage.removes_leased += results[i] == MC_OBJECT_HAS_LEASE;
    }
}

/* Removals of many pass over what is being copied or moved. */
static bool perhaps_copied(const struct sim *sim, unsigned key, uint64_t since_ns) {
    return sim->copy_began_ns[key] != 0 &&
           sim->copy_began_ns[key] + 2 * sim->profile.discard_ms * MC_MS > since_ns;
}

static void remove_many(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    bool force = sim->profile.force && sim_odds(sim, 50);
    bool all = sim_odds(sim, 15);
    char initial = "abc"[mc_rng_below(&sim->rng, 3)];
    char pattern[] = {'^', initial, '/', 0};
    uint64_t removed = 0;
    enum mc_status status = all ? mc_ops_remove_all(process->ops, force, &removed)
                                : mc_ops_remove_regex(process->ops, pattern, force, &removed);
    ended(client, all ? "removal of all" : "removal by pattern", status, began, 1);
    for (unsigned key = 0; force && status == MC_OK && !process->dead && key < SIM_KEYS; key++) {
        bool meant = mine(client, key) && (all || sim_key_text(sim, key)[0] == initial);
        if (meant && !perhaps_copied(sim, key, began)) {
            sim_oracle_absent(sim, key, began);
        }
    }
}

static void look(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    struct mc_replica_info replicas[4 * SIM_NODES];
    /* in memory and on disks; or up to three stripes of a copy on each, and on disks */
    size_t most = (sim->profile.stripe_bytes > 0 ? 4 : 2) * SIM_NODES;
    size_t count = 0;
    uint64_t length = 0;
    unsigned key = some_key(client);
    enum mc_status status =
        sim_odds(sim, 50)
            ? mc_ops_size(process->ops, sim_key_text(sim, key), &length)
            : mc_ops_replicas(process->ops, sim_key_text(sim, key), replicas, most, &count);
    ended(client, "look", status, began, 1);
    if (status == MC_OK && !process->dead && count > most) {
        sim_fail(sim, "%s has %zu replicas on %d nodes", sim_key_name(key), count, SIM_NODES);
    }
}

/* Asks for a copy or a move; the nodes' workers do it when they come by. */
static void ask_task(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    const char *nodes[SIM_NODES];
    struct mc_uuid id = {0};
    unsigned first = (unsigned)mc_rng_below(&sim->rng, SIM_NODES);
    bool move = sim_odds(sim, 50);
    for (unsigned i = 0; i < SIM_NODES; i++) {
        nodes[i] = sim->nodes[(first + i) % SIM_NODES].process.name;
    }
    const char *key = sim_key_text(sim, some_key(client));
    enum mc_status status =
        move ? mc_ops_move(process->ops, key, nodes[0], nodes[1], &id)
             : mc_ops_copy(process->ops, key, nodes, sim_odds(sim, 70) ? 1 : 2, &id);
    ended(client, move ? "request to move" : "request to copy", status, began, 1);
    if (status == MC_OK && !process->dead) {
        sim->result->coverage.copies_asked += !move;
        sim->result->coverage.moves_asked += move;
        struct mc_store_task task;
        sim_sleep(process, sim_between(sim, 0, 300 * MC_MS));
        began = sim->now_ns;
        status = mc_ops_task(process->ops, id, &task);
        ended(client, "question after a task", status, began, 1);
    }
}

/* Holds a view for some leases' time and looks at it again and again. */
static void view(struct sim_client *client) {
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    unsigned key = some_key(client);
    struct mc_ops_view v;
    enum mc_status status = mc_ops_view_open(process->ops, sim_key_text(sim, key), &v);
    ended(client, "view", status, began, 1);
    if (status != MC_OK) {
        return;
    }
    SIM_COUNT(sim, views);
    uint64_t renew_at = 0;
    for (unsigned i = 0; i < VIEW_STEPS && !process->dead; i++) {
        uint8_t copy[SIM_VALUE_MAX];
        MC_ASSERT(v.length <= sizeof(copy));
        memcpy(copy, v.data, v.length);
        if (!mc_ops_view_valid(v.record)) {
            break;
        }
        SIM_COUNT(sim, view_reads);
        sim_oracle_read(sim, process->name, key, copy, v.length, began);
        if (renew_at <= sim->now_ns) {
            renew_at = mc_ops_view_renew(process->ops);
        }
        sim_sleep(process, sim_between(sim, MC_MS, sim->profile.lease_ms * MC_MS / 2));
    }
    mc_ops_view_release(process->ops, v.record);
}

static void operate(struct sim_client *client) {
    struct sim *sim = client->process.sim;
    size_t some = (size_t)sim_between(sim, 2, SIM_BATCH - 1);
    unsigned pick = (unsigned)mc_rng_below(&sim->rng, 100);
    client->process.operation = ++sim->operations;
    if (pick < 28) {
        get(client, 1);
    } else if (pick < 40) {
        get(client, some);
    } else if (pick < 55) {
        put(client, 1, false);
    } else if (pick < 63) {
        put(client, some, false);
    } else if (pick < 75) {
        put(client, 1, true);
    } else if (pick < 79) {
        put(client, some, true);
    } else if (pick < 84) {
        exist(client, sim_odds(sim, 50) ? 1 : some);
    } else if (pick < 86 && sim_odds(sim, 60)) {
        put_on_terms(client);
    } else if (pick < 86 && sim_odds(sim, 40)) {
        put_session(client);
    } else if (pick < 86) {
        list(client);
    } else if (pick < 88) {
        remove_keys(client, sim_odds(sim, 70) ? 1 : some);
    } else if (pick < 91) {
        ask_task(client);
    } else if (pick < 92) {
        remove_many(client);
    } else if (pick < 95 || sim->profile.reuse_addresses) { /* a view has no checksum */
        look(client);
    } else if (sim_odds(sim, 40)) {
        get_session(client);
    } else {
        view(client);
    }
}

static void client_main(void *arg) {
    struct sim_client *client = arg;
    struct sim_process *process = &client->process;
    struct sim *sim = process->sim;
    sim_sleep(process, sim_between(sim, 5 * MC_MS, 100 * MC_MS)); /* the nodes come first */
    mc_ops_find_files(process->ops);
    while (!process->dead && client->operations_left > 0) {
        client->operations_left--;
        operate(client);
        sim_sleep(process, sim_between(sim, 0, sim_odds(sim, 5) ? 500 * MC_MS : 20 * MC_MS));
    }
    client->finished = client->operations_left == 0;
    sim_process_end(process);
}

void sim_client_start(struct sim_client *client) {
    if (client->operations_left == 0) {
        client->finished = true;
        return;
    }
    sim_process_start(&client->process, client_main, client);
}

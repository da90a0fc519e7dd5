/*
 * The oracle: which bytes may a read of a key return?
 *
 * Every value that is ever put has an id in its first eight bytes, and all others follow from it,
 * so bytes name the put that they come from, and a torn or foreign byte is seen.
 *
 * A value becomes readable at most once, at one moment (its PutEnd), and never again after it has
 * gone. `latest_ns` bounds that moment from above: the end of the put when it was successful, the
 * longest life of a message more when it was not. So whatever proves that at some moment in [a, b]
 * the key did not hold value v, with v.latest < a, proves that v has gone for good by b: a read of
 * another value, a miss, a successful removal or upsert. A read that begins after v was proved gone
 * and returns v is a fault. A miss is never one: this is a cache.
 *
 * That is told at once, and is not all: at the end of a run the history of each key must be
 * linearizable (linear.h), which also sees what only several operations together prove.
 */
#include <stdio.h>

#include "sim/sim.h"

static const char *const KEYS[SIM_KEYS] = {"a/0", "a/1", "a/2", "a/3", "b/0", "b/1",
                                           "b/2", "b/3", "c/0", "c/1", "c/2", "c/3"};

const char *sim_key_name(unsigned key) {
    return KEYS[key];
}

bool sim_key_is_guests(const struct sim *sim, unsigned key) {
    return sim->profile.guest_quota > 0 && key >= SIM_GUEST_KEY;
}

const char *sim_key_tenant(const struct sim *sim, unsigned key) {
    return sim_key_is_guests(sim, key) ? SIM_GUEST : "default";
}

const char *sim_key_text(const struct sim *sim, unsigned key) {
    static const char *const GUESTS[SIM_KEYS - SIM_GUEST_KEY] = {"a/0", "a/1", "b/0", "b/1"};
    return sim_key_is_guests(sim, key) ? GUESTS[key - SIM_GUEST_KEY] : KEYS[key];
}

unsigned sim_key_find(const struct sim *sim, struct mc_str tenant, struct mc_str text) {
    bool guest = mc_str_eq(tenant, MC_STR(SIM_GUEST));
    for (unsigned i = 0; i < SIM_KEYS; i++) {
        if (guest == sim_key_is_guests(sim, i) &&
            mc_str_eq(text, mc_str_from(sim_key_text(sim, i)))) {
            return i;
        }
    }
    return SIM_NO_KEY;
}

#define UNREADABLE UINT32_MAX /* a value that the master believes in, and nobody can read */

/* ---- values ---- */

static uint64_t word_of(uint64_t id, uint64_t i) {
    uint64_t word = id + i * 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    return i == 0 ? id : word ^ word >> 27;
}

static void fill(uint64_t id, uint8_t *bytes, uint64_t size) {
    for (uint64_t done = 0; done < size; done += 8) {
        uint64_t word = word_of(id, done / 8);
        memcpy(bytes + done, &word, mc_min_u64(8, size - done));
    }
}

static uint64_t wrong_bytes(uint64_t id, const uint8_t *bytes, uint64_t size, uint64_t *first) {
    uint8_t expected[SIM_VALUE_MAX];
    uint64_t wrong = 0;
    fill(id, expected, size);
    if (memcmp(expected, bytes, size) == 0) {
        return 0;
    }
    for (uint64_t i = size; i-- > 0;) {
        if (expected[i] != bytes[i]) {
            wrong++;
            *first = i;
        }
    }
    return wrong;
}

/* ---- histories ---- */

static size_t remember(struct sim *sim, unsigned key, const struct sim_op *op) {
    struct sim_history *history = &sim->histories[key];
    if (history->count == history->capacity) {
        history->capacity = history->capacity ? 2 * history->capacity : 64;
        history->ops = mc_realloc(history->ops, history->capacity * sizeof(*history->ops));
    }
    history->ops[history->count] = *op;
    return history->count++;
}

/* Something that was seen in [began_ns, now]. */
static void saw(struct sim *sim, unsigned key, enum sim_op_kind kind, uint32_t value,
                uint64_t began_ns) {
    struct sim_op op = {.kind = kind, .value = value, .begin_ns = began_ns, .end_ns = sim->now_ns};
    remember(sim, key, &op);
}

static void tell_history(struct sim *sim, const struct sim_history *history) {
    for (size_t i = 0; i < history->count; i++) {
        const struct sim_op *op = &history->ops[i];
        sim_trace(sim, "    %s%s of value %lld from %.6f s to %.6f s", op->maybe ? "perhaps " : "",
                  sim_op_name(op->kind), (long long)op->value - 1, (double)op->begin_ns / 1e9,
                  (double)op->end_ns / 1e9);
    }
}

void sim_oracle_conclude(struct sim *sim) {
    for (unsigned key = 0; key < SIM_KEYS && !sim->result->failed; key++) {
        const struct sim_history *history = &sim->histories[key];
        struct sim_verdict verdict = sim_linear_check(history->ops, history->count);
        sim->result->coverage.operations_judged += history->count;
        sim->result->most_possibilities = mc_max_u64(sim->result->most_possibilities, verdict.most);
        if (!verdict.linearizable) {
            const struct sim_op *op = &history->ops[verdict.culprit];
            tell_history(sim, history);
            sim_fail(sim, "the history of %s %s: %s of value %lld from %.6f s to %.6f s",
                     sim_key_name(key),
                     verdict.given_up ? "has too many possibilities" : "is not linearizable",
                     sim_op_name(op->kind), (long long)op->value - 1, (double)op->begin_ns / 1e9,
                     (double)op->end_ns / 1e9);
        }
    }
}

size_t sim_value_make(struct sim *sim, struct sim_process *writer, unsigned key, uint64_t size,
                      void *bytes, enum sim_op_kind kind) {
    MC_ASSERT(size >= 8 && size <= SIM_VALUE_MAX);
    if (sim->value_count == sim->value_capacity) {
        sim->value_capacity = sim->value_capacity ? sim->value_capacity * 2 : 256;
        sim->values = mc_realloc(sim->values, sim->value_capacity * sizeof(*sim->values));
    }
    size_t number = sim->value_count++;
    struct sim_op op = {.kind = kind,
                        .maybe = true,
                        .value = (uint32_t)number + 1,
                        .begin_ns = sim->now_ns,
                        .end_ns = UINT64_MAX};
    /* scrambled, so that no byte of one id is that of the next */
    uint64_t id = (uint64_t)(number + 1) * 0x9e3779b97f4a7c15u;
    sim->values[number] = (struct sim_value){.id = id,
                                             .key = key,
                                             .size = size,
                                             .operation = writer->operation,
                                             .latest_ns = UINT64_MAX,
                                             .gone_ns = UINT64_MAX,
                                             .history = remember(sim, key, &op)};
    fill(id, bytes, size);
    return number;
}

void sim_value_settle(struct sim *sim, size_t number, bool certain) {
    struct sim_value *value = &sim->values[number];
    struct sim_op *op = &sim->histories[value->key].ops[value->history];
    value->latest_ns = sim->now_ns + (certain ? 0 : SIM_LATE_NS);
    op->end_ns = value->latest_ns;
    op->maybe = !certain;
}

void sim_oracle_ended(struct sim *sim, uint64_t operation, unsigned key) {
    for (size_t i = sim->value_count; i-- > 0 && sim->values[i].operation >= operation;) {
        struct sim_value *value = &sim->values[i];
        if (value->operation == operation && value->key == key) {
            value->ended = true;
            value->ended_event = sim->changed_event[key] = sim->result->events;
        }
    }
}

void sim_oracle_removed(struct sim *sim, unsigned key) {
    sim->changed_event[key] = sim->result->events;
}

/* ---- evidence ---- */

/* All but those of `operation`. */
static void others_gone(struct sim *sim, unsigned key, uint64_t began_ns, uint64_t operation) {
    for (size_t i = 0; i < sim->value_count; i++) {
        struct sim_value *value = &sim->values[i];
        if (value->key == key && value->operation != operation && value->latest_ns < began_ns) {
            value->gone_ns = mc_min_u64(value->gone_ns, sim->now_ns);
        }
    }
}

void sim_oracle_absent(struct sim *sim, unsigned key, uint64_t began_ns) {
    others_gone(sim, key, began_ns, 0);
    saw(sim, key, SIM_OP_ABSENT, 0, began_ns);
}

void sim_oracle_present(struct sim *sim, unsigned key, uint64_t began_ns) {
    saw(sim, key, SIM_OP_PRESENT, 0, began_ns);
}

void sim_oracle_replaced(struct sim *sim, uint64_t operation, unsigned key, uint64_t began_ns) {
    others_gone(sim, key, began_ns, operation);
}

void sim_oracle_mortal(struct sim *sim, size_t number, uint64_t ttl_ms) {
    struct sim_value *value = &sim->values[number];
    value->gone_ns = mc_min_u64(value->gone_ns, sim->now_ns + ttl_ms * MC_MS);
}

void sim_oracle_replaced_version(struct sim *sim, const char *who, unsigned key, uint64_t version) {
    if (sim->replaced_count == sim->replaced_capacity) {
        sim->replaced_capacity = sim->replaced_capacity ? sim->replaced_capacity * 2 : 64;
        sim->replaced = mc_realloc(sim->replaced, sim->replaced_capacity * sizeof(*sim->replaced));
    }
    for (size_t i = 0; i < sim->replaced_count; i++) {
        if (sim->replaced[i].key == key && sim->replaced[i].version == version) {
            sim_fail(sim, "%s replaced version %llx of %s, as somebody else had before", who,
                     (unsigned long long)version, sim_key_name(key));
        }
    }
    sim->replaced[sim->replaced_count++] = (struct sim_replaced){key, version};
}

static struct sim_value *identify(struct sim *sim, const uint8_t *bytes, uint64_t size) {
    uint64_t id;
    if (size < sizeof(id)) {
        return NULL;
    }
    memcpy(&id, bytes, sizeof(id));
    for (size_t i = sim->value_count; i-- > 0;) {
        if (sim->values[i].id == id) {
            return &sim->values[i];
        }
    }
    return NULL;
}

void sim_oracle_returned(struct sim *sim, unsigned key, const uint8_t *bytes, uint64_t size) {
    struct sim_op op = {.kind = SIM_OP_WRITE,
                        .maybe = true,
                        .value = UNREADABLE,
                        .begin_ns = sim->now_ns,
                        .end_ns = sim->now_ns};
    if (bytes != NULL) {
        struct sim_value *value = identify(sim, bytes, size);
        uint64_t first;
        if (value == NULL || value->key != key || value->size != size ||
            wrong_bytes(value->id, bytes, size, &first) > 0) {
            sim_fail(sim,
                     "a disk holds %llu bytes for %s that no put has written: value %lld of %s",
                     (unsigned long long)size, sim_key_name(key),
                     value != NULL ? (long long)(value - sim->values) : -1LL,
                     value != NULL ? sim_key_name(value->key) : "none");
            return;
        }
        op.value = (uint32_t)(value - sim->values) + 1;
        if (sim->changed_event[key] > value->ended_event) {
            sim_fail(sim, "a disk brings back value %u of %s, which was removed or replaced",
                     op.value - 1, sim_key_name(key));
            return;
        }
        value->gone_ns = UINT64_MAX;
        if (value->latest_ns < sim->now_ns || value->latest_ns == UINT64_MAX) {
            value->latest_ns = sim->now_ns; /* when its put goes on, that will say so */
        }
        SIM_COUNT(sim, values_returned);
        sim_trace(sim, "value %u of %s is back from a disk", op.value - 1, sim_key_name(key));
    }
    remember(sim, key, &op);
}

static void judge(struct sim *sim, const char *who, unsigned key, const uint8_t *bytes,
                  uint64_t size, uint64_t began_ns, bool part) {
    struct sim_value *value = identify(sim, bytes, size);
    uint64_t first = 0;
    if (value == NULL) {
        sim_fail(sim, "%s read bytes from %s that no put has written", who, sim_key_name(key));
        return;
    }
    sim_note(sim, value->id);
    bool fits = value->size == size || (part && value->size > size);
    uint64_t wrong = fits ? wrong_bytes(value->id, bytes, size, &first) : 0;
    unsigned long long number = (unsigned long long)(value - sim->values);
    if (value->key != key) {
        sim_fail(sim, "%s read value %llu from %s, but it was put to %s", who, number,
                 sim_key_name(key), sim_key_name(value->key));
    } else if (!fits) {
        sim_fail(sim, "%s read %llu bytes of value %llu from %s, but it has %llu", who,
                 (unsigned long long)size, number, sim_key_name(key),
                 (unsigned long long)value->size);
    } else if (wrong > 0) {
        sim_fail(sim, "%s read value %llu from %s with %llu of %llu bytes wrong, from byte %llu on",
                 who, number, sim_key_name(key), (unsigned long long)wrong,
                 (unsigned long long)size, (unsigned long long)first);
    } else if (!value->ended && !sim->options.outside_only) {
        sim_fail(sim, "%s read value %llu from %s before its put was ended", who, number,
                 sim_key_name(key));
    } else if (value->gone_ns < began_ns) {
        sim_fail(sim, "%s read value %llu from %s, which had gone %.6f s before", who, number,
                 sim_key_name(key), (double)(began_ns - value->gone_ns) / 1e9);
    }
    sim->result->coverage.bytes_verified += size;
    others_gone(sim, key, began_ns, value->operation);
    saw(sim, key, SIM_OP_READ, (uint32_t)number + 1, began_ns);
}

void sim_oracle_read(struct sim *sim, const char *who, unsigned key, const uint8_t *bytes,
                     uint64_t size, uint64_t began_ns) {
    judge(sim, who, key, bytes, size, began_ns, false);
}

void sim_oracle_read_part(struct sim *sim, const char *who, unsigned key, const uint8_t *bytes,
                          uint64_t size, uint64_t began_ns) {
    judge(sim, who, key, bytes, size, began_ns, true);
}

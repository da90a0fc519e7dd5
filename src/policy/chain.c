/*
 * chain: gives up the block that is least likely to repay its room, as far as the history of blocks
 * of its class tells (worth.h).
 *
 * The class of a block says how often it was used, how its last request stood to those before
 * (worth.h), and whether it was the last one of its chain (that one is partial, and the next turn
 * has another in its place). All of it follows from the order in the batch: the known blocks at the
 * head of a request are what it continues, and the uses of the last of them tell whether others
 * have continued it too.
 *
 * Blocks of one class, length of their request and age are a queue, once for the resident ones and
 * once for those that are gone; a class and a length are a group, and only groups that there were
 * blocks of are sorted and walked. A request is entered from its end to its head,
 * so a chain is given up from its end, and a chain that has begun to go goes on. A victim is the
 * oldest of the non-empty queue of the lowest worth: queues are sorted whenever the worth is
 * learned anew, and a cursor stands before the first that may not be empty. Blocks grow older
 * lazily: the queues of an age are looked at whenever an eighth of its width has passed.
 *
 * Ghosts, three for each resident block at most, keep class and age, so that the uses that a larger
 * memory would have had are counted too; without them the policy would only learn about what it
 * already keeps. Blocks that were asked for but are not there are remembered with the
 * relation of that request, so that the store of a chain's end is understood though it comes
 * without its head.
 */
#include "policy/policy.h"
#include "policy/records.h"
#include "policy/worth.h"

#include <stdlib.h>

#define GROUPS      (MC_WORTH_LENGTHS * MC_WORTH_CLASSES)
#define GROUP_WORDS ((GROUPS + 63) / 64)
#define CELLS       (GROUPS * MC_WORTH_AGES)

#define DIGIT_BITS        11u
#define DIGITS            (1u << DIGIT_BITS)
#define ASKED_QUEUE       (2 * CELLS)
#define QUEUES            (ASKED_QUEUE + 1)
#define GHOSTS_A_RESIDENT 3u
#define GHOSTS_MIN        1024u
#define LEARN_EVERY_MIN   1000u /* keys of requests */
#define TOGETHER_STEP     50.0
#define CHAINS_IN_MEMORY  4u
#define NEARLY_ALL        2u /* blocks may be missing: a partial one, and its successor */

_Static_assert(CELLS <= UINT16_MAX, "rank[] and place[] hold them");

enum state { RESIDENT, GHOST, ASKED, STATES };

struct chain {
    struct mc_policy base;
    struct mc_records records;
    size_t count[STATES];
    uint16_t groups[GROUPS]; /* those that there ever was a block of, ascending */
    unsigned group_count;
    uint64_t known[GROUP_WORDS];                    /* the same as bits */
    uint64_t filled[2][MC_WORTH_AGES][GROUP_WORDS]; /* queues that are not empty */
    uint32_t length[2][CELLS];
    uint64_t origin_ms; /* of ticks; 0 = no request yet */
    uint32_t now;
    uint32_t look_at[MC_WORTH_AGES]; /* when the queues of an age are due */
    uint64_t keys, learn_at;
    uint16_t rank[CELLS], place[CELLS]; /* the worth's order; where a cell stands in it */
    uint32_t ranked, cursor;
    float weight[CELLS]; /* worth times cost, of those that are ranked */
    struct mc_worth worth;
};

static struct chain *of(struct mc_policy *policy) {
    return mc_container_of(policy, struct chain, base);
}

/* ---- records in their queues ---- */

static uint32_t group_of(const struct mc_record *r) {
    return r->length * MC_WORTH_CLASSES + r->class;
}

static uint32_t cell_of(const struct mc_record *r) {
    return group_of(r) * MC_WORTH_AGES + r->age;
}

static void set_bit(uint64_t *bits, unsigned at) {
    bits[at / 64] |= 1ull << at % 64;
}

static void enter(struct chain *p, uint32_t record) {
    struct mc_record *r = &p->records.list[record];
    p->count[r->state]++;
    if (r->state == ASKED) {
        mc_queue_push(&p->records, ASKED_QUEUE, record);
        return;
    }
    uint32_t cell = cell_of(r);
    p->length[r->state][cell]++;
    set_bit(p->filled[r->state][r->age], group_of(r));
    mc_queue_push(&p->records, r->state * CELLS + cell, record);
    if (r->state == RESIDENT && p->place[cell] < p->cursor) {
        p->cursor = p->place[cell];
    }
}

static void leave(struct chain *p, uint32_t record) {
    struct mc_record *r = &p->records.list[record];
    p->count[r->state]--;
    if (r->state != ASKED && --p->length[r->state][cell_of(r)] == 0) {
        p->filled[r->state][r->age][group_of(r) / 64] &= ~(1ull << group_of(r) % 64);
    }
    mc_queue_take(&p->records, record);
}

static void drop(struct chain *p, uint32_t record) {
    leave(p, record);
    mc_records_drop(&p->records, record);
}

static void drop_oldest_ghost(struct chain *p) {
    for (unsigned age = MC_WORTH_AGES; age-- > 0;) {
        for (unsigned word = 0; word < GROUP_WORDS; word++) {
            uint64_t bits = p->filled[GHOST][age][word];
            if (bits) {
                unsigned group = word * 64 + (unsigned)__builtin_ctzll(bits);
                drop(p, mc_queue_oldest(&p->records, CELLS + group * MC_WORTH_AGES + age));
                return;
            }
        }
    }
}

static void trim(struct chain *p) {
    size_t most = mc_max_u64(p->count[RESIDENT] * GHOSTS_A_RESIDENT, GHOSTS_MIN);
    while (p->count[ASKED] > most / 4) {
        drop(p, mc_queue_oldest(&p->records, ASKED_QUEUE));
    }
    while (p->count[GHOST] + p->count[ASKED] > most) {
        drop_oldest_ghost(p);
    }
}

/* ---- time ---- */

static void grow_older(struct chain *p, enum state state, unsigned group, unsigned age) {
    uint32_t queue = state * CELLS + group * MC_WORTH_AGES + age, record;
    while ((record = mc_queue_oldest(&p->records, queue)) != MC_RECORD_NONE) {
        struct mc_record *r = &p->records.list[record];
        uint32_t ticks = p->now - r->used_at;
        if (ticks < p->worth.start[age + 1]) {
            break;
        }
        leave(p, record);
        r->age = mc_worth_age(&p->worth, ticks, r->age);
        for (unsigned a = age; a < r->age; a++) {
            mc_worth_spent(&p->worth, r->class, r->length, a,
                           p->worth.start[a + 1] - p->worth.start[a]);
        }
        enter(p, record);
    }
}

static void grow_older_all(struct chain *p, enum state state, unsigned age) {
    for (unsigned word = 0; word < GROUP_WORDS; word++) {
        for (uint64_t bits = p->filled[state][age][word]; bits; bits &= bits - 1) {
            grow_older(p, state, word * 64 + (unsigned)__builtin_ctzll(bits), age);
        }
    }
}

static void set_time(struct chain *p, uint64_t now_ms) {
    if (p->origin_ms == 0) {
        p->origin_ms = mc_max_u64(now_ms, 1);
    }
    uint64_t passed = now_ms > p->origin_ms ? now_ms - p->origin_ms : 0;
    uint32_t now = (uint32_t)mc_min_u64(passed * MC_WORTH_TICKS / 1000, UINT32_MAX);
    p->now = now > p->now ? now : p->now;
    for (unsigned age = MC_WORTH_AGES - 1; age-- > 0;) {
        if (p->now < p->look_at[age]) {
            continue;
        }
        uint32_t width = p->worth.start[age + 1] - p->worth.start[age];
        p->look_at[age] = p->now + width / 8;
        grow_older_all(p, RESIDENT, age);
        grow_older_all(p, GHOST, age);
    }
}

/* ---- learning ---- */

/* Of the bits of positive floats the order is that of their values. */
static unsigned digit_of(const struct chain *p, uint16_t cell, unsigned shift) {
    uint32_t bits;
    memcpy(&bits, &p->weight[cell], sizeof(bits));
    return bits >> shift & (DIGITS - 1);
}

/* Sorts the cells of all groups by what a block in them is worth: digit by digit, each time keeping
 * the order of equals, so that of what is worth the same the older goes first, then the one of the
 * shorter request, then the less used. */
static void rank(struct chain *p) {
    p->ranked = 0;
    for (unsigned age = MC_WORTH_AGES; age-- > 0;) {
        for (unsigned i = 0; i < p->group_count; i++) {
            unsigned group = p->groups[i], cell = group * MC_WORTH_AGES + age;
            p->weight[cell] = (float)(p->worth.worth[group % MC_WORTH_CLASSES][age] *
                                      p->worth.length_factor[group / MC_WORTH_CLASSES]);
            p->rank[p->ranked++] = (uint16_t)cell;
        }
    }
    for (unsigned shift = 0; shift < 32; shift += DIGIT_BITS) {
        uint32_t next[DIGITS] = {0}, before = 0;
        for (unsigned i = 0; i < p->ranked; i++) {
            next[digit_of(p, p->rank[i], shift)]++;
        }
        for (unsigned d = 0; d < DIGITS; d++) {
            uint32_t count = next[d];
            next[d] = before;
            before += count;
        }
        for (unsigned i = 0; i < p->ranked; i++) {
            p->place[next[digit_of(p, p->rank[i], shift)]++] = p->rank[i];
        }
        memcpy(p->rank, p->place, p->ranked * sizeof(p->rank[0]));
    }
    for (unsigned i = 0; i < p->ranked; i++) {
        p->place[p->rank[i]] = (uint16_t)i;
    }
    p->cursor = 0;
}

static void learn(struct chain *p) {
    if (p->keys < p->learn_at) {
        return;
    }
    p->learn_at = p->keys + mc_max_u64(LEARN_EVERY_MIN, p->count[RESIDENT] / 8);
    mc_worth_learn(&p->worth);
    rank(p);
}

static void know_group(struct chain *p, unsigned group) {
    if (p->known[group / 64] >> group % 64 & 1) {
        return;
    }
    set_bit(p->known, group);
    unsigned i = p->group_count++;
    for (; i > 0 && p->groups[i - 1] > group; i--) {
        p->groups[i] = p->groups[i - 1];
    }
    p->groups[i] = (uint16_t)group;
    rank(p);
}

/* ---- requests ---- */

/* A known block is used: what its last class and age have come to. */
static void count_use(struct chain *p, struct mc_record *r) {
    uint32_t ticks = p->now - r->used_at;
    if (ticks > p->worth.start[r->age]) {
        mc_worth_spent(&p->worth, r->class, r->length, r->age, ticks - p->worth.start[r->age]);
    }
    mc_worth_used(&p->worth, r->class, r->length, r->age);
    r->uses += r->uses < UINT16_MAX;
}

/* What a block has from its request: how that stands to those before, and how long it is. */
struct origin {
    enum mc_relation relation;
    uint8_t length; /* mc_worth_length */
};

static void use(struct chain *p, uint64_t key, enum mc_policy_kind kind, struct origin from,
                bool last) {
    uint32_t record = mc_records_find(&p->records, key);
    enum state before = record == MC_RECORD_NONE ? ASKED : p->records.list[record].state;
    if (kind == MC_POLICY_READ && before != RESIDENT) {
        return;
    }
    if (record == MC_RECORD_NONE) {
        record = mc_records_add(&p->records, key);
    } else {
        leave(p, record);
    }
    struct mc_record *r = &p->records.list[record];
    if (before != ASKED) {
        count_use(p, r);
    }
    r->class = mc_worth_class(r->uses, from.relation, last);
    r->length = from.length;
    know_group(p, group_of(r));
    r->age = 0;
    r->relation = 0;
    r->used_at = p->now;
    r->state = RESIDENT;
    enter(p, record);
}

/* Remembers whence it is for the reads and stores that follow. */
static void expect(struct chain *p, uint64_t key, struct origin from) {
    uint32_t record = mc_records_find(&p->records, key);
    if (record == MC_RECORD_NONE) {
        record = mc_records_add(&p->records, key);
        p->records.list[record].state = ASKED;
        enter(p, record);
    }
    p->records.list[record].relation = (uint8_t)from.relation;
    p->records.list[record].length_asked = from.length;
}

/* A chain that takes more than a quarter of the memory will not be kept whole, so only so much of
 * it counts. */
static uint8_t length_of(const struct chain *p, size_t blocks) {
    size_t room = p->count[RESIDENT] / CHAINS_IN_MEMORY;
    return mc_worth_length(blocks < room ? blocks : room);
}

/* How the request stands to those before; *known = how many blocks at its head are known. */
static struct origin relate(const struct chain *p, const struct mc_policy_request *request,
                            size_t *known) {
    const struct mc_record *list = p->records.list;
    uint32_t last = MC_RECORD_NONE;
    struct origin asked = {0}, from = {.length = length_of(p, request->count)};
    size_t k = 0;
    for (; k < request->count; k++) {
        uint32_t record = mc_records_find(&p->records, request->keys[k]);
        if (k == 0 && record != MC_RECORD_NONE) {
            asked =
                (struct origin){(enum mc_relation)list[record].relation, list[record].length_asked};
        }
        if (record == MC_RECORD_NONE || list[record].state == ASKED) {
            break;
        }
        last = record;
    }
    *known = k;
    if (asked.relation && request->kind != MC_POLICY_ASK) {
        return asked;
    }
    if (k <= 1) {
        from.relation = MC_RELATION_NEW;
    } else if (list[last].uses > 1) {
        from.relation = MC_RELATION_BRANCH;
    } else {
        from.relation = k + NEARLY_ALL >= request->count ? MC_RELATION_REPEAT : MC_RELATION_NEXT;
    }
    return from;
}

static void request(struct mc_policy *policy, const struct mc_policy_request *r) {
    struct chain *p = of(policy);
    set_time(p, r->now_ms);
    size_t known;
    struct origin from = relate(p, r, &known);
    if (r->kind == MC_POLICY_ASK) {
        for (size_t i = 0; i < r->count; i++) {
            expect(p, r->keys[i], from);
        }
    } else {
        learn(p);
        if (known > 1) {
            p->worth.together += ((double)known - p->worth.together) / TOGETHER_STEP;
        }
        for (size_t i = r->count; i-- > 0;) {
            use(p, r->keys[i], r->kind, from, r->kind == MC_POLICY_STORE && i + 1 == r->count);
        }
        p->keys += r->count;
    }
    trim(p);
}

/* ---- victims ---- */

static bool victim(struct mc_policy *policy, uint64_t *key) {
    struct chain *p = of(policy);
    if (p->count[RESIDENT] == 0) {
        return false;
    }
    while (p->length[RESIDENT][p->rank[p->cursor]] == 0) {
        p->cursor++;
    }
    uint32_t record = mc_queue_oldest(&p->records, p->rank[p->cursor]);
    leave(p, record);
    p->records.list[record].state = GHOST;
    enter(p, record);
    *key = p->records.list[record].key;
    trim(p);
    return true;
}

/* It is in use although it is not worth much: as young as a block that was just used, but nothing
 * is learned from it. */
static void keep(struct mc_policy *policy, uint64_t key) {
    struct chain *p = of(policy);
    uint32_t record = mc_records_find(&p->records, key);
    if (record == MC_RECORD_NONE) {
        use(p, key, MC_POLICY_STORE, (struct origin){.relation = MC_RELATION_NEW}, false);
        return;
    }
    struct mc_record *r = &p->records.list[record];
    if (r->state == ASKED) {
        use(p, key, MC_POLICY_STORE,
            (struct origin){(enum mc_relation)r->relation, r->length_asked}, false);
    } else if (r->state == GHOST) {
        leave(p, record);
        r->state = RESIDENT;
        r->age = 0;
        r->used_at = p->now;
        enter(p, record);
    }
}

static void remove_key(struct mc_policy *policy, uint64_t key) {
    struct chain *p = of(policy);
    uint32_t record = mc_records_find(&p->records, key);
    if (record != MC_RECORD_NONE && p->records.list[record].state == RESIDENT) {
        drop(p, record);
        trim(p);
    }
}

static size_t resident(const struct mc_policy *policy) {
    return mc_container_of(policy, const struct chain, base)->count[RESIDENT];
}

static bool check(const struct mc_policy *policy) {
    const struct chain *p = mc_container_of(policy, const struct chain, base);
    size_t count[STATES] = {0};
    for (uint32_t state = RESIDENT; state <= GHOST; state++) {
        for (uint32_t cell = 0; cell < CELLS; cell++) {
            uint32_t length = mc_queue_check(&p->records, state * CELLS + cell);
            if (length != p->length[state][cell] ||
                (state == RESIDENT && length && p->place[cell] < p->cursor)) {
                return false;
            }
            count[state] += length;
        }
    }
    count[ASKED] = mc_queue_check(&p->records, ASKED_QUEUE);
    return memcmp(count, p->count, sizeof(count)) == 0 &&
           p->records.live == count[RESIDENT] + count[GHOST] + count[ASKED] &&
           count[GHOST] + count[ASKED] <=
               mc_max_u64(count[RESIDENT] * GHOSTS_A_RESIDENT, GHOSTS_MIN);
}

static struct mc_policy *create(const struct mc_policy_config *config) {
    struct chain *p = mc_zalloc(sizeof(*p));
    p->base.ops = &mc_policy_chain;
    mc_records_init(&p->records, QUEUES);
    mc_worth_init(&p->worth, config->attention_blocks);
    learn(p);
    return &p->base;
}

static void destroy(struct mc_policy *policy) {
    mc_records_free(&of(policy)->records);
    free(of(policy));
}

const struct mc_policy_ops mc_policy_chain = {
    .name = "chain",
    .doc = "what is least likely to repay its room, learned by uses and prefix chains",
    .bytes_per_key = (1 + GHOSTS_A_RESIDENT) * MC_RECORD_BYTES,
    .create = create,
    .destroy = destroy,
    .request = request,
    .victim = victim,
    .keep = keep,
    .remove = remove_key,
    .resident = resident,
    .check = check,
};

/*
 * S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main queue for what was used
 * again, and ghosts of what left the small queue, which enter the main queue at once when they come
 * back. A use only counts (to three); queues are first in, first out. The small queue aims at a
 * tenth of what is resident, so the capacity need not be known; ghosts are as many as the main
 * queue may hold.
 */
#include "policy/policy.h"
#include "policy/records.h"

#include <stdlib.h>

enum queue { SMALL, MAIN, GHOST, QUEUES };
#define USES_MAX     3u
#define USES_TO_MAIN 1u
#define GHOSTS_MIN   64u

struct s3fifo {
    struct mc_policy base;
    struct mc_records records; /* record.state is its queue */
    uint32_t length[QUEUES];
};

static struct s3fifo *of(struct mc_policy *policy) {
    return mc_container_of(policy, struct s3fifo, base);
}

static struct mc_policy *create(const struct mc_policy_config *config) {
    struct s3fifo *p = mc_zalloc(sizeof(*p));
    p->base.ops = &mc_policy_s3fifo;
    mc_records_init(&p->records, QUEUES);
    return &p->base;
}

static void destroy(struct mc_policy *policy) {
    mc_records_free(&of(policy)->records);
    free(of(policy));
}

static void move(struct s3fifo *p, uint32_t record, enum queue to) {
    struct mc_record *r = &p->records.list[record];
    p->length[r->state]--;
    mc_queue_take(&p->records, record);
    r->state = (uint8_t)to;
    mc_queue_push(&p->records, to, record);
    p->length[to]++;
}

static void use(struct s3fifo *p, uint64_t key, enum mc_policy_kind kind) {
    uint32_t record = mc_records_find(&p->records, key);
    if (record == MC_RECORD_NONE) {
        if (kind == MC_POLICY_STORE) {
            record = mc_records_add(&p->records, key);
            p->records.list[record].state = SMALL;
            mc_queue_push(&p->records, SMALL, record);
            p->length[SMALL]++;
        }
        return;
    }
    struct mc_record *r = &p->records.list[record];
    if (r->state != GHOST) {
        r->uses += r->uses < USES_MAX;
    } else if (kind == MC_POLICY_STORE) {
        r->uses = 0;
        move(p, record, MAIN);
    }
}

static void request(struct mc_policy *policy, const struct mc_policy_request *r) {
    for (size_t i = 0; i < r->count && r->kind != MC_POLICY_ASK; i++) {
        use(of(policy), r->keys[i], r->kind);
    }
}

static size_t resident(const struct mc_policy *policy) {
    const struct s3fifo *p = mc_container_of(policy, const struct s3fifo, base);
    return (size_t)p->length[SMALL] + p->length[MAIN];
}

static void ghosts_trim(struct s3fifo *p) {
    size_t most = mc_max_u64(resident(&p->base), GHOSTS_MIN);
    while (p->length[GHOST] > most) {
        mc_records_drop(&p->records, mc_queue_oldest(&p->records, GHOST));
        p->length[GHOST]--;
    }
}

/* The next of the small queue goes on to the main queue, or becomes the victim: true. */
static bool small_step(struct s3fifo *p, uint64_t *key) {
    uint32_t record = mc_queue_oldest(&p->records, SMALL);
    struct mc_record *r = &p->records.list[record];
    if (r->uses >= USES_TO_MAIN) {
        r->uses = 0;
        move(p, record, MAIN);
        return false;
    }
    *key = r->key;
    move(p, record, GHOST);
    ghosts_trim(p);
    return true;
}

static bool main_step(struct s3fifo *p, uint64_t *key) {
    uint32_t record = mc_queue_oldest(&p->records, MAIN);
    struct mc_record *r = &p->records.list[record];
    if (r->uses > 0) {
        r->uses--;
        move(p, record, MAIN);
        return false;
    }
    *key = r->key;
    mc_records_drop(&p->records, record);
    p->length[MAIN]--;
    return true;
}

/* Each step takes a use away or ends, so there are at most three for each resident key. */
static bool victim(struct mc_policy *policy, uint64_t *key) {
    struct s3fifo *p = of(policy);
    while (resident(policy) > 0) {
        bool small = p->length[MAIN] == 0 ||
                     (p->length[SMALL] > 0 && p->length[SMALL] >= resident(policy) / 10);
        if (small ? small_step(p, key) : main_step(p, key)) {
            return true;
        }
    }
    return false;
}

static void keep(struct mc_policy *policy, uint64_t key) {
    struct s3fifo *p = of(policy);
    uint32_t record = mc_records_find(&p->records, key);
    if (record == MC_RECORD_NONE) {
        use(p, key, MC_POLICY_STORE);
    } else if (p->records.list[record].state == GHOST) {
        move(p, record, SMALL);
    }
}

static void remove_key(struct mc_policy *policy, uint64_t key) {
    struct s3fifo *p = of(policy);
    uint32_t record = mc_records_find(&p->records, key);
    if (record != MC_RECORD_NONE && p->records.list[record].state != GHOST) {
        p->length[p->records.list[record].state]--;
        mc_records_drop(&p->records, record);
    }
}

static bool check(const struct mc_policy *policy) {
    const struct s3fifo *p = mc_container_of(policy, const struct s3fifo, base);
    for (uint32_t q = 0; q < QUEUES; q++) {
        if (mc_queue_check(&p->records, q) != p->length[q]) {
            return false;
        }
    }
    return p->records.live == p->length[SMALL] + p->length[MAIN] + p->length[GHOST];
}

const struct mc_policy_ops mc_policy_s3fifo = {
    .name = "s3fifo",
    .doc = "S3-FIFO: newcomers are on probation in a tenth of the memory",
    .bytes_per_key = 2 * MC_RECORD_BYTES,
    .create = create,
    .destroy = destroy,
    .request = request,
    .victim = victim,
    .keep = keep,
    .remove = remove_key,
    .resident = resident,
    .check = check,
};

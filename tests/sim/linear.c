/*
 * Wing and Gong's search, just in time as Lowe does it. See linear.h.
 *
 * Time is walked from begin to end. A possibility is a value that the key may hold now together
 * with the set of pending operations that have taken effect. When an operation ends, it must have
 * taken effect: from each possibility in which it has not, all orders of pending operations up to
 * it are tried. Without this laziness there would be far more possibilities.
 *
 * Three things keep their number small, and lose none that matter:
 *  - reads that fit what the key holds take effect at once: they change nothing;
 *  - of two possibilities that differ only in which `maybe`s have taken effect, the one with fewer
 *    can do all that the other can;
 *  - what has ended is forgotten.
 */
#include "sim/linear.h"

#include "base/base.h"

#define PENDING_MAX       64u
#define POSSIBILITIES_MAX 50000u

struct possibility {
    uint32_t value;
    uint64_t taken; /* of the pending */
};

struct moment {
    uint64_t at_ns;
    bool end;
    uint32_t op;
};

struct search {
    const struct sim_op *ops;
    uint32_t pending[PENDING_MAX]; /* by place; valid where `used` has a bit */
    /* Places. Quiet ones change nothing, absences nothing where there is nothing. */
    uint64_t used, maybes, quiet, absences;
    struct possibility *all;
    size_t count, capacity, most;
    bool given_up;
};

static const char *const NAMES[] = {"write", "put", "read", "presence", "absence"};

const char *sim_op_name(enum sim_op_kind kind) {
    return NAMES[kind];
}

/* ---- the cache ---- */

/* What the key may hold after `op`, when it held `value`: how many of after[] are filled. */
static unsigned apply(const struct sim_op *op, uint32_t value, uint32_t after[2]) {
    switch (op->kind) {
    case SIM_OP_WRITE:
        after[0] = op->value;
        return 1;
    case SIM_OP_PUT: /* what was there is lost just before, or it is kept */
        after[0] = op->value;
        after[1] = value;
        return value != 0 ? 2 : 1;
    case SIM_OP_READ:
        after[0] = value;
        return value == op->value;
    case SIM_OP_PRESENT:
        after[0] = value;
        return value != 0;
    case SIM_OP_ABSENT:
        after[0] = 0;
        return 1;
    }
    MC_ASSERT(!"no such kind");
}

/* ---- possibilities ---- */

static void settle_quiet(const struct search *s, struct possibility *p) {
    uint64_t silent = s->quiet | (p->value == 0 ? s->absences : 0);
    for (uint64_t left = silent & s->used & ~p->taken; left != 0; left &= left - 1) {
        unsigned place = (unsigned)__builtin_ctzll(left);
        uint32_t after[2];
        if (apply(&s->ops[s->pending[place]], p->value, after) > 0) {
            p->taken |= 1ull << place;
        }
    }
}

/* `a` can do all that `b` can. */
static bool covers(const struct search *s, struct possibility a, struct possibility b) {
    uint64_t certain = s->used & ~s->maybes;
    return a.value == b.value && (a.taken & certain) == (b.taken & certain) &&
           (a.taken & s->maybes & ~b.taken) == 0;
}

static void add(struct search *s, struct possibility p) {
    settle_quiet(s, &p);
    for (size_t i = 0; i < s->count; i++) {
        if (covers(s, s->all[i], p)) {
            return;
        }
    }
    if (s->count == s->capacity) {
        s->capacity = s->capacity > 0 ? 2 * s->capacity : 64;
        s->all = mc_realloc(s->all, s->capacity * sizeof(*s->all));
    }
    s->all[s->count++] = p;
    s->given_up = s->given_up || s->count > POSSIBILITIES_MAX;
}

/* Every possibility that is reached by pending operations up to the one at `place`. Those that have
 * it are not gone on with. */
static void expand(struct search *s, unsigned place) {
    for (size_t i = 0; i < s->count && !s->given_up; i++) { /* grows while we walk */
        struct possibility from = s->all[i];
        if (from.taken >> place & 1) {
            continue;
        }
        for (uint64_t left = s->used & ~s->quiet & ~from.taken; left != 0; left &= left - 1) {
            unsigned next = (unsigned)__builtin_ctzll(left);
            uint32_t after[2];
            unsigned ways = apply(&s->ops[s->pending[next]], from.value, after);
            for (unsigned way = 0; way < ways; way++) {
                add(s, (struct possibility){after[way], from.taken | 1ull << next});
            }
        }
    }
    s->most = s->count > s->most ? s->count : s->most;
}

/* ---- time ---- */

static bool begins(struct search *s, uint32_t op) {
    unsigned place = s->used == UINT64_MAX ? PENDING_MAX : (unsigned)__builtin_ctzll(~s->used);
    if (place == PENDING_MAX) {
        s->given_up = true;
        return false;
    }
    enum sim_op_kind kind = s->ops[op].kind;
    uint64_t bit = 1ull << place;
    s->pending[place] = op;
    s->used |= bit;
    s->maybes = (s->maybes & ~bit) | (s->ops[op].maybe ? bit : 0);
    bool quiet = kind == SIM_OP_READ || kind == SIM_OP_PRESENT;
    s->quiet = (s->quiet & ~bit) | (quiet ? bit : 0);
    s->absences = (s->absences & ~bit) | (kind == SIM_OP_ABSENT ? bit : 0);
    for (size_t i = 0; i < s->count; i++) {
        settle_quiet(s, &s->all[i]);
    }
    return true;
}

/* False when it cannot have taken effect in any possibility. */
static bool ends(struct search *s, uint32_t op) {
    unsigned place = 0;
    while (!(s->used >> place & 1) || s->pending[place] != op) {
        place++;
    }
    expand(s, place);
    struct possibility *reached = s->all;
    size_t count = s->count;
    s->all = NULL;
    s->count = s->capacity = 0;
    uint64_t bit = 1ull << place;
    s->used &= ~bit;
    for (size_t i = 0; i < count; i++) {
        if (s->ops[op].maybe || (reached[i].taken & bit)) {
            add(s, (struct possibility){reached[i].value, reached[i].taken & ~bit});
        }
    }
    free(reached);
    return s->count > 0;
}

static int by_time(const void *a, const void *b) {
    const struct moment *x = a, *y = b;
    if (x->at_ns != y->at_ns) {
        return x->at_ns < y->at_ns ? -1 : 1;
    }
    if (x->end != y->end) { /* what meets is taken to overlap */
        return x->end ? 1 : -1;
    }
    return x->op < y->op ? -1 : x->op > y->op;
}

struct sim_verdict sim_linear_check(const struct sim_op *ops, size_t count) {
    struct sim_verdict verdict = {.linearizable = true};
    struct search s = {.ops = ops};
    struct moment *moments = mc_alloc((2 * count + 1) * sizeof(*moments));
    for (size_t i = 0; i < count; i++) {
        MC_ASSERT(ops[i].begin_ns <= ops[i].end_ns);
        moments[2 * i] = (struct moment){ops[i].begin_ns, false, (uint32_t)i};
        moments[2 * i + 1] = (struct moment){ops[i].end_ns, true, (uint32_t)i};
    }
    qsort(moments, 2 * count, sizeof(*moments), by_time);
    add(&s, (struct possibility){0, 0});
    for (size_t i = 0; i < 2 * count && verdict.linearizable; i++) {
        bool fits = moments[i].end ? ends(&s, moments[i].op) : begins(&s, moments[i].op);
        if (!fits || s.given_up) {
            verdict = (struct sim_verdict){.given_up = s.given_up, .culprit = moments[i].op};
        }
    }
    verdict.most = s.most;
    free(moments);
    free(s.all);
    return verdict;
}

/*
 * The judge of histories (linear.h) says of small histories what trying every order says, and knows
 * the classic faults by name: a stale read, a value that comes back, a torn order of two writes.
 */
#include "sim/linear.h"
#include "support/support.h"

#define OPS_MAX 6
#define RANDOM  60000

/* ---- by trying every order ---- */

static bool takes(const struct sim_op *op, uint32_t value, unsigned way, uint32_t *after) {
    *after = value;
    switch (op->kind) {
    case SIM_OP_WRITE:
        *after = op->value;
        return way == 0;
    case SIM_OP_PUT:
        *after = way == 0 ? op->value : value;
        return way == 0 || value != 0;
    case SIM_OP_READ:
        return way == 0 && value == op->value;
    case SIM_OP_PRESENT:
        return way == 0 && value != 0;
    case SIM_OP_ABSENT:
        *after = 0;
        return way == 0;
    }
    return false;
}

/* Nobody who is left ended before this one began. */
static bool may_be_next(const struct sim_op *ops, size_t count, unsigned done, size_t i) {
    for (size_t k = 0; k < count; k++) {
        if (!(done >> k & 1) && !ops[k].maybe && ops[k].end_ns < ops[i].begin_ns) {
            return false;
        }
    }
    return true;
}

/* `latest`: the latest begin of what is done; what ended before it comes too late. */
static bool some_order(const struct sim_op *ops, size_t count, unsigned done, uint32_t value,
                       uint64_t latest) {
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        all = all && ((done >> i & 1) || ops[i].maybe);
    }
    for (size_t i = 0; i < count && !all; i++) {
        if ((done >> i & 1) || ops[i].end_ns < latest || !may_be_next(ops, count, done, i)) {
            continue;
        }
        for (unsigned way = 0; way < 2 && !all; way++) {
            uint32_t after;
            all =
                takes(&ops[i], value, way, &after) &&
                some_order(ops, count, done | 1u << i, after, mc_max_u64(latest, ops[i].begin_ns));
        }
    }
    return all;
}

static void random_histories_are_judged_as_by_trying_all(void **state) {
    (void)state;
    struct mc_rng rng;
    size_t good = 0, bad = 0;
    mc_rng_seed(&rng, 4711);
    for (unsigned n = 0; n < RANDOM; n++) {
        struct sim_op ops[OPS_MAX];
        size_t count = 1 + mc_rng_below(&rng, OPS_MAX);
        for (size_t i = 0; i < count; i++) {
            uint64_t begin = mc_rng_below(&rng, 12);
            ops[i] = (struct sim_op){.kind = (enum sim_op_kind)mc_rng_below(&rng, 5),
                                     .begin_ns = begin,
                                     .end_ns = begin + mc_rng_below(&rng, 6)};
            bool writes = ops[i].kind == SIM_OP_WRITE || ops[i].kind == SIM_OP_PUT;
            ops[i].maybe = writes && mc_rng_below(&rng, 3) == 0;
            ops[i].value = writes ? (uint32_t)i + 1 : 1 + (uint32_t)mc_rng_below(&rng, count);
        }
        bool expected = some_order(ops, count, 0, 0, 0);
        struct sim_verdict verdict = sim_linear_check(ops, count);
        assert_false(verdict.given_up);
        if (verdict.linearizable != expected) {
            for (size_t i = 0; i < count; i++) {
                print_error("%s%s of %u in [%llu, %llu]\n", ops[i].maybe ? "perhaps a " : "a ",
                            sim_op_name(ops[i].kind), ops[i].value,
                            (unsigned long long)ops[i].begin_ns, (unsigned long long)ops[i].end_ns);
            }
            fail_msg("history %u: judged %d, trying every order says %d", n, verdict.linearizable,
                     expected);
        }
        good += expected;
        bad += !expected;
    }
    assert_true(good > RANDOM / 10 && bad > RANDOM / 10);
}

/* ---- by name ---- */

#define OP(kind_, value_, begin, end)                                                              \
    { .kind = SIM_OP_##kind_, .value = (value_), .begin_ns = (begin), .end_ns = (end) }

static void judge(const struct sim_op *ops, size_t count, bool good, size_t culprit) {
    struct sim_verdict verdict = sim_linear_check(ops, count);
    assert_int_equal(verdict.linearizable, good);
    if (!good) {
        assert_int_equal(verdict.culprit, culprit);
    }
}

static void faults_are_found(void **state) {
    (void)state;
    const struct sim_op stale[] = {OP(WRITE, 1, 0, 1), OP(WRITE, 2, 2, 3), OP(READ, 1, 4, 5)};
    judge(stale, 3, false, 2);
    const struct sim_op back[] = {OP(PUT, 1, 0, 1), OP(ABSENT, 0, 2, 3), OP(READ, 1, 4, 5)};
    judge(back, 3, false, 2);
    /* two readers that disagree in which of two writes came last */
    const struct sim_op torn[] = {OP(WRITE, 1, 0, 10), OP(WRITE, 2, 0, 10), OP(READ, 1, 11, 12),
                                  OP(READ, 2, 13, 14)};
    judge(torn, 4, false, 3);
    /* a put that found the key there, when nothing ever was */
    const struct sim_op ghost[] = {OP(PRESENT, 0, 0, 1), OP(PUT, 1, 2, 3)};
    judge(ghost, 2, false, 0);
    const struct sim_op early[] = {OP(READ, 1, 0, 1), OP(WRITE, 1, 2, 3)};
    judge(early, 2, false, 0);
}

static void what_a_cache_may_do_is_accepted(void **state) {
    (void)state;
    const struct sim_op lost[] = {OP(WRITE, 1, 0, 1), OP(ABSENT, 0, 2, 3), OP(WRITE, 2, 4, 5),
                                  OP(READ, 2, 6, 7)};
    judge(lost, 4, true, 0);
    const struct sim_op kept[] = {OP(PUT, 1, 0, 1), OP(PUT, 2, 2, 3), OP(READ, 1, 4, 5)};
    judge(kept, 3, true, 0);
    struct sim_op late[] = {OP(WRITE, 1, 0, 9), OP(WRITE, 2, 1, 2), OP(READ, 2, 3, 4),
                            OP(READ, 1, 5, 6)};
    late[0].maybe = true; /* unanswered, and carried out long after */
    judge(late, 4, true, 0);
    late[0].end_ns = 2; /* it cannot be carried out so late */
    judge(late, 4, false, 3);
}

static void many_at_once_are_no_trouble(void **state) {
    (void)state;
    struct sim_op ops[64];
    for (uint32_t i = 0; i < 32; i++) { /* unanswered puts, any of which may be read */
        ops[i] = (struct sim_op)OP(PUT, i + 1, 0, 1000);
        ops[i].maybe = true;
        ops[32 + i] = (struct sim_op)OP(READ, i + 1, 10 + 2 * i, 11 + 2 * i);
    }
    judge(ops, 64, true, 0);
    ops[63].value = 1; /* gone long ago */
    judge(ops, 64, false, 63);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_are_judged_as_by_trying_all),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(what_a_cache_may_do_is_accepted),
        cmocka_unit_test(many_at_once_are_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

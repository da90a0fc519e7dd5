/*
 * The real engine over simulated rails in virtual time: how much of what the rails could carry is
 * carried, with equal rails, with one at a tenth of its speed, and around a rail's death. The
 * numbers do not depend on the machine.
 */
#include "base/log.h"
#include "support/sim_rails.h"
#include "support/support.h"

#define GBIT        0.125 /* bytes a nanosecond in 1 Gb/s */
#define BLOCK       (16ull << 20)
#define OUTSTANDING 8
#define BUCKET_NS   (1 * MC_MS)
#define BUCKETS_MAX 1000

struct stream { /* a closed loop of requests */
    struct sim_rails w;
    uint64_t block;
    unsigned outstanding;
    struct mc_batch *batches[OUTSTANDING];
    uint64_t moved[BUCKETS_MAX]; /* bytes by bucket of virtual time */
    uint64_t began_ns;
    uint64_t next;
};

static void on_done(void *ctx, const struct mc_slice_op *slice) {
    struct stream *s = ctx;
    uint64_t bucket = (s->w.now_ns - s->began_ns) / BUCKET_NS;
    if (bucket < BUCKETS_MAX) {
        s->moved[bucket] += slice->length;
    }
}

static struct stream *stream_new(unsigned rails, double bandwidth, bool nominal) {
    struct stream *s = calloc(1, sizeof(*s));
    s->w.count = rails;
    for (unsigned i = 0; i < rails; i++) {
        s->w.rails[i] = (struct sim_rail){.bandwidth = bandwidth,
                                          .latency_ns = 5000,
                                          .nominal = nominal ? (uint64_t)(bandwidth * 1e9) : 0,
                                          .up = true,
                                          .fail_ns = 1 * MC_MS};
    }
    s->block = BLOCK;
    s->outstanding = OUTSTANDING;
    s->w.on_done = on_done;
    s->w.ctx = s;
    return s;
}

static void submit(struct stream *s, unsigned at) {
    uint64_t offset = s->next++ % 1024 * s->block;
    struct mc_transfer_request r = {.op = MC_TRANSFER_WRITE,
                                    .local = s->w.space + offset,
                                    .segment = MC_LOCAL_SEGMENT,
                                    .remote_addr = (uint64_t)(uintptr_t)s->w.space + offset,
                                    .length = s->block};
    assert_ok(mc_batch_create(s->w.engine, 1, &s->batches[at]));
    assert_ok(mc_batch_submit(s->batches[at], &r, 1, MC_WAIT_FOREVER));
}

static void turn_over(struct stream *s) {
    for (unsigned i = 0; i < s->outstanding; i++) {
        struct mc_transfer_status status;
        assert_ok(mc_batch_task(s->batches[i], 0, &status));
        if (status.state == MC_TRANSFER_COMPLETED) {
            assert_ok(mc_batch_free(s->batches[i]));
            submit(s, i);
        } else {
            assert_int_equal(status.state, MC_TRANSFER_PENDING);
        }
    }
}

static void stream_start(struct stream *s) {
    sim_rails_start(&s->w, 1);
    s->began_ns = s->w.now_ns;
    for (unsigned i = 0; i < s->outstanding; i++) {
        submit(s, i);
    }
}

static void stream_run(struct stream *s, uint64_t until_ns) {
    while (s->w.now_ns < s->began_ns + until_ns) {
        assert_true(sim_rails_step(&s->w));
        turn_over(s);
    }
    assert_string_equal(s->w.broken, "");
}

static void stream_end(struct stream *s) {
    while (sim_rails_step(&s->w)) {
    }
    for (unsigned i = 0; i < s->outstanding; i++) {
        assert_ok(mc_batch_wait(s->batches[i], MC_WAIT_FOREVER));
        assert_ok(mc_batch_free(s->batches[i]));
    }
    for (unsigned i = 0; i < s->w.count; i++) {
        assert_int_equal(mc_rail_inflight(sim_rail_of(&s->w, i)), 0);
    }
    sim_rails_stop(&s->w);
    free(s);
}

/* Bytes a nanosecond between two times since the beginning. */
static double rate(const struct stream *s, uint64_t from_ns, uint64_t to_ns) {
    uint64_t bytes = 0;
    for (uint64_t b = from_ns / BUCKET_NS; b < to_ns / BUCKET_NS; b++) {
        bytes += s->moved[b];
    }
    return (double)bytes / (double)(to_ns - from_ns);
}

static void expect_at_least(const char *what, double got, double sum, double wanted) {
    print_message("%s: %.1f of %.1f Gb/s, %.1f %%\n", what, got / GBIT, sum / GBIT,
                  100 * got / sum);
    assert_true(got >= wanted * sum);
    assert_true(got <= 1.01 * sum);
}

/* ---- equal rails ---- */

static void equal_rails(unsigned count, double gbit, bool nominal, uint64_t block) {
    struct stream *s = stream_new(count, gbit * GBIT, nominal);
    s->block = block;
    stream_start(s);
    stream_run(s, 60 * MC_MS);
    expect_at_least(nominal ? "equal rails of known speed" : "equal rails of unknown speed",
                    rate(s, 10 * MC_MS, 60 * MC_MS), count * gbit * GBIT, 0.95);
    stream_end(s);
}

static void four_rails_of_200_gbit_give_their_sum(void **state) {
    equal_rails(4, 200, true, BLOCK);
    equal_rails(4, 200, false, BLOCK);
    equal_rails(4, 200, true, 1 << 20);
}

static void eight_rails_of_400_gbit_give_their_sum(void **state) {
    equal_rails(8, 400, true, BLOCK);
    equal_rails(8, 400, false, BLOCK);
    equal_rails(8, 400, false, 64ull << 20);
}

/* ---- unequal rails ---- */

static void one_at_a_tenth(bool from_the_start) {
    struct stream *s = stream_new(4, 200 * GBIT, true);
    if (from_the_start) {
        s->w.rails[2].bandwidth /= 10;
    }
    stream_start(s);
    stream_run(s, 30 * MC_MS);
    s->w.rails[2].bandwidth = 20 * GBIT;
    stream_run(s, 120 * MC_MS);
    expect_at_least("one rail at a tenth", rate(s, 60 * MC_MS, 120 * MC_MS), 620 * GBIT, 0.90);
    /* The slow one holds no more than its share of time. */
    s->w.rails[2].bandwidth = 200 * GBIT;
    stream_run(s, 300 * MC_MS);
    expect_at_least("and back", rate(s, 200 * MC_MS, 300 * MC_MS), 800 * GBIT, 0.95);
    stream_end(s);
}

static void a_rail_at_a_tenth_holds_nobody_up(void **state) {
    one_at_a_tenth(true);
    one_at_a_tenth(false);
}

static void rails_of_different_speeds_give_their_sum(void **state) {
    struct stream *s = stream_new(4, 200 * GBIT, false);
    s->w.rails[1].bandwidth = 100 * GBIT;
    s->w.rails[2].bandwidth = 50 * GBIT;
    s->w.rails[3].bandwidth = 400 * GBIT;
    stream_start(s);
    stream_run(s, 60 * MC_MS);
    expect_at_least("different speeds", rate(s, 20 * MC_MS, 60 * MC_MS), 750 * GBIT, 0.95);
    stream_end(s);
}

/* Nothing follows that would cover for a late slice: the last one of each request decides. */
static void one_request_after_the_other(void **state) {
    static const double slow[] = {1, 0.1};
    for (int i = 0; i < 2; i++) {
        struct stream *s = stream_new(4, 200 * GBIT, true);
        s->outstanding = 1;
        s->block = 64ull << 20;
        s->w.rails[2].bandwidth *= slow[i];
        stream_start(s);
        stream_run(s, 200 * MC_MS);
        expect_at_least("one request after the other", rate(s, 50 * MC_MS, 200 * MC_MS),
                        (600 + 200 * slow[i]) * GBIT, 0.90);
        stream_end(s);
    }
}

static void a_far_rail_is_used_less_and_one_out_of_reach_never(void **state) {
    struct stream *s = stream_new(3, 200 * GBIT, true);
    s->w.rails[1].distance = 100;
    s->w.rails[2].distance = UINT32_MAX;
    s->block = 1 << 20;
    stream_start(s);
    stream_run(s, 20 * MC_MS);
    assert_int_equal(s->w.rails[2].posts, 0);
    assert_true(s->w.rails[1].posts > 0);
    assert_true(s->w.rails[0].moved > s->w.rails[1].moved);
    stream_end(s);
}

/* ---- death ---- */

/* How long after `at` the rate stays below 90 % of what remains, in steps of a bucket. */
static uint64_t dip_ns(const struct stream *s, uint64_t at, double remains) {
    uint64_t last = at;
    for (uint64_t b = at / BUCKET_NS; b < at / BUCKET_NS + 100; b++) {
        if ((double)s->moved[b] / BUCKET_NS < 0.9 * remains) {
            last = (b + 1) * BUCKET_NS;
        }
    }
    return last - at;
}

static void a_death_is_a_short_dip(void **state) {
    for (int told = 0; told < 2; told++) {
        struct stream *s = stream_new(4, 200 * GBIT, true);
        s->w.rails[1].fail_ns = 10 * MC_MS; /* an untold death is noticed by errors after that */
        stream_start(s);
        stream_run(s, 30 * MC_MS);
        if (told) {
            sim_rail_link(&s->w, 1, false);
        } else {
            s->w.rails[1].dead = true;
        }
        stream_run(s, 200 * MC_MS);
        uint64_t dip = dip_ns(s, 30 * MC_MS, 600 * GBIT);
        print_message("dip after a death that is %s: %.0f ms\n", told ? "told" : "not told",
                      (double)dip / MC_MS);
        assert_true(dip < 50 * MC_MS);
        expect_at_least("without the dead", rate(s, 100 * MC_MS, 200 * MC_MS), 600 * GBIT, 0.90);
        /* It returns by itself. */
        s->w.rails[1].dead = false;
        if (told) {
            sim_rail_link(&s->w, 1, true);
        }
        stream_run(s, 700 * MC_MS);
        expect_at_least("after its return", rate(s, 600 * MC_MS, 700 * MC_MS), 800 * GBIT, 0.95);
        stream_end(s);
    }
}

int main(void) {
    assert_ok(mc_log_set_level("warn"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_rails_of_200_gbit_give_their_sum),
        cmocka_unit_test(eight_rails_of_400_gbit_give_their_sum),
        cmocka_unit_test(a_rail_at_a_tenth_holds_nobody_up),
        cmocka_unit_test(rails_of_different_speeds_give_their_sum),
        cmocka_unit_test(one_request_after_the_other),
        cmocka_unit_test(a_far_rail_is_used_less_and_one_out_of_reach_never),
        cmocka_unit_test(a_death_is_a_short_dip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

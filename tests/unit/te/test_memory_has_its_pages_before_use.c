/*
 * Memory of mc_memory_alloc gets its pages without being touched, unless that was asked not to
 * happen; what was written meanwhile stays; freeing does not wait for the whole. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "unit/te/te_support.h"

#define BYTES    (24u << 20)
#define READY    "mooncake_te_populated_bytes_total"
#define PATIENCE 6000 /* of 10 ms: only a machine that gives no time at all is too slow */

static struct mc_engine *engine(bool lazy) {
    struct mc_engine_options options;
    struct mc_engine *e = NULL;
    mc_engine_options_init(&options);
    assert_false(options.lazy_memory);
    options.host = "127.0.0.1";
    options.lazy_memory = lazy;
    assert_ok(mc_engine_create(&options, &e));
    return e;
}

static size_t resident_pages(void *memory) {
    static unsigned char pages[BYTES / 4096];
    size_t count = BYTES / (size_t)sysconf(_SC_PAGESIZE), resident = 0;
    assert_int_equal(mincore(memory, BYTES, pages), 0);
    for (size_t i = 0; i < count; i++) {
        resident += pages[i] & 1;
    }
    return resident;
}

static void wait_until_ready(struct mc_engine *e, int64_t bytes) {
    for (int i = 0; i < PATIENCE && te_counter(e, READY) < bytes; i++) {
        usleep(10000);
    }
    assert_int_equal(te_counter(e, READY), bytes);
}

static void pages_come_by_themselves(void **state) {
    struct mc_engine *e = engine(false);
    void *memory;
    assert_ok(mc_memory_alloc(e, BYTES, "*", &memory));
    char *bytes = memory;
    for (size_t at = 0; at < BYTES; at += 1000003) { /* beside whoever fills */
        bytes[at] = (char)(at + 1);
    }
    wait_until_ready(e, BYTES);
    assert_int_equal(resident_pages(memory), BYTES / (size_t)sysconf(_SC_PAGESIZE));
    size_t written = 0;
    for (size_t at = 0; at < BYTES; at++) {
        bool mine = at % 1000003 == 0;
        written += mine;
        assert_int_equal(bytes[at], mine ? (char)(at + 1) : 0);
    }
    assert_int_equal(written, (BYTES - 1) / 1000003 + 1);
    assert_ok(mc_memory_free(e, memory));
    mc_engine_destroy(e);
}

static void lazy_memory_stays_lazy(void **state) {
    struct mc_engine *e = engine(true);
    void *memory;
    assert_ok(mc_memory_alloc(e, BYTES, "*", &memory));
    usleep(50000);
    assert_int_equal(resident_pages(memory), 0);
    assert_int_equal(te_counter(e, READY), 0);
    mc_engine_destroy(e);
}

/* Freed by the call and by the engine's end, at once and a moment later. */
static void freeing_stops_it(void **state) {
    const uint64_t large = 8ull << 30;
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (machine < large) {
        skip();
    }
    for (useconds_t pause = 0; pause < 8000; pause += 2000) {
        struct mc_engine *e = engine(false);
        void *one, *two;
        assert_ok(mc_memory_alloc(e, large, "*", &one));
        assert_ok(mc_memory_alloc(e, large, "*", &two));
        usleep(pause);
        assert_ok(mc_memory_free(e, one));
        mc_engine_destroy(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_by_themselves),
        cmocka_unit_test(lazy_memory_stays_lazy),
        cmocka_unit_test(freeing_stops_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

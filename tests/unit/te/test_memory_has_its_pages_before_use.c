/*
 * Memory of mc_memory_alloc gets its pages without being touched, unless that was asked not to
 * happen; what was written meanwhile stays; freeing does not wait for the whole; huge pages serve
 * where there are some. MC_TEST_THREADS.
 */
#include <pthread.h>
#include <stdio.h>
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

static unsigned free_huge_pages(void) {
    unsigned count = 0;
    FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "r");
    if (file != NULL) {
        count = fscanf(file, "%u", &count) == 1 ? count : 0;
        fclose(file);
    }
    return count;
}

/* Of a length that is no multiple of anything, by a peer through its own mapping. Where the pool is
 * empty ordinary pages must do the same. */
static void huge_pages_do_what_ordinary_ones_do(void **state) {
    const size_t length = (5u << 20) + 12345;
    bool huge = free_huge_pages() >= 3;
    struct mc_engine_options options;
    struct mc_engine *owner, *guest;
    mc_segment_id segment;
    void *memory;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &guest));
    options.huge_page_bytes = 2u << 20;
    assert_ok(mc_engine_create(&options, &owner));
    assert_ok(mc_memory_alloc(owner, length, "*", &memory));
    struct mc_memory *range = mc_memory_acquire(owner, (uint64_t)(uintptr_t)memory, length);
    assert_non_null(range);
    assert_int_equal(range->page_bytes, huge ? 2u << 20 : (size_t)sysconf(_SC_PAGESIZE));
    mc_memory_release(range);
    unsigned char *from = malloc(length), *back = malloc(length);
    for (size_t i = 0; i < length; i++) {
        from[i] = (unsigned char)(i * 31 + i / 4096);
    }
    assert_ok(mc_segment_open(guest, mc_engine_name(owner), &segment));
    struct mc_transfer_request write = {.op = MC_TRANSFER_WRITE,
                                        .local = from,
                                        .segment = segment,
                                        .remote_addr = (uint64_t)(uintptr_t)memory,
                                        .length = length};
    struct mc_transfer_request read = write;
    read.op = MC_TRANSFER_READ;
    read.local = back;
    assert_ok(mc_transfer(guest, &write, 1, mc_deadline_in_ms(10000)));
    assert_memory_equal(memory, from, length);
    assert_ok(mc_transfer(guest, &read, 1, mc_deadline_in_ms(10000)));
    assert_memory_equal(back, from, length);
    assert_true(
        te_counter(guest, "mooncake_te_transfer_bytes_total{transport=\"shm\",op=\"write\"}") ==
        (int64_t)length);
    assert_ok(mc_segment_close(guest, segment));
    assert_ok(mc_memory_free(owner, memory));
    mc_engine_destroy(guest);
    mc_engine_destroy(owner);
    assert_true(!huge || free_huge_pages() >= 3); /* both mappings are gone */
    free(from);
    free(back);
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
        cmocka_unit_test(huge_pages_do_what_ordinary_ones_do),
        cmocka_unit_test(freeing_stops_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

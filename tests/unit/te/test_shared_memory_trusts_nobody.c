/*
 * The socket that hands out an engine's memory, asked by a stranger: broken messages end the
 * connection, slots that are not there are refused, a line is given once, and the engine goes on.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "te/transport/shm.h"
#include "unit/te/te_support.h"

struct scene {
    struct mc_engine *engine;
    char socket[64];
    char *memory;
    char *plain;
};

static int set_up(void **state) {
    struct scene *s = calloc(1, sizeof(*s));
    struct mc_engine_options options;
    void *memory = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &s->engine));
    struct mc_uuid id = mc_engine_id(s->engine);
    snprintf(s->socket, sizeof(s->socket), "mooncake-%016llx%016llx", (unsigned long long)id.hi,
             (unsigned long long)id.lo);
    assert_ok(mc_memory_alloc(s->engine, 8192, "*", &memory)); /* slot 0 */
    s->memory = memory;
    s->plain = malloc(100);
    assert_ok(mc_memory_register(s->engine, s->plain, 100, "*", 0)); /* slot 1 */
    *state = s;
    return 0;
}

static int tear_down(void **state) {
    struct scene *s = *state;
    mc_engine_destroy(s->engine);
    free(s->plain);
    free(s);
    return 0;
}

static int dial(const struct scene *s) {
    int fd = -1;
    assert_ok(mc_local_connect(s->socket, 2000, &fd));
    return fd;
}

static enum mc_status ask(int fd, uint64_t magic, uint32_t what, uint32_t slot,
                          struct shm_reply *reply, int *passed) {
    struct shm_request request = {magic, what, slot};
    MC_TRY(mc_local_send(fd, &request, sizeof(request), -1));
    return mc_local_recv(fd, reply, sizeof(*reply), passed);
}

static void broken_messages_end_the_connection(void **state) {
    struct scene *s = *state;
    struct shm_reply reply;
    struct mc_rng rng;
    int passed = -1;
    mc_rng_seed(&rng, 5);
    for (int i = 0; i < 200; i++) {
        int fd = dial(s);
        enum mc_status status;
        char noise[64];
        size_t len = 1 + (size_t)mc_rng_below(&rng, sizeof(noise));
        for (size_t k = 0; k < sizeof(noise); k++) {
            noise[k] = (char)mc_rng_next(&rng);
        }
        if (i % 4 == 0) {
            status = ask(fd, SHM_MAGIC ^ (1ull << (i % 64)), SHM_ASK_ATTACH, 0, &reply, &passed);
        } else if (i % 4 == 1) {
            status = ask(fd, SHM_MAGIC, 3 + (uint32_t)i, 0, &reply, &passed);
        } else {
            assert_ok(mc_local_send(fd, noise, len, i % 8 == 2 ? fd : -1));
            status = mc_local_recv(fd, &reply, sizeof(reply), &passed);
        }
        assert_int_equal(status, MC_ERR_CLOSED);
        close(fd);
    }
    assert_int_equal(te_counter(s->engine, "mooncake_te_shm_guests"), 0);
}

static void nothing_is_told_before_attaching_and_nothing_twice(void **state) {
    struct scene *s = *state;
    struct shm_reply reply;
    int passed = -1, control = -1, fd = dial(s);
    assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_BUFFER, 0, &reply, &passed));
    assert_int_equal(reply.status, MC_ERR_PROTOCOL);
    assert_int_equal(passed, -1);
    assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_ATTACH, 0, &reply, &control));
    assert_int_equal(reply.status, MC_OK);
    assert_true(control >= 0);
    assert_int_equal(te_counter(s->engine, "mooncake_te_shm_guests"), 1);
    assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_ATTACH, 0, &reply, &passed));
    assert_int_equal(reply.status, MC_ERR_PROTOCOL);
    assert_int_equal(passed, -1);
    /* Neither memory that is no memfd nor slots that are empty or no slots. */
    static const uint32_t wrong[] = {1, 2, SHM_SLOTS - 1, SHM_SLOTS, UINT32_MAX};
    for (size_t i = 0; i < MC_ARRAY_LEN(wrong); i++) {
        assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_BUFFER, wrong[i], &reply, &passed));
        assert_int_not_equal(reply.status, MC_OK);
        assert_int_equal(passed, -1);
    }
    assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_BUFFER, 0, &reply, &passed));
    assert_int_equal(reply.status, MC_OK);
    /* What was handed out cannot be cut short: nobody's mapping can fault. */
    assert_int_equal(ftruncate(passed, 0), -1);
    assert_int_equal(ftruncate(control, 0), -1);
    assert_true((fcntl(passed, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW)) ==
                (F_SEAL_SHRINK | F_SEAL_GROW));
    assert_int_equal(fallocate(passed, FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    s->memory[5] = 'x';
    char *view = mmap(NULL, 8192, PROT_READ, MAP_SHARED, passed, 0);
    assert_ptr_not_equal(view, MAP_FAILED);
    assert_int_equal(view[5], 'x');
    munmap(view, 8192);
    close(passed);
    close(control);
    close(fd);
    int64_t guests = 1;
    for (int i = 0; i < 500 && guests != 0; i++) {
        usleep(2000);
        guests = te_counter(s->engine, "mooncake_te_shm_guests");
    }
    assert_int_equal(guests, 0);
    assert_true(te_counter(s->engine, "mooncake_te_shm_refused_total") >= 7);
}

/* A guest that claims to copy for ever holds up unregistering only while it lives: here it hangs
 * up. */
static void a_count_left_behind_goes_with_its_guest(void **state) {
    struct scene *s = *state;
    struct shm_reply reply;
    int control_fd = -1, fd = dial(s);
    assert_ok(ask(fd, SHM_MAGIC, SHM_ASK_ATTACH, 0, &reply, &control_fd));
    struct shm_control *control =
        mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    assert_ptr_not_equal(control, MAP_FAILED);
    assert_int_equal(control->slots[1].addr, (uintptr_t)s->plain);
    assert_int_equal(atomic_load(&control->slots[1].generation) & 1, 1);
    atomic_store(&control->guests[reply.guest].active[0], 3);
    atomic_store(&control->guests[reply.guest].active[1], 5);
    close(fd);
    assert_ok(mc_memory_unregister(s->engine, s->plain));
    assert_int_equal(atomic_load(&control->slots[1].generation) & 1, 0);
    munmap(control, sizeof(*control));
    close(control_fd);
}

#define SHM_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SHM_TEST(broken_messages_end_the_connection),
        SHM_TEST(nothing_is_told_before_attaching_and_nothing_twice),
        SHM_TEST(a_count_left_behind_goes_with_its_guest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

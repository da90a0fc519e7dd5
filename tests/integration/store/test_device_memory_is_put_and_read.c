/*
 * Objects put from device memory and read into it: by a client of its own (with checksums, which
 * such memory has none of, and with copies in files), and by a dummy client, whose node cannot see
 * the memory at all. The device is the stand-in of tests/standins/cuda.h: whoever touches its
 * memory with the processor ends the test. It is loaded when the stores are open already.
 */
#include <signal.h>
#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "mooncake/store.h"
#include "standins/cuda.h"
#include "support/live.h"

#define SIZE         (3u << 20) /* more than a staging chunk, less than the dummy's buffer */
#define DUMMY_BUFFER (8u << 20)

static const struct standin_cuda *cuda;
static struct live master, node;
static char folder[] = "/tmp/mooncake-files-XXXXXX";
static struct mc_store *own, *dummy;
static uint64_t device; /* SIZE bytes */
static char *host;

static struct mc_store *open_store(struct mc_store_options *options) {
    struct mc_store *store = NULL;
    assert_ok(mc_store_open(options, &store));
    return store;
}

static unsigned node_port(void) {
    char line[256];
    unsigned port = 0;
    FILE *f = fopen(node.log, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        const char *at = strstr(line, "rpc port ");
        (void)(at != NULL && sscanf(at, "rpc port %u", &port) == 1);
    }
    fclose(f);
    assert_true(port != 0);
    return port;
}

static int set_up(void **state) {
    struct mc_store_options options;
    char root[64], address[32];
    assert_non_null(mkdtemp(folder));
    snprintf(root, sizeof(root), "--root_fs_dir=%s", folder);
    live_master(&master,
                (const char *const[]){root, "--cluster_id=c", "--default_kv_lease_ttl=200",
                                      "--client_ttl=2", NULL},
                0);
    live_node(&node, &master, "64MB", (const char *const[]){"--port=0", "--listen=127.0.0.1", NULL},
              0);
    mc_store_options_init(&options);
    options.master = master.rpc_address;
    options.local_hostname = "127.0.0.1";
    options.segment_bytes = 0;
    options.checksum = true;
    own = open_store(&options);
    mc_store_options_init(&options);
    snprintf(address, sizeof(address), "127.0.0.1:%u", node_port());
    options.real_client = address;
    options.local_buffer_bytes = DUMMY_BUFFER;
    dummy = open_store(&options);

    void *library = dlopen(MC_STANDIN_CUDA, RTLD_NOW);
    cuda = library == NULL ? NULL : dlsym(library, "standin_cuda_table");
    assert_non_null(cuda);
    assert_int_equal(cuda->alloc(1, SIZE, &device), 0);
    host = malloc(SIZE);
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *walk) {
    return remove(path);
}

static int tear_down(void **state) {
    mc_store_close(own);
    mc_store_close(dummy);
    cuda->release(device);
    free(host);
    live_end(&node, SIGTERM);
    live_end(&master, SIGTERM);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static char *inside(void) {
    return cuda->inside(device);
}

static void *at_device(size_t offset) {
    return (char *)(uintptr_t)device + offset;
}

/* What `reader` reads into host memory and into device memory. */
static void expect(struct mc_store *reader, const char *key, size_t size, uint64_t seed) {
    size_t length = 0;
    memset(host, 0, size);
    assert_ok(mc_store_get(reader, key, host, SIZE, &length));
    assert_int_equal(length, size);
    mc_test_verify(host, size, seed);
    memset(inside(), 0, SIZE);
    assert_ok(mc_store_get(reader, key, at_device(0), SIZE, &length));
    assert_int_equal(length, size);
    mc_test_verify(inside(), size, seed);
}

static void put_from_device(struct mc_store *writer, const char *key, size_t size, uint64_t seed) {
    mc_test_fill(inside(), size, seed);
    assert_ok(mc_store_put(writer, key, at_device(0), size, NULL));
}

static void a_client_of_its_own(void **state) {
    static const size_t sizes[] = {1, 4096, SIZE};
    struct standin_counts counts;
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        char key[16];
        snprintf(key, sizeof(key), "own%zu", i);
        cuda->counts(&counts, true);
        put_from_device(own, key, sizes[i], i);
        expect(own, key, sizes[i], i);
        cuda->counts(&counts, false);
        assert_true(counts.from_device > 0 && counts.to_device > 0);
    }
    /* With a checksum, of host memory; read into device memory, which cannot be checked. */
    mc_test_fill(host, SIZE, 7);
    assert_ok(mc_store_put(own, "host", host, SIZE, NULL));
    expect(own, "host", SIZE, 7);
}

static void pieces_may_be_of_either_kind(void **state) {
    struct mc_slice slices[] = {{at_device(0), 1000}, {host, 500}, {at_device(4096), 7}};
    struct mc_store_item item = {.key = "mixed", .slices = slices, .slice_count = 3};
    struct mc_store *stores[] = {own, dummy};
    for (size_t i = 0; i < MC_ARRAY_LEN(stores); i++) {
        item.key = i == 0 ? "mixed" : "mixed by a dummy";
        mc_test_fill(inside(), 5000, 1);
        mc_test_fill(host, 500, 2);
        assert_ok(mc_store_put_batch(stores[i], &item, 1, NULL));
        assert_ok(item.status);
        memset(inside(), 0, 5000);
        memset(host, 0, 500);
        assert_ok(mc_store_get_batch(stores[i], &item, 1));
        assert_ok(item.status);
        assert_int_equal(item.length, 1507);
        mc_test_verify(inside(), 1000, 1);
        mc_test_verify(host, 500, 2);
        char *expected = malloc(5000);
        mc_test_fill(expected, 5000, 1);
        assert_memory_equal(inside() + 4096, expected + 4096, 7);
        free(expected);
    }
}

static void a_dummy_of_a_node(void **state) {
    static const size_t sizes[] = {1, 4096, SIZE};
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        char key[16];
        snprintf(key, sizeof(key), "dummy%zu", i);
        put_from_device(dummy, key, sizes[i], 20 + i);
        expect(dummy, key, sizes[i], 20 + i);
        expect(own, key, sizes[i], 20 + i);
    }
}

static void a_copy_in_a_file(void **state) {
    size_t length = 0;
    put_from_device(own, "file", SIZE, 30);
    live_end(&node, SIGKILL);
    memset(inside(), 0, SIZE);
    enum mc_status status = MC_ERR_TIMEOUT;
    for (uint64_t until = mc_deadline_in_ms(30000);
         status != MC_OK && mc_now_ns(mc_clock_system()) < until; usleep(50000)) {
        status = mc_store_get(own, "file", at_device(0), SIZE, &length);
    }
    assert_ok(status);
    assert_int_equal(length, SIZE);
    mc_test_verify(inside(), SIZE, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_of_its_own),
        cmocka_unit_test(pieces_may_be_of_either_kind),
        cmocka_unit_test(a_dummy_of_a_node),
        cmocka_unit_test(a_copy_in_a_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

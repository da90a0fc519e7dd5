/*
 * Objects: put, look, get, remove.
 *
 *     cc objects.c -o objects $(pkg-config --cflags --libs mooncake)
 *     mooncake up &                     # a cluster on this machine
 *     ./objects 127.0.0.1:50051
 */
#include <mooncake/store.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (300u << 10)

static void must(enum mc_status status, const char *what) {
    if (status != MC_OK) {
        fprintf(stderr, "%s: %s\n", what, mc_status_text(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    static unsigned char value[SIZE], got[SIZE];
    struct mc_store_options options;
    struct mc_store *store = NULL;
    size_t length = 0;
    bool exists = false;
    mc_store_options_init(&options);
    options.master = argc > 1 ? argv[1] : "127.0.0.1:50051";
    options.local_hostname = "127.0.0.1"; /* leave it out on several machines */
    must(mc_store_open(&options, &store), options.master);
    for (size_t i = 0; i < SIZE; i++) {
        value[i] = (unsigned char)(i * 7 + i / 251);
    }
    must(mc_store_put(store, "example", value, SIZE, NULL), "put");
    must(mc_store_exist(store, "example", &exists), "exist");
    must(mc_store_get(store, "example", got, SIZE, &length), "get");
    int good = exists && length == SIZE && memcmp(value, got, SIZE) == 0;
    printf(good ? "every byte came back\n" : "WRONG BYTES\n");
    must(mc_store_remove(store, "example", true), "remove");
    must(mc_store_exist(store, "example", &exists), "exist");
    mc_store_close(store);
    return good && !exists ? 0 : 1;
}

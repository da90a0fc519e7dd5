/*
 * Two processes, one of which moves bytes into and out of the other's memory.
 *
 *     cc move.c -o move $(pkg-config --cflags --libs mooncake)
 *     ./move target                     # prints its name and the address of its memory
 *     ./move initiator NAME ADDRESS     # in another terminal
 *
 * The target takes no part in the moves. It ends when the initiator tells it to, and looks whether
 * its memory holds what was written.
 */
#include <mooncake/transfer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (1u << 20)

static void must(enum mc_status status, const char *what) {
    if (status != MC_OK) {
        fprintf(stderr, "%s: %s\n", what, mc_status_text(status));
        exit(1);
    }
}

static void fill(unsigned char *bytes) {
    for (size_t i = 0; i < SIZE; i++) {
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    }
}

static int holds(const unsigned char *bytes) {
    static unsigned char wanted[SIZE];
    fill(wanted);
    return memcmp(bytes, wanted, SIZE) == 0;
}

static int be_target(struct mc_engine *engine) {
    struct mc_notification *list = NULL;
    size_t count = 0;
    void *memory = NULL;
    must(mc_memory_alloc(engine, SIZE, "*", &memory), "memory");
    printf("%s %p\n", mc_engine_name(engine), memory);
    fflush(stdout);
    while (count == 0) {
        must(mc_notify_receive(engine, &list, &count), "notifications");
        usleep(10000);
    }
    printf("%s says: %s\n", list[0].name, list[0].message);
    mc_notify_free(list, count);
    int good = holds(memory);
    printf(good ? "every byte is there\n" : "WRONG BYTES\n");
    must(mc_memory_free(engine, memory), "free");
    return good ? 0 : 1;
}

static int be_initiator(struct mc_engine *engine, const char *name, uint64_t remote) {
    mc_segment_id segment;
    unsigned char *memory = calloc(2, SIZE);
    must(mc_memory_register(engine, memory, 2 * SIZE, "*", MC_MEMORY_LOCAL_ONLY), "register");
    must(mc_segment_open(engine, name, &segment), name);
    fill(memory);
    struct mc_transfer_request there = {.op = MC_TRANSFER_WRITE,
                                        .local = memory,
                                        .segment = segment,
                                        .remote_addr = remote,
                                        .length = SIZE};
    struct mc_transfer_request back = there;
    back.op = MC_TRANSFER_READ;
    back.local = memory + SIZE;
    must(mc_transfer(engine, &there, 1, mc_deadline_in_ms(5000)), "write");
    must(mc_transfer(engine, &back, 1, mc_deadline_in_ms(5000)), "read");
    int good = holds(memory + SIZE);
    must(mc_notify_send(engine, segment, mc_engine_name(engine), "done"), "notify");
    must(mc_segment_close(engine, segment), "close");
    must(mc_memory_unregister(engine, memory), "unregister");
    free(memory);
    printf(good ? "every byte came back\n" : "WRONG BYTES\n");
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    int target = argc == 2 && strcmp(argv[1], "target") == 0;
    if (!target && !(argc == 4 && strcmp(argv[1], "initiator") == 0)) {
        fprintf(stderr, "usage: %s target | initiator NAME ADDRESS\n", argv[0]);
        return 2;
    }
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1"; /* leave it out to be reached from other machines */
    must(mc_engine_create(&options, &engine), "engine");
    int status =
        target ? be_target(engine) : be_initiator(engine, argv[2], strtoull(argv[3], NULL, 0));
    mc_engine_destroy(engine);
    return status;
}

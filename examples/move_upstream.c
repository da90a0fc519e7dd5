/*
 * move.c through upstream's C interface. The same source builds against upstream's library.
 *
 *     cc move_upstream.c -o move_upstream $(pkg-config --cflags --libs transfer_engine)
 *     ./move_upstream target
 *     ./move_upstream initiator NAME ADDRESS
 */
#include <transfer_engine_c.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (1u << 20)

static void must(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s failed\n", what);
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

static int be_target(transfer_engine_t engine, const char *name, unsigned char *memory) {
    int count = 0;
    notify_msg_t *list = NULL;
    printf("%s %p\n", name, (void *)memory);
    fflush(stdout);
    while ((list = getNotifsFromEngine(engine, &count)) == NULL) {
        usleep(10000);
    }
    printf("%s says: %s\n", list[0].name, list[0].msg);
    freeNotifsMsgBuf(list, count);
    int good = holds(memory);
    printf(good ? "every byte is there\n" : "WRONG BYTES\n");
    return good ? 0 : 1;
}

/* One request, and with it a message when `note` is not NULL; waits for its end. */
static void move(transfer_engine_t engine, int opcode, segment_id_t segment, void *local,
                 uint64_t remote, notify_msg_t *note) {
    struct transfer_request request = {opcode, local, segment, remote, SIZE};
    struct transfer_status status = {STATUS_WAITING, 0};
    batch_id_t batch = allocateBatchID(engine, 1);
    must(batch != INVALID_BATCH, "allocateBatchID");
    must((note != NULL ? submitTransferWithNotify(engine, batch, &request, 1, *note)
                       : submitTransfer(engine, batch, &request, 1)) == 0,
         "submitTransfer");
    while (status.status == STATUS_WAITING || status.status == STATUS_PENDING) {
        must(getTransferStatus(engine, batch, 0, &status) == 0, "getTransferStatus");
    }
    must(status.status == STATUS_COMPLETED && status.transferred_bytes == SIZE, "the transfer");
    must(freeBatchID(engine, batch) == 0, "freeBatchID");
}

static int be_initiator(transfer_engine_t engine, char *own_name, unsigned char *memory,
                        const char *name, uint64_t remote) {
    char text[] = "done";
    notify_msg_t note = {own_name, text};
    segment_id_t segment = openSegment(engine, name);
    must(segment >= 0, "openSegment");
    fill(memory);
    move(engine, OPCODE_WRITE, segment, memory, remote, NULL);
    move(engine, OPCODE_READ, segment, memory + SIZE, remote, &note);
    int good = holds(memory + SIZE);
    printf(good ? "every byte came back\n" : "WRONG BYTES\n");
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    int target = argc == 2 && strcmp(argv[1], "target") == 0;
    if (!target && !(argc == 4 && strcmp(argv[1], "initiator") == 0)) {
        fprintf(stderr, "usage: %s target | initiator NAME ADDRESS\n", argv[0]);
        return 2;
    }
    char name[64];
    unsigned char *memory = calloc(2, SIZE);
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    must(engine != NULL, "createTransferEngine");
    must(getLocalIpAndPort(engine, name, sizeof(name)) == 0, "getLocalIpAndPort");
    must(registerLocalMemory(engine, memory, 2 * SIZE, "*", 1) == 0, "registerLocalMemory");
    int status = target ? be_target(engine, name, memory)
                        : be_initiator(engine, name, memory, argv[2], strtoull(argv[3], NULL, 0));
    unregisterLocalMemory(engine, memory);
    destroyTransferEngine(engine);
    free(memory);
    return status;
}

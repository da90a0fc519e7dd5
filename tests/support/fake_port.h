/*
 * A port for tests of the client's protocol: a master with a handful of objects, memory of three
 * nodes, a clock that only the test moves, and faults on demand. Single threaded.
 *
 * The master here is a model, not the real one: it keeps just the rules that the client relies on
 * (states of a put, the writer's id, leases), in the plainest way.
 */
#ifndef MC_TESTS_FAKE_PORT_H
#define MC_TESTS_FAKE_PORT_H

#include "client/ops.h"

#define FAKE_NODES      3
#define FAKE_NODE_BYTES (1u << 20)
#define FAKE_OBJECTS    2048
#define FAKE_LEASE_MS   10000

enum fake_loss { FAKE_LOSE_NOTHING, FAKE_LOSE_REQUEST, FAKE_LOSE_ANSWER };

struct fake_object {
    char *key; /* NULL = free */
    size_t key_len;
    bool complete;
    bool on_disk; /* its first replica is on its node's SSD, whatever the others are */
    struct mc_uuid writer;
    uint64_t size;
    struct mw_opt_u64 checksum;
    size_t replica_count;
    size_t node[FAKE_NODES];
    uint64_t offset[FAKE_NODES];
    uint64_t ids[FAKE_NODES];
};

struct fake_port {
    struct mc_port port;
    struct mc_clock clock;
    uint64_t now_ns;

    /* the world */
    uint8_t memory[FAKE_NODES][FAKE_NODE_BYTES];
    uint64_t used[FAKE_NODES];
    struct fake_object objects[FAKE_OBJECTS];
    uint64_t next_id;
    uint64_t lease_ms;
    uint64_t round_bytes; /* of the ops that fake_ops makes */
    bool need_remount;
    bool knows_segment;
    int32_t segment_status;    /* what it says of a segment that it knows */
    struct mw_segment mounted; /* the last mount; strings are not kept */
    unsigned mounts, unmounts;
    struct mc_uuid unmounted; /* the last */

    /* what the next heartbeat of an SSD gets, in its words or in upstream's */
    struct mw_disk_item orders[4];
    unsigned order_count;
    unsigned told_on_disk, told_not; /* what it said that it wrote, and did not */

    /* faults: each RPC of kind lose_rpc is lost `lose_count` times in the way of lose_how */
    enum mc_master_rpc lose_rpc;
    enum fake_loss lose_how;
    unsigned lose_count;
    enum mc_status lose_status; /* MC_RPC_TIMEOUT uses up the deadline, MC_RPC_FAIL does not */
    bool passes_over_hints;     /* the master places objects on nodes to avoid, in turns */
    unsigned old_schema;        /* the master refuses versions newer than this one */
    bool ours;                  /* it knows GetObjects; upstream's does not */
    enum mc_status node_status[FAKE_NODES];      /* of moves to and from a node */
    bool corrupt_node[FAKE_NODES];               /* reads deliver a flipped byte */
    uint64_t move_takes_ns;                      /* per move call */
    void (*during_move)(struct fake_port *fake); /* called in the middle of a move call */
    void (*before_disk)(struct fake_port *fake); /* is read: before an SSD's owner looks for it */
    void (*before_rpc)(struct fake_port *fake, enum mc_master_rpc rpc);
    void (*after_rpc)(struct fake_port *fake, enum mc_master_rpc rpc);

    /* what was seen */
    unsigned rpcs[MC_MASTER_RPC_COUNT];
    unsigned move_calls;
    unsigned moves;
    unsigned mapped; /* views not given back */
    unsigned node_reads[FAKE_NODES];
    unsigned node_writes[FAKE_NODES]; /* tried */
    unsigned distance[FAKE_NODES];
};

struct fake_port *fake_create(void);
void fake_destroy(struct fake_port *fake);
struct mc_ops *fake_ops(struct fake_port *fake, bool checksum);
struct fake_object *fake_find(struct fake_port *fake, const char *key);
void fake_erase(struct fake_port *fake, const char *key);
/* Puts an object straight into the world: complete, on nodes[0..count). */
void fake_store(struct fake_port *fake, const char *key, const void *bytes, size_t size,
                const size_t *nodes, size_t count);
/* Somebody else began to put this and is at it. */
void fake_begin(struct fake_port *fake, const char *key, size_t size);
unsigned fake_unfinished(const struct fake_port *fake); /* objects that are not complete */

#endif

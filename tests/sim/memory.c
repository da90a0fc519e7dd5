/*
 * The nodes' memory, and bytes on their way.
 *
 * A move is cut into pieces that land one by one at times of their own, so that a reader who reads
 * while somebody writes sees some of both. Where a piece lands is decided when it lands: a node
 * that has died or replaced its memory meanwhile refuses it, and with it the whole move. Pieces of
 * a write that was still on its way at the deadline land later, as port.h warns; a move that failed
 * in any other way has no pieces left. Nothing is copied to the caller's memory after it has gone.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "sim/sim.h"

#define PIECES_MAX 4

struct flow { /* one move */
    enum mc_transfer_op op;
    uint8_t *local;
    struct sim_node *node;
    uint64_t address;
    enum mc_status status;
    unsigned pieces_left;
    bool over;
};
struct transfer { /* one call of move */
    unsigned refs;
    struct sim_process *process;
    uint64_t serial;
    uint64_t posted_ns;
    bool gone; /* the caller has returned */
    size_t open;
    size_t count;
    struct flow flows[];
};
struct piece {
    struct transfer *transfer;
    struct flow *flow;
    uint64_t offset;
    uint64_t length;
    uint8_t bytes[]; /* of a write */
};

/* ---- regions ---- */

struct sim_region *sim_region_make(struct sim *sim, uint64_t base, uint64_t size) {
    struct sim_region *region = mc_alloc(sizeof(*region));
    *region = (struct sim_region){.refs = 1, .base = base, .size = size, .bytes = mc_alloc(size)};
    uint64_t noise = mc_rng_next(&sim->rng);
    for (uint64_t i = 0; i < size; i += sizeof(noise)) { /* whatever was there before */
        noise = noise * 6364136223846793005u + 1442695040888963407u;
        memcpy(region->bytes + i, &noise, mc_min_u64(sizeof(noise), size - i));
    }
    return region;
}

void sim_region_unref(struct sim_region *region) {
    if (--region->refs == 0) {
        if (region->in_place) {
            munmap(region->bytes, region->size);
        } else {
            free(region->bytes);
        }
        free(region);
    }
}

static struct sim_node *find_node(struct sim *sim, struct mc_str endpoint) {
    for (unsigned i = 0; i < SIM_NODES; i++) {
        if (mc_str_eq(endpoint, mc_str_from(sim->nodes[i].process.name))) {
            return &sim->nodes[i];
        }
    }
    sim_fail(sim, "a replica names the endpoint %.*s", (int)endpoint.len, endpoint.ptr);
    return &sim->nodes[0];
}

static uint8_t *reach(struct sim_node *node, uint64_t address, uint64_t length) {
    struct sim_region *const regions[] = {node->region, node->lent};
    for (size_t i = 0; i < MC_ARRAY_LEN(regions) && node->up; i++) {
        const struct sim_region *region = regions[i];
        if (region != NULL && mc_range_inside(address, length, region->base, region->size)) {
            return region->bytes + (address - region->base);
        }
    }
    return NULL;
}

/* ---- pieces ---- */

static void transfer_unref(struct transfer *transfer) {
    if (--transfer->refs == 0) {
        free(transfer);
    }
}

static void flow_end(struct sim *sim, struct transfer *transfer, struct flow *flow,
                     enum mc_status status) {
    if (flow->over) {
        return;
    }
    flow->over = true;
    flow->status = status;
    if (--transfer->open == 0 && !transfer->gone) {
        sim_wake(sim, transfer->process, transfer->serial);
    }
}

static void ack_arrives(struct sim *sim, void *arg, uint64_t word) {
    struct transfer *transfer = arg;
    if (!sim->closing && !transfer->gone) {
        flow_end(sim, transfer, &transfer->flows[word], MC_OK);
    }
    transfer_unref(transfer);
}

/* All bytes have landed: the mover is told, unless that message is lost. */
static void acknowledge(struct sim *sim, struct transfer *transfer, struct flow *flow) {
    if (flow->op == MC_TRANSFER_READ) { /* the last piece is its own acknowledgement */
        flow_end(sim, transfer, flow, MC_OK);
    } else if (sim_chance(sim, sim->profile.ack_loss)) {
        SIM_COUNT(sim, acks_lost);
    } else {
        transfer->refs++;
        sim_at(sim, sim->now_ns + sim_latency(sim), ack_arrives, transfer,
               (uint64_t)(flow - transfer->flows));
    }
}

static void land(struct sim *sim, struct piece *piece) {
    struct transfer *transfer = piece->transfer;
    struct flow *flow = piece->flow;
    uint8_t *place = reach(flow->node, flow->address + piece->offset, piece->length);
    SIM_COUNT(sim, pieces);
    if (transfer->gone) {
        SIM_COUNT(sim, pieces_late);
    }
    if (place == NULL) {
        SIM_COUNT(sim, moves_refused);
        if (!sim_chance(sim, 3000)) { /* else silence: the deadline ends it */
            flow_end(sim, transfer, flow, MC_ERR_UNREACHABLE);
        }
        return;
    }
    if (flow->op == MC_TRANSFER_WRITE) {
        memcpy(place, piece->bytes, piece->length);
    } else if (!transfer->gone) {
        memcpy(flow->local + piece->offset, place, piece->length);
    }
    if (--flow->pieces_left == 0) {
        acknowledge(sim, transfer, flow);
    }
}

static void piece_lands(struct sim *sim, void *arg, uint64_t word) {
    struct piece *piece = arg;
    struct transfer *transfer = piece->transfer;
    bool refused = piece->flow->over && !transfer->gone; /* the move has failed for good */
    bool failed = piece->flow->over && piece->flow->status != MC_ERR_TIMEOUT;
    uint64_t cut =
        mc_max_u64(transfer->process->cut_until_ns, piece->flow->node->process.cut_until_ns);
    if (!sim->closing && !refused && !failed) {
        uint64_t again = cut + sim_latency(sim);
        if (sim->now_ns < cut && again - transfer->posted_ns < SIM_LATE_NS) {
            sim_at(sim, again, piece_lands, piece, 0);
            return;
        }
        if (sim->now_ns >= cut) { /* else the connection has been given up */
            land(sim, piece);
        }
    }
    transfer_unref(transfer);
    free(piece);
}

/* ---- moves ---- */

static void post_piece(struct sim *sim, struct transfer *transfer, struct flow *flow,
                       uint64_t offset, uint64_t length) {
    bool write = flow->op == MC_TRANSFER_WRITE;
    struct piece *piece = mc_alloc(sizeof(*piece) + (write ? length : 0));
    *piece = (struct piece){transfer, flow, offset, length};
    if (write) {
        memcpy(piece->bytes, flow->local + offset, length);
    }
    transfer->refs++;
    flow->pieces_left++;
    sim_at(sim, sim->now_ns + sim_latency(sim), piece_lands, piece, 0);
}

static void post(struct sim *sim, struct transfer *transfer, struct flow *flow, uint64_t length) {
    uint64_t pieces = mc_min_u64(sim_between(sim, 1, PIECES_MAX), length);
    uint64_t done = 0;
    for (uint64_t i = 0; i < pieces; i++) {
        uint64_t end = i + 1 == pieces ? length : length * (i + 1) / pieces;
        post_piece(sim, transfer, flow, done, end - done);
        done = end;
    }
}

static void fail_all(struct mc_port_move *moves, size_t count, enum mc_status status) {
    for (size_t i = 0; i < count; i++) {
        moves[i].status = status;
    }
}

static void collect(struct sim *sim, struct transfer *transfer, struct mc_port_move *moves) {
    transfer->gone = true;
    for (size_t i = 0; i < transfer->count; i++) {
        struct flow *flow = &transfer->flows[i];
        if (!flow->over) { /* the deadline, or the process died */
            flow->over = true;
            flow->status = MC_ERR_TIMEOUT;
        }
        moves[i].status = flow->status;
        if (flow->status == MC_ERR_TIMEOUT && sim->options.client_break == SIM_BREAK_HIDE_DOUBT) {
            moves[i].status = MC_TRANSFER_FAIL;
        }
        sim_trace(sim, "%s: %s %llu bytes at %s:%#llx -> %s", transfer->process->name,
                  moves[i].op == MC_TRANSFER_READ ? "reads" : "writes",
                  (unsigned long long)moves[i].length, flow->node->process.name,
                  (unsigned long long)moves[i].remote_addr, mc_status_name(moves[i].status));
    }
}

void sim_port_move(struct mc_port *port, struct mc_port_move *moves, size_t count,
                   uint64_t deadline_ns) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    struct sim *sim = process->sim;
    uint64_t began = sim->now_ns;
    uint64_t deadline = deadline_ns + process->clock_lag_ns;
    if (count == 0 || process->dead || deadline <= began) {
        fail_all(moves, count, MC_TRANSFER_FAIL); /* nothing was posted */
        return;
    }
    struct transfer *transfer = mc_zalloc(sizeof(*transfer) + count * sizeof(struct flow));
    *transfer = (struct transfer){.refs = 1,
                                  .process = process,
                                  .serial = process->wait_serial,
                                  .posted_ns = began,
                                  .open = count,
                                  .count = count};
    for (size_t i = 0; i < count; i++) {
        transfer->flows[i] = (struct flow){.op = moves[i].op,
                                           .local = moves[i].local,
                                           .node = find_node(sim, moves[i].endpoint),
                                           .address = moves[i].remote_addr};
        post(sim, transfer, &transfer->flows[i], moves[i].length);
    }
    sim_park(process, deadline);
    collect(sim, transfer, moves);
    if (sim->options.client_break == SIM_BREAK_SLOW_CLOCK) {
        process->clock_lag_ns += sim->now_ns - began;
    }
    transfer_unref(transfer);
}

/* ---- reading in place ---- */

const void *sim_port_map(struct mc_port *port, struct mc_str endpoint, uint64_t remote_addr,
                         uint64_t length, uint64_t deadline_ns) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    struct sim *sim = process->sim;
    struct sim_node *node = find_node(sim, endpoint);
    const uint8_t *place = reach(node, remote_addr, length);
    if (process->dead || place == NULL || process->host != node->index) {
        return NULL;
    }
    if (sim->mapped_count == sim->mapped_capacity) {
        sim->mapped_capacity = sim->mapped_capacity ? sim->mapped_capacity * 2 : 8;
        sim->mapped = mc_realloc(sim->mapped, sim->mapped_capacity * sizeof(struct sim_region *));
    }
    node->region->refs++;
    sim->mapped[sim->mapped_count++] = node->region;
    return place;
}

void sim_port_unmap(struct mc_port *port, struct mc_str endpoint, const void *ptr) {
    struct sim *sim = mc_container_of(port, struct sim_process, port)->sim;
    for (size_t i = 0; i < sim->mapped_count; i++) {
        struct sim_region *region = sim->mapped[i];
        if ((const uint8_t *)ptr >= region->bytes &&
            (const uint8_t *)ptr < region->bytes + region->size) {
            sim->mapped[i] = sim->mapped[--sim->mapped_count];
            sim_region_unref(region);
            return;
        }
    }
    MC_ASSERT(!"unmapped what was not mapped");
}

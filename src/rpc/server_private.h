/*
 * The RPC server's private header: what a connection and a worker are, and what its files share.
 *
 *   server.c         start, stop, accepting, metrics
 *   server_life.c    a connection from its worker taking it over to its end; who is silent too long
 *   server_turn.c    one turn of a connection: read, handle frames, write answers
 *   server_aside.c   requests that may take long, on threads of their own
 *
 * A worker reads into one buffer that all its connections share and handles the frames where they
 * lie; only a frame that is not complete yet is copied into a buffer of its connection, which grows
 * with the bytes that really came (a header's claim reserves nothing). A read is short, some
 * hundred requests or two batches of 128 keys, so that no connection keeps the others waiting for
 * long; what is left in the socket is the next turn's. Answers to the frames of one read go out in
 * one write; what the socket does not take stays with the connection, and while more than OUT_LIMIT
 * stays, its requests wait: unread in the socket, or unhandled in `in`. So an idle connection owns
 * no buffer at all.
 *
 * A connection is OPEN, or CLOSING: nothing more is handled, the answers left are written, the
 * sending side is shut down, and input is thrown away until the peer closes or LINGER_MS passed.
 * Closing at once with unread input would make the kernel send a reset, which can overtake the last
 * answer.
 *
 * A request that its handler calls slow runs aside (server_aside.c); at most one of a connection.
 *
 * Everything but the acceptor's counts and what runs aside belongs to the worker's thread.
 */
#ifndef MC_RPC_SERVER_PRIVATE_H
#define MC_RPC_SERVER_PRIVATE_H

#include <stdatomic.h>

#include "base/log.h"
#include "io/io.h"
#include "io/tls.h"
#include "rpc/frame.h"

#define READ_BYTES (16u << 10)  /* of one turn, where no frame is under way */
#define GROW_BYTES (256u << 10) /* by so much a buffer runs ahead of what came of a long frame */
#define MAX_ASIDE  64
#define PEER_TEXT  96

/* A request on its way to the thread aside and back. */
struct aside {
    struct mc_task there, back;
    struct connection *connection;
    struct mc_rpc_request request; /* of the payload behind this struct */
    enum mc_rpc_errc errc;
    uint32_t seq;
    unsigned thread; /* which of those aside */
    struct mc_arena arena;
    struct mc_buf body, attachment;
    char payload[];
};

struct connection {
    struct mc_reactor_fd watch;
    struct mc_stream stream;
    struct worker *worker;
    struct mc_list link; /* in worker->open or worker->closing, longest silent first */
    uint64_t sign_of_life_ns;
    size_t progress; /* bytes since the sign of life */
    struct mc_buf in;
    struct mc_buf out;
    size_t out_sent;  /* of out */
    size_t accounted; /* of the server's buffered bytes */
    bool closing;
    bool input_ended; /* implies closing */
    bool shut;        /* the sending side is shut down */
    bool gone;        /* closed, and freed when `aside` is back */
    struct aside *aside;
    uint64_t peer_words[MC_RPC_PEER_WORDS];
    struct mc_task adopt;
    struct mc_timer handshake; /* runs while one in TLS is under way */
    char peer[PEER_TEXT];
};

struct worker {
    struct mc_rpc_server *server;
    struct mc_reactor *reactor;
    struct mc_list open;
    struct mc_list closing;
    struct mc_timer sweep;
    struct mc_arena arena;
    struct mc_buf out; /* answers of the read in progress, when the connection has none waiting */
    struct mc_buf body, attachment;
    uint64_t requests, errors; /* of the read in progress */
    atomic_uint connections;   /* counted by the acceptor, so that a burst spreads evenly */
    char *scratch;
};

struct mc_rpc_server {
    struct mc_rpc_server_config config;
    struct mc_acceptor acceptor; /* on workers[0] */
    unsigned worker_count;
    struct worker *workers;
    struct mc_reactor *aside[MAX_ASIDE];    /* run slow requests; NULL when there are none */
    _Atomic unsigned aside_load[MAX_ASIDE]; /* requests that are there or on their way */
    uint32_t text_hash;
    _Atomic size_t buffered; /* buffers of all connections */
    struct {
        struct mc_metric connections, refused, requests, slow, errors, bad_frames, received, sent;
        struct mc_metric over_budget;
    } metrics;
};

static inline uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

static inline size_t waiting_bytes(const struct connection *c) {
    return c->out.len - c->out_sent;
}

/* ---- server_life.c ---- */

/* What the connection's buffers take goes into the server's sum. False when it must go, for the sum
 * is over the budget and it has a good part in that. */
bool rpc_account(struct connection *c, size_t bytes);
size_t rpc_buffers_of(const struct connection *c);
/* A task of the worker: the connection that the acceptor gave it. */
void rpc_connection_adopt(struct mc_task *task);
void rpc_sign_of_life(struct connection *c);
/* From now on only the answers that wait are written. */
void rpc_connection_start_closing(struct connection *c);
/* Closes it. Its memory goes with the request that runs aside, when there is one. */
void rpc_connection_free(struct connection *c);
/* The memory of one that is closed. */
void rpc_connection_forget(struct connection *c);
void rpc_on_sweep(struct mc_timer *timer);
/* After each turn: a handshake in TLS has its own time, whatever idle connections have. */
void rpc_watch_handshake(struct connection *c);

/* ---- server_turn.c ---- */

void rpc_on_ready(struct mc_reactor_fd *watch, uint32_t events);
/* Behind the answers that wait already. */
void rpc_append_answer(struct connection *c, uint32_t seq, struct mc_rpc_reply *reply);
/* Handles the complete frames of bytes[0..len), keeps what is left, and writes the answers. */
MC_MUST_USE enum mc_status rpc_process(struct connection *c, const char *bytes, size_t len);
/* Sets what is waited for next; an error ends the connection. */
void rpc_end_turn(struct connection *c, enum mc_status status);

/* ---- server_aside.c ---- */

/* Copies the request and sends it on its way; false when it is to be handled here. */
MC_MUST_USE bool rpc_aside_take(struct connection *c, const struct mc_rpc_request_header *header,
                                const char *payload);

#endif

/*
 * The tcp transport's private header: the data protocol's constants and what its files share.
 *
 *   tcp.c          start, stop, peers, the table of operations
 *   tcp_server.c   the side that is read from and written to: one state machine a connection
 *   tcp_lane.c     a lane, one connection to a peer: its life from connect to failure
 *   tcp_lane_io.c  what moves on a lane: requests out, answers in
 *   tcp_wait.c     a waiting thread drives lanes itself; cancelling
 *
 * The protocol is upstream's (docs/transport-tcp.md): a header of 24 bytes asks to read or write
 * [addr, addr + size) of the server's process; the server answers in order, so requests are
 * pipelined and answers are matched first in, first out.
 */
#ifndef MC_TE_TRANSPORT_TCP_H
#define MC_TE_TRANSPORT_TCP_H

#include <endian.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "io/io.h"
#include "io/tls.h"
#include "te/te.h"

/* ---- the data protocol ---- */

#define TCP_HEADER_BYTES 24 /* u64 size, u64 addr, u8 opcode, 7 ignored */
#define TCP_STATUS_BYTES 8  /* u64: magic in the upper half, code in the lower */
#define TCP_STATUS_MAGIC (0x4D435456ull << 32)
#define TCP_PADS         7 /* 8 headers and 8 status words are whole cache lines */
#define TCP_PROTO_PLAIN  1 /* no status frames */
#define TCP_PROTO_ACKED  2

enum { TCP_OPCODE_READ = 0, TCP_OPCODE_WRITE = 1, TCP_OPCODE_ACKED = 0x80 };
enum { TCP_STATUS_OK = 0, TCP_STATUS_REJECTED = 1 };

struct tcp_header {
    uint64_t size;
    uint64_t addr;
    uint8_t opcode;
};

static inline void tcp_header_encode(unsigned char out[TCP_HEADER_BYTES],
                                     const struct tcp_header *h) {
    uint64_t words[3] = {htole64(h->size), htole64(h->addr), htole64(h->opcode)};
    memcpy(out, words, sizeof(words));
}

static inline struct tcp_header tcp_header_decode(const unsigned char in[TCP_HEADER_BYTES]) {
    uint64_t words[2];
    memcpy(words, in, sizeof(words));
    return (struct tcp_header){
        .size = le64toh(words[0]), .addr = le64toh(words[1]), .opcode = in[16]};
}

/* ---- the transport ---- */

#define TCP_LANES_MAX 64
#define TCP_SWEEP_NS  MC_SEC /* how often stalled connections are looked for */

struct tcp_metrics {
    struct mc_metric bytes[2], requests[2], errors; /* initiator's; [op] */
    struct mc_metric served_bytes[2], served_requests[2], rejected, served_errors;
    struct mc_metric lanes, connects, connections;
};

struct tcp_transport;

/* What lives on one reactor. All but `reactor` and `connection_count` is touched on its thread
 * only. */
struct tcp_shard {
    struct tcp_transport *transport;
    struct mc_reactor *reactor;
    struct mc_list connections; /* tcp_connection.link: the server's */
    struct mc_list lanes;       /* tcp_lane.shard_link: with a socket or waiting to connect */
    struct mc_timer sweep;
    _Atomic uint32_t connection_count;
    struct mc_device_copier copier; /* of the server */
};

struct tcp_server {
    struct tcp_transport *transport;
    struct mc_acceptor acceptor; /* on shards[0] */
    uint16_t port;
};

struct tcp_transport {
    struct mc_transport base;
    struct tcp_server server;
    struct tcp_shard *shards;
    unsigned shard_count;
    unsigned lanes_per_peer;
    unsigned lanes_per_post; /* over how many lanes one post to a near peer spreads */
    unsigned stall_ticks; /* sweeps without a byte moved until a busy connection counts as dead */
    uint64_t queue_limit; /* slices of one peer */
    uint64_t connect_timeout_ns;
    bool force_plain; /* MC_TCP_PROTO=1 */
    const struct mc_tls_peers *tls;
    pthread_mutex_t peers_lock; /* guards peers and every segment's transport_state slot */
    struct mc_list peers;       /* tcp_peer.link: those a segment points to */
    struct tcp_metrics metrics;
};

static inline struct tcp_transport *tcp_of(struct mc_transport *t) {
    return mc_container_of(t, struct tcp_transport, base);
}

/* ---- tcp_server.c ---- */

MC_MUST_USE enum mc_status tcp_server_start(struct tcp_server *server,
                                            struct tcp_transport *transport);
void tcp_server_stop_listening(struct tcp_server *server);
/* On the shard's thread: */
void tcp_server_close_all(struct tcp_shard *shard);
void tcp_server_sweep(struct tcp_shard *shard);

/* ---- peers and lanes ---- */

/* A lane's life. Only a lane that is IDLE has neither socket nor slices nor work queued at its
 * reactor.
 *
 *   IDLE -> STARTING (a slice came; the reactor will connect, perhaps after a pause) -> CONNECTING
 * -> UP any but IDLE -> FAILING (nobody may begin I/O) -> CLOSING (its slices were given back) ->
 * IDLE or STARTING */
enum tcp_lane_state {
    TCP_LANE_IDLE,
    TCP_LANE_STARTING,
    TCP_LANE_CONNECTING,
    TCP_LANE_UP,
    TCP_LANE_FAILING,
    TCP_LANE_CLOSING
};

/* Who reads answers from the lane. At most one at a time. */
enum tcp_driver { TCP_DRIVER_NONE, TCP_DRIVER_REACTOR, TCP_DRIVER_WAITER };

/*
 * Locking. `lock` guards every field, and is never held across a system call that moves data nor
 * across mc_slice_done. Two roles let threads work outside of it:
 *
 *   sender  (`sending`)         writes requests; owns what it took from the list until it comes
 * back under the lock driver  (`driver` not NONE) reads answers; owns `status`, `status_got`,
 * `payload_got`
 *
 * `slices` is one list in protocol order: [first, unsent) is sent and waits for answers, [unsent,
 * end) waits to be sent. The driver completes only slices before `unsent`, so a slice that the
 * sender holds cannot end under it. A lane fails by changing to FAILING; the last of the two roles
 * to leave (tcp_lane_settle) gives the slices back, so after that no byte of this connection
 * reaches local memory.
 */
struct tcp_lane {
    struct mc_reactor_fd ready;
    struct mc_stream stream; /* stream.fd == -1: no socket */
    struct tcp_peer *peer;
    struct tcp_shard *shard;
    struct mc_list shard_link; /* shard's thread */
    struct mc_timer timer;     /* shard's thread: connect deadline, or the pause before a connect */
    struct mc_task task;
    unsigned index;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* `sending`, `completing` or a failing state ended; broadcast while
                               `cancellers` */
    enum tcp_lane_state state;
    enum tcp_driver driver;
    bool sending;
    bool send_blocked;      /* the socket took less than it was given */
    bool send_again;        /* look once more: somebody could not become sender */
    bool receive_again;     /* an answer came before the sender noted the request as sent */
    bool blocked_by_waiter; /* the driver (a waiter) polls for room to send */
    bool completing;        /* mc_slice_done calls are under way */
    bool task_queued;
    bool attached;    /* registered with the reactor */
    bool acked;       /* protocol of this connection: status frames */
    bool answered;    /* an answer came on this connection */
    bool hang_up;     /* epoll or poll saw the peer's end: read up to it */
    bool counted;     /* in the gauge of lanes */
    bool watch_again; /* report anew, as soon as the reactor's turn on this lane ends */
    bool promised;    /* a waiter will come to drive: the reactor need not watch */
    bool moved;       /* a byte moved since the last sweep */
    unsigned stalled; /* sweeps without one */
    unsigned cancellers;
    uint32_t watched; /* events asked of the reactor's epoll */
    enum mc_status failure;
    bool failure_retryable;
    pthread_t completer; /* valid while completing */
    pthread_t owner; /* who posted first on the empty lane: the waiter that may drive; valid while
                        pending > 0 */
    uint32_t owner_pending;
    uint32_t pending; /* slices in the list */
    struct mc_list slices;
    struct mc_list *unsent;        /* &slices when all are sent */
    uint64_t sent_bytes;           /* of *unsent */
    _Atomic uint64_t queued_bytes; /* added to without the lock by who chose the lane */
    _Atomic bool connected;        /* read without the lock to choose */

    uint64_t status[1 + TCP_PADS]; /* of the answer that is coming */
    uint32_t status_got;
    uint64_t payload_got;
    char confirmed; /* the byte that confirms a plain write lands here */
};

struct tcp_peer {
    struct tcp_transport *transport;
    struct mc_list link;
    _Atomic uint32_t refs; /* the segment, callers, lanes that are not IDLE */
    char name[MC_HOST_MAX + 8];
    char host[MC_HOST_MAX]; /* as in the descriptor that it was made from */
    struct mc_addr addr;
    bool acked;
    bool tls;
    bool pads;                    /* long requests are padded: see tcp_lane_io.c */
    _Atomic uint32_t rtt_us;      /* the least of its lanes' handshakes; 0 = not known */
    _Atomic uint64_t queued;      /* slices on all lanes */
    _Atomic uint64_t retry_at_ns; /* no connect before */
    _Atomic uint32_t refusals;    /* connections in a row that came to nothing */
    unsigned lane_count;
    struct tcp_lane lanes[];
};

void tcp_peer_get(struct tcp_peer *peer);
void tcp_peer_put(struct tcp_peer *peer);

/* transport_data of a slice on a lane: whether the lane's owner posted it; how it ends when the
 * lane fails. */
enum { TCP_SLICE_BY_OWNER, TCP_SLICE_ENDING };
enum { TCP_ENDING_WITH_LANE, TCP_ENDING_REFUSED, TCP_ENDING_CANCELLED };

static inline uint64_t tcp_slice_weight(const struct mc_slice_op *slice) {
    return slice->length + 64;
}

/* ---- tcp_lane.c ---- */

/* All *_locked functions need lane->lock; those that say so drop and retake it. */

void tcp_lane_init(struct tcp_lane *lane, struct tcp_peer *peer, unsigned index);
void tcp_lane_destroy(struct tcp_lane *lane);
/* Queues slices, in order, and sends what the socket takes at once. Their weight is in
 * `queued_bytes` already. */
void tcp_lane_post(struct tcp_lane *lane, struct mc_slice_op **slices, size_t count);
/* Asks epoll for exactly what nobody else watches for. `again` reports a condition anew that holds
 * already. */
void tcp_lane_watch_locked(struct tcp_lane *lane, bool again);
/* The lane is unusable; the caller logged why. Its slices end by tcp_lane_settle_locked. */
void tcp_lane_fail_locked(struct tcp_lane *lane, enum mc_status status, bool retryable);
/* Ends the slices of a failed lane once nobody sends or drives.
 * Drops the lock for mc_slice_done. */
void tcp_lane_settle_locked(struct tcp_lane *lane);
/* Takes the slice off the lane's accounts and list. */
void tcp_lane_unlink_locked(struct tcp_lane *lane, struct mc_slice_op *slice);
/* The sender's role ends: settles, and hands what is left to whoever watches. */
void tcp_lane_sender_left_locked(struct tcp_lane *lane);
/* Round a run of mc_slice_done calls: the first leaves the lock, the second takes it again. */
void tcp_lane_complete_begin_locked(struct tcp_lane *lane);
void tcp_lane_complete_end_locked(struct tcp_lane *lane);
void tcp_lane_sweep(struct tcp_shard *shard); /* on the shard's thread */

/* ---- tcp_lane_io.c ---- */

/* Sends until the socket is full, nothing is left or enough was sent for one turn.
 * Drops the lock. */
void tcp_lane_send_locked(struct tcp_lane *lane);
/* By the driver: receives until the socket is empty, nothing is expected, `*done` is non-zero (done
 * may be NULL), or enough for one turn was received; true = there may be more. `sleep` (for a
 * waiter that drives this lane alone): an empty socket is slept on, at most MC_READ_SLEEP_NS, as
 * long as the waiter has slices here and need not watch for room to send. Drops the lock. */
bool tcp_lane_receive_locked(struct tcp_lane *lane, const _Atomic uint32_t *done, bool sleep);
/* Bytes that the slice puts on the wire. */
uint64_t tcp_slice_wire_bytes(const struct tcp_lane *lane, const struct mc_slice_op *slice);

/* ---- tcp_wait.c ---- */

void tcp_progress(struct tcp_peer *peer, const _Atomic uint32_t *done, uint64_t deadline_ns);
void tcp_lane_cancel(struct tcp_lane *lane, void *task);

extern const struct mc_transport_ops mc_transport_tcp_ops;

#endif

/*
 * Mooncake Transfer Engine: batched one-sided reads and writes between segments.
 *
 * A segment is the registered memory of one engine, named "host:port" (P2P handshake) or by the
 * name it was given in the metadata service. An application registers buffers, opens the peer's
 * segment by name, and submits batches of requests that each move a byte range between its own
 * memory and an address inside the peer's segment. The peer's application takes no part.
 *
 *     struct mc_engine *engine;
 *     struct mc_engine_options options;
 *     mc_engine_options_init(&options);                       // P2P handshake, any free port
 *     if (mc_engine_create(&options, &engine) != MC_OK) ...
 *     mc_memory_register(engine, buffer, size, "*", 0);
 *     mc_segment_open(engine, "10.0.0.2:15231", &segment);
 *     struct mc_transfer_request request = {MC_TRANSFER_READ, buffer, segment, remote_address,
 * length}; enum mc_status status = mc_transfer(engine, &request, 1, mc_deadline_in_ms(1000));
 *
 * The engine chooses how bytes travel (the same process: memcpy; the same host: shared memory; else
 * TCP) and retries a slice on another lane or transport when one fails. A request reports success
 * only when its last byte has arrived.
 *
 * Threads: every function may be called from any thread, except that one batch is submitted to and
 * freed by one thread at a time. Functions that take a deadline wait for a peer until then;
 * mc_segment_open, mc_segment_refresh and mc_notify_send at most the handshake timeouts (connect 5
 * s, answer 10 s); mc_memory_unregister and mc_memory_free until peers' requests on the range have
 * ended; no other function waits for a peer. Limits: MC_BATCH_MAX requests a batch; buffers, peers
 * and lanes as in docs/te.md.
 *
 * Errors: `enum mc_status` of mooncake/error.h. Semantics: Mooncake (FAST'25) section 4 and
 * upstream's Transfer Engine; wire compatible with upstream 0.3.12 and later.
 */
#ifndef MOONCAKE_TRANSFER_H
#define MOONCAKE_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mooncake/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mc_engine;
struct mc_batch;

#define MC_BATCH_MAX     (1u << 20) /* requests in one batch */
#define MC_LOCAL_SEGMENT 0          /* the engine's own segment */
typedef int32_t mc_segment_id;      /* as upstream; > 0 for opened peers */

/* ---- engine ---- */

struct mc_engine_options {
    const char *metadata;   /* "P2PHANDSHAKE" or "http://host:port/metadata" */
    const char *local_name; /* segment name; NULL or "" = "<ip>:<port>". With P2P the port is always
                               the bound one */
    const char *host;  /* address to bind and to tell peers; NULL = chosen (MC_TCP_BIND_ADDRESS,
                          interfaces) */
    uint16_t rpc_port; /* handshake port; 0 = a free one of [port_min, port_max] */
    uint16_t port_min; /* default 15000 (MC_MIN_RPC_PORT) */
    uint16_t port_max; /* default 17000 (MC_MAX_RPC_PORT) */
    unsigned reactors; /* I/O threads; 0 = min(2, cores) */
    unsigned lanes_per_peer;     /* TCP connections a peer; 0 = 4 */
    bool disable_shm;            /* never use shared memory (tests, measuring TCP) */
    bool disable_local;          /* never use memcpy inside the process (tests) */
    uint32_t connect_timeout_ms; /* default 5000 */
};
/* Defaults, then the MC_* environment. */
void mc_engine_options_init(struct mc_engine_options *options);

MC_MUST_USE enum mc_status mc_engine_create(const struct mc_engine_options *options,
                                            struct mc_engine **engine);
/* Ends transfers in flight with MC_ERR_CANCELLED and waits for peers' requests; afterwards nobody
 * touches the application's memory through this engine. Batches may still be looked at and must be
 * freed. No other call may be entered any more, but a thread inside mc_transfer or mc_batch_wait
 * comes back. NULL is allowed. */
void mc_engine_destroy(struct mc_engine *engine);
/* What peers pass to mc_segment_open. Valid as long as the engine. */
const char *mc_engine_name(const struct mc_engine *engine);
uint16_t mc_engine_rpc_port(const struct mc_engine *engine);

/* An absolute deadline `ms` from now, for the functions below; MC_WAIT_FOREVER never passes.
 * Nanoseconds of CLOCK_MONOTONIC. */
#define MC_WAIT_FOREVER UINT64_MAX
uint64_t mc_deadline_in_ms(uint64_t ms);

/* ---- memory ---- */

enum mc_memory_flags {
    /* A source or destination of own transfers; peers may not address it. */
    MC_MEMORY_LOCAL_ONLY = 1,
};
/* Registers [addr, addr+length) under a location ("*", "cpu:0", "cuda:0"). MC_ERR_OVERLAP,
 * MC_INVALID_PARAMS. The caller keeps the memory valid until it is unregistered. */
MC_MUST_USE enum mc_status mc_memory_register(struct mc_engine *engine, void *addr, size_t length,
                                              const char *location, unsigned flags);
/* Waits for peers' requests that are using the range. MC_ERR_NOT_FOUND when addr is not a
 * registered start. */
MC_MUST_USE enum mc_status mc_memory_unregister(struct mc_engine *engine, void *addr);
/* Memory that same-host peers can map (memfd); registered under `location`. Page-aligned;
 * zero-filled. */
MC_MUST_USE enum mc_status mc_memory_alloc(struct mc_engine *engine, size_t length,
                                           const char *location, void **addr);
MC_MUST_USE enum mc_status mc_memory_free(struct mc_engine *engine, void *addr);

/* ---- segments ---- */

/* Opens (or finds again) a peer's segment. The own name gives MC_LOCAL_SEGMENT. MC_ERR_UNREACHABLE,
 * MC_ERR_PROTOCOL, MC_SEGMENT_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_segment_open(struct mc_engine *engine, const char *name,
                                           mc_segment_id *segment);
MC_MUST_USE enum mc_status mc_segment_close(struct mc_engine *engine, mc_segment_id segment);
/* Fetches the descriptor again, e.g. after the peer registered more memory (done by itself when an
 * address is unknown). */
MC_MUST_USE enum mc_status mc_segment_refresh(struct mc_engine *engine, mc_segment_id segment);

struct mc_buffer_info {
    uint64_t addr;
    uint64_t length;
    char location[64];
};
/* Writes at most `capacity` entries; *count is how many there are. */
MC_MUST_USE enum mc_status mc_segment_buffers(struct mc_engine *engine, mc_segment_id segment,
                                              struct mc_buffer_info *buffers, size_t capacity,
                                              size_t *count);
/* MC_OK when the peer answers a probe within the deadline. */
MC_MUST_USE enum mc_status mc_segment_probe(struct mc_engine *engine, mc_segment_id segment,
                                            uint64_t deadline_ns);

/* A pointer through which this process reads [addr, addr+length) of the segment without a copy;
 * only for local segments and same-host memory of mc_memory_alloc; else MC_NOT_SUPPORTED. Valid
 * until the segment is closed. */
MC_MUST_USE enum mc_status mc_segment_map(struct mc_engine *engine, mc_segment_id segment,
                                          uint64_t addr, size_t length, const void **ptr);

/* ---- transfers ---- */

enum mc_transfer_op { MC_TRANSFER_READ = 0, MC_TRANSFER_WRITE = 1 };

struct mc_transfer_request {
    enum mc_transfer_op op;
    void *local; /* registered with this engine or not (registration is faster for hardware
                    transports) */
    mc_segment_id segment;
    uint64_t remote_addr; /* address in the peer's process */
    uint64_t length;      /* 0 completes at once */
};

enum mc_task_state {
    MC_TRANSFER_WAITING = 0,
    MC_TRANSFER_PENDING = 1,
    MC_TRANSFER_COMPLETED = 4,
    MC_TRANSFER_TIMEOUT = 5,
    MC_TRANSFER_FAILED = 6
};
struct mc_transfer_status {
    enum mc_task_state state;
    enum mc_status error;       /* why, when failed */
    uint64_t transferred_bytes; /* equals length exactly when completed */
};

/* A batch collects requests; tasks are numbered 0… over all submits. capacity is a hint. */
MC_MUST_USE enum mc_status mc_batch_create(struct mc_engine *engine, size_t capacity,
                                           struct mc_batch **batch);
/* The request array may be freed at once. Requests that cannot be posted fail as tasks, not here. A
 * task that is not complete at deadline_ns fails with MC_ERR_TIMEOUT: the next call that looks at
 * the batch (task, wait, free) cancels it, and after that call nothing of it touches local memory.
 */
MC_MUST_USE enum mc_status mc_batch_submit(struct mc_batch *batch,
                                           const struct mc_transfer_request *requests, size_t count,
                                           uint64_t deadline_ns);
/* After all tasks of the batch have completed, tells the peer (see mc_notify_send). Set before the
 * last submit. */
MC_MUST_USE enum mc_status mc_batch_notify(struct mc_batch *batch, mc_segment_id segment,
                                           const char *name, const char *message);
MC_MUST_USE enum mc_status mc_batch_task(struct mc_batch *batch, size_t task,
                                         struct mc_transfer_status *status);
/* Waits until every task has ended. MC_OK: all completed; MC_ERR_TIMEOUT: deadline passed, tasks go
 * on; else the first failed task's error. */
MC_MUST_USE enum mc_status mc_batch_wait(struct mc_batch *batch, uint64_t deadline_ns);
/* MC_ERR_BUSY while a task is unfinished. */
MC_MUST_USE enum mc_status mc_batch_free(struct mc_batch *batch);

/* Submit, wait, free in one; fastest for few requests. On MC_ERR_TIMEOUT nothing of this call
 * touches local memory after it returned. */
MC_MUST_USE enum mc_status mc_transfer(struct mc_engine *engine,
                                       const struct mc_transfer_request *requests, size_t count,
                                       uint64_t deadline_ns);

/* ---- notifications ---- */

/* A named message to the peer's queue (at most 4096 wait there; the oldest go first and are
 * counted). */
MC_MUST_USE enum mc_status mc_notify_send(struct mc_engine *engine, mc_segment_id segment,
                                          const char *name, const char *message);
struct mc_notification {
    char *name;
    char *message;
};
/* Takes all waiting messages; free with mc_notify_free. *count may be 0 (then *list is NULL). */
MC_MUST_USE enum mc_status mc_notify_receive(struct mc_engine *engine,
                                             struct mc_notification **list, size_t *count);
void mc_notify_free(struct mc_notification *list, size_t count);

/* Counters of the engine as Prometheus text (per transport: bytes, requests, errors, retries,
 * lanes). The text is malloc'ed. */
char *mc_engine_metrics(struct mc_engine *engine);

#ifdef __cplusplus
}
#endif
#endif

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
 *     mc_segment_id segment;
 *     mc_engine_options_init(&options);       // P2P handshake, any free port
 *     if (mc_engine_create(&options, &engine) != MC_OK) ...
 *     mc_memory_register(engine, buffer, size, "*", 0);
 *     mc_segment_open(engine, "10.0.0.2:15231", &segment);
 *     struct mc_transfer_request r = {MC_TRANSFER_READ, buffer, segment, remote_address, length};
 *     enum mc_status status = mc_transfer(engine, &r, 1, mc_deadline_in_ms(1000));
 *
 * The engine chooses how bytes travel (the same process: memcpy; the same host: shared memory; else
 * TCP) and retries a slice on another lane or transport when one fails. A request reports success
 * only when its last byte has arrived.
 *
 * Threads: every function may be called from any thread, except that one batch is submitted to and
 * freed by one thread at a time. Functions that take a deadline wait for a peer until then;
 * mc_segment_open, mc_segment_refresh, mc_segment_map and mc_notify_send at most the handshake
 * timeouts (connect 5 s, answer 10 s); mc_memory_unregister and mc_memory_free until peers'
 * requests on the range have ended. With an HTTP metadata service, mc_segment_open and every change
 * of memory also wait for its answer, some seconds at most. Nothing else waits.
 *
 * Limits: MC_BATCH_MAX requests a batch; buffers, peers and lanes as in docs/te.md.
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
    /* "P2PHANDSHAKE" or "http://host:port/metadata". */
    const char *metadata;
    /* Segment name; NULL or "" = "<ip>:<port>". With P2P the port is always the bound one. */
    const char *local_name;
    /* Address to bind and to tell peers; NULL or "" = chosen (MC_TCP_BIND_ADDRESS, else the first
     * interface). */
    const char *host;
    uint16_t rpc_port;           /* handshake port; 0 = a free one of [port_min, port_max] */
    uint16_t port_min;           /* default 15000 (MC_MIN_RPC_PORT) */
    uint16_t port_max;           /* default 17000 (MC_MAX_RPC_PORT) */
    unsigned reactors;           /* I/O threads, at most 16; 0 = min(2, cores) */
    unsigned lanes_per_peer;     /* TCP connections a peer, at most 64; 0 = 4 */
    bool disable_shm;            /* never use shared memory (tests, measuring TCP; MC_FORCE_TCP) */
    bool disable_local;          /* never use memcpy inside the process (tests) */
    bool lazy_memory;            /* pages of mc_memory_alloc come by use, not in advance
                                    (MC_LAZY_MEMORY) */
    uint32_t connect_timeout_ms; /* 0 = 5000 (MC_HANDSHAKE_CONNECT_TIMEOUT, in seconds) */
    /* Size of the huge pages that mc_memory_alloc takes where the system's pool has enough, 2 MiB
     * or 1 GiB; 0 = ordinary pages (MC_STORE_USE_HUGEPAGE, MC_STORE_HUGEPAGE_SIZE). */
    uint64_t huge_page_bytes;
    /* How transports and rails are chosen: JSON, or the path of a file with it (docs/te.md); NULL =
     * the default, which suits (MC_TENT_CONF). */
    const char *policy;
    /* TLS with other engines, docs/tls.md: "off", "prefer" or "require"; NULL = MC_TLS_PEERS in the
     * environment, else off. It needs PEM files: `tls_cert` and `tls_key`, which this engine shows
     * as server and as client, and `tls_ca`, who signs those of the others (NULL = the system's
     * CAs; and then peers need not show one). Peers must be who they are connected to as, or, with
     * `tls_peer_name`, whoever has that name in the certificate. NULL = MC_TLS_CERT, MC_TLS_KEY,
     * MC_TLS_CA, MC_TLS_PEER_NAME. */
    const char *tls_peers;
    const char *tls_cert, *tls_key, *tls_ca, *tls_peer_name;
};
/* Defaults, then the MC_* environment. */
void mc_engine_options_init(struct mc_engine_options *options);

/* Starts threads, listens, publishes the segment. `options` and its strings are copied.
 * MC_INVALID_PARAMS, MC_ERR_ADDRESS_IN_USE, MC_ERR_BAD_ADDRESS, MC_ERR_LIMIT, MC_ERR_IO, what the
 * metadata service answers, MC_INVALID_PARAMS or MC_FILE_NOT_FOUND for a topology file that cannot
 * be used, and MC_ERR_EXISTS when a living engine has the name there. */
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
/* The address that peers are told. Valid as long as the engine. */
const char *mc_engine_host(const struct mc_engine *engine);
/* Names of the transports that run on this machine ("local", "shm", "tcp"...), by number from 0;
 * NULL behind the last. */
const char *mc_engine_transport(const struct mc_engine *engine, unsigned index);
/* Which network cards serve which memory, as upstream's JSON ({"cpu:0": [[preferred], [available]],
 * ...}): the user's (MC_CUSTOM_TOPO_JSON in the environment) or this machine's. malloc'ed; NULL
 * when the machine cannot be read. */
char *mc_engine_topology(struct mc_engine *engine);
/* Takes the engine's name out of the metadata service, for good: peers that know the segment go on,
 * others no longer find it. Nothing to do with P2P. */
void mc_engine_withdraw(struct mc_engine *engine);

/* An absolute deadline `ms` from now, for the functions below; MC_WAIT_FOREVER never passes.
 * Nanoseconds of CLOCK_MONOTONIC. */
#define MC_WAIT_FOREVER UINT64_MAX
uint64_t mc_deadline_in_ms(uint64_t ms);

/* ---- memory ---- */

enum mc_memory_flags {
    /* A source or destination of own transfers; peers may not address it. */
    MC_MEMORY_LOCAL_ONLY = 1,
};
/* Device memory (of CUDA, docs/te.md) is recognised by itself, registered or not; where no
 * transport reaches it, transfers go through host memory on either side. It cannot be mapped.
 *
 * Registers [addr, addr+length) under a location ("*", "cpu:0", "cuda:0"; NULL = "*"; printable
 * ASCII, below 64 bytes; not "staging", under which the engine's own memory is listed).
 * MC_ERR_OVERLAP, MC_INVALID_PARAMS, MC_ERR_LIMIT (docs/te.md). The caller keeps the memory valid
 * until it is unregistered. */
MC_MUST_USE enum mc_status mc_memory_register(struct mc_engine *engine, void *addr, size_t length,
                                              const char *location, unsigned flags);
/* Waits for peers' requests that are using the range. MC_ERR_NOT_FOUND when addr is not a
 * registered start. */
MC_MUST_USE enum mc_status mc_memory_unregister(struct mc_engine *engine, void *addr);
/* Memory that same-host peers can map (memfd); registered under `location`. Page-aligned;
 * zero-filled. It gets its pages in the background, as far as the machine can spare them, so that
 * the first writes do not wait for them (options.lazy_memory). MC_ERR_NO_MEMORY also when the
 * machine has less than `length` in all. */
MC_MUST_USE enum mc_status mc_memory_alloc(struct mc_engine *engine, size_t length,
                                           const char *location, void **addr);
/* Of mc_memory_alloc; waits as mc_memory_unregister does. MC_ERR_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_memory_free(struct mc_engine *engine, void *addr);

/* ---- segments ---- */

/* Opens (or finds again) a peer's segment; openings are counted, and each wants its close. The own
 * name gives MC_LOCAL_SEGMENT. "file:///path" opens a file of this machine, with the length that it
 * has, and with a metadata service a name with a '/' in it files that were published there
 * (mc_segment_publish_files): requests then read and write them, their remote address being the
 * offset. MC_FILE_NOT_FOUND, MC_FILE_OPEN_FAIL; MC_ERR_UNREACHABLE, MC_ERR_TIMEOUT,
 * MC_ERR_PROTOCOL, MC_SEGMENT_NOT_FOUND, MC_INVALID_PARAMS, MC_ERR_LIMIT. */
MC_MUST_USE enum mc_status mc_segment_open(struct mc_engine *engine, const char *name,
                                           mc_segment_id *segment);
/* Transfers that were submitted before the last close go on. MC_SEGMENT_NOT_FOUND. */
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

/* Files as one segment, end to end, in the metadata service, as upstream's NVMe-oF segments:
 * whoever opens `name`, which has a '/' in it, reads and writes them where the paths lead on its
 * machine. They stay there until they are withdrawn. MC_NOT_SUPPORTED with P2P, MC_INVALID_PARAMS
 * (no '/', paths that are not absolute, more than 4096), MC_FILE_NOT_FOUND, MC_FILE_OPEN_FAIL,
 * MC_FILE_READ_FAIL (shorter than `length`). */
struct mc_segment_file {
    const char *path;
    uint64_t length; /* 0 = the length that it has */
};
MC_MUST_USE enum mc_status mc_segment_publish_files(struct mc_engine *engine, const char *name,
                                                    const struct mc_segment_file *files,
                                                    size_t count);
MC_MUST_USE enum mc_status mc_segment_withdraw_files(struct mc_engine *engine, const char *name);

/* A pointer through which this process reads [addr, addr+length) of the segment without a copy;
 * only for the local segment and same-host memory of mc_memory_alloc; else MC_NOT_SUPPORTED;
 * MC_ERR_NOT_REGISTERED when the segment has no such range. Valid until the segment is closed; of
 * the local segment, until the range is unregistered. */
MC_MUST_USE enum mc_status mc_segment_map(struct mc_engine *engine, mc_segment_id segment,
                                          uint64_t addr, size_t length, const void **ptr);

/* ---- transfers ---- */

enum mc_transfer_op { MC_TRANSFER_READ = 0, MC_TRANSFER_WRITE = 1 };

/* Where slices must wait, higher priorities go first; one that waits gains a priority each 100 ms.
 */
enum mc_priority { MC_PRIORITY_HIGH = 0, MC_PRIORITY_MEDIUM = 1, MC_PRIORITY_LOW = 2 };
/* What matters to the caller. */
enum mc_intent {
    MC_INTENT_DEFAULT = 0,
    MC_INTENT_LATENCY = 1,    /* takes no rail whose state is in doubt to try it */
    MC_INTENT_THROUGHPUT = 2, /* as the default; for policies to match */
    MC_INTENT_BACKGROUND = 3  /* is of low priority, whatever `priority` says */
};

struct mc_transfer_request {
    enum mc_transfer_op op;
    void *local; /* registered with this engine or not (registration is faster for hardware
                    transports) */
    mc_segment_id segment;
    uint64_t remote_addr; /* address in the peer's process */
    uint64_t length;      /* 0 completes at once */
    /* What follows may stay 0. */
    uint8_t priority;           /* enum mc_priority */
    uint8_t intent;             /* enum mc_intent */
    const char *transport_hint; /* goes first where it can serve ("tcp"); looked at while
                                   submitting; NULL = the engine chooses */
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
    enum mc_status error; /* why, when failed: what went wrong first. Of a write, see docs/te.md */
    uint64_t transferred_bytes; /* equals length exactly when completed */
};

/* A batch collects requests; tasks are numbered 0… over all submits. `capacity`, a hint, is at most
 * MC_BATCH_MAX. */
MC_MUST_USE enum mc_status mc_batch_create(struct mc_engine *engine, size_t capacity,
                                           struct mc_batch **batch);
/* Adds `count` tasks and starts them; the request array may be freed at once. A request that cannot
 * be carried out is a failed task, not an error here: MC_INVALID_PARAMS (too many, NULL),
 * MC_ERR_CLOSED (the engine ends).
 *
 * A task that is not complete at deadline_ns fails with MC_ERR_TIMEOUT. No timer looks: the next
 * call on the batch (task, wait, free) finds the task overdue and cancels it, and once that call
 * has returned nothing of the task touches local memory any more. Until then it may.
 * MC_SLICE_TIMEOUT (seconds) in the environment bounds deadlines that are later or open. */
MC_MUST_USE enum mc_status mc_batch_submit(struct mc_batch *batch,
                                           const struct mc_transfer_request *requests, size_t count,
                                           uint64_t deadline_ns);
/* After all tasks of the batch have completed, tells the peer (see mc_notify_send); nothing is sent
 * when one has failed, and the batch ends with MC_ERR_… of the sending when that fails. Set before
 * the last submit, once. */
MC_MUST_USE enum mc_status mc_batch_notify(struct mc_batch *batch, mc_segment_id segment,
                                           const char *name, const char *message);
/* How task number `task` stands. MC_TASK_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_batch_task(struct mc_batch *batch, size_t task,
                                         struct mc_transfer_status *status);
/* Gives a task up: it has ended when this returns, as MC_TRANSFER_FAILED with MC_ERR_CANCELLED
 * unless it ended otherwise before, and nothing of it touches local memory any more.
 * MC_TASK_NOT_FOUND. */
MC_MUST_USE enum mc_status mc_batch_cancel(struct mc_batch *batch, size_t task);
/* Waits until every task has ended. MC_OK: all completed. MC_ERR_TIMEOUT: the deadline passed and
 * tasks go on, or a task has failed by its own deadline (mc_batch_task and mc_batch_free tell
 * which). Else the error of the task that failed first. */
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

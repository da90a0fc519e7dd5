/*
 * The C interface of upstream's Transfer Engine (libtransfer_engine), for programs written against
 * it: NIXL's Mooncake plugin, TensorRT-LLM's wrapper, the Go and Rust bindings. The same names,
 * layouts, constants and return values. New programs use mooncake/transfer.h.
 *
 *     transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "10.0.0.1", "", 0, 1);
 *     registerLocalMemory(engine, buffer, size, "*", 1);
 *     segment_id_t peer = openSegment(engine, "10.0.0.2:15231");
 *     batch_id_t batch = allocateBatchID(engine, 1);
 *     struct transfer_request r = {OPCODE_READ, buffer, peer, remote_address, length};
 *     submitTransfer(engine, batch, &r, 1);
 *     while (getTransferStatus(engine, batch, 0, &status) == 0 && status.status < STATUS_INVALID)
 *         ;
 *     freeBatchID(engine, batch);
 *
 * Return values. [E]: 0, or a negative ERR_* of the list below. [S]: 0, or a positive status code
 * of the list below. Texts and request arrays are copied: the caller may free them when the call
 * returned. NULL arguments, unknown names and ids that are not (or no longer) valid are errors, as
 * far as a call can see: only the engine itself must be NULL or alive.
 *
 * Threads: any function from any thread, except that one batch is submitted to by one thread at a
 * time and an engine is destroyed last. Limits: 2^20 tasks a batch, 2^20 batches an engine, and
 * those of mooncake/transfer.h. The transports are the engine's own choice: one that
 * installTransport() names must exist, and none needs to be installed.
 */
#ifndef MOONCAKE_COMPAT_TRANSFER_ENGINE_C_H
#define MOONCAKE_COMPAT_TRANSFER_ENGINE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define segment_handle_t int32_t
#define segment_id_t     int32_t
#define batch_id_t       uint64_t
#define LOCAL_SEGMENT    (0)
#define INVALID_BATCH    UINT64_MAX

#define OPCODE_READ  (0)
#define OPCODE_WRITE (1)

#define STATUS_WAITING   (0)
#define STATUS_PENDING   (1)
#define STATUS_INVALID   (2)
#define STATUS_CANCELED  (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT   (5)
#define STATUS_FAILED    (6)

/* [E], the numbers that this implementation returns:
 *   -1 invalid argument, -2 too many requests, -3 address not registered, -4 batch busy,
 *   -6 device not found, -7 address overlapped, -101 name resolution, -102 socket,
 *   -103 malformed JSON, -104 handshake rejected, -200 metadata, -201 endpoint, -202 context,
 *   -302 memory, -303 not implemented.
 * [S]: the same without the sign, but 8 = no transport and 999 = not implemented. */

struct transfer_request {
    int opcode;
    void *source;
    segment_id_t target_id;
    uint64_t target_offset; /* an address in the target's process; of a file segment, an offset */
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

/* Used by no function; upstream declares it. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_name;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

typedef void *transfer_engine_t;
typedef void *transport_t;

/* ---- life ---- */

/* metadata_conn_string "P2PHANDSHAKE" (the name is then "<ip>:<port>", see getLocalIpAndPort, of
 * which local_server_name gives the ip) or "http://host:port/metadata" (the name is then
 * local_server_name). ip_or_host_name: the address to listen on and to tell peers; NULL or "" =
 * chosen. rpc_port counts only with MC_LEGACY_RPC_PORT_BINDING in the environment; else a free port
 * is taken. auto_discover is accepted: devices are always looked for. NULL on failure, which the
 * log explains. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string,
                                       const char *local_server_name, const char *ip_or_host_name,
                                       uint64_t rpc_port, int auto_discover);
/* Ends transfers and frees batches; NULL is allowed. */
void destroyTransferEngine(transfer_engine_t engine);
/* 0 when the machine's topology can be read, which the engine does by itself. [E] */
int discoverTopology(transfer_engine_t engine);
/* "ip:port" of this engine, which peers of a P2P engine open. [E], -1 when buf_len is too small. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);
/* A non-NULL token when the engine has the transport "tcp", "rdma" and so on, else NULL. args:
 * NULL, or for "rdma" {priority matrix as JSON text, NULL}; a matrix that cannot be parsed is NULL
 * too. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);
/* 0 for a transport of this engine; transports live as long as the engine. [E] */
int uninstallTransport(transfer_engine_t engine, const char *proto);
/* From here on SIGINT and SIGTERM first take the names of all engines for which this was called out
 * of the metadata service, and then do what they did before. */
void enableGracefulShutdown(transfer_engine_t engine);

/* ---- segments ---- */

/* An id, LOCAL_SEGMENT for the engine's own name; negative [E]. The same name gives the same id. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* The same with a descriptor that is fetched now. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);
int closeSegment(transfer_engine_t engine, segment_id_t segment_id); /* [E] */
/* Only EFA has anything to prepare: 0. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);
/* Takes the own name out of the metadata service. [E], -1 for another name. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);
/* Fetches the descriptors of all open segments again; those of peers that do not answer stay. */
int syncSegmentCache(transfer_engine_t engine);

/* ---- memory ---- */

/* location "*", "cpu:0", "cuda:0"...; NULL = "*". [E] */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);
int unregisterLocalMemory(transfer_engine_t engine, void *addr); /* [E] */
/* All or none. [E] */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
                             size_t buffer_len, const char *location);
/* Tries all; the first error. [E] */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* ---- transfers ---- */

/* INVALID_BATCH on failure. batch_size is a hint: more tasks than that are accepted. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/* Starts `count` tasks; several submits number them on: 0...n-1. A request that cannot be carried
 * out is a failed task. [S] */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                   size_t count);
/* After all tasks of the batch have completed, `notify_msg` goes to the first entry's target; a
 * task is shown as completed only when it has arrived there. Nothing is sent when a task failed.
 * [S] */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
                             struct transfer_request *entries, size_t count,
                             notify_msg_t notify_msg);
/* Any number of times, also after the end. [S] */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status);
/* 4 (busy) while a task is unfinished. [S] */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* ---- notifications ---- */

/* Takes all waiting ones: a malloc'ed array of *size; NULL and 0 when there is none, NULL and -1
 * when an argument is NULL. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
int freeNotifsMsgBuf(notify_msg_t *msg, int size); /* 0 */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* ---- what it does ---- */

/* In: *count, the capacity of `stats` (NULL when it is 0). Out: how many network cards there are;
 * 0 without one that the engine drives itself. -1 on NULL. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);
/* What each transport has moved, as text or JSON; cut to buf_len. -1 on NULL. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

#ifdef __cplusplus
}
#endif
#endif

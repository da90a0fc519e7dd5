/*
 * The C interface of upstream's TENT engine, for programs written against tent/transfer_engine.h:
 * the same names, layouts, constants and return values, without the C++ classes behind them. New
 * programs use mooncake/transfer.h.
 *
 *     tent_set_config("rpc_server_hostname", "10.0.0.1");
 *     tent_engine_t engine = tent_create_engine();
 *     tent_register_memory(engine, buffer, size);
 *     tent_segment_id_t peer;
 *     tent_open_segment(engine, &peer, "10.0.0.2:15231");
 *     tent_batch_id_t batch = tent_allocate_batch(engine, 1);
 *     tent_request_t r = {0};
 *     r.opcode = OPCODE_READ, r.source = buffer, r.target_id = peer;
 *     r.target_offset = remote_address, r.length = length;
 *     tent_submit(engine, batch, &r, 1);
 *
 * Functions that return int: 0, or -1 with the reason in the log. Texts and arrays are copied. NULL
 * arguments and ids that are not (or no longer) valid are errors, as far as a call can see.
 *
 * Threads: any function from any thread, except that one batch is submitted to by one thread at a
 * time, the configuration is set before engines are made, and an engine is destroyed last.
 *
 * A peer is an engine of this implementation or upstream's classic engine; TENT's own RPC is not
 * spoken.
 */
#ifndef MOONCAKE_COMPAT_TENT_TRANSFER_ENGINE_H
#define MOONCAKE_COMPAT_TENT_TRANSFER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define tent_batch_id_t   uint64_t
#define tent_segment_id_t uint64_t

#define TENT_LOCAL_SEGMENT_ID 0ull
#ifndef __cplusplus
#define LOCAL_SEGMENT_ID 0ull
#endif

#define OPCODE_READ  (0)
#define OPCODE_WRITE (1)

#define STATUS_WAITING   (0)
#define STATUS_PENDING   (1)
#define STATUS_INVALID   (2)
#define STATUS_CANCELED  (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT   (5)
#define STATUS_FAILED    (6)

#define TYPE_MEMORY (0)
#define TYPE_FILE   (1)

#define PERM_LOCAL_READ_WRITE  (0)
#define PERM_GLOBAL_READ_ONLY  (1)
#define PERM_GLOBAL_READ_WRITE (2)

#define TRANSPORT_UNSPEC        (0)
#define TRANSPORT_RDMA          (1)
#define TRANSPORT_MNNVL         (2)
#define TRANSPORT_SHM           (3)
#define TRANSPORT_NVLINK        (4)
#define TRANSPORT_GDS           (5)
#define TRANSPORT_IOURING       (6)
#define TRANSPORT_TCP           (7)
#define TRANSPORT_ASCEND_DIRECT (8)
#define TRANSPORT_SUNRISE_LINK  (9)
#define TRANSPORT_TPU           (10)
#define TRANSPORT_UB            (11)
#define TRANSPORT_MPCOMM        (12)

/* To be zeroed before it is filled. */
struct tent_request {
    int opcode;
    void *source;
    tent_segment_id_t target_id;
    uint64_t target_offset;
    uint64_t length;
    int priority;       /* 0 high, 1 medium, 2 low */
    int transport_hint; /* goes first where it can serve; one that the engine has, or
                           TRANSPORT_UNSPEC */
};
typedef struct tent_request tent_request_t;

struct tent_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct tent_status tent_status_t;

struct tent_buffer_info {
    uint64_t base, length;
    char location[64];
};

struct tent_segment_info {
    int type;
    int num_buffers;
    struct tent_buffer_info *buffers;
};
typedef struct tent_segment_info tent_segment_info_t;

struct tent_notifi_record {
    tent_segment_id_t handle; /* 0: the sender is not known */
    char name[256];           /* cut when longer, like msg */
    char msg[4096];
};
typedef struct tent_notifi_record tent_notifi_record_t;

struct tent_notifi_info {
    int num_records;
    struct tent_notifi_record *records;
};
typedef struct tent_notifi_info tent_notifi_info;

struct tent_memory_options {
    char location[64];  /* "" = "*" */
    int permission;     /* local or global read-write */
    int transport_type; /* TRANSPORT_UNSPEC: the engine chooses, which it does anyway */
    char shm_path[256]; /* must be "": shared memory has no name here */
    size_t shm_offset;
    int internal;
};
typedef struct tent_memory_options tent_memory_options_t;

struct tent_nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct tent_nic_load_stat tent_nic_load_stat_t;

typedef void *tent_engine_t;

/* ---- configuration and life ---- */

/* A JSON file of TENT; of it count local_segment_name, metadata_type (p2p, http), metadata_servers,
 * rpc_server_hostname, rpc_server_port. A file that cannot be read or parsed makes the next
 * tent_create_engine fail. The configuration is the process's. */
void tent_load_config_from_file(const char *path);
/* One key of the above; other keys are kept and not used. */
void tent_set_config(const char *key, const char *value);
/* Before the process's configuration comes MC_TENT_CONF of the environment: a path, or JSON text
 * that begins with '{'. NULL on failure. */
tent_engine_t tent_create_engine(void);
void tent_destroy_engine(tent_engine_t engine);
int tent_available(tent_engine_t engine); /* 1 for an engine, 0 for NULL */

int tent_segment_name(tent_engine_t engine, char *buf, size_t buf_len);
int tent_rpc_server_addr_port(tent_engine_t engine, char *addr_buf, size_t buf_len, uint16_t *port);

/* ---- segments ---- */

int tent_open_segment(tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name);
int tent_close_segment(tent_engine_t engine, tent_segment_id_t handle);
int tent_get_segment_info(tent_engine_t engine, tent_segment_id_t handle,
                          tent_segment_info_t *info);
void tent_free_segment_info(tent_segment_info_t *info);

/* ---- memory ---- */

int tent_allocate_memory(tent_engine_t engine, void **addr, size_t size, const char *location);
int tent_free_memory(tent_engine_t engine, void *addr);
int tent_register_memory(tent_engine_t engine, void *addr, size_t size);
int tent_unregister_memory(tent_engine_t engine, void *addr, size_t size);
/* PERM_GLOBAL_READ_ONLY is refused: nothing here keeps peers from writing. */
int tent_register_memory_with_perm(tent_engine_t engine, void *addr, size_t size, int permission);
int tent_register_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count,
                               int permission);
int tent_unregister_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count);
int tent_allocate_memory_ex(tent_engine_t engine, void **addr, size_t size,
                            tent_memory_options_t *opts);
int tent_register_memory_ex(tent_engine_t engine, void *addr, size_t size,
                            tent_memory_options_t *opts);
int tent_register_memory_batch_ex(tent_engine_t engine, void **addrs, size_t *sizes, size_t count,
                                  tent_memory_options_t *opts);

/* ---- transfers ---- */

tent_batch_id_t tent_allocate_batch(tent_engine_t engine, size_t batch_size); /* 0 on failure */
/* -1 while a task is unfinished. */
int tent_free_batch(tent_engine_t engine, tent_batch_id_t batch_id);
int tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries,
                size_t count);
/* The notification goes to the first entry's target when all tasks of the batch have completed. */
int tent_submit_notif(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries,
                      size_t count, const char *name, const char *message);
int tent_task_status(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id,
                     tent_status_t *status);
/* Ends the task as STATUS_CANCELED unless it has ended. */
int tent_cancel_task(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id);
/* STATUS_PENDING until all tasks have ended; then completed, or what the first one that failed
 * says. transferred_bytes is the sum. */
int tent_overall_status(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *status);
/* *count in: capacity; out: number of tasks. */
int tent_task_status_list(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *statuses,
                          size_t *count);

/* ---- notifications ---- */

int tent_send_notifs(tent_engine_t engine, tent_segment_id_t handle, const char *name,
                     const char *message);
int tent_recv_notifs(tent_engine_t engine, tent_notifi_info *info);
void tent_free_notifs(tent_notifi_info *info);

/* *count in: capacity of `stats`; out: number of network cards that the engine drives. */
int tent_get_nic_load_stats(tent_engine_t engine, tent_nic_load_stat_t *stats, size_t *count);

#ifdef __cplusplus
}
#endif
#endif

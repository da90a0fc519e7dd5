/*
 * The C interface of upstream's store, for programs written against it (Go and Rust bindings among
 * them): the same names, layouts and return values. New programs use mooncake/store.h.
 *
 * Every function returns 0 or a value that its comment names, or a negative error number of
 * mooncake/error.h; -1 when an argument is NULL or invalid, or the store was not set up. Functions
 * may be called from any thread once setup returned.
 */
#ifndef MOONCAKE_COMPAT_STORE_C_H
#define MOONCAKE_COMPAT_STORE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *mooncake_store_t;

struct mooncake_replicate_config {
    size_t replica_num; /* 0 = 1 */
    int with_soft_pin;  /* for the master's default time */
    int with_hard_pin;
    const char **preferred_segments;
    size_t preferred_segments_count;
};
typedef struct mooncake_replicate_config mooncake_replicate_config_t;

mooncake_store_t mooncake_store_create(void);
void mooncake_store_destroy(mooncake_store_t store); /* closes; NULL is allowed */

/* protocol NULL = "tcp", master_server_addr NULL = "127.0.0.1:50051".
 * A size is 0 or at least 1024. */
int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                         const char *metadata_server, uint64_t global_segment_size,
                         uint64_t local_buffer_size, const char *protocol, const char *device_name,
                         const char *master_server_addr);
/* setup on this machine with a segment of mount_segment_size. */
int mooncake_store_init_all(mooncake_store_t store, const char *protocol, const char *device_name,
                            uint64_t mount_segment_size);
/* 0 healthy, 1 not set up, 2 the master is unreachable. */
int mooncake_store_health_check(mooncake_store_t store);

/* config NULL = one replica. An existing key is success and keeps its value. put_from of 0 bytes
 * stores nothing: 0. */
int mooncake_store_put(mooncake_store_t store, const char *key, const void *value, size_t size,
                       const mooncake_replicate_config_t *config);
int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer, size_t size,
                            const mooncake_replicate_config_t *config);
/* 0 when the call was made; each key's own result in results_out. */
int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys, void **buffers,
                                  const size_t *sizes, size_t count,
                                  const mooncake_replicate_config_t *config, int *results_out);

/* The object's size; -600 when it is larger than `size`. */
int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer, size_t size);
int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys, void **buffers,
                                  const size_t *sizes, size_t count, int64_t *results_out);

int mooncake_store_is_exist(mooncake_store_t store, const char *key); /* 1 or 0 */
int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count,
                                  int *results_out);
int64_t mooncake_store_get_size(mooncake_store_t store, const char *key);
/* -1 when it does not fit. */
int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len);

int mooncake_store_remove(mooncake_store_t store, const char *key, int force);
/* How many. */
int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern, int force);
int64_t mooncake_store_remove_all(mooncake_store_t store, int force); /* how many */

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size);
int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer);

/* ---- ours: not in upstream's library, and -1012 with upstream's master ---- */

enum mooncake_put_condition { /* what the key must be, one of: */
                              MOONCAKE_PUT_ALWAYS = 0,
                              MOONCAKE_PUT_IF_ABSENT = 1,  /* else -705 */
                              MOONCAKE_PUT_IF_VERSION = 2, /* the put replaces it; -300: it is
                                                              another by now; -704: it is */
                              MOONCAKE_PUT_IF_CHECKSUM =
                                  3, /* gone; -703: it is just being written */
};
struct mooncake_put_terms {
    size_t struct_size; /* sizeof(struct mooncake_put_terms) */
    uint64_t ttl_ms;    /* the object ends so long after it became readable; 0 = it does not */
    int condition;      /* enum mooncake_put_condition */
    int replace;        /* with MOONCAKE_PUT_ALWAYS: an existing object is replaced */
    const uint64_t *expected; /* one a key, of MOONCAKE_PUT_IF_VERSION and _CHECKSUM; else NULL */
};
typedef struct mooncake_put_terms mooncake_put_terms_t;
/* As mooncake_store_batch_put_from; terms are not NULL. */
int mooncake_store_batch_put_on_terms(mooncake_store_t store, const char **keys, void **buffers,
                                      const size_t *sizes, size_t count,
                                      const mooncake_replicate_config_t *config,
                                      const mooncake_put_terms_t *terms, int *results_out);

struct mooncake_object_info {
    size_t struct_size; /* set by the caller: sizeof(struct mooncake_object_info) */
    uint64_t size;
    uint64_t version; /* another one each time that the key is written */
    uint64_t checksum;
    uint64_t ttl_left_ms; /* UINT64_MAX = it does not end */
    int has_checksum;
    unsigned replicas;
};
typedef struct mooncake_object_info mooncake_object_info_t;
/* Takes no lease. -704, -703. */
int mooncake_store_inspect(mooncake_store_t store, const char *key, mooncake_object_info_t *info);

#ifdef __cplusplus
}
#endif
#endif

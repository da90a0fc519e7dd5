/*
 * The JSON of etcd's v3 gateway: bodies of requests, and answers, which are another machine's text
 * and are believed only as far as they can be read. Keys and values travel in base64, 64-bit
 * numbers as strings; members whose value is zero are absent.
 */
#ifndef MC_META_ETCD_JSON_H
#define MC_META_ETCD_JSON_H

#include "base/base.h"

/* RFC 4648, with padding. Decoding appends; false (and nothing appended) for any other text. */
void mc_etcd_base64_encode(struct mc_buf *out, struct mc_str bytes);
MC_MUST_USE bool mc_etcd_base64_decode(struct mc_buf *out, struct mc_str text);

/* Requests are appended. lease 0 = none. */
void mc_etcd_write_key(struct mc_buf *out, struct mc_str key); /* range, deleterange */
void mc_etcd_write_put(struct mc_buf *out, struct mc_str key, struct mc_str value, int64_t lease);
/* A transaction: put if the key does not exist, else read it. */
void mc_etcd_write_create(struct mc_buf *out, struct mc_str key, struct mc_str value,
                          int64_t lease);
/* The same if the key holds `old`. */
void mc_etcd_write_swap(struct mc_buf *out, struct mc_str key, struct mc_str old,
                        struct mc_str value, int64_t lease);
void mc_etcd_write_grant(struct mc_buf *out, uint32_t ttl_s);
void mc_etcd_write_lease(struct mc_buf *out, int64_t lease); /* keepalive, revoke */

void mc_etcd_write_user(struct mc_buf *out, const char *name, const char *password);

/* Answers. MC_ERR_PROTOCOL for what is no such answer; outputs are written on MC_OK only. */
/* MC_ERR_NOT_FOUND; the value is appended. */
MC_MUST_USE enum mc_status mc_etcd_read_range(struct mc_str body, struct mc_buf *value);
/* MC_ERR_NOT_FOUND when nothing was deleted. */
MC_MUST_USE enum mc_status mc_etcd_read_delete(struct mc_str body);
/* MC_OK = done; MC_ERR_EXISTS with what the key holds appended to `held`; MC_ERR_NOT_FOUND when the
 * key does not exist. */
MC_MUST_USE enum mc_status mc_etcd_read_transaction(struct mc_str body, struct mc_buf *held);
MC_MUST_USE enum mc_status mc_etcd_read_grant(struct mc_str body, int64_t *lease);
/* MC_ERR_NOT_FOUND when the lease has ended. */
MC_MUST_USE enum mc_status mc_etcd_read_keepalive(struct mc_str body);
/* What may stand in an HTTP header, terminated. MC_ERR_PROTOCOL for one that does not fit too. */
MC_MUST_USE enum mc_status mc_etcd_read_token(struct mc_str body, char *token, size_t size);

enum mc_etcd_code { /* those of gRPC that mean something here */
                    MC_ETCD_UNKNOWN = 2,
                    MC_ETCD_INVALID_ARGUMENT = 3,
                    MC_ETCD_DEADLINE = 4,
                    MC_ETCD_NOT_FOUND = 5,
                    MC_ETCD_EXHAUSTED = 8, /* no room, or a message above gRPC's limit */
                    MC_ETCD_FAILED_PRECONDITION = 9,
                    MC_ETCD_UNAVAILABLE = 14,
                    MC_ETCD_UNAUTHENTICATED = 16,
};
/* The code and text of an answer that is no success; of any text. `message` is cut to `size`, made
 * printable and always terminated. */
void mc_etcd_read_error(struct mc_str body, int *code, char *message, size_t size);

#endif

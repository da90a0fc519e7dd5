/*
 * A master with a clock that only the test moves, and calls short enough for a test to read like
 * its sentence.
 *
 * Every teardown runs fsck: no test passes on a master whose books do not balance.
 */
#ifndef MC_TESTS_MASTER_FIXTURE_H
#define MC_TESTS_MASTER_FIXTURE_H

#include "master/master.h"
#include "support/support.h"

#include <stdio.h>

struct fixture {
    struct mc_clock clock; /* first: the clock's functions find the fixture by it */
    _Atomic uint64_t now_ns;
    struct mc_master_config config;
    struct mc_master *m;
    struct mc_metrics *metrics;
    struct mc_arena arena;
    uint64_t next_base;
};

#define FIXTURE_SEGMENT_BYTES (16ull << 20)

extern const struct mc_uuid client_a, client_b;

/* cmocka set-up and teardown. A test that wants other options: fixture_restart() after changing
 * f->config. */
int fixture_setup(void **state);
int fixture_teardown(void **state);
void fixture_restart(struct fixture *f);
void fixture_check(struct fixture *f); /* fsck, fails the test with its report */

void advance_ms(struct fixture *f, uint64_t ms);
/* Ticks until n ms have passed, 10 ms at a time. */
void tick_for_ms(struct fixture *f, uint64_t ms);
void tick(struct fixture *f);

/* By client_a; also remounted and alive. */
struct mc_uuid mount(struct fixture *f, const char *name, uint64_t size);
struct mc_uuid mount_for(struct fixture *f, struct mc_uuid client, const char *name, uint64_t size);
int32_t mount_as(struct fixture *f, struct mc_uuid client, struct mw_segment segment);
/* A fresh id and address. */
struct mw_segment segment_of(struct fixture *f, const char *name, uint64_t size);

struct mw_replicate_config replicas(uint64_t count);
int32_t put_start(struct fixture *f, const char *key, uint64_t size);
int32_t put_start_with(struct fixture *f, struct mc_uuid client, const char *tenant,
                       const char *key, uint64_t size, struct mw_replicate_config config,
                       struct mc_vec *out);
int32_t put_end(struct fixture *f, const char *key);
int32_t put_end_as(struct fixture *f, struct mc_uuid client, const char *tenant, const char *key,
                   int32_t type);
int32_t put_revoke(struct fixture *f, const char *key);
int32_t put_revoke_as(struct fixture *f, struct mc_uuid client, const char *tenant, const char *key,
                      int32_t type);
int32_t put(struct fixture *f, const char *key, uint64_t size); /* start and end */
int32_t put_with(struct fixture *f, const char *key, uint64_t size,
                 struct mw_replicate_config config);
int32_t upsert_start(struct fixture *f, const char *key, uint64_t size,
                     struct mw_replicate_config config, struct mc_vec *out);

int32_t get(struct fixture *f, const char *key); /* the error */
int32_t get_list(struct fixture *f, const char *tenant, const char *key,
                 struct mw_replica_list *out);
bool exists(struct fixture *f, const char *key);
bool peek(struct fixture *f, const char *key); /* readable, without a lease */
int32_t remove_key(struct fixture *f, const char *key, bool force);
int64_t remove_all(struct fixture *f, const char *tenant, bool force);
int32_t unmount(struct fixture *f, struct mc_uuid id);
int32_t ping(struct fixture *f, struct mc_uuid client); /* enum mc_client_status */
int32_t remount(struct fixture *f, struct mc_uuid client, struct mw_segment *segments,
                size_t count);

void call(struct fixture *f, enum mc_master_rpc rpc, const void *args, void *ret);
uint64_t used_bytes(struct fixture *f);
uint64_t key_count(struct fixture *f);
/* The value of a metric as the registry prints it; fails the test when it is not there. */
int64_t metric(struct fixture *f, const char *name);
struct mc_str str(const char *text);
/* A vector over an array of C strings, in the fixture's arena. */
struct mc_vec strs(struct fixture *f, size_t count, const char *const *texts);

#endif

/* What has to hold for every metadata service whose records have leases. */
#ifndef MC_TESTS_META_STORE_SCENARIOS_H
#define MC_TESTS_META_STORE_SCENARIOS_H

#include "meta/meta.h"
#include "support/services.h"
#include "unit/te/te_support.h"

#define SHORT_LEASE_S "2"
#define LIVE_LEASE_S  4 /* three renewals: a slow machine may miss two */

struct store_world {
    struct mc_test_service service;
    const struct mc_meta_kv_ops *ops;
};

/* To be called first in main: with arguments, this process is a publisher that waits to be killed.
 */
void store_be_publisher(int argc, char **argv);
/* For cmocka: opens the world of the kind; state is a struct store_world *. */
int store_set_up_etcd(void **state);
int store_set_up_redis(void **state);
int store_tear_down(void **state);

struct mc_meta_kv *store_open(const struct store_world *w, uint32_t lease_s);
/* The service holds something with `part` in it under the key. */
bool store_holds(const struct store_world *w, const char *key, const char *part);
enum mc_status store_engine(const char *url, const char *name, struct mc_engine **out);

void engines_meet_by_name(void **state);
void a_live_engine_keeps_its_name(void **state);
void a_dead_engines_name_is_taken_over(void **state);
void clusters_have_a_prefix(void **state);
void of_many_that_claim_one_wins(void **state);
void a_live_engine_outlives_its_lease(void **state);
void records_of_a_killed_publisher_go(void **state);
void a_lasting_record_stays(void **state);
void what_a_restarted_service_lost_comes_back(void **state);
void a_service_that_is_away_is_an_error_and_its_return_is_noticed(void **state);
void a_full_service_refuses_and_forgets_nobody(void **state);
void a_broken_connection_is_not_noticed(void **state);
void the_next_endpoint_is_asked(void **state);
void answers_that_are_no_answers_are_errors(void **state);

#define STORE_SCENARIO(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, store_tear_down)
#define STORE_SCENARIOS(set_up)                                                                    \
    STORE_SCENARIO(engines_meet_by_name, set_up),                                                  \
        STORE_SCENARIO(a_live_engine_keeps_its_name, set_up),                                      \
        STORE_SCENARIO(a_dead_engines_name_is_taken_over, set_up),                                 \
        STORE_SCENARIO(clusters_have_a_prefix, set_up),                                            \
        STORE_SCENARIO(of_many_that_claim_one_wins, set_up),                                       \
        STORE_SCENARIO(a_live_engine_outlives_its_lease, set_up),                                  \
        STORE_SCENARIO(records_of_a_killed_publisher_go, set_up),                                  \
        STORE_SCENARIO(a_lasting_record_stays, set_up),                                            \
        STORE_SCENARIO(what_a_restarted_service_lost_comes_back, set_up),                          \
        STORE_SCENARIO(a_service_that_is_away_is_an_error_and_its_return_is_noticed, set_up),      \
        STORE_SCENARIO(a_full_service_refuses_and_forgets_nobody, set_up),                         \
        STORE_SCENARIO(the_next_endpoint_is_asked, set_up),                                        \
        STORE_SCENARIO(answers_that_are_no_answers_are_errors, set_up)

#endif

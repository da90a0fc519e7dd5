/* Real metadata services (etcd, Redis) for tests: on loopback, with a directory of their own. */
#ifndef MC_TESTS_SERVICES_H
#define MC_TESTS_SERVICES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum mc_test_service_kind { MC_TEST_ETCD, MC_TEST_REDIS };

struct mc_test_service {
    enum mc_test_service_kind kind;
    uint16_t port, peer_port;
    pid_t pid; /* 0 = not running */
    char directory[64];
    char url[64];
    const char *arguments[8]; /* more than the usual; NULL-terminated */
    bool secure; /* with TLS, by the arguments (Redis: ours is --tls-port); clients' is in the
                    environment */
};

/* Prints why and exits with 77 where the program is not installed. */
void mc_test_service_need(enum mc_test_service_kind kind);
/* Chooses ports, starts, waits until it serves. */
void mc_test_service_start(struct mc_test_service *service, enum mc_test_service_kind kind);
/* Again on the same port. */
void mc_test_service_run(struct mc_test_service *service);
void mc_test_service_kill(struct mc_test_service *service); /* SIGKILL */
void mc_test_service_forget(
    struct mc_test_service *service); /* its data, while it is not running */
/* While it runs: it takes no records (etcd: the alarm that its database is full; Redis: maxmemory),
 * or takes them again. */
void mc_test_service_set_full(const struct mc_test_service *service, bool full);
void mc_test_service_stop(struct mc_test_service *service); /* kill, forget */

#endif

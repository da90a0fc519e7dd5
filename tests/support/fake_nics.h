/*
 * NICs that are memory: a provider (te/transport/rdma_provider.h) whose queue pairs copy inside the
 * process. For tests of everything above verbs; it is strict where hardware is: queue pairs must be
 * connected to each other, keys and ranges are checked, an error stops a queue pair and flushes the
 * rest, queue pairs with work in flight must not be destroyed.
 *
 * There are eight, nic0 .. nic7, in pairs: nic0 reaches only nic1, nic2 only nic3, ...
 */
#ifndef MC_TESTS_FAKE_NICS_H
#define MC_TESTS_FAKE_NICS_H

#include "te/transport/rdma.h"

#define FAKE_NICS 8

extern const struct rdma_provider fake_nics_provider;
/* The rdma transport over it. */
extern const struct mc_transport_ops fake_nics_ops;

/* The wire of a pair: down fails what is posted at either end and tells both. */
void fake_nics_link(const char *nic, bool up);
/* Holds work requests in flight until released (then they go) or flushed. */
void fake_nics_hold(bool hold);
/* Bytes that the NIC's queue pairs have moved. */
uint64_t fake_nics_bytes(const char *nic);
/* Queue pairs of all NICs. */
size_t fake_nics_queue_pairs(void);
/* Largest number so far on one NIC; starts anew with the call. */
size_t fake_nics_peak(const char *nic);
/* Makes registrations on the NIC fail with an errno value; 0 = not. */
void fake_nics_refuse_regions(const char *nic, int error);
/* Registrations with the NIC, those with relaxed ordering or the others. */
size_t fake_nics_regions(const char *nic, bool relaxed);

/* Calls `hook`, once, from the thread that destroys the NIC's next queue pair, when that one is
 * gone. */
void fake_nics_after_destroy(const char *nic, void (*hook)(void *), void *arg);

#endif

/*
 * What the fabric transport needs of libfabric, and nothing more: devices with one reliable
 * datagram endpoint each, memory regions, one-sided reads and writes, completions.
 *
 * As with rdma_provider.h, the transport is compiled into every program and libfabric is reached
 * through this table, which the module transport-fabric.so fills. The two are built together: the
 * table's version and size must match exactly.
 *
 * Functions that return int give 0 or a positive errno value. A device's endpoint may be replaced
 * (`reset`), which is the one way to make a provider forget memory; regions stay.
 */
#ifndef MC_TE_TRANSPORT_FABRIC_PROVIDER_H
#define MC_TE_TRANSPORT_FABRIC_PROVIDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FABRIC_PROVIDER_VERSION 1
#define FABRIC_PROVIDER_SYMBOL  "mc_fabric_provider"
#define FABRIC_NAME_MAX         64
#define FABRIC_ADDRESS_MAX      64

struct fabric_device; /* the provider's */
struct fabric_region;

struct fabric_device_info {
    char name[FABRIC_NAME_MAX];          /* of the domain */
    char provider[FABRIC_NAME_MAX];      /* "efa", "tcp;ofi_rxm" */
    uint8_t address[FABRIC_ADDRESS_MAX]; /* that peers read and write at */
    size_t address_length;
    uint64_t max_message;
    bool virtual_addresses; /* peers name remote memory by its address; else by its offset */
    uint64_t bits_a_second; /* 0 = unknown */
    char pci[16];           /* "" = unknown */
};

struct fabric_op {
    void *context; /* comes back with the completion; not NULL */
    bool write;
    void *local;
    size_t length;
    const struct fabric_region *region; /* that holds `local` */
    uint64_t peer;
    uint64_t remote; /* address, or offset in the remote region */
    uint64_t key;
};

enum fabric_error { FABRIC_OK, FABRIC_UNREACHABLE, FABRIC_DENIED, FABRIC_TIMEOUT, FABRIC_FAILED };
struct fabric_completion {
    void *context;
    enum fabric_error error;
    int code; /* the provider's, for the log */
};

struct fabric_provider {
    uint32_t version;
    uint32_t size; /* of this struct */
    /* Opens the devices of a provider, those of one address where `host` is not NULL; *count of at
     * most `capacity`. */
    int (*open)(const char *provider, const char *host, struct fabric_device **devices,
                size_t capacity, size_t *count);
    void (*close)(struct fabric_device *device);
    void (*info)(const struct fabric_device *device, struct fabric_device_info *info);
    /* `key` is taken where the provider lets us choose; *key is what peers use. */
    int (*region_create)(struct fabric_device *device, void *addr, size_t length, bool remote,
                         struct fabric_region **out, uint64_t *key);
    int (*region_destroy)(struct fabric_region *region);
    /* Of the endpoint for own operations: a reset forgets peers. */
    int (*peer_add)(struct fabric_device *device, const uint8_t *address, uint64_t *peer);
    /* EAGAIN: later. */
    int (*post)(struct fabric_device *device, const struct fabric_op *op);
    /* Moves on what peers do here as well. How many; never waits. */
    size_t (*poll)(struct fabric_device *device, struct fabric_completion *completions,
                   size_t capacity);
    /* Readable when poll() has something to do, after arm() has said so (EAGAIN: poll first); -1
     * where the provider has no such thing. */
    int (*fds)(const struct fabric_device *device, int fds[2]);
    int (*arm)(struct fabric_device *device);
    /* A new endpoint for own operations; what was posted on the old one touches nothing any more
     * and does not complete. Nobody is inside post() or poll(). */
    int (*reset)(struct fabric_device *device);
};

typedef const struct fabric_provider *(*fabric_provider_fn)(void);

#endif

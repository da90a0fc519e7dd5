/*
 * What an engine with libfabric devices says of them in its descriptor, as `mooncake_c.fabric`:
 *
 *   {"provider": "efa", "devices": [["<address in hex>", true]],
 *    "regions": [[addr, length, key of each device ...] ...]}
 *
 * A device's boolean says whether its peers name remote memory by address or by offset.
 */
#ifndef MC_WIRE_SEGMENT_DESC_FABRIC_H
#define MC_WIRE_SEGMENT_DESC_FABRIC_H

#include "base/base.h"

#define MC_FABRIC_DEVICES_MAX 16
#define MC_FABRIC_ADDRESS_MAX 64

struct mc_fabric_device_desc {
    uint8_t address[MC_FABRIC_ADDRESS_MAX];
    size_t address_length;
    bool virtual_addresses;
};
struct mc_fabric_region_desc {
    uint64_t addr;
    uint64_t length;
    uint64_t keys[MC_FABRIC_DEVICES_MAX];
};
struct mc_fabric_desc {
    char provider[64];
    size_t device_count; /* at least 1 when decoded */
    struct mc_fabric_device_desc devices[MC_FABRIC_DEVICES_MAX];
    size_t region_count;
    struct mc_fabric_region_desc *regions; /* sorted by address */
};

/* Adds the member to `ours`, a jansson object. */
void mc_fabric_desc_encode(const struct mc_fabric_desc *desc, void *ours);
/* NULL without *why: the engine has none. With *why: the descriptor is not acceptable. */
struct mc_fabric_desc *mc_fabric_desc_decode(const void *ours, const char **why);
void mc_fabric_desc_free(struct mc_fabric_desc *desc); /* NULL is allowed */
/* The region that holds the range, or NULL. */
const struct mc_fabric_region_desc *mc_fabric_desc_find(const struct mc_fabric_desc *desc,
                                                        uint64_t addr, uint64_t length);

#endif

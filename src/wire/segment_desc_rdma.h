/* Private to wire: the RDMA members of a segment descriptor. */
#ifndef MC_WIRE_SEGMENT_DESC_RDMA_H
#define MC_WIRE_SEGMENT_DESC_RDMA_H

#include <jansson.h>

#include "wire/segment_desc.h"

/* NULL without *why: the engine has no RDMA NICs. With *why: the descriptor is not acceptable. */
struct mc_rdma_desc *mc_rdma_desc_decode(const json_t *root, const char **why);
/* Makes one buffer of those that mooncake_c.joined says belong together. */
void mc_rdma_desc_join(const json_t *root, struct mc_segment_desc *desc);

#endif

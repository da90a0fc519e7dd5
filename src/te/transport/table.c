/* What this build has, cheapest first by habit; costs decide. */
#include "te/te.h"

extern const struct mc_transport_ops mc_transport_local_ops;
extern const struct mc_transport_ops mc_transport_shm_ops;
extern const struct mc_transport_ops mc_transport_rdma_ops;
extern const struct mc_transport_ops mc_transport_file_ops;
extern const struct mc_transport_ops mc_transport_tcp_ops;
extern const struct mc_transport_ops mc_transport_stage_ops;
extern const struct mc_transport_ops mc_transport_fabric_ops;

const struct mc_transport_ops *const mc_transport_table[] = {
    &mc_transport_local_ops,  &mc_transport_shm_ops,  &mc_transport_rdma_ops,
    &mc_transport_fabric_ops, &mc_transport_file_ops, &mc_transport_tcp_ops,
    &mc_transport_stage_ops,
};
const size_t mc_transport_count = MC_ARRAY_LEN(mc_transport_table);

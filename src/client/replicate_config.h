/*
 * What a caller asks of a put, as it goes to a master or to a node that puts for a dummy client.
 */
#ifndef MC_CLIENT_REPLICATE_CONFIG_H
#define MC_CLIENT_REPLICATE_CONFIG_H

#include "mooncake/store.h"
#include "wire/master_rpc.h"

struct mc_vec mc_wire_strings(struct mc_arena *arena, const char *const *list, size_t count);
/* All but the groups and the host, which are not in it for every call; config may be NULL. */
void mc_wire_replicate_config(struct mc_arena *arena, const struct mc_replicate_config *config,
                              struct mw_replicate_config *wire);
/* It asks for what only our master knows. */
bool mc_replicate_config_is_ours(const struct mc_replicate_config *config);
/* MC_INVALID_PARAMS when arrays of the configuration have not one entry a key. */
MC_MUST_USE enum mc_status mc_replicate_config_check(const struct mc_replicate_config *config,
                                                     size_t keys);
static inline bool mc_replicate_config_compares(const struct mc_replicate_config *config) {
    return config != NULL &&
           (config->condition == MC_PUT_IF_VERSION || config->condition == MC_PUT_IF_CHECKSUM);
}

#endif

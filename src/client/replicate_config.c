#include "client/replicate_config.h"

struct mc_vec mc_wire_strings(struct mc_arena *arena, const char *const *list, size_t count) {
    struct mc_str *out = mc_arena_alloc(arena, count * sizeof(*out));
    for (size_t i = 0; i < count; i++) {
        out[i] = mc_str_from(list[i]);
    }
    return (struct mc_vec){out, count};
}

void mc_wire_replicate_config(struct mc_arena *arena, const struct mc_replicate_config *config,
                              struct mw_replicate_config *wire) {
    *wire = (struct mw_replicate_config){.replica_num = 1};
    if (config == NULL) {
        return;
    }
    wire->replica_num = config->replica_num != 0 ? config->replica_num : 1;
    wire->soft_pin_action = config->with_soft_pin      ? MC_SOFT_PIN_ENABLE
                            : config->without_soft_pin ? MC_SOFT_PIN_DISABLE
                                                       : MC_SOFT_PIN_PRESERVE;
    wire->soft_pin_ttl_ms =
        (struct mw_opt_u64){config->soft_pin_ttl_ms != 0, config->soft_pin_ttl_ms};
    wire->with_hard_pin = config->with_hard_pin;
    wire->prefer_alloc_in_same_node = config->prefer_same_node;
    wire->data_type = config->data_type;
    wire->preferred_segments =
        mc_wire_strings(arena, config->preferred_segments, config->preferred_segment_count);
}

bool mc_replicate_config_is_ours(const struct mc_replicate_config *config) {
    return config != NULL && (config->ttl_ms != 0 || config->condition != MC_PUT_ALWAYS);
}

enum mc_status mc_replicate_config_check(const struct mc_replicate_config *config, size_t keys) {
    if (config == NULL) {
        return MC_OK;
    }
    if (config->group_ids != NULL && config->group_id_count != keys) {
        return MC_INVALID_PARAMS;
    }
    if (mc_replicate_config_compares(config) &&
        (config->expected == NULL || config->expected_count != keys)) {
        return MC_INVALID_PARAMS;
    }
    return (unsigned)config->condition <= MC_PUT_IF_CHECKSUM ? MC_OK : MC_INVALID_PARAMS;
}

/*
 * How large the KV cache of a prefix block is, for models that people serve.
 */
#ifndef MC_CMD_PRESETS_H
#define MC_CMD_PRESETS_H

#include "base/base.h"

struct mc_model_preset {
    const char *name;
    uint64_t bytes_per_token; /* keys and values of all layers, 16-bit unless said */
    const char *note;
};

/* NULL when there is none of that name. */
const struct mc_model_preset *mc_model_preset_find(const char *name);

#endif

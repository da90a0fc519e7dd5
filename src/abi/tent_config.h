/*
 * The configuration of TENT's interface: the process's, as upstream's functions take no engine. Few
 * keys count; the rest is kept, so that a file written for upstream loads.
 */
#ifndef MC_ABI_TENT_CONFIG_H
#define MC_ABI_TENT_CONFIG_H

#include "mooncake/transfer.h"

/* Environment, file and keys put over the defaults. `texts` owns the strings in `options`; free it.
 * MC_INVALID_PARAMS after the reason was logged. */
struct tent_config_texts {
    char *metadata, *name, *host, *policy;
};
MC_MUST_USE enum mc_status tent_config_apply(struct mc_engine_options *options,
                                             struct tent_config_texts *texts);
void tent_config_free(struct tent_config_texts *texts);

#endif

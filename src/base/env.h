/*
 * Settings that the library itself takes from the environment, as upstream's does: an embedding
 * program declares no option table (options.h) for them. What cannot be used is named in the log
 * and ignored, so that a typing error neither stops a program nor passes in silence.
 */
#ifndef MC_BASE_ENV_H
#define MC_BASE_ENV_H

#include "base/base.h"

/* A number in [min, max] (mc_parse_u64); `otherwise` when it is unset, empty or not acceptable. */
uint64_t mc_env_u64(const char *name, uint64_t min, uint64_t max, uint64_t otherwise);
/* The same for mc_parse_bool. */
bool mc_env_bool(const char *name, bool otherwise);

#endif

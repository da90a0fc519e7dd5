/* What the two files of upstream's classic interface share. */
#ifndef MC_ABI_TRANSFER_ENGINE_H
#define MC_ABI_TRANSFER_ENGINE_H

#include "mooncake/error.h"

#define TE_INVALID  (-1)
#define TE_METADATA (-200)
#define TE_CONTEXT  (-202)

int te_error(enum mc_status status); /* [E] of compat/transfer_engine_c.h */
int te_code(enum mc_status status);  /* [S] */

#endif

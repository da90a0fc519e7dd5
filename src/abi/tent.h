/* What the files of TENT's interface share. */
#ifndef MC_ABI_TENT_H
#define MC_ABI_TENT_H

#include "mooncake/error.h"

/* 0, or -1 after naming the call and the reason in the log. */
int tent_result(const char *call, enum mc_status status);

#endif

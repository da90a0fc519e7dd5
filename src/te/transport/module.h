/* Modules: parts of transports that link a library which not every machine has. See module.c. */
#ifndef MC_TE_TRANSPORT_MODULE_H
#define MC_TE_TRANSPORT_MODULE_H

#include <stdbool.h>

/* Loads the first `file` whose `symbol` is accepted; it stays loaded as long as the process. */
bool mc_module_find(const char *file, const char *symbol, bool (*accept)(void *symbol, void *ctx),
                    void *ctx);

#endif

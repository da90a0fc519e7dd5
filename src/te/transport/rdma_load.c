/*
 * The module transport-rdma.so (module.c finds it), and whether looking for it is worth while. The
 * module links libibverbs.
 */
#include <dirent.h>

#include "te/transport/module.h"
#include "te/transport/rdma.h"

static bool accept(void *symbol, void *ctx) {
    const struct rdma_provider *provider = ((rdma_provider_fn)symbol)();
    bool good = provider != NULL && provider->version == RDMA_PROVIDER_VERSION &&
                provider->size == sizeof(*provider);
    *(const struct rdma_provider **)ctx = good ? provider : NULL;
    return good;
}

bool rdma_device_exists(void) {
    DIR *dir = opendir("/sys/class/infiniband");
    bool any = false;
    for (struct dirent *entry; dir != NULL && !any && (entry = readdir(dir)) != NULL;) {
        any = entry->d_name[0] != '.';
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return any;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct rdma_provider *loaded; /* a registry: set once */

static void load_once(void) {
    if (!mc_module_find("transport-rdma.so", RDMA_PROVIDER_SYMBOL, accept, &loaded)) {
        loaded = NULL;
    }
}

const struct rdma_provider *rdma_provider_load(void) {
    pthread_once(&once, load_once);
    return loaded;
}

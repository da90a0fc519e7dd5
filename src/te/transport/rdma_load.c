/*
 * Finds the module transport-rdma.so: in MC_TRANSPORT_DIR when that is set, else beside the program
 * or library that this code is in (../lib/mooncake, mooncake/, the same folder), else where the
 * installation put it. The module links libibverbs; a machine without it has no RDMA, and that is
 * all.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "te/transport/rdma.h"

#define MODULE "transport-rdma.so"

static const struct rdma_provider *adopt(void *handle, const char *path) {
    rdma_provider_fn get = (rdma_provider_fn)dlsym(handle, RDMA_PROVIDER_SYMBOL);
    const struct rdma_provider *provider = get == NULL ? NULL : get();
    if (provider == NULL || provider->version != RDMA_PROVIDER_VERSION ||
        provider->size != sizeof(*provider)) {
        mc_warn("rdma: the module is of another build path=%s", path);
        dlclose(handle);
        return NULL;
    }
    mc_debug("rdma: module loaded path=%s", path);
    return provider; /* stays loaded as long as the process */
}

static const struct rdma_provider *try_path(const char *dir, const char *below) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s%s/" MODULE, dir, below);
    if (n < 0 || (size_t)n >= sizeof(path) || access(path, R_OK) != 0) {
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        mc_info("rdma: the module does not load path=%s reason=\"%s\"", path, dlerror());
        return NULL;
    }
    return adopt(handle, path);
}

/* The folder of the file that this function is in: libmooncake.so, or the program. */
static bool own_folder(char out[PATH_MAX]) {
    Dl_info info;
    char raw[PATH_MAX];
    if (dladdr((void *)(uintptr_t)own_folder, &info) == 0 || info.dli_fname == NULL) {
        return false;
    }
    /* The program's name is as it was called, not where it is. */
    ssize_t n = strchr(info.dli_fname, '/') == NULL || strstr(info.dli_fname, ".so") == NULL
                    ? readlink("/proc/self/exe", raw, sizeof(raw) - 1)
                    : snprintf(raw, sizeof(raw), "%s", info.dli_fname);
    if (n <= 0 || (size_t)n >= sizeof(raw)) {
        return false;
    }
    raw[n] = '\0';
    if (realpath(raw, out) == NULL) {
        return false;
    }
    *strrchr(out, '/') = '\0';
    return true;
}

static const struct rdma_provider *find(void) {
    static const char *const below[] = {"/../lib/mooncake", "/mooncake", ""};
    const struct rdma_provider *provider = NULL;
    const char *dir = getenv("MC_TRANSPORT_DIR");
    char folder[PATH_MAX];
    if (dir != NULL && dir[0] != '\0') {
        provider = try_path(dir, "");
        if (provider == NULL) {
            mc_info("rdma: no " MODULE " in MC_TRANSPORT_DIR=%s", dir);
        }
        return provider;
    }
    if (own_folder(folder)) {
        for (size_t i = 0; i < MC_ARRAY_LEN(below) && provider == NULL; i++) {
            provider = try_path(folder, below[i]);
        }
    }
    return provider != NULL ? provider : try_path(MC_MODULE_DIR, "");
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
    loaded = find();
}

const struct rdma_provider *rdma_provider_load(void) {
    pthread_once(&once, load_once);
    return loaded;
}

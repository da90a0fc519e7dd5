/*
 * Finds a module: in MC_TRANSPORT_DIR when that is set, else beside the program or library that
 * this code is in (../lib/mooncake, mooncake/, the same folder), else where the installation put
 * it. A module links a vendor's library; a machine without that does without the transport, and
 * that is all.
 */
#include "te/transport/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/log.h"

struct wanted {
    const char *file;
    const char *symbol;
    bool (*accept)(void *symbol, void *ctx);
    void *ctx;
};

static bool try_path(const struct wanted *w, const char *dir, const char *below) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s%s/%s", dir, below, w->file);
    if (n < 0 || (size_t)n >= sizeof(path) || access(path, R_OK) != 0) {
        return false;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        mc_info("a module does not load path=%s reason=\"%s\"", path, dlerror());
        return false;
    }
    void *symbol = dlsym(handle, w->symbol);
    if (symbol == NULL || !w->accept(symbol, w->ctx)) {
        mc_warn("a module is of another build path=%s", path);
        dlclose(handle);
        return false;
    }
    mc_debug("module loaded path=%s", path);
    return true;
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

bool mc_module_find(const char *file, const char *symbol, bool (*accept)(void *symbol, void *ctx),
                    void *ctx) {
    static const char *const below[] = {"/../lib/mooncake", "/mooncake", ""};
    const struct wanted w = {file, symbol, accept, ctx};
    const char *dir = getenv("MC_TRANSPORT_DIR");
    char folder[PATH_MAX];
    bool found = false;
    if (dir != NULL && dir[0] != '\0') {
        found = try_path(&w, dir, "");
        if (!found) {
            mc_info("no %s in MC_TRANSPORT_DIR=%s", file, dir);
        }
        return found;
    }
    if (own_folder(folder)) {
        for (size_t i = 0; i < MC_ARRAY_LEN(below) && !found; i++) {
            found = try_path(&w, folder, below[i]);
        }
    }
    return found || try_path(&w, MC_MODULE_DIR, "");
}

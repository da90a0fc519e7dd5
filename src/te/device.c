/* What is the same for every kind of accelerator. See device.h. */
#include "te/device.h"

#include <stdio.h>

#include "base/log.h"

static const struct mc_device_ops *const kinds[] = {&mc_device_cuda_ops};

bool mc_device_present(void) {
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        if (kinds[i]->present()) {
            return true;
        }
    }
    return false;
}

bool mc_device_find(uint64_t addr, struct mc_device *device) {
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        unsigned index = 0;
        if (kinds[i]->present() && kinds[i]->owns(addr, &index) && index < MC_DEVICES_MAX) {
            *device = (struct mc_device){kinds[i], index};
            return true;
        }
    }
    return false;
}

void mc_device_location(struct mc_device device, char *out, size_t size) {
    snprintf(out, size, "%s:%u", device.ops->kind, device.index);
}

bool mc_device_is_location(const char *location) {
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        size_t len = strlen(kinds[i]->kind);
        if (strncmp(location, kinds[i]->kind, len) == 0 && location[len] == ':') {
            return true;
        }
    }
    return false;
}

enum mc_status mc_device_copy(struct mc_device_copier *copier, struct mc_device device, void *to,
                              const void *from, size_t length) {
    if (copier->ops != device.ops) { /* a process has accelerators of one kind */
        mc_device_copier_free(copier);
        copier->ops = device.ops;
    }
    void **stream = &copier->streams[device.index];
    if (*stream == NULL) {
        MC_TRY(device.ops->stream_create(device.index, stream));
    }
    return device.ops->copy(device.index, *stream, to, from, length);
}

void mc_device_copier_free(struct mc_device_copier *copier) {
    for (unsigned i = 0; i < MC_DEVICES_MAX; i++) {
        if (copier->streams[i] != NULL) {
            copier->ops->stream_destroy(i, copier->streams[i]);
        }
    }
    *copier = (struct mc_device_copier){0};
}

enum mc_status mc_device_start(struct mc_device *first, unsigned *count, struct mc_buf *why) {
    for (size_t i = 0; i < MC_ARRAY_LEN(kinds); i++) {
        mc_buf_puts(why, i > 0 ? "; " : "");
        if (kinds[i]->start(count, why) == MC_OK) {
            *first = (struct mc_device){kinds[i], 0};
            return MC_OK;
        }
    }
    return MC_NOT_SUPPORTED;
}

enum mc_status mc_device_alloc(struct mc_device device, size_t length, void **ptr) {
    return device.ops->alloc(device.index, length, ptr);
}

void mc_device_release(struct mc_device device, void *ptr) {
    device.ops->release(device.index, ptr);
}

bool mc_device_is_host(const void *ptr) {
    struct mc_device device;
    return !mc_device_present() || !mc_device_find((uint64_t)(uintptr_t)ptr, &device);
}

enum mc_status mc_device_move(void *to, const void *from, size_t length) {
    struct mc_device device;
    if (!mc_device_present() || (!mc_device_find((uint64_t)(uintptr_t)to, &device) &&
                                 !mc_device_find((uint64_t)(uintptr_t)from, &device))) {
        memcpy(to, from, length);
        return MC_OK;
    }
    struct mc_device_copier copier = {0};
    enum mc_status status = mc_device_copy(&copier, device, to, from, length);
    mc_device_copier_free(&copier);
    return status;
}

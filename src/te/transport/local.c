/*
 * Inside one engine: memcpy on the calling thread, or where one side is device memory a copy by its
 * runtime. "Inside" is the engine's own segment (id 0), never an address that looks like ours; the
 * target must be registered, and stays so while it is copied.
 */
#include "base/copy.h"
#include "te/internal.h"

struct local_transport {
    struct mc_transport base; /* first */
    pthread_mutex_t lock;     /* the copier: one copy fills a bus */
    struct mc_device_copier copier;
};

static enum mc_status local_start(struct mc_engine *engine, unsigned index,
                                  struct mc_transport **out) {
    if (mc_engine_config(engine)->disable_local) {
        return MC_NOT_SUPPORTED;
    }
    struct local_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){&mc_transport_local_ops, engine, index};
    pthread_mutex_init(&t->lock, NULL);
    *out = &t->base;
    return MC_OK;
}

static void local_stop(struct mc_transport *base) {
    struct local_transport *t = mc_container_of(base, struct local_transport, base);
    mc_device_copier_free(&t->copier);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static uint32_t local_cost(struct mc_transport *t, struct mc_segment *segment,
                           const struct mc_peer_desc *desc) {
    return segment->id == MC_LOCAL_SEGMENT ? 0 : UINT32_MAX;
}

/* The two sides may: both are the caller's. */
static bool overlap(uint64_t a, uint64_t b, uint64_t length) {
    return a < b ? b - a < length : a - b < length;
}

/* Whether one side is of a device, and then the copy's result. */
static bool copy_by_device(struct mc_transport *base, const struct mc_memory *memory,
                           const struct mc_slice_op *slice, enum mc_status *status) {
    struct local_transport *t = mc_container_of(base, struct local_transport, base);
    struct mc_device device = memory->device;
    if (!memory->on_device && ((slice->devices & MC_DEVICE_LOCAL) == 0 ||
                               !mc_device_find((uint64_t)(uintptr_t)slice->local, &device))) {
        return false;
    }
    void *remote = (void *)(uintptr_t)slice->remote;
    bool read = slice->op == MC_TRANSFER_READ;
    pthread_mutex_lock(&t->lock);
    *status = mc_device_copy(&t->copier, device, read ? slice->local : remote,
                             read ? remote : slice->local, slice->length);
    pthread_mutex_unlock(&t->lock);
    return true;
}

static void copy_one(struct mc_transport *t, struct mc_slice_op *slice) {
    struct mc_engine *engine = t->engine;
    enum mc_status status = MC_OK;
    struct mc_memory *memory = mc_memory_acquire_any(engine, slice->remote, slice->length);
    if (memory == NULL) {
        mc_slice_done(slice, MC_ERR_NOT_REGISTERED, false);
        return;
    }
    void *remote = (void *)(uintptr_t)slice->remote;
    bool read = slice->op == MC_TRANSFER_READ;
    if (copy_by_device(t, memory, slice, &status)) {
        mc_memory_release(memory);
        mc_slice_done(slice, status, false);
        return;
    }
    if (overlap((uint64_t)(uintptr_t)slice->local, slice->remote, slice->length)) {
        memmove(read ? slice->local : remote, read ? remote : slice->local, slice->length);
    } else if (read) {
        mc_copy_in(slice->local, remote, slice->length);
    } else {
        mc_copy_out(remote, slice->local, slice->length);
    }
    mc_memory_release(memory);
    mc_slice_done(slice, MC_OK, false);
}

static enum mc_status local_post(struct mc_transport *t, struct mc_slice_op **slices,
                                 size_t count) {
    for (size_t i = 0; i < count; i++) {
        copy_one(t, slices[i]);
    }
    return MC_OK;
}

const struct mc_transport_ops mc_transport_local_ops = {
    .name = "local",
    .devices = MC_DEVICE_LOCAL | MC_DEVICE_REMOTE,
    .start = local_start,
    .stop = local_stop,
    .cost = local_cost,
    .post = local_post,
};

/*
 * shm, the transport: which peers and buffers it serves, and the copies. shm.h has the picture.
 *
 * What a segment's peer offers is a `view`: an immutable sorted table of its buffers, made when the
 * segment is opened or refreshed, replaced as a whole. A post takes a reference to the view, copies
 * on the caller's thread and is done: no allocation, no lock but the segment's own for the
 * reference, no other thread.
 */
#include "te/transport/shm.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/log.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

#define COPY_CALL_BYTES (64u << 20)  /* of one process_vm_readv */
#define RUN_MAX         32           /* slices of one process_vm_readv */
#define GRANULE_BYTES   (256u << 10) /* entered in the page table at once */

struct shm_mapping { /* of a buffer's memfd; counted, because a newer view may use it too */
    _Atomic uint32_t refs;
    char *ptr;
    uint64_t length;
    struct mc_list pinned;    /* in the segment's list: mc_segment_map handed the pointer out */
    _Atomic uint8_t *entered; /* for each GRANULE_BYTES: its pages are in our page table */
};

struct shm_entry {
    uint64_t addr;
    uint64_t length;
    uint32_t slot;
    uint32_t generation;
    struct shm_mapping *mapping; /* NULL: by process_vm_readv and writev */
};

struct shm_view {
    _Atomic uint32_t refs;
    struct shm_host *host;
    size_t count;
    struct shm_entry entries[]; /* sorted by addr */
};

struct shm_segment { /* transport_state; from the first open until close */
    pthread_mutex_t lock;
    struct shm_view *view; /* NULL: the peer is not of this host, or gone */
    _Atomic bool usable;   /* view != NULL and not known dead */
    _Atomic bool complete; /* the view has all buffers of the descriptor */
    struct mc_list pinned;
};

struct shm_transport {
    struct mc_transport base;
    struct shm_owner *owner;
    char boot_id[40];
};

static struct shm_transport *shm_of(struct mc_transport *t) {
    return mc_container_of(t, struct shm_transport, base);
}

static struct shm_segment *state_of(struct mc_transport *t, struct mc_segment *segment) {
    return __atomic_load_n(&segment->transport_state[t->index], __ATOMIC_ACQUIRE);
}

/* ---- views ---- */

static void mapping_put(struct shm_mapping *mapping) {
    if (mapping != NULL &&
        atomic_fetch_sub_explicit(&mapping->refs, 1, memory_order_acq_rel) == 1) {
        munmap(mapping->ptr, mapping->length);
        free(mapping->entered);
        free(mapping);
    }
}

static void view_put(struct shm_view *view) {
    if (view == NULL || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    for (size_t i = 0; i < view->count; i++) {
        mapping_put(view->entries[i].mapping);
    }
    shm_host_put(view->host);
    free(view);
}

static struct shm_view *view_get(struct shm_segment *state) {
    pthread_mutex_lock(&state->lock);
    struct shm_view *view = state->view;
    if (view != NULL) {
        atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&state->lock);
    return view;
}

static void view_replace(struct shm_segment *state, struct shm_view *view, bool complete) {
    pthread_mutex_lock(&state->lock);
    struct shm_view *old = state->view;
    state->view = view;
    atomic_store_explicit(&state->usable, view != NULL, memory_order_relaxed);
    atomic_store_explicit(&state->complete, view != NULL && complete, memory_order_relaxed);
    pthread_mutex_unlock(&state->lock);
    view_put(old);
}

static const struct shm_entry *view_find(const struct shm_view *view, uint64_t addr,
                                         uint64_t length) {
    size_t low = 0, high = view->count;
    while (low < high) { /* the last entry that begins at or before addr */
        size_t mid = (low + high) / 2;
        if (view->entries[mid].addr <= addr) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low == 0) {
        return NULL;
    }
    const struct shm_entry *e = &view->entries[low - 1];
    return mc_range_inside(addr, length, e->addr, e->length) ? e : NULL;
}

/* The owner's slot holds what the descriptor says, now. */
static bool read_slot(const struct shm_host *host, const struct mc_peer_buffer *buffer,
                      uint32_t *generation) {
    const struct shm_slot *slot = &host->control->slots[buffer->shm_slot];
    *generation = atomic_load_explicit(&slot->generation, memory_order_acquire);
    return (*generation & 1) != 0 && slot->addr == buffer->addr && slot->length == buffer->length;
}

/* Fills the entry from the old view or by asking the owner. False: this buffer is not for shared
 * memory. */
static bool make_entry(struct shm_host *host, const struct shm_view *old,
                       const struct mc_peer_buffer *buffer, struct shm_entry *entry) {
    uint32_t generation;
    if (buffer->shm_slot < 0 || buffer->shm_slot >= (int32_t)SHM_SLOTS ||
        !read_slot(host, buffer, &generation)) {
        return false;
    }
    *entry = (struct shm_entry){buffer->addr, buffer->length, (uint32_t)buffer->shm_slot,
                                generation, NULL};
    if (!buffer->shm_mappable) {
        return host->can_copy;
    }
    const struct shm_entry *known =
        old != NULL && old->host == host ? view_find(old, buffer->addr, buffer->length) : NULL;
    if (known != NULL && known->slot == entry->slot && known->generation == generation &&
        known->mapping != NULL) {
        atomic_fetch_add_explicit(&known->mapping->refs, 1, memory_order_relaxed);
        entry->mapping = known->mapping;
        return true;
    }
    char *ptr;
    uint64_t mapped = buffer->length;
    if (shm_host_map(host, entry->slot, &mapped, &ptr, &entry->generation) != MC_OK) {
        return false;
    }
    struct shm_mapping *mapping = mc_zalloc(sizeof(*mapping));
    atomic_store_explicit(&mapping->refs, 1, memory_order_relaxed);
    mapping->ptr = ptr;
    mapping->length = mapped;
    mapping->entered = mc_zalloc((mapped - 1) / GRANULE_BYTES + 1);
    mc_list_init(&mapping->pinned);
    entry->mapping = mapping;
    return true;
}

/* ---- opening ---- */

static struct shm_segment *state_make(struct mc_transport *t, struct mc_segment *segment) {
    struct shm_segment *state = state_of(t, segment);
    if (state == NULL) {
        state = mc_zalloc(sizeof(*state));
        pthread_mutex_init(&state->lock, NULL);
        mc_list_init(&state->pinned);
        __atomic_store_n(&segment->transport_state[t->index], state, __ATOMIC_RELEASE);
    }
    return state;
}

static bool offers_shm(const struct shm_transport *shm, const struct mc_peer_desc *desc) {
    if (desc->shm_socket[0] == '\0' || shm->boot_id[0] == '\0' ||
        strcmp(desc->boot_id, shm->boot_id) != 0 ||
        mc_uuid_eq(desc->engine_id, mc_engine_id(shm->base.engine))) {
        return false;
    }
    for (size_t i = 0; i < desc->buffer_count; i++) {
        if (desc->buffers[i].shm_slot >= 0) {
            return true;
        }
    }
    return false;
}

/* The engine calls it for one segment by one thread at a time. */
static void shm_open_segment(struct mc_transport *t, struct mc_segment *segment,
                             const struct mc_peer_desc *desc) {
    struct shm_host *host = NULL;
    bool complete = true;
    if (!offers_shm(shm_of(t), desc)) {
        struct shm_segment *known = state_of(t, segment);
        if (known != NULL) {
            view_replace(known, NULL, false);
        }
        return;
    }
    struct shm_segment *state = state_make(t, segment);
    struct shm_view *old = view_get(state);
    if (old != NULL && mc_uuid_eq(old->host->engine_id, desc->engine_id) &&
        shm_host_alive(old->host)) {
        host = old->host;
        atomic_fetch_add_explicit(&host->refs, 1, memory_order_relaxed);
    } else if (shm_host_attach(desc, &host) != MC_OK) {
        view_put(old);
        view_replace(state, NULL, false);
        return;
    }
    struct shm_view *view =
        mc_zalloc(sizeof(*view) + desc->buffer_count * sizeof(view->entries[0]));
    atomic_store_explicit(&view->refs, 1, memory_order_relaxed);
    view->host = host;
    for (size_t i = 0; i < desc->buffer_count; i++) {
        if (make_entry(host, old, &desc->buffers[i], &view->entries[view->count])) {
            view->count++;
        } else {
            complete = false;
        }
    }
    view_put(old);
    view_replace(state, view, complete);
}

static void shm_forget(struct mc_transport *t, struct mc_segment *segment) {
    struct shm_segment *state = state_of(t, segment);
    if (state != NULL) {
        view_replace(state, NULL, false);
    }
}

static void shm_close(struct mc_transport *t, struct mc_segment *segment) {
    struct shm_segment *state = state_of(t, segment);
    if (state == NULL) {
        return;
    }
    while (!mc_list_empty(&state->pinned)) {
        struct shm_mapping *mapping =
            mc_container_of(state->pinned.next, struct shm_mapping, pinned);
        mc_list_del(&mapping->pinned);
        mapping_put(mapping);
    }
    pthread_mutex_destroy(&state->lock);
    free(state);
    __atomic_store_n(&segment->transport_state[t->index], NULL, __ATOMIC_RELEASE);
}

static uint32_t shm_cost(struct mc_transport *t, struct mc_segment *segment,
                         const struct mc_peer_desc *desc) {
    struct shm_segment *state = state_of(t, segment);
    return state != NULL && atomic_load_explicit(&state->usable, memory_order_relaxed) ? SHM_COST
                                                                                       : UINT32_MAX;
}

static bool shm_serves(struct mc_transport *t, struct mc_segment *segment,
                       const struct mc_slice_op *slice) {
    struct shm_segment *state = state_of(t, segment);
    if (state == NULL || atomic_load_explicit(&state->complete, memory_order_relaxed)) {
        return state != NULL;
    }
    struct shm_view *view = view_get(state);
    bool found = view != NULL && view_find(view, slice->remote, slice->length) != NULL;
    view_put(view);
    return found;
}

/* ---- copying ---- */

/* Copies by the kernel: one system call for each run of slices of one kind. */
struct kernel_run {
    size_t count;
    uint64_t bytes;
    struct iovec local[RUN_MAX];
    struct iovec remote[RUN_MAX];
    struct mc_slice_op *slices[RUN_MAX];
};

static ssize_t kernel_copy(const struct shm_host *host, enum mc_transfer_op op,
                           const struct iovec *local, const struct iovec *remote, size_t count) {
    return op == MC_TRANSFER_READ
               ? process_vm_readv(host->process.pid, local, count, remote, count, 0)
               : process_vm_writev(host->process.pid, local, count, remote, count, 0);
}

static enum mc_status copy_by_kernel(const struct shm_host *host, const struct mc_slice_op *slice) {
    uint64_t done = 0;
    while (done < slice->length) {
        size_t part = (size_t)mc_min_u64(slice->length - done, COPY_CALL_BYTES);
        struct iovec local = {slice->local + done, part};
        struct iovec remote = {(void *)(uintptr_t)(slice->remote + done), part};
        ssize_t n = kernel_copy(host, slice->op, &local, &remote, 1);
        if (n <= 0) {
            mc_warn_limited("copying between processes failed pid=%d op=%d errno=%d",
                            (int)host->process.pid, (int)slice->op, n < 0 ? errno : 0);
            return n < 0 && errno == ESRCH ? MC_ERR_CLOSED : MC_ERR_IO;
        }
        done += (uint64_t)n;
    }
    return MC_OK;
}

static void set_result(struct mc_slice_op *slice, enum mc_status status) {
    slice->transport_data[0] = (uint64_t)(int64_t)status;
}

static void run_flush(struct shm_host *host, struct kernel_run *run) {
    if (run->count == 0) {
        return;
    }
    /* A pid that was given to another process must not be written to. */
    bool alive = shm_host_alive(host);
    bool whole = alive && run->count > 1 && run->bytes <= COPY_CALL_BYTES &&
                 kernel_copy(host, run->slices[0]->op, run->local, run->remote, run->count) ==
                     (ssize_t)run->bytes;
    for (size_t i = 0; i < run->count; i++) { /* one by one to learn whose fault it was */
        set_result(run->slices[i], whole   ? MC_OK
                                   : alive ? copy_by_kernel(host, run->slices[i])
                                           : MC_ERR_CLOSED);
    }
    run->count = 0;
    run->bytes = 0;
}

static void run_add(struct shm_host *host, struct kernel_run *run, struct mc_slice_op *slice) {
    if (run->count == RUN_MAX || (run->count > 0 && run->slices[0]->op != slice->op)) {
        run_flush(host, run);
    }
    run->local[run->count] = (struct iovec){slice->local, slice->length};
    run->remote[run->count] = (struct iovec){(void *)(uintptr_t)slice->remote, slice->length};
    run->slices[run->count++] = slice;
    run->bytes += slice->length;
}

/* A write to a page that our page table lacks costs a fault of its own; reading faults enter 64 KiB
 * at once, and one call enters many. Without it a client's first pass over a node's memory runs at
 * half the speed. Only a hint: two threads may do the same, and a kernel that cannot is asked once
 * a granule. */
static void enter_pages(struct shm_mapping *mapping, uint64_t offset, uint64_t length) {
    for (uint64_t g = offset / GRANULE_BYTES; g * GRANULE_BYTES < offset + length; g++) {
        if (atomic_load_explicit(&mapping->entered[g], memory_order_relaxed) == 0) {
            uint64_t at = g * GRANULE_BYTES;
            (void)madvise(mapping->ptr + at, mc_min_u64(GRANULE_BYTES, mapping->length - at),
                          MADV_POPULATE_READ);
            atomic_store_explicit(&mapping->entered[g], 1, memory_order_relaxed);
        }
    }
}

static void copy_all(const struct shm_view *view, struct mc_slice_op **slices, size_t count) {
    struct kernel_run run;
    run.count = 0;
    run.bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct mc_slice_op *slice = slices[i];
        const struct shm_entry *e = view_find(view, slice->remote, slice->length);
        if (e == NULL || !shm_host_slot_is(view->host, e->slot, e->generation)) {
            set_result(slice, MC_ERR_NOT_REGISTERED);
            continue;
        }
        if (e->mapping == NULL) {
            run_add(view->host, &run, slice);
            continue;
        }
        char *remote = e->mapping->ptr + (slice->remote - e->addr);
        if (slice->op == MC_TRANSFER_READ) {
            mc_copy_in(slice->local, remote, slice->length);
        } else {
            enter_pages(e->mapping, slice->remote - e->addr, slice->length);
            mc_copy_out(remote, slice->local, slice->length);
        }
        set_result(slice, MC_OK);
    }
    run_flush(view->host, &run);
}

static enum mc_status shm_post(struct mc_transport *t, struct mc_slice_op **slices, size_t count) {
    struct shm_segment *state = state_of(t, slices[0]->segment);
    struct shm_view *view = state == NULL ? NULL : view_get(state);
    if (view == NULL) {
        return MC_ERR_UNREACHABLE;
    }
    struct shm_host *host = view->host;
    uint32_t token = shm_host_enter(host);
    /* Sequentially consistent, as the check of a slot: the owner closes first and looks at the
     * counters second. */
    bool alive = atomic_load(&host->control->state) == SHM_OPEN;
    if (alive) {
        copy_all(view, slices, count);
    }
    shm_host_leave(host, token);
    /* Only now is it known that the bytes came from, or reached, a process that lives. */
    alive = alive && shm_host_alive(host);
    if (!alive) {
        atomic_store_explicit(&state->usable, false, memory_order_relaxed);
    }
    view_put(view);
    size_t arrived = 0;
    for (size_t i = 0; i < count; i++) {
        enum mc_status status =
            alive ? (enum mc_status)(int64_t)slices[i]->transport_data[0] : MC_ERR_CLOSED;
        if (status == MC_OK) {
            slices[arrived++] = slices[i];
        } else {
            mc_slice_done(slices[i], status, false);
        }
    }
    if (arrived > 0) {
        mc_slices_arrived(slices, arrived);
    }
    return MC_OK;
}

static const void *shm_map(struct mc_transport *t, struct mc_segment *segment, uint64_t addr,
                           uint64_t length) {
    struct shm_segment *state = state_of(t, segment);
    struct shm_view *view = state == NULL ? NULL : view_get(state);
    if (view == NULL) {
        return NULL;
    }
    const struct shm_entry *e = view_find(view, addr, length);
    const void *ptr = NULL;
    if (e != NULL && e->mapping != NULL && shm_host_alive(view->host) &&
        shm_host_slot_is(view->host, e->slot, e->generation)) {
        ptr = e->mapping->ptr + (addr - e->addr);
        pthread_mutex_lock(&state->lock);
        if (mc_list_empty(&e->mapping->pinned)) { /* it stays until the segment is closed */
            atomic_fetch_add_explicit(&e->mapping->refs, 1, memory_order_relaxed);
            mc_list_push_back(&state->pinned, &e->mapping->pinned);
        }
        pthread_mutex_unlock(&state->lock);
    }
    view_put(view);
    return ptr;
}

/* ---- start and stop ---- */

static void shm_describe(struct mc_transport *t, void *json_object) {
    json_t *ours = json_object_get(json_object, "mooncake_c");
    MC_ASSERT(json_object_set_new(ours, "shm_socket",
                                  json_string(shm_owner_socket(shm_of(t)->owner))) == 0);
}

static void shm_memory_added(struct mc_transport *t, struct mc_memory *memory) {
    if (memory->remote && !memory->on_device) {
        shm_owner_add(shm_of(t)->owner, memory);
    }
}

static void shm_memory_removed(struct mc_transport *t, struct mc_memory *memory) {
    if (memory->remote && !memory->on_device) {
        shm_owner_remove(shm_of(t)->owner, memory);
    }
}

static enum mc_status shm_start(struct mc_engine *engine, unsigned index,
                                struct mc_transport **out) {
    if (mc_engine_config(engine)->disable_shm) {
        return MC_NOT_SUPPORTED;
    }
    struct shm_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){&mc_transport_shm_ops, engine, index};
    snprintf(t->boot_id, sizeof(t->boot_id), "%s", mc_engine_boot_id(engine));
    enum mc_status status = shm_owner_start(engine, &t->owner);
    if (status != MC_OK) {
        mc_info("shared memory is not available status=%s", mc_status_name(status));
        free(t);
        return MC_NOT_SUPPORTED;
    }
    *out = &t->base;
    return MC_OK;
}

static void shm_stop(struct mc_transport *t) {
    shm_owner_stop(shm_of(t)->owner);
    free(shm_of(t));
}

const struct mc_transport_ops mc_transport_shm_ops = {
    .name = "shm",
    .start = shm_start,
    .stop = shm_stop,
    .describe = shm_describe,
    .memory_added = shm_memory_added,
    .memory_removed = shm_memory_removed,
    .cost = shm_cost,
    .serves = shm_serves,
    .open = shm_open_segment,
    .post = shm_post,
    .forget = shm_forget,
    .close = shm_close,
    .map = shm_map,
};

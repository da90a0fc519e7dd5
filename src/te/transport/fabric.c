/*
 * The fabric transport: one-sided reads and writes by libfabric, EFA in production.
 *
 * A device (a domain of libfabric) is a rail. Endpoints are reliable datagrams: there is nothing to
 * connect, a peer is an address in its descriptor (wire/segment_desc_fabric.h), and its memory keys
 * of regions there. What is posted can not be taken back one by one, so giving up a slice replaces
 * the endpoint for own operations, and with it everything that is in flight on the device: others'
 * slices are retried. The endpoint that peers address stays.
 *
 * Each device has a lock, for posting, polling and replacing, and a thread that polls when no
 * waiter does: providers move peers' operations only while somebody polls.
 */
#include "te/transport/fabric_provider.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/thread.h"
#include "te/internal.h"
#include "te/transport/module.h"
#include "wire/segment_desc_fabric.h"

#define SLICE_BYTES  (1ull << 20)
#define COST         60
#define DONE_MAX     64
#define SPIN_NS      50000
#define IDLE_POLL_US 50   /* of providers that have nothing to wait for */
#define WAIT_MS      1000 /* at most, in case a provider's descriptor misses something */

struct range { /* of registered memory */
    uint64_t addr, length;
    bool remote;
    struct fabric_region *regions[MC_FABRIC_DEVICES_MAX];
    uint64_t keys[MC_FABRIC_DEVICES_MAX];
};

struct peer { /* transport_state; counted by its segment and by slices */
    _Atomic uint32_t refs;
    const struct mc_peer_desc *desc; /* a reference, for its regions */
    /* By own device, under its lock: the peer's address there, of that generation of endpoint. */
    uint64_t generation[MC_FABRIC_DEVICES_MAX];
    uint64_t address[MC_FABRIC_DEVICES_MAX];
};

struct device {
    struct fabric_transport *t;
    unsigned index;
    struct fabric_device *device;
    struct fabric_device_info info;
    pthread_t thread;
    bool started;
    int wake_fd;
    pthread_mutex_t lock;   /* the rest */
    uint64_t generation;    /* of the endpoint for own operations; from 1 */
    struct mc_list waiting; /* not wholly posted; the first may be in part */
    struct mc_list flights;
    bool broken; /* no endpoint could be made after a reset */
    struct mc_metric resets;
};

struct fabric_transport {
    struct mc_transport base; /* first */
    const struct fabric_provider *provider;
    struct device devices[MC_FABRIC_DEVICES_MAX];
    unsigned count;
    _Atomic bool stop;
    pthread_mutex_t peers_lock;   /* transport_state of segments */
    pthread_rwlock_t memory_lock; /* the rest */
    struct range **ranges;        /* sorted by address */
    size_t range_count, range_cap;
};

struct flight { /* in transport_data */
    struct peer *peer;
    uint64_t posted;
    uint32_t outstanding; /* operations */
    int32_t status;
    uint64_t generation; /* of the endpoint on which it was posted */
};
_Static_assert(sizeof(struct flight) <= sizeof(((struct mc_slice_op *)0)->transport_data),
               "a flight lies in its slice");

static struct flight *flight_of(struct mc_slice_op *slice) {
    return (struct flight *)slice->transport_data;
}
static struct fabric_transport *fabric_of(struct mc_transport *t) {
    return mc_container_of(t, struct fabric_transport, base);
}

/* ---- peers ---- */

static void peer_put(struct peer *peer) {
    if (peer != NULL && atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) == 1) {
        mc_peer_desc_put((struct mc_peer_desc *)(uintptr_t)peer->desc);
        free(peer);
    }
}

static struct peer *peer_get(struct fabric_transport *t, struct mc_segment *segment) {
    pthread_mutex_lock(&t->peers_lock);
    struct peer *peer = segment->transport_state[t->base.index];
    if (peer != NULL) {
        atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&t->peers_lock);
    return peer;
}

static void peer_swap(struct fabric_transport *t, struct mc_segment *segment, struct peer *peer) {
    pthread_mutex_lock(&t->peers_lock);
    struct peer *old = segment->transport_state[t->base.index];
    segment->transport_state[t->base.index] = peer;
    pthread_mutex_unlock(&t->peers_lock);
    peer_put(old);
}

/* Which of the peer's devices ours talks to. */
static unsigned remote_of(const struct device *d, const struct mc_fabric_desc *desc) {
    return d->index % desc->device_count;
}

static bool speaks_with(const struct fabric_transport *t, const struct mc_peer_desc *desc) {
    return desc->fabric != NULL && desc->fabric->device_count > 0 &&
           strcmp(desc->fabric->provider, t->devices[0].info.provider) == 0;
}

/* A new descriptor of the same endpoints: their addresses are known already. */
static void inherit(struct fabric_transport *t, struct mc_segment *segment, struct peer *peer) {
    struct peer *old = peer_get(t, segment);
    for (unsigned i = 0; old != NULL && i < t->count; i++) {
        struct device *d = &t->devices[i];
        const struct mc_fabric_device_desc *a =
            &old->desc->fabric->devices[remote_of(d, old->desc->fabric)];
        const struct mc_fabric_device_desc *b =
            &peer->desc->fabric->devices[remote_of(d, peer->desc->fabric)];
        if (a->address_length == b->address_length &&
            memcmp(a->address, b->address, a->address_length) == 0) {
            pthread_mutex_lock(&d->lock);
            peer->generation[i] = old->generation[i];
            peer->address[i] = old->address[i];
            pthread_mutex_unlock(&d->lock);
        }
    }
    peer_put(old);
}

static void fabric_open(struct mc_transport *base, struct mc_segment *segment,
                        const struct mc_peer_desc *desc) {
    struct fabric_transport *t = fabric_of(base);
    struct peer *peer = NULL;
    if (speaks_with(t, desc)) {
        peer = mc_zalloc(sizeof(*peer));
        atomic_store_explicit(&peer->refs, 1, memory_order_relaxed);
        peer->desc = mc_segment_desc(segment);
        if (!speaks_with(t, peer->desc)) { /* replaced meanwhile; open() comes again */
            peer_put(peer);
            peer = NULL;
        }
    }
    if (peer != NULL) {
        inherit(t, segment, peer);
    }
    peer_swap(t, segment, peer);
}

/* ---- memory ---- */

static size_t lower_bound_locked(const struct fabric_transport *t, uint64_t addr) {
    size_t low = 0, high = t->range_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (t->ranges[mid]->addr + t->ranges[mid]->length > addr) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

static const struct range *find_locked(const struct fabric_transport *t, uint64_t addr,
                                       uint64_t length) {
    size_t i = lower_bound_locked(t, addr);
    return i < t->range_count &&
                   mc_range_inside(addr, length, t->ranges[i]->addr, t->ranges[i]->length)
               ? t->ranges[i]
               : NULL;
}

static void range_free(struct fabric_transport *t, struct range *range) {
    for (unsigned i = 0; i < t->count; i++) {
        int error = range->regions[i] == NULL ? 0 : t->provider->region_destroy(range->regions[i]);
        if (error != 0) {
            mc_warn("fabric: a region does not go addr=0x%llx error=%d",
                    (unsigned long long)range->addr, error);
        }
    }
    free(range);
}

static void fabric_memory_added(struct mc_transport *base, struct mc_memory *memory) {
    struct fabric_transport *t = fabric_of(base);
    if (memory->on_device) {
        return;
    }
    struct range *range = mc_zalloc(sizeof(*range));
    *range =
        (struct range){.addr = memory->addr, .length = memory->length, .remote = memory->remote};
    for (unsigned i = 0; i < t->count; i++) {
        int error = t->provider->region_create(t->devices[i].device,
                                               (void *)(uintptr_t)memory->addr, memory->length,
                                               memory->remote, &range->regions[i], &range->keys[i]);
        if (error != 0) {
            mc_warn("fabric: memory is not registered, other transports serve it: device=%s "
                    "addr=0x%llx length=%llu error=%d",
                    t->devices[i].info.name, (unsigned long long)memory->addr,
                    (unsigned long long)memory->length, error);
            range_free(t, range);
            return;
        }
    }
    pthread_rwlock_wrlock(&t->memory_lock);
    size_t at = lower_bound_locked(t, memory->addr);
    bool overlaps = at < t->range_count && t->ranges[at]->addr < memory->addr + memory->length;
    if (!overlaps) {
        if (t->range_count == t->range_cap) {
            t->range_cap = t->range_cap == 0 ? 64 : t->range_cap * 2;
            t->ranges = mc_realloc(t->ranges, t->range_cap * sizeof(t->ranges[0]));
        }
        memmove(&t->ranges[at + 1], &t->ranges[at], (t->range_count - at) * sizeof(t->ranges[0]));
        t->ranges[at] = range;
        t->range_count++;
    }
    pthread_rwlock_unlock(&t->memory_lock);
    if (overlaps) { /* the engine is about to refuse it */
        range_free(t, range);
    }
}

static void fabric_memory_removed(struct mc_transport *base, struct mc_memory *memory) {
    struct fabric_transport *t = fabric_of(base);
    struct range *range = NULL;
    pthread_rwlock_wrlock(&t->memory_lock);
    size_t at = lower_bound_locked(t, memory->addr);
    if (at < t->range_count && t->ranges[at]->addr == memory->addr &&
        t->ranges[at]->length == memory->length) {
        range = t->ranges[at];
        t->range_count--;
        memmove(&t->ranges[at], &t->ranges[at + 1], (t->range_count - at) * sizeof(t->ranges[0]));
    }
    pthread_rwlock_unlock(&t->memory_lock);
    if (range != NULL) {
        /* Providers that work in software look the key up while they poll: not in the midst. */
        for (unsigned i = 0; i < t->count; i++) {
            pthread_mutex_lock(&t->devices[i].lock);
        }
        range_free(t, range);
        for (unsigned i = 0; i < t->count; i++) {
            pthread_mutex_unlock(&t->devices[i].lock);
        }
    }
}

static void fabric_describe(struct mc_transport *base, void *json_object) {
    struct fabric_transport *t = fabric_of(base);
    struct mc_fabric_desc desc = {.device_count = t->count};
    snprintf(desc.provider, sizeof(desc.provider), "%s", t->devices[0].info.provider);
    for (unsigned i = 0; i < t->count; i++) {
        const struct fabric_device_info *info = &t->devices[i].info;
        desc.devices[i].address_length = info->address_length;
        desc.devices[i].virtual_addresses = info->virtual_addresses;
        memcpy(desc.devices[i].address, info->address, info->address_length);
    }
    pthread_rwlock_rdlock(&t->memory_lock);
    desc.regions = mc_zalloc((t->range_count + 1) * sizeof(*desc.regions));
    for (size_t i = 0; i < t->range_count; i++) {
        if (t->ranges[i]->remote) {
            struct mc_fabric_region_desc *r = &desc.regions[desc.region_count++];
            r->addr = t->ranges[i]->addr;
            r->length = t->ranges[i]->length;
            memcpy(r->keys, t->ranges[i]->keys, sizeof(r->keys));
        }
    }
    pthread_rwlock_unlock(&t->memory_lock);
    mc_fabric_desc_encode(&desc, json_object_get(json_object, "mooncake_c"));
    free(desc.regions);
}

/* ---- choosing ---- */

static uint32_t fabric_cost(struct mc_transport *base, struct mc_segment *segment,
                            const struct mc_peer_desc *desc) {
    return segment->id != MC_LOCAL_SEGMENT && speaks_with(fabric_of(base), desc) ? COST
                                                                                 : UINT32_MAX;
}

static bool fabric_serves(struct mc_transport *base, struct mc_segment *segment,
                          const struct mc_slice_op *slice) {
    struct fabric_transport *t = fabric_of(base);
    struct peer *peer = peer_get(t, segment);
    bool serves = peer != NULL &&
                  mc_fabric_desc_find(peer->desc->fabric, slice->remote, slice->length) != NULL;
    peer_put(peer);
    pthread_rwlock_rdlock(&t->memory_lock);
    serves = serves && find_locked(t, (uint64_t)(uintptr_t)slice->local, slice->length) != NULL;
    pthread_rwlock_unlock(&t->memory_lock);
    return serves;
}

static unsigned fabric_rails(struct mc_transport *base, struct mc_rail_info *rails,
                             unsigned capacity) {
    struct fabric_transport *t = fabric_of(base);
    for (unsigned i = 0; i < t->count && i < capacity; i++) {
        const struct fabric_device_info *info = &t->devices[i].info;
        rails[i] = (struct mc_rail_info){
            .numa_node = -1, .bandwidth = info->bits_a_second / 8, .up = true};
        snprintf(rails[i].name, sizeof(rails[i].name), "%s", info->name);
        snprintf(rails[i].pci, sizeof(rails[i].pci), "%s", info->pci);
    }
    return t->count;
}

/* ---- moving; a device's lock is held ---- */

/* Ends, unlocked, what was collected. */
struct ended {
    size_t count;
    struct mc_slice_op *slices[DONE_MAX];
    enum mc_status statuses[DONE_MAX];
    bool retryable[DONE_MAX];
};

static void collect(struct ended *e, struct mc_slice_op *slice, enum mc_status status,
                    bool retryable) {
    mc_list_del(&slice->transport_link);
    peer_put(flight_of(slice)->peer);
    e->slices[e->count] = slice;
    e->statuses[e->count] = status;
    e->retryable[e->count++] = retryable;
}

static void tell(struct ended *e) {
    size_t arrived = 0;
    for (size_t i = 0; i < e->count; i++) {
        if (e->statuses[i] == MC_OK) {
            e->slices[arrived++] = e->slices[i];
        } else {
            mc_slice_done(e->slices[i], e->statuses[i], e->retryable[i]);
        }
    }
    e->count = 0;
    if (arrived > 0) {
        mc_slices_arrived(e->slices, arrived);
    }
}

/* The peer's address on this device's endpoint. */
static int address_locked(struct device *d, struct peer *peer, uint64_t *out) {
    if (peer->generation[d->index] != d->generation) {
        const struct mc_fabric_desc *desc = peer->desc->fabric;
        int error = d->t->provider->peer_add(d->device, desc->devices[remote_of(d, desc)].address,
                                             &peer->address[d->index]);
        if (error != 0) {
            return error;
        }
        peer->generation[d->index] = d->generation;
    }
    *out = peer->address[d->index];
    return 0;
}

/* The slice's next operation: 0, EAGAIN, or an error. */
static int post_next_locked(struct device *d, struct mc_slice_op *slice) {
    struct fabric_transport *t = d->t;
    struct flight *f = flight_of(slice);
    const struct mc_fabric_desc *desc = f->peer->desc->fabric;
    unsigned there = remote_of(d, desc);
    uint64_t remote = slice->remote + f->posted;
    const struct mc_fabric_region_desc *r = mc_fabric_desc_find(desc, slice->remote, slice->length);
    struct fabric_op op = {.context = slice,
                           .write = slice->op == MC_TRANSFER_WRITE,
                           .local = slice->local + f->posted,
                           .length = mc_min_u64(slice->length - f->posted, d->info.max_message)};
    int error = r == NULL ? EACCES : address_locked(d, f->peer, &op.peer);
    if (error != 0) {
        return error;
    }
    op.key = r->keys[there];
    op.remote = desc->devices[there].virtual_addresses ? remote : remote - r->addr;
    pthread_rwlock_rdlock(&t->memory_lock);
    const struct range *range = find_locked(t, (uint64_t)(uintptr_t)slice->local, slice->length);
    op.region = range == NULL ? NULL : range->regions[d->index];
    error = range == NULL ? EACCES : t->provider->post(d->device, &op);
    pthread_rwlock_unlock(&t->memory_lock);
    if (error == 0) {
        f->posted += op.length;
        f->outstanding++;
        f->generation = d->generation;
    }
    return error;
}

static enum mc_status status_of(int error) {
    return error == EACCES ? MC_ERR_NOT_REGISTERED : MC_ERR_IO;
}

/* Posts what waits, until the provider has no room. */
static void pump_locked(struct device *d, struct ended *e) {
    while (!mc_list_empty(&d->waiting) && e->count < DONE_MAX) {
        struct mc_slice_op *slice =
            mc_container_of(d->waiting.next, struct mc_slice_op, transport_link);
        struct flight *f = flight_of(slice);
        int error = d->broken ? ENODEV : f->status != MC_OK ? EIO : post_next_locked(d, slice);
        if (error == EAGAIN) {
            return;
        }
        if (error != 0) {
            f->status = f->status != MC_OK ? f->status : status_of(error);
        }
        if (error != 0 && f->outstanding == 0) {
            collect(e, slice, (enum mc_status)f->status, f->status != MC_ERR_NOT_REGISTERED);
        } else if (error != 0 || f->posted == slice->length) {
            mc_list_del(&slice->transport_link);
            mc_list_push_back(&d->flights, &slice->transport_link);
        }
    }
}

static enum mc_status status_of_completion(const struct device *d,
                                           const struct fabric_completion *c) {
    if (c->error == FABRIC_OK) {
        return MC_OK;
    }
    mc_warn_limited("fabric: an operation failed device=%s code=%d", d->info.name, c->code);
    switch (c->error) {
    case FABRIC_UNREACHABLE:
        return MC_ERR_UNREACHABLE;
    case FABRIC_DENIED:
        return MC_ERR_NOT_REGISTERED;
    case FABRIC_TIMEOUT:
        return MC_ERR_TIMEOUT;
    default:
        return MC_ERR_IO;
    }
}

static size_t poll_locked(struct device *d, struct ended *e) {
    struct fabric_completion completions[DONE_MAX / 2];
    size_t n =
        d->broken ? 0 : d->t->provider->poll(d->device, completions, MC_ARRAY_LEN(completions));
    for (size_t i = 0; i < n; i++) {
        struct mc_slice_op *slice = completions[i].context;
        struct flight *f = flight_of(slice);
        enum mc_status status = status_of_completion(d, &completions[i]);
        MC_ASSERT(f->outstanding > 0 && f->generation == d->generation);
        f->status = f->status == MC_OK ? status : f->status;
        if (--f->outstanding == 0 && (f->posted == slice->length || f->status != MC_OK)) {
            collect(e, slice, (enum mc_status)f->status, f->status != MC_ERR_NOT_REGISTERED);
        }
    }
    return n;
}

/* Lets the device do what it can; whether anything has ended. */
static size_t advance(struct device *d) {
    struct ended e = {0};
    pthread_mutex_lock(&d->lock);
    size_t n = poll_locked(d, &e);
    pump_locked(d, &e);
    pthread_mutex_unlock(&d->lock);
    tell(&e);
    return n;
}

/* ---- giving up ---- */

struct whose {                        /* slices */
    const void *task;                 /* NULL = any */
    const struct mc_segment *segment; /* NULL = any */
};

static bool is_whose(const struct mc_slice_op *slice, const struct whose *w) {
    return (w->task == NULL || slice->task == w->task) &&
           (w->segment == NULL || slice->segment == w->segment);
}

static bool any_posted_locked(const struct mc_list *list, const struct whose *w) {
    for (const struct mc_list *at = list->next; at != list; at = at->next) {
        struct mc_slice_op *slice = mc_container_of(at, struct mc_slice_op, transport_link);
        if (is_whose(slice, w) && flight_of(slice)->outstanding > 0) {
            return true;
        }
    }
    return false;
}

/* Takes out of a list those meant, and after a reset all that were posted: on the old endpoint, for
 * nothing of the new one may be taken while it is under way. */
static void sweep_locked(const struct device *d, struct mc_list *list, const struct whose *w,
                         bool reset, enum mc_status status, struct mc_list *taken) {
    for (struct mc_list *at = list->next, *next; at != list; at = next) {
        struct mc_slice_op *slice = mc_container_of(at, struct mc_slice_op, transport_link);
        next = at->next;
        bool meant = is_whose(slice, w);
        struct flight *f = flight_of(slice);
        MC_ASSERT(f->outstanding == 0 || f->generation < d->generation);
        if (meant || (reset && f->posted > 0)) {
            f->status = meant ? status : MC_ERR_CANCELLED;
            mc_list_del(at);
            mc_list_push_back(taken, at);
        }
    }
}

/* None of these slices touches memory when this returns, and each has ended. All are taken before
 * the first is told: one that is told may be posted again at once, on the new endpoint. */
static void give_up(struct device *d, const struct whose *w, enum mc_status status) {
    bool reset = false;
    struct mc_list taken;
    mc_list_init(&taken);
    pthread_mutex_lock(&d->lock);
    if (any_posted_locked(&d->flights, w) || any_posted_locked(&d->waiting, w)) {
        int error = d->t->provider->reset(d->device);
        reset = true;
        d->generation++;
        d->broken = error != 0;
        mc_metric_add(&d->resets, 1);
        if (d->broken) {
            mc_error("fabric: no new endpoint, the device is lost device=%s error=%d", d->info.name,
                     error);
        }
    }
    sweep_locked(d, &d->flights, w, reset, status, &taken);
    sweep_locked(d, &d->waiting, w, reset, status, &taken);
    pthread_mutex_unlock(&d->lock);
    while (!mc_list_empty(&taken)) {
        struct mc_slice_op *slice = mc_container_of(taken.next, struct mc_slice_op, transport_link);
        struct flight *f = flight_of(slice);
        enum mc_status why = (enum mc_status)f->status;
        mc_list_del(&slice->transport_link);
        peer_put(f->peer);
        mc_slice_done(slice, why, why != MC_ERR_TIMEOUT);
    }
}

static void fabric_give_up(struct mc_transport *base, struct mc_segment *segment, void *task,
                           unsigned rail) {
    struct fabric_transport *t = fabric_of(base);
    const struct whose w = {task, NULL};
    give_up(&t->devices[rail % t->count], &w, MC_ERR_TIMEOUT);
}

static void fabric_cancel(struct mc_transport *base, struct mc_segment *segment, void *task) {
    struct fabric_transport *t = fabric_of(base);
    const struct whose w = {task, NULL};
    for (unsigned i = 0; i < t->count; i++) {
        give_up(&t->devices[i], &w, MC_ERR_TIMEOUT);
    }
}

static void fabric_forget(struct mc_transport *base, struct mc_segment *segment) {
    struct fabric_transport *t = fabric_of(base);
    const struct whose w = {NULL, segment};
    for (unsigned i = 0; i < t->count; i++) {
        give_up(&t->devices[i], &w, MC_ERR_CANCELLED);
    }
    peer_swap(t, segment, NULL);
}

/* ---- posting ---- */

static enum mc_status fabric_post(struct mc_transport *base, struct mc_slice_op **slices,
                                  size_t count) {
    struct fabric_transport *t = fabric_of(base);
    struct device *d = &t->devices[slices[0]->rail % t->count];
    struct peer *peer = peer_get(t, slices[0]->segment);
    struct ended e = {0};
    if (peer == NULL) {
        return MC_ERR_NO_TRANSPORT;
    }
    atomic_fetch_add_explicit(&peer->refs, (uint32_t)count, memory_order_relaxed);
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < count; i++) {
        *flight_of(slices[i]) = (struct flight){.peer = peer};
        mc_list_push_back(&d->waiting, &slices[i]->transport_link);
    }
    pump_locked(d, &e);
    bool left = !mc_list_empty(&d->waiting);
    pthread_mutex_unlock(&d->lock);
    peer_put(peer);
    tell(&e);
    if (left) { /* for room, which completions make */
        (void)!write(d->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    }
    return MC_OK;
}

static void fabric_progress(struct mc_transport *base, struct mc_segment *segment,
                            const _Atomic uint32_t *done, uint64_t deadline_ns) {
    struct fabric_transport *t = fabric_of(base);
    uint64_t now = mc_now_ns(mc_clock_system()), until = mc_min_u64(deadline_ns, now + SPIN_NS);
    while (atomic_load_explicit(done, memory_order_acquire) == 0 && now < until) {
        size_t n = 0;
        bool busy = false;
        for (unsigned i = 0; i < t->count; i++) {
            struct device *d = &t->devices[i];
            if (mc_rail_inflight(&base->engine->dispatch[base->index].rails[i]) > 0) {
                busy = true;
                n += advance(d);
            }
        }
        if (!busy) {
            return;
        }
        now = mc_now_ns(mc_clock_system());
        until = n > 0 ? mc_min_u64(deadline_ns, now + SPIN_NS) : until;
    }
}

/* ---- a device's thread ---- */

static void wait_for_work(struct device *d) {
    struct pollfd fds[3] = {{.fd = d->wake_fd, .events = POLLIN}};
    int queues[2] = {-1, -1};
    uint64_t told;
    pthread_mutex_lock(&d->lock);
    bool has_fds = !d->broken && d->t->provider->fds(d->device, queues) == 0;
    bool armed = !has_fds || d->t->provider->arm(d->device) == 0;
    pthread_mutex_unlock(&d->lock);
    if (!armed) {
        return;
    }
    if (!has_fds) {
        usleep(IDLE_POLL_US);
        return;
    }
    fds[1] = (struct pollfd){.fd = queues[0], .events = POLLIN};
    fds[2] = (struct pollfd){.fd = queues[1], .events = POLLIN};
    (void)!poll(fds, 3, WAIT_MS);
    (void)!read(d->wake_fd, &told, sizeof(told));
}

static void *work(void *arg) {
    struct device *d = arg;
    while (!atomic_load_explicit(&d->t->stop, memory_order_acquire)) {
        if (advance(d) == 0) {
            wait_for_work(d);
        }
    }
    return NULL;
}

/* ---- life ---- */

static void fabric_stop(struct mc_transport *base) {
    struct fabric_transport *t = fabric_of(base);
    atomic_store_explicit(&t->stop, true, memory_order_release);
    for (unsigned i = 0; i < t->count; i++) {
        struct device *d = &t->devices[i];
        if (d->started) {
            (void)!write(d->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
            pthread_join(d->thread, NULL);
        }
    }
    while (t->range_count > 0) {
        range_free(t, t->ranges[--t->range_count]);
    }
    for (unsigned i = 0; i < t->count; i++) {
        struct device *d = &t->devices[i];
        t->provider->close(d->device);
        close(d->wake_fd);
        pthread_mutex_destroy(&d->lock);
    }
    pthread_mutex_destroy(&t->peers_lock);
    pthread_rwlock_destroy(&t->memory_lock);
    free(t->ranges);
    free(t);
}

static void device_init(struct fabric_transport *t, unsigned index, struct fabric_device *device) {
    struct device *d = &t->devices[index];
    char labels[FABRIC_NAME_MAX + 16];
    d->t = t;
    d->index = index;
    d->device = device;
    d->generation = 1;
    t->provider->info(device, &d->info);
    pthread_mutex_init(&d->lock, NULL);
    mc_list_init(&d->waiting);
    mc_list_init(&d->flights);
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    MC_ASSERT(d->wake_fd >= 0);
    snprintf(labels, sizeof(labels), "device=\"%s\"", d->info.name);
    mc_metrics_register(mc_engine_registry(t->base.engine), MC_METRIC_COUNTER,
                        "mooncake_te_fabric_resets_total", labels,
                        "endpoints replaced to give up what was in flight", &d->resets);
    mc_info("fabric: device=%s provider=%s", d->info.name, d->info.provider);
}

static bool accept_provider(void *symbol, void *ctx) {
    const struct fabric_provider *p = ((fabric_provider_fn)symbol)();
    bool good = p != NULL && p->version == FABRIC_PROVIDER_VERSION && p->size == sizeof(*p);
    *(const struct fabric_provider **)ctx = good ? p : NULL;
    return good;
}

/* EFA where there is such a card; another of libfabric's providers only by name. */
static const char *provider_name(void) {
    const char *name = getenv("MC_FABRIC_PROVIDER");
    return name != NULL && name[0] != '\0'                 ? name
           : access("/sys/bus/pci/drivers/efa", F_OK) == 0 ? "efa"
                                                           : NULL;
}

static enum mc_status fabric_start(struct mc_engine *engine, unsigned index,
                                   struct mc_transport **out) {
    const struct fabric_provider *provider = NULL;
    struct fabric_device *devices[MC_FABRIC_DEVICES_MAX];
    const char *name = provider_name();
    size_t count = 0;
    if (name == NULL || mc_env_bool("MC_FORCE_TCP", false) ||
        !mc_module_find("transport-fabric.so", FABRIC_PROVIDER_SYMBOL, accept_provider,
                        &provider)) {
        return MC_NOT_SUPPORTED;
    }
    int error = provider->open(name, engine->host, devices, MC_FABRIC_DEVICES_MAX, &count);
    if (error != 0) {
        mc_info("fabric: no device provider=%s error=%d", name, error);
        return MC_NOT_SUPPORTED;
    }
    struct fabric_transport *t = mc_zalloc(sizeof(*t));
    t->base = (struct mc_transport){&mc_transport_fabric_ops, engine, index};
    t->provider = provider;
    t->count = (unsigned)count;
    pthread_mutex_init(&t->peers_lock, NULL);
    pthread_rwlock_init(&t->memory_lock, NULL);
    for (unsigned i = 0; i < t->count; i++) {
        device_init(t, i, devices[i]);
    }
    for (unsigned i = 0; i < t->count; i++) {
        char label[24];
        snprintf(label, sizeof(label), "mc-fabric-%u", i);
        t->devices[i].started =
            mc_thread_start(&t->devices[i].thread, label, work, &t->devices[i]) == 0;
        if (!t->devices[i].started) {
            fabric_stop(&t->base);
            return MC_ERR_LIMIT;
        }
    }
    *out = &t->base;
    return MC_OK;
}

const struct mc_transport_ops mc_transport_fabric_ops = {
    .name = "fabric",
    .in_the_clear = true,
    .slice_bytes = SLICE_BYTES,
    .start = fabric_start,
    .stop = fabric_stop,
    .describe = fabric_describe,
    .memory_added = fabric_memory_added,
    .memory_removed = fabric_memory_removed,
    .cost = fabric_cost,
    .rails = fabric_rails,
    .serves = fabric_serves,
    .open = fabric_open,
    .post = fabric_post,
    .progress = fabric_progress,
    .cancel = fabric_cancel,
    .give_up = fabric_give_up,
    .forget = fabric_forget,
};

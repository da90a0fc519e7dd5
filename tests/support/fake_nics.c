/* One lock for everything: tests look for logic, not for speed. */
#include "support/fake_nics.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define QPS_MAX     8192
#define PENDING_MAX 512
#define REGION_MAX  (64u << 20)
#define EVENTS_MAX  64

struct nic {
    bool down;
    uint64_t bytes;
    size_t queue_pairs, peak;
    int refuse;
    void (*after_destroy)(void *);
    void *after_destroy_arg;
};

struct rdma_device {
    unsigned nic;
    int event_fd;
    enum rdma_event events[EVENTS_MAX];
    unsigned event_count;
    struct mc_list link;
};
struct rdma_region {
    unsigned nic;
    uint64_t addr, length;
    uint32_t key;
    bool remote, relaxed;
    char *mapped; /* of a dma-buf, where this process may touch what is at `addr`; else NULL */
    size_t mapped_bytes;
    uint64_t offset; /* of `addr` in it */
    struct mc_list link;
};
struct rdma_cq {
    int fd;
    bool armed;
    struct rdma_wc *wcs;
    size_t count, cap;
};
struct rdma_qp {
    unsigned nic;
    struct rdma_cq *cq;
    uint32_t number;
    bool ready, failed;
    uint32_t peer;
    uint8_t peer_gid[16];
    uint32_t mtu;
    uint32_t limit;
    struct rdma_wr pending[PENDING_MAX];
    size_t pending_count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nic nics[FAKE_NICS];
static struct rdma_qp *qps[QPS_MAX];
static struct mc_list devices = {&devices, &devices}, regions = {&regions, &regions};
static uint32_t last_key, last_qp;
static bool held;

static unsigned nic_named(const char *name) {
    unsigned nic = 0;
    MC_ASSERT(sscanf(name, "nic%u", &nic) == 1 && nic < FAKE_NICS);
    return nic;
}

static void gid_of(unsigned nic, uint8_t gid[16]) {
    memcpy(gid, (uint8_t[16]){[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 9}, 16);
    gid[14] = (uint8_t)(nic / 2);
    gid[15] = (uint8_t)(nic % 2 + 1);
}

static void signal_fd(int fd) {
    uint64_t one = 1;
    MC_ASSERT(write(fd, &one, sizeof(one)) == sizeof(one));
}

static void drain_fd(int fd) {
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));
    (void)n;
}

/* ---- devices ---- */

static size_t f_list(char (*names)[RDMA_NAME_MAX], size_t capacity) {
    for (unsigned i = 0; i < FAKE_NICS && i < capacity; i++) {
        snprintf(names[i], RDMA_NAME_MAX, "nic%u", i);
    }
    return FAKE_NICS;
}

static int f_open(const char *name, uint8_t port, struct rdma_device **out) {
    struct rdma_device *device = mc_zalloc(sizeof(*device));
    device->nic = nic_named(name);
    device->event_fd = eventfd(0, EFD_NONBLOCK);
    pthread_mutex_lock(&lock);
    mc_list_push_back(&devices, &device->link);
    pthread_mutex_unlock(&lock);
    *out = device;
    return 0;
}

static void f_close(struct rdma_device *device) {
    pthread_mutex_lock(&lock);
    mc_list_del(&device->link);
    pthread_mutex_unlock(&lock);
    close(device->event_fd);
    free(device);
}

static int f_query(struct rdma_device *device, struct rdma_port_info *info) {
    pthread_mutex_lock(&lock);
    *info = (struct rdma_port_info){
        .active = !nics[device->nic].down,
        .ethernet = true,
        .mtu = 4096,
        .max_region = REGION_MAX,
        .max_message = 1u << 20,
        .max_qp = QPS_MAX,
        .max_qp_wr = PENDING_MAX,
        .max_cqe = 65536,
        .max_reads = 16,
        .numa_node = (int)(device->nic / 4),
        .bits_a_second = 100000000000ull,
    };
    pthread_mutex_unlock(&lock);
    return 0;
}

static size_t f_gids(struct rdma_device *device, struct rdma_gid *gids, size_t capacity) {
    gids[0] = (struct rdma_gid){.raw = {0xfe, 0x80, [15] = 1}, .type = RDMA_GID_ROCE_V2};
    gids[1] = (struct rdma_gid){.index = 1, .type = RDMA_GID_ROCE_V2};
    gid_of(device->nic, gids[1].raw);
    return 2;
}

/* ---- memory ---- */

static int region_add(struct rdma_device *device, const struct rdma_region *of,
                      struct rdma_region **out, uint32_t *lkey, uint32_t *rkey) {
    if (of->length > REGION_MAX) {
        return EINVAL;
    }
    pthread_mutex_lock(&lock);
    int error = nics[device->nic].refuse;
    if (error == 0) {
        struct rdma_region *region = mc_alloc(sizeof(*region));
        *region = *of;
        region->nic = device->nic;
        region->key = *lkey = *rkey = ++last_key;
        mc_list_push_back(&regions, &region->link);
        *out = region;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static int f_region_create(struct rdma_device *device, uint64_t addr, uint64_t length,
                           unsigned access, struct rdma_region **out, uint32_t *lkey,
                           uint32_t *rkey) {
    const struct rdma_region region = {.addr = addr,
                                       .length = length,
                                       .remote = (access & RDMA_ACCESS_REMOTE) != 0,
                                       .relaxed = (access & RDMA_ACCESS_RELAXED) != 0};
    return region_add(device, &region, out, lkey, rkey);
}

static int f_region_create_dmabuf(struct rdma_device *device, int fd, uint64_t offset,
                                  uint64_t addr, uint64_t length, unsigned access,
                                  struct rdma_region **out, uint32_t *lkey, uint32_t *rkey) {
    size_t bytes = offset + length;
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        return errno;
    }
    const struct rdma_region region = {.addr = addr,
                                       .length = length,
                                       .remote = (access & RDMA_ACCESS_REMOTE) != 0,
                                       .relaxed = (access & RDMA_ACCESS_RELAXED) != 0,
                                       .mapped = mapped,
                                       .mapped_bytes = bytes,
                                       .offset = offset};
    int error = region_add(device, &region, out, lkey, rkey);
    if (error != 0) {
        munmap(mapped, bytes);
    }
    return error;
}

static int f_region_destroy(struct rdma_region *region) {
    pthread_mutex_lock(&lock);
    mc_list_del(&region->link);
    pthread_mutex_unlock(&lock);
    if (region->mapped != NULL) {
        munmap(region->mapped, region->mapped_bytes);
    }
    free(region);
    return 0;
}

/* Where the NIC finds the range, or NULL when the key does not give it. */
static void *reach(unsigned nic, uint32_t key, uint64_t addr, uint64_t length, bool remote) {
    for (struct mc_list *at = regions.next; at != &regions; at = at->next) {
        const struct rdma_region *r = mc_container_of(at, struct rdma_region, link);
        if (r->key == key && r->nic == nic) {
            bool allowed =
                mc_range_inside(addr, length, r->addr, r->length) && (r->remote || !remote);
            return !allowed            ? NULL
                   : r->mapped != NULL ? r->mapped + r->offset + (addr - r->addr)
                                       : (void *)(uintptr_t)addr;
        }
    }
    return NULL;
}

size_t fake_nics_regions(const char *nic, bool relaxed) {
    unsigned number = nic_named(nic);
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (struct mc_list *at = regions.next; at != &regions; at = at->next) {
        const struct rdma_region *r = mc_container_of(at, struct rdma_region, link);
        count += r->nic == number && r->relaxed == relaxed;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* ---- completion queues ---- */

static int f_cq_create(struct rdma_device *device, uint32_t depth, struct rdma_cq **out) {
    struct rdma_cq *cq = mc_zalloc(sizeof(*cq));
    cq->fd = eventfd(0, EFD_NONBLOCK);
    cq->cap = depth;
    cq->wcs = mc_alloc(depth * sizeof(*cq->wcs));
    *out = cq;
    return 0;
}

static void f_cq_destroy(struct rdma_cq *cq) {
    close(cq->fd);
    free(cq->wcs);
    free(cq);
}

static int f_cq_fd(struct rdma_cq *cq) {
    return cq->fd;
}

static int f_cq_arm(struct rdma_cq *cq) {
    pthread_mutex_lock(&lock);
    cq->armed = true;
    pthread_mutex_unlock(&lock);
    return 0;
}

static void f_cq_ack(struct rdma_cq *cq) {
    drain_fd(cq->fd);
}

static int f_cq_poll(struct rdma_cq *cq, struct rdma_wc *wcs, int capacity) {
    pthread_mutex_lock(&lock);
    int n = (int)mc_min_u64(cq->count, (uint64_t)capacity);
    memcpy(wcs, cq->wcs, (size_t)n * sizeof(*wcs));
    cq->count -= (size_t)n;
    memmove(cq->wcs, cq->wcs + n, cq->count * sizeof(*wcs));
    pthread_mutex_unlock(&lock);
    return n;
}

static void push_locked(struct rdma_qp *qp, uint64_t id, enum rdma_wc_status status) {
    struct rdma_cq *cq = qp->cq;
    MC_ASSERT(cq->count < cq->cap); /* hardware would lose completions here */
    cq->wcs[cq->count++] = (struct rdma_wc){id, qp->number, status, 0};
    if (cq->armed) {
        cq->armed = false;
        signal_fd(cq->fd);
    }
}

/* ---- queue pairs ---- */

static int f_qp_create(struct rdma_device *device, struct rdma_cq *cq,
                       struct rdma_qp_limits *limits, struct rdma_qp **out, uint32_t *number) {
    struct rdma_qp *qp = mc_zalloc(sizeof(*qp));
    pthread_mutex_lock(&lock);
    do {
        last_qp = (last_qp + 1) % QPS_MAX;
    } while (last_qp == 0 || qps[last_qp] != NULL);
    qps[last_qp] = qp;
    qp->nic = device->nic;
    qp->cq = cq;
    qp->number = *number = last_qp;
    qp->limit = limits->send_wrs;
    struct nic *nic = &nics[qp->nic];
    nic->queue_pairs++;
    nic->peak = mc_max_u64(nic->peak, nic->queue_pairs);
    pthread_mutex_unlock(&lock);
    limits->inline_bytes = (uint32_t)mc_min_u64(limits->inline_bytes, 64);
    *out = qp;
    return 0;
}

static void fail_locked(struct rdma_qp *qp) {
    qp->failed = true;
    for (size_t i = 0; i < qp->pending_count; i++) {
        push_locked(qp, qp->pending[i].id, RDMA_WC_FLUSHED);
    }
    qp->pending_count = 0;
}

static const struct rdma_qp *peer_of(const struct rdma_qp *qp) {
    return qp->peer < QPS_MAX ? qps[qp->peer] : NULL;
}

/* The peer is there and about to come up: a NIC would try again for a while. */
static bool too_early(const struct rdma_qp *qp) {
    const struct rdma_qp *peer = peer_of(qp);
    return !qp->failed && peer != NULL && !peer->ready && !peer->failed &&
           peer->nic == (qp->nic ^ 1u) && !nics[qp->nic].down;
}

static bool connected(const struct rdma_qp *qp) {
    const struct rdma_qp *peer = peer_of(qp);
    uint8_t there[16], here[16];
    if (peer == NULL || !peer->ready || peer->failed || peer->peer != qp->number ||
        peer->nic != (qp->nic ^ 1u) || nics[qp->nic].down) {
        return false;
    }
    if (peer->mtu != qp->mtu) { /* larger packets than the other end takes */
        return false;
    }
    gid_of(peer->nic, there);
    gid_of(qp->nic, here);
    return memcmp(there, qp->peer_gid, 16) == 0 && memcmp(here, peer->peer_gid, 16) == 0;
}

static enum rdma_wc_status work(struct rdma_qp *qp, const struct rdma_wr *wr) {
    if (!connected(qp)) {
        return RDMA_WC_UNREACHABLE;
    }
    void *local = wr->inlined ? (void *)(uintptr_t)wr->local
                              : reach(qp->nic, wr->lkey, wr->local, wr->length, false);
    void *remote = reach(qp->nic ^ 1u, wr->rkey, wr->remote, wr->length, true);
    if (local == NULL || remote == NULL) {
        return local == NULL ? RDMA_WC_LOCAL : RDMA_WC_REMOTE_DENIED;
    }
    memcpy(wr->write ? remote : local, wr->write ? local : remote, wr->length);
    nics[qp->nic].bytes += wr->length;
    return RDMA_WC_OK;
}

static void do_locked(struct rdma_qp *qp, const struct rdma_wr *wr) {
    enum rdma_wc_status status = qp->failed ? RDMA_WC_FLUSHED : work(qp, wr);
    push_locked(qp, wr->id, status);
    if (status != RDMA_WC_OK) {
        fail_locked(qp);
    }
}

/* Does what is pending, as far as nothing keeps it. */
static void go_on(struct rdma_qp *qp) {
    while (qp->pending_count > 0 && !held && !too_early(qp)) {
        struct rdma_wr wr = qp->pending[0];
        qp->pending_count--;
        memmove(qp->pending, qp->pending + 1, qp->pending_count * sizeof(wr));
        do_locked(qp, &wr);
    }
}

static void retry_waiting(void) {
    for (size_t i = 0; i < QPS_MAX; i++) {
        if (qps[i] != NULL) {
            go_on(qps[i]);
        }
    }
}

static int f_qp_connect(struct rdma_qp *qp, const struct rdma_path *path) {
    pthread_mutex_lock(&lock);
    int error = path->global && path->gid_index == 1 && path->mtu >= 256 ? 0 : EINVAL;
    qp->ready = error == 0;
    qp->peer = path->qp_num;
    memcpy(qp->peer_gid, path->gid, 16);
    qp->mtu = path->mtu;
    retry_waiting();
    pthread_mutex_unlock(&lock);
    return error;
}

static bool exists(const struct rdma_qp *qp) {
    size_t i = 0;
    while (i < QPS_MAX && qps[i] != qp) {
        i++;
    }
    return i < QPS_MAX;
}

static int f_qp_fail(struct rdma_qp *qp) {
    pthread_mutex_lock(&lock);
    MC_ASSERT(exists(qp));
    fail_locked(qp);
    retry_waiting();
    pthread_mutex_unlock(&lock);
    return 0;
}

static void f_qp_destroy(struct rdma_qp *qp) {
    pthread_mutex_lock(&lock);
    MC_ASSERT(qp->pending_count == 0);
    for (size_t i = 0; i < qp->cq->count; i++) {
        MC_ASSERT(qp->cq->wcs[i].qp_num != qp->number);
    }
    qps[qp->number] = NULL;
    struct nic *nic = &nics[qp->nic];
    void (*hook)(void *) = nic->after_destroy;
    void *arg = nic->after_destroy_arg;
    nic->after_destroy = NULL;
    nic->queue_pairs--;
    retry_waiting();
    pthread_mutex_unlock(&lock);
    free(qp);
    if (hook != NULL) {
        hook(arg);
    }
}

static int f_qp_post(struct rdma_qp *qp, const struct rdma_wr *wrs, size_t count, size_t *posted) {
    pthread_mutex_lock(&lock);
    MC_ASSERT(qp->ready && qp->pending_count + count <= qp->limit);
    for (size_t i = 0; i < count; i++) {
        if (qp->failed) {
            do_locked(qp, &wrs[i]);
        } else {
            qp->pending[qp->pending_count++] = wrs[i];
        }
    }
    go_on(qp);
    pthread_mutex_unlock(&lock);
    *posted = count;
    return 0;
}

/* ---- events ---- */

static int f_event_fd(struct rdma_device *device) {
    return device->event_fd;
}

static enum rdma_event f_event_next(struct rdma_device *device) {
    enum rdma_event event = RDMA_EVENT_NONE;
    pthread_mutex_lock(&lock);
    if (device->event_count > 0) {
        event = device->events[0];
        device->event_count--;
        memmove(device->events, device->events + 1,
                device->event_count * sizeof(device->events[0]));
    }
    if (device->event_count == 0) {
        drain_fd(device->event_fd);
    }
    pthread_mutex_unlock(&lock);
    return event;
}

/* ---- controls ---- */

void fake_nics_link(const char *name, bool up) {
    unsigned pair = nic_named(name) / 2;
    pthread_mutex_lock(&lock);
    nics[2 * pair].down = nics[2 * pair + 1].down = !up;
    for (struct mc_list *at = devices.next; at != &devices; at = at->next) {
        struct rdma_device *device = mc_container_of(at, struct rdma_device, link);
        if (device->nic / 2 == pair && device->event_count < EVENTS_MAX) {
            device->events[device->event_count++] = up ? RDMA_EVENT_PORT_UP : RDMA_EVENT_PORT_DOWN;
            signal_fd(device->event_fd);
        }
    }
    pthread_mutex_unlock(&lock);
}

void fake_nics_hold(bool hold) {
    pthread_mutex_lock(&lock);
    held = hold;
    retry_waiting();
    pthread_mutex_unlock(&lock);
}

uint64_t fake_nics_bytes(const char *nic) {
    pthread_mutex_lock(&lock);
    uint64_t bytes = nics[nic_named(nic)].bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

size_t fake_nics_queue_pairs(void) {
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < FAKE_NICS; i++) {
        count += nics[i].queue_pairs;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

size_t fake_nics_peak(const char *name) {
    struct nic *nic = &nics[nic_named(name)];
    pthread_mutex_lock(&lock);
    size_t peak = nic->peak;
    nic->peak = nic->queue_pairs;
    pthread_mutex_unlock(&lock);
    return peak;
}

void fake_nics_refuse_regions(const char *nic, int error) {
    pthread_mutex_lock(&lock);
    nics[nic_named(nic)].refuse = error;
    pthread_mutex_unlock(&lock);
}

void fake_nics_after_destroy(const char *name, void (*hook)(void *), void *arg) {
    struct nic *nic = &nics[nic_named(name)];
    pthread_mutex_lock(&lock);
    nic->after_destroy = hook;
    nic->after_destroy_arg = arg;
    pthread_mutex_unlock(&lock);
}

const struct rdma_provider fake_nics_provider = {
    .version = RDMA_PROVIDER_VERSION,
    .size = sizeof(struct rdma_provider),
    .name = "memory",
    .list = f_list,
    .open = f_open,
    .close = f_close,
    .query = f_query,
    .gids = f_gids,
    .region_create = f_region_create,
    .region_create_dmabuf = f_region_create_dmabuf,
    .region_destroy = f_region_destroy,
    .cq_create = f_cq_create,
    .cq_destroy = f_cq_destroy,
    .cq_fd = f_cq_fd,
    .cq_arm = f_cq_arm,
    .cq_ack = f_cq_ack,
    .cq_poll = f_cq_poll,
    .qp_create = f_qp_create,
    .qp_connect = f_qp_connect,
    .qp_fail = f_qp_fail,
    .qp_destroy = f_qp_destroy,
    .qp_post = f_qp_post,
    .event_fd = f_event_fd,
    .event_next = f_event_next,
};

static enum mc_status start(struct mc_engine *engine, unsigned index, struct mc_transport **out) {
    return rdma_start_with(engine, index, &fake_nics_provider, out);
}

/* Everything but the start is the transport's own. */
const struct mc_transport_ops fake_nics_ops = {.name = "rdma", .start = start};

/*
 * The module transport-fabric.so: libfabric behind fabric_provider.h. Holds no policy; needs
 * nothing of libmooncake, so that it loads into any program.
 *
 * A device is a domain with two endpoints: one that peers address and whose address is published,
 * and one for own operations, which may be replaced. Both are reliable datagram endpoints (RDM): no
 * connections are set up here. Completions are those of delivery: the bytes are where they belong.
 */
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "te/transport/fabric_provider.h"

#define API_VERSION FI_VERSION(1, 17)
#define QUEUE_DEPTH 4096
#define POLL_MAX    64

struct endpoint {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
};

struct fabric_device {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct endpoint target; /* that peers address */
    struct endpoint own;
    bool waits; /* completion queues have descriptors */
    _Atomic uint64_t next_key;
    uint8_t address[FABRIC_ADDRESS_MAX];
    size_t address_length;
};

struct fabric_region {
    struct fid_mr *mr;
    void *descriptor;
};

static int error_of(long result) {
    return result >= 0 ? 0 : (int)-result;
}

/* ---- endpoints ---- */

static void endpoint_close(struct endpoint *e) {
    struct fid *parts[] = {e->ep == NULL ? NULL : &e->ep->fid, e->cq == NULL ? NULL : &e->cq->fid,
                           e->av == NULL ? NULL : &e->av->fid};
    for (size_t i = 0; i < 3; i++) {
        if (parts[i] != NULL) {
            (void)fi_close(parts[i]);
        }
    }
    *e = (struct endpoint){0};
}

static int cq_open(struct fabric_device *d, struct fid_cq **cq) {
    struct fi_cq_attr attr = {.size = QUEUE_DEPTH,
                              .format = FI_CQ_FORMAT_CONTEXT,
                              .wait_obj = d->waits ? FI_WAIT_FD : FI_WAIT_NONE};
    int error = error_of(fi_cq_open(d->domain, &attr, cq, NULL));
    if (error != 0 && d->waits) { /* efa has nothing to wait for */
        d->waits = false;
        attr.wait_obj = FI_WAIT_NONE;
        error = error_of(fi_cq_open(d->domain, &attr, cq, NULL));
    }
    return error;
}

static int endpoint_open(struct fabric_device *d, struct endpoint *e) {
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    int error = cq_open(d, &e->cq);
    error = error != 0 ? error : error_of(fi_av_open(d->domain, &av, &e->av, NULL));
    error = error != 0 ? error : error_of(fi_endpoint(d->domain, d->info, &e->ep, NULL));
    error = error != 0 ? error : error_of(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
    error = error != 0 ? error : error_of(fi_ep_bind(e->ep, &e->av->fid, 0));
    error = error != 0 ? error : error_of(fi_enable(e->ep));
    if (error != 0) {
        endpoint_close(e);
    }
    return error;
}

/* ---- devices ---- */

static void f_close(struct fabric_device *d) {
    endpoint_close(&d->own);
    endpoint_close(&d->target);
    if (d->domain != NULL) {
        (void)fi_close(&d->domain->fid);
    }
    if (d->fabric != NULL) {
        (void)fi_close(&d->fabric->fid);
    }
    fi_freeinfo(d->info);
    free(d);
}

/* Each endpoint binds a port of its own. */
static void forget_port(struct fi_info *info) {
    if (info->src_addr == NULL || info->src_addrlen < 4) {
        return;
    }
    if (info->addr_format == FI_SOCKADDR_IN || info->addr_format == FI_SOCKADDR_IN6) {
        memset((char *)info->src_addr + 2, 0, 2); /* sin_port and sin6_port lie at the same place */
    }
}

static int device_open(struct fi_info *info, struct fabric_device **out) {
    struct fabric_device *d = calloc(1, sizeof(*d));
    uint32_t start = 0;
    if (d == NULL) {
        return ENOMEM;
    }
    (void)!getrandom(&start, sizeof(start), 0);
    atomic_store(&d->next_key, start); /* a key of an earlier life on this address means nothing */
    d->waits = true;
    d->info = fi_dupinfo(info);
    forget_port(d->info);
    int error = d->info == NULL ? ENOMEM : 0;
    error = error != 0 ? error : error_of(fi_fabric(d->info->fabric_attr, &d->fabric, NULL));
    error = error != 0 ? error : error_of(fi_domain(d->fabric, d->info, &d->domain, NULL));
    error = error != 0 ? error : endpoint_open(d, &d->target);
    error = error != 0 ? error : endpoint_open(d, &d->own);
    d->address_length = sizeof(d->address);
    error = error != 0 ? error
                       : error_of(fi_getname(&d->target.ep->fid, d->address, &d->address_length));
    if (error != 0) {
        f_close(d);
        return error;
    }
    *out = d;
    return 0;
}

static struct fi_info *hints_of(const char *provider) {
    struct fi_info *hints = fi_allocinfo();
    if (hints == NULL) {
        return NULL;
    }
    hints->caps = FI_RMA | FI_MSG | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    return hints;
}

static bool is_opened(struct fabric_device *const *devices, size_t count,
                      const struct fi_info *info) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(devices[i]->info->domain_attr->name, info->domain_attr->name) == 0) {
            return true; /* the same device with other attributes, or another address */
        }
    }
    return false;
}

static bool has_ip_addresses(const struct fi_info *info) {
    return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
           info->addr_format == FI_SOCKADDR_IN6;
}

static int f_open(const char *provider, const char *host, struct fabric_device **devices,
                  size_t capacity, size_t *count) {
    struct fi_info *hints = hints_of(provider), *list = NULL;
    *count = 0;
    if (hints == NULL) {
        return ENOMEM;
    }
    int error = error_of(fi_getinfo(API_VERSION, NULL, NULL, 0, hints, &list));
    if (error == 0 && has_ip_addresses(list)) { /* this host's, not that of any interface */
        fi_freeinfo(list);
        list = NULL;
        error = error_of(fi_getinfo(API_VERSION, host, "0", FI_SOURCE, hints, &list));
    }
    for (struct fi_info *info = list; info != NULL && *count < capacity; info = info->next) {
        if (!is_opened(devices, *count, info)) {
            int failed = device_open(info, &devices[*count]);
            *count += failed == 0;
            error = failed != 0 ? failed : error;
        }
    }
    fi_freeinfo(list);
    fi_freeinfo(hints);
    return *count > 0 ? 0 : error != 0 ? error : ENODEV;
}

static void f_info(const struct fabric_device *d, struct fabric_device_info *out) {
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "%s", d->info->domain_attr->name);
    snprintf(out->provider, sizeof(out->provider), "%s", d->info->fabric_attr->prov_name);
    memcpy(out->address, d->address, d->address_length);
    out->address_length = d->address_length;
    out->max_message = d->info->ep_attr->max_msg_size;
    out->virtual_addresses = (d->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    if (d->info->nic != NULL && d->info->nic->link_attr != NULL) {
        out->bits_a_second = d->info->nic->link_attr->speed;
    }
    if (d->info->nic != NULL && d->info->nic->bus_attr != NULL &&
        d->info->nic->bus_attr->bus_type == FI_BUS_PCI) {
        const struct fi_pci_attr *pci = &d->info->nic->bus_attr->attr.pci;
        snprintf(out->pci, sizeof(out->pci), "%04x:%02x:%02x.%x", pci->domain_id, pci->bus_id,
                 pci->device_id, pci->function_id);
    }
}

/* ---- memory ---- */

static int f_region_create(struct fabric_device *d, void *addr, size_t length, bool remote,
                           struct fabric_region **out, uint64_t *key) {
    struct fabric_region *region = calloc(1, sizeof(*region));
    uint64_t access = FI_READ | FI_WRITE | (remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
    if (region == NULL) {
        return ENOMEM;
    }
    uint64_t wanted = atomic_fetch_add(&d->next_key, 1) & 0xffffffffu;
    int error =
        error_of(fi_mr_reg(d->domain, addr, length, access, 0, wanted, 0, &region->mr, NULL));
    if (error != 0) {
        free(region);
        return error;
    }
    region->descriptor = fi_mr_desc(region->mr);
    *key = fi_mr_key(region->mr);
    *out = region;
    return 0;
}

static int f_region_destroy(struct fabric_region *region) {
    int error = error_of(fi_close(&region->mr->fid));
    free(region);
    return error;
}

/* ---- operations ---- */

static int f_peer_add(struct fabric_device *d, const uint8_t *address, uint64_t *peer) {
    fi_addr_t out = FI_ADDR_UNSPEC;
    int added = fi_av_insert(d->own.av, address, 1, &out, 0, NULL);
    *peer = out;
    return added == 1 ? 0 : EINVAL;
}

static int f_post(struct fabric_device *d, const struct fabric_op *op) {
    void *descriptor = op->region == NULL ? NULL : op->region->descriptor;
    ssize_t n = op->write ? fi_write(d->own.ep, op->local, op->length, descriptor, op->peer,
                                     op->remote, op->key, op->context)
                          : fi_read(d->own.ep, op->local, op->length, descriptor, op->peer,
                                    op->remote, op->key, op->context);
    return n == -FI_EAGAIN ? EAGAIN : error_of(n);
}

static enum fabric_error classify(int code) {
    switch (code) {
    case FI_EACCES:
    case FI_EPERM:
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
        return FABRIC_DENIED;
    case FI_ECONNREFUSED:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ENODEV:
        return FABRIC_UNREACHABLE;
    case FI_ETIMEDOUT:
        return FABRIC_TIMEOUT;
    default:
        return FABRIC_FAILED;
    }
}

static size_t poll_one(struct fid_cq *cq, struct fabric_completion *out, size_t capacity) {
    struct fi_cq_entry entries[POLL_MAX];
    size_t count = 0;
    ssize_t n = fi_cq_read(cq, entries, capacity < POLL_MAX ? capacity : POLL_MAX);
    for (ssize_t i = 0; i < n; i++) {
        out[count++] = (struct fabric_completion){entries[i].op_context, FABRIC_OK, 0};
    }
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry failed = {0};
        if (fi_cq_readerr(cq, &failed, 0) == 1 && failed.op_context != NULL) {
            out[count++] =
                (struct fabric_completion){failed.op_context, classify(failed.err), failed.err};
        }
    }
    return count;
}

static size_t f_poll(struct fabric_device *d, struct fabric_completion *out, size_t capacity) {
    struct fabric_completion none[1];
    (void)poll_one(d->target.cq, none, 1); /* peers' operations complete at the peers */
    return poll_one(d->own.cq, out, capacity);
}

static int f_fds(const struct fabric_device *d, int fds[2]) {
    if (!d->waits) {
        return ENOTSUP;
    }
    int error = error_of(fi_control(&d->target.cq->fid, FI_GETWAIT, &fds[0]));
    return error != 0 ? error : error_of(fi_control(&d->own.cq->fid, FI_GETWAIT, &fds[1]));
}

static int f_arm(struct fabric_device *d) {
    struct fid *queues[] = {&d->target.cq->fid, &d->own.cq->fid};
    return fi_trywait(d->fabric, queues, 2) == FI_SUCCESS ? 0 : EAGAIN;
}

static int f_reset(struct fabric_device *d) {
    endpoint_close(&d->own);
    return endpoint_open(d, &d->own);
}

static const struct fabric_provider provider = {
    .version = FABRIC_PROVIDER_VERSION,
    .size = sizeof(struct fabric_provider),
    .open = f_open,
    .close = f_close,
    .info = f_info,
    .region_create = f_region_create,
    .region_destroy = f_region_destroy,
    .peer_add = f_peer_add,
    .post = f_post,
    .poll = f_poll,
    .fds = f_fds,
    .arm = f_arm,
    .reset = f_reset,
};

__attribute__((visibility("default"))) const struct fabric_provider *mc_fabric_provider(void);
const struct fabric_provider *mc_fabric_provider(void) {
    return &provider;
}

/*
 * The module transport-rdma.so: libibverbs behind rdma_provider.h. Holds no policy and no state
 * beyond the verbs objects; needs nothing of libmooncake, so that it loads into any program.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te/transport/rdma_provider.h"

#define POST_CHUNK 32
#define POLL_MAX   64

#define SOFT_ROCE_VENDOR 0xffffff /* RXE_VENDOR_ID of the kernel */

struct rdma_device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint8_t port;
};
struct rdma_region {
    struct ibv_mr *mr;
};
struct rdma_cq {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
};
struct rdma_qp {
    struct ibv_qp *qp;
};

static int no_wait(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ? errno : 0;
}

/* ---- devices ---- */

static size_t v_list(char (*names)[RDMA_NAME_MAX], size_t capacity) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (list == NULL) {
        return 0;
    }
    for (int i = 0; i < count && (size_t)i < capacity; i++) {
        snprintf(names[i], RDMA_NAME_MAX, "%s", ibv_get_device_name(list[i]));
    }
    ibv_free_device_list(list);
    return (size_t)count;
}

static struct ibv_context *open_by_name(const char *name) {
    struct ibv_context *context = NULL;
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), name) == 0) {
            context = ibv_open_device(list[i]);
            break;
        }
    }
    int error = errno;
    if (list != NULL) {
        ibv_free_device_list(list);
    }
    errno = error;
    return context;
}

static int v_open(const char *name, uint8_t port, struct rdma_device **out) {
    errno = ENODEV;
    struct ibv_context *context = open_by_name(name);
    if (context == NULL) {
        return errno != 0 ? errno : ENODEV;
    }
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int error = pd == NULL ? errno : no_wait(context->async_fd);
    struct rdma_device *device = error == 0 ? calloc(1, sizeof(*device)) : NULL;
    if (device == NULL) {
        if (pd != NULL) {
            ibv_dealloc_pd(pd);
        }
        ibv_close_device(context);
        return error != 0 ? error : ENOMEM;
    }
    *device = (struct rdma_device){context, pd, port};
    *out = device;
    return 0;
}

static void v_close(struct rdma_device *device) {
    ibv_dealloc_pd(device->pd);
    ibv_close_device(device->context);
    free(device);
}

static uint64_t lane_bits(uint8_t speed) {
    switch (speed) {
    case 1:
        return 2500000000ull;
    case 2:
        return 5000000000ull;
    case 4:
    case 8:
        return 10000000000ull;
    case 16:
        return 14000000000ull;
    case 32:
        return 25000000000ull;
    case 64:
        return 50000000000ull;
    case 128:
        return 100000000000ull;
    default:
        return 0;
    }
}

static unsigned lanes(uint8_t width) {
    switch (width) {
    case 1:
        return 1;
    case 2:
        return 4;
    case 4:
        return 8;
    case 8:
        return 12;
    case 16:
        return 2;
    default:
        return 0;
    }
}

static void read_place(const struct rdma_device *device, struct rdma_port_info *info) {
    char path[PATH_MAX], target[PATH_MAX];
    snprintf(path, sizeof(path), "%s/device/numa_node", device->context->device->ibdev_path);
    info->numa_node = -1;
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%d", &info->numa_node) != 1) {
            info->numa_node = -1;
        }
        fclose(file);
    }
    snprintf(path, sizeof(path), "%s/device", device->context->device->ibdev_path);
    if (realpath(path, target) != NULL) {
        unsigned domain, bus, slot, function;
        const char *last = strrchr(target, '/') + 1;
        if (sscanf(last, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4 &&
            strlen(last) < sizeof(info->pci)) {
            strcpy(info->pci, last);
        }
    }
}

static int v_query(struct rdma_device *device, struct rdma_port_info *info) {
    struct ibv_port_attr port;
    struct ibv_device_attr attr;
    int error = ibv_query_port(device->context, device->port, &port);
    if (error == 0) {
        error = ibv_query_device(device->context, &attr);
    }
    if (error != 0) {
        return error > 0 ? error : EIO;
    }
    int reads = attr.max_qp_rd_atom < attr.max_qp_init_rd_atom ? attr.max_qp_rd_atom
                                                               : attr.max_qp_init_rd_atom;
    *info = (struct rdma_port_info){
        .active = port.state == IBV_PORT_ACTIVE,
        .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET,
        .soft_roce = attr.vendor_id == SOFT_ROCE_VENDOR && attr.vendor_part_id == 0,
        .lid = port.lid,
        .mtu = 128u << port.active_mtu,
        .max_region = attr.max_mr_size,
        .max_message = port.max_msg_sz,
        .max_qp = (uint32_t)attr.max_qp,
        .max_qp_wr = (uint32_t)attr.max_qp_wr,
        .max_cqe = (uint32_t)attr.max_cqe,
        .max_reads = reads < 1 ? 1 : (uint32_t)reads,
        .bits_a_second = lane_bits(port.active_speed) * lanes(port.active_width),
    };
    read_place(device, info);
    return 0;
}

static size_t v_gids(struct rdma_device *device, struct rdma_gid *gids, size_t capacity) {
    struct ibv_gid_entry entries[RDMA_GIDS_MAX];
    ssize_t count = ibv_query_gid_table(device->context, entries, RDMA_GIDS_MAX, 0);
    size_t kept = 0;
    for (ssize_t i = 0; i < count && kept < capacity; i++) {
        if (entries[i].port_num != device->port) {
            continue;
        }
        memcpy(gids[kept].raw, entries[i].gid.raw, 16);
        gids[kept].index = entries[i].gid_index;
        gids[kept].type = entries[i].gid_type == IBV_GID_TYPE_IB        ? RDMA_GID_IB
                          : entries[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? RDMA_GID_ROCE_V1
                                                                        : RDMA_GID_ROCE_V2;
        kept++;
    }
    return kept;
}

/* ---- memory ---- */

static unsigned access_flags(unsigned access) {
    unsigned flags = IBV_ACCESS_LOCAL_WRITE;
    if ((access & RDMA_ACCESS_REMOTE) != 0) {
        flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    }
    /* Of the optional range: a kernel or device that does not know it leaves it out. */
    if ((access & RDMA_ACCESS_RELAXED) != 0) {
        flags |= IBV_ACCESS_RELAXED_ORDERING;
    }
    return flags;
}

static int wrap_region(struct ibv_mr *mr, struct rdma_region **out, uint32_t *lkey,
                       uint32_t *rkey) {
    if (mr == NULL) {
        return errno != 0 ? errno : EIO;
    }
    struct rdma_region *region = calloc(1, sizeof(*region));
    if (region == NULL) {
        ibv_dereg_mr(mr);
        return ENOMEM;
    }
    region->mr = mr;
    *lkey = mr->lkey;
    *rkey = mr->rkey;
    *out = region;
    return 0;
}

static int v_region_create(struct rdma_device *device, uint64_t addr, uint64_t length,
                           unsigned access, struct rdma_region **out, uint32_t *lkey,
                           uint32_t *rkey) {
    errno = 0;
    struct ibv_mr *mr =
        ibv_reg_mr_iova2(device->pd, (void *)(uintptr_t)addr, length, addr, access_flags(access));
    return wrap_region(mr, out, lkey, rkey);
}

static int v_region_create_dmabuf(struct rdma_device *device, int fd, uint64_t offset,
                                  uint64_t addr, uint64_t length, unsigned access,
                                  struct rdma_region **out, uint32_t *lkey, uint32_t *rkey) {
    errno = 0;
    struct ibv_mr *mr =
        ibv_reg_dmabuf_mr(device->pd, offset, length, addr, fd, (int)access_flags(access));
    if (mr == NULL && (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT)) {
        return ENOTSUP;
    }
    return wrap_region(mr, out, lkey, rkey);
}

static int v_region_destroy(struct rdma_region *region) {
    int error = ibv_dereg_mr(region->mr);
    free(region);
    return error;
}

/* ---- completion queues ---- */

static int v_cq_create(struct rdma_device *device, uint32_t depth, struct rdma_cq **out) {
    struct rdma_cq *cq = calloc(1, sizeof(*cq));
    if (cq == NULL) {
        return ENOMEM;
    }
    int error = 0;
    cq->channel = ibv_create_comp_channel(device->context);
    if (cq->channel == NULL || (error = no_wait(cq->channel->fd)) != 0) {
        error = error != 0 ? error : errno;
        goto fail_channel;
    }
    cq->cq = ibv_create_cq(device->context, (int)depth, cq, cq->channel, 0);
    if (cq->cq == NULL) {
        error = errno;
        goto fail_channel;
    }
    *out = cq;
    return 0;
fail_channel:
    if (cq->channel != NULL) {
        ibv_destroy_comp_channel(cq->channel);
    }
    free(cq);
    return error != 0 ? error : EIO;
}

static void v_cq_destroy(struct rdma_cq *cq) {
    ibv_destroy_cq(cq->cq);
    ibv_destroy_comp_channel(cq->channel);
    free(cq);
}

static int v_cq_fd(struct rdma_cq *cq) {
    return cq->channel->fd;
}

static int v_cq_arm(struct rdma_cq *cq) {
    return ibv_req_notify_cq(cq->cq, 0);
}

static void v_cq_ack(struct rdma_cq *cq) {
    struct ibv_cq *which;
    void *context;
    while (ibv_get_cq_event(cq->channel, &which, &context) == 0) {
        ibv_ack_cq_events(which, 1);
    }
}

static enum rdma_wc_status wc_status(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_SUCCESS:
        return RDMA_WC_OK;
    case IBV_WC_WR_FLUSH_ERR:
        return RDMA_WC_FLUSHED;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return RDMA_WC_UNREACHABLE;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return RDMA_WC_REMOTE_DENIED;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
        return RDMA_WC_LOCAL;
    default:
        return RDMA_WC_OTHER;
    }
}

static int v_cq_poll(struct rdma_cq *cq, struct rdma_wc *wcs, int capacity) {
    struct ibv_wc raw[POLL_MAX];
    int count = ibv_poll_cq(cq->cq, capacity < POLL_MAX ? capacity : POLL_MAX, raw);
    for (int i = 0; i < count; i++) {
        wcs[i] = (struct rdma_wc){raw[i].wr_id, raw[i].qp_num, wc_status(raw[i].status),
                                  raw[i].status << 16 | (raw[i].vendor_err & 0xffff)};
    }
    return count;
}

/* ---- queue pairs ---- */

static int v_qp_create(struct rdma_device *device, struct rdma_cq *cq,
                       struct rdma_qp_limits *limits, struct rdma_qp **out, uint32_t *number) {
    struct ibv_qp_init_attr attr = {
        .send_cq = cq->cq,
        .recv_cq = cq->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = limits->send_wrs,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = limits->inline_bytes},
    };
    struct rdma_qp *qp = calloc(1, sizeof(*qp));
    if (qp == NULL) {
        return ENOMEM;
    }
    qp->qp = ibv_create_qp(device->pd, &attr);
    if (qp->qp == NULL && attr.cap.max_inline_data > 0) { /* some devices have no inline at all */
        attr.cap.max_inline_data = 0;
        qp->qp = ibv_create_qp(device->pd, &attr);
    }
    if (qp->qp == NULL) {
        int error = errno != 0 ? errno : EIO;
        free(qp);
        return error;
    }
    limits->inline_bytes = attr.cap.max_inline_data;
    *number = qp->qp->qp_num;
    *out = qp;
    return 0;
}

static int to_reset(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    return qp->state == IBV_QPS_RESET ? 0 : ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static int to_init(struct ibv_qp *qp, const struct rdma_path *path) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = path->pkey_index,
        .port_num = path->local_port,
        .qp_access_flags =
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    };
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_receive(struct ibv_qp *qp, const struct rdma_path *path) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)(__builtin_ctz(path->mtu) - 7),
        .dest_qp_num = path->qp_num,
        .rq_psn = 0,
        .max_dest_rd_atomic = path->reads,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = path->lid,
                    .sl = path->service_level,
                    .is_global = path->global,
                    .port_num = path->local_port},
    };
    if (path->global) {
        memcpy(attr.ah_attr.grh.dgid.raw, path->gid, 16);
        attr.ah_attr.grh.sgid_index = (uint8_t)path->gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.grh.traffic_class = path->traffic_class;
    }
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_send(struct ibv_qp *qp, const struct rdma_path *path) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = path->timeout,
        .retry_cnt = path->retry_count,
        .rnr_retry = 7,
        .sq_psn = 0,
        .max_rd_atomic = path->reads,
    };
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int v_qp_connect(struct rdma_qp *qp, const struct rdma_path *path) {
    int error = to_reset(qp->qp);
    error = error != 0 ? error : to_init(qp->qp, path);
    error = error != 0 ? error : to_receive(qp->qp, path);
    return error != 0 ? error : to_send(qp->qp, path);
}

static int v_qp_fail(struct rdma_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return ibv_modify_qp(qp->qp, &attr, IBV_QP_STATE);
}

static void v_qp_destroy(struct rdma_qp *qp) {
    ibv_destroy_qp(qp->qp);
    free(qp);
}

static void fill_wr(struct ibv_send_wr *wr, struct ibv_sge *sge, const struct rdma_wr *from) {
    *sge = (struct ibv_sge){from->local, from->length, from->lkey};
    *wr = (struct ibv_send_wr){
        .wr_id = from->id,
        .sg_list = sge,
        .num_sge = 1,
        .opcode = from->write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
        .send_flags = IBV_SEND_SIGNALED | (from->inlined ? IBV_SEND_INLINE : 0),
        .wr = {.rdma = {from->remote, from->rkey}},
    };
}

static int v_qp_post(struct rdma_qp *qp, const struct rdma_wr *wrs, size_t count, size_t *posted) {
    struct ibv_send_wr raw[POST_CHUNK], *bad = NULL;
    struct ibv_sge sges[POST_CHUNK];
    *posted = 0;
    while (*posted < count) {
        size_t n = count - *posted < POST_CHUNK ? count - *posted : POST_CHUNK;
        for (size_t i = 0; i < n; i++) {
            fill_wr(&raw[i], &sges[i], &wrs[*posted + i]);
            raw[i].next = i + 1 < n ? &raw[i + 1] : NULL;
        }
        int error = ibv_post_send(qp->qp, raw, &bad);
        if (error != 0) {
            *posted += (size_t)(bad - raw);
            return error > 0 ? error : EIO;
        }
        *posted += n;
    }
    return 0;
}

/* ---- events ---- */

static int v_event_fd(struct rdma_device *device) {
    return device->context->async_fd;
}

static enum rdma_event event_of(enum ibv_event_type type) {
    switch (type) {
    case IBV_EVENT_PORT_ERR:
        return RDMA_EVENT_PORT_DOWN;
    case IBV_EVENT_PORT_ACTIVE:
        return RDMA_EVENT_PORT_UP;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
        return RDMA_EVENT_GID_CHANGE;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
        return RDMA_EVENT_DEVICE_FATAL;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        return RDMA_EVENT_QP;
    default:
        return RDMA_EVENT_OTHER;
    }
}

static enum rdma_event v_event_next(struct rdma_device *device) {
    struct ibv_async_event event;
    if (ibv_get_async_event(device->context, &event) != 0) {
        return RDMA_EVENT_NONE;
    }
    enum rdma_event what = event_of(event.event_type);
    bool of_port =
        what == RDMA_EVENT_PORT_DOWN || what == RDMA_EVENT_PORT_UP || what == RDMA_EVENT_GID_CHANGE;
    if (of_port && event.element.port_num != device->port) {
        what = RDMA_EVENT_OTHER;
    }
    ibv_ack_async_event(&event);
    return what;
}

static const struct rdma_provider provider = {
    .version = RDMA_PROVIDER_VERSION,
    .size = sizeof(struct rdma_provider),
    .name = "libibverbs",
    .list = v_list,
    .open = v_open,
    .close = v_close,
    .query = v_query,
    .gids = v_gids,
    .region_create = v_region_create,
    .region_create_dmabuf = v_region_create_dmabuf,
    .region_destroy = v_region_destroy,
    .cq_create = v_cq_create,
    .cq_destroy = v_cq_destroy,
    .cq_fd = v_cq_fd,
    .cq_arm = v_cq_arm,
    .cq_ack = v_cq_ack,
    .cq_poll = v_cq_poll,
    .qp_create = v_qp_create,
    .qp_connect = v_qp_connect,
    .qp_fail = v_qp_fail,
    .qp_destroy = v_qp_destroy,
    .qp_post = v_qp_post,
    .event_fd = v_event_fd,
    .event_next = v_event_next,
};

__attribute__((visibility("default"))) const struct rdma_provider *mc_rdma_provider(void);
const struct rdma_provider *mc_rdma_provider(void) {
    return &provider;
}

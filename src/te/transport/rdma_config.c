/*
 * Settings of the rdma transport, by upstream's names, and choices that need no device: which of
 * a port's GIDs stands for it, the MTU of a path, and whether a kernel's Soft-RoCE can be used.
 */
#include <stdio.h>

#include "base/env.h"
#include "te/transport/rdma.h"

void rdma_config_read(struct rdma_config *c) {
    uint64_t gid = mc_env_u64("MC_GID_INDEX", 0, 255, UINT64_MAX);
    if (gid == UINT64_MAX) {
        gid = mc_env_u64("NCCL_IB_GID_INDEX", 0, 255, UINT64_MAX);
    }
    uint64_t tc = mc_env_u64("MC_IB_TC", 0, 255, 0), sl = mc_env_u64("MC_IB_SL", 0, 15, 0);
    uint64_t mtu = mc_env_u64("MC_MTU", 512, 4096, 4096);
    *c = (struct rdma_config){
        .qps = (uint32_t)mc_env_u64("MC_NUM_QP_PER_EP", 1, MC_RDMA_QPS_MAX, 2),
        .endpoints_max = (uint32_t)mc_env_u64("MC_MAX_EP_PER_CTX", 1, 1u << 20, 65536),
        .max_wr = (uint32_t)mc_env_u64("MC_MAX_WR", 1, 32768, 256),
        .inline_bytes = (uint32_t)mc_env_u64("MC_MAX_INLINE", 0, 1024, 64),
        .cq_depth = (uint32_t)mc_env_u64("MC_MAX_CQE_PER_CTX", 1, 1u << 22, 4096),
        .mtu = rdma_choose_mtu(0, (uint32_t)mtu, 0),
        .gid_index = gid == UINT64_MAX ? -1 : (int)gid,
        .port = (uint8_t)mc_env_u64("MC_IB_PORT", 1, 255, 1),
        .pkey_index = (uint16_t)mc_env_u64("MC_PKEY_INDEX", 0, UINT16_MAX, 0),
        .traffic_class = (uint8_t)tc,
        .service_level = (uint8_t)sl,
        .max_region = mc_env_u64("MC_MAX_MR_SIZE", 4096, 1ull << 46, 1ull << 40),
        .gpu_direct = !mc_env_bool("MC_DISABLE_GPU_DIRECT_RDMA", false),
        .relaxed = mc_env_u64("MC_IB_PCI_RELAXED_ORDERING", 0, 2, 2) != 0,
        .pause_ns = mc_env_u64("MC_RDMA_RAIL_PAUSE_SECONDS", 1, 3600, 30) * MC_SEC,
    };
}

/* ---- Soft-RoCE of old kernels ---- */

bool rdma_soft_roce_is_sound(const char *release) {
    unsigned major = 0, minor = 0;
    return sscanf(release, "%u.%u", &major, &minor) == 2 &&
           (major > 6 || (major == 6 && minor >= 12));
}

/* ---- GID ---- */

static bool is_v4_mapped(const uint8_t gid[16]) {
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

static bool is_zero(const uint8_t gid[16]) {
    static const uint8_t zero[16];
    return memcmp(gid, zero, sizeof(zero)) == 0;
}

static int gid_rank(const struct rdma_gid *gid, bool ethernet) {
    if (is_zero(gid->raw)) {
        return -1;
    }
    if (!ethernet) {
        return 1;
    }
    int rank = gid->type == RDMA_GID_ROCE_V2 ? 8 : gid->type == RDMA_GID_ROCE_V1 ? 4 : 0;
    bool link_local = gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
    return rank + (is_v4_mapped(gid->raw) ? 2 : link_local ? 0 : 1);
}

bool rdma_choose_gid(const struct rdma_gid *gids, size_t count, bool ethernet, int wanted,
                     struct rdma_gid *out) {
    const struct rdma_gid *best = NULL;
    int best_rank = -1;
    for (size_t i = 0; i < count; i++) {
        int rank = gid_rank(&gids[i], ethernet);
        if (wanted >= 0) {
            rank = gids[i].index == (uint32_t)wanted ? 1 : -1;
        }
        if (rank > best_rank) { /* of equals the first */
            best = &gids[i];
            best_rank = rank;
        }
    }
    if (best == NULL) {
        return false;
    }
    *out = *best;
    return true;
}

uint32_t rdma_choose_mtu(uint32_t port, uint32_t configured, uint32_t peer) {
    const uint32_t limits[] = {port, configured, peer};
    uint32_t mtu = 4096;
    for (size_t i = 0; i < MC_ARRAY_LEN(limits); i++) {
        while (limits[i] != 0 && mtu > 256 && mtu > limits[i]) {
            mtu /= 2;
        }
    }
    return mtu;
}

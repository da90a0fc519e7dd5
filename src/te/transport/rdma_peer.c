/*
 * The NICs of an opened segment, and which of them a slice goes to.
 *
 * The engine has chosen the local NIC. Of the peer's, first come those that its priority matrix
 * prefers for the memory's location, then the others that the matrix allows; a path that failed
 * just now comes last. Among equals, the one that seems to be on the same network as the local NIC:
 * by the whole bytes that both addresses have in common (rails of a rail-optimised network are
 * subnets), then by an equal name, then by turns, so that two hosts with n NICs each use n pairs.
 */
#include <jansson.h>
#include <stdio.h>

#include "te/transport/rdma.h"

/* ---- the order of remotes for a context ---- */

static unsigned common_bytes(const uint8_t a[16], const uint8_t b[16]) {
    unsigned n = 0;
    while (n < 16 && a[n] == b[n]) {
        n++;
    }
    return n;
}

static void rank_remotes(const struct rdma_context *context, const struct mc_rdma_desc *rdma,
                         uint8_t order[MC_RDMA_DEVICES_MAX]) {
    uint32_t score[MC_RDMA_DEVICES_MAX];
    unsigned count = (unsigned)rdma->device_count;
    for (unsigned i = 0; i < count; i++) {
        const struct mc_rdma_device_desc *device = &rdma->devices[i];
        uint32_t shared = common_bytes(context->gid.raw, device->gid);
        bool same_name = strcmp(context->name, device->name) == 0;
        uint32_t turn = (i + count - context->index % count) % count;
        score[i] = shared << 16 | (uint32_t)same_name << 15 | (count - 1 - turn);
        order[i] = (uint8_t)i;
    }
    for (unsigned i = 1; i < count; i++) { /* few: insertion sort, best first */
        uint8_t moving = order[i];
        unsigned at = i;
        for (; at > 0 && score[order[at - 1]] < score[moving]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = moving;
    }
}

/* ---- the priority matrix ---- */

static uint64_t bits_of(const struct mc_rdma_desc *rdma, const json_t *names) {
    uint64_t bits = 0;
    for (size_t n = 0; n < json_array_size(names); n++) {
        const char *name = json_string_value(json_array_get(names, n));
        for (size_t i = 0; name != NULL && i < rdma->device_count; i++) {
            if (strcmp(rdma->devices[i].name, name) == 0) {
                bits |= 1ull << i;
            }
        }
    }
    return bits;
}

static void read_matrix(struct rdma_peer *peer) {
    const struct mc_peer_desc *desc = peer->desc;
    const char *text = desc->rdma->priority_matrix;
    json_t *matrix = text == NULL ? NULL : json_loads(text, 0, NULL);
    uint64_t all =
        desc->rdma->device_count == 64 ? UINT64_MAX : (1ull << desc->rdma->device_count) - 1;
    for (size_t i = 0; i < desc->buffer_count; i++) {
        json_t *row = json_object_get(matrix, desc->buffers[i].location);
        peer->preferred[i] = bits_of(desc->rdma, json_array_get(row, 0));
        peer->available[i] = bits_of(desc->rdma, json_array_get(row, 1)) | peer->preferred[i];
        if (peer->available[i] == 0) { /* no word on this location: any will do */
            peer->preferred[i] = peer->available[i] = all;
        }
    }
    json_decref(matrix);
}

/* ---- life ---- */

struct rdma_peer *rdma_peer_new(const struct rdma_transport *t, struct mc_peer_desc *desc) {
    const struct mc_rdma_desc *rdma = desc->rdma;
    if (rdma == NULL || rdma->key_count == 0) {
        return NULL;
    }
    struct rdma_peer *peer = mc_zalloc(sizeof(*peer));
    atomic_store_explicit(&peer->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&desc->refs, 1, memory_order_relaxed);
    peer->desc = desc;
    peer->remote_count = (unsigned)rdma->device_count;
    peer->remotes = mc_zalloc(peer->remote_count * sizeof(*peer->remotes));
    const char *server = rdma->server_name[0] != '\0' ? rdma->server_name : desc->name;
    for (unsigned i = 0; i < peer->remote_count; i++) {
        snprintf(peer->remotes[i].path, sizeof(peer->remotes[i].path), "%s@%s", server,
                 rdma->devices[i].name);
        peer->remotes[i].hash = rdma_pool_hash(peer->remotes[i].path);
    }
    for (unsigned i = 0; i < t->context_count; i++) {
        rank_remotes(t->contexts[i], rdma, peer->order[i]);
    }
    peer->preferred = mc_zalloc((desc->buffer_count + 1) * sizeof(*peer->preferred));
    peer->available = mc_zalloc((desc->buffer_count + 1) * sizeof(*peer->available));
    read_matrix(peer);
    return peer;
}

void rdma_peer_put(struct rdma_peer *peer) {
    if (peer == NULL || atomic_fetch_sub_explicit(&peer->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    mc_peer_desc_put(peer->desc);
    free(peer->remotes);
    free(peer->preferred);
    free(peer->available);
    free(peer);
}

struct rdma_peer *rdma_peer_of(struct rdma_transport *t, struct mc_segment *segment) {
    pthread_mutex_lock(&t->peers_lock);
    struct rdma_peer *peer = segment->transport_state[t->base.index];
    if (peer != NULL) {
        atomic_fetch_add_explicit(&peer->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&t->peers_lock);
    return peer;
}

/* ---- choosing ---- */

unsigned rdma_peer_choose(const struct rdma_peer *peer, const struct rdma_context *context,
                          uint64_t addr) {
    const uint8_t *order = peer->order[context->index];
    uint64_t now = mc_now_ns(mc_clock_system()), rested = 0;
    for (unsigned i = 0; i < peer->remote_count; i++) {
        rested |= (uint64_t)!rdma_penalised(context, peer->remotes[i].hash, now) << i;
    }
    const struct mc_peer_buffer *buffer = mc_peer_desc_find(peer->desc, addr, 1);
    size_t at = buffer == NULL ? 0 : (size_t)(buffer - peer->desc->buffers);
    const uint64_t sets[] = {buffer == NULL ? 0 : peer->preferred[at] & rested,
                             buffer == NULL ? 0 : peer->available[at] & rested, rested, UINT64_MAX};
    for (size_t s = 0; s < MC_ARRAY_LEN(sets); s++) {
        for (unsigned i = 0; i < peer->remote_count; i++) {
            if ((sets[s] >> order[i] & 1) != 0) {
                return order[i];
            }
        }
    }
    return order[0];
}

bool rdma_peer_key(const struct rdma_peer *peer, uint64_t addr, unsigned remote, uint32_t *rkey,
                   uint64_t *length) {
    const struct mc_rdma_desc *rdma = peer->desc->rdma;
    const struct mc_rdma_keys_desc *keys = mc_rdma_desc_find(rdma, addr);
    if (keys == NULL) {
        return false;
    }
    *rkey = rdma->rkeys[keys->first + remote];
    *length = keys->addr + keys->length - addr;
    return true;
}

/*
 * Pieces of one registered region, in a list by address; a new piece takes the first gap that it
 * fits in. A piece that was not given back is taken away when its time is over, at the next request
 * for memory: its reader counts the same time from before it asked, so it does not look any more.
 */
#include <pthread.h>

#include "client/offload.h"

#define GRACE_MS 100 /* clocks that do not run alike */

struct piece {
    struct mc_list link; /* by address */
    uint64_t batch;
    uint64_t offset, bytes;
    uint64_t ends_ns; /* MC_NO_DEADLINE while it is being filled */
};

struct mc_offload_buffers {
    const struct mc_clock *clock;
    char *base;
    uint64_t bytes;
    uint64_t ttl_ns;
    pthread_mutex_t lock; /* guards what follows */
    struct mc_list pieces;
    uint64_t last_batch;
};

struct mc_offload_buffers *mc_offload_buffers_create(void *memory, uint64_t bytes, uint64_t ttl_ms,
                                                     uint64_t first, const struct mc_clock *clock) {
    struct mc_offload_buffers *b = mc_zalloc(sizeof(*b));
    b->clock = clock;
    b->base = memory;
    b->bytes = bytes;
    b->last_batch = first;
    b->ttl_ns = (ttl_ms + GRACE_MS) * MC_MS;
    mc_list_init(&b->pieces);
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

static void piece_free(struct piece *piece) {
    mc_list_del(&piece->link);
    free(piece);
}

void mc_offload_buffers_destroy(struct mc_offload_buffers *b) {
    if (b == NULL) {
        return;
    }
    while (!mc_list_empty(&b->pieces)) {
        piece_free(mc_container_of(b->pieces.next, struct piece, link));
    }
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static void expire_locked(struct mc_offload_buffers *b) {
    uint64_t now = mc_now_ns(b->clock);
    for (struct mc_list *at = b->pieces.next, *next; at != &b->pieces; at = next) {
        struct piece *piece = mc_container_of(at, struct piece, link);
        next = at->next;
        if (piece->ends_ns <= now) {
            piece_free(piece);
        }
    }
}

enum mc_status mc_offload_buffers_take(struct mc_offload_buffers *b, uint64_t bytes,
                                       uint64_t *batch, char **memory) {
    enum mc_status status = MC_BUFFER_OVERFLOW;
    uint64_t begin = 0;
    bytes = (bytes + MC_TIER_BLOCK - 1) / MC_TIER_BLOCK * MC_TIER_BLOCK;
    pthread_mutex_lock(&b->lock);
    expire_locked(b);
    struct mc_list *at = b->pieces.next;
    for (; at != &b->pieces; at = at->next) {
        const struct piece *piece = mc_container_of(at, struct piece, link);
        if (piece->offset - begin >= bytes) {
            break;
        }
        begin = piece->offset + piece->bytes;
    }
    if (mc_range_inside(begin, bytes, 0, b->bytes)) {
        struct piece *fresh = mc_zalloc(sizeof(*fresh));
        *fresh = (struct piece){
            .batch = ++b->last_batch, .offset = begin, .bytes = bytes, .ends_ns = MC_NO_DEADLINE};
        mc_list_push_back(at, &fresh->link); /* before `at` */
        *batch = fresh->batch;
        *memory = b->base + begin;
        status = MC_OK;
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

static struct piece *find_locked(struct mc_offload_buffers *b, uint64_t batch) {
    for (struct mc_list *at = b->pieces.next; at != &b->pieces; at = at->next) {
        struct piece *piece = mc_container_of(at, struct piece, link);
        if (piece->batch == batch) {
            return piece;
        }
    }
    return NULL;
}

void mc_offload_buffers_lend(struct mc_offload_buffers *b, uint64_t batch) {
    pthread_mutex_lock(&b->lock);
    struct piece *piece = find_locked(b, batch);
    MC_ASSERT(piece != NULL); /* one that is being filled does not expire */
    piece->ends_ns = mc_now_ns(b->clock) + b->ttl_ns;
    pthread_mutex_unlock(&b->lock);
}

bool mc_offload_buffers_release(struct mc_offload_buffers *b, uint64_t batch) {
    pthread_mutex_lock(&b->lock);
    struct piece *piece = find_locked(b, batch);
    bool lent = piece != NULL && piece->ends_ns != MC_NO_DEADLINE; /* a peer may name any number */
    if (lent) {
        piece_free(piece);
    }
    pthread_mutex_unlock(&b->lock);
    return lent;
}

void mc_offload_buffers_drop(struct mc_offload_buffers *b, uint64_t batch) {
    pthread_mutex_lock(&b->lock);
    struct piece *piece = find_locked(b, batch);
    MC_ASSERT(piece != NULL && piece->ends_ns == MC_NO_DEADLINE);
    piece_free(piece);
    pthread_mutex_unlock(&b->lock);
}

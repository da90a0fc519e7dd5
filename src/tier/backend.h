/* What a backend of the tier is: a table of functions. Private to the room; see tier/tier.h. */
#ifndef MC_TIER_BACKEND_H
#define MC_TIER_BACKEND_H

#include <pthread.h>

#include "tier/index.h"
#include "tier/tier.h"

/* The head of every backend's own struct. */
struct mc_tier_backend {
    const struct mc_tier_backend_ops *ops;
    pthread_mutex_t lock; /* a leaf: guards the index, and more of the backend's own */
    struct mc_tier_index index;
};

struct mc_tier_backend_ops {
    const char *name; /* upstream's */
    bool borrows;     /* its put asks `still` */
    /* The directory is locked; `config` outlives the backend. */
    enum mc_status (*open)(const struct mc_tier_config *config, struct mc_tier_backend **out);
    void (*close)(struct mc_tier_backend *backend);
    void (*put)(struct mc_tier_backend *backend, struct mc_tier_item *items, size_t count);
    void (*read)(struct mc_tier_backend *backend, struct mc_tier_read *reads, size_t count);
    /* *removed: how many were there. */
    enum mc_status (*remove)(struct mc_tier_backend *backend, const struct mc_str *keys,
                             size_t count, size_t *removed);
    enum mc_status (*clear)(struct mc_tier_backend *backend);
    /* MC_OK: what was taken out is not found by the next start. */
    enum mc_status (*settle)(struct mc_tier_backend *backend);
    /* Says bucket_id and offset of an entry; needs the lock. NULL: it has a file of its own. */
    void (*place)(const struct mc_tier_entry *entry, struct mc_tier_found *out);
    /* NULL: where a command carries its own addresses. */
    void (*use_memory)(struct mc_tier_backend *backend, void *memory, size_t bytes);
    void (*stats)(struct mc_tier_backend *backend, struct mc_tier_stats *out);
};

/* The next object of a walk over all (mc_tier_index_next): its key is appended. False at the
 * end. */
bool mc_tier_backend_next(struct mc_tier_backend *backend, uint64_t *cursor, struct mc_buf *key,
                          uint64_t *size);

extern const struct mc_tier_backend_ops mc_tier_bucket, mc_tier_perkey, mc_tier_offset,
    mc_tier_nvmekv;

#endif

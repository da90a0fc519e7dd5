/* What a backend of the tier is: a table of functions. Private to the room; see tier/tier.h. */
#ifndef MC_TIER_BACKEND_H
#define MC_TIER_BACKEND_H

#include "tier/tier.h"

/* The head of every backend's own struct. */
struct mc_tier_backend {
    const struct mc_tier_backend_ops *ops;
};

struct mc_tier_backend_ops {
    const char *name; /* upstream's */
    /* The directory is locked; `config` outlives the backend. */
    enum mc_status (*open)(const struct mc_tier_config *config, struct mc_tier_backend **out);
    void (*close)(struct mc_tier_backend *backend);
    void (*put)(struct mc_tier_backend *backend, struct mc_tier_item *items, size_t count);
    void (*read)(struct mc_tier_backend *backend, struct mc_tier_read *reads, size_t count);
    bool (*find)(struct mc_tier_backend *backend, struct mc_str key, uint64_t *size);
    /* *removed: how many were there. */
    enum mc_status (*remove)(struct mc_tier_backend *backend, const struct mc_str *keys,
                             size_t count, size_t *removed);
    enum mc_status (*clear)(struct mc_tier_backend *backend);
    void (*scan)(struct mc_tier_backend *backend,
                 bool (*fn)(void *ctx, const struct mc_tier_found *found), void *ctx);
    /* The next object of a walk over all (mc_tier_index_next); the key is appended. */
    bool (*next)(struct mc_tier_backend *backend, uint64_t *cursor, struct mc_buf *key,
                 uint64_t *size);
    void (*use_memory)(struct mc_tier_backend *backend, void *memory, size_t bytes);
    void (*stats)(struct mc_tier_backend *backend, struct mc_tier_stats *out);
};

extern const struct mc_tier_backend_ops mc_tier_bucket, mc_tier_perkey, mc_tier_offset,
    mc_tier_nvmekv;

#endif

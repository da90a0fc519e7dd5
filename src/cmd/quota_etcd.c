/*
 * Tenants' quotas in etcd: the same text as in a file, under upstream's key. A key that is not
 * there is a policy without tenants. One master writes; who else changes the key is read at the
 * next start.
 */
#include "cmd/quota_etcd.h"

#include "base/log.h"
#include "meta/meta.h"

struct quota_etcd {
    struct mc_meta_kv *kv;
    char *key;
};

static enum mc_status load(void *ctx, struct mc_buf *text) {
    struct quota_etcd *q = ctx;
    enum mc_status status = q->kv->ops->get(q->kv, q->key, text);
    if (status == MC_ERR_NOT_FOUND) {
        mc_buf_clear(text);
        return MC_OK;
    }
    return status;
}

static enum mc_status save(void *ctx, struct mc_str text) {
    struct quota_etcd *q = ctx;
    text.len -= text.len > 0 && text.ptr[text.len - 1] == '\n'; /* a put ends the line itself */
    return q->kv->ops->put(q->kv, q->key, text, false) == MC_OK ? MC_OK : MC_PERSISTENT_FAIL;
}

enum mc_status mc_quota_etcd_open(const char *endpoints, const char *cluster_id,
                                  struct mc_quota_store *out) {
    struct mc_meta_kv *kv;
    MC_TRY(mc_meta_etcd_ops.open(endpoints, 1, &kv)); /* nothing is leased */
    struct quota_etcd *q = mc_zalloc(sizeof(*q));
    struct mc_buf key = {0};
    mc_buf_printf(&key, "mooncake-store/%s/tenant_quota_policy", cluster_id);
    q->kv = kv;
    q->key = mc_strdup(mc_buf_cstr(&key));
    mc_buf_free(&key);
    *out = (struct mc_quota_store){.load = load, .save = save, .ctx = q};
    return MC_OK;
}

void mc_quota_etcd_close(struct mc_quota_store *store) {
    struct quota_etcd *q = store->ctx;
    if (q != NULL) {
        q->kv->ops->close(q->kv);
        free(q->key);
        free(q);
    }
    *store = (struct mc_quota_store){0};
}

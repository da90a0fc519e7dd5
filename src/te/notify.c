/*
 * Notifications: a bounded ring of messages that peers left here, and the sending of them by
 * handshake. When the ring is full the oldest message goes, and is counted: a reader that has
 * stopped reading cannot fill the memory.
 */
#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

void mc_notify_init(struct mc_engine *engine) {
    pthread_mutex_init(&engine->notify_lock, NULL);
    engine->notify_ring = mc_zalloc(MC_NOTIFY_MAX * sizeof(*engine->notify_ring));
}

void mc_notify_destroy(struct mc_engine *engine) {
    for (size_t i = 0; i < engine->notify_count; i++) {
        struct mc_notification *n = &engine->notify_ring[(engine->notify_head + i) % MC_NOTIFY_MAX];
        free(n->name);
        free(n->message);
    }
    free(engine->notify_ring);
    pthread_mutex_destroy(&engine->notify_lock);
}

enum mc_status mc_notify_queue(struct mc_engine *engine, struct mc_str name,
                               struct mc_str message) {
    struct mc_notification note = {mc_str_dup(name), mc_str_dup(message)};
    struct mc_notification dropped = {NULL, NULL};
    pthread_mutex_lock(&engine->notify_lock);
    if (engine->notify_count == MC_NOTIFY_MAX) {
        dropped = engine->notify_ring[engine->notify_head];
        engine->notify_head = (engine->notify_head + 1) % MC_NOTIFY_MAX;
        engine->notify_count--;
        mc_metric_add(&engine->notify_dropped, 1);
    }
    engine->notify_ring[(engine->notify_head + engine->notify_count) % MC_NOTIFY_MAX] = note;
    engine->notify_count++;
    mc_metric_add(&engine->notify_received, 1);
    pthread_mutex_unlock(&engine->notify_lock);
    free(dropped.name);
    free(dropped.message);
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_notify_receive(struct mc_engine *engine, struct mc_notification **list,
                                           size_t *count) {
    pthread_mutex_lock(&engine->notify_lock);
    size_t n = engine->notify_count;
    struct mc_notification *out = n == 0 ? NULL : mc_alloc(n * sizeof(*out));
    for (size_t i = 0; i < n; i++) {
        out[i] = engine->notify_ring[(engine->notify_head + i) % MC_NOTIFY_MAX];
    }
    engine->notify_head = 0;
    engine->notify_count = 0;
    pthread_mutex_unlock(&engine->notify_lock);
    *list = out;
    *count = n;
    return MC_OK;
}

MC_PUBLIC void mc_notify_free(struct mc_notification *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(list[i].name);
        free(list[i].message);
    }
    free(list);
}

enum mc_status mc_notify_slot(struct mc_segment_slot *slot, const char *name, const char *message) {
    struct mc_engine *engine = slot->base.engine;
    if (slot->base.id == MC_LOCAL_SEGMENT) {
        return mc_notify_queue(engine, mc_str_from(name), mc_str_from(message));
    }
    struct mc_peer_desc *desc = mc_segment_desc(&slot->base);
    enum mc_status status = mc_handshake_notify(desc->host, desc->rpc_port, name, message,
                                                mc_meta_limits(engine->meta), MC_NO_DEADLINE);
    mc_peer_desc_put(desc);
    return status;
}

MC_PUBLIC enum mc_status mc_notify_send(struct mc_engine *engine, mc_segment_id segment,
                                        const char *name, const char *message) {
    if (name == NULL || message == NULL) {
        return MC_INVALID_PARAMS;
    }
    struct mc_segment_slot *slot = mc_slot_acquire(engine, segment);
    if (slot == NULL) {
        return MC_SEGMENT_NOT_FOUND;
    }
    enum mc_status status = mc_notify_slot(slot, name, message);
    mc_slot_release(slot);
    return status;
}

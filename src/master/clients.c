/*
 * Which clients are alive. A client is known from its first mount or ping on and has to be seen
 * once per client_ttl; when it is not, its segments are unmounted. It is told to remount until it
 * has told us all its segments with one ReMountSegment: a mount alone is not enough, because after
 * a restart of the master the client may own others.
 */
#include "master/core.h"
#include "master/disks.h"

#include "base/log.h"

#define CHECK_INTERVAL_MS 100u

static struct mc_client **find_locked(struct mc_master *m, struct mc_uuid id) {
    uint64_t hash = mc_hash64(&id, sizeof(id), m->hash_seed);
    struct mc_client **at = &m->clients[hash % MC_CLIENT_BUCKETS];
    while (*at && !mc_uuid_eq((*at)->id, id)) {
        at = &(*at)->next;
    }
    return at;
}

void mc_client_seen(struct mc_master *m, struct mc_uuid id, uint64_t now_ms, bool remounted) {
    mc_lock_acquire(&m->clients_lock);
    struct mc_client **at = find_locked(m, id);
    if (!*at) {
        *at = mc_zalloc(sizeof(**at));
        (*at)->id = id;
        m->client_count++;
    }
    (*at)->last_seen_ms = mc_max_u64((*at)->last_seen_ms, now_ms);
    (*at)->remounted |= remounted;
    mc_lock_release(&m->clients_lock);
}

bool mc_client_ping(struct mc_master *m, struct mc_uuid id, uint64_t now_ms) {
    mc_lock_acquire(&m->clients_lock);
    struct mc_client *c = *find_locked(m, id);
    bool ok = c && c->remounted;
    if (c) {
        c->last_seen_ms = mc_max_u64(c->last_seen_ms, now_ms);
    }
    mc_lock_release(&m->clients_lock);
    return ok;
}

void mc_client_must_remount(struct mc_master *m, struct mc_uuid id) {
    mc_lock_acquire(&m->clients_lock);
    struct mc_client *c = *find_locked(m, id);
    if (c) {
        c->remounted = false;
    }
    mc_lock_release(&m->clients_lock);
}

/* Forgets one client that was not seen for too long; false when there is none. */
static bool take_expired(struct mc_call *call, struct mc_uuid *id) {
    struct mc_master *m = call->m;
    bool found = false;
    mc_lock_acquire(&m->clients_lock);
    for (unsigned b = 0; b < MC_CLIENT_BUCKETS && !found; b++) {
        for (struct mc_client **at = &m->clients[b]; *at; at = &(*at)->next) {
            struct mc_client *c = *at;
            if (call->now_ms > c->last_seen_ms &&
                call->now_ms - c->last_seen_ms > m->config.client_ttl_ms) {
                *id = c->id;
                *at = c->next;
                m->client_count--;
                free(c);
                found = true;
                break;
            }
        }
    }
    mc_lock_release(&m->clients_lock);
    return found;
}

void mc_clients_tick(struct mc_call *call) {
    struct mc_master *m = call->m;
    struct mc_uuid id;
    if (call->now_ms < m->next_client_check_ms) {
        return;
    }
    m->next_client_check_ms = call->now_ms + CHECK_INTERVAL_MS;
    while (take_expired(call, &id)) {
        struct mc_str *names;
        size_t count = mc_segments_drop_client(call, id, &names);
        mc_disk_unmount(call, id);
        mc_tasks_drop_client(call, id);
        mc_warn("client expired id=%llu-%llu segments=%zu", (unsigned long long)id.hi,
                (unsigned long long)id.lo, count);
        for (size_t i = 0; i < count && m->config.on_segment_lost; i++) {
            m->config.on_segment_lost(m->config.on_segment_lost_ctx, names[i]);
        }
    }
}

void mc_clients_destroy(struct mc_master *m) {
    for (unsigned b = 0; b < MC_CLIENT_BUCKETS; b++) {
        for (struct mc_client *c = m->clients[b], *next; c; c = next) {
            next = c->next;
            free(c);
        }
    }
}

/* The tables of sessions. See client/session.h. */
#include "client/session.h"

#include "base/log.h"

void mc_session_sum_add(struct mc_session_sum *sum, uint64_t begin, uint64_t end,
                        uint64_t checksum) {
    struct mc_session_part *parts = sum->parts;
    size_t i = 0;
    while (i < sum->count && parts[i].end < begin) {
        i++;
    }
    /* the first one that ends at `begin` or behind it */
    bool joins = i < sum->count && parts[i].end == begin;
    size_t next = i + joins;
    sum->lost |= next < sum->count && parts[next].begin < end;
    sum->lost |= !joins && sum->count == MC_SESSION_PARTS_MAX;
    if (sum->lost || begin == end) {
        return;
    }
    sum->checksum ^= checksum;
    bool meets = next < sum->count && parts[next].begin == end;
    if (joins) {
        parts[i].end = meets ? parts[next].end : end;
    } else if (meets) {
        parts[next].begin = begin;
    } else {
        if (sum->count == sum->capacity) {
            sum->capacity = sum->capacity ? 2 * sum->capacity : 4;
            sum->parts = parts = mc_realloc(parts, sum->capacity * sizeof(*parts));
        }
        memmove(&parts[i + 1], &parts[i], (sum->count++ - i) * sizeof(*parts));
        parts[i] = (struct mc_session_part){begin, end};
    }
    if (joins && meets) {
        memmove(&parts[next], &parts[next + 1], (--sum->count - next) * sizeof(*parts));
    }
}

bool mc_session_sum_known(const struct mc_session_sum *sum, uint64_t size) {
    return !sum->lost && sum->count == 1 && sum->parts[0].begin == 0 && sum->parts[0].end == size;
}

struct mc_session **mc_session_find_locked(struct mc_ops_sessions *table, struct mc_str key) {
    struct mc_session **at = &table->buckets[mc_hash64(key.ptr, key.len, 0) % OPS_SESSION_BUCKETS];
    while (*at != NULL && !mc_str_eq((*at)->key, key)) {
        at = &(*at)->next;
    }
    return at;
}

void mc_session_free(struct mc_session *session) {
    mc_arena_free(&session->arena);
    free(session->sum.parts);
    free((char *)session->key.ptr);
    free(session);
}

void mc_session_remove_locked(struct mc_ops_sessions *table, struct mc_session **at) {
    struct mc_session *session = *at;
    *at = session->next;
    table->count--;
    mc_session_free(session);
}

void mc_session_copy_list(struct mc_arena *arena, const struct mw_replica_list *from,
                          struct mw_replica_list *to) {
    size_t count = from->replicas.count;
    const struct mw_replica *source = from->replicas.items;
    struct mw_replica *copy = mc_arena_alloc(arena, (count + 1) * sizeof(*copy));
    for (size_t i = 0; i < count; i++) {
        copy[i] = source[i];
        switch (copy[i].tag) {
        case MW_TAG_MEMORY:
            copy[i].memory.endpoint = mc_arena_str(arena, source[i].memory.endpoint);
            copy[i].memory.protocol = (struct mc_str){"", 0};
            break;
        case MW_TAG_LOCAL_DISK:
            copy[i].local_disk.endpoint = mc_arena_str(arena, source[i].local_disk.endpoint);
            break;
        case MW_TAG_DISK:
            copy[i].disk.file_path = mc_arena_str(arena, source[i].disk.file_path);
            break;
        default: /* never read by a session: what it points to is not kept */
            copy[i] = (struct mw_replica){.id = source[i].id, .tag = copy[i].tag};
        }
    }
    *to = *from;
    to->replicas = (struct mc_vec){copy, count};
}

struct mc_session *mc_session_make(struct mc_str key, const struct mw_replica_list *list) {
    struct mc_session *session = mc_zalloc(sizeof(*session));
    session->key = (struct mc_str){mc_str_dup(key), key.len};
    mc_session_copy_list(&session->arena, list, &session->lease.list);
    return session;
}

bool mc_session_add_locked(struct mc_ops_sessions *table, struct mc_session **at,
                           struct mc_session *session) {
    if (table->count >= MC_STORE_SESSIONS_MAX) {
        mc_session_free(session);
        return false;
    }
    *at = session;
    table->count++;
    return true;
}

static void destroy_table(struct mc_ops_sessions *table) {
    for (size_t b = 0; b < OPS_SESSION_BUCKETS; b++) {
        while (table->buckets[b] != NULL) {
            mc_session_remove_locked(table, &table->buckets[b]);
        }
    }
}

void mc_ops_sessions_destroy(struct mc_ops *ops) {
    if (ops->puts.count > 0) {
        mc_warn("put sessions are left to the master's timeouts: count=%zu", ops->puts.count);
    }
    destroy_table(&ops->puts);
    destroy_table(&ops->gets);
}

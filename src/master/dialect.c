/*
 * The book of who speaks which dialect. See dialect.h for the rules.
 *
 * A connection's memory is four words: flags with the version, the time of the last guessed answer,
 * and the client's id. The book is a hash table of fixed size, buckets of WAYS entries, each entry
 * one host or one client; a new entry replaces the bucket's oldest.
 */
#include "master/dialect.h"

#include <pthread.h>

#define BUCKETS    1024u
#define WAYS       4u
#define HANG_UP_NS MC_SEC /* a close later than this after an answer says nothing about it */
/* How long a hang-up waits for the connection that follows it. */
#define SUCCESSOR_NS (2 * MC_SEC)

_Static_assert(MC_RPC_PEER_WORDS >= 4,
               "words of a connection: flags, answered, client hi, client lo");
enum { WORD_FLAGS, WORD_ANSWERED, WORD_CLIENT_HI, WORD_CLIENT_LO };
enum {
    FLAG_VERSION = 1, /* the version told, proven or guessed */
    FLAG_SPOKE = 2,   /* not the connection's first request */
    FLAG_GREETED = 4, /* it began with ServiceReady: the first of a process */
    FLAG_GUESSED = 8, /* answered by a guess that nothing has confirmed */
    FLAG_KNOWN = 16,  /* told or proven */
};

struct entry {
    uint64_t key; /* 0 = free */
    uint64_t used_ns;
    uint64_t hung_up_ns;     /* when a guess failed here and no successor came yet; 0 = none */
    uint8_t version;         /* as last told or proven, when known */
    uint8_t hung_up_version; /* the guess that failed */
    bool known;
};

struct mc_dialects {
    const struct mc_clock *clock;
    pthread_mutex_t mutex; /* guards entries */
    struct entry entries[BUCKETS][WAYS];
};

struct mc_dialects *mc_dialects_create(const struct mc_clock *clock) {
    struct mc_dialects *d = mc_zalloc(sizeof(*d));
    d->clock = clock;
    pthread_mutex_init(&d->mutex, NULL);
    return d;
}

void mc_dialects_destroy(struct mc_dialects *d) {
    if (d != NULL) {
        pthread_mutex_destroy(&d->mutex);
        free(d);
    }
}

/* ---- the book ---- */

static uint64_t key_of_host(const char *peer) {
    const char *colon = strrchr(peer, ':'); /* the port differs from connection to connection */
    return mc_hash64(peer, colon != NULL ? (size_t)(colon - peer) : strlen(peer), 1) | 1;
}

/* 0 when the connection never named a client. */
static uint64_t key_of_client(const uint64_t *words) {
    if (words[WORD_CLIENT_HI] == 0 && words[WORD_CLIENT_LO] == 0) {
        return 0;
    }
    return mc_hash64(&words[WORD_CLIENT_HI], 2 * sizeof(words[0]), 2) | 1;
}

static struct entry *find_locked(struct mc_dialects *d, uint64_t key, uint64_t now_ns) {
    struct entry *bucket = d->entries[(key >> 1) % BUCKETS];
    for (unsigned i = 0; key != 0 && i < WAYS; i++) {
        if (bucket[i].key == key) {
            bucket[i].used_ns = now_ns;
            return &bucket[i];
        }
    }
    return NULL;
}

static struct entry *find_or_make_locked(struct mc_dialects *d, uint64_t key, uint64_t now_ns) {
    struct entry *e = find_locked(d, key, now_ns);
    if (e == NULL) {
        e = d->entries[(key >> 1) % BUCKETS];
        for (unsigned i = 1; i < WAYS; i++) {
            struct entry *other = &d->entries[(key >> 1) % BUCKETS][i];
            e = other->used_ns < e->used_ns ? other : e;
        }
        *e = (struct entry){.key = key, .used_ns = now_ns};
    }
    return e;
}

static void note_locked(struct mc_dialects *d, uint64_t key, unsigned version, uint64_t now_ns) {
    struct entry *e = find_or_make_locked(d, key, now_ns);
    e->version = (uint8_t)version;
    e->known = true;
}

/* ---- connections ---- */

static unsigned version_of(const uint64_t *words) {
    return words[WORD_FLAGS] & FLAG_VERSION;
}

static void set_version(uint64_t *words, unsigned version, uint64_t flags) {
    words[WORD_FLAGS] = (words[WORD_FLAGS] & ~(uint64_t)(FLAG_VERSION | FLAG_GUESSED)) |
                        (version & FLAG_VERSION) | flags;
}

/* The connection told or proved its version. */
static void learn(struct mc_dialects *d, uint64_t *words, const char *peer, unsigned version) {
    if ((words[WORD_FLAGS] & FLAG_KNOWN) != 0 && version_of(words) == version) {
        return;
    }
    set_version(words, version, FLAG_KNOWN);
    uint64_t now_ns = mc_now_ns(d->clock), client = key_of_client(words);
    pthread_mutex_lock(&d->mutex);
    note_locked(d, key_of_host(peer), version, now_ns);
    if (client != 0) {
        note_locked(d, client, version, now_ns);
    }
    pthread_mutex_unlock(&d->mutex);
}

static unsigned guess(struct mc_dialects *d, uint64_t *words, const char *peer) {
    if ((words[WORD_FLAGS] & FLAG_KNOWN) != 0) {
        return version_of(words);
    }
    unsigned version = 0;
    uint64_t now_ns = mc_now_ns(d->clock);
    pthread_mutex_lock(&d->mutex);
    struct entry *client = find_locked(d, key_of_client(words), now_ns);
    struct entry *host = find_locked(d, key_of_host(peer), now_ns);
    bool follows = host != NULL && host->hung_up_ns != 0 &&
                   now_ns - host->hung_up_ns < SUCCESSOR_NS &&
                   (words[WORD_FLAGS] & (FLAG_GREETED | FLAG_GUESSED)) == 0;
    if (client != NULL && client->known) {
        version = client->version;
    } else if (follows) {
        version = !host->hung_up_version;
        host->hung_up_ns = 0;
    } else if (host != NULL && host->known) {
        version = host->version;
    }
    pthread_mutex_unlock(&d->mutex);
    set_version(words, version, FLAG_GUESSED);
    words[WORD_ANSWERED] = now_ns;
    return version;
}

void mc_dialects_closed(struct mc_dialects *d, const uint64_t *words, const char *peer) {
    uint64_t now_ns = mc_now_ns(d->clock);
    if ((words[WORD_FLAGS] & FLAG_GUESSED) == 0 || now_ns - words[WORD_ANSWERED] > HANG_UP_NS) {
        return;
    }
    uint64_t client = key_of_client(words);
    pthread_mutex_lock(&d->mutex);
    if (client != 0) {
        note_locked(d, client, !version_of(words), now_ns);
    } else {
        struct entry *host = find_or_make_locked(d, key_of_host(peer), now_ns);
        host->hung_up_ns = now_ns;
        host->hung_up_version = (uint8_t)version_of(words);
    }
    pthread_mutex_unlock(&d->mutex);
}

/* ---- requests ---- */

static bool has_literal(struct mc_str body) {
    return body.len > 4 && (body.ptr[0] & 1) != 0 && (body.ptr[4] & 4) != 0;
}

/* The RPCs whose arguments begin with the caller's id. */
static const struct mc_uuid *caller(const struct mc_rpc_desc *desc, const void *args) {
    _Static_assert(offsetof(struct mw_a_put_start, client) == 0 &&
                       offsetof(struct mw_a_put_end, client) == 0 &&
                       offsetof(struct mw_a_batch_put_start, client) == 0 &&
                       offsetof(struct mw_a_batch_put_end, client) == 0 &&
                       offsetof(struct mw_a_batch_upsert_end, client) == 0 &&
                       offsetof(struct mw_a_fetch_tasks, client) == 0 &&
                       offsetof(struct mw_a_copy_start, client) == 0 &&
                       offsetof(struct mw_a_move_start, client) == 0,
                   "the caller's id comes first");
    switch (mc_master_rpc_index(desc)) {
    case MC_RPC_Ping:
    case MC_RPC_FetchTasks:
    case MC_RPC_PutStart:
    case MC_RPC_PutEnd:
    case MC_RPC_BatchPutStart:
    case MC_RPC_BatchPutEnd:
    case MC_RPC_UpsertStart:
    case MC_RPC_UpsertEnd:
    case MC_RPC_BatchUpsertStart:
    case MC_RPC_BatchUpsertEnd:
    case MC_RPC_CopyStart:
    case MC_RPC_MoveStart:
        return args;
    default:
        return NULL;
    }
}

/* A request without a literal: what the connection told counts, nothing is guessed or noted. */
static unsigned resolve_unnamed(uint64_t *words, const struct mc_rpc_desc *desc, unsigned version) {
    if (mc_master_rpc_args_tell_version(desc)) {
        set_version(words, version, FLAG_KNOWN);
    } else if (desc->version_count > 1 && (words[WORD_FLAGS] & FLAG_KNOWN) != 0) {
        return version_of(words);
    }
    return version;
}

unsigned mc_dialects_resolve(struct mc_dialects *d, const struct mc_rpc_request *request,
                             const struct mc_rpc_desc *desc, const void *args, unsigned version) {
    uint64_t *words = request->peer_words;
    bool greeting = mc_master_rpc_index(desc) == MC_RPC_ServiceReady;
    if (words == NULL) {
        return version;
    }
    if (desc->versions[0].args != NULL && !has_literal(request->body)) {
        return resolve_unnamed(words, desc, version);
    }
    if ((words[WORD_FLAGS] & FLAG_SPOKE) == 0) {
        words[WORD_FLAGS] |= FLAG_SPOKE | (greeting ? FLAG_GREETED : 0u);
    }
    const struct mc_uuid *client = caller(desc, args);
    if (client != NULL) {
        words[WORD_CLIENT_HI] = client->hi;
        words[WORD_CLIENT_LO] = client->lo;
    }
    if ((words[WORD_FLAGS] & FLAG_GUESSED) != 0) { /* it goes on: so it could read the answer */
        learn(d, words, request->peer, version_of(words));
    }
    if (mc_master_rpc_args_tell_version(desc)) {
        learn(d, words, request->peer, version);
        return version;
    }
    return desc->version_count > 1 ? guess(d, words, request->peer) : version;
}

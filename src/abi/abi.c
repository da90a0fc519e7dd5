/*
 * What the interfaces share: the table of batches, opened segments, counters by transport. See
 * abi.h.
 */
#include "abi/abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define GRACE_MS 1 /* a task's end is seen shortly before its batch's */

/* ---- life ---- */

struct abi_engine *abi_engine_wrap(struct mc_engine *engine) {
    struct abi_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return NULL;
    }
    e->engine = engine;
    e->generation = 1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->unused, NULL);
    return e;
}

static void batch_free(struct abi_batch *b) {
    pthread_mutex_destroy(&b->submitting);
    free(b);
}

void abi_engine_destroy(struct abi_engine *e) {
    mc_engine_destroy(e->engine);
    for (uint32_t i = 0; i < e->batch_slots; i++) {
        if (e->batches[i] != NULL) {
            (void)!mc_batch_free(e->batches[i]->batch); /* ended with the engine */
            batch_free(e->batches[i]);
        }
    }
    free(e->batches);
    free(e->free_slots);
    free(e->segments);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->unused);
    free(e);
}

/* ---- batches ---- */

static bool grow_locked(struct abi_engine *e) {
    uint32_t old = e->batch_slots, slots = old == 0 ? 64 : old * 2;
    if (slots > ABI_BATCHES_MAX) {
        return false;
    }
    struct abi_batch **batches = realloc(e->batches, slots * sizeof(struct abi_batch *));
    if (batches == NULL) {
        return false;
    }
    e->batches = batches;
    uint32_t *list = realloc(e->free_slots, slots * sizeof(*list));
    if (list == NULL) {
        return false;
    }
    e->free_slots = list;
    for (uint32_t i = slots; i > old; i--) {
        batches[i - 1] = NULL;
        list[e->free_count++] = i - 1;
    }
    e->batch_slots = slots;
    return true;
}

static bool insert(struct abi_engine *e, struct abi_batch *b) {
    pthread_mutex_lock(&e->lock);
    bool good = e->free_count > 0 || grow_locked(e);
    if (good) {
        uint32_t slot = e->free_slots[--e->free_count];
        b->id = (uint64_t)e->generation << 32 | slot;
        e->generation = e->generation == INT32_MAX ? 1 : e->generation + 1;
        e->batches[slot] = b;
    }
    pthread_mutex_unlock(&e->lock);
    return good;
}

uint64_t abi_batch_new(struct abi_engine *e, size_t capacity) {
    struct abi_batch *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return 0;
    }
    if (mc_batch_create(e->engine, capacity, &b->batch) != MC_OK) {
        free(b);
        return 0;
    }
    pthread_mutex_init(&b->submitting, NULL);
    if (!insert(e, b)) {
        (void)!mc_batch_free(b->batch);
        batch_free(b);
        return 0;
    }
    return b->id;
}

static struct abi_batch *find_locked(struct abi_engine *e, uint64_t id) {
    uint32_t slot = (uint32_t)id;
    struct abi_batch *b = slot < e->batch_slots ? e->batches[slot] : NULL;
    return b != NULL && b->id == id && !b->freeing ? b : NULL;
}

struct abi_batch *abi_batch_get(struct abi_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->lock);
    struct abi_batch *b = find_locked(e, id);
    if (b != NULL) {
        b->users++;
    }
    pthread_mutex_unlock(&e->lock);
    return b;
}

void abi_batch_put(struct abi_engine *e, struct abi_batch *b) {
    pthread_mutex_lock(&e->lock);
    b->users--;
    if (b->freeing) {
        pthread_cond_broadcast(&e->unused);
    }
    pthread_mutex_unlock(&e->lock);
}

enum mc_status abi_batch_free(struct abi_engine *e, uint64_t id) {
    struct abi_batch *b = abi_batch_get(e, id);
    if (b == NULL) {
        return MC_TASK_NOT_FOUND;
    }
    (void)!mc_batch_wait(b->batch, mc_deadline_in_ms(GRACE_MS));
    pthread_mutex_lock(&e->lock);
    enum mc_status status = b->freeing ? MC_TASK_NOT_FOUND : MC_OK;
    if (status == MC_OK) {
        b->freeing = true;
        while (b->users > 1) {
            pthread_cond_wait(&e->unused, &e->lock);
        }
        status = mc_batch_free(b->batch);
        b->freeing = false;
    }
    if (status == MC_OK) {
        e->batches[(uint32_t)id] = NULL;
        e->free_slots[e->free_count++] = (uint32_t)id;
    } else {
        b->users--;
        pthread_cond_broadcast(&e->unused);
    }
    pthread_mutex_unlock(&e->lock);
    if (status == MC_OK) {
        batch_free(b);
    }
    return status;
}

static enum mc_status submit_locked(struct abi_batch *b, const struct mc_transfer_request *requests,
                                    size_t count, const char *name, const char *message) {
    if (count > MC_BATCH_MAX - b->tasks) {
        return MC_ERR_LIMIT;
    }
    if (name != NULL) {
        MC_TRY(mc_batch_notify(b->batch, requests[0].segment, name, message));
        b->notifies = true;
    }
    enum mc_status status = mc_batch_submit(b->batch, requests, count, MC_WAIT_FOREVER);
    b->tasks += status == MC_OK ? count : 0;
    return status;
}

enum mc_status abi_batch_submit(struct abi_batch *b, const struct mc_transfer_request *requests,
                                size_t count, const char *name, const char *message) {
    pthread_mutex_lock(&b->submitting);
    enum mc_status status = submit_locked(b, requests, count, name, message);
    pthread_mutex_unlock(&b->submitting);
    return status;
}

enum mc_status abi_batch_task(struct abi_batch *b, size_t task, struct mc_transfer_status *status) {
    enum mc_status found = mc_batch_task(b->batch, task, status);
    if (found != MC_OK || status->state != MC_TRANSFER_COMPLETED) {
        return found;
    }
    pthread_mutex_lock(&b->submitting);
    bool notifies = b->notifies, last = b->tasks == task + 1;
    pthread_mutex_unlock(&b->submitting);
    if (!notifies) {
        return MC_OK;
    }
    enum mc_status ended = mc_batch_wait(b->batch, 0);
    if (ended == MC_ERR_TIMEOUT) {
        status->state = MC_TRANSFER_PENDING;
    } else if (ended != MC_OK && last) { /* somebody must learn of it */
        status->state = MC_TRANSFER_FAILED;
        status->error = ended;
    }
    return MC_OK;
}

int abi_task_state(const struct mc_transfer_status *status) {
    enum { CANCELED = 3 };
    return status->state == MC_TRANSFER_FAILED && status->error == MC_ERR_CANCELLED
               ? CANCELED
               : (int)status->state;
}

/* ---- segments ---- */

static bool remember(struct abi_engine *e, mc_segment_id id) {
    bool good = true;
    pthread_mutex_lock(&e->lock);
    size_t i = 0;
    while (i < e->segment_count && e->segments[i] != id) {
        i++;
    }
    if (i == e->segment_count && i == e->segment_cap) {
        size_t cap = e->segment_cap == 0 ? 16 : e->segment_cap * 2;
        mc_segment_id *list = realloc(e->segments, cap * sizeof(*list));
        good = list != NULL;
        e->segments = good ? list : e->segments;
        e->segment_cap = good ? cap : e->segment_cap;
    }
    if (good && i == e->segment_count) {
        e->segments[e->segment_count++] = id;
    }
    pthread_mutex_unlock(&e->lock);
    return good;
}

enum mc_status abi_segment_open(struct abi_engine *e, const char *name, mc_segment_id *id) {
    mc_segment_id opened;
    enum mc_status status = mc_segment_open(e->engine, name, &opened);
    if (status == MC_OK && opened != MC_LOCAL_SEGMENT && !remember(e, opened)) {
        (void)!mc_segment_close(e->engine, opened);
        status = MC_ERR_NO_MEMORY;
    }
    if (status == MC_OK) {
        *id = opened;
    }
    return status;
}

enum mc_status abi_segment_close(struct abi_engine *e, mc_segment_id id) {
    return mc_segment_close(e->engine, id);
}

void abi_segments_refresh(struct abi_engine *e) {
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&e->lock);
        bool more = i < e->segment_count;
        mc_segment_id id = more ? e->segments[i] : 0;
        pthread_mutex_unlock(&e->lock);
        if (!more) {
            return;
        }
        if (mc_segment_refresh(e->engine, id) != MC_SEGMENT_NOT_FOUND) {
            continue;
        }
        pthread_mutex_lock(&e->lock); /* closed for good: another takes its place here */
        if (i < e->segment_count && e->segments[i] == id) {
            e->segments[i--] = e->segments[--e->segment_count];
        }
        pthread_mutex_unlock(&e->lock);
    }
}

/* ---- memory ---- */

enum mc_status abi_register_all(struct abi_engine *e, void *const *addrs, const size_t *lengths,
                                size_t count, const char *location, unsigned flags) {
    for (size_t i = 0; i < count; i++) {
        enum mc_status status =
            mc_memory_register(e->engine, addrs[i], lengths[i], location, flags);
        if (status == MC_OK) {
            continue;
        }
        while (i > 0) {
            (void)!mc_memory_unregister(e->engine, addrs[--i]);
        }
        return status;
    }
    return MC_OK;
}

/* ---- counters ---- */

static struct abi_link *link_of(struct abi_link *links, size_t *count, size_t capacity,
                                const char *name) {
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(links[i].transport, name) == 0) {
            return &links[i];
        }
    }
    if (*count == capacity) {
        return NULL;
    }
    struct abi_link *link = &links[(*count)++];
    *link = (struct abi_link){0};
    abi_text_out(link->transport, sizeof(link->transport), name);
    return link;
}

/* One line of the metrics' text: name{transport="x",op="y"} value. */
static void note_line(const char *line, struct abi_link *links, size_t *count, size_t capacity) {
    char name[64], transport[32], op[8] = "";
    unsigned long long value;
    if (sscanf(line, "mooncake_te_%63[a-z_]{transport=\"%31[^\"]\",op=\"%7[^\"]\"} %llu", name,
               transport, op, &value) != 4) {
        op[0] = '\0';
        if (sscanf(line, "mooncake_te_%63[a-z_]{transport=\"%31[^\"]\"} %llu", name, transport,
                   &value) != 3) {
            return;
        }
    }
    struct abi_link *link = link_of(links, count, capacity, transport);
    if (link == NULL) {
        return;
    }
    unsigned which = strcmp(op, "write") == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ;
    if (strcmp(name, "transfer_bytes_total") == 0) {
        link->bytes[which] = value;
    } else if (strcmp(name, "slices_total") == 0) {
        link->slices[which] = value;
    } else if (strcmp(name, "slice_failures_total") == 0) {
        link->failures = value;
    }
}

size_t abi_links(struct mc_engine *engine, struct abi_link *links, size_t capacity) {
    char *text = mc_engine_metrics(engine);
    size_t count = 0;
    char *rest = NULL;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        note_line(line, links, &count, capacity);
    }
    free(text);
    return count;
}

/* A rail that is not named like its transport is a device: name{transport="t",rail="r"} value. */
static void note_rail(const char *line, struct abi_card *cards, size_t *count, size_t capacity) {
    char name[64], transport[32], rail[64];
    double value;
    if (sscanf(line, "mooncake_te_rail_%63[a-z_]{transport=\"%31[^\"]\",rail=\"%63[^\"]\"} %lf",
               name, transport, rail, &value) != 4 ||
        strcmp(transport, rail) == 0) {
        return;
    }
    bool bandwidth = strcmp(name, "bandwidth_bytes") == 0;
    if (!bandwidth && strcmp(name, "inflight_bytes") != 0) {
        return;
    }
    size_t i = 0;
    while (i < *count && strcmp(cards[i].name, rail) != 0) {
        i++;
    }
    if (i == *count && *count == capacity) {
        return;
    }
    if (i == *count) {
        cards[(*count)++] = (struct abi_card){0};
        abi_text_out(cards[i].name, sizeof(cards[i].name), rail);
    }
    if (bandwidth) {
        cards[i].bandwidth = value;
    } else {
        cards[i].inflight_bytes = (uint64_t)value;
    }
}

size_t abi_cards(struct mc_engine *engine, struct abi_card *cards, size_t capacity) {
    char *text = mc_engine_metrics(engine);
    size_t count = 0;
    char *rest = NULL;
    for (char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        note_rail(line, cards, &count, capacity);
    }
    free(text);
    return count;
}

bool abi_text_out(char *out, size_t size, const char *text) {
    size_t len = strlen(text);
    if (size == 0) {
        return false;
    }
    size_t fits = len < size ? len : size - 1;
    memcpy(out, text, fits);
    out[fits] = '\0';
    return fits == len;
}

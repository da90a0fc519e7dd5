/*
 * Priorities, ageing and weights. See qos.h.
 *
 * By weight it is start-time fair queueing: each priority has a virtual clock that moves by bytes
 * over weight, and the one that is furthest behind goes next. A priority that was silent starts
 * where the one that was served last stood, so that silence saves nothing up.
 */
#include "te/qos.h"

void mc_qos_init(struct mc_qos *q, const uint32_t weights[MC_PRIORITIES]) {
    for (unsigned p = 0; p < MC_PRIORITIES; p++) {
        mc_list_init(&q->queues[p]);
        atomic_store_explicit(&q->waiting[p], 0, memory_order_relaxed);
        q->weights[p] = weights[p];
        q->served[p] = 0;
    }
    q->clock = 0;
    if (mc_qos_weighted(q)) { /* one left out still moves */
        for (unsigned p = 0; p < MC_PRIORITIES; p++) {
            q->weights[p] = q->weights[p] == 0 ? 1 : q->weights[p];
        }
    }
}

static struct mc_qos_item *item_of(struct mc_list *at) {
    return mc_container_of(at, struct mc_qos_item, link);
}

/* Looks from both ends. Where the place is far from either, behind some that are due later: it
 * passes none that is due earlier. */
static void insert_by_deadline(struct mc_list *queue, struct mc_qos_item *item) {
    struct mc_list *front = queue->next, *back = queue->prev;
    for (unsigned looked = 0; looked < MC_QOS_WALK_MAX; looked++) {
        if (back == queue || item_of(back)->deadline_ns <= item->deadline_ns) {
            break;
        }
        if (item_of(front)->deadline_ns > item->deadline_ns) {
            back = front->prev;
            break;
        }
        front = front->next;
        back = back->prev;
    }
    mc_list_push_back(back->next, &item->link); /* behind `back` */
}

void mc_qos_push(struct mc_qos *q, struct mc_qos_item *item, uint64_t now_ns) {
    MC_ASSERT(item->priority < MC_PRIORITIES);
    struct mc_list *queue = &q->queues[item->priority];
    if (mc_list_empty(queue) && q->served[item->priority] < q->clock) {
        q->served[item->priority] = q->clock;
    }
    uint64_t patience = now_ns + MC_QOS_PATIENCE_NS;
    item->since_ns = now_ns;
    item->deadline_ns = item->deadline_ns == 0 ? patience : mc_min_u64(item->deadline_ns, patience);
    insert_by_deadline(queue, item);
    /* Pairs with the load in the thread that ends a slice: either it sees this item, or who pushed
     * sees the room that it made. */
    atomic_fetch_add(&q->waiting[item->priority], item->length);
}

void mc_qos_remove(struct mc_qos *q, struct mc_qos_item *item, bool served) {
    mc_list_del(&item->link);
    atomic_fetch_sub_explicit(&q->waiting[item->priority], item->length, memory_order_relaxed);
    if (served && mc_qos_weighted(q)) {
        q->clock = q->served[item->priority];
        q->served[item->priority] += (double)item->length / q->weights[item->priority];
    }
}

uint8_t mc_qos_effective(const struct mc_qos_item *item, uint64_t now_ns) {
    uint64_t gained = now_ns > item->since_ns ? (now_ns - item->since_ns) / MC_QOS_AGE_NS : 0;
    return gained >= item->priority ? 0 : (uint8_t)(item->priority - gained);
}

static const struct mc_qos_item *head(const struct mc_qos *q, uint8_t priority) {
    return mc_container_of(q->queues[priority].next, struct mc_qos_item, link);
}

static bool goes_before(const struct mc_qos *q, uint8_t a, uint8_t b, uint64_t now_ns) {
    if (mc_qos_weighted(q)) {
        return q->served[a] < q->served[b];
    }
    uint8_t ea = mc_qos_effective(head(q, a), now_ns), eb = mc_qos_effective(head(q, b), now_ns);
    return ea != eb ? ea < eb : head(q, a)->since_ns < head(q, b)->since_ns;
}

unsigned mc_qos_order(const struct mc_qos *q, uint64_t now_ns, uint8_t order[MC_PRIORITIES]) {
    unsigned count = 0;
    for (uint8_t p = 0; p < MC_PRIORITIES; p++) {
        if (mc_list_empty(&q->queues[p])) {
            continue;
        }
        unsigned at = count++;
        for (; at > 0 && goes_before(q, p, order[at - 1], now_ns); at--) {
            order[at] = order[at - 1];
        }
        order[at] = p;
    }
    return count;
}

/*
 * The rails of a started transport.
 */
#include <stdio.h>

#include "base/log.h"
#include "te/internal.h"

void mc_rails_init(struct mc_rails *rails, struct mc_transport *t) {
    rails->count = t->ops->rails == NULL ? 0 : t->ops->rails(t, rails->info, MC_RAILS_MAX);
    MC_ASSERT(rails->count <= MC_RAILS_MAX);
    if (rails->count == 0) {
        rails->count = 1;
        rails->info[0] = (struct mc_rail_info){.numa_node = -1, .up = true};
        snprintf(rails->info[0].name, sizeof(rails->info[0].name), "%s", t->ops->name);
    }
    uint32_t up = 0;
    for (unsigned i = 0; i < rails->count; i++) {
        up |= (uint32_t)rails->info[i].up << i;
    }
    atomic_store_explicit(&rails->up, up, memory_order_release);
}

void mc_rail_set_up(struct mc_transport *t, unsigned rail, bool up) {
    struct mc_rails *rails = &t->engine->rails[t->index];
    MC_ASSERT(rail < rails->count);
    uint32_t bit = 1u << rail;
    uint32_t before = up ? atomic_fetch_or_explicit(&rails->up, bit, memory_order_acq_rel)
                         : atomic_fetch_and_explicit(&rails->up, ~bit, memory_order_acq_rel);
    if (((before & bit) != 0) != up) {
        mc_info("rail is %s transport=%s rail=%s", up ? "up" : "down", t->ops->name,
                rails->info[rail].name);
    }
}

/*
 * KV events: tells whoever subscribes which objects can be read, over ZeroMQ, in upstream's format
 * (wire/kv_event.h).
 *
 * The core reports what happened, with the shard locked, after it happened; mc_events_push puts it
 * into a bounded queue and returns. One thread owns the sockets: it takes what waits, gives the
 * batch the next sequence number, publishes it and keeps it for replay. Events of one key come in
 * the order in which they happened.
 *
 * Nothing here makes the master wait. A full queue drops its oldest event and burns a sequence
 * number, so that a subscriber sees a gap; a subscriber that reads too slowly loses batches, and
 * sees a gap too. Then it asks the replay endpoint, which speaks the protocol of vLLM's: a request
 * of two frames, empty and the first sequence number wanted; answers of three, empty, sequence
 * number, payload, in order, and a last one with the sequence number -1. What was dropped in the
 * queue, or is older than what is kept, does not come: the subscriber has to start afresh.
 */
#ifndef MC_MASTER_EVENTS_H
#define MC_MASTER_EVENTS_H

#include "base/base.h"
#include "base/metrics.h"
#include "master/master.h"

struct mc_events_config {
    const char *endpoint;        /* "tcp://0.0.0.0:5557"; NULL or "" = no events */
    const char *replay_endpoint; /* NULL or "" = no replay */
    const char *backend_id;
    bool legacy, object_key;
    uint64_t queue_capacity; /* events; 0 = no limit */
    uint64_t replay_batches; /* kept, at most; */
    uint64_t replay_bytes;   /* and so much of them */
};

struct mc_events;
/* MC_NOT_SUPPORTED without the library; MC_ERR_BAD_ADDRESS, MC_ERR_ADDRESS_IN_USE, MC_ERR_IO for an
 * endpoint, which the log names. `metrics` may be NULL. */
MC_MUST_USE enum mc_status mc_events_start(const struct mc_events_config *config,
                                           struct mc_metrics *metrics, struct mc_events **out);
/* Publishes what waits, gives subscribers half a second to take it. Nobody may push any more. */
void mc_events_stop(struct mc_events *events);

/* An mc_master_config.on_object_event (ctx = struct mc_events *). Thread safe, never waits. */
void mc_events_push(void *events, const struct mc_object_event *event);

struct mc_events_stats {
    uint64_t published_batches, published_events, dropped_events, skipped_unparsed_keys;
    uint64_t waiting, replays, replayed_batches, refused_replays;
};
void mc_events_stats(const struct mc_events *events, struct mc_events_stats *out);
/* As bound, with the port; replay "" when there is none. */
const char *mc_events_endpoint(const struct mc_events *events);
const char *mc_events_replay_endpoint(const struct mc_events *events);

#endif

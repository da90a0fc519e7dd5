/*
 * sim: a whole cluster in one thread, from a seed.
 *
 * One real master (mc_master_serve), three store nodes and eight clients that run the real protocol
 * code (client/ops.h), over a simulated network and simulated memory, in virtual time. Everything
 * that happens is an event in a heap ordered by (time, sequence); every choice comes from one
 * random generator. So a seed is a history, and a failure is a seed.
 *
 *     world.c     the heap, the clock, processes, the master, faults, the phases of a run
 *     fiber.c     the stacks of the processes
 *     net.c       requests to the master and their answers: late, lost, doubled, overtaking
 *     memory.c    the nodes' memory and moves to and from it, landing piece by piece
 *     node.c      a store node: mount, heartbeat, leave; its worker, which copies and moves
 *     ssd.c       a node's SSD: its process, its crashes, what comes back from it
 *     disk.c      the disks (below libc: disk_calls.c, disk_nvme.c)
 *     workload.c  what the clients do
 *     hot.c       the clients' hot caches
 *     operator.c  who drains nodes
 *     auditor.c   what a calm cluster owes, at the end of a run
 *     oracle.c    which bytes a read may return (the view from outside)
 *     linear.c    whether the history of a key is linearizable
 *     ledger.c    what the master has promised about places (the view from inside)
 *
 * The bounds that the protocol relies on and the network keeps: a request is carried out at most
 * SIM_LATE_NS after it was sent; a written byte lands at most SIM_LATE_NS after it was posted;
 * the master's release timeout is longer than an operation and that together. The Start requests
 * of puts and the mounts are delivered at most once, as the port promises (client/port.h); all
 * others may be doubled.
 */
#ifndef MC_TESTS_SIM_SIM_H
#define MC_TESTS_SIM_SIM_H

#include "client/hot_cache.h"
#include "client/offload.h"
#include "client/ops.h"
#include "master/master.h"
#include "sim/disk.h"
#include "sim/fiber.h"
#include "sim/linear.h"

#define SIM_NODES     3
#define SIM_CLIENTS   8
#define SIM_AUDITOR   SIM_CLIENTS /* one more client, which comes when the others have gone */
#define SIM_KEYS      12
#define SIM_GROUPS    3
#define SIM_BATCH     6
#define SIM_NO_KEY    SIM_KEYS
#define SIM_GUEST_KEY 8 /* the first of the other tenant's, if there is one */
#define SIM_GUEST     "guest"
#define SIM_VALUE_MAX 2048u
#define SIM_LATE_NS   (4 * MC_SEC)

/* Clients and ports that are wrong on purpose, without touching production code: the oracle must
 * notice. */
enum sim_break {
    SIM_BREAK_NONE,
    SIM_BREAK_SLOW_CLOCK, /* a client's clock stands still while bytes move: no lease check fails */
    SIM_BREAK_HIDE_DOUBT, /* a write that may still land is reported as a plain failure */
    SIM_BREAK_NO_SUMS,    /* memory is at the same addresses again, and nothing has a checksum */
    SIM_BREAK_KEEP_META,  /* a disk still describes what was replaced in an older bucket */
    SIM_BREAK_LOSE_NOTES, /* a master that starts again knows of no change, and trusts disks */
    SIM_BREAK_OLD_COPIES, /* the hot cache takes any version for the one that is asked for */
};

struct sim_options {
    uint64_t seed;
    bool verbose;
    uint64_t steps; /* stop after so many events, without a verdict; 0 = run to the end */
    enum mc_master_break master_break;
    enum sim_break client_break;
    bool ssd;          /* half of the runs have nodes with an SSD */
    bool outside_only; /* judge only by what clients see: neither ledger nor fsck */
};

/* What happened, so that a test can prove that it was not nothing. */
/* clang-format off */
#define SIM_COVERAGE(X) \
    X(gets) X(gets_ok) X(gets_missing) X(gets_not_ready) X(gets_lease_expired) X(gets_failed) \
    X(bytes_verified) X(puts) X(puts_ok) X(puts_refused) X(puts_failed) X(upserts) X(upserts_ok) \
    X(upserts_failed) X(removes_ok) X(removes_leased) X(exist_answers) X(views) X(view_reads) \
    X(requests) X(requests_lost) X(requests_doubled) X(requests_late) X(answers_lost) \
    X(answers_late) X(pieces) X(pieces_late) X(acks_lost) X(moves_refused) X(master_crashes) \
    X(node_crashes) X(client_crashes) X(cuts) X(leaves) X(remounts) X(failovers) X(renewals) \
    X(in_doubt) X(copies_asked) X(moves_asked) X(tasks_done) X(tasks_failed) X(copies_begun) \
    X(copies_ended) X(moves_begun) X(moves_ended) X(replications_revoked) \
    X(mortal_puts) X(conditional_puts) X(conditional_puts_ok) X(conditional_puts_refused) \
    X(listings) X(keys_listed) X(put_sessions) X(put_sessions_ok) X(get_sessions) X(get_sessions_ok) \
    X(clock_jumps) X(puts_over_quota) X(quota_checks) \
    X(file_reads) X(file_writes) X(files_deleted) X(files_lost) X(files_told) \
    X(striped_puts) X(striped_copies) X(stripes_moved) X(striped_lists) X(stripes_missing) \
    X(hot_hits) X(hot_fills) X(hot_evictions) X(guest_puts_ok) X(guest_gets_ok) \
    X(drains) X(drains_succeeded) X(drains_failed) X(drains_cancelled) X(checksum_mismatches) X(overwritten_in_place) X(fscks) X(leases_tracked) X(operations_judged)
/* Only with SSDs. */
#define SIM_COVERAGE_SSD(X) \
    X(disk_reads) X(disk_read_failures) X(peer_calls) \
    X(disk_writes) X(disk_errors) X(disks_full) \
    X(sectors_lost) X(names_lost) X(bits_turned) \
    X(power_cuts) X(tier_broken) X(tier_evicted) X(tier_borrowed) X(values_returned) X(notes_lost) X(promotions) X(left_on_disk) \
    X(striped_on_disk)
/* clang-format on */
struct sim_coverage {
#define X(name) uint64_t name;
    SIM_COVERAGE(X)
    SIM_COVERAGE_SSD(X)
#undef X
};

struct sim_result {
    bool failed;
    char failure[1024];
    uint64_t hash; /* of every event, request, answer and result */
    uint64_t events;
    uint64_t virtual_ns;
    uint64_t most_possibilities; /* of a history, at one moment */
    struct sim_coverage coverage;
};

/* One thread has no races, and ThreadSanitizer does not follow fibers. */
#ifdef __SANITIZE_THREAD__
#define SIM_SKIP true
#else
#define SIM_SKIP false
#endif

void sim_run(const struct sim_options *options, struct sim_result *result);

/* ---- the inside ---- */

struct sim;
/* Handlers own `arg`. While sim->closing they only give it back. */
typedef void (*sim_fire_fn)(struct sim *sim, void *arg, uint64_t word);
struct sim_event {
    uint64_t at;
    uint64_t sequence;
    sim_fire_fn fire;
    void *arg;
    uint64_t word;
};

/* Chosen once per seed. Rates are in 1/10,000. */
struct sim_profile {
    bool faulty;
    unsigned loss, doubling, slow, very_slow, ack_loss;
    unsigned crash_client, crash_node, crash_master, cut, leave; /* shares of one fault event */
    uint64_t fault_period_ns;
    bool files;               /* clients share a file system */
    bool ssd;                 /* nodes have one */
    bool offload_on_evict;    /* else at the end of a put */
    double offload_watermark; /* 0 = none: early offload */
    bool offload_force;       /* evict what finds no place there */
    unsigned disk_faults;     /* of reads, writes and syncs */
    unsigned power;           /* share of one fault event: a node loses its power */
    unsigned bit_rot;         /* the same: a bit turns */
    unsigned disk_slowness;   /* times as slow as it should be */
    uint64_t disk_bytes, disk_seen_bytes, tier_bytes, bucket_bytes, lent_bytes, gc_ttl_ms;
    enum mc_tier_eviction tier_eviction;
    bool checksum;
    uint64_t hot_bytes;    /* of each client's hot cache; 0 = none */
    bool heat;             /* dynamic replication */
    bool promote;          /* what is read on disk comes back to memory */
    const char *backend;   /* of the tier */
    uint64_t quota;        /* of the tenant "default"; 0 = there are none, */
    uint64_t guest_quota;  /* and of the other one */
    unsigned jump;         /* share of one fault event: a clock jumps */
    unsigned file_loss;    /* the same: somebody deletes or cuts a file of the clients' */
    uint64_t stripe_bytes; /* of half of the clients; 0 = nothing is striped */
    bool drains;           /* nodes are drained now and then */
    bool force;            /* removals may take what is leased */
    bool reuse_addresses;  /* a node that restarts may have its memory where it was; only with
                              checksums */
    uint64_t lease_ms, timeout_ms, discard_ms, release_ms, client_ttl_ms;
    uint64_t tick_ns, ping_ns;
    uint64_t segment_bytes, round_bytes;
    const char *strategy, *eviction_policy;
    double eviction_ratio, watermark;
    unsigned operations; /* of each client */
};

/* Whoever runs on a fiber and talks to the master. */
struct sim_process {
    struct sim *sim;
    struct mc_port port;
    struct mc_clock clock;
    struct sim_fiber fiber;
    char name[16];
    bool dead; /* crashed: every port function fails at once, so that the stack unwinds */
    uint64_t wait_serial;  /* of the park; a wake-up for another one wakes nobody */
    uint64_t cut_until_ns; /* nothing gets through to or from it */
    uint64_t clock_lag_ns; /* modulo 2^64: it may be ahead. Also SIM_BREAK_SLOW_CLOCK */
    uint64_t wall_ms;      /* the same of the wall clock, which jumps both ways */
    uint64_t operation;    /* serial of what it is doing; travels with its requests */
    struct mc_ops *ops;
    struct mc_hot_cache *hot; /* or NULL */
    struct mc_uuid id;
    bool hot_reader;                /* has a hot cache when the profile says so */
    bool striper;                   /* puts large objects in stripes when the profile says so */
    bool guest;                     /* speaks for the other tenant */
    const struct sim_process *twin; /* has the same id: another thread of one program; or NULL */
    unsigned host;                  /* number of the node beside which it lives */
    struct sim_disk *disk;          /* works on it; or NULL */
};

struct sim_region { /* memory of a node, or of one that was */
    unsigned refs;
    uint64_t base, size;
    uint8_t *bytes;
    bool in_place; /* its addresses are those of this process: base = bytes */
};

struct sim_node {
    struct sim_process process;
    struct sim_process worker; /* carries out tasks */
    struct sim_process ssd;    /* serves its SSD */
    struct sim_disk *disk;
    struct mc_offload *offload; /* of the ssd process; NULL = not now */
    struct sim_region *lent;    /* what it lends to readers of the disk */
    bool power_lost;            /* and not crashed yet */
    unsigned index;
    bool up;
    bool leaving;
    struct sim_region *region; /* what peers can reach */
    uint64_t generations;
    struct mc_ops_node ops;
};

struct sim_client {
    struct sim_process process;
    unsigned index;
    unsigned operations_left;
    bool finished;
    uint8_t buffer[SIM_BATCH][SIM_VALUE_MAX];
};

struct sim_value {
    uint64_t id; /* in the first eight bytes */
    unsigned key;
    uint64_t size;
    uint64_t operation; /* that puts it */
    uint64_t latest_ns; /* it cannot become readable after this */
    uint64_t gone_ns; /* it was proved not to be there any more at this time; UINT64_MAX = never */
    bool ended;       /* the master has carried out its PutEnd: */
    uint64_t ended_event;
    size_t history; /* its operation in the key's history */
};

struct sim_history { /* of one key */
    struct sim_op *ops;
    size_t count, capacity;
};

/* One extent that the master has given to a put. See ledger.c. */
struct sim_extent {
    uint64_t address, size, replica;
    unsigned key;
    struct mc_uuid writer; /* whose put the bytes are of */
    struct mc_uuid copier; /* who copies or moves them here; {0, 0} = the writer wrote them */
    uint64_t copy;         /* the number of that copy */
    uint64_t moved_from;   /* the replica that goes when this one is complete; 0 = none */
    bool gone;             /* moved away: no list names it any more */
    uint64_t operation;
    bool complete;
    bool known;              /* of the master that runs now */
    uint64_t write_until_ms; /* when not complete: its writer may write until then */
    uint64_t lease_until_ms;
};

struct sim_replaced {
    unsigned key;
    uint64_t version;
};

#define SIM_KNOWN_REPLICAS 16
struct sim_known { /* of a key, to the master */
    uint64_t replicas[SIM_KNOWN_REPLICAS];
    unsigned count;
    uint64_t on_disk[SIM_NODES]; /* bytes of it on the disk of each node; 0 = none */
};

struct sim {
    struct sim_options options;
    struct sim_profile profile;
    struct sim_result *result;
    struct mc_rng rng;
    struct mc_clock clock; /* the master's */
    uint64_t wall_ms;      /* how far its wall clock is off */
    char quotas[64];       /* file */
    char notes[64];        /* file: what a master leaves for the next one about disks */
    uint64_t now_ns;
    bool closing, over;

    struct sim_event *heap;
    size_t heap_count, heap_capacity;
    uint64_t sequence;

    struct mc_master *master; /* NULL = down */
    struct mc_arena master_arena, spy_arena;
    struct sim_process *running; /* whose fiber it is; NULL = nobody's */
    struct sim_disk *shared;     /* that all clients reach; or NULL */
    uint64_t peer_words[MC_RPC_PEER_WORDS];
    bool calm;                 /* no faults any more */
    bool auditing;             /* the clients are through */
    struct sim_node *draining; /* NULL = no drain goes on */
    struct mc_uuid drain_job;
    bool leave_disks; /* that job does */
    uint64_t next_drain_ns;

    struct sim_node nodes[SIM_NODES];
    struct sim_client clients[SIM_CLIENTS + 1];
    struct sim_region **mapped;
    size_t mapped_count, mapped_capacity;
    uint64_t operations;

    struct sim_value *values;
    size_t value_count, value_capacity;
    struct sim_history histories[SIM_KEYS];
    struct sim_replaced *replaced; /* versions that a conditional put has replaced */
    size_t replaced_count, replaced_capacity;
    struct sim_extent *extents;
    size_t extent_count, extent_capacity;
    struct mc_str spied_tenant;      /* of the request that is looked at */
    uint64_t charged[2];             /* to "default" and the guest, before it */
    uint64_t versions[SIM_KEYS + 1]; /* before it, if it is about versions; 0 = not readable */
    struct mc_uuid writer_of[SIM_KEYS + 1];
    struct sim_known known[SIM_KEYS];     /* before the request that is carried out now */
    uint64_t copy_began_ns[SIM_KEYS + 1]; /* the last copy or move of the key */
    /* The number of the copy that may be under way; 0 = none. Promotions are copies. */
    uint64_t copy_of[SIM_KEYS + 1], copies;
    struct mc_uuid copier_of[SIM_KEYS + 1]; /* no two copies have the same */
    /* The event in which a master has last ended a put of the key, or removed it. */
    uint64_t changed_event[SIM_KEYS + 1];
};

#define SIM_COUNT(sim, what) ((sim)->result->coverage.what++)

/* world.c */
void sim_fail(struct sim *sim, const char *format, ...) MC_PRINTF(2, 3);
void sim_say(struct sim *sim, const char *format, ...) MC_PRINTF(2, 3);
#define sim_trace(sim, ...)                                                                        \
    do {                                                                                           \
        if ((sim)->options.verbose) {                                                              \
            sim_say((sim), __VA_ARGS__);                                                           \
        }                                                                                          \
    } while (0)
void sim_note(struct sim *sim, uint64_t word); /* folds it into the hash of the history */
void sim_at(struct sim *sim, uint64_t at_ns, sim_fire_fn fire, void *arg, uint64_t word);
bool sim_chance(struct sim *sim, unsigned of_10000); /* a fault: never when calm */
bool sim_odds(struct sim *sim, unsigned of_100);
uint64_t sim_between(struct sim *sim, uint64_t least, uint64_t most);
uint64_t sim_latency(struct sim *sim);
static inline uint64_t sim_now_ms(const struct sim *sim) {
    return sim->now_ns / MC_MS;
}

void sim_process_start(struct sim_process *process, void (*main)(void *arg), void *arg);
void sim_process_end(struct sim_process *process); /* from its own fiber, last */
void sim_process_crash(struct sim_process *process);
void sim_park(struct sim_process *process, uint64_t until_ns); /* UINT64_MAX = until woken */
void sim_wake(struct sim *sim, struct sim_process *process, uint64_t serial);
void sim_sleep(struct sim_process *process, uint64_t ns);

/* net.c, memory.c: the port */
extern const struct mc_port_ops sim_port_ops;
enum mc_status sim_port_call(struct mc_port *port, uint32_t function_id, struct mc_str body,
                             uint64_t deadline_ns, struct mc_buf *reply);
enum mc_status sim_port_peer_call(struct mc_port *port, struct mc_str endpoint,
                                  uint32_t function_id, struct mc_str body, uint64_t deadline_ns,
                                  struct mc_buf *reply);
void sim_port_move(struct mc_port *port, struct mc_port_move *moves, size_t count,
                   uint64_t deadline_ns);
const void *sim_port_map(struct mc_port *port, struct mc_str endpoint, uint64_t remote_addr,
                         uint64_t length, uint64_t deadline_ns);
void sim_port_unmap(struct mc_port *port, struct mc_str endpoint, const void *ptr);
struct sim_region *sim_region_make(struct sim *sim, uint64_t base, uint64_t size);
void sim_region_unref(struct sim_region *region);

/* node.c */
void sim_node_start(struct sim_node *node);
void sim_node_crash(struct sim_node *node, bool power);

/* ssd.c */
void sim_ssd_make(struct sim_node *node); /* at the start of a run: the disk */
void sim_ssd_start(struct sim_node *node);
void sim_ssd_free(struct sim_node *node);
/* What the master knows of the workload's keys before and after it carries out a request of
 * `process`: a disk that is mounted anew may bring values back. */
void sim_ssd_before(struct sim *sim, uint32_t function_id);
void sim_ssd_after(struct sim *sim, uint32_t function_id, struct sim_process *process);

/* hot.c */
/* shared.c */
#define SIM_SHARED SIM_DISK_ROOT "shared"
void sim_shared_make(struct sim *sim); /* if the profile wants one */
void sim_shared_faults(struct sim *sim, unsigned of_10000);
/* Somebody deletes a file by hand, or cuts it. */
void sim_shared_lose(struct sim *sim);
void sim_shared_free(struct sim *sim);

void sim_hot_make(struct sim_process *process); /* if the profile wants one, and it is a client */
void sim_hot_free(struct sim_process *process);

/* workload.c */
void sim_client_start(struct sim_client *client);

/* operator.c */
void sim_operator_tick(struct sim *sim);

/* auditor.c */
void sim_auditor_start(struct sim *sim);

/* oracle.c */
const char *sim_key_name(unsigned key); /* for people */
/* The key as requests name it: two tenants have keys of the same names. */
bool sim_key_is_guests(const struct sim *sim, unsigned key);
const char *sim_key_tenant(const struct sim *sim, unsigned key);
const char *sim_key_text(const struct sim *sim, unsigned key);
/* SIM_NO_KEY when it is none of the workload's. */
unsigned sim_key_find(const struct sim *sim, struct mc_str tenant, struct mc_str text);
/* A value that is about to be put, by its number; `kind`: SIM_OP_PUT or SIM_OP_WRITE. */
size_t sim_value_make(struct sim *sim, struct sim_process *writer, unsigned key, uint64_t size,
                      void *bytes, enum sim_op_kind kind);
/* Its put is over. `certain`: it was successful; else it may have happened, or happen yet. */
void sim_value_settle(struct sim *sim, size_t number, bool certain);
void sim_oracle_ended(struct sim *sim, uint64_t operation, unsigned key);
/* The master has carried out its removal. */
void sim_oracle_removed(struct sim *sim, unsigned key);
/* A read that began at began_ns returned these bytes. */
void sim_oracle_read(struct sim *sim, const char *who, unsigned key, const uint8_t *bytes,
                     uint64_t size, uint64_t began_ns);
/* The same, of the first `size` bytes of what may be more. */
void sim_oracle_read_part(struct sim *sim, const char *who, unsigned key, const uint8_t *bytes,
                          uint64_t size, uint64_t began_ns);
/* Somewhere in [began_ns, now] the key had a value of this operation. */
void sim_oracle_replaced(struct sim *sim, uint64_t operation, unsigned key, uint64_t began_ns);
/* The value lives no longer than so long from now. */
void sim_oracle_mortal(struct sim *sim, size_t number, uint64_t ttl_ms);
/* A put on the condition that the key had this version has taken place: only one can. */
void sim_oracle_replaced_version(struct sim *sim, const char *who, unsigned key, uint64_t version);
/* Somewhere in [began_ns, now] the key was not readable. */
void sim_oracle_absent(struct sim *sim, unsigned key, uint64_t began_ns);
/* The value can be read again: the disk that holds it was mounted. NULL: the master takes the key
 * for readable, but the disk has lost what it had. */
void sim_oracle_returned(struct sim *sim, unsigned key, const uint8_t *bytes, uint64_t size);
/* Somewhere in [began_ns, now] the key was readable. */
void sim_oracle_present(struct sim *sim, unsigned key, uint64_t began_ns);
/* At the end of a run: judges the histories. */
void sim_oracle_conclude(struct sim *sim);

/* ledger.c: a look at each request that the master has carried out, and at its answer */
void sim_ledger_before(struct sim *sim, uint32_t function_id);
void sim_ledger_spy(struct sim *sim, uint32_t function_id, struct mc_str request,
                    struct mc_str reply, uint64_t operation);
void sim_ledger_master_lost(struct sim *sim);
/* The master says that nobody reads or writes on the node any more, and how many objects only its
 * disk has: none, unless the drain leaves disks alone. */
void sim_ledger_drained(struct sim *sim, const struct sim_node *node, uint64_t disk_only);

#endif

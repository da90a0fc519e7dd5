/*
 * shm: memory of engines on the same host, by one copy on the caller's thread.
 *
 * Each engine has a control page (a sealed memfd) that its guests, engines of the same host and
 * user, map:
 *
 *     slots[]   what is registered: address, length, and a generation that is odd while the slot is
 * live. Removing memory makes it even before anything else happens. guests[]  one cache line for
 * each guest: how many copies it has under way now, in two counters of which new copies use the one
 * that `phase` names (as in sleepable RCU).
 *
 * A guest's copy: count itself in its line, check state and generation, copy, count out. The
 * owner's removal: generation to even, then twice: flip the phase, wait until no live guest has a
 * copy in the old counter. So when mc_memory_unregister returns no process touches the memory,
 * whatever it is used for next, and a guest that comes later sees that the slot is gone. A guest
 * that died counts as gone (its pidfd says so). Memory of mc_memory_alloc need not wait: the
 * guest's mapping keeps the pages alive, and the owner never uses them again.
 *
 * Engine, process and permission are proved when a guest attaches, over an abstract unix socket
 * named after the engine's id: the reply carries the engine id and the control page; the kernel
 * says which user and process (pidfd) answers; reading the control page through that process id
 * gives the same id or the process id is not used. Nothing depends on /proc, on addresses or on
 * pids being what a descriptor says. After each group of copies the guest asks whether the owner
 * still lives (one poll of the pidfd): a copy from or to a dead process is an error.
 *
 * SIGBUS cannot happen: a memfd is accepted only when sealed against shrinking and as long as its
 * slot says.
 */
#ifndef MC_TE_TRANSPORT_SHM_H
#define MC_TE_TRANSPORT_SHM_H

#include <pthread.h>
#include <stdatomic.h>

#include "io/io.h"
#include "te/te.h"
#include "wire/segment_desc.h"

#define SHM_MAGIC     0x314d48534b4f4f4dull /* "MOOKSHM1" */
#define SHM_GUESTS    1024
#define SHM_SLOTS     MC_SEGMENT_BUFFERS_MAX
#define SHM_ATTACH_MS 2000 /* longest wait for each answer of the owner */
#define SHM_COST      10

enum shm_state { SHM_OPEN = 1, SHM_CLOSED = 2 };

struct shm_slot {
    _Atomic uint32_t generation; /* odd: live. Owner writes; even while address and length change */
    uint32_t mappable;
    uint64_t addr;
    uint64_t length;
};

struct shm_guest_line {
    _Atomic uint32_t active[2];
    uint8_t pad[MC_CACHE_LINE - 2 * sizeof(uint32_t)];
};
_Static_assert(sizeof(struct shm_guest_line) == MC_CACHE_LINE, "one line a guest");

struct shm_control {
    uint64_t magic;
    uint64_t engine_hi;
    uint64_t engine_lo;
    uint64_t self; /* its address in the owner */
    _Atomic uint32_t state;
    _Atomic uint32_t phase;
    uint8_t pad[MC_CACHE_LINE - 40];
    struct shm_guest_line guests[SHM_GUESTS];
    struct shm_slot slots[SHM_SLOTS];
};
_Static_assert(offsetof(struct shm_control, guests) % MC_CACHE_LINE == 0, "lines are aligned");

/* ---- messages ---- */

enum shm_ask { SHM_ASK_ATTACH = 1, SHM_ASK_BUFFER = 2 };
struct shm_request {
    uint64_t magic;
    uint32_t ask;
    uint32_t slot;
};
struct shm_reply {
    uint64_t magic;
    uint64_t engine_hi;
    uint64_t engine_lo;
    int32_t status;      /* enum mc_status */
    uint32_t guest;      /* of ATTACH, with the control page */
    uint32_t generation; /* of BUFFER, with its memfd */
    uint32_t reserved;
};

extern const struct mc_transport_ops mc_transport_shm_ops;

/* ---- owner ---- */

struct shm_owner;
enum mc_status shm_owner_start(struct mc_engine *engine, struct shm_owner **out);
void shm_owner_stop(struct shm_owner *owner);
const char *shm_owner_socket(const struct shm_owner *owner);
void shm_owner_add(struct shm_owner *owner, struct mc_memory *memory);
void shm_owner_remove(struct shm_owner *owner, struct mc_memory *memory);

/* ---- guest ---- */

/* An attachment to one engine; counted. */
struct shm_host {
    _Atomic uint32_t refs;
    struct mc_uuid engine_id;
    int connection; /* its end tells the owner that the guest's line is free */
    struct mc_process process;
    struct shm_control *control;
    struct shm_guest_line *line;
    bool can_copy; /* process_vm_readv and writev are permitted */
};
/* Attaches to the engine of the descriptor, and proves that it is that one. */
enum mc_status shm_host_attach(const struct mc_peer_desc *desc, struct shm_host **out);
void shm_host_put(struct shm_host *host);
/* The owner's mapping of a slot, asked over the connection; *length becomes the mapping's. */
enum mc_status shm_host_map(struct shm_host *host, uint32_t slot, uint64_t *length, char **ptr,
                            uint32_t *generation);
/* Round a group of copies. The token goes from one to the other. */
uint32_t shm_host_enter(struct shm_host *host);
void shm_host_leave(struct shm_host *host, uint32_t token);
bool shm_host_alive(struct shm_host *host);
/* Whether the slot is still what it was; between enter and leave. */
static inline bool shm_host_slot_is(const struct shm_host *host, uint32_t slot,
                                    uint32_t generation) {
    /* Sequentially consistent: pairs with the owner's removal; see shm_host_enter. */
    return atomic_load(&host->control->slots[slot].generation) == generation;
}

#endif

/*
 * mooncake.engine: what its files share.
 *
 * A TransferEngine object holds a shared engine (engine.h) from initialize() on, the peers that it
 * has opened, its running batches by number, and the buffers that it lent out.
 */
#ifndef MC_PYTHON_ENGINE_PRIVATE_H
#define MC_PYTHON_ENGINE_PRIVATE_H

#include "engine.h"

struct mpy_transfer;

struct mpy_engine_state { /* never freed, because objects may outlive the module */
    PyTypeObject *inner_type;
    struct mpy_transfer *engines; /* initialized ones, for the end of the interpreter */
};

/* A peer that was opened, by name. */
struct mpy_peer {
    struct mpy_peer *next;
    mc_segment_id segment;
    char name[];
};

struct mpy_batch {
    struct mpy_batch *next;
    uint64_t id;
    struct mc_batch *batch;
    size_t tasks;
    uint64_t deadline_ns;
};

struct mpy_managed { /* a buffer of allocate_managed_buffer() */
    struct mpy_managed *next;
    void *memory;
    size_t length;
};

struct mpy_transfer {
    PyObject ob_base;
    struct mpy_engine_state *state;
    struct mpy_engine *engine; /* NULL before initialize() */
    struct mpy_transfer *next, *previous;
    pthread_mutex_t
        lock; /* guards the lists below; never held across a wait or with the GIL taken */
    struct mpy_peer *peers;
    struct mpy_batch *batches;
    struct mpy_managed *managed;
    uint64_t next_batch;
    PyObject *weak;
};

/* The engine, entered; NULL before initialize() and in a forked child. */
struct mpy_engine *mpy_transfer_enter(struct mpy_transfer *self);
void mpy_transfer_leave(struct mpy_engine *engine);
/* Opens a peer or finds it opened. Without the GIL. */
enum mc_status mpy_transfer_peer(struct mpy_transfer *self, struct mc_engine *engine,
                                 const char *name, mc_segment_id *segment);
/* Forgets a peer whose segment does not work, so that the next call opens it anew. */
void mpy_transfer_forget(struct mpy_transfer *self, struct mc_engine *engine, const char *name);
/* How long a transfer of so many bytes may take. */
uint64_t mpy_transfer_deadline(uint64_t bytes);

void mpy_transfer_close_all(struct mpy_engine_state *state);
bool mpy_transfer_add_types(PyObject *module, struct mpy_engine_state *state);

extern PyMethodDef mpy_transfer_life_methods[];
extern PyMethodDef mpy_transfer_move_methods[];
extern PyMethodDef mpy_transfer_memory_methods[];

#endif

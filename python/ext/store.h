/*
 * mooncake.store: what its files share.
 *
 * A store object holds a session from setup() to close(). Its calls enter the session's gate, so a
 * close from another thread waits for them; the session is freed with its last reference.
 */
#ifndef MC_PYTHON_STORE_H
#define MC_PYTHON_STORE_H

#include "ext.h"
#include "mooncake/store.h"

/* ---- ReplicateConfig (store_config.c) ---- */

/* A C configuration and what it points to. */
struct mpy_config {
    struct mc_replicate_config c;
    const char **segments;
    struct mpy_numbers expected;
    PyObject *owners[3]; /* of the strings */
    bool unsupported;    /* asks for a tier that this build does not write */
};
bool mpy_config_add_type(PyObject *module, PyTypeObject **type);
/* `object` NULL = the defaults. False with a TypeError. */
bool mpy_config_take(PyTypeObject *type, PyObject *object, struct mpy_config *out);
void mpy_config_free(struct mpy_config *config);

/* ---- buffers (store_buffer.c) ---- */

/* Memory that values are read into, kept for the next ones: fresh pages cost more than the copy. */
struct mpy_pool;
struct mpy_pool *mpy_pool_create(uint64_t keep_bytes);
void mpy_pool_ref(struct mpy_pool *pool);
void mpy_pool_unref(struct mpy_pool *pool);
/* NULL when there is no memory. Any thread, no GIL. */
void *mpy_pool_take(struct mpy_pool *pool, size_t length);
void mpy_pool_give(struct mpy_pool *pool, void *memory, size_t length);

bool mpy_buffer_add_type(PyObject *module, PyTypeObject **type);
/* A BufferHandle that owns `memory` of the pool; gives it back when that fails. */
PyObject *mpy_buffer_create(PyTypeObject *type, struct mpy_pool *pool, void *memory, size_t length);
bool mpy_allocator_add_type(PyObject *module);
bool mpy_lent_add_type(PyObject *module); /* of BufferPool's leases */

/* ---- the store (store_object.c) ---- */

struct mpy_engine;

struct mpy_session {
    struct mpy_gate gate;
    struct mc_store *store;
    struct mpy_pool *pool;
    uint64_t local_buffer_bytes;
    void **shared; /* memory of alloc_from_mem_pool(), freed with the session */
    size_t shared_count;
    bool dummy;                /* a node does the work */
    struct mpy_engine *engine; /* given to setup(), kept while the store uses it */
    struct mpy_store *owner;   /* whose session it is; not a reference */
    unsigned refs;             /* guarded by the GIL, as the list of sessions is */
    struct mpy_session *next, *previous;
};

/* Of the module; never freed, because objects may outlive the module. */
struct mpy_state {
    PyTypeObject *store_type;
    PyTypeObject *config_type;
    PyTypeObject *buffer_type;
    PyObject *types;              /* the module mooncake._types */
    struct mpy_session *sessions; /* open ones, for the end of the interpreter */
};

struct mpy_store {
    PyObject ob_base;
    struct mpy_session *session; /* NULL before setup and after close */
    struct mpy_state *state;
    PyObject *weak;
};

/* The session, entered, with a reference; NULL (no error set) when the store is not set up. */
struct mpy_session *mpy_store_enter(PyObject *self);
void mpy_store_leave(struct mpy_session *session);
struct mpy_state *mpy_store_state(PyObject *self);
/* A caller's address as memory; NULL, which the store refuses, when it is a dummy's and its node
 * cannot reach it: such an address may be anything. */
void *mpy_store_at(struct mpy_session *session, uint64_t address, uint64_t size);
/* Opens the store with these options and hands it to the object, closing what it had. The code. */
int mpy_store_open(PyObject *self, const struct mc_store_options *options,
                   struct mpy_engine *engine);
int mpy_store_close(PyObject *self);
void mpy_store_close_all(struct mpy_state *state);

/* The codes of results; `whole` unless it is MC_OK. */
PyObject *mpy_codes(const enum mc_status *results, size_t count, enum mc_status whole);

/* Tables of methods, one a file: joined by the module. */
extern PyMethodDef mpy_store_life_methods[];
extern PyMethodDef mpy_store_write_methods[];
extern PyMethodDef mpy_store_read_methods[];
extern PyMethodDef mpy_store_admin_methods[];
extern PyMethodDef mpy_store_session_methods[];
extern PyMethodDef mpy_store_segment_methods[];
bool mpy_store_add_type(PyObject *module, struct mpy_state *state);

#endif

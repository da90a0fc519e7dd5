/*
 * MooncakeDistributedStore: the object, its session, opening and closing.
 *
 * Whoever closes takes the session out of the object first, so that new calls find nothing, then
 * waits for those inside. When some are still inside after CLOSE_WAIT_SECONDS the native store is
 * left as it is: memory that a call may touch must stay.
 */
#include <stddef.h>
#include <stdlib.h>

#include "engine.h"
#include "store.h"

#define CLOSE_WAIT_SECONDS 60
#define EXIT_WAIT_SECONDS  3 /* for daemon threads: the interpreter ends without them anyway */

/* ---- sessions ---- */

static struct mpy_session *session_create(struct mpy_store *owner, struct mc_store *store,
                                          uint64_t keep_bytes, struct mpy_engine *engine) {
    struct mpy_state *state = owner->state;
    struct mpy_session *session = mpy_calloc(1, sizeof(*session));
    if (session == NULL) {
        return NULL;
    }
    session->pool = mpy_pool_create(keep_bytes);
    if (session->pool == NULL) {
        free(session);
        return NULL;
    }
    mpy_gate_init(&session->gate);
    session->store = store;
    session->refs = 1;
    session->owner = owner;
    session->local_buffer_bytes = keep_bytes;
    session->engine = engine;
    if (engine != NULL) {
        mpy_engine_ref(engine);
    }
    session->next = state->sessions;
    if (session->next != NULL) {
        session->next->previous = session;
    }
    state->sessions = session;
    return session;
}

static void session_unlink(struct mpy_state *state, struct mpy_session *session) {
    if (session->previous != NULL) {
        session->previous->next = session->next;
    } else {
        state->sessions = session->next;
    }
    if (session->next != NULL) {
        session->next->previous = session->previous;
    }
    session->next = session->previous = NULL;
}

static void session_unref(struct mpy_session *session) {
    if (--session->refs > 0) {
        return;
    }
    if (session->shared_count > 0) {
        PyThreadState *thread = PyEval_SaveThread(); /* nobody else has the session any more */
        while (session->shared_count > 0) {
            mc_shared_free(session->shared[--session->shared_count]);
        }
        PyEval_RestoreThread(thread);
    }
    free(session->shared);
    mpy_pool_unref(session->pool);
    mpy_gate_destroy(&session->gate);
    free(session);
}

/* Ends the native store; the caller has taken the session out of its object and has a reference. */
static void session_close(struct mpy_state *state, struct mpy_session *session,
                          unsigned wait_seconds) {
    session_unlink(state, session);
    if (mpy_gate_forked(&session->gate)) {
        return; /* it is the parent's; what it holds here is left */
    }
    PyThreadState *thread = PyEval_SaveThread();
    bool empty = mpy_gate_close(&session->gate, wait_seconds);
    if (empty) {
        mc_store_close(session->store);
        session->store = NULL;
    }
    PyEval_RestoreThread(thread);
    if (!empty) {
        session->refs++; /* for the calls that do not end */
    } else if (session->engine != NULL) {
        mpy_engine_unref(session->engine);
        session->engine = NULL;
    }
    session_unref(session);
}

struct mpy_state *mpy_store_state(PyObject *self) {
    return ((struct mpy_store *)self)->state;
}

struct mpy_session *mpy_store_enter(PyObject *self) {
    struct mpy_session *session = ((struct mpy_store *)self)->session;
    if (session == NULL || !mpy_gate_enter(&session->gate)) {
        return NULL;
    }
    session->refs++;
    return session;
}

void mpy_store_leave(struct mpy_session *session) {
    mpy_gate_leave(&session->gate);
    session_unref(session);
}

void *mpy_store_at(struct mpy_session *session, uint64_t address, uint64_t size) {
    void *memory = (void *)(uintptr_t)address;
    return mc_store_reaches(session->store, memory, (size_t)size) ? memory : NULL;
}

/* ---- opening and closing ---- */

int mpy_store_close(PyObject *self) {
    struct mpy_store *object = (struct mpy_store *)self;
    struct mpy_session *session = object->session;
    object->session = NULL;
    if (session != NULL) {
        session_close(object->state, session, CLOSE_WAIT_SECONDS);
    }
    return 0;
}

int mpy_store_open(PyObject *self, const struct mc_store_options *options,
                   struct mpy_engine *engine) {
    struct mpy_store *object = (struct mpy_store *)self;
    struct mc_store *store = NULL;
    mpy_store_close(self); /* setup() again begins anew */
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_open(options, &store);
    PyEval_RestoreThread(thread);
    if (status != MC_OK) {
        return mpy_code(status);
    }
    struct mpy_session *session =
        session_create(object, store, options->local_buffer_bytes, engine);
    if (session == NULL) {
        PyErr_Clear();
        thread = PyEval_SaveThread();
        mc_store_close(store);
        PyEval_RestoreThread(thread);
        return MC_INTERNAL_ERROR;
    }
    session->dummy = options->real_client != NULL;
    struct mpy_session *other = object->session; /* of a setup() in another thread */
    object->session = session;
    if (other != NULL) {
        session_close(object->state, other, CLOSE_WAIT_SECONDS);
    }
    return 0;
}

void mpy_store_close_all(struct mpy_state *state) {
    while (state->sessions != NULL) {
        struct mpy_session *session = state->sessions;
        session->owner->session = NULL;
        session_close(state, session, EXIT_WAIT_SECONDS);
    }
}

/* ---- the object ---- */

static struct mpy_state *state_of_type(PyTypeObject *type);

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    struct mpy_store *self = (struct mpy_store *)mpy_new(type);
    if (self != NULL) {
        self->state = state_of_type(type);
        if (self->state == NULL) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static int store_init(PyObject *self, PyObject *args, PyObject *keywords) {
    if (PyTuple_Size(args) > 0 || (keywords != NULL && PyDict_Size(keywords) > 0)) {
        PyErr_SetString(PyExc_TypeError, "MooncakeDistributedStore() takes no arguments");
        return -1;
    }
    return 0;
}

static void store_dealloc(PyObject *object) {
    struct mpy_store *self = (struct mpy_store *)object;
    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    PyObject *type, *value, *trace; /* closing may run while an exception is on its way */
    PyErr_Fetch(&type, &value, &trace);
    mpy_store_close(object);
    PyErr_Restore(type, value, trace);
    mpy_free(object);
}

/* The module's state, also for subclasses: kept in a capsule on the type. */
#define STATE_ATTRIBUTE "_state"
#define STATE_CAPSULE   "mooncake.store.state"

static struct mpy_state *state_of_type(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, STATE_ATTRIBUTE);
    if (capsule == NULL) {
        return NULL;
    }
    struct mpy_state *state = PyCapsule_GetPointer(capsule, STATE_CAPSULE);
    Py_DECREF(capsule);
    return state;
}

static size_t count_methods(const PyMethodDef *methods) {
    size_t count = 0;
    while (methods[count].ml_name != NULL) {
        count++;
    }
    return count;
}

/* The tables of all files as one, which the type keeps for good. */
static PyMethodDef *join_methods(void) {
    static PyMethodDef *const tables[] = {mpy_store_life_methods,    mpy_store_write_methods,
                                          mpy_store_read_methods,    mpy_store_admin_methods,
                                          mpy_store_session_methods, mpy_store_segment_methods};
    size_t total = 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        total += count_methods(tables[i]);
    }
    PyMethodDef *all = mpy_calloc(total + 1, sizeof(*all));
    size_t at = 0;
    for (size_t i = 0; all != NULL && i < sizeof(tables) / sizeof(tables[0]); i++) {
        for (const PyMethodDef *m = tables[i]; m->ml_name != NULL; m++) {
            all[at++] = *m;
        }
    }
    return all;
}

bool mpy_store_add_type(PyObject *module, struct mpy_state *state) {
    static PyMemberDef members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mpy_store, weak), READONLY, NULL},
        {NULL, 0, 0, 0, NULL}};
    PyMethodDef *methods = join_methods();
    if (methods == NULL) {
        return false;
    }
    PyType_Slot slots[] = {
        {Py_tp_new, store_new},
        {Py_tp_init, store_init},
        {Py_tp_dealloc, store_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_members, members},
        {Py_tp_doc, (char *)"MooncakeDistributedStore()\n--\n\nA client of the Mooncake store. "
                            "setup() connects it; calls return 0 or a negative error number "
                            "unless they say otherwise, and may come from any thread."},
        {0, NULL}};
    PyType_Spec spec = {.name = "mooncake.store.MooncakeDistributedStore",
                        .basicsize = sizeof(struct mpy_store),
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                        .slots = slots};
    if (!mpy_add_type(module, &spec, &state->store_type)) {
        return false;
    }
    PyObject *capsule = PyCapsule_New(state, STATE_CAPSULE, NULL);
    int rc = capsule != NULL
                 ? PyObject_SetAttrString((PyObject *)state->store_type, STATE_ATTRIBUTE, capsule)
                 : -1;
    Py_XDECREF(capsule);
    return rc == 0;
}

/*
 * TransferEngine: the object, initialize(), peers, notifications. And InnerTransferEngine, which
 * get_engine() returns and a store's setup() takes.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_private.h"

#define TIMEOUT_DEFAULT_S 30
#define TIMEOUT_MIN_S     5
#define PROBE_MS          5000

/* ---- entering ---- */

struct mpy_engine *mpy_transfer_enter(struct mpy_transfer *self) {
    struct mpy_engine *engine = self->engine;
    if (engine == NULL || !mpy_gate_enter(&engine->gate)) {
        return NULL;
    }
    mpy_engine_ref(engine);
    return engine;
}

void mpy_transfer_leave(struct mpy_engine *engine) {
    mpy_gate_leave(&engine->gate);
    mpy_engine_unref(engine);
}

uint64_t mpy_transfer_deadline(uint64_t bytes) {
    const char *text = getenv("MC_TRANSFER_TIMEOUT");
    uint64_t seconds = TIMEOUT_DEFAULT_S;
    if (text != NULL && text[0] != '\0') {
        char *end;
        unsigned long long given = strtoull(text, &end, 10);
        seconds = *end == '\0' && given < 1000000 ? given : seconds;
        seconds = seconds < TIMEOUT_MIN_S ? TIMEOUT_MIN_S : seconds;
    }
    return mc_deadline_in_ms(seconds * 1000 + bytes / 1000000); /* and 1 ns a byte */
}

/* ---- peers ---- */

enum mc_status mpy_transfer_peer(struct mpy_transfer *self, struct mc_engine *engine,
                                 const char *name, mc_segment_id *segment) {
    pthread_mutex_lock(&self->lock);
    for (struct mpy_peer *p = self->peers; p != NULL; p = p->next) {
        if (strcmp(p->name, name) == 0) {
            *segment = p->segment;
            pthread_mutex_unlock(&self->lock);
            return MC_OK;
        }
    }
    pthread_mutex_unlock(&self->lock);
    enum mc_status status = mc_segment_open(engine, name, segment);
    if (status != MC_OK) {
        return status;
    }
    size_t length = strlen(name) + 1;
    struct mpy_peer *peer = malloc(sizeof(*peer) + length);
    if (peer == NULL) {
        return MC_ERR_NO_MEMORY;
    }
    memcpy(peer->name, name, length);
    peer->segment = *segment;
    pthread_mutex_lock(&self->lock); /* two threads may each add one: openings are counted */
    peer->next = self->peers;
    self->peers = peer;
    pthread_mutex_unlock(&self->lock);
    return MC_OK;
}

void mpy_transfer_forget(struct mpy_transfer *self, struct mc_engine *engine, const char *name) {
    struct mpy_peer *gone = NULL;
    pthread_mutex_lock(&self->lock);
    for (struct mpy_peer **at = &self->peers; *at != NULL;) {
        struct mpy_peer *peer = *at;
        if (strcmp(peer->name, name) == 0) {
            *at = peer->next;
            peer->next = gone;
            gone = peer;
        } else {
            at = &peer->next;
        }
    }
    pthread_mutex_unlock(&self->lock);
    while (gone != NULL) {
        struct mpy_peer *peer = gone;
        gone = peer->next;
        enum mc_status closed = mc_segment_close(engine, peer->segment);
        (void)closed; /* it is gone either way */
        free(peer);
    }
}

/* ---- initialize ---- */

static void link_engine(struct mpy_transfer *self) {
    self->next = self->state->engines;
    self->previous = NULL;
    if (self->next != NULL) {
        self->next->previous = self;
    }
    self->state->engines = self;
}

static void unlink_engine(struct mpy_transfer *self) {
    if (self->previous != NULL) {
        self->previous->next = self->next;
    } else if (self->state->engines == self) {
        self->state->engines = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    self->next = self->previous = NULL;
}

/* "host", "host:port", "[v6]:port": without the port, which the engine chooses, unless
 * MC_LEGACY_RPC_PORT_BINDING asks for the one that was given. */
static bool split_host(const char *name, char *host, size_t size, uint16_t *port) {
    const char *colon = strrchr(name, ':');
    const char *bracket = strrchr(name, ']');
    bool has_port =
        colon != NULL && (bracket != NULL ? colon > bracket : strchr(name, ':') == colon);
    size_t length = has_port ? (size_t)(colon - name) : strlen(name);
    const char *begin = name;
    *port = 0;
    if (has_port) {
        char *end;
        unsigned long number = strtoul(colon + 1, &end, 10);
        if (*end != '\0' || number > UINT16_MAX) {
            return false;
        }
        *port = getenv("MC_LEGACY_RPC_PORT_BINDING") != NULL ? (uint16_t)number : 0;
    }
    if (length > 1 && begin[0] == '[' && begin[length - 1] == ']') {
        begin++;
        length -= 2;
    }
    if (length >= size) {
        return false;
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    return true;
}

static int start(struct mpy_transfer *self, const char *hostname, const char *metadata,
                 const char *protocol) {
    char host[256];
    struct mc_engine_options options;
    mc_engine_options_init(&options);
    if (self->engine != NULL || hostname[0] == '\0' || metadata[0] == '\0' ||
        strcmp(protocol, "xgmi") == 0 ||
        !split_host(hostname, host, sizeof(host), &options.rpc_port)) {
        return -1;
    }
    bool p2p = strcmp(metadata, "P2PHANDSHAKE") == 0;
    options.metadata = metadata;
    options.host = host;
    options.local_name = p2p ? NULL : hostname;
    struct mc_engine *engine = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_engine_create(&options, &engine);
    PyEval_RestoreThread(thread);
    if (status != MC_OK) {
        return -1;
    }
    struct mpy_engine *shared = mpy_engine_create(engine);
    if (shared == NULL || self->engine != NULL) { /* another thread was faster */
        PyErr_Clear();
        if (shared != NULL) {
            mpy_engine_unref(shared);
        }
        return -1;
    }
    self->engine = shared;
    link_engine(self);
    return 0;
}

static PyObject *initialize(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    static const char *const NAMES[] = {"local_hostname", "metadata_server", "protocol",
                                        "device_name"};
    static const struct mpy_signature SIGNATURE = {"initialize", NAMES, 4, 4, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *text[4] = {"", "", "", ""};
    if (!mpy_args(&SIGNATURE, args, count, names, v)) {
        return NULL;
    }
    for (size_t i = 0; i < 4; i++) {
        if (!mpy_text(v[i], NAMES[i], &text[i])) {
            return NULL;
        }
    }
    return PyLong_FromLong(start((struct mpy_transfer *)object, text[0], text[1], text[2]));
}

static PyObject *initialize_ext(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    static const char *const NAMES[] = {"local_hostname", "metadata_server", "protocol",
                                        "device_name", "metadata_type"};
    static const struct mpy_signature SIGNATURE = {"initialize_ext", NAMES, 5, 5, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *text[5] = {"", "", "", "", ""};
    char metadata[512];
    if (!mpy_args(&SIGNATURE, args, count, names, v)) {
        return NULL;
    }
    for (size_t i = 0; i < 5; i++) {
        if (!mpy_text(v[i], NAMES[i], &text[i])) {
            return NULL;
        }
    }
    bool whole = text[4][0] == '\0' || strstr(text[1], "://") != NULL ||
                 strcmp(text[1], "P2PHANDSHAKE") == 0;
    int length = snprintf(metadata, sizeof(metadata), "%s%s%s", whole ? "" : text[4],
                          whole ? "" : "://", text[1]);
    int code = length < (int)sizeof(metadata)
                   ? start((struct mpy_transfer *)object, text[0], metadata, text[2])
                   : -1;
    return PyLong_FromLong(code);
}

/* ---- the end of an object ---- */

/* Peers, batches and lent memory go before the engine. Batches that are running are cancelled by
 * the engine's end, and can be freed only then. */
static void end_engine(struct mpy_transfer *self) {
    struct mpy_engine *engine = self->engine;
    if (engine == NULL) {
        return;
    }
    self->engine = NULL;
    unlink_engine(self);
    if (mpy_gate_forked(&engine->gate)) {
        return;
    }
    bool last = engine->refs == 1;
    mpy_engine_unref(engine);
    while (self->batches != NULL) {
        struct mpy_batch *b = self->batches;
        self->batches = b->next;
        if (last) { /* else it goes on, and its memory with it */
            enum mc_status freed = mc_batch_free(b->batch);
            (void)freed;
        }
        free(b);
    }
    while (self->peers != NULL) {
        struct mpy_peer *p = self->peers;
        self->peers = p->next;
        free(p);
    }
    while (self->managed != NULL) {
        struct mpy_managed *m = self->managed;
        self->managed = m->next;
        free(m);
    }
}

void mpy_transfer_close_all(struct mpy_engine_state *state) {
    while (state->engines != NULL) {
        end_engine(state->engines);
    }
}

/* ---- small questions ---- */

static PyObject *get_rpc_port(PyObject *object, PyObject *unused) {
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    long port = engine != NULL ? mc_engine_rpc_port(engine->engine) : 0;
    if (engine != NULL) {
        mpy_transfer_leave(engine);
    }
    return PyLong_FromLong(port);
}

static PyObject *get_engine_ptr(PyObject *object, PyObject *unused) {
    struct mpy_engine *engine = ((struct mpy_transfer *)object)->engine;
    return PyLong_FromVoidPtr(engine != NULL ? engine->engine : NULL);
}

/* The name with which peers open this engine; "" before initialize(). */
static PyObject *get_name(PyObject *object, PyObject *unused) {
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    PyObject *name = PyUnicode_FromString(engine != NULL ? mc_engine_name(engine->engine) : "");
    if (engine != NULL) {
        mpy_transfer_leave(engine);
    }
    return name;
}

static PyObject *metrics(PyObject *object, PyObject *unused) {
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    if (engine == NULL) {
        return PyUnicode_FromString("");
    }
    PyThreadState *thread = PyEval_SaveThread();
    char *text = mc_engine_metrics(engine->engine);
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    PyObject *result = PyUnicode_FromString(text != NULL ? text : "");
    free(text);
    return result;
}

static PyObject *send_probe(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    static const char *const NAMES[] = {"peer_server_name"};
    static const struct mpy_signature SIGNATURE = {"send_probe", NAMES, 1, 1, false};
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    PyObject *v[MPY_MAX_ARGS];
    const char *name = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &name)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter(self);
    if (engine == NULL) {
        return PyLong_FromLong(-1);
    }
    mc_segment_id segment;
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mpy_transfer_peer(self, engine->engine, name, &segment);
    if (status == MC_OK) {
        status = mc_segment_probe(engine->engine, segment, mc_deadline_in_ms(PROBE_MS));
        if (status != MC_OK) {
            mpy_transfer_forget(self, engine->engine, name);
        }
    }
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    return PyLong_FromLong(status == MC_OK ? 0 : -1);
}

static PyObject *get_first_buffer_address(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                          PyObject *names) {
    static const char *const NAMES[] = {"segment_name"};
    static const struct mpy_signature SIGNATURE = {"get_first_buffer_address", NAMES, 1, 1, false};
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    PyObject *v[MPY_MAX_ARGS];
    const char *name = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &name)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter(self);
    if (engine == NULL) {
        return PyLong_FromLong(0);
    }
    struct mc_buffer_info buffer = {.addr = 0};
    size_t buffers = 0;
    mc_segment_id segment;
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mpy_transfer_peer(self, engine->engine, name, &segment);
    if (status == MC_OK) {
        status = mc_segment_refresh(engine->engine, segment);
    }
    if (status == MC_OK || status == MC_SEGMENT_NOT_FOUND) {
        status = mc_segment_buffers(engine->engine, segment, &buffer, 1, &buffers);
    }
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    return PyLong_FromUnsignedLongLong(status == MC_OK && buffers > 0 ? buffer.addr : 0);
}

/* ---- notifications ---- */

static PyObject *receive(PyObject *object, PyObject *unused) {
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    if (engine == NULL) {
        return PyList_New(0);
    }
    struct mc_notification *got = NULL;
    size_t count = 0;
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_notify_receive(engine->engine, &got, &count);
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    count = status == MC_OK ? count : 0;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("(ss)", got[i].name, got[i].message);
        if (pair == NULL || PyList_SetItem(list, (Py_ssize_t)i, pair) != 0) {
            Py_CLEAR(list);
        }
    }
    thread = PyEval_SaveThread();
    mc_notify_free(got, count);
    PyEval_RestoreThread(thread);
    return list;
}

/* ---- InnerTransferEngine ---- */

struct inner {
    PyObject ob_base;
    struct mpy_engine *engine;
};

static PyObject *inner_capsule(PyObject *object, PyObject *unused) {
    return mpy_engine_capsule(((struct inner *)object)->engine);
}

static void inner_dealloc(PyObject *object) {
    struct mpy_engine *engine = ((struct inner *)object)->engine;
    if (engine != NULL) {
        mpy_engine_unref(engine);
    }
    mpy_free(object);
}

static PyObject *inner_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyErr_SetString(PyExc_TypeError,
                    "mooncake.engine.InnerTransferEngine: No constructor defined!");
    return NULL;
}

static PyObject *get_engine(PyObject *object, PyObject *unused) {
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    if (self->engine == NULL) {
        Py_RETURN_NONE;
    }
    struct inner *inner = (struct inner *)mpy_new(self->state->inner_type);
    if (inner != NULL) {
        inner->engine = self->engine;
        mpy_engine_ref(inner->engine);
    }
    return (PyObject *)inner;
}

/* ---- the object ---- */

#define STATE_ATTRIBUTE "_state"
#define STATE_CAPSULE   "mooncake.engine.state"

static PyObject *transfer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    if (PyTuple_Size(args) > 0 || (keywords != NULL && PyDict_Size(keywords) > 0)) {
        PyErr_SetString(PyExc_TypeError, "TransferEngine() takes no arguments");
        return NULL;
    }
    struct mpy_transfer *self = (struct mpy_transfer *)mpy_new(type);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->lock, NULL);
    self->next_batch = 1;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, STATE_ATTRIBUTE);
    self->state = capsule != NULL ? PyCapsule_GetPointer(capsule, STATE_CAPSULE) : NULL;
    Py_XDECREF(capsule);
    if (self->state == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void transfer_dealloc(PyObject *object) {
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    if (self->weak != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    PyObject *type, *value, *trace; /* ending may run while an exception is on its way */
    PyErr_Fetch(&type, &value, &trace);
    end_engine(self);
    PyErr_Restore(type, value, trace);
    pthread_mutex_destroy(&self->lock);
    mpy_free(object);
}

PyMethodDef mpy_transfer_life_methods[] = {
    {"initialize", MPY_METHOD(initialize), MPY_FAST,
     "initialize($self, local_hostname, metadata_server, protocol, device_name)\n--\n\nStarts the "
     "engine: 0, or -1. metadata_server is \"P2PHANDSHAKE\" or \"http://...\"."},
    {"initialize_ext", MPY_METHOD(initialize_ext), MPY_FAST,
     "initialize_ext($self, local_hostname, metadata_server, protocol, device_name, "
     "metadata_type)\n--\n\ninitialize() with the kind of metadata service apart."},
    {"get_rpc_port", get_rpc_port, METH_NOARGS,
     "get_rpc_port($self)\n--\n\nThe port that peers put into \"host:port\" to reach this engine."},
    {"get_engine", get_engine, METH_NOARGS,
     "get_engine($self)\n--\n\nThe engine itself, for MooncakeDistributedStore.setup(engine=)."},
    {"get_engine_ptr", get_engine_ptr, METH_NOARGS, "get_engine_ptr($self)\n--\n\nIts address."},
    {"get_name", get_name, METH_NOARGS,
     "get_name($self)\n--\n\nThe name under which peers open this engine's segment."},
    {"metrics", metrics, METH_NOARGS, "metrics($self)\n--\n\nCounters, as Prometheus text."},
    {"send_probe", MPY_METHOD(send_probe), MPY_FAST,
     "send_probe($self, peer_server_name)\n--\n\n0 when the peer answers."},
    {"get_first_buffer_address", MPY_METHOD(get_first_buffer_address), MPY_FAST,
     "get_first_buffer_address($self, segment_name)\n--\n\nThe peer's first registered buffer; 0 "
     "when there is none."},
    {"_receive", receive, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyMethodDef *join(PyMethodDef *const *tables, size_t tables_count) {
    size_t total = 0;
    for (size_t i = 0; i < tables_count; i++) {
        for (const PyMethodDef *m = tables[i]; m->ml_name != NULL; m++) {
            total++;
        }
    }
    PyMethodDef *all = mpy_calloc(total + 1, sizeof(*all));
    for (size_t i = 0, at = 0; all != NULL && i < tables_count; i++) {
        for (const PyMethodDef *m = tables[i]; m->ml_name != NULL; m++) {
            all[at++] = *m;
        }
    }
    return all;
}

static bool add_inner(PyObject *module, struct mpy_engine_state *state) {
    static PyMethodDef methods[] = {{MPY_ENGINE_METHOD, inner_capsule, METH_NOARGS, NULL},
                                    {NULL, NULL, 0, NULL}};
    static PyType_Slot slots[] = {{Py_tp_new, inner_new},
                                  {Py_tp_dealloc, inner_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc, (char *)"An engine that a store can use, too."},
                                  {0, NULL}};
    static PyType_Spec spec = {.name = "mooncake.engine.InnerTransferEngine",
                               .basicsize = sizeof(struct inner),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    return mpy_add_type(module, &spec, &state->inner_type);
}

bool mpy_transfer_add_types(PyObject *module, struct mpy_engine_state *state) {
    static PyMethodDef *const TABLES[] = {mpy_transfer_life_methods, mpy_transfer_move_methods,
                                          mpy_transfer_memory_methods};
    static PyMemberDef members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mpy_transfer, weak), READONLY, NULL},
        {NULL, 0, 0, 0, NULL}};
    PyMethodDef *methods = join(TABLES, sizeof(TABLES) / sizeof(TABLES[0]));
    if (methods == NULL || !add_inner(module, state)) {
        return false;
    }
    PyType_Slot slots[] = {
        {Py_tp_new, transfer_new},
        {Py_tp_dealloc, transfer_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_members, members},
        {Py_tp_doc, (char *)"TransferEngine()\n--\n\nMoves bytes between registered memory of "
                            "processes. initialize() starts it; calls may come from any thread."},
        {0, NULL}};
    PyType_Spec spec = {.name = "mooncake.engine.TransferEngine",
                        .basicsize = sizeof(struct mpy_transfer),
                        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                        .slots = slots};
    PyTypeObject *type = NULL;
    if (!mpy_add_type(module, &spec, &type)) {
        return false;
    }
    PyObject *capsule = PyCapsule_New(state, STATE_CAPSULE, NULL);
    int rc =
        capsule != NULL ? PyObject_SetAttrString((PyObject *)type, STATE_ATTRIBUTE, capsule) : -1;
    Py_XDECREF(capsule);
    Py_DECREF(type); /* the module's */
    return rc == 0;
}

/* MooncakeDistributedStore: setup, close, health, names, registered buffers. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "store.h"

#define SMALLEST_BUFFER 1024
#define LARGEST_BUFFER  (1ull << 40)
#define DEFAULT_BYTES   (16ull << 20)

/* ---- setup ---- */

/* What setup() was given, whichever way. */
struct wanted {
    const char *local_hostname, *metadata, *protocol, *devices, *master, *tenant, *ssd_path;
    uint64_t segment_bytes, buffer_bytes, http_port;
    bool ssd_offload;
    bool http_server;
};

static struct wanted defaults(void) {
    return (struct wanted){.local_hostname = "",
                           .metadata = "",
                           .protocol = "tcp",
                           .devices = "",
                           .master = "127.0.0.1:50051",
                           .tenant = "default",
                           .ssd_path = "",
                           .segment_bytes = DEFAULT_BYTES,
                           .buffer_bytes = DEFAULT_BYTES,
                           .http_port = 9300};
}

static bool acceptable_bytes(uint64_t bytes) {
    return bytes == 0 || bytes >= SMALLEST_BUFFER;
}

/* mooncake/_client_http.py; it ends by itself with the store. */
static bool serve_http(PyObject *self, uint64_t port) {
    PyObject *module = PyImport_ImportModule("mooncake._client_http");
    PyObject *done =
        module == NULL ? NULL
                       : PyObject_CallMethod(module, "serve", "OK", self, (unsigned long long)port);
    Py_XDECREF(module);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *open_wanted(PyObject *self, const struct wanted *w, struct mpy_engine *engine) {
    if (w->local_hostname[0] == '\0' || w->metadata[0] == '\0' ||
        !acceptable_bytes(w->segment_bytes) || !acceptable_bytes(w->buffer_bytes) ||
        w->buffer_bytes > LARGEST_BUFFER) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    struct mc_store_options options;
    mc_store_options_init(&options);
    options.master = w->master;
    options.metadata = w->metadata;
    options.local_hostname = w->local_hostname;
    options.segment_bytes = w->segment_bytes;
    options.local_buffer_bytes = w->buffer_bytes;
    options.protocol = w->protocol;
    options.device = w->devices;
    options.tenant = w->tenant;
    if (w->ssd_offload) {
        const char *named = getenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH");
        named = named != NULL ? named : "/data/file_storage"; /* as upstream */
        options.ssd_offload_path = w->ssd_path[0] != '\0' ? w->ssd_path : named;
    }
    options.engine = engine != NULL ? engine->engine : NULL;
    int code = mpy_store_open(self, &options, engine);
    if (code == 0 && w->http_server && !serve_http(self, w->http_port)) {
        return NULL;
    }
    /* To upstream's callers a store that cannot start is -1, but for what they gave. */
    return PyLong_FromLong(code == 0 || code == MC_INVALID_PARAMS ? code : MC_INTERNAL_ERROR);
}

static const char *const SETUP_NAMES[] = {
    "local_hostname",     "metadata_server",  "global_segment_size", "local_buffer_size",
    "protocol",           "rdma_devices",     "master_server_addr",  "engine",
    "enable_ssd_offload", "ssd_offload_path", "tenant_id",           "enable_client_http_server",
    "client_http_port"};
enum {
    SETUP_ENGINE = 7,
    SETUP_OFFLOAD = 8,
    SETUP_OFFLOAD_PATH = 9,
    SETUP_TENANT = 10,
    SETUP_HTTP = 11,
    SETUP_HTTP_PORT = 12,
    SETUP_COUNT = 13
};

static PyObject *setup_arguments(PyObject *self, PyObject **v) {
    struct wanted w = defaults();
    if (!mpy_text(v[0], SETUP_NAMES[0], &w.local_hostname) ||
        !mpy_text(v[1], SETUP_NAMES[1], &w.metadata) ||
        !mpy_u64(v[2], SETUP_NAMES[2], &w.segment_bytes) ||
        !mpy_u64(v[3], SETUP_NAMES[3], &w.buffer_bytes) ||
        !mpy_text(v[4], SETUP_NAMES[4], &w.protocol) ||
        !mpy_text(v[5], SETUP_NAMES[5], &w.devices) || !mpy_text(v[6], SETUP_NAMES[6], &w.master) ||
        !mpy_bool(v[SETUP_OFFLOAD], SETUP_NAMES[SETUP_OFFLOAD], &w.ssd_offload) ||
        !mpy_text(v[SETUP_OFFLOAD_PATH], SETUP_NAMES[SETUP_OFFLOAD_PATH], &w.ssd_path) ||
        !mpy_text(v[SETUP_TENANT], SETUP_NAMES[SETUP_TENANT], &w.tenant) ||
        !mpy_bool(v[SETUP_HTTP], SETUP_NAMES[SETUP_HTTP], &w.http_server) ||
        !mpy_u64(v[SETUP_HTTP_PORT], SETUP_NAMES[SETUP_HTTP_PORT], &w.http_port)) {
        return NULL;
    }
    struct mpy_engine *engine = NULL;
    if (v[SETUP_ENGINE] != NULL && v[SETUP_ENGINE] != Py_None) {
        engine = mpy_engine_from(v[SETUP_ENGINE]);
        if (engine == NULL) {
            return NULL;
        }
    }
    PyObject *result = open_wanted(self, &w, engine);
    if (engine != NULL) {
        mpy_engine_unref(engine);
    }
    return result;
}

/* "16MB", "1.5 g", "4096", "infinite": a number and a binary unit. */
static bool parse_bytes(const char *text, uint64_t *out) {
    static const struct {
        const char *name;
        unsigned shift;
    } UNITS[] = {{"", 0},    {"b", 0},  {"k", 10},  {"kb", 10}, {"m", 20},
                 {"mb", 20}, {"g", 30}, {"gb", 30}, {"t", 40},  {"tb", 40}};
    char *end;
    while (isspace((unsigned char)*text)) {
        text++;
    }
    if (strncasecmp(text, "infinite", 8) == 0) {
        *out = UINT64_MAX;
        return true;
    }
    double number = strtod(text, &end);
    if (end == text || !(number >= 0) || isinf(number)) {
        return false;
    }
    while (isspace((unsigned char)*end)) {
        end++;
    }
    size_t length = strlen(end);
    while (length > 0 && isspace((unsigned char)end[length - 1])) {
        length--;
    }
    for (size_t i = 0; i < sizeof(UNITS) / sizeof(UNITS[0]); i++) {
        if (strlen(UNITS[i].name) == length && strncasecmp(UNITS[i].name, end, length) == 0) {
            double bytes = ldexp(number, (int)UNITS[i].shift);
            *out = bytes < 0x1p64 ? (uint64_t)bytes : UINT64_MAX;
            return true;
        }
    }
    return false;
}

/* A boolean word; another leaves *out as it is, with a warning (as upstream). */
static bool parse_bool(const char *text, const char *name, bool *out) {
    static const char *const WORDS[][2] = {
        {"0", "1"}, {"false", "true"}, {"no", "yes"}, {"off", "on"}};
    for (size_t i = 0; i < sizeof(WORDS) / sizeof(WORDS[0]); i++) {
        for (int value = 0; value < 2; value++) {
            if (strcasecmp(text, WORDS[i][value]) == 0) {
                *out = value != 0;
                return true;
            }
        }
    }
    return PyErr_WarnFormat(PyExc_RuntimeWarning, 2, "mooncake: %s is not a boolean: '%s'", name,
                            text) == 0;
}

/* The str() of config[name], kept in `owners`; NULL without an error when the key is absent. */
static const char *config_text(PyObject *config, const char *name, PyObject *owners) {
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key != NULL ? PyDict_GetItemWithError(config, key) : NULL;
    Py_XDECREF(key);
    PyObject *text = value != NULL ? PyObject_Str(value) : NULL;
    if (text == NULL || PyList_Append(owners, text) != 0) {
        Py_XDECREF(text);
        return NULL;
    }
    Py_DECREF(text); /* the list's now */
    return PyUnicode_AsUTF8AndSize(text, NULL);
}

/* False with an error set, or with *bad = a value is not acceptable. */
static bool take_dict(PyObject *config, PyObject *owners, struct wanted *w, bool *bad) {
    const struct {
        const char *name;
        const char **text;
        uint64_t *bytes;
        bool *flag;
    } entries[] = {
        {"local_hostname", &w->local_hostname, NULL, NULL},
        {"metadata_server", &w->metadata, NULL, NULL},
        {"global_segment_size", NULL, &w->segment_bytes, NULL},
        {"local_buffer_size", NULL, &w->buffer_bytes, NULL},
        {"protocol", &w->protocol, NULL, NULL},
        {"rdma_devices", &w->devices, NULL, NULL},
        {"master_server_addr", &w->master, NULL, NULL},
        /* LMCache's names, which upstream passes over and so means this machine. */
        {"master_server_address", &w->master, NULL, NULL},
        {"device_name", &w->devices, NULL, NULL},
        {"tenant_id", &w->tenant, NULL, NULL},
        {"enable_ssd_offload", NULL, NULL, &w->ssd_offload},
        {"ssd_offload_path", &w->ssd_path, NULL, NULL},
        {"enable_client_http_server", NULL, NULL, &w->http_server},
        {"client_http_port", NULL, &w->http_port, NULL},
    };
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        const char *text = config_text(config, entries[i].name, owners);
        if (text == NULL && PyErr_Occurred()) {
            return false;
        }
        if (text == NULL) {
            continue;
        }
        if (entries[i].text != NULL) {
            *entries[i].text = text;
        } else if (entries[i].bytes != NULL) {
            *bad = *bad || !parse_bytes(text, entries[i].bytes);
        } else if (!parse_bool(text, entries[i].name, entries[i].flag)) {
            return false;
        }
    }
    return true;
}

static PyObject *setup_dict(PyObject *self, PyObject *config) {
    struct wanted w = defaults();
    bool bad = false;
    PyObject *result = NULL;
    PyObject *owners = PyList_New(0);
    if (owners != NULL && take_dict(config, owners, &w, &bad)) {
        result = bad ? PyLong_FromLong(MC_INVALID_PARAMS) : open_wanted(self, &w, NULL);
    }
    Py_XDECREF(owners);
    return result;
}

static PyObject *store_setup(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"setup", SETUP_NAMES, SETUP_COUNT, 7, false};
    static const char *const DICT_NAMES[] = {"config"};
    static const struct mpy_signature DICT_SIGNATURE = {"setup", DICT_NAMES, 1, 1, false};
    bool by_name = count == 0 && names != NULL && PyTuple_Size(names) == 1 &&
                   PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "config") == 0;
    PyObject *v[MPY_MAX_ARGS];
    if (by_name || (count > 0 && PyDict_Check(args[0]))) {
        if (!mpy_args(&DICT_SIGNATURE, args, count, names, v)) {
            return NULL;
        }
        if (!PyDict_Check(v[0])) {
            PyErr_SetString(PyExc_TypeError, "config must be a dict");
            return NULL;
        }
        return setup_dict(self, v[0]);
    }
    return mpy_args(&SIGNATURE, args, count, names, v) ? setup_arguments(self, v) : NULL;
}

static PyObject *store_init_all(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    static const char *const NAMES[] = {"protocol", "device_name", "mount_segment_size"};
    static const struct mpy_signature SIGNATURE = {"init_all", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    struct wanted w = defaults();
    w.local_hostname = "localhost:12345";
    w.metadata = "P2PHANDSHAKE";
    w.buffer_bytes = 1ull << 30;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &w.protocol) ||
        !mpy_text(v[1], NAMES[1], &w.devices) || !mpy_u64(v[2], NAMES[2], &w.segment_bytes)) {
        return NULL;
    }
    return open_wanted(self, &w, NULL);
}

static PyObject *store_setup_dummy(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names) {
    static const char *const NAMES[] = {"mem_pool_size", "local_buffer_size", "server_address"};
    static const struct mpy_signature SIGNATURE = {"setup_dummy", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t pool_bytes = 0; /* upstream's has no meaning either: memory is made when asked for */
    struct mc_store_options options;
    mc_store_options_init(&options);
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &pool_bytes) ||
        !mpy_u64(v[1], NAMES[1], &options.local_buffer_bytes) ||
        !mpy_text(v[2], NAMES[2], &options.real_client)) {
        return NULL;
    }
    if (options.local_buffer_bytes > LARGEST_BUFFER) {
        return PyLong_FromLong(-1);
    }
    return PyLong_FromLong(mpy_store_open(self, &options, NULL) == 0 ? 0 : -1);
}

static PyObject *store_alloc_from_mem_pool(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                           PyObject *names) {
    static const char *const NAMES[] = {"size"};
    static const struct mpy_signature SIGNATURE = {"alloc_from_mem_pool", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t size = 0;
    void *memory = NULL;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &size)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(0);
    }
    if (s->dummy && size > 0 && size <= (uint64_t)PTRDIFF_MAX) {
        PyThreadState *thread = PyEval_SaveThread();
        memory = mc_shared_alloc((size_t)size);
        PyEval_RestoreThread(thread);
        void **list =
            memory != NULL ? realloc(s->shared, (s->shared_count + 1) * sizeof(*list)) : NULL;
        if (list != NULL) {
            s->shared = list;
            s->shared[s->shared_count++] = memory;
        } else {
            mc_shared_free(memory);
            memory = NULL;
        }
    }
    mpy_store_leave(s);
    return PyLong_FromVoidPtr(memory);
}

/* ---- the rest of a life ---- */

static PyObject *store_close(PyObject *self, PyObject *unused) {
    return PyLong_FromLong(mpy_store_close(self));
}

static PyObject *store_health_check(PyObject *self, PyObject *unused) {
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(1);
    }
    long health = mc_store_health(s->store) == MC_OK ? 0 : 2;
    mpy_store_leave(s);
    return PyLong_FromLong(health);
}

static PyObject *store_get_hostname(PyObject *self, PyObject *unused) {
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyUnicode_FromString("");
    }
    PyObject *name = PyUnicode_FromString(mc_store_hostname(s->store));
    mpy_store_leave(s);
    return name;
}

/* What setup() was given; 0 when not set up. */
static PyObject *store_local_buffer_size(PyObject *self, PyObject *unused) {
    struct mpy_session *session = ((struct mpy_store *)self)->session;
    return PyLong_FromUnsignedLongLong(session != NULL ? session->local_buffer_bytes : 0);
}

static PyObject *store_metrics(PyObject *self, PyObject *unused) {
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyUnicode_FromString("");
    }
    PyThreadState *thread = PyEval_SaveThread();
    char *text = mc_store_metrics(s->store);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    PyObject *result = PyUnicode_FromString(text != NULL ? text : "");
    free(text);
    return result;
}

static PyObject *store_register_buffer(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    static const char *const NAMES[] = {"buffer_ptr", "size"};
    static const struct mpy_signature SIGNATURE = {"register_buffer", NAMES, 2, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, size = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_u64(v[1], NAMES[1], &size)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status =
        mc_store_register_buffer(s->store, (void *)(uintptr_t)address, (size_t)size);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return PyLong_FromLong(mpy_code(status));
}

static PyObject *store_unregister_buffer(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                         PyObject *names) {
    static const char *const NAMES[] = {"buffer_ptr"};
    static const struct mpy_signature SIGNATURE = {"unregister_buffer", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_unregister_buffer(s->store, (void *)(uintptr_t)address);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return PyLong_FromLong(mpy_code(status));
}

PyMethodDef mpy_store_life_methods[] = {
    {"setup", MPY_METHOD(store_setup), MPY_FAST,
     "setup($self, local_hostname, metadata_server, global_segment_size, local_buffer_size, "
     "protocol, rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False, "
     "ssd_offload_path='', tenant_id='default', enable_client_http_server=False, "
     "client_http_port=9300)\n--\n\n"
     "Connects to the master and lends global_segment_size bytes to the cluster (0 = none).\n\n"
     "Also setup(config: dict), with the same names (enable_ssd_offload, tenant_id, ...): every\n"
     "value is taken by its str(), and sizes may have a unit such as '16MB'.\n\n"
     "Returns 0; -600 for arguments that cannot be right; -1 when the store cannot start."},
    {"setup_dummy", MPY_METHOD(store_setup_dummy), MPY_FAST,
     "setup_dummy($self, mem_pool_size, local_buffer_size, server_address)\n--\n\n"
     "A client by way of the mooncake_client process at server_address (host:port, of this host),\n"
     "which has the engine and the memory; local_buffer_size bytes are shared with it for values\n"
     "that are not in memory of alloc_from_mem_pool() or MooncakeHostMemAllocator. Returns 0 or "
     "-1."},
    {"alloc_from_mem_pool", MPY_METHOD(store_alloc_from_mem_pool), MPY_FAST,
     "alloc_from_mem_pool($self, size)\n--\n\nThe address of shared memory of a dummy client, for "
     "register_buffer(); it stays until close(). 0 for a client of its own."},
    {"init_all", MPY_METHOD(store_init_all), MPY_FAST,
     "init_all($self, protocol, device_name, mount_segment_size)\n--\n\nOlder form of setup()."},
    {"close", store_close, METH_NOARGS,
     "close($self)\n--\n\nTakes the segment back and disconnects. Returns 0, also the second "
     "time."},
    {"health_check", store_health_check, METH_NOARGS,
     "health_check($self)\n--\n\n0 = healthy, 1 = not set up or closed, 2 = the master does not "
     "answer."},
    {"get_hostname", store_get_hostname, METH_NOARGS,
     "get_hostname($self)\n--\n\n\"host:port\", the name of this client's segment."},
    {"_local_buffer_size", store_local_buffer_size, METH_NOARGS, NULL},
    {"metrics", store_metrics, METH_NOARGS,
     "metrics($self)\n--\n\nCounters of this client and its engine, as Prometheus text."},
    {"register_buffer", MPY_METHOD(store_register_buffer), MPY_FAST,
     "register_buffer($self, buffer_ptr, size)\n--\n\nRegister a memory buffer for direct access "
     "operations"},
    {"unregister_buffer", MPY_METHOD(store_unregister_buffer), MPY_FAST,
     "unregister_buffer($self, buffer_ptr)\n--\n\nUnregister a previously registered memory "
     "buffer for direct access operations"},
    {NULL, NULL, 0, NULL}};

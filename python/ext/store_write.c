/*
 * MooncakeDistributedStore: put and upsert. Values come as buffers (bytes, bytearray, memoryview,
 * arrays) or as addresses; nothing is staged, so a value goes from where it lies to its replicas.
 */
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* ---- values ---- */

/* The bytes of a buffer object, in order, whatever its shape. */
static bool take_buffer(PyObject *object, Py_buffer *view) {
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) == 0) {
        return true;
    }
    if (!PyErr_ExceptionMatches(PyExc_BufferError)) {
        return false;
    }
    PyErr_Clear(); /* not contiguous: a copy that is */
    PyObject *memory = PyMemoryView_FromObject(object);
    PyObject *bytes = memory != NULL ? PyObject_CallMethod(memory, "tobytes", NULL) : NULL;
    bool ok = bytes != NULL && PyObject_GetBuffer(bytes, view, PyBUF_SIMPLE) == 0;
    Py_XDECREF(bytes); /* the view has its own */
    Py_XDECREF(memory);
    return ok;
}

/* Items of one call, each with its slices, in one block. */
struct work {
    struct mc_store_item *items;
    struct mc_slice *slices;
    size_t count;
};

static bool work_create(struct work *work, size_t count, size_t slices) {
    work->items = mpy_calloc(1, count * sizeof(*work->items) + slices * sizeof(*work->slices) + 1);
    work->slices = (struct mc_slice *)(work->items + count);
    work->count = count;
    return work->items != NULL;
}

/* ---- the call ---- */

/* 0, or why upstream would refuse this configuration for `keys` keys. */
static int refused(const struct mpy_config *config, size_t keys, bool same_node_allowed) {
    bool bad = config->c.replica_num == 0 || config->unsupported ||
               (config->c.prefer_same_node && !same_node_allowed) ||
               (config->c.group_ids != NULL && config->c.group_id_count != keys);
    return bad ? MC_INVALID_PARAMS : 0;
}

/* Runs with the GIL released; every item has a status afterwards. */
static void run(struct mpy_session *s, struct work *work, const struct mpy_config *config,
                bool upsert) {
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status =
        upsert ? mc_store_upsert_batch(s->store, work->items, work->count, &config->c)
               : mc_store_put_batch(s->store, work->items, work->count, &config->c);
    PyEval_RestoreThread(thread);
    for (size_t i = 0; status != MC_OK && i < work->count; i++) {
        work->items[i].status = status;
    }
}

/* One object of these slices. */
static int put_one(PyObject *self, const char *key, const struct mc_slice *slices, size_t count,
                   const struct mpy_config *config, bool upsert) {
    int code = refused(config, 1, false);
    struct mpy_session *s = code == 0 ? mpy_store_enter(self) : NULL;
    if (s == NULL) {
        return MC_INVALID_PARAMS;
    }
    struct mc_store_item item = {.key = key, .slices = slices, .slice_count = count};
    struct work work = {.items = &item, .count = 1};
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = MC_OK;
    if (count == 1) { /* the path with its own latency counter */
        item.status = upsert
                          ? mc_store_upsert(s->store, key, slices->ptr, slices->length, &config->c)
                          : mc_store_put(s->store, key, slices->ptr, slices->length, &config->c);
    } else if (upsert) {
        status = mc_store_upsert_batch(s->store, work.items, 1, &config->c);
    } else {
        status = mc_store_put_batch(s->store, work.items, 1, &config->c);
    }
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return mpy_code(status != MC_OK ? status : item.status);
}

/* ---- put(key, value), upsert(key, value) ---- */

static const char *const VALUE_NAMES[] = {"key", "value", "config"};

static PyObject *put_value(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                           const struct mpy_signature *signature, bool upsert) {
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    struct mpy_config config;
    Py_buffer view;
    if (!mpy_args(signature, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[2], &config)) {
        return NULL;
    }
    if (!take_buffer(v[1], &view)) {
        mpy_config_free(&config);
        return NULL;
    }
    struct mc_slice slice = {view.buf, (size_t)view.len};
    int code = put_one(self, key, &slice, 1, &config, upsert);
    PyBuffer_Release(&view);
    mpy_config_free(&config);
    return PyLong_FromLong(code);
}

static PyObject *store_put(PyObject *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"put", VALUE_NAMES, 3, 2, false};
    return put_value(self, args, count, names, &SIGNATURE, false);
}

static PyObject *store_upsert(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"upsert", VALUE_NAMES, 3, 2, false};
    return put_value(self, args, count, names, &SIGNATURE, true);
}

/* ---- put_parts(key, *parts), upsert_parts(key, *parts) ---- */

static bool take_parts(PyObject *const *parts, size_t count, Py_buffer *views, size_t *taken) {
    for (*taken = 0; *taken < count; (*taken)++) {
        Py_buffer *view = &views[*taken];
        if (PyObject_GetBuffer(parts[*taken], view, PyBUF_ND) != 0) {
            return false;
        }
        if (view->ndim != 1 || view->itemsize != 1) {
            PyBuffer_Release(view);
            PyErr_SetString(PyExc_RuntimeError, "parts must be 1-D bytes-like");
            return false;
        }
    }
    return true;
}

static PyObject *put_pieces(PyObject *self, const char *key, PyObject *const *parts, size_t count,
                            const struct mpy_config *config, bool upsert) {
    Py_buffer *views = mpy_calloc(count, sizeof(*views));
    struct mc_slice *slices = mpy_calloc(count, sizeof(*slices));
    size_t taken = 0;
    PyObject *result = NULL;
    if (views != NULL && slices != NULL && take_parts(parts, count, views, &taken)) {
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            if (views[i].len > 0) {
                slices[n++] = (struct mc_slice){views[i].buf, (size_t)views[i].len};
            }
        }
        int code = refused(config, 1, false);
        if (code == 0 && n > 0) { /* no bytes: success that stores nothing (as upstream) */
            code = put_one(self, key, slices, n, config, upsert);
        }
        result = PyLong_FromLong(code);
    }
    for (size_t i = 0; i < taken; i++) {
        PyBuffer_Release(&views[i]);
    }
    free(slices);
    free(views);
    return result;
}

static PyObject *put_parts(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                           const char *function, bool upsert) {
    static const char *const NAMES[] = {"key", "config"};
    const struct mpy_signature signature = {function, NAMES, 2, 1, true};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    struct mpy_config config;
    if (!mpy_args(&signature, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[1], &config)) {
        return NULL;
    }
    size_t parts = count > 1 ? (size_t)count - 1 : 0;
    PyObject *result = put_pieces(self, key, args + 1, parts, &config, upsert);
    mpy_config_free(&config);
    return result;
}

static PyObject *store_put_parts(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    return put_parts(self, args, count, names, "put_parts", false);
}

static PyObject *store_upsert_parts(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    return put_parts(self, args, count, names, "upsert_parts", true);
}

/* ---- put_batch(keys, values), upsert_batch(keys, values) ---- */

static int first_failure(const struct work *work) {
    for (size_t i = 0; i < work->count; i++) {
        if (work->items[i].status != MC_OK) {
            return mpy_code(work->items[i].status);
        }
    }
    return 0;
}

static int put_buffers(PyObject *self, const struct mpy_strings *keys, const Py_buffer *views,
                       const struct mpy_config *config, bool upsert) {
    struct work work;
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL || !work_create(&work, keys->count, keys->count)) {
        if (s != NULL) {
            mpy_store_leave(s);
        }
        return MC_INVALID_PARAMS;
    }
    for (size_t i = 0; i < keys->count; i++) {
        work.slices[i] = (struct mc_slice){views[i].buf, (size_t)views[i].len};
        work.items[i] = (struct mc_store_item){
            .key = keys->items[i], .slices = &work.slices[i], .slice_count = 1};
    }
    run(s, &work, config, upsert);
    mpy_store_leave(s);
    int code = first_failure(&work);
    free(work.items);
    return code;
}

static PyObject *put_values(PyObject *self, const struct mpy_strings *keys, PyObject *values,
                            const struct mpy_config *config, bool upsert) {
    size_t count = (size_t)PyTuple_Size(values);
    Py_buffer *views = mpy_calloc(count, sizeof(*views));
    size_t taken = 0;
    while (views != NULL && taken < count &&
           take_buffer(PyTuple_GetItem(values, (Py_ssize_t)taken), &views[taken])) {
        taken++;
    }
    PyObject *result = NULL;
    if (views != NULL && taken == count) {
        int code = keys->count == count ? refused(config, count, false) : MC_INVALID_PARAMS;
        if (code == 0 && count > 0) {
            code = put_buffers(self, keys, views, config, upsert);
        }
        if (!PyErr_Occurred()) {
            result = PyLong_FromLong(code);
        }
    }
    for (size_t i = 0; i < taken; i++) {
        PyBuffer_Release(&views[i]);
    }
    free(views);
    return result;
}

static PyObject *put_batch(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                           const char *function, bool upsert) {
    static const char *const NAMES[] = {"keys", "values", "config"};
    const struct mpy_signature signature = {function, NAMES, 3, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_config config;
    struct mpy_strings keys;
    if (!mpy_args(&signature, args, count, names, v) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[2], &config)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (mpy_strings(v[0], "keys", &keys)) {
        PyObject *values = mpy_tuple(v[1], "values");
        if (values != NULL) {
            result = put_values(self, &keys, values, &config, upsert);
            Py_DECREF(values);
        }
        mpy_strings_free(&keys);
    }
    mpy_config_free(&config);
    return result;
}

static PyObject *store_put_batch(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    return put_batch(self, args, count, names, "put_batch", false);
}

static PyObject *store_upsert_batch(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    return put_batch(self, args, count, names, "upsert_batch", true);
}

/* ---- from an address ---- */

/* Whether these are addresses that the store can read. */
static bool reached(PyObject *self, const struct mc_slice *slices, size_t count) {
    struct mpy_session *s = mpy_store_enter(self);
    bool all = true;
    for (size_t i = 0; s != NULL && i < count; i++) {
        all = all && mpy_store_at(s, (uintptr_t)slices[i].ptr, slices[i].length) != NULL;
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    return all;
}

static PyObject *put_address(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names, const char *function, bool upsert) {
    static const char *const NAMES[] = {"key", "buffer_ptr", "size", "config"};
    const struct mpy_signature signature = {function, NAMES, 4, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    uint64_t address = 0, size = 0;
    struct mpy_config config;
    if (!mpy_args(&signature, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_u64(v[1], NAMES[1], &address) || !mpy_u64(v[2], NAMES[2], &size) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[3], &config)) {
        return NULL;
    }
    int code = refused(&config, 1, false);
    if (code == 0 && size > 0) { /* no bytes: success that stores nothing (as upstream) */
        struct mc_slice slice = {(void *)(uintptr_t)address, (size_t)size};
        code = reached(self, &slice, 1) ? put_one(self, key, &slice, 1, &config, upsert)
                                        : MC_INVALID_PARAMS;
    }
    mpy_config_free(&config);
    return PyLong_FromLong(code);
}

static PyObject *store_put_from(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    return put_address(self, args, count, names, "put_from", false);
}

static PyObject *store_upsert_from(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names) {
    return put_address(self, args, count, names, "upsert_from", true);
}

/* Object = metadata, then data. Failures of the put are positive (as upstream). */
static PyObject *store_put_from_with_metadata(PyObject *self, PyObject *const *args,
                                              Py_ssize_t count, PyObject *names) {
    static const char *const NAMES[] = {"key",  "buffer_ptr",    "metadata_buffer_ptr",
                                        "size", "metadata_size", "config"};
    static const struct mpy_signature SIGNATURE = {"put_from_with_metadata", NAMES, 6, 5, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    uint64_t address = 0, metadata = 0, size = 0, metadata_size = 0;
    struct mpy_config config;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_u64(v[1], NAMES[1], &address) || !mpy_u64(v[2], NAMES[2], &metadata) ||
        !mpy_u64(v[3], NAMES[3], &size) || !mpy_u64(v[4], NAMES[4], &metadata_size) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[5], &config)) {
        return NULL;
    }
    long code = 0;
    if (refused(&config, 1, false) != 0 || (address == 0 && size > 0) ||
        (metadata == 0 && metadata_size > 0) || ((struct mpy_store *)self)->session == NULL) {
        code = -1;
    } else if (size + metadata_size > 0) {
        struct mc_slice slices[2];
        size_t n = 0;
        if (metadata_size > 0) {
            slices[n++] = (struct mc_slice){(void *)(uintptr_t)metadata, (size_t)metadata_size};
        }
        if (size > 0) {
            slices[n++] = (struct mc_slice){(void *)(uintptr_t)address, (size_t)size};
        }
        code = reached(self, slices, n) ? -put_one(self, key, slices, n, &config, false) : -1;
    }
    mpy_config_free(&config);
    return PyLong_FromLong(code);
}

/* ---- many from addresses ---- */

static PyObject *results_of(const struct work *work) {
    PyObject *list = PyList_New((Py_ssize_t)work->count);
    for (size_t i = 0; list != NULL && i < work->count; i++) {
        PyObject *code = PyLong_FromLong(mpy_code(work->items[i].status));
        if (code == NULL || PyList_SetItem(list, (Py_ssize_t)i, code) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Key i is rows begins[i] .. begins[i + 1] of both tables. */
static PyObject *put_table(PyObject *self, const struct mpy_strings *keys,
                           const struct mpy_table *pointers, const struct mpy_table *sizes,
                           const struct mpy_config *config, bool upsert) {
    struct work work;
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return mpy_list_of((Py_ssize_t)keys->count, MC_INVALID_PARAMS);
    }
    PyObject *result = NULL;
    if (work_create(&work, keys->count, pointers->begins[pointers->rows])) {
        for (size_t i = 0; i < pointers->begins[pointers->rows]; i++) {
            work.slices[i] = (struct mc_slice){mpy_store_at(s, pointers->items[i], sizes->items[i]),
                                               (size_t)sizes->items[i]};
        }
        for (size_t i = 0; i < keys->count; i++) {
            size_t begin = pointers->begins[i];
            work.items[i] = (struct mc_store_item){.key = keys->items[i],
                                                   .slices = work.slices + begin,
                                                   .slice_count = pointers->begins[i + 1] - begin};
        }
        run(s, &work, config, upsert);
        result = results_of(&work);
        free(work.items);
    }
    mpy_store_leave(s);
    return result;
}

static bool same_shape(const struct mpy_table *a, const struct mpy_table *b, size_t rows) {
    return a->rows == rows && b->rows == rows &&
           memcmp(a->begins, b->begins, (rows + 1) * sizeof(*a->begins)) == 0;
}

static PyObject *put_checked(PyObject *self, const struct mpy_strings *keys,
                             const struct mpy_table *pointers, const struct mpy_table *sizes,
                             const struct mpy_config *config, bool upsert, bool same_node) {
    if (keys->count == 0) {
        return PyList_New(0);
    }
    if (!same_shape(pointers, sizes, keys->count) || refused(config, keys->count, same_node) != 0) {
        return mpy_list_of((Py_ssize_t)keys->count, MC_INVALID_PARAMS);
    }
    return put_table(self, keys, pointers, sizes, config, upsert);
}

/* A list as a table of one column. */
static bool column(PyObject *list, const char *name, struct mpy_table *table) {
    struct mpy_numbers numbers;
    if (!mpy_numbers(list, name, &numbers)) {
        return false;
    }
    *table = (struct mpy_table){.items = numbers.items,
                                .begins = mpy_calloc(numbers.count + 1, sizeof(size_t)),
                                .rows = numbers.count};
    for (size_t i = 0; table->begins != NULL && i <= numbers.count; i++) {
        table->begins[i] = i;
    }
    if (table->begins == NULL) {
        mpy_table_free(table);
    }
    return table->rows == numbers.count && table->begins != NULL;
}

/* Both forms: lists of numbers, or lists of lists of them. */
static PyObject *put_many(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                          const struct mpy_signature *signature, bool upsert) {
    bool nested = strcmp(signature->names[1], "buffer_ptrs") != 0;
    bool (*take)(PyObject *, const char *, struct mpy_table *) = nested ? mpy_table : column;
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_config config;
    struct mpy_strings keys = {0};
    struct mpy_table pointers = {0}, sizes = {0};
    if (!mpy_args(signature, args, count, names, v) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[3], &config)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (mpy_strings(v[0], "keys", &keys) && take(v[1], signature->names[1], &pointers) &&
        take(v[2], signature->names[2], &sizes)) {
        result = put_checked(self, &keys, &pointers, &sizes, &config, upsert, nested);
    }
    mpy_table_free(&sizes);
    mpy_table_free(&pointers);
    mpy_strings_free(&keys);
    mpy_config_free(&config);
    return result;
}

static const char *const FLAT_NAMES[] = {"keys", "buffer_ptrs", "sizes", "config"};
static const char *const NESTED_NAMES[] = {"keys", "all_buffer_ptrs", "all_sizes", "config"};

static PyObject *store_batch_put_from(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                      PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"batch_put_from", FLAT_NAMES, 4, 3, false};
    return put_many(self, args, count, names, &SIGNATURE, false);
}

static PyObject *store_batch_upsert_from(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                         PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"batch_upsert_from", FLAT_NAMES, 4, 3, false};
    return put_many(self, args, count, names, &SIGNATURE, true);
}

static PyObject *store_batch_put_from_multi_buffers(PyObject *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"batch_put_from_multi_buffers", NESTED_NAMES, 4,
                                                   3, false};
    if (((struct mpy_store *)self)->session == NULL) {
        return PyList_New(0);
    }
    return put_many(self, args, count, names, &SIGNATURE, false);
}

/* For tensors, whose header lies apart. */
static PyObject *store_batch_upsert_from_multi_buffers(PyObject *self, PyObject *const *args,
                                                       Py_ssize_t count, PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"_batch_upsert_from_multi_buffers", NESTED_NAMES,
                                                   4, 3, false};
    return put_many(self, args, count, names, &SIGNATURE, true);
}

PyMethodDef mpy_store_write_methods[] = {
    {"put", MPY_METHOD(store_put), MPY_FAST,
     "put($self, key, value, config=None)\n--\n\nStores the bytes of `value`. 0 also when the key "
     "exists, whose value stays: upsert() replaces."},
    {"upsert", MPY_METHOD(store_upsert), MPY_FAST,
     "upsert($self, key, value, config=None)\n--\n\nUpsert raw bytes into the store (insert or "
     "update)"},
    {"put_parts", MPY_METHOD(store_put_parts), MPY_FAST,
     "put_parts($self, key, *parts, config=None)\n--\n\nStores the parts, one after the other, as "
     "one object."},
    {"upsert_parts", MPY_METHOD(store_upsert_parts), MPY_FAST,
     "upsert_parts($self, key, *parts, config=None)\n--\n\nUpsert multiple byte parts as a single "
     "object (insert or update)"},
    {"put_batch", MPY_METHOD(store_put_batch), MPY_FAST,
     "put_batch($self, keys, values, config=None)\n--\n\nput() for each key. 0, or the first "
     "failure; the other keys are stored all the same."},
    {"upsert_batch", MPY_METHOD(store_upsert_batch), MPY_FAST,
     "upsert_batch($self, keys, values, config=None)\n--\n\nBatch upsert raw bytes for multiple "
     "keys (insert or update)"},
    {"put_from", MPY_METHOD(store_put_from), MPY_FAST,
     "put_from($self, key, buffer_ptr, size, config=None)\n--\n\nPut object data directly from a "
     "pre-allocated buffer"},
    {"upsert_from", MPY_METHOD(store_upsert_from), MPY_FAST,
     "upsert_from($self, key, buffer_ptr, size, config=None)\n--\n\nUpsert object data directly "
     "from a pre-allocated buffer"},
    {"put_from_with_metadata", MPY_METHOD(store_put_from_with_metadata), MPY_FAST,
     "put_from_with_metadata($self, key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, "
     "config=None)\n--\n\nPut object data directly from a pre-allocated buffer with metadata"},
    {"batch_put_from", MPY_METHOD(store_batch_put_from), MPY_FAST,
     "batch_put_from($self, keys, buffer_ptrs, sizes, config=None)\n--\n\nPut object data "
     "directly from pre-allocated buffers for multiple keys"},
    {"batch_upsert_from", MPY_METHOD(store_batch_upsert_from), MPY_FAST,
     "batch_upsert_from($self, keys, buffer_ptrs, sizes, config=None)\n--\n\nUpsert object data "
     "directly from pre-allocated buffers for multiple keys"},
    {"batch_put_from_multi_buffers", MPY_METHOD(store_batch_put_from_multi_buffers), MPY_FAST,
     "batch_put_from_multi_buffers($self, keys, all_buffer_ptrs, all_sizes, config=None)\n--\n\n"
     "Put object data directly from multiple pre-allocated buffers for multiple keys"},
    {"_batch_upsert_from_multi_buffers", MPY_METHOD(store_batch_upsert_from_multi_buffers),
     MPY_FAST, NULL},
    {NULL, NULL, 0, NULL}};

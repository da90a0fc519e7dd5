/*
 * MooncakeDistributedStore: objects moved piece by piece. Sessions for putting and getting, and
 * ranges of many objects into many buffers at once.
 */
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* ---- calls with keys only ---- */

typedef enum mc_status (*keys_call)(struct mc_store *, const char *const *, size_t,
                                    enum mc_status *);

static PyObject *with_keys(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                           const char *function, keys_call call) {
    static const char *const NAMES[] = {"keys"};
    const struct mpy_signature signature = {function, NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&signature, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    PyObject *list = NULL;
    enum mc_status *results = mpy_calloc(keys.count, sizeof(*results));
    struct mpy_session *s = mpy_store_enter(self);
    if (results != NULL && s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status = call(s->store, keys.items, keys.count, results);
        PyEval_RestoreThread(thread);
        list = mpy_codes(results, keys.count, status);
    } else if (results != NULL) {
        list = PyList_New(0);
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    free(results);
    mpy_strings_free(&keys);
    return list;
}

static PyObject *batch_put_session_end(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    return with_keys(self, args, count, names, "batch_put_session_end", mc_store_put_session_end);
}

static PyObject *batch_put_session_revoke(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                          PyObject *names) {
    return with_keys(self, args, count, names, "batch_put_session_revoke",
                     mc_store_put_session_revoke);
}

static PyObject *batch_get_session_start(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                         PyObject *names) {
    return with_keys(self, args, count, names, "batch_get_session_start",
                     mc_store_get_session_start);
}

static PyObject *batch_get_session_end(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    static const char *const NAMES[] = {"keys"};
    static const struct mpy_signature SIGNATURE = {"batch_get_session_end", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    long code = -1;
    struct mpy_session *s = mpy_store_enter(self);
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status = mc_store_get_session_end(s->store, keys.items, keys.count);
        PyEval_RestoreThread(thread);
        code = mpy_code(status);
        mpy_store_leave(s);
    }
    mpy_strings_free(&keys);
    return PyLong_FromLong(code);
}

/* The store was entered by the caller. */
static PyObject *start_put(struct mpy_session *s, const struct mpy_strings *keys,
                           const struct mpy_numbers *sizes, const struct mpy_config *config) {
    enum mc_status *results = mpy_calloc(keys->count, sizeof(*results));
    if (results == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_put_session_start(s->store, keys->items, sizes->items,
                                                       keys->count, &config->c, results);
    PyEval_RestoreThread(thread);
    PyObject *list = mpy_codes(results, keys->count, status);
    free(results);
    return list;
}

static PyObject *batch_put_session_start(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                         PyObject *names) {
    static const char *const NAMES[] = {"keys", "sizes", "config"};
    static const struct mpy_signature SIGNATURE = {"batch_put_session_start", NAMES, 3, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_config config;
    struct mpy_strings keys = {0};
    struct mpy_numbers sizes = {0};
    PyObject *list = NULL;
    if (!mpy_args(&SIGNATURE, args, count, names, v) ||
        !mpy_config_take(mpy_store_state(self)->config_type, v[2], &config)) {
        return NULL;
    }
    if (mpy_strings(v[0], "keys", &keys) && mpy_numbers(v[1], "sizes", &sizes)) {
        struct mpy_session *s = mpy_store_enter(self);
        bool bad = sizes.count != keys.count || config.c.replica_num == 0 || config.unsupported ||
                   (config.c.group_ids != NULL && config.c.group_id_count != keys.count);
        if (s == NULL) {
            list = PyList_New(0);
        } else if (bad) {
            list = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
        } else {
            list = start_put(s, &keys, &sizes, &config);
        }
        if (s != NULL) {
            mpy_store_leave(s);
        }
    }
    mpy_numbers_free(&sizes);
    mpy_strings_free(&keys);
    mpy_config_free(&config);
    return list;
}

/* ---- reading and writing in a session ---- */

typedef enum mc_status (*ranges_call)(struct mc_store *, struct mc_store_range_item *, size_t);

/* Bytes moved of each key, or its error. */
static PyObject *run_ranges(struct mpy_session *s, const struct mpy_strings *keys,
                            const struct mpy_table *pointers, const struct mpy_table *sizes,
                            const struct mpy_table *offsets, ranges_call call) {
    size_t total = pointers->begins[pointers->rows];
    struct mc_store_range_item *items =
        mpy_calloc(1, keys->count * sizeof(*items) + total * sizeof(struct mc_store_range) + 1);
    if (items == NULL) {
        return NULL;
    }
    struct mc_store_range *ranges = (struct mc_store_range *)(items + keys->count);
    for (size_t i = 0; i < total; i++) {
        ranges[i] = (struct mc_store_range){.ptr = (void *)(uintptr_t)pointers->items[i],
                                            .length = (size_t)sizes->items[i],
                                            .offset = offsets->items[i]};
    }
    for (size_t i = 0; i < keys->count; i++) {
        size_t begin = pointers->begins[i];
        items[i] = (struct mc_store_range_item){.key = keys->items[i],
                                                .ranges = ranges + begin,
                                                .range_count = pointers->begins[i + 1] - begin};
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = call(s->store, items, keys->count);
    PyEval_RestoreThread(thread);
    PyObject *list = PyList_New((Py_ssize_t)keys->count);
    for (size_t i = 0; list != NULL && i < keys->count; i++) {
        enum mc_status own = status != MC_OK ? status : items[i].status;
        PyObject *value =
            PyLong_FromLongLong(own == MC_OK ? (long long)items[i].length : mpy_code(own));
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
            Py_CLEAR(list);
        }
    }
    free(items);
    return list;
}

static bool same_shape(const struct mpy_table *a, const struct mpy_table *b, size_t rows) {
    return a->rows == rows && b->rows == rows &&
           memcmp(a->begins, b->begins, (rows + 1) * sizeof(*a->begins)) == 0;
}

static PyObject *with_ranges(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names, const struct mpy_signature *signature,
                             ranges_call call) {
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys = {0};
    struct mpy_table pointers = {0}, sizes = {0}, offsets = {0};
    PyObject *list = NULL;
    if (!mpy_args(signature, args, count, names, v)) {
        return NULL;
    }
    if (mpy_strings(v[0], "keys", &keys) && mpy_table(v[1], signature->names[1], &pointers) &&
        mpy_table(v[2], signature->names[2], &sizes) &&
        mpy_table(v[3], signature->names[3], &offsets)) {
        struct mpy_session *s = mpy_store_enter(self);
        if (s == NULL) {
            list = PyList_New(0);
        } else if (!same_shape(&pointers, &sizes, keys.count) ||
                   !same_shape(&pointers, &offsets, keys.count)) {
            list = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
        } else {
            list = run_ranges(s, &keys, &pointers, &sizes, &offsets, call);
        }
        if (s != NULL) {
            mpy_store_leave(s);
        }
    }
    mpy_table_free(&offsets);
    mpy_table_free(&sizes);
    mpy_table_free(&pointers);
    mpy_strings_free(&keys);
    return list;
}

static PyObject *batch_put_from_multi_buffer_ranges(PyObject *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *names) {
    static const char *const NAMES[] = {"keys", "all_buffer_ptrs", "all_sizes", "all_dst_offsets"};
    static const struct mpy_signature SIGNATURE = {"batch_put_from_multi_buffer_ranges", NAMES, 4,
                                                   4, false};
    return with_ranges(self, args, count, names, &SIGNATURE, mc_store_put_session_write);
}

static PyObject *batch_get_into_multi_buffer_ranges(PyObject *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *names) {
    static const char *const NAMES[] = {"keys", "all_buffer_ptrs", "all_sizes", "all_src_offsets"};
    static const struct mpy_signature SIGNATURE = {"batch_get_into_multi_buffer_ranges", NAMES, 4,
                                                   4, false};
    return with_ranges(self, args, count, names, &SIGNATURE, mc_store_get_session_read);
}

/* ---- ranges without a session, for get_into_ranges ---- */

/* The Python half checks the shape of its lists; here they are flat: range i of key owner[i]. */
static PyObject *get_ranges(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    static const char *const NAMES[] = {"keys", "all_buffer_ptrs", "all_sizes", "all_src_offsets"};
    static const struct mpy_signature SIGNATURE = {"_get_ranges", NAMES, 4, 4, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys = {0};
    struct mpy_table pointers = {0}, sizes = {0}, offsets = {0};
    struct mc_store_range_item *items = NULL;
    PyObject *list = NULL;
    if (!mpy_args(&SIGNATURE, args, count, names, v)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL || !mpy_strings(v[0], "keys", &keys) || !mpy_table(v[1], NAMES[1], &pointers) ||
        !mpy_table(v[2], NAMES[2], &sizes) || !mpy_table(v[3], NAMES[3], &offsets)) {
        goto done;
    }
    if (!same_shape(&pointers, &sizes, keys.count) ||
        !same_shape(&pointers, &offsets, keys.count)) {
        PyErr_SetString(PyExc_ValueError, "the lists differ in shape");
        goto done;
    }
    size_t total = pointers.begins[pointers.rows];
    items = mpy_calloc(1, keys.count * sizeof(*items) + total * sizeof(struct mc_store_range) + 1);
    if (items == NULL) {
        goto done;
    }
    struct mc_store_range *ranges = (struct mc_store_range *)(items + keys.count);
    for (size_t i = 0; i < total; i++) {
        ranges[i] =
            (struct mc_store_range){.ptr = mpy_store_at(s, pointers.items[i], sizes.items[i]),
                                    .length = (size_t)sizes.items[i],
                                    .offset = offsets.items[i]};
    }
    for (size_t i = 0; i < keys.count; i++) {
        items[i] = (struct mc_store_range_item){.key = keys.items[i],
                                                .ranges = ranges + pointers.begins[i],
                                                .range_count =
                                                    pointers.begins[i + 1] - pointers.begins[i]};
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_get_ranges(s->store, items, keys.count);
    PyEval_RestoreThread(thread);
    list = PyList_New((Py_ssize_t)total);
    for (size_t i = 0; list != NULL && i < total; i++) {
        enum mc_status own = status != MC_OK ? status : ranges[i].status;
        PyObject *value =
            PyLong_FromLongLong(own == MC_OK ? (long long)ranges[i].length : mpy_code(own));
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
            Py_CLEAR(list);
        }
    }
done:
    free(items);
    mpy_table_free(&offsets);
    mpy_table_free(&sizes);
    mpy_table_free(&pointers);
    mpy_strings_free(&keys);
    if (s != NULL) {
        mpy_store_leave(s);
    } else if (!PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return list;
}

PyMethodDef mpy_store_session_methods[] = {
    {"batch_put_session_start", MPY_METHOD(batch_put_session_start), MPY_FAST,
     "batch_put_session_start($self, keys, sizes, config=None)\n--\n\nStart a put session: reserve "
     "objects without transfer"},
    {"batch_put_from_multi_buffer_ranges", MPY_METHOD(batch_put_from_multi_buffer_ranges), MPY_FAST,
     "batch_put_from_multi_buffer_ranges($self, keys, all_buffer_ptrs, all_sizes, "
     "all_dst_offsets)\n--\n\nRanged put from multiple buffers using a put session"},
    {"batch_put_session_end", MPY_METHOD(batch_put_session_end), MPY_FAST,
     "batch_put_session_end($self, keys)\n--\n\nComplete a put session and make objects readable"},
    {"batch_put_session_revoke", MPY_METHOD(batch_put_session_revoke), MPY_FAST,
     "batch_put_session_revoke($self, keys)\n--\n\nRevoke an incomplete put session"},
    {"batch_get_session_start", MPY_METHOD(batch_get_session_start), MPY_FAST,
     "batch_get_session_start($self, keys)\n--\n\nStart a get session: the objects keep their "
     "leases"},
    {"batch_get_into_multi_buffer_ranges", MPY_METHOD(batch_get_into_multi_buffer_ranges), MPY_FAST,
     "batch_get_into_multi_buffer_ranges($self, keys, all_buffer_ptrs, all_sizes, "
     "all_src_offsets)\n--\n\nRanged get into multiple buffers using a get session"},
    {"batch_get_session_end", MPY_METHOD(batch_get_session_end), MPY_FAST,
     "batch_get_session_end($self, keys)\n--\n\nEnd a get session"},
    {"_get_ranges", MPY_METHOD(get_ranges), MPY_FAST, NULL},
    {NULL, NULL, 0, NULL}};

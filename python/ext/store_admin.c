/* MooncakeDistributedStore: questions about keys, and removals. */
#include <stdlib.h>
#include <string.h>

#include "store.h"

/* ---- exist, size ---- */

/* 1, 0, or the error (-1 in a batch's list, as upstream). The empty key is never there. */
static long exist_code(enum mc_status status, bool exists) {
    return status == MC_OK ? exists : status == MC_INVALID_KEY ? 0 : -1;
}

static PyObject *store_is_exist(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    static const char *const NAMES[] = {"key"};
    static const struct mpy_signature SIGNATURE = {"is_exist", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    bool exists = false;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_exist(s->store, key, &exists);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return PyLong_FromLong(status == MC_OK || status == MC_INVALID_KEY ? exist_code(status, exists)
                                                                       : mpy_code(status));
}

/* The store was entered by the caller. */
static PyObject *exist_many(struct mpy_session *s, const struct mpy_strings *keys) {
    bool *exists = mpy_calloc(keys->count, sizeof(*exists));
    enum mc_status *results = mpy_calloc(keys->count, sizeof(*results));
    PyObject *list = NULL;
    if (exists != NULL && results != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status =
            mc_store_exist_batch(s->store, keys->items, keys->count, exists, results);
        PyEval_RestoreThread(thread);
        list = PyList_New((Py_ssize_t)keys->count);
        for (size_t i = 0; list != NULL && i < keys->count; i++) {
            long code = exist_code(status != MC_OK ? status : results[i], exists[i]);
            PyObject *value = PyLong_FromLong(code);
            if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
                Py_CLEAR(list);
            }
        }
    }
    free(results);
    free(exists);
    return list;
}

static PyObject *store_batch_is_exist(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                      PyObject *names) {
    static const char *const NAMES[] = {"keys"};
    static const struct mpy_signature SIGNATURE = {"batch_is_exist", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    PyObject *list;
    if (s != NULL) {
        list = exist_many(s, &keys);
        mpy_store_leave(s);
    } else {
        list = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
    }
    mpy_strings_free(&keys);
    return list;
}

static PyObject *store_get_size(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    static const char *const NAMES[] = {"key"};
    static const struct mpy_signature SIGNATURE = {"get_size", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    uint64_t length = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_size(s->store, key, &length);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return status == MC_OK ? PyLong_FromUnsignedLongLong(length)
                           : PyLong_FromLong(mpy_code(status));
}

/* ---- remove ---- */

static PyObject *store_remove(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names) {
    static const char *const NAMES[] = {"key", "force"};
    static const struct mpy_signature SIGNATURE = {"remove", NAMES, 2, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    bool force = false;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_bool(v[1], "force", &force)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_remove(s->store, key, force);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return PyLong_FromLong(mpy_code(status));
}

/* A count, or the error. */
static PyObject *removed_count(enum mc_status status, uint64_t removed) {
    return status == MC_OK ? PyLong_FromUnsignedLongLong(removed)
                           : PyLong_FromLong(mpy_code(status));
}

static PyObject *store_remove_by_regex(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    static const char *const NAMES[] = {"regex_pattern", "force"};
    static const struct mpy_signature SIGNATURE = {"remove_by_regex", NAMES, 2, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *pattern = "";
    bool force = false;
    uint64_t removed = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &pattern) ||
        !mpy_bool(v[1], "force", &force)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_remove_regex(s->store, pattern, force, &removed);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return removed_count(status, removed);
}

static PyObject *store_remove_all(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *names) {
    static const char *const NAMES[] = {"force"};
    static const struct mpy_signature SIGNATURE = {"remove_all", NAMES, 1, 0, false};
    PyObject *v[MPY_MAX_ARGS];
    bool force = false;
    uint64_t removed = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_bool(v[0], "force", &force)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_remove_all(s->store, force, &removed);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return removed_count(status, removed);
}

PyObject *mpy_codes(const enum mc_status *results, size_t count, enum mc_status whole) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *value = PyLong_FromLong(mpy_code(whole != MC_OK ? whole : results[i]));
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *store_batch_remove(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    static const char *const NAMES[] = {"keys", "force"};
    static const struct mpy_signature SIGNATURE = {"batch_remove", NAMES, 2, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    bool force = false;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_bool(v[1], "force", &force) ||
        !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    PyObject *list = NULL;
    enum mc_status *results = mpy_calloc(keys.count, sizeof(*results));
    struct mpy_session *s = mpy_store_enter(self);
    if (results != NULL && s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status =
            mc_store_remove_batch(s->store, keys.items, keys.count, force, results);
        PyEval_RestoreThread(thread);
        list = mpy_codes(results, keys.count, status);
    } else if (results != NULL) {
        list = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    free(results);
    mpy_strings_free(&keys);
    return list;
}

/* ---- replicas ---- */

#define REPLICAS_AT_FIRST 8

/* The replicas of one key, malloc'ed; NULL when it has none. */
static struct mc_replica_info *ask_replicas(struct mpy_session *s, const char *key, size_t *count) {
    size_t capacity = REPLICAS_AT_FIRST;
    struct mc_replica_info *replicas = NULL;
    for (;;) {
        free(replicas);
        replicas = malloc(capacity * sizeof(*replicas));
        *count = 0;
        if (replicas == NULL ||
            mc_store_replicas(s->store, key, replicas, capacity, count) != MC_OK || *count == 0) {
            free(replicas);
            return NULL;
        }
        if (*count <= capacity) {
            return replicas;
        }
        capacity = *count;
    }
}

static PyObject *describe(struct mpy_state *state, const struct mc_replica_info *replicas,
                          size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const struct mc_replica_info *r = &replicas[i];
        PyObject *one = PyObject_CallMethod(
            state->types, "_replica", "iiKKss", r->type, r->status, (unsigned long long)r->size,
            (unsigned long long)r->address, r->endpoint, r->file_path);
        if (one == NULL || PyList_SetItem(list, (Py_ssize_t)i, one) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *store_get_replica_desc(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                        PyObject *names) {
    static const char *const NAMES[] = {"key"};
    static const struct mpy_signature SIGNATURE = {"get_replica_desc", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyList_New(0);
    }
    size_t found = 0;
    PyThreadState *thread = PyEval_SaveThread();
    struct mc_replica_info *replicas = ask_replicas(s, key, &found);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    PyObject *list = describe(mpy_store_state(self), replicas, replicas != NULL ? found : 0);
    free(replicas);
    return list;
}

static PyObject *store_batch_get_replica_desc(PyObject *self, PyObject *const *args,
                                              Py_ssize_t count, PyObject *names) {
    static const char *const NAMES[] = {"keys"};
    static const struct mpy_signature SIGNATURE = {"batch_get_replica_desc", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    PyObject *dict = PyDict_New();
    struct mpy_session *s = mpy_store_enter(self);
    for (size_t i = 0; s != NULL && dict != NULL && i < keys.count; i++) {
        size_t found = 0;
        PyThreadState *thread = PyEval_SaveThread();
        struct mc_replica_info *replicas = ask_replicas(s, keys.items[i], &found);
        PyEval_RestoreThread(thread);
        if (replicas == NULL) {
            continue;
        }
        PyObject *list = describe(mpy_store_state(self), replicas, found);
        free(replicas);
        if (list == NULL || PyDict_SetItemString(dict, keys.items[i], list) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(list);
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    mpy_strings_free(&keys);
    return dict;
}

/* ---- inspect ---- */

static PyObject *info_or_code(struct mpy_state *state, const struct mc_object_info *info,
                              enum mc_status status) {
    if (status != MC_OK) {
        return PyLong_FromLong(mpy_code(status));
    }
    unsigned long long none = 0;
    return PyObject_CallMethod(
        state->types, "_object_info", "KKiKiKI", (unsigned long long)info->size,
        (unsigned long long)info->version, (int)info->has_checksum,
        info->has_checksum ? (unsigned long long)info->checksum : none, (int)info->has_ttl,
        info->has_ttl ? (unsigned long long)info->ttl_left_ms : none, (unsigned)info->replicas);
}

static PyObject *store_inspect(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    static const char *const NAMES[] = {"keys"};
    static const struct mpy_signature SIGNATURE = {"inspect", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    struct mc_object_info *infos = mpy_calloc(keys.count, sizeof(*infos));
    enum mc_status *results = mpy_calloc(keys.count, sizeof(*results));
    struct mpy_session *s = infos != NULL && results != NULL ? mpy_store_enter(self) : NULL;
    enum mc_status whole = MC_INVALID_PARAMS;
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        whole = mc_store_inspect(s->store, keys.items, keys.count, infos, results);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    PyObject *list = PyErr_Occurred() ? NULL : PyList_New((Py_ssize_t)keys.count);
    for (size_t i = 0; list != NULL && i < keys.count; i++) {
        PyObject *one =
            info_or_code(mpy_store_state(self), &infos[i], whole != MC_OK ? whole : results[i]);
        if (one == NULL || PyList_SetItem(list, (Py_ssize_t)i, one) != 0) {
            Py_CLEAR(list);
        }
    }
    free(results);
    free(infos);
    mpy_strings_free(&keys);
    return list;
}

/* ---- listing ---- */

/* bytes when it is no UTF-8: the store takes any, and every call takes them back. */
static PyObject *key_object(const char *key) {
    size_t length = strlen(key);
    PyObject *text = PyUnicode_DecodeUTF8(key, (Py_ssize_t)length, NULL);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        return PyBytes_FromStringAndSize(key, (Py_ssize_t)length);
    }
    return text;
}

static PyObject *page_object(const struct mc_store_keys *page) {
    PyObject *list = PyList_New((Py_ssize_t)page->count);
    for (size_t i = 0; list != NULL && i < page->count; i++) {
        PyObject *key = key_object(page->keys[i]);
        if (key == NULL || PyList_SetItem(list, (Py_ssize_t)i, key) != 0) {
            Py_CLEAR(list);
        }
    }
    return list != NULL ? Py_BuildValue("(Ns)", list, page->next) : NULL;
}

static PyObject *store_list_keys(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    static const char *const NAMES[] = {"prefix", "after", "limit"};
    static const struct mpy_signature SIGNATURE = {"list_keys", NAMES, 3, 0, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *prefix = "", *after = "";
    uint64_t limit = 1000;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &prefix) ||
        !mpy_text(v[1], NAMES[1], &after) || !mpy_u64(v[2], NAMES[2], &limit)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    struct mc_store_keys page = {0};
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_list(s->store, prefix, after, (size_t)limit, &page);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    if (status != MC_OK) {
        return PyLong_FromLong(mpy_code(status));
    }
    PyObject *result = page_object(&page);
    thread = PyEval_SaveThread();
    mc_store_keys_free(&page);
    PyEval_RestoreThread(thread);
    return result;
}

PyMethodDef mpy_store_admin_methods[] = {
    {"is_exist", MPY_METHOD(store_is_exist), MPY_FAST,
     "is_exist($self, key)\n--\n\n1 when the object exists, 0 when not, negative on an error."},
    {"batch_is_exist", MPY_METHOD(store_batch_is_exist), MPY_FAST,
     "batch_is_exist($self, keys)\n--\n\nCheck if multiple objects exist. Returns list of results: "
     "1 if exists, 0 if not exists, -1 if error"},
    {"get_size", MPY_METHOD(store_get_size), MPY_FAST,
     "get_size($self, key)\n--\n\nBytes of the object, or a negative error. Takes a lease, as a "
     "get."},
    {"remove", MPY_METHOD(store_remove), MPY_FAST,
     "remove($self, key, force=False)\n--\n\nRemove an object from the store. If force=True, skip "
     "lease and replication task checks."},
    {"remove_by_regex", MPY_METHOD(store_remove_by_regex), MPY_FAST,
     "remove_by_regex($self, regex_pattern, force=False)\n--\n\nRemoves objects from the store "
     "whose keys match the given regular expression. If force=True, skip lease and replication "
     "task checks."},
    {"remove_all", MPY_METHOD(store_remove_all), MPY_FAST,
     "remove_all($self, force=False)\n--\n\nRemove all objects from the store. If force=True, skip "
     "lease and replication task checks."},
    {"batch_remove", MPY_METHOD(store_batch_remove), MPY_FAST,
     "batch_remove($self, keys, force=False)\n--\n\nBatch remove objects by keys. Returns a list "
     "of status codes (0=success, negative=error code) for each key."},
    {"get_replica_desc", MPY_METHOD(store_get_replica_desc), MPY_FAST,
     "get_replica_desc($self, key)\n--\n\nThe replicas of an object, as ReplicaDescriptors; [] "
     "when there is none."},
    {"batch_get_replica_desc", MPY_METHOD(store_batch_get_replica_desc), MPY_FAST,
     "batch_get_replica_desc($self, keys)\n--\n\nget_replica_desc() of each key that exists, as a "
     "dict."},
    {"inspect", MPY_METHOD(store_inspect), MPY_FAST,
     "inspect($self, keys)\n--\n\nOurs: an ObjectInfo for each key (size, version, checksum, "
     "ttl_ms left, replicas), or a negative error; -1012 with upstream's master. Takes no lease."},
    {"list_keys", MPY_METHOD(store_list_keys), MPY_FAST,
     "list_keys($self, prefix='', after='', limit=1000)\n--\n\nOurs: a page of the keys that begin "
     "with `prefix`, and the `after` of the next page, '' behind the last one; or a negative "
     "error, "
     "-1012 with upstream's master. A key that is no UTF-8 comes as bytes. Takes no lease."},
    {NULL, NULL, 0, NULL}};

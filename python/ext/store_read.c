/*
 * MooncakeDistributedStore: get in all its forms. Values become bytes, BufferHandles, or go to
 * addresses.
 *
 * The size of an object is known in the middle of a native call, when the GIL is released. Memory
 * of a BufferHandle comes from the pool, which needs none; bytes are made by taking the GIL back
 * for a moment, but for small values, which are read into memory that is there and copied.
 */
#include <stdlib.h>
#include <string.h>

#include "store.h"

#define SMALL_BYTES 16384
#define LARGE_BYTES (1u << 20) /* from here on, a wait for the GIL is short beside the transfer */
#define SPARE_BYTES (256u << 20)
#define ODD_MAX     8

/* ---- get(key) -> bytes ---- */

struct bytes_room {
    PyThreadState *thread; /* saved */
    PyObject *bytes;
    char *small;
    size_t small_length; /* the value's, when it is in `small` */
};

static void *make_bytes(void *ctx, size_t length) {
    struct bytes_room *room = ctx;
    char *memory = NULL;
    room->small_length = 0;
    if (room->small != NULL && length <= SMALL_BYTES) {
        room->small_length = length;
        return room->small;
    }
    PyEval_RestoreThread(room->thread);
    Py_CLEAR(room->bytes);
    room->bytes =
        length <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length) : NULL;
    if (room->bytes != NULL) {
        memory = PyBytes_AsString(room->bytes);
    } else {
        PyErr_Clear();
    }
    room->thread = PyEval_SaveThread();
    return memory;
}

static PyObject *store_get(PyObject *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *names) {
    static const char *const NAMES[] = {"key"};
    static const struct mpy_signature SIGNATURE = {"get", NAMES, 1, 1, false};
    char small[SMALL_BYTES];
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        return PyBytes_FromStringAndSize("", 0);
    }
    struct bytes_room room = {.small = small};
    struct mc_store_item item = {.key = key, .allocate = make_bytes, .allocate_ctx = &room};
    room.thread = PyEval_SaveThread();
    enum mc_status status = mc_store_get_batch(s->store, &item, 1);
    PyEval_RestoreThread(room.thread);
    mpy_store_leave(s);
    if (status == MC_OK && item.status == MC_OK && room.bytes != NULL && room.small_length == 0) {
        return room.bytes;
    }
    Py_XDECREF(room.bytes);
    bool found = status == MC_OK && item.status == MC_OK;
    return PyBytes_FromStringAndSize(small, found ? (Py_ssize_t)room.small_length : 0);
}

/* ---- many keys ---- */

/*
 * bytes of many keys are read into without a copy, but the GIL must not be taken again for each of
 * them: while another thread runs Python, every wait for it is as long as the interpreter's switch
 * interval. The objects of a batch are mostly of one size, so who holds the GIL first makes bytes
 * for all keys that are left (of what a miss leaves over, only the ends were ever touched). ODD_MAX
 * values of other sizes get theirs one by one; the others, and small ones, are read into the pool
 * and copied at the end.
 */
struct bytes_maker {
    PyThreadState *thread; /* saved */
    const struct pool_room *rooms;
    size_t count;
    struct made_bytes {
        PyObject *bytes;
        char *memory;
    } * spares; /* `count` places: of all rooms, at least one has its own by the time of the next */
    size_t spare_count, spare_length;
    unsigned odd;
};

struct pool_room {
    struct mpy_pool *pool;
    void *memory;
    size_t length;
    struct bytes_maker *maker;
    PyObject *bytes; /* in the place of `memory` */
};

static void *make_pooled(void *ctx, size_t length) {
    struct pool_room *room = ctx;
    if (room->memory != NULL) {
        mpy_pool_give(room->pool, room->memory, room->length);
    }
    room->length = length;
    room->memory = mpy_pool_take(room->pool, length);
    return room->memory;
}

static void give_back(struct pool_room *room) {
    if (room->memory != NULL) {
        mpy_pool_give(room->pool, room->memory, room->length);
        room->memory = NULL;
    }
}

/* Puts at least one object of this length on the spares, or returns false. */
static bool make_spares(struct bytes_maker *maker, struct pool_room *room, size_t length) {
    bool alike = maker->spare_length == 0 || maker->spare_length == length;
    size_t wanted = 1, made = 0;
    if (alike && maker->spare_count == 0) {
        size_t left = maker->count - (size_t)(room - maker->rooms), fit = SPARE_BYTES / length;
        wanted = fit == 0 ? 1 : fit < left ? fit : left;
        maker->spare_length = length;
    } else {
        maker->odd++;
    }
    PyEval_RestoreThread(maker->thread);
    Py_CLEAR(room->bytes);
    for (; made < wanted && length <= PY_SSIZE_T_MAX; made++) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
        if (bytes == NULL) {
            PyErr_Clear();
            break;
        }
        maker->spares[maker->spare_count++] = (struct made_bytes){bytes, PyBytes_AsString(bytes)};
    }
    maker->thread = PyEval_SaveThread();
    return made > 0;
}

static void *make_bytes_of_many(void *ctx, size_t length) {
    struct pool_room *room = ctx;
    struct bytes_maker *maker = room->maker;
    bool alike = maker->spare_length == 0 || maker->spare_length == length;
    bool pooled =
        length <= SMALL_BYTES || (!alike && length < LARGE_BYTES && maker->odd >= ODD_MAX);
    if (pooled && room->bytes == NULL) {
        return make_pooled(room, length);
    }
    give_back(room);
    bool spare = alike && maker->spare_count > 0 && room->bytes == NULL;
    if (!spare && !make_spares(maker, room, length)) {
        return NULL;
    }
    struct made_bytes made = maker->spares[--maker->spare_count];
    room->length = length;
    room->bytes = made.bytes;
    return made.memory;
}

/* What one key's result becomes; takes the room's memory. */
typedef PyObject *(*make_result)(PyObject *self, struct pool_room *room, bool found);

static PyObject *result_bytes(PyObject *self, struct pool_room *room, bool found) {
    PyObject *made = room->bytes;
    room->bytes = NULL;
    if (found && made != NULL) {
        return made;
    }
    Py_XDECREF(made);
    PyObject *bytes = mpy_bytes(found ? room->memory : "", found ? room->length : 0);
    give_back(room);
    return bytes;
}

static PyObject *result_buffer(PyObject *self, struct pool_room *room, bool found) {
    if (!found || room->memory == NULL) {
        give_back(room);
        Py_RETURN_NONE;
    }
    void *memory = room->memory;
    room->memory = NULL;
    return mpy_buffer_create(mpy_store_state(self)->buffer_type, room->pool, memory, room->length);
}

/* The store was entered by the caller. */
static PyObject *get_many(PyObject *self, struct mpy_session *s, const char *const *keys,
                          size_t count, bool as_bytes) {
    struct mc_store_item *items = mpy_calloc(count, sizeof(*items));
    struct pool_room *rooms = mpy_calloc(count, sizeof(*rooms));
    struct bytes_maker maker = {.rooms = rooms, .count = count};
    maker.spares = mpy_calloc(as_bytes ? count : 1, sizeof(*maker.spares));
    bool room = items != NULL && rooms != NULL && maker.spares != NULL;
    PyObject *list = room ? PyList_New((Py_ssize_t)count) : NULL;
    if (list != NULL) {
        for (size_t i = 0; i < count; i++) {
            rooms[i].pool = s->pool;
            rooms[i].maker = &maker;
            items[i] =
                (struct mc_store_item){.key = keys[i],
                                       .allocate = as_bytes ? make_bytes_of_many : make_pooled,
                                       .allocate_ctx = &rooms[i]};
        }
        maker.thread = PyEval_SaveThread();
        enum mc_status status = mc_store_get_batch(s->store, items, count);
        PyEval_RestoreThread(maker.thread);
        while (maker.spare_count > 0) {
            Py_DECREF(maker.spares[--maker.spare_count].bytes);
        }
        make_result make = as_bytes ? result_bytes : result_buffer;
        for (size_t i = 0; i < count; i++) {
            bool found = status == MC_OK && items[i].status == MC_OK;
            PyObject *value = list != NULL ? make(self, &rooms[i], found) : NULL;
            if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) != 0) {
                Py_CLEAR(list);
                Py_CLEAR(rooms[i].bytes);
                give_back(&rooms[i]);
            }
        }
    }
    free(maker.spares);
    free(rooms);
    free(items);
    return list;
}

static const char *const KEYS_NAMES[] = {"keys"};

static PyObject *store_get_batch(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"get_batch", KEYS_NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    PyObject *list = NULL;
    struct mpy_session *s = mpy_store_enter(self);
    if (s != NULL && keys.count > 0) {
        list = get_many(self, s, keys.items, keys.count, true);
    } else { /* as upstream: no keys and no store are one miss */
        list = PyList_New(1);
        if (list != NULL && PyList_SetItem(list, 0, PyBytes_FromStringAndSize("", 0)) != 0) {
            Py_CLEAR(list);
        }
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    mpy_strings_free(&keys);
    return list;
}

static PyObject *store_batch_get_buffer(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                        PyObject *names) {
    static const struct mpy_signature SIGNATURE = {"batch_get_buffer", KEYS_NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    PyObject *list;
    if (s != NULL) {
        list = get_many(self, s, keys.items, keys.count, false);
        mpy_store_leave(s);
    } else {
        list = PyList_New((Py_ssize_t)keys.count);
        for (size_t i = 0; list != NULL && i < keys.count; i++) {
            Py_INCREF(Py_None);
            if (PyList_SetItem(list, (Py_ssize_t)i, Py_None) != 0) {
                Py_CLEAR(list);
            }
        }
    }
    mpy_strings_free(&keys);
    return list;
}

static PyObject *store_get_buffer(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *names) {
    static const char *const NAMES[] = {"key"};
    static const struct mpy_signature SIGNATURE = {"get_buffer", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL) {
        Py_RETURN_NONE;
    }
    struct pool_room room = {.pool = s->pool};
    struct mc_store_item item = {.key = key, .allocate = make_pooled, .allocate_ctx = &room};
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_get_batch(s->store, &item, 1);
    PyEval_RestoreThread(thread);
    PyObject *result = result_buffer(self, &room, status == MC_OK && item.status == MC_OK);
    mpy_store_leave(s);
    return result;
}

/* ---- into addresses ---- */

static PyObject *store_get_into(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
    static const char *const NAMES[] = {"key", "buffer_ptr", "size"};
    static const struct mpy_signature SIGNATURE = {"get_into", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    uint64_t address = 0, size = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_u64(v[1], NAMES[1], &address) || !mpy_u64(v[2], NAMES[2], &size)) {
        return NULL;
    }
    struct mpy_session *s = mpy_store_enter(self);
    if (s == NULL || mpy_store_at(s, address, size) == NULL) {
        if (s != NULL) {
            mpy_store_leave(s);
        }
        return PyLong_FromLong(MC_INVALID_PARAMS);
    }
    size_t length = 0;
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status =
        mc_store_get(s->store, key, (void *)(uintptr_t)address, (size_t)size, &length);
    PyEval_RestoreThread(thread);
    mpy_store_leave(s);
    return status == MC_OK ? PyLong_FromSize_t(length) : PyLong_FromLong(mpy_code(status));
}

/* Bytes read or the error of each key. Slices of key i: begins[i] .. begins[i + 1]. */
static PyObject *get_slices(struct mpy_session *s, const struct mpy_strings *keys,
                            const uint64_t *pointers, const uint64_t *sizes, const size_t *begins) {
    size_t total = begins != NULL ? begins[keys->count] : keys->count;
    struct mc_store_item *items =
        mpy_calloc(1, keys->count * sizeof(*items) + total * sizeof(struct mc_slice) + 1);
    if (items == NULL) {
        return NULL;
    }
    struct mc_slice *slices = (struct mc_slice *)(items + keys->count);
    for (size_t i = 0; i < total; i++) {
        slices[i] = (struct mc_slice){mpy_store_at(s, pointers[i], sizes[i]), (size_t)sizes[i]};
    }
    for (size_t i = 0; i < keys->count; i++) {
        size_t begin = begins != NULL ? begins[i] : i;
        size_t end = begins != NULL ? begins[i + 1] : i + 1;
        items[i] = (struct mc_store_item){
            .key = keys->items[i], .slices = slices + begin, .slice_count = end - begin};
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_store_get_batch(s->store, items, keys->count);
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

static PyObject *store_batch_get_into(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                      PyObject *names) {
    static const char *const NAMES[] = {"keys", "buffer_ptrs", "sizes"};
    static const struct mpy_signature SIGNATURE = {"batch_get_into", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys = {0};
    struct mpy_numbers pointers = {0}, sizes = {0};
    PyObject *result = NULL;
    if (!mpy_args(&SIGNATURE, args, count, names, v)) {
        return NULL;
    }
    if (mpy_strings(v[0], "keys", &keys) && mpy_numbers(v[1], NAMES[1], &pointers) &&
        mpy_numbers(v[2], NAMES[2], &sizes)) {
        bool fits = pointers.count == keys.count && sizes.count == keys.count;
        struct mpy_session *s = fits ? mpy_store_enter(self) : NULL;
        if (s != NULL) {
            result = get_slices(s, &keys, pointers.items, sizes.items, NULL);
            mpy_store_leave(s);
        } else {
            result = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
        }
    }
    mpy_numbers_free(&sizes);
    mpy_numbers_free(&pointers);
    mpy_strings_free(&keys);
    return result;
}

static PyObject *store_batch_get_into_multi_buffers(PyObject *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *names) {
    static const char *const NAMES[] = {"keys", "all_buffer_ptrs", "all_sizes",
                                        "prefer_alloc_in_same_node"};
    static const struct mpy_signature SIGNATURE = {"batch_get_into_multi_buffers", NAMES, 4, 3,
                                                   false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings keys = {0};
    struct mpy_table pointers = {0}, sizes = {0};
    PyObject *result = NULL;
    bool same_node = false; /* a hint for transports that gather; ours always do */
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_bool(v[3], NAMES[3], &same_node)) {
        return NULL;
    }
    if (mpy_strings(v[0], "keys", &keys) && mpy_table(v[1], NAMES[1], &pointers) &&
        mpy_table(v[2], NAMES[2], &sizes)) {
        bool fits =
            pointers.rows == keys.count && sizes.rows == keys.count &&
            memcmp(pointers.begins, sizes.begins, (keys.count + 1) * sizeof(*sizes.begins)) == 0;
        struct mpy_session *s = mpy_store_enter(self);
        if (s == NULL) {
            result = PyList_New(0);
        } else if (fits) {
            result = get_slices(s, &keys, pointers.items, sizes.items, pointers.begins);
        } else {
            result = mpy_list_of((Py_ssize_t)keys.count, MC_INVALID_PARAMS);
        }
        if (s != NULL) {
            mpy_store_leave(s);
        }
    }
    mpy_table_free(&sizes);
    mpy_table_free(&pointers);
    mpy_strings_free(&keys);
    return result;
}

PyMethodDef mpy_store_read_methods[] = {
    {"get", MPY_METHOD(store_get), MPY_FAST,
     "get($self, key)\n--\n\nThe bytes of the object; b\"\" when there is none, or on any error."},
    {"get_batch", MPY_METHOD(store_get_batch), MPY_FAST,
     "get_batch($self, keys)\n--\n\nget() for each key."},
    {"get_buffer", MPY_METHOD(store_get_buffer), MPY_FAST,
     "get_buffer($self, key)\n--\n\nA BufferHandle with the object's bytes, or None."},
    {"batch_get_buffer", MPY_METHOD(store_batch_get_buffer), MPY_FAST,
     "batch_get_buffer($self, keys)\n--\n\nget_buffer() for each key."},
    {"get_into", MPY_METHOD(store_get_into), MPY_FAST,
     "get_into($self, key, buffer_ptr, size)\n--\n\nGet object data directly into a pre-allocated "
     "buffer"},
    {"batch_get_into", MPY_METHOD(store_batch_get_into), MPY_FAST,
     "batch_get_into($self, keys, buffer_ptrs, sizes)\n--\n\nGet object data directly into "
     "pre-allocated buffers for multiple keys"},
    {"batch_get_into_multi_buffers", MPY_METHOD(store_batch_get_into_multi_buffers), MPY_FAST,
     "batch_get_into_multi_buffers($self, keys, all_buffer_ptrs, all_sizes, "
     "prefer_alloc_in_same_node=False)\n--\n\nGet object data directly into multiple "
     "pre-allocated buffers for multiple keys"},
    {NULL, NULL, 0, NULL}};

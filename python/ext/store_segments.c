/*
 * MooncakeDistributedStore: lending memory beside what setup() lent, and asking for copies and
 * moves. A segment's id is the text "<hi>-<lo>"; a task's the tuple (hi, lo).
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

#define SLAB_BYTES (16ull << 20) /* sizes are rounded up to this */
#define FAILED     (-1)

/* ---- segments ---- */

static PyObject *mounted(int ret, const struct mc_store_segment_id *id, bool sized,
                         uint64_t bytes) {
    char text[48];
    PyObject *ids = PyList_New(0);
    if (ids != NULL && ret == 0) {
        snprintf(text, sizeof(text), "%llu-%llu", (unsigned long long)id->hi,
                 (unsigned long long)id->lo);
        PyObject *one = PyUnicode_FromString(text);
        if (one == NULL || PyList_Append(ids, one) != 0) {
            Py_CLEAR(ids);
        }
        Py_XDECREF(one);
    }
    if (ids == NULL) {
        return NULL;
    }
    return sized ? Py_BuildValue("{s:i,s:N,s:K}", "ret", ret, "segment_ids", ids, "allocated_size",
                                 (unsigned long long)(ret == 0 ? bytes : 0))
                 : Py_BuildValue("{s:i,s:N}", "ret", ret, "segment_ids", ids);
}

static bool known_protocol(const char *protocol) {
    return strcmp(protocol, "tcp") == 0 || strcmp(protocol, "rdma") == 0;
}

static PyObject *mount_segment(PyObject *self, PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    static const char *const NAMES[] = {"path", "size", "offset", "protocol", "location"};
    static const struct mpy_signature SIGNATURE = {"mount_segment", NAMES, 5, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *path = "", *protocol = "tcp", *location = "";
    uint64_t size = 0, offset = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], NAMES[0], &path) ||
        !mpy_u64(v[1], NAMES[1], &size) || !mpy_u64(v[2], NAMES[2], &offset) ||
        !mpy_text(v[3], NAMES[3], &protocol) || !mpy_text(v[4], NAMES[4], &location)) {
        return NULL;
    }
    struct mc_store_segment_id id = {0, 0};
    enum mc_status status = MC_INVALID_PARAMS;
    struct mpy_session *s = known_protocol(protocol) ? mpy_store_enter(self) : NULL;
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mc_store_mount_file(s->store, path, offset, size,
                                     location[0] != '\0' ? location : NULL, &id);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    return mounted(status == MC_OK ? 0 : FAILED, &id, false, 0);
}

static PyObject *allocate_and_mount_segment(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                            PyObject *names) {
    static const char *const NAMES[] = {"size", "protocol", "location"};
    static const struct mpy_signature SIGNATURE = {"allocate_and_mount_segment", NAMES, 3, 1,
                                                   false};
    PyObject *v[MPY_MAX_ARGS];
    const char *protocol = "tcp", *location = "";
    uint64_t size = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &size) ||
        !mpy_text(v[1], NAMES[1], &protocol) || !mpy_text(v[2], NAMES[2], &location)) {
        return NULL;
    }
    struct mc_store_segment_id id = {0, 0};
    enum mc_status status = MC_INVALID_PARAMS;
    uint64_t bytes = (size + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
    bool sane = size > 0 && bytes >= size && known_protocol(protocol);
    struct mpy_session *s = sane ? mpy_store_enter(self) : NULL;
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mc_store_mount_memory(s->store, bytes, location[0] != '\0' ? location : NULL, &id);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    return mounted(status == MC_OK ? 0 : FAILED, &id, true, bytes);
}

static bool parse_id(const char *text, struct mc_store_segment_id *id) {
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    id->hi = strtoull(text, &end, 10);
    if (errno != 0 || *end != '-' || !isdigit((unsigned char)end[1])) {
        return false;
    }
    id->lo = strtoull(end + 1, &end, 10);
    return errno == 0 && *end == '\0';
}

/* Goes on over the list; the first failure, -1 for an id that is none or not known. */
static int unmount_all(struct mpy_session *s, const struct mpy_strings *ids, uint64_t grace_ms) {
    int code = 0;
    for (size_t i = 0; i < ids->count; i++) {
        struct mc_store_segment_id id;
        enum mc_status status = MC_SEGMENT_NOT_FOUND;
        if (parse_id(ids->items[i], &id)) {
            PyThreadState *thread = PyEval_SaveThread();
            status = mc_store_unmount(s->store, id, grace_ms);
            PyEval_RestoreThread(thread);
        }
        if (status != MC_OK && code == 0) {
            code = status == MC_SEGMENT_NOT_FOUND ? FAILED : mpy_code(status);
        }
    }
    return code;
}

static PyObject *unmount(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                         const char *function) {
    static const char *const NAMES[] = {"segment_ids", "grace_period_seconds"};
    const struct mpy_signature signature = {function, NAMES, 2, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_strings ids;
    int64_t grace = 0;
    if (!mpy_args(&signature, args, count, names, v) || !mpy_i64(v[1], NAMES[1], &grace) ||
        !mpy_strings(v[0], NAMES[0], &ids)) {
        return NULL;
    }
    int code = FAILED;
    struct mpy_session *s = grace >= 0 && grace <= INT32_MAX ? mpy_store_enter(self) : NULL;
    if (s != NULL) {
        code = unmount_all(s, &ids, (uint64_t)grace * 1000);
        mpy_store_leave(s);
    }
    mpy_strings_free(&ids);
    return PyLong_FromLong(code);
}

static PyObject *unmount_segment(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    return unmount(self, args, count, names, "unmount_segment");
}

static PyObject *unmount_and_free_segment(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                          PyObject *names) {
    return unmount(self, args, count, names, "unmount_and_free_segment");
}

/* ---- tasks ---- */

static PyObject *started(enum mc_status status, const struct mc_store_task_id *id) {
    unsigned long long hi = status == MC_OK ? id->hi : 0;
    unsigned long long lo = status == MC_OK ? id->lo : 0;
    return Py_BuildValue("((KK)i)", hi, lo, (int)mpy_code(status));
}

static PyObject *create_copy_task(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *names) {
    static const char *const NAMES[] = {"key", "targets"};
    static const struct mpy_signature SIGNATURE = {"create_copy_task", NAMES, 2, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "";
    struct mpy_strings targets;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_strings(v[1], "targets", &targets)) {
        return NULL;
    }
    struct mc_store_task_id id = {0, 0};
    enum mc_status status = MC_INVALID_PARAMS;
    struct mpy_session *s = mpy_store_enter(self);
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mc_store_copy(s->store, key, targets.items, targets.count, &id);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    mpy_strings_free(&targets);
    return started(status, &id);
}

static PyObject *create_move_task(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                  PyObject *names) {
    static const char *const NAMES[] = {"key", "source", "target"};
    static const struct mpy_signature SIGNATURE = {"create_move_task", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *key = "", *source = "", *target = "";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[0], "key", &key) ||
        !mpy_text(v[1], "source", &source) || !mpy_text(v[2], "target", &target)) {
        return NULL;
    }
    struct mc_store_task_id id = {0, 0};
    enum mc_status status = MC_INVALID_PARAMS;
    struct mpy_session *s = mpy_store_enter(self);
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mc_store_move(s->store, key, source, target, &id);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    return started(status, &id);
}

static bool take_id(PyObject *object, struct mc_store_task_id *id) {
    struct mpy_numbers numbers;
    if (!mpy_numbers(object, "task_id", &numbers)) {
        return false;
    }
    bool pair = numbers.count == 2;
    if (pair) {
        *id = (struct mc_store_task_id){numbers.items[0], numbers.items[1]};
    } else {
        PyErr_SetString(PyExc_TypeError, "task_id must be a tuple of two ints");
    }
    mpy_numbers_free(&numbers);
    return pair;
}

static PyObject *query_task(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    static const char *const NAMES[] = {"task_id"};
    static const struct mpy_signature SIGNATURE = {"query_task", NAMES, 1, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mc_store_task_id id;
    struct mc_store_task task;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !take_id(v[0], &id)) {
        return NULL;
    }
    enum mc_status status = MC_INVALID_PARAMS;
    struct mpy_session *s = mpy_store_enter(self);
    if (s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mc_store_task(s->store, id, &task);
        PyEval_RestoreThread(thread);
        mpy_store_leave(s);
    }
    if (status != MC_OK) {
        return Py_BuildValue("(Oi)", Py_None, (int)mpy_code(status));
    }
    PyObject *answer = PyObject_CallMethod(
        mpy_store_state(self)->types, "_task", "(KK)iiLL(KK)s", (unsigned long long)task.id.hi,
        (unsigned long long)task.id.lo, task.type, task.status, (long long)task.created_ms,
        (long long)task.updated_ms, (unsigned long long)task.client.hi,
        (unsigned long long)task.client.lo, task.message);
    return answer != NULL ? Py_BuildValue("(Ni)", answer, 0) : NULL;
}

/* ---- single replicas ---- */

static PyObject *batch_replica_clear(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names) {
    static const char *const NAMES[] = {"keys", "segment_name"};
    static const struct mpy_signature SIGNATURE = {"batch_replica_clear", NAMES, 2, 1, false};
    PyObject *v[MPY_MAX_ARGS];
    const char *segment = "";
    struct mpy_strings keys;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[1], NAMES[1], &segment) ||
        !mpy_strings(v[0], "keys", &keys)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    bool *cleared = mpy_calloc(keys.count, sizeof(*cleared));
    struct mpy_session *s = mpy_store_enter(self);
    if (cleared != NULL && s != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status =
            mc_store_clear_replicas(s->store, keys.items, keys.count, segment, cleared);
        PyEval_RestoreThread(thread);
        for (size_t i = 0; list != NULL && status == MC_OK && i < keys.count; i++) {
            if (cleared[i] &&
                PyList_Append(list, PyTuple_GetItem(keys.owner, (Py_ssize_t)i)) != 0) {
                Py_CLEAR(list);
            }
        }
    }
    if (s != NULL) {
        mpy_store_leave(s);
    }
    free(cleared);
    mpy_strings_free(&keys);
    return list;
}

PyMethodDef mpy_store_segment_methods[] = {
    {"mount_segment", MPY_METHOD(mount_segment), MPY_FAST,
     "mount_segment($self, path, size, offset=0, protocol='tcp', location='')\n--\n\nLends a part "
     "of an existing file. {\"ret\": 0 or -1, \"segment_ids\": [...]}"},
    {"unmount_segment", MPY_METHOD(unmount_segment), MPY_FAST,
     "unmount_segment($self, segment_ids, grace_period_seconds=0)\n--\n\nTakes segments back; with "
     "a grace they stay readable that long."},
    {"allocate_and_mount_segment", MPY_METHOD(allocate_and_mount_segment), MPY_FAST,
     "allocate_and_mount_segment($self, size, protocol='tcp', location='')\n--\n\nLends fresh "
     "memory, rounded up to 16 MiB. {\"ret\", \"segment_ids\", \"allocated_size\"}"},
    {"unmount_and_free_segment", MPY_METHOD(unmount_and_free_segment), MPY_FAST,
     "unmount_and_free_segment($self, segment_ids, grace_period_seconds=0)\n--\n\nTakes back what "
     "allocate_and_mount_segment() lent."},
    {"create_copy_task", MPY_METHOD(create_copy_task), MPY_FAST,
     "create_copy_task($self, key, targets)\n--\n\nCopy an object to target segments: ((hi, lo) of "
     "the task, error code)"},
    {"create_move_task", MPY_METHOD(create_move_task), MPY_FAST,
     "create_move_task($self, key, source, target)\n--\n\nMove an object from source segment to "
     "target segment: ((hi, lo) of the task, error code)"},
    {"query_task", MPY_METHOD(query_task), MPY_FAST,
     "query_task($self, task_id)\n--\n\nQuery the status of a task: (QueryTaskResponse or None, "
     "error code)"},
    {"batch_replica_clear", MPY_METHOD(batch_replica_clear), MPY_FAST,
     "batch_replica_clear($self, keys, segment_name='')\n--\n\nClear replicas for the given keys. "
     "Requires lease to be expired."},
    {NULL, NULL, 0, NULL}};

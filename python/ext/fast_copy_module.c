/*
 * The module mooncake._fast_copy: many arrays one behind the other into memory that is given by its
 * address, without the GIL. It knows buffers, not numpy. All arrays are held before the first byte
 * moves, so that nothing is written when one of them will not do or the room is too small.
 */
#include <stdlib.h>
#include <string.h>

#include "ext.h"

#define THREADS_MAX 16u
#define THREAD_BYTES                                                                               \
    ((size_t)1 << 20) /* below this much for each, a thread costs more than it saves */

struct piece {
    const char *from;
    size_t at, length; /* in the destination */
};

struct share {
    pthread_t thread;
    char *to;
    const struct piece *pieces;
    size_t count, begin, end; /* bytes of the destination that are this thread's */
};

static void *copy_share(void *arg) {
    const struct share *s = arg;
    for (size_t i = 0; i < s->count; i++) {
        const struct piece *p = &s->pieces[i];
        size_t begin = p->at > s->begin ? p->at : s->begin;
        size_t last = p->at + p->length;
        size_t end = last < s->end ? last : s->end;
        if (begin < end) {
            memcpy(s->to + begin, p->from + (begin - p->at), end - begin);
        }
    }
    return NULL;
}

/* A share that gets no thread is copied by the caller. */
static void copy_all(char *to, const struct piece *pieces, size_t count, size_t total,
                     size_t threads) {
    struct share shares[THREADS_MAX];
    bool started[THREADS_MAX] = {false};
    for (size_t i = 0; i < threads; i++) {
        shares[i] = (struct share){.to = to,
                                   .pieces = pieces,
                                   .count = count,
                                   .begin = total / threads * i,
                                   .end = i + 1 == threads ? total : total / threads * (i + 1)};
        started[i] = i > 0 && pthread_create(&shares[i].thread, NULL, copy_share, &shares[i]) == 0;
    }
    for (size_t i = 0; i < threads; i++) {
        if (!started[i]) {
            copy_share(&shares[i]);
        }
    }
    for (size_t i = 0; i < threads; i++) {
        if (started[i]) {
            pthread_join(shares[i].thread, NULL);
        }
    }
}

struct held {
    Py_buffer *views;
    struct piece *pieces;
    size_t count, total;
};

static void release(struct held *held) {
    for (size_t i = 0; i < held->count; i++) {
        PyBuffer_Release(&held->views[i]);
    }
    free(held->views);
    free(held->pieces);
}

static bool hold(PyObject *list, size_t start, size_t count, struct held *held) {
    *held = (struct held){.views = mpy_calloc(count + 1, sizeof(*held->views)),
                          .pieces = mpy_calloc(count + 1, sizeof(*held->pieces))};
    if (held->views == NULL || held->pieces == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *array = PyList_GetItem(list, (Py_ssize_t)(start + i));
        if (array == NULL) {
            return false;
        }
        Py_buffer *view = &held->views[held->count];
        if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS) != 0) {
            bool is_buffer = PyObject_CheckBuffer(array) != 0;
            PyErr_Format(is_buffer ? PyExc_ValueError : PyExc_TypeError,
                         is_buffer ? "arrays[%zu] is not C-contiguous"
                                   : "arrays[%zu] is not an ndarray",
                         start + i);
            return false;
        }
        held->pieces[held->count++] =
            (struct piece){.from = view->buf, .at = held->total, .length = (size_t)view->len};
        held->total += (size_t)view->len;
    }
    return true;
}

static PyObject *concat_arrays_into(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                    PyObject *names) {
    static const char *const NAMES[] = {"arrays", "dest_ptr", "dest_size",
                                        "start",  "count",    "nthreads"};
    static const struct mpy_signature SIGNATURE = {"concat_arrays_into", NAMES, 6, 3, false};
    PyObject *values[MPY_MAX_ARGS];
    uint64_t address = 0, room = 0;
    int64_t first = 0, number = -1, threads = 1;
    if (!mpy_args(&SIGNATURE, args, count, names, values) ||
        !mpy_u64(values[1], "dest_ptr", &address) || !mpy_u64(values[2], "dest_size", &room) ||
        !mpy_i64(values[3], "start", &first) || !mpy_i64(values[4], "count", &number) ||
        !mpy_i64(values[5], "nthreads", &threads)) {
        return NULL;
    }
    if (!PyList_Check(values[0])) {
        return PyErr_Format(PyExc_TypeError, "arrays must be a list, not %S", Py_TYPE(values[0]));
    }
    Py_ssize_t length = PyList_Size(values[0]);
    first = first < 0 ? 0 : first > length ? length : first;
    number = number < 0 || number > length - first ? length - first : number;
    struct held held;
    PyObject *result = NULL;
    if (!hold(values[0], (size_t)first, (size_t)number, &held)) {
        /* the error is set */
    } else if (held.total > room) {
        PyErr_Format(PyExc_ValueError, "destination buffer too small: need %zu bytes, got %llu",
                     held.total, (unsigned long long)room);
    } else if (address == 0 && held.total > 0) {
        PyErr_SetString(PyExc_ValueError, "dest_ptr is 0");
    } else {
        size_t most = held.total / THREAD_BYTES + 1;
        most = most < THREADS_MAX ? most : THREADS_MAX;
        size_t use = threads < 1 ? 1 : (size_t)threads < most ? (size_t)threads : most;
        Py_BEGIN_ALLOW_THREADS;
        copy_all((char *)(uintptr_t)address, held.pieces, held.count, held.total, use);
        Py_END_ALLOW_THREADS;
        result = PyLong_FromSize_t(held.total);
    }
    release(&held);
    return result;
}

static PyMethodDef methods[] = {
    {"concat_arrays_into", MPY_METHOD(concat_arrays_into), MPY_FAST,
     "concat_arrays_into(arrays, dest_ptr, dest_size, start=0, count=-1, nthreads=1)\n--\n\n"
     "Copies arrays[start:start + count] one behind the other to dest_ptr; the bytes copied."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module_definition = {.m_base = PyModuleDef_HEAD_INIT,
                                               .m_name = "mooncake._fast_copy",
                                               .m_doc = "Copies without the GIL.",
                                               .m_methods = methods};

PyMODINIT_FUNC PyInit__fast_copy(void);
PyMODINIT_FUNC PyInit__fast_copy(void) {
    return PyModuleDef_Init(&module_definition);
}

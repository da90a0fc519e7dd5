/*
 * What the extension modules share: the limited Python API that they are compiled against,
 * arguments, and native calls.
 *
 * One binary serves every CPython from 3.10 on, so only the stable ABI of 3.10 is used. Two things
 * of it are not in 3.10's limited headers though every 3.10 has them with the layout that 3.11 then
 * froze: the buffer protocol (declared below). Nothing here is C++ or knows torch or numpy.
 *
 * Rules that keep a process alive whatever a caller does:
 *   - a call borrows nothing from a Python object across the release of the GIL but what an owned
 *     reference or a held buffer keeps in place (a list may change under us, so lists are copied);
 *   - a native object is entered before and left after a call (struct mpy_gate), so that closing it
 *     from another thread waits;
 *   - after fork() nothing native is touched in the child: its threads do not exist there.
 */
#ifndef MC_PYTHON_EXT_H
#define MC_PYTHON_EXT_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "mooncake/error.h"

/* ---- the buffer protocol, as 3.11's stable ABI declares it ---- */

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} Py_buffer;
PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject *object);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
PyAPI_FUNC(PyObject *) PyMemoryView_FromObject(PyObject *object);
#define PyBUF_SIMPLE        0
#define PyBUF_WRITABLE      0x0001
#define PyBUF_FORMAT        0x0004
#define PyBUF_ND            0x0008
#define PyBUF_STRIDES       (0x0010 | PyBUF_ND)
#define PyBUF_C_CONTIGUOUS  (0x0020 | PyBUF_STRIDES)
#define Py_bf_getbuffer     1
#define Py_bf_releasebuffer 2

/* ---- arguments ---- */

/* A call's parameters in order; those from `required` on may be absent. With `varargs` the
 * positional arguments after the first `required` ones are the caller's to look at. */
struct mpy_signature {
    const char *function;
    const char *const *names;
    size_t count;
    size_t required;
    bool varargs;
};

/* The most parameters a function has. */
#define MPY_MAX_ARGS 16

/* values[i] = a borrowed reference or NULL; false with a TypeError that names what is wrong. */
bool mpy_args(const struct mpy_signature *signature, PyObject *const *args, Py_ssize_t count,
              PyObject *names, PyObject **values);

/* Converters: false with TypeError, OverflowError set. NULL leaves *out as it is. */
bool mpy_u64(PyObject *object, const char *name, uint64_t *out);
bool mpy_i64(PyObject *object, const char *name, int64_t *out);
bool mpy_bool(PyObject *object, const char *name, bool *out);
/* UTF-8 of a str, or the bytes of bytes; borrowed from the object. */
bool mpy_text(PyObject *object, const char *name, const char **out);
bool mpy_text_sized(PyObject *object, const char *name, const char **out, Py_ssize_t *length);

/* A list of strings; `owner` keeps them. A key with a NUL inside is the empty string, which the
 * store refuses. */
struct mpy_strings {
    const char **items;
    size_t count;
    PyObject *owner;
};
bool mpy_strings(PyObject *sequence, const char *name, struct mpy_strings *out);
void mpy_strings_free(struct mpy_strings *strings);

/* A list of integers. */
struct mpy_numbers {
    uint64_t *items;
    size_t count;
};
bool mpy_numbers(PyObject *sequence, const char *name, struct mpy_numbers *out);
void mpy_numbers_free(struct mpy_numbers *numbers);

/* A list of lists of integers, flat: row i is items[begins[i]] .. items[begins[i + 1]]. */
struct mpy_table {
    uint64_t *items;
    size_t *begins;
    size_t rows;
};
bool mpy_table(PyObject *sequence, const char *name, struct mpy_table *out);
void mpy_table_free(struct mpy_table *table);

/* Any sequence but str and bytes as a new tuple, which nobody else can change. */
PyObject *mpy_tuple(PyObject *sequence, const char *name);

/* ---- results ---- */

/* The number that Python callers know: upstream's, for ours the nearest of them. */
int32_t mpy_code(enum mc_status status);
/* A list of `count` times the same number. */
PyObject *mpy_list_of(Py_ssize_t count, long value);
PyObject *mpy_list_i64(const int64_t *values, size_t count);

/* A copy as bytes. A long one is made without the GIL: the memory must stay although others run. */
PyObject *mpy_bytes(const void *memory, size_t length);
/* From here on, copying takes longer than giving the GIL up and taking it back. */
#define MPY_LONG_BYTES ((size_t)64 << 10)

/* calloc that sets MemoryError. */
void *mpy_calloc(size_t count, size_t size);

/* MC_TRY of the library's own code. */
#define MPY_TRY(call)                                                                              \
    do {                                                                                           \
        enum mc_status status_ = (call);                                                           \
        if (status_ != MC_OK) {                                                                    \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* ---- native objects ---- */

/* Counts the calls inside a native object, so that its end waits for them. */
struct mpy_gate {
    pthread_mutex_t lock;
    pthread_cond_t empty;
    unsigned users;
    bool closed;
    unsigned generation; /* of the process that made it */
};
void mpy_gate_init(struct mpy_gate *gate);
/* False when it is closed or was made by the process that this one was forked from. */
bool mpy_gate_enter(struct mpy_gate *gate);
void mpy_gate_leave(struct mpy_gate *gate);
/* Nobody enters any more; waits until all have left, at most `seconds`. False when some are still
 * inside. Call without the GIL. */
bool mpy_gate_close(struct mpy_gate *gate, unsigned seconds);
bool mpy_gate_forked(const struct mpy_gate *gate);
void mpy_gate_destroy(struct mpy_gate *gate);

/* ---- modules ---- */

/* Adds a heap type under its short name; false with an error set. *type may be NULL. */
bool mpy_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);
/* Calls f when the interpreter ends. */
bool mpy_at_exit(PyObject *module, PyMethodDef *method);
/* The object's dictionary-less allocation and freeing for types made by PyType_FromSpec. */
PyObject *mpy_new(PyTypeObject *type);
void mpy_free(PyObject *self);

#define MPY_FAST             (METH_FASTCALL | METH_KEYWORDS)
#define MPY_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif

/* Arguments and results: see ext.h. */
#include "ext.h"

#include <stdlib.h>
#include <string.h>

/* ---- parameters ---- */

static bool unexpected(const struct mpy_signature *s, PyObject *name) {
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", s->function,
                 name);
    return false;
}

static bool take_keywords(const struct mpy_signature *s, PyObject *const *args, PyObject *names,
                          PyObject **values) {
    Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *name = PyTuple_GetItem(names, k);
        size_t i = 0;
        while (i < s->count && PyUnicode_CompareWithASCIIString(name, s->names[i]) != 0) {
            i++;
        }
        if (i == s->count) {
            return unexpected(s, name);
        }
        if (values[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", s->function,
                         s->names[i]);
            return false;
        }
        values[i] = args[k];
    }
    return true;
}

bool mpy_args(const struct mpy_signature *s, PyObject *const *args, Py_ssize_t count,
              PyObject *names, PyObject **values) {
    size_t positional = (size_t)count;
    size_t taken = positional;
    if (s->varargs && taken > s->required) {
        taken = s->required;
    }
    if (taken > s->count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments (%zu given)", s->function,
                     s->count, positional);
        return false;
    }
    memset(values, 0, s->count * sizeof(*values));
    memcpy(values, args, taken * sizeof(*values));
    if (names != NULL && !take_keywords(s, args + count, names, values)) {
        return false;
    }
    for (size_t i = 0; i < s->required; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (position %zu)",
                         s->function, s->names[i], i + 1);
            return false;
        }
    }
    return true;
}

/* ---- single values ---- */

static bool wrong_type(const char *name, const char *wanted, PyObject *got) {
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %R", name, wanted, (PyObject *)Py_TYPE(got));
    return false;
}

/* As an int: itself or by __index__ (numpy's integers); floats are refused. */
static PyObject *as_int(PyObject *object, const char *name) {
    PyObject *number = PyNumber_Index(object);
    if (number == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        wrong_type(name, "an int", object);
    }
    return number;
}

bool mpy_u64(PyObject *object, const char *name, uint64_t *out) {
    if (object == NULL) {
        return true;
    }
    PyObject *number = as_int(object, name);
    if (number == NULL) {
        return false;
    }
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be an int from 0 to 2**64 - 1, not %R", name,
                     object);
        return false;
    }
    *out = value;
    return true;
}

bool mpy_i64(PyObject *object, const char *name, int64_t *out) {
    if (object == NULL) {
        return true;
    }
    PyObject *number = as_int(object, name);
    if (number == NULL) {
        return false;
    }
    long long value = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be an int of 64 bits, not %R", name, object);
        return false;
    }
    *out = value;
    return true;
}

bool mpy_bool(PyObject *object, const char *name, bool *out) {
    if (object == NULL) {
        return true;
    }
    int truth = PyObject_IsTrue(object);
    if (truth < 0) {
        return false;
    }
    *out = truth != 0;
    return true;
}

bool mpy_text_sized(PyObject *object, const char *name, const char **out, Py_ssize_t *length) {
    if (object == NULL) {
        return true;
    }
    if (PyUnicode_Check(object)) {
        *out = PyUnicode_AsUTF8AndSize(object, length);
        return *out != NULL;
    }
    if (PyBytes_Check(object)) {
        char *bytes;
        if (PyBytes_AsStringAndSize(object, &bytes, length) != 0) {
            return false;
        }
        *out = bytes;
        return true;
    }
    return wrong_type(name, "a str", object);
}

bool mpy_text(PyObject *object, const char *name, const char **out) {
    Py_ssize_t length = 0;
    const char *text = NULL;
    if (object == NULL) {
        return true;
    }
    if (!mpy_text_sized(object, name, &text, &length)) {
        return false;
    }
    *out = strlen(text) == (size_t)length ? text : "";
    return true;
}

/* ---- lists ---- */

PyObject *mpy_tuple(PyObject *sequence, const char *name) {
    if (PyUnicode_Check(sequence) || PyBytes_Check(sequence) || !PySequence_Check(sequence)) {
        wrong_type(name, "a list", sequence);
        return NULL;
    }
    return PySequence_Tuple(sequence);
}

PyObject *mpy_bytes(const void *memory, size_t length) {
    if (length < MPY_LONG_BYTES) {
        return PyBytes_FromStringAndSize(memory, (Py_ssize_t)length);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (bytes != NULL) {
        char *to = PyBytes_AsString(bytes);
        PyThreadState *thread = PyEval_SaveThread();
        memcpy(to, memory, length);
        PyEval_RestoreThread(thread);
    }
    return bytes;
}

void *mpy_calloc(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        PyErr_NoMemory();
    }
    return memory;
}

bool mpy_strings(PyObject *sequence, const char *name, struct mpy_strings *out) {
    *out = (struct mpy_strings){.owner = mpy_tuple(sequence, name)};
    if (out->owner == NULL) {
        return false;
    }
    out->count = (size_t)PyTuple_Size(out->owner);
    out->items = mpy_calloc(out->count, sizeof(*out->items));
    for (size_t i = 0; out->items != NULL && i < out->count; i++) {
        if (!mpy_text(PyTuple_GetItem(out->owner, (Py_ssize_t)i), name, &out->items[i])) {
            mpy_strings_free(out);
            return false;
        }
    }
    if (out->items == NULL) {
        mpy_strings_free(out);
        return false;
    }
    return true;
}

void mpy_strings_free(struct mpy_strings *strings) {
    free(strings->items);
    Py_XDECREF(strings->owner);
    *strings = (struct mpy_strings){0};
}

static bool fill_numbers(PyObject *tuple, const char *name, uint64_t *items) {
    Py_ssize_t count = PyTuple_Size(tuple);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!mpy_u64(PyTuple_GetItem(tuple, i), name, &items[i])) {
            return false;
        }
    }
    return true;
}

bool mpy_numbers(PyObject *sequence, const char *name, struct mpy_numbers *out) {
    *out = (struct mpy_numbers){0};
    PyObject *tuple = mpy_tuple(sequence, name);
    if (tuple == NULL) {
        return false;
    }
    out->count = (size_t)PyTuple_Size(tuple);
    out->items = mpy_calloc(out->count, sizeof(*out->items));
    bool ok = out->items != NULL && fill_numbers(tuple, name, out->items);
    Py_DECREF(tuple);
    if (!ok) {
        mpy_numbers_free(out);
    }
    return ok;
}

void mpy_numbers_free(struct mpy_numbers *numbers) {
    free(numbers->items);
    *numbers = (struct mpy_numbers){0};
}

/* rows[i] becomes a tuple; the sum of their lengths, or -1. */
static Py_ssize_t tuples_of(PyObject *outer, const char *name, PyObject **rows) {
    Py_ssize_t total = 0;
    Py_ssize_t count = PyTuple_Size(outer);
    for (Py_ssize_t i = 0; i < count; i++) {
        rows[i] = mpy_tuple(PyTuple_GetItem(outer, i), name);
        if (rows[i] == NULL) {
            return -1;
        }
        total += PyTuple_Size(rows[i]);
    }
    return total;
}

static bool fill_table(PyObject *const *rows, const char *name, struct mpy_table *out) {
    size_t at = 0;
    for (size_t i = 0; i < out->rows; i++) {
        out->begins[i] = at;
        if (!fill_numbers(rows[i], name, out->items + at)) {
            return false;
        }
        at += (size_t)PyTuple_Size(rows[i]);
    }
    out->begins[out->rows] = at;
    return true;
}

bool mpy_table(PyObject *sequence, const char *name, struct mpy_table *out) {
    *out = (struct mpy_table){0};
    PyObject *outer = mpy_tuple(sequence, name);
    if (outer == NULL) {
        return false;
    }
    size_t count = (size_t)PyTuple_Size(outer);
    PyObject **rows = mpy_calloc(count, sizeof(*rows));
    Py_ssize_t total = rows != NULL ? tuples_of(outer, name, rows) : -1;
    bool ok = false;
    if (total >= 0) {
        out->rows = count;
        out->items = mpy_calloc((size_t)total, sizeof(*out->items));
        out->begins = mpy_calloc(count + 1, sizeof(*out->begins));
        ok = out->items != NULL && out->begins != NULL && fill_table(rows, name, out);
    }
    for (size_t i = 0; rows != NULL && i < count; i++) {
        Py_XDECREF(rows[i]);
    }
    free(rows);
    Py_DECREF(outer);
    if (!ok) {
        mpy_table_free(out);
    }
    return ok;
}

void mpy_table_free(struct mpy_table *table) {
    free(table->items);
    free(table->begins);
    *table = (struct mpy_table){0};
}

/* ---- results ---- */

int32_t mpy_code(enum mc_status status) {
    switch (status) {
    case MC_BUFFER_OVERFLOW:             /* too small */
    case MC_INVALID_KEY:                 /* empty */
    case MC_UNAVAILABLE_IN_CURRENT_MODE: /* "rpc_only" moves no bytes */
        return MC_INVALID_PARAMS;
    default:
        return mc_status_to_wire(status);
    }
}

PyObject *mpy_list_of(Py_ssize_t count, long value) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = PyLong_FromLong(value);
        if (item == NULL || PyList_SetItem(list, i, item) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *mpy_list_i64(const int64_t *values, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = PyLong_FromLongLong(values[i]);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

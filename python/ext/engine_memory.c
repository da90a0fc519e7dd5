/* TransferEngine: memory, registered and lent out, and bytes in and out of it. */
#include <stdlib.h>
#include <string.h>

#include "engine_private.h"

#define FAILED (-1)

/* ---- registering ---- */

static PyObject *register_memory(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names) {
    static const char *const NAMES[] = {"buffer_addr", "capacity", "location"};
    static const struct mpy_signature SIGNATURE = {"register_memory", NAMES, 3, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, capacity = 0;
    const char *location = "*";
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_u64(v[1], NAMES[1], &capacity) || !mpy_text(v[2], NAMES[2], &location)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    if (engine == NULL) {
        return PyLong_FromLong(FAILED);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_memory_register(engine->engine, (void *)(uintptr_t)address,
                                               (size_t)capacity, location, 0);
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    return PyLong_FromLong(mpy_code(status));
}

static PyObject *unregister_memory(PyObject *object, PyObject *argument) {
    uint64_t address = 0;
    if (!mpy_u64(argument, "buffer_addr", &address)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    if (engine == NULL) {
        return PyLong_FromLong(FAILED);
    }
    PyThreadState *thread = PyEval_SaveThread();
    enum mc_status status = mc_memory_unregister(engine->engine, (void *)(uintptr_t)address);
    PyEval_RestoreThread(thread);
    mpy_transfer_leave(engine);
    return PyLong_FromLong(mpy_code(status));
}

/* All of them or, on a failure, none. */
static enum mc_status register_all(struct mc_engine *engine, const struct mpy_numbers *addresses,
                                   const struct mpy_numbers *capacities, const char *location) {
    for (size_t i = 0; i < addresses->count; i++) {
        enum mc_status status = mc_memory_register(engine, (void *)(uintptr_t)addresses->items[i],
                                                   (size_t)capacities->items[i], location, 0);
        if (status != MC_OK) {
            while (i-- > 0) {
                enum mc_status undone =
                    mc_memory_unregister(engine, (void *)(uintptr_t)addresses->items[i]);
                (void)undone; /* it was registered a moment ago */
            }
            return status;
        }
    }
    return MC_OK;
}

static PyObject *batch_register_memory(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    static const char *const NAMES[] = {"buffer_addresses", "capacities", "location"};
    static const struct mpy_signature SIGNATURE = {"batch_register_memory", NAMES, 3, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    struct mpy_numbers addresses = {0}, capacities = {0};
    const char *location = "*";
    PyObject *result = NULL;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_text(v[2], NAMES[2], &location)) {
        return NULL;
    }
    if (mpy_numbers(v[0], NAMES[0], &addresses) && mpy_numbers(v[1], NAMES[1], &capacities)) {
        enum mc_status status = MC_INVALID_PARAMS;
        bool same = addresses.count == capacities.count;
        struct mpy_engine *engine = same ? mpy_transfer_enter((struct mpy_transfer *)object) : NULL;
        if (engine != NULL) {
            PyThreadState *thread = PyEval_SaveThread();
            status = register_all(engine->engine, &addresses, &capacities, location);
            PyEval_RestoreThread(thread);
            mpy_transfer_leave(engine);
        }
        result = PyLong_FromLong(status == MC_OK ? 0 : FAILED);
    }
    mpy_numbers_free(&capacities);
    mpy_numbers_free(&addresses);
    return result;
}

static PyObject *batch_unregister_memory(PyObject *object, PyObject *list) {
    struct mpy_numbers addresses;
    if (!mpy_numbers(list, "buffer_addresses", &addresses)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter((struct mpy_transfer *)object);
    long code = engine != NULL ? 0 : FAILED;
    PyThreadState *thread = PyEval_SaveThread();
    for (size_t i = 0; engine != NULL && i < addresses.count; i++) {
        if (mc_memory_unregister(engine->engine, (void *)(uintptr_t)addresses.items[i]) != MC_OK) {
            code = FAILED;
        }
    }
    PyEval_RestoreThread(thread);
    if (engine != NULL) {
        mpy_transfer_leave(engine);
    }
    mpy_numbers_free(&addresses);
    return PyLong_FromLong(code);
}

/* ---- lent memory ---- */

static PyObject *allocate_managed_buffer(PyObject *object, PyObject *argument) {
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    uint64_t length = 0;
    void *memory = NULL;
    if (!mpy_u64(argument, "length", &length)) {
        return NULL;
    }
    struct mpy_managed *managed = calloc(1, sizeof(*managed));
    struct mpy_engine *engine = managed != NULL && length > 0 ? mpy_transfer_enter(self) : NULL;
    if (engine != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        if (mc_memory_alloc(engine->engine, (size_t)length, "*", &memory) == MC_OK) {
            managed->memory = memory;
            managed->length = (size_t)length;
            pthread_mutex_lock(&self->lock);
            managed->next = self->managed;
            self->managed = managed;
            pthread_mutex_unlock(&self->lock);
            managed = NULL;
        } else {
            memory = NULL;
        }
        PyEval_RestoreThread(thread);
        mpy_transfer_leave(engine);
    }
    free(managed);
    return PyLong_FromVoidPtr(memory);
}

static struct mpy_managed *take_managed(struct mpy_transfer *self, uint64_t address) {
    struct mpy_managed *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (struct mpy_managed **at = &self->managed; *at != NULL; at = &(*at)->next) {
        if ((uintptr_t)(*at)->memory == address) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&self->lock);
    return found;
}

static PyObject *free_managed_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names) {
    static const char *const NAMES[] = {"buffer_addr", "length"};
    static const struct mpy_signature SIGNATURE = {"free_managed_buffer", NAMES, 2, 2, false};
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, length = 0;
    long code = FAILED;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_u64(v[1], NAMES[1], &length)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter(self);
    if (engine != NULL) {
        struct mpy_managed *managed = take_managed(self, address);
        if (managed != NULL) {
            PyThreadState *thread = PyEval_SaveThread();
            code = mc_memory_free(engine->engine, managed->memory) == MC_OK ? 0 : FAILED;
            PyEval_RestoreThread(thread);
            free(managed);
        }
        mpy_transfer_leave(engine);
    }
    return PyLong_FromLong(code);
}

/* ---- bytes ---- */

static PyObject *write_bytes_to_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                       PyObject *names) {
    static const char *const NAMES[] = {"dest_address", "src_bytes", "length"};
    static const struct mpy_signature SIGNATURE = {"write_bytes_to_buffer", NAMES, 3, 3, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, length = 0;
    const char *bytes = NULL;
    Py_ssize_t size = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_text_sized(v[1], NAMES[1], &bytes, &size) || !mpy_u64(v[2], NAMES[2], &length)) {
        return NULL;
    }
    if (address == 0 || length > (uint64_t)size) {
        return PyLong_FromLong(FAILED);
    }
    PyThreadState *thread = PyEval_SaveThread();
    memcpy((void *)(uintptr_t)address, bytes, (size_t)length);
    PyEval_RestoreThread(thread);
    return PyLong_FromLong(0);
}

static PyObject *read_bytes_from_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                        PyObject *names) {
    static const char *const NAMES[] = {"source_address", "length"};
    static const struct mpy_signature SIGNATURE = {"read_bytes_from_buffer", NAMES, 2, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, length = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_u64(v[1], NAMES[1], &length)) {
        return NULL;
    }
    if (address == 0 || length > (uint64_t)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError, "no memory there");
        return NULL;
    }
    return mpy_bytes((const void *)(uintptr_t)address, (size_t)length);
}

PyMethodDef mpy_transfer_memory_methods[] = {
    {"register_memory", MPY_METHOD(register_memory), MPY_FAST,
     "register_memory($self, buffer_addr, capacity, location='*')\n--\n\nPeers may read and write "
     "the memory from now on. 0 or an error."},
    {"unregister_memory", unregister_memory, METH_O,
     "unregister_memory($self, buffer_addr, /)\n--\n\nWaits for peers that are using it. 0 or an "
     "error."},
    {"batch_register_memory", MPY_METHOD(batch_register_memory), MPY_FAST,
     "batch_register_memory($self, buffer_addresses, capacities, location='*')\n--\n\nAll of them, "
     "or none and -1."},
    {"batch_unregister_memory", batch_unregister_memory, METH_O,
     "batch_unregister_memory($self, buffer_addresses, /)\n--\n\n0, or -1 when one was not "
     "registered."},
    {"allocate_managed_buffer", allocate_managed_buffer, METH_O,
     "allocate_managed_buffer($self, length, /)\n--\n\nThe address of registered memory, or 0."},
    {"free_managed_buffer", MPY_METHOD(free_managed_buffer), MPY_FAST,
     "free_managed_buffer($self, buffer_addr, length)\n--\n\n0, or -1 for what is not managed."},
    {"write_bytes_to_buffer", MPY_METHOD(write_bytes_to_buffer), MPY_FAST,
     "write_bytes_to_buffer($self, dest_address, src_bytes, length)\n--\n\nCopies into memory of "
     "this process."},
    {"read_bytes_from_buffer", MPY_METHOD(read_bytes_from_buffer), MPY_FAST,
     "read_bytes_from_buffer($self, source_address, length)\n--\n\nCopies out of memory of this "
     "process."},
    {NULL, NULL, 0, NULL}};

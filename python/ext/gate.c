/*
 * Gates of native objects, and what modules share: see ext.h.
 *
 * The generation counts the forks that this process comes from. It is the one piece of state that
 * is not passed in: fork() has no argument either.
 */
#include "ext.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void after_fork(void) {
    atomic_fetch_add_explicit(&fork_generation, 1, memory_order_relaxed);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, after_fork); /* only fails for want of memory */
}

void mpy_gate_init(struct mpy_gate *gate) {
    pthread_once(&fork_once, watch_forks);
    *gate = (struct mpy_gate){.generation =
                                  atomic_load_explicit(&fork_generation, memory_order_relaxed)};
    pthread_mutex_init(&gate->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&gate->empty, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool mpy_gate_forked(const struct mpy_gate *gate) {
    return gate->generation != atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

bool mpy_gate_enter(struct mpy_gate *gate) {
    if (mpy_gate_forked(gate)) { /* the lock may be held by a thread that is not here */
        return false;
    }
    pthread_mutex_lock(&gate->lock);
    bool open = !gate->closed;
    gate->users += open;
    pthread_mutex_unlock(&gate->lock);
    return open;
}

void mpy_gate_leave(struct mpy_gate *gate) {
    if (mpy_gate_forked(gate)) {
        return;
    }
    pthread_mutex_lock(&gate->lock);
    if (--gate->users == 0) {
        pthread_cond_broadcast(&gate->empty);
    }
    pthread_mutex_unlock(&gate->lock);
}

bool mpy_gate_close(struct mpy_gate *gate, unsigned seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&gate->lock);
    gate->closed = true;
    while (gate->users > 0 && pthread_cond_timedwait(&gate->empty, &gate->lock, &until) == 0) {
    }
    bool empty = gate->users == 0;
    pthread_mutex_unlock(&gate->lock);
    return empty;
}

void mpy_gate_destroy(struct mpy_gate *gate) {
    pthread_cond_destroy(&gate->empty);
    pthread_mutex_destroy(&gate->lock);
}

/* ---- modules and types ---- */

bool mpy_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    PyObject *made = PyType_FromSpec(spec);
    if (made == NULL) {
        return false;
    }
    const char *name = spec->name;
    for (const char *c = spec->name; *c != '\0'; c++) {
        name = *c == '.' ? c + 1 : name;
    }
    if (PyModule_AddObjectRef(module, name, made) != 0) {
        Py_DECREF(made);
        return false;
    }
    if (type != NULL) {
        *type = (PyTypeObject *)made; /* the caller's reference */
    } else {
        Py_DECREF(made);
    }
    return true;
}

bool mpy_at_exit(PyObject *module, PyMethodDef *method) {
    PyObject *exit_module = PyImport_ImportModule("atexit");
    PyObject *function = exit_module != NULL ? PyCFunction_New(method, module) : NULL;
    PyObject *done =
        function != NULL ? PyObject_CallMethod(exit_module, "register", "O", function) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(exit_module);
    Py_XDECREF(done);
    return done != NULL;
}

PyObject *mpy_new(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return alloc(type, 0);
}

void mpy_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

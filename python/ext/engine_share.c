/* Engines that two modules share: see engine.h. */
#include "engine.h"

#include <stdlib.h>

struct mpy_engine *mpy_engine_create(struct mc_engine *engine) {
    struct mpy_engine *shared = mpy_calloc(1, sizeof(*shared));
    if (shared != NULL) {
        mpy_gate_init(&shared->gate);
        shared->engine = engine;
        shared->refs = 1;
    }
    return shared;
}

void mpy_engine_ref(struct mpy_engine *engine) {
    engine->refs++;
}

void mpy_engine_unref(struct mpy_engine *engine) {
    if (--engine->refs > 0 || mpy_gate_forked(&engine->gate)) {
        return;
    }
    PyThreadState *thread = PyEval_SaveThread();
    mc_engine_destroy(engine->engine);
    mpy_gate_destroy(&engine->gate);
    free(engine);
    PyEval_RestoreThread(thread);
}

static void capsule_end(PyObject *capsule) {
    struct mpy_engine *engine = PyCapsule_GetPointer(capsule, MPY_ENGINE_CAPSULE);
    if (engine != NULL) {
        mpy_engine_unref(engine);
    }
}

PyObject *mpy_engine_capsule(struct mpy_engine *engine) {
    PyObject *capsule = PyCapsule_New(engine, MPY_ENGINE_CAPSULE, capsule_end);
    if (capsule != NULL) {
        mpy_engine_ref(engine);
    }
    return capsule;
}

struct mpy_engine *mpy_engine_from(PyObject *object) {
    PyObject *capsule = PyObject_CallMethod(object, MPY_ENGINE_METHOD, NULL);
    struct mpy_engine *engine = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, MPY_ENGINE_CAPSULE)) {
        engine = PyCapsule_GetPointer(capsule, MPY_ENGINE_CAPSULE);
        mpy_engine_ref(engine);
    } else {
        PyErr_Clear();
        PyErr_Format(PyExc_RuntimeError, /* as upstream: a TypeError means "no such argument" */
                     "engine must be what TransferEngine.get_engine() of an initialized engine "
                     "returns, or None, not %R",
                     (PyObject *)Py_TYPE(object));
    }
    Py_XDECREF(capsule);
    return engine;
}

/*
 * The module mooncake.engine: types, constants, and what Python adds (mooncake._engine_methods).
 */
#include <stdlib.h>

#include "engine_private.h"

static PyObject *close_all(PyObject *module, PyObject *unused) {
    struct mpy_engine_state **state = PyModule_GetState(module);
    mpy_transfer_close_all(*state);
    Py_RETURN_NONE;
}

static bool take_in_python(PyObject *module) {
    PyObject *methods = PyImport_ImportModule("mooncake._engine_methods");
    PyObject *done = methods != NULL ? PyObject_CallMethod(methods, "_install", "O", module) : NULL;
    Py_XDECREF(methods);
    Py_XDECREF(done);
    return done != NULL;
}

static int module_exec(PyObject *module) {
    static PyMethodDef at_exit = {"_close_all", close_all, METH_NOARGS, NULL};
    static const char *const SUPPORT[] = {"SUPPORT_EFA",  "SUPPORT_HIP",          "SUPPORT_MNNVL",
                                          "SUPPORT_MUSA", "SUPPORT_INTRA_NVLINK", "SUPPORT_CUDA"};
    struct mpy_engine_state **place = PyModule_GetState(module);
    struct mpy_engine_state *state = *place = mpy_calloc(1, sizeof(*state));
    if (state == NULL) {
        return -1;
    }
    for (size_t i = 0; i < sizeof(SUPPORT) / sizeof(SUPPORT[0]); i++) {
        if (PyModule_AddObjectRef(module, SUPPORT[i], Py_False) != 0) {
            return -1;
        }
    }
    return mpy_transfer_add_types(module, state) && take_in_python(module) &&
                   mpy_at_exit(module, &at_exit)
               ? 0
               : -1;
}

static struct PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)module_exec},
                                                 {0, NULL}};
static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "mooncake.engine",
    .m_doc = "The Mooncake Transfer Engine: one-sided reads and writes between processes.",
    .m_size = sizeof(struct mpy_engine_state *),
    .m_slots = module_slots};

PyMODINIT_FUNC PyInit_engine(void);
PyMODINIT_FUNC PyInit_engine(void) {
    return PyModuleDef_Init(&module_definition);
}

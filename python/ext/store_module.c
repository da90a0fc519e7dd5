/*
 * The module mooncake.store: types, functions, and the end of the interpreter.
 *
 * What is not on the path of bytes is Python: mooncake._types (enums and data classes) and
 * mooncake._store_methods (tensors, parallel forms, older spellings), which this module takes in
 * when it is imported.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store.h"

/* ---- the end ---- */

/* Closes what is open, so that segments are unmounted and no thread outlives the interpreter. */
static PyObject *close_all(PyObject *module, PyObject *unused) {
    struct mpy_state **state = PyModule_GetState(module);
    mpy_store_close_all(*state);
    Py_RETURN_NONE;
}

/* ---- NUMA ---- */

#define NODE_MAX 1024

/* The CPUs of "0-3,8" that a file of sysfs lists. */
static bool read_cpus(const char *path, cpu_set_t *cpus) {
    char text[4096];
    FILE *file = fopen(path, "re");
    bool any = false;
    if (file == NULL) {
        return false;
    }
    bool read = fgets(text, sizeof(text), file) != NULL;
    fclose(file);
    CPU_ZERO(cpus);
    char *rest = NULL;
    for (char *part = read ? strtok_r(text, ",\n", &rest) : NULL; part != NULL;
         part = strtok_r(NULL, ",\n", &rest)) {
        unsigned first = 0, last = 0;
        int n = sscanf(part, "%u-%u", &first, &last);
        last = n == 2 ? last : first;
        for (unsigned c = first; n >= 1 && c <= last && c < CPU_SETSIZE; c++) {
            CPU_SET(c, cpus);
            any = true;
        }
    }
    return any;
}

static PyObject *bind_to_numa_node(PyObject *module, PyObject *argument) {
    int64_t node = 0;
    char path[96];
    cpu_set_t cpus;
    if (!mpy_i64(argument, "node", &node)) {
        return NULL;
    }
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%lld/cpulist", (long long)node);
    if (node < 0 || node >= NODE_MAX || !read_cpus(path, &cpus)) {
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "mooncake: no NUMA node %lld",
                             (long long)node) != 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    enum { PREFERRED = 1, BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[NODE_MAX / BITS] = {0};
    mask[(size_t)node / BITS] = 1ul << ((size_t)node % BITS);
    if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0 ||
        syscall(SYS_set_mempolicy, PREFERRED, mask, (unsigned long)NODE_MAX + 1) != 0) {
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "mooncake: not bound to NUMA node %lld: %s",
                             (long long)node, strerror(errno)) != 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* ---- memory for torch's pluggable allocators ---- */

#define HUGE_PAGE (2ul << 20)

static void *host_alloc(size_t size, int device, void *stream) {
    size_t rounded = (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (size == 0 || rounded < size || memory == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(memory, rounded, MADV_HUGEPAGE); /* advice */
    return memory;
}

static void host_free(void *memory, size_t size, int device, void *stream) {
    if (memory != NULL) {
        munmap(memory, (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
    }
}

static PyObject *get_alloc_func_addr(PyObject *module, PyObject *unused) {
    return PyLong_FromVoidPtr((void *)(uintptr_t)host_alloc);
}

static PyObject *get_free_func_addr(PyObject *module, PyObject *unused) {
    return PyLong_FromVoidPtr((void *)(uintptr_t)host_free);
}

/* ---- raw memory, for the Python half ---- */

/* A writable memoryview of an address; the caller keeps the memory. */
PyAPI_FUNC(PyObject *) PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags);

static PyObject *view_of(PyObject *module, PyObject *const *args, Py_ssize_t count,
                         PyObject *names) {
    static const char *const NAMES[] = {"address", "size"};
    static const struct mpy_signature SIGNATURE = {"_view_of", NAMES, 2, 2, false};
    PyObject *v[MPY_MAX_ARGS];
    uint64_t address = 0, size = 0;
    if (!mpy_args(&SIGNATURE, args, count, names, v) || !mpy_u64(v[0], NAMES[0], &address) ||
        !mpy_u64(v[1], NAMES[1], &size)) {
        return NULL;
    }
    if (address == 0 || size > (uint64_t)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError, "no memory there");
        return NULL;
    }
    enum { WRITABLE = 0x200 };
    return PyMemoryView_FromMemory((char *)(uintptr_t)address, (Py_ssize_t)size, WRITABLE);
}

static PyObject *status_name(PyObject *module, PyObject *argument) {
    int64_t code = 0;
    return mpy_i64(argument, "code", &code) ? PyUnicode_FromString(mc_status_name((int)code))
                                            : NULL;
}

static PyObject *status_text(PyObject *module, PyObject *argument) {
    int64_t code = 0;
    return mpy_i64(argument, "code", &code) ? PyUnicode_FromString(mc_status_text((int)code))
                                            : NULL;
}

/* ---- the module ---- */

static PyMethodDef functions[] = {
    {"bind_to_numa_node", bind_to_numa_node, METH_O,
     "bind_to_numa_node($module, node, /)\n--\n\nThis thread runs on the CPUs of a NUMA node and "
     "takes memory there. Warns when that is not possible."},
    {"get_alloc_func_addr", get_alloc_func_addr, METH_NOARGS,
     "get_alloc_func_addr($module)\n--\n\nAddress of `void *f(size_t size, int device, void "
     "*stream)`."},
    {"get_free_func_addr", get_free_func_addr, METH_NOARGS,
     "get_free_func_addr($module)\n--\n\nAddress of `void f(void *memory, size_t size, int device, "
     "void *stream)`."},
    {"_view_of", MPY_METHOD(view_of), MPY_FAST,
     "_view_of($module, address, size)\n--\n\nA memoryview of memory that the caller keeps."},
    {"_status_name", status_name, METH_O, "_status_name($module, code, /)\n--\n\n"},
    {"_status_text", status_text, METH_O, "_status_text($module, code, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};

static bool take_in_python(PyObject *module, struct mpy_state *state) {
    state->types = PyImport_ImportModule("mooncake._types");
    PyObject *methods =
        state->types != NULL ? PyImport_ImportModule("mooncake._store_methods") : NULL;
    PyObject *done = methods != NULL ? PyObject_CallMethod(methods, "_install", "O", module) : NULL;
    Py_XDECREF(methods);
    Py_XDECREF(done);
    return done != NULL;
}

static int module_exec(PyObject *module) {
    static PyMethodDef at_exit = {"_close_all", close_all, METH_NOARGS, NULL};
    struct mpy_state **place = PyModule_GetState(module);
    struct mpy_state *state = *place = mpy_calloc(1, sizeof(*state));
    if (state == NULL || !mpy_config_add_type(module, &state->config_type) ||
        !mpy_buffer_add_type(module, &state->buffer_type) || !mpy_allocator_add_type(module) ||
        !mpy_lent_add_type(module) || !mpy_store_add_type(module, state) ||
        !take_in_python(module, state) || !mpy_at_exit(module, &at_exit)) {
        return -1;
    }
    return 0;
}

static struct PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)module_exec},
                                                 {0, NULL}};
static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "mooncake.store",
    .m_doc = "The Mooncake store: a distributed object cache on the memory of many nodes.",
    .m_size = sizeof(struct mpy_state *),
    .m_methods = functions,
    .m_slots = module_slots};

PyMODINIT_FUNC PyInit_store(void);
PyMODINIT_FUNC PyInit_store(void) {
    return PyModuleDef_Init(&module_definition);
}

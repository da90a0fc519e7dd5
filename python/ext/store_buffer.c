/*
 * Memory for values: the pool that reads go into, BufferHandle (one value, with the buffer
 * protocol) and MooncakeHostMemAllocator (shared memory that a caller owns).
 *
 * A BufferHandle is a private copy that nobody else writes, as upstream's: what Python code holds
 * must stay true after the lease has ended and the object has gone. It costs the one copy that a
 * transfer is; its memory is recycled, because fresh pages cost more than that.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store.h"

/* ---- the pool ---- */

/* Blocks are powers of two from 4 KiB; larger than the last class are not kept. */
#define CLASS_MIN_SHIFT 12
#define CLASSES         20
#define MAPPED_FROM     (1u << 20) /* from here on, pages of their own, huge where there are some */
#define HUGE            (2u << 20)

struct block { /* an idle one, in its own first bytes */
    struct block *next;
};

struct mpy_pool {
    pthread_mutex_t lock;
    struct block *idle[CLASSES];
    uint64_t idle_bytes;
    uint64_t keep_bytes; /* at most this many idle */
    unsigned refs;       /* guarded by the GIL */
};

struct mpy_pool *mpy_pool_create(uint64_t keep_bytes) {
    struct mpy_pool *pool = mpy_calloc(1, sizeof(*pool));
    if (pool != NULL) {
        pthread_mutex_init(&pool->lock, NULL);
        pool->keep_bytes = keep_bytes;
        pool->refs = 1;
    }
    return pool;
}

static unsigned class_of(size_t length) {
    unsigned class = 0;
    while (class < CLASSES && ((size_t)1 << (class + CLASS_MIN_SHIFT)) < length) {
        class ++;
    }
    return class;
}

static size_t class_bytes(unsigned class, size_t length) {
    return class < CLASSES ? (size_t)1 << (class + CLASS_MIN_SHIFT) : length;
}

static void *fresh(size_t bytes) {
    if (bytes < MAPPED_FROM) {
        return malloc(bytes);
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    if (bytes >= HUGE) {
        (void)madvise(memory, bytes, MADV_HUGEPAGE); /* advice */
    }
    return memory;
}

static void release(void *memory, size_t bytes) {
    if (bytes < MAPPED_FROM) {
        free(memory);
    } else {
        munmap(memory, bytes);
    }
}

void mpy_pool_ref(struct mpy_pool *pool) {
    pool->refs++;
}

void mpy_pool_unref(struct mpy_pool *pool) {
    if (--pool->refs > 0) {
        return;
    }
    PyThreadState *thread = PyEval_SaveThread(); /* pages by the gigabyte take long to give back */
    for (unsigned class = 0; class < CLASSES; class ++) {
        while (pool->idle[class] != NULL) {
            struct block *block = pool->idle[class];
            pool->idle[class] = block->next;
            release(block, class_bytes(class, 0));
        }
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    PyEval_RestoreThread(thread);
}

void *mpy_pool_take(struct mpy_pool *pool, size_t length) {
    unsigned class = class_of(length);
    struct block *block = NULL;
    if (class < CLASSES) {
        pthread_mutex_lock(&pool->lock);
        block = pool->idle[class];
        if (block != NULL) {
            pool->idle[class] = block->next;
            pool->idle_bytes -= class_bytes(class, length);
        }
        pthread_mutex_unlock(&pool->lock);
    }
    return block != NULL ? block : fresh(class_bytes(class, length));
}

/* False when it is not for the pool. */
static bool keep(struct mpy_pool *pool, void *memory, size_t length) {
    unsigned class = class_of(length);
    size_t bytes = class_bytes(class, length);
    bool kept = false;
    if (class < CLASSES) {
        pthread_mutex_lock(&pool->lock);
        kept = pool->idle_bytes + bytes <= pool->keep_bytes;
        if (kept) {
            struct block *block = memory;
            block->next = pool->idle[class];
            pool->idle[class] = block;
            pool->idle_bytes += bytes;
        }
        pthread_mutex_unlock(&pool->lock);
    }
    return kept;
}

static void release_value(void *memory, size_t length) {
    release(memory, class_bytes(class_of(length), length));
}

void mpy_pool_give(struct mpy_pool *pool, void *memory, size_t length) {
    if (!keep(pool, memory, length)) {
        release_value(memory, length);
    }
}

/* ---- BufferHandle ---- */

struct buffer {
    PyObject ob_base;
    struct mpy_pool *pool;
    void *memory;
    Py_ssize_t length;
};

PyObject *mpy_buffer_create(PyTypeObject *type, struct mpy_pool *pool, void *memory,
                            size_t length) {
    struct buffer *self = (struct buffer *)mpy_new(type);
    if (self == NULL) {
        mpy_pool_give(pool, memory, length);
        return NULL;
    }
    mpy_pool_ref(pool);
    self->pool = pool;
    self->memory = memory;
    self->length = (Py_ssize_t)length;
    return (PyObject *)self;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyErr_SetString(PyExc_TypeError, "mooncake.store.BufferHandle: No constructor defined!");
    return NULL;
}

static void buffer_dealloc(PyObject *object) {
    struct buffer *self = (struct buffer *)object;
    if (self->memory != NULL) {
        if (!keep(self->pool, self->memory, (size_t)self->length)) {
            PyThreadState *thread = PyEval_SaveThread();
            release_value(self->memory, (size_t)self->length);
            PyEval_RestoreThread(thread);
        }
        mpy_pool_unref(self->pool);
    }
    mpy_free(object);
}

static PyObject *buffer_ptr(PyObject *self, PyObject *unused) {
    return PyLong_FromVoidPtr(((struct buffer *)self)->memory);
}

static PyObject *buffer_size(PyObject *self, PyObject *unused) {
    return PyLong_FromSsize_t(((struct buffer *)self)->length);
}

static Py_ssize_t buffer_length(PyObject *self) {
    return ((struct buffer *)self)->length;
}

/* One dimension of signed bytes, as upstream's. */
static int buffer_get(PyObject *object, Py_buffer *view, int flags) {
    static char format[] = "b";
    struct buffer *self = (struct buffer *)object;
    *view = (Py_buffer){.buf = self->memory,
                        .obj = object,
                        .len = self->length,
                        .itemsize = 1,
                        .ndim = 1,
                        .format = (flags & PyBUF_FORMAT) != 0 ? format : NULL,
                        .shape = (flags & PyBUF_ND) != 0 ? &self->length : NULL};
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) {
        view->strides = &view->itemsize;
    }
    Py_INCREF(object);
    return 0;
}

bool mpy_buffer_add_type(PyObject *module, PyTypeObject **type) {
    static PyMethodDef methods[] = {
        {"ptr", buffer_ptr, METH_NOARGS, "ptr($self)\n--\n\nThe address of the first byte."},
        {"size", buffer_size, METH_NOARGS, "size($self)\n--\n\nThe number of bytes."},
        {NULL, NULL, 0, NULL}};
    static PyType_Slot slots[] = {{Py_tp_new, buffer_new},
                                  {Py_tp_dealloc, buffer_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_sq_length, buffer_length},
                                  {Py_bf_getbuffer, buffer_get},
                                  {Py_tp_doc,
                                   (char *)"The bytes of one object: memoryview(), bytes(), "
                                           "numpy.frombuffer() and torch.frombuffer() take it."},
                                  {0, NULL}};
    static PyType_Spec spec = {.name = "mooncake.store.BufferHandle",
                               .basicsize = sizeof(struct buffer),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    return mpy_add_type(module, &spec, type);
}

/* ---- memory of a lease ---- */

/* Knows how many views of it there are, so that a pool lends no memory that somebody still sees. */
struct lent {
    PyObject ob_base;
    void *memory;
    Py_ssize_t length;
    Py_ssize_t exports;
    PyObject *owner; /* keeps the memory */
};

static PyObject *lent_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    unsigned long long address = 0;
    Py_ssize_t length = 0;
    PyObject *owner = NULL;
    if (!PyArg_ParseTuple(args, "KnO:_Lent", &address, &length, &owner)) {
        return NULL;
    }
    if (address == 0 || length <= 0) {
        PyErr_SetString(PyExc_ValueError, "no memory there");
        return NULL;
    }
    struct lent *self = (struct lent *)mpy_new(type);
    if (self != NULL) {
        self->memory = (void *)(uintptr_t)address;
        self->length = length;
        self->owner = owner;
        Py_INCREF(owner);
    }
    return (PyObject *)self;
}

static void lent_dealloc(PyObject *object) {
    Py_XDECREF(((struct lent *)object)->owner);
    mpy_free(object);
}

static int lent_get(PyObject *object, Py_buffer *view, int flags) {
    static char format[] = "B";
    struct lent *self = (struct lent *)object;
    *view = (Py_buffer){.buf = self->memory,
                        .obj = object,
                        .len = self->length,
                        .itemsize = 1,
                        .ndim = 1,
                        .format = (flags & PyBUF_FORMAT) != 0 ? format : NULL,
                        .shape = (flags & PyBUF_ND) != 0 ? &self->length : NULL};
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) {
        view->strides = &view->itemsize;
    }
    self->exports++;
    Py_INCREF(object);
    return 0;
}

static void lent_release(PyObject *object, Py_buffer *view) {
    ((struct lent *)object)->exports--;
}

bool mpy_lent_add_type(PyObject *module) {
    static PyMemberDef members[] = {
        {"exports", T_PYSSIZET, offsetof(struct lent, exports), READONLY, "views of it"},
        {NULL, 0, 0, 0, NULL}};
    static PyType_Slot slots[] = {
        {Py_tp_new, lent_new},       {Py_tp_dealloc, lent_dealloc},       {Py_tp_members, members},
        {Py_bf_getbuffer, lent_get}, {Py_bf_releasebuffer, lent_release}, {0, NULL}};
    static PyType_Spec spec = {.name = "mooncake.store._Lent",
                               .basicsize = sizeof(struct lent),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    return mpy_add_type(module, &spec, NULL);
}

/* ---- MooncakeHostMemAllocator ---- */

struct allocation {
    struct allocation *next;
    void *memory;
};

struct allocator {
    PyObject ob_base;
    struct allocation *allocations;
};

static void allocation_free(struct allocation *a) {
    PyThreadState *thread = PyEval_SaveThread();
    mc_shared_free(a->memory);
    PyEval_RestoreThread(thread);
    free(a);
}

static void allocator_dealloc(PyObject *object) {
    struct allocator *self = (struct allocator *)object;
    while (self->allocations != NULL) {
        struct allocation *a = self->allocations;
        self->allocations = a->next;
        allocation_free(a);
    }
    mpy_free(object);
}

static PyObject *allocator_alloc(PyObject *object, PyObject *size) {
    struct allocator *self = (struct allocator *)object;
    uint64_t length = 0;
    if (!mpy_u64(size, "size", &length)) {
        return NULL;
    }
    struct allocation *a = mpy_calloc(1, sizeof(*a));
    if (a == NULL) {
        return NULL;
    }
    if (length > 0 && length <= (uint64_t)PTRDIFF_MAX) {
        PyThreadState *thread = PyEval_SaveThread();
        a->memory = mc_shared_alloc((size_t)length);
        PyEval_RestoreThread(thread);
    }
    if (a->memory == NULL) {
        PyErr_Format(PyExc_RuntimeError, "Failed to map shared memory of %llu bytes",
                     (unsigned long long)length);
        free(a);
        return NULL;
    }
    a->next = self->allocations;
    self->allocations = a;
    return PyLong_FromVoidPtr(a->memory);
}

static PyObject *allocator_free(PyObject *object, PyObject *address) {
    struct allocator *self = (struct allocator *)object;
    uint64_t wanted = 0;
    if (!mpy_u64(address, "ptr", &wanted)) {
        return NULL;
    }
    for (struct allocation **at = &self->allocations; *at != NULL; at = &(*at)->next) {
        struct allocation *a = *at;
        if ((uintptr_t)a->memory == wanted) {
            *at = a->next;
            allocation_free(a);
            return PyLong_FromLong(0);
        }
    }
    return PyLong_FromLong(-1);
}

bool mpy_allocator_add_type(PyObject *module) {
    static PyMethodDef methods[] = {
        {"alloc", allocator_alloc, METH_O,
         "alloc($self, size, /)\n--\n\nThe address of `size` bytes of shared memory, zeroed. They "
         "stay until free() or until the allocator goes."},
        {"free", allocator_free, METH_O,
         "free($self, ptr, /)\n--\n\n0, or -1 for an address that "
         "is not of this allocator."},
        {NULL, NULL, 0, NULL}};
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, allocator_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_doc,
         (char *)"MooncakeHostMemAllocator()\n--\n\nShared host memory for a caller's buffers."},
        {0, NULL}};
    static PyType_Spec spec = {.name = "mooncake.store.MooncakeHostMemAllocator",
                               .basicsize = sizeof(struct allocator),
                               .flags = Py_TPFLAGS_DEFAULT,
                               .slots = slots};
    return mpy_add_type(module, &spec, NULL);
}

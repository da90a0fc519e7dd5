/*
 * A Transfer Engine that the modules mooncake.engine and mooncake.store share: counted references,
 * handed from one to the other in a capsule, so neither needs the other's types.
 */
#ifndef MC_PYTHON_ENGINE_H
#define MC_PYTHON_ENGINE_H

#include "ext.h"
#include "mooncake/transfer.h"

#define MPY_ENGINE_CAPSULE "mooncake.engine.TransferEngine"
/* The method of InnerTransferEngine that makes the capsule. */
#define MPY_ENGINE_METHOD "_engine_capsule"

struct mpy_engine {
    struct mpy_gate gate;
    struct mc_engine *engine;
    unsigned refs; /* guarded by the GIL */
};

struct mpy_engine *mpy_engine_create(struct mc_engine *engine);
void mpy_engine_ref(struct mpy_engine *engine);
/* The last one ends the engine (without the GIL). */
void mpy_engine_unref(struct mpy_engine *engine);
PyObject *mpy_engine_capsule(struct mpy_engine *engine);
/* The engine of a capsule or of an object with MPY_ENGINE_METHOD, as a new reference; NULL with a
 * RuntimeError. */
struct mpy_engine *mpy_engine_from(PyObject *object);

#endif

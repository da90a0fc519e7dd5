/*
 * Loading ZeroMQ. See io/zmq.h. Once loaded it stays: its threads may outlive a context for a
 * moment.
 */
#include "io/zmq.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"

#define LIBRARY "libzmq.so.5"

static struct mc_zmq functions;
static bool loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define SYMBOL(name)                                                                               \
    { "zmq_" #name, offsetof(struct mc_zmq, name) }
static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    SYMBOL(ctx_new),  SYMBOL(ctx_set),    SYMBOL(ctx_term), SYMBOL(socket),
    SYMBOL(close),    SYMBOL(setsockopt), SYMBOL(bind),     SYMBOL(getsockopt),
    SYMBOL(connect),  SYMBOL(send),       SYMBOL(msg_init), SYMBOL(msg_init_data),
    SYMBOL(msg_send), SYMBOL(msg_recv),   SYMBOL(msg_data), SYMBOL(msg_close),
    SYMBOL(msg_size), SYMBOL(msg_more),   SYMBOL(poll),     SYMBOL(strerror),
};
_Static_assert(MC_ARRAY_LEN(symbols) == sizeof(struct mc_zmq) / sizeof(void *), "each is loaded");

static void load(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        mc_error("zmq: " LIBRARY " does not load reason=\"%s\"", dlerror());
        return;
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(symbols); i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (symbol == NULL) {
            mc_error("zmq: " LIBRARY " has no function %s", symbols[i].name);
            return;
        }
        memcpy((char *)&functions + symbols[i].offset, &symbol, sizeof(symbol));
    }
    loaded = true;
}

const struct mc_zmq *mc_zmq_load(void) {
    pthread_once(&once, load);
    return loaded ? &functions : NULL;
}

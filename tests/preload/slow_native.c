/*
 * Native calls that take long: put into LD_PRELOAD, it stands before every mc_ function that the
 * Python modules import (slow_native_names.h, made from the modules). A call by a thread that has
 * armed it waits, half before the function and half after it, and is written down with whether the
 * thread held the GIL then. Calls of other threads, and what the library asks itself, pass at once.
 *
 * A function is passed on whatever its arguments and its result are, so this needs GCC.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES 256 /* of arguments, at most */

static _Thread_local unsigned delay_us; /* 0: not armed */
static _Thread_local unsigned inside;   /* native calls that this thread is in */
static _Thread_local char seen[4096];   /* a line a call: name, 1 when it was without the GIL */
static _Thread_local size_t seen_length;

static bool holds_the_gil(void) {
    static int (*check)(void);
    if (check == NULL) {
        *(void **)&check = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    }
    return check == NULL || check() != 0;
}

void slow_native_sleep(unsigned us) {
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0) {
    }
}

/* From now on calls of this thread wait. */
void slow_native_arm(unsigned us) {
    delay_us = us;
    seen[0] = '\0';
    seen_length = 0;
}

/* What this thread called since. Valid until it arms again. */
const char *slow_native_disarm(void) {
    delay_us = 0;
    return seen;
}

static void pass(const char *name, bool quick) {
    if (delay_us == 0) {
        return;
    }
    int n =
        snprintf(seen + seen_length, sizeof(seen) - seen_length, "%s %d\n", name, !holds_the_gil());
    if (n < 0 || (size_t)n >= sizeof(seen) - seen_length) {
        abort(); /* a call of the test makes hundreds of native ones */
    }
    seen_length += (size_t)n;
    if (!quick) {
        slow_native_sleep(delay_us / 2);
    }
}

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL) { /* a module loaded later, by itself */
        void *library = dlopen("libmooncake.so", RTLD_NOW | RTLD_NOLOAD);
        function = library != NULL ? dlsym(library, name) : NULL;
    }
    if (function == NULL) {
        fprintf(stderr, "slow_native: no %s\n", name);
        abort();
    }
    return function;
}

/* These may be called with the GIL, so they are written down and do not wait: they compute, read a
 * member, or (mc_store_reaches) look through the few pieces of a dummy's memory. */
static const char QUICK[] =
    " mc_status_name mc_status_text mc_status_to_wire mc_deadline_in_ms mc_store_options_init"
    " mc_engine_options_init mc_engine_name mc_engine_rpc_port mc_store_hostname mc_store_health"
    " mc_store_reaches ";

const char *slow_native_quick(void) {
    return QUICK;
}

static bool is_quick(const char *name) {
    const char *at = strstr(QUICK, name);
    return at != NULL && at[-1] == ' ' && at[strlen(name)] == ' ';
}

#define NATIVE(name)                                                                               \
    void name(void);                                                                               \
    void name(void) {                                                                              \
        void *arguments = __builtin_apply_args();                                                  \
        static void (*real)(void);                                                                 \
        if (real == NULL) {                                                                        \
            *(void **)&real = next(#name);                                                         \
        }                                                                                          \
        bool quick = is_quick(#name);                                                              \
        if (inside++ == 0) {                                                                       \
            pass(#name, quick);                                                                    \
        }                                                                                          \
        void *result = __builtin_apply(real, arguments, STACK_BYTES);                              \
        if (--inside == 0) {                                                                       \
            pass(#name, quick);                                                                    \
        }                                                                                          \
        __builtin_return(result);                                                                  \
    }
#include "slow_native_names.h"

/*
 * Logging: one line an event, "LEVEL time file:line message key=value ...", to standard error.
 *
 * The function that decides an error logs it, once; callers pass it on. MC_LOG_LEVEL (TRACE, DEBUG,
 * INFO, WARNING, ERROR, OFF; default INFO) is read at first use. Thread safe; one write(2) a line,
 * so lines never mix.
 */
#ifndef MC_BASE_LOG_H
#define MC_BASE_LOG_H

#include "base/base.h"

enum mc_log_level {
    MC_LOG_TRACE,
    MC_LOG_DEBUG,
    MC_LOG_INFO,
    MC_LOG_WARN,
    MC_LOG_ERROR,
    MC_LOG_OFF
};

extern enum mc_log_level mc_log_threshold; /* read it only through the macros */
MC_MUST_USE enum mc_status mc_log_set_level(const char *name);
void mc_log_write(enum mc_log_level level, const char *file, int line, const char *format, ...)
    MC_PRINTF(4, 5);

#define MC_LOG_AT(level, ...)                                                                      \
    do {                                                                                           \
        if ((level) >= mc_log_threshold) {                                                         \
            mc_log_write((level), __FILE__, __LINE__, __VA_ARGS__);                                \
        }                                                                                          \
    } while (0)
#define mc_trace(...) MC_LOG_AT(MC_LOG_TRACE, __VA_ARGS__)
#define mc_debug(...) MC_LOG_AT(MC_LOG_DEBUG, __VA_ARGS__)
#define mc_info(...)  MC_LOG_AT(MC_LOG_INFO, __VA_ARGS__)
#define mc_warn(...)  MC_LOG_AT(MC_LOG_WARN, __VA_ARGS__)
#define mc_error(...) MC_LOG_AT(MC_LOG_ERROR, __VA_ARGS__)

/* At most one line a second from this place; the next line that passes says how many were held
 * back. */
struct mc_log_limit {
    _Atomic uint64_t next_ns;
    _Atomic uint64_t held_back;
};
bool mc_log_limit_pass(struct mc_log_limit *limit, uint64_t *held_back);
#define mc_warn_limited(format, ...)                                                               \
    do {                                                                                           \
        static struct mc_log_limit mc_limit_;                                                      \
        uint64_t mc_held_ = 0;                                                                     \
        if (mc_log_limit_pass(&mc_limit_, &mc_held_)) {                                            \
            mc_warn(format " held_back=%llu", ##__VA_ARGS__, (unsigned long long)mc_held_);        \
        }                                                                                          \
    } while (0)

#endif

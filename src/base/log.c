/*
 * The logger. See base/log.h. A line is built on the stack and written with one write(2), so that
 * lines of several threads and processes do not mix.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/export.h"

MC_PUBLIC enum mc_log_level mc_log_threshold = MC_LOG_INFO;

static const char *const LEVEL_NAMES[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "OFF"};

enum mc_status mc_log_set_level(const char *name) {
    if (strcasecmp(name, "WARN") == 0) {
        name = "WARNING";
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(LEVEL_NAMES); i++) {
        if (strcasecmp(name, LEVEL_NAMES[i]) == 0) {
            mc_log_threshold = (enum mc_log_level)i;
            return MC_OK;
        }
    }
    return MC_INVALID_PARAMS;
}

__attribute__((constructor)) static void log_read_environment(void) {
    const char *name = getenv("MC_LOG_LEVEL");
    if (name != NULL && name[0] != '\0' && mc_log_set_level(name) != MC_OK) {
        mc_warn("MC_LOG_LEVEL is not a level: value=%s accepted=TRACE,DEBUG,INFO,WARNING,ERROR,OFF",
                name);
    }
}

MC_PUBLIC void mc_log_write(enum mc_log_level level, const char *file, int line, const char *format,
                            ...) {
    char text[2048];
    int saved_errno = errno;
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    const char *base = strrchr(file, '/');
    int len = snprintf(text, sizeof(text), "%-7s %02d:%02d:%02d.%06ld %s:%d ", LEVEL_NAMES[level],
                       tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000, base ? base + 1 : file,
                       line);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(text + len, sizeof(text) - (size_t)len, format, args);
    va_end(args);
    size_t total = (size_t)len + (more > 0 ? (size_t)more : 0);
    if (total > sizeof(text) - 1) {
        total = sizeof(text) - 1;
    }
    text[total++] = '\n';
    if (write(STDERR_FILENO, text, total) < 0) {
        /* nowhere left to say so */
    }
    errno = saved_errno;
}

bool mc_log_limit_pass(struct mc_log_limit *limit, uint64_t *held_back) {
    uint64_t now = mc_now_ns(mc_clock_system());
    uint64_t next = __atomic_load_n((uint64_t *)&limit->next_ns, __ATOMIC_RELAXED);
    if (now < next || !__atomic_compare_exchange_n((uint64_t *)&limit->next_ns, &next, now + MC_SEC,
                                                   false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_fetch_add((uint64_t *)&limit->held_back, 1, __ATOMIC_RELAXED);
        return false;
    }
    *held_back = __atomic_exchange_n((uint64_t *)&limit->held_back, 0, __ATOMIC_RELAXED);
    return true;
}

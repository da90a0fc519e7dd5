/* Configuration and warnings of the benchmarks. See cmd/bench_config.h. */
#include "cmd/bench_config.h"

#include <sched.h>
#include <stdio.h>

#define SMALL_BLOCK (64u << 10)

static void print_value(const struct mc_option *option, const void *config) {
    const char *field = (const char *)config + option->offset;
    switch (option->type) {
    case MC_OPT_BOOL:
        printf("%s", *(const bool *)field ? "true" : "false");
        break;
    case MC_OPT_I64:
        printf("%lld", (long long)*(const int64_t *)field);
        break;
    case MC_OPT_DOUBLE:
        printf("%g", *(const double *)field);
        break;
    case MC_OPT_STRING:
    case MC_OPT_CHOICE: {
        const char *text = *(const char *const *)field;
        bool plain = text == NULL || strpbrk(text, " '\"{}[]$&|;<>*?\\") == NULL;
        printf(plain ? "%s" : "'%s'", text == NULL ? "" : text);
        break;
    }
    default: /* numbers, sizes, milliseconds */
        printf("%llu", (unsigned long long)*(const uint64_t *)field);
    }
}

void mc_bench_print_config(const struct mc_option_set *set, const void *config) {
    printf("configuration: %s", set->program);
    for (size_t i = 0; i < set->count; i++) {
        printf(" --%s=", set->options[i].name);
        print_value(&set->options[i], config);
    }
    printf("\n");
}

static void warn(const char *text) {
    printf("warning: %s\n", text);
}

static void warn_about_environment(void) {
    static const struct {
        const char *name, *value, *text; /* value NULL: any */
    } slow[] = {
        {"MC_FORCE_TCP", NULL, "MC_FORCE_TCP keeps processes of one host from sharing memory"},
        {"MC_TCP_PROTO", "1", "MC_TCP_PROTO=1: each write is proved by a read of its last byte"},
        {"MC_DISABLE_METACACHE", NULL, "MC_DISABLE_METACACHE: each submit asks for the descriptor"},
        {"MC_LOG_LEVEL", "TRACE", "MC_LOG_LEVEL=TRACE writes a line for much of what happens"},
        {"MC_TCP_LANES_PER_PEER", "1",
         "MC_TCP_LANES_PER_PEER=1: one TCP connection for all threads"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(slow); i++) {
        const char *value = getenv(slow[i].name);
        if (value != NULL && value[0] != '\0' &&
            (slow[i].value == NULL || strcmp(value, slow[i].value) == 0)) {
            warn(slow[i].text);
        }
    }
}

static void warn_about_machine(uint64_t threads) {
    char governor[32] = "";
    cpu_set_t set;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "re");
    if (file != NULL) {
        if (fscanf(file, "%31s", governor) == 1 && strcmp(governor, "powersave") == 0) {
            warn("the cores save power (scaling_governor is powersave)");
        }
        fclose(file);
    }
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && threads > (uint64_t)CPU_COUNT(&set)) {
        printf("warning: %llu threads share %d cores\n", (unsigned long long)threads,
               CPU_COUNT(&set));
    }
}

void mc_bench_print_warnings(const struct mc_bench_shape *shape) {
#ifdef MC_SANITIZE
    warn("this is a sanitizer's build, several times slower than a release");
#endif
    if (shape->verify) {
        warn("every byte is made and compared, which costs more than moving it");
    }
    if (shape->block_size < SMALL_BLOCK && shape->batch_size == 1 && shape->threads == 1) {
        warn("one small block at a time measures latency, not bandwidth");
    }
    if (shape->pause_us > 0) {
        warn("threads pause between requests");
    }
    warn_about_machine(shape->threads);
    warn_about_environment();
}

/* Configuration and warnings of the benchmarks. See cmd/bench_config.h. */
#include "cmd/bench_config.h"
#include "cmd/cmd.h"

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

/* ---- the transport that is measured ---- */

/* Ours, of a name that may be upstream's; NULL = whatever the engine chooses. */
static const char *transport_of(const char *name) {
    if (name[0] == '\0' || strcmp(name, "auto") == 0) {
        return NULL;
    }
    return strcmp(name, "efa") == 0 ? "fabric" : name;
}

static bool is_word(const char *name) {
    return strlen(name) < 32 && name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] == '\0';
}

void mc_bench_use_transport(const char *name, char policy[MC_BENCH_POLICY_BYTES],
                            struct mc_engine_options *config) {
    const char *transport = transport_of(name);
    if (transport == NULL || !is_word(transport)) {
        return; /* mc_bench_has_transport refuses what is no word */
    }
    if (config->policy != NULL && config->policy[0] != '\0') {
        warn("MC_TENT_CONF does not count where one transport is asked for");
        config->policy = NULL;
    }
    if (strcmp(transport, "tcp") == 0) { /* peers are to be told of nothing else, either */
        setenv("MC_FORCE_TCP", "1", 1);
        config->disable_shm = true;
        config->disable_local = true;
        return;
    }
    snprintf(policy, MC_BENCH_POLICY_BYTES,
             "{\"policy\": [{\"name\": \"measured\", \"transports\": [\"%s\"]}]}", transport);
    config->policy = policy;
}

bool mc_bench_has_transport(const char *program, const struct mc_engine *engine, const char *name) {
    const char *transport = transport_of(name), *each;
    struct mc_buf known = {0};
    bool found = transport == NULL;
    for (unsigned i = 0; !found && (each = mc_engine_transport(engine, i)) != NULL; i++) {
        found = strcmp(each, transport) == 0;
        mc_buf_printf(&known, "%s%s", i == 0 ? "" : ", ", each);
    }
    if (!found) {
        mc_cmd_fail(program, 0, "there is no transport %s on this machine, only %s", transport,
                    mc_buf_cstr(&known));
    }
    mc_buf_free(&known);
    return found;
}

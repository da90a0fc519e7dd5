/*
 * policy: what a user may say about choosing, in the file of MC_TENT_CONF.
 *
 * The default needs no file. A rule says for which requests it holds (segment type, locality, kinds
 * of memory, size, priority, intent; what it does not name it does not ask) and what follows: the
 * transports that may serve, in this order, and the rails of them. The first rule that matches
 * holds. Keys are upstream's where it has them; docs/te.md lists both. A file that cannot be
 * understood is an error that names place and reason; keys that nobody knows are named in a
 * warning.
 */
#ifndef MC_TE_POLICY_H
#define MC_TE_POLICY_H

#include "te/qos.h"
#include "te/rail.h"

#define MC_POLICY_RULES_MAX 64
#define MC_POLICY_NAMES_MAX 16

enum mc_locality { MC_SAME_PROCESS = 1, MC_SAME_HOST = 2, MC_REMOTE = 4 };

struct mc_policy_rule {
    char name[64];
    /* when */
    bool file_segments, memory_segments;
    unsigned localities;   /* of enum mc_locality */
    unsigned priorities;   /* bit per priority */
    unsigned intents;      /* bit per enum mc_intent */
    char local_memory[32]; /* "cpu", "cuda"; "" = any */
    char remote_memory[32];
    uint64_t size_min, size_max;
    /* then */
    unsigned transport_count; /* 0 = all */
    char transports[MC_POLICY_NAMES_MAX][32];
    unsigned device_count; /* 0 = all */
    char devices[MC_POLICY_NAMES_MAX][64];
};

struct mc_policy {
    unsigned rule_count;
    struct mc_policy_rule rules[MC_POLICY_RULES_MAX];
    bool fixed_order;                /* by cost alone, not by what was measured */
    unsigned max_failovers;          /* failed posts a slice, on average; 0 = the default */
    uint64_t attempt_ns;             /* least time before an attempt is given up; 0 = never */
    uint32_t weights[MC_PRIORITIES]; /* all 0 = strict */
    char qos_page[256];              /* "" = none */
    unsigned disabled_count;         /* transports that are not started */
    char disabled[MC_POLICY_NAMES_MAX][32];
};

struct mc_policy_question {
    bool is_file;
    enum mc_locality locality;
    uint8_t priority;
    uint8_t intent;
    const char *local_memory; /* kind or location, "cuda:0"; NULL = not known, taken for "cpu" */
    const char *remote_memory;
    uint64_t size;
};

/* `text` is JSON, or the path of a file with it; NULL or "" = the default. MC_INVALID_PARAMS. */
MC_MUST_USE enum mc_status mc_policy_load(const char *text, struct mc_policy *policy);
/* The rule that holds, or NULL. */
const struct mc_policy_rule *mc_policy_match(const struct mc_policy *policy,
                                             const struct mc_policy_question *q);
bool mc_policy_disables(const struct mc_policy *policy, const char *transport);
/* Whether rules ask for kinds of memory, which cost a look-up. */
bool mc_policy_asks_memory(const struct mc_policy *policy);
bool mc_policy_allows_device(const struct mc_policy_rule *rule, const char *rail);

#endif

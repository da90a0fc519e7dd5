/* Engine options: defaults, then upstream's MC_* environment. A variable that does not parse is
 * named in the log and ignored. */
#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

/* The first of the variables that is set and acceptable, else `otherwise`. `aliases` are comma-free
 * names, NULL-ended. */
static uint64_t number(const char *const *names, uint64_t min, uint64_t max, uint64_t otherwise) {
    for (; *names != NULL; names++) {
        const char *text = getenv(*names);
        uint64_t value;
        if (text == NULL || text[0] == '\0') {
            continue;
        }
        if (mc_parse_u64(text, min, max, &value) == MC_OK) {
            return value;
        }
        mc_warn("environment variable ignored name=%s value=\"%s\" accepted=%llu..%llu used=%llu",
                *names, text, (unsigned long long)min, (unsigned long long)max,
                (unsigned long long)otherwise);
    }
    return otherwise;
}

uint64_t mc_env_number(const char *name, uint64_t min, uint64_t max, uint64_t otherwise) {
    const char *const names[] = {name, NULL};
    return number(names, min, max, otherwise);
}

static bool is_set(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0';
}

MC_PUBLIC void mc_engine_options_init(struct mc_engine_options *options) {
    static const char *const min_port[] = {"MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT", NULL};
    static const char *const max_port[] = {"MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT", NULL};
    static const char *const lanes[] = {"MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER",
                                        NULL};
    static const char *const connect[] = {"MC_HANDSHAKE_CONNECT_TIMEOUT", NULL};
    *options = (struct mc_engine_options){
        .metadata = "P2PHANDSHAKE",
        .port_min = (uint16_t)number(min_port, 1, UINT16_MAX, 15000),
        .port_max = (uint16_t)number(max_port, 1, UINT16_MAX, 17000),
        .lanes_per_peer = (unsigned)number(lanes, 1, 64, 0),
        .connect_timeout_ms = (uint32_t)number(connect, 1, 3599, 5) * 1000u,
        .disable_shm = is_set("MC_FORCE_TCP"),
    };
}

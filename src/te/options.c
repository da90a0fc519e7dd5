/* Engine options: defaults, then upstream's MC_* environment. A variable that does not parse is
 * named in the log and ignored. */
#include "base/env.h"
#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"

/* A setting of two names (an old spelling of upstream, another word for it): the first counts. */
static uint64_t either(const char *name, const char *alias, uint64_t min, uint64_t max,
                       uint64_t otherwise) {
    return mc_env_u64(name, min, max, mc_env_u64(alias, min, max, otherwise));
}

static bool is_set(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0';
}

static uint64_t huge_page_size(void) {
    static const uint64_t two_mib = 2u << 20, one_gib = 1u << 30;
    const char *text = getenv("MC_STORE_HUGEPAGE_SIZE");
    uint64_t bytes;
    if (text == NULL || text[0] == '\0') {
        return two_mib;
    }
    if (mc_parse_size(text, &bytes) != MC_OK || (bytes != two_mib && bytes != one_gib)) {
        mc_warn("MC_STORE_HUGEPAGE_SIZE: huge pages have 2MB or 1GB, so 2MB is used: value=%s",
                text);
        return two_mib;
    }
    return bytes;
}

MC_PUBLIC void mc_engine_options_init(struct mc_engine_options *options) {
    *options = (struct mc_engine_options){
        .metadata = "P2PHANDSHAKE",
        .port_min = (uint16_t)either("MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT", 1, UINT16_MAX, 15000),
        .port_max = (uint16_t)either("MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT", 1, UINT16_MAX, 17000),
        .lanes_per_peer =
            (unsigned)either("MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER", 1, 64, 0),
        .connect_timeout_ms =
            (uint32_t)mc_env_u64("MC_HANDSHAKE_CONNECT_TIMEOUT", 1, 3599, 5) * 1000u,
        .disable_shm = is_set("MC_FORCE_TCP"),
        .policy = getenv("MC_TENT_CONF"),
        .lazy_memory = mc_env_bool("MC_LAZY_MEMORY", false),
        .huge_page_bytes = is_set("MC_STORE_USE_HUGEPAGE") ? huge_page_size() : 0,
    };
}

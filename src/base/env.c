/* Settings of the environment. See env.h. */
#include "base/env.h"

#include "base/log.h"

static const char *value_of(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

uint64_t mc_env_u64(const char *name, uint64_t min, uint64_t max, uint64_t otherwise) {
    const char *text = value_of(name);
    uint64_t value;
    if (text == NULL) {
        return otherwise;
    }
    if (mc_parse_u64(text, min, max, &value) != MC_OK) {
        mc_warn("environment variable ignored name=%s value=\"%s\" accepted=%llu..%llu used=%llu",
                name, text, (unsigned long long)min, (unsigned long long)max,
                (unsigned long long)otherwise);
        return otherwise;
    }
    return value;
}

bool mc_env_bool(const char *name, bool otherwise) {
    const char *text = value_of(name);
    bool value;
    if (text == NULL) {
        return otherwise;
    }
    if (mc_parse_bool(text, &value) != MC_OK) {
        mc_warn("environment variable ignored name=%s value=\"%s\" accepted=true,false used=%s",
                name, text, otherwise ? "true" : "false");
        return otherwise;
    }
    return value;
}

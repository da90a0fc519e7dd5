/* The table of policies. Adding one = one file and one line here. */
#include "policy/policy.h"

#include <string.h>

const struct mc_policy_ops *const mc_policies[] = {&mc_policy_lru, &mc_policy_s3fifo,
                                                   &mc_policy_chain};
const size_t mc_policy_count = MC_ARRAY_LEN(mc_policies);

const struct mc_policy_ops *mc_policy_find(const char *name) {
    for (size_t i = 0; i < mc_policy_count; i++) {
        if (strcmp(mc_policies[i]->name, name) == 0) {
            return mc_policies[i];
        }
    }
    return strcmp(name, "own") == 0 ? &mc_policy_chain : NULL;
}

struct mc_policy *mc_policy_create(const char *name, const struct mc_policy_config *config) {
    const struct mc_policy_ops *ops = mc_policy_find(name);
    return ops ? ops->create(config ? config : &(struct mc_policy_config){0}) : NULL;
}

void mc_policy_destroy(struct mc_policy *policy) {
    if (policy) {
        policy->ops->destroy(policy);
    }
}

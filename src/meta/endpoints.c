/* See endpoints.h. Upstream separates endpoints by ';', etcd's own tools by ','. */
#include "meta/endpoints.h"

enum mc_status mc_meta_endpoints_parse(const char *text, uint16_t default_port,
                                       struct mc_meta_endpoints *out) {
    struct mc_meta_endpoints found = {0};
    for (const char *at = text;; at++) {
        char one[MC_HOST_MAX + 8];
        size_t len = strcspn(at, ",;");
        if (len == 0 || len >= sizeof(one) || found.count == MC_META_ENDPOINTS_MAX) {
            return MC_ERR_BAD_ADDRESS;
        }
        memcpy(one, at, len);
        one[len] = '\0';
        struct mc_hostport *endpoint = &found.list[found.count++];
        MC_TRY(mc_hostport_parse(one, endpoint));
        if (endpoint->port == 0) {
            endpoint->port = default_port;
        }
        if (endpoint->port == 0 || strpbrk(one, "/@ ?") != NULL) {
            return MC_ERR_BAD_ADDRESS;
        }
        at += len;
        if (*at == '\0') {
            *out = found;
            return MC_OK;
        }
    }
}

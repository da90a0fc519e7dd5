/* The endpoints of a metadata service: where it may answer, and which of them did last. */
#ifndef MC_META_ENDPOINTS_H
#define MC_META_ENDPOINTS_H

#include "base/base.h"
#include "io/io.h"

#define MC_META_ENDPOINTS_MAX 16

struct mc_meta_endpoints {
    size_t count;
    struct mc_hostport list[MC_META_ENDPOINTS_MAX];
};
/* host:port, separated by ',' or ';'; a missing port is `default_port`, and with 0 an error.
 * MC_ERR_BAD_ADDRESS; not logged. */
MC_MUST_USE enum mc_status mc_meta_endpoints_parse(const char *text, uint16_t default_port,
                                                   struct mc_meta_endpoints *out);

#endif

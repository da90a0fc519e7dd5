/* Where a master keeps the quotas of tenants when that is etcd. */
#ifndef MC_CMD_QUOTA_ETCD_H
#define MC_CMD_QUOTA_ETCD_H

#include "master/master.h"

/* `endpoints` as of a metadata store: host:port[;host:port], with etcd:// or etcds:// before it or
 * not. Connects to nothing yet. MC_ERR_BAD_ADDRESS. */
MC_MUST_USE enum mc_status mc_quota_etcd_open(const char *endpoints, const char *cluster_id,
                                              struct mc_quota_store *out);
void mc_quota_etcd_close(struct mc_quota_store *store); /* one that is empty is allowed */

#endif

/* What the room's files share. */
#ifndef MC_TOPO_PRIVATE_H
#define MC_TOPO_PRIVATE_H

#include "topo/topo.h"

/* State and speed of the network cards from <sysfs>/class; cards that hwloc does not show (soft
 * RoCE) are added. */
MC_MUST_USE enum mc_status topo_sysfs_read(struct mc_topo *topo, const char *sysfs);
/* A new device, zeroed; NULL at the limit. The array may move. */
struct mc_topo_device *topo_device_add(struct mc_topo *topo);
void topo_text(char *out, size_t size, const char *text);

#endif

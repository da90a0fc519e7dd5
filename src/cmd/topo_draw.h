/* The pictures of `mooncake topo`: text for a terminal, SVG for a page. */
#ifndef MC_CMD_TOPO_DRAW_H
#define MC_CMD_TOPO_DRAW_H

#include "topo/topo.h"

void mc_topo_draw_text(const struct mc_topo *topo, const struct mc_topo_matrix *matrix,
                       struct mc_buf *out);
/* A box a NUMA node; in it a box a root complex and a switch that several devices share. */
void mc_topo_draw_svg(const struct mc_topo *topo, struct mc_buf *out);

#endif

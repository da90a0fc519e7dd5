/*
 * Drawing a topology. See topo_draw.h.
 *
 * The SVG needs no layout engine: devices of a node sorted by their path of bridges make every
 * bridge a run of neighbours, so a box is drawn around each run of at least two, and what is in it
 * goes from left to right.
 */
#include "cmd/topo_draw.h"

#include <stdio.h>

#define TILE_W  132
#define TILE_H  58
#define GAP     10
#define TITLE_H 18

static const char *const kind_names[] = {"nic", "gpu", "nvme"};

/* ---- text ---- */

static void speed_text(const struct mc_topo_device *d, char out[32]) {
    out[0] = '\0';
    if (d->bandwidth > 0) {
        snprintf(out, 32, "%.0f Gbit/s", (double)d->bandwidth * 8 / 1e9);
    }
}

/* Without the blanks that padding left. */
static void end_line(struct mc_buf *out) {
    while (out->len > 0 && out->data[out->len - 1] == ' ') {
        out->len--;
    }
    mc_buf_puts(out, "\n");
}

static void text_device(const struct mc_topo_device *d, struct mc_buf *out) {
    char speed[32], name[128];
    bool other = d->netdev[0] != '\0' && strcmp(d->netdev, d->name) != 0;
    speed_text(d, speed);
    snprintf(name, sizeof(name), other ? "%s (%s)" : "%s", d->name, d->netdev);
    mc_buf_printf(out, "  %-5s %-24s %-13s", kind_names[d->kind], name, d->pci);
    if (d->kind == MC_TOPO_NIC) {
        mc_buf_printf(out, " %s%s%s%s", d->rdma ? "rdma" : "no rdma", d->up ? ", up" : ", DOWN",
                      speed[0] != '\0' ? ", " : "", speed);
    }
    end_line(out);
}

static void text_node(const struct mc_topo *topo, size_t index, struct mc_buf *out) {
    mc_buf_printf(out, "node %d, ", topo->nodes[index].number);
    mc_format_size(out, topo->nodes[index].memory);
    for (size_t j = 0; topo->node_count > 1 && j < topo->node_count; j++) {
        mc_buf_printf(out, j == 0 ? ", distances %u" : " %u",
                      topo->node_distances[index * topo->node_count + j]);
    }
    mc_buf_puts(out, "\n");
    for (size_t i = 0; i < topo->device_count; i++) {
        if (topo->devices[i].numa_node == topo->nodes[index].number) {
            text_device(&topo->devices[i], out);
        }
    }
}

static void text_unplaced(const struct mc_topo *topo, struct mc_buf *out) {
    bool any = false;
    for (size_t i = 0; i < topo->device_count; i++) {
        if (topo->devices[i].numa_node < 0) {
            mc_buf_puts(out, any ? "" : "node not known\n");
            text_device(&topo->devices[i], out);
            any = true;
        }
    }
}

/* How near each GPU and drive is to each network card. */
static void text_nearness(const struct mc_topo *topo, struct mc_buf *out) {
    size_t cards = 0;
    while (cards < topo->device_count && topo->devices[cards].kind == MC_TOPO_NIC) {
        cards++;
    }
    if (cards == 0 || cards == topo->device_count) {
        return;
    }
    mc_buf_printf(out, "\n%-12s", "");
    for (size_t c = 0; c < cards; c++) {
        mc_buf_printf(out, " %-8.20s", topo->devices[c].name);
    }
    end_line(out);
    for (size_t i = cards; i < topo->device_count; i++) {
        mc_buf_printf(out, "%-12s", topo->devices[i].name);
        for (size_t c = 0; c < cards; c++) {
            enum mc_topo_near near =
                mc_topo_nearness(topo, &topo->devices[i], &topo->devices[c], NULL);
            mc_buf_printf(out, " %-8s", mc_topo_near_name(near));
        }
        end_line(out);
    }
}

static void text_list(const struct mc_topo_entry *entry, int list, struct mc_buf *out) {
    mc_buf_puts(out, entry->count[list] == 0 ? " -" : "");
    for (size_t i = 0; i < entry->count[list]; i++) {
        mc_buf_printf(out, " %s", entry->names[list][i]);
    }
}

void mc_topo_draw_text(const struct mc_topo *topo, const struct mc_topo_matrix *matrix,
                       struct mc_buf *out) {
    mc_buf_printf(out, "%u socket%s, %zu NUMA node%s\n", topo->packages,
                  topo->packages == 1 ? "" : "s", topo->node_count,
                  topo->node_count == 1 ? "" : "s");
    for (size_t i = 0; i < topo->node_count; i++) {
        text_node(topo, i, out);
    }
    text_unplaced(topo, out);
    text_nearness(topo, out);
    mc_buf_puts(out, "\nmemory at     prefers, and can use\n");
    for (size_t i = 0; i < matrix->count; i++) {
        mc_buf_printf(out, "%-13s", matrix->entries[i].location);
        text_list(&matrix->entries[i], 0, out);
        mc_buf_puts(out, " |");
        text_list(&matrix->entries[i], 1, out);
        mc_buf_puts(out, "\n");
    }
}

/* ---- SVG ---- */

struct size {
    unsigned width, height;
};
struct picture {
    const struct mc_topo *topo;
    const struct mc_topo_device **order; /* by node, then by path */
    struct mc_buf *out;                  /* NULL: only measure */
};

static void svg_text(struct mc_buf *out, unsigned x, unsigned y, const char *style,
                     const char *text) {
    mc_buf_printf(out, "<text x=\"%u\" y=\"%u\" class=\"%s\">", x, y, style);
    for (const char *at = text; *at != '\0'; at++) {
        switch (*at) {
        case '<':
            mc_buf_puts(out, "&lt;");
            break;
        case '>':
            mc_buf_puts(out, "&gt;");
            break;
        case '&':
            mc_buf_puts(out, "&amp;");
            break;
        default:
            mc_buf_putc(out, *at);
        }
    }
    mc_buf_puts(out, "</text>\n");
}

static void svg_box(struct mc_buf *out, unsigned x, unsigned y, struct size size,
                    const char *style) {
    mc_buf_printf(out,
                  "<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" rx=\"6\" class=\"%s\"/>\n", x,
                  y, size.width, size.height, style);
}

static struct size draw_device(const struct picture *p, const struct mc_topo_device *d, unsigned x,
                               unsigned y) {
    struct size size = {TILE_W, TILE_H};
    char speed[32], line[80];
    if (p->out != NULL) {
        speed_text(d, speed);
        snprintf(line, sizeof(line), "%s%s%s", d->netdev, d->netdev[0] != '\0' ? " " : "",
                 d->kind == MC_TOPO_NIC && !d->up ? "DOWN" : speed);
        svg_box(p->out, x, y, size, d->up ? kind_names[d->kind] : "down");
        svg_text(p->out, x + 8, y + 20, "name", d->name);
        svg_text(p->out, x + 8, y + 36, "small", d->pci);
        svg_text(p->out, x + 8, y + 50, "small", line);
    }
    return size;
}

/* How many bridges all of [begin, end) share. */
static unsigned shared_path(const struct picture *p, size_t begin, size_t end) {
    const struct mc_topo_device *first = p->order[begin], *last = p->order[end - 1];
    unsigned shared = 0;
    while (shared < first->path_length && shared < last->path_length &&
           first->path[shared] == last->path[shared]) {
        shared++;
    }
    return shared;
}

/* Devices [begin, end), which share `depth` bridges whose boxes are drawn already. */
static struct size draw_group(const struct picture *p, size_t begin, size_t end, unsigned depth,
                              unsigned x, unsigned y) {
    if (end - begin == 1) {
        return draw_device(p, p->order[begin], x, y);
    }
    unsigned shared = shared_path(p, begin, end);
    bool boxed = shared > depth;
    unsigned inset = boxed ? GAP : 0, top = y + (boxed ? TITLE_H + GAP / 2 : 0), at = x + inset;
    struct size whole = {0, 0};
    for (size_t i = begin; i < end;) {
        size_t next = i + 1;
        while (next < end && shared_path(p, i, next + 1) > shared) {
            next++;
        }
        struct size part = draw_group(p, i, next, shared, at, top);
        at += part.width + GAP;
        whole.height = part.height > whole.height ? part.height : whole.height;
        i = next;
    }
    whole.width = at - GAP - x + inset;
    whole.height += top - y + (boxed ? GAP : 0);
    if (boxed && p->out != NULL) {
        svg_box(p->out, x, y, whole, "bridge");
        svg_text(p->out, x + 8, y + 15, "small", shared == 1 ? "root complex" : "switch");
    }
    return whole;
}

static int by_node_and_path(const void *a, const void *b) {
    const struct mc_topo_device *x = *(const struct mc_topo_device *const *)a;
    const struct mc_topo_device *y = *(const struct mc_topo_device *const *)b;
    if (x->numa_node != y->numa_node) {
        return x->numa_node < y->numa_node ? -1 : 1;
    }
    for (unsigned i = 0; i < x->path_length && i < y->path_length; i++) {
        if (x->path[i] != y->path[i]) {
            return x->path[i] < y->path[i] ? -1 : 1;
        }
    }
    return (int)x->path_length - (int)y->path_length;
}

static struct size draw_node(const struct picture *p, int node, unsigned y) {
    size_t begin = 0, end;
    char title[64];
    struct size inner = {TILE_W, 0};
    while (begin < p->topo->device_count && p->order[begin]->numa_node != node) {
        begin++;
    }
    for (end = begin; end < p->topo->device_count && p->order[end]->numa_node == node; end++) {
    }
    if (begin == end && node < 0) {
        return (struct size){0, 0};
    }
    snprintf(title, sizeof(title), node < 0 ? "NUMA node not known" : "NUMA node %d", node);
    struct picture measure = {p->topo, p->order, NULL};
    if (begin < end) {
        inner = draw_group(&measure, begin, end, 0, 0, 0);
    }
    struct size whole = {inner.width + 2 * GAP, inner.height + TITLE_H + 2 * GAP};
    if (p->out != NULL) {
        svg_box(p->out, GAP, y, whole, "node");
        svg_text(p->out, GAP + 10, y + 18, "name", title);
    }
    if (p->out != NULL && begin < end) {
        (void)draw_group(p, begin, end, 0, 2 * GAP, y + TITLE_H + GAP);
    }
    return whole;
}

void mc_topo_draw_svg(const struct mc_topo *topo, struct mc_buf *out) {
    struct mc_buf body = {0};
    struct picture p = {topo, mc_alloc((topo->device_count + 1) * sizeof(struct mc_topo_device *)),
                        &body};
    unsigned y = GAP, width = 0;
    for (size_t i = 0; i < topo->device_count; i++) {
        p.order[i] = &topo->devices[i];
    }
    qsort(p.order, topo->device_count, sizeof(struct mc_topo_device *), by_node_and_path);
    for (size_t i = 0; i <= topo->node_count; i++) {
        struct size node = draw_node(&p, i < topo->node_count ? topo->nodes[i].number : -1, y);
        y += node.height > 0 ? node.height + GAP : 0;
        width = node.width > width ? node.width : width;
    }
    mc_buf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\">\n"
                  "<style>text{font-family:sans-serif}.name{font-size:13px;font-weight:bold}"
                  ".small{font-size:11px}rect{stroke:#555;stroke-opacity:.6}"
                  ".node{fill:#f4f4f0}.bridge{fill:#9aa;fill-opacity:.18}.nic{fill:#bcd9f2}"
                  ".gpu{fill:#c9e7bd}.nvme{fill:#f0dcae}.down{fill:#e8b4b0}</style>\n",
                  width + 2 * GAP, y);
    mc_buf_append(out, body.data, body.len);
    mc_buf_puts(out, "</svg>\n");
    mc_buf_free(&body);
    free(p.order);
}

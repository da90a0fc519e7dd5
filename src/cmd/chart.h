/*
 * Line charts as inline SVG, for the HTML report. Colours come from the page's style sheet (classes
 * s1, s2), so a chart follows light and dark; the numbers stand beside the drawing as JSON, from
 * which the page's script shows the values under the pointer. All series of a chart share their x
 * values.
 */
#ifndef MC_CMD_CHART_H
#define MC_CMD_CHART_H

#include "base/base.h"

#define MC_CHART_MAX_SERIES 2

struct mc_chart_series {
    const char *name;
    const double *y;
};

struct mc_chart {
    const char *title;
    const char *note;            /* a sentence below the title */
    const char *x_name;          /* "trace time, minutes" */
    const char *x_unit, *y_unit; /* behind a value: "min", " GB/s", " %" */
    bool x_log;                  /* x values must be > 0 */
    double y_top;                /* the axis reaches at least this */
    const double *x;
    size_t count;
    struct mc_chart_series series[MC_CHART_MAX_SERIES];
    size_t series_count;
};

/* Appends a <figure>. A chart with fewer than two points says that there was nothing to draw. */
void mc_chart_draw(const struct mc_chart *chart, struct mc_buf *out);
/* 1234567 as 1,234,567. */
void mc_format_grouped(struct mc_buf *out, uint64_t value);
/* & < > " of text, for HTML. */
void mc_html_escape(struct mc_buf *out, const char *text);

#endif

/*
 * Line charts as inline SVG. See cmd/chart.h.
 *
 * A chart is drawn in a fixed box of 640 x 280 units that the page scales. Axes start at zero for
 * y; ticks are the 1-2-5 steps that give three to six of them, on a logarithmic axis the powers of
 * ten.
 */
#include "cmd/chart.h"

#include <math.h>
#include <stdio.h>

#define BOX_WIDTH     640.0
#define BOX_HEIGHT    280.0
#define MARGIN_LEFT   56.0
#define MARGIN_RIGHT  16.0
#define MARGIN_TOP    12.0
#define MARGIN_BOTTOM 40.0

struct axis {
    double low, high;
    bool log;
    double from, to; /* of the box */
};

static double place(const struct axis *axis, double value) {
    double share = axis->log
                       ? (log10(value) - log10(axis->low)) / (log10(axis->high) - log10(axis->low))
                       : (value - axis->low) / (axis->high - axis->low);
    return axis->from + share * (axis->to - axis->from);
}

/* The 1-2-5 step that cuts `span` into at most `most` pieces. */
static double nice_step(double span, int most) {
    double raw = span / most;
    double power = pow(10, floor(log10(raw)));
    double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void fit_axes(const struct mc_chart *chart, struct axis *x, struct axis *y) {
    *x = (struct axis){.low = chart->x[0],
                       .high = chart->x[chart->count - 1],
                       .log = chart->x_log,
                       .from = MARGIN_LEFT,
                       .to = BOX_WIDTH - MARGIN_RIGHT};
    if (!(x->high > x->low)) {
        x->high = x->low + 1;
    }
    if (!x->log && x->low < x->high / 5) { /* what starts near zero is drawn from zero */
        x->low = 0;
    }
    double top = chart->y_top;
    for (size_t s = 0; s < chart->series_count; s++) {
        for (size_t i = 0; i < chart->count; i++) {
            top = fmax(top, chart->series[s].y[i]);
        }
    }
    top = top > 0 ? top : 1;
    double step = nice_step(top, 5);
    *y = (struct axis){.high = ceil(top / step - 1e-9) * step,
                       .from = BOX_HEIGHT - MARGIN_BOTTOM,
                       .to = MARGIN_TOP};
}

/* 0.25, 20, 12,000 */
static void put_number(struct mc_buf *out, double value) {
    if (value >= 1000) {
        mc_format_grouped(out, (uint64_t)(value + 0.5));
    } else {
        mc_buf_printf(out, "%.4g", value);
    }
}

static void draw_y_ticks(const struct mc_chart *chart, const struct axis *y, struct mc_buf *out) {
    double step = nice_step(y->high, 5);
    for (double value = 0; value <= y->high + step / 2; value += step) {
        double at = place(y, value);
        mc_buf_printf(out, "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>",
                      MARGIN_LEFT, BOX_WIDTH - MARGIN_RIGHT, at, at);
        mc_buf_printf(out, "<text class=\"tick\" text-anchor=\"end\" x=\"%g\" y=\"%.1f\">",
                      MARGIN_LEFT - 8, at + 4);
        put_number(out, value);
        mc_buf_puts(out, "</text>");
    }
}

static void draw_x_tick(const struct axis *x, double value, struct mc_buf *out) {
    mc_buf_printf(out,
                  "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%g\">%.4g</text>",
                  place(x, value), BOX_HEIGHT - MARGIN_BOTTOM + 18, value);
}

static void draw_x_ticks(const struct axis *x, struct mc_buf *out) {
    if (x->log) {
        for (double value = pow(10, ceil(log10(x->low) - 1e-9)); value <= x->high * (1 + 1e-9);
             value *= 10) {
            draw_x_tick(x, value, out);
        }
        return;
    }
    double step = nice_step(x->high - x->low, 6);
    for (double value = ceil(x->low / step - 1e-9) * step; value <= x->high + step * 1e-9;
         value += step) {
        draw_x_tick(x, fabs(value) < step / 1000 ? 0 : value, out);
    }
}

static void draw_series(const struct mc_chart *chart, size_t s, const struct axis *x,
                        const struct axis *y, struct mc_buf *out) {
    const double *values = chart->series[s].y;
    struct mc_buf points = {0};
    for (size_t i = 0; i < chart->count; i++) {
        mc_buf_printf(&points, "%s%.1f,%.1f", i ? " " : "", place(x, chart->x[i]),
                      place(y, values[i]));
    }
    if (chart->series_count == 1) { /* areas of two series would hide each other */
        mc_buf_printf(out, "<polygon class=\"area s%zu\" points=\"%.1f,%.1f %s %.1f,%.1f\"/>",
                      s + 1, place(x, chart->x[0]), y->from, mc_buf_cstr(&points),
                      place(x, chart->x[chart->count - 1]), y->from);
    }
    mc_buf_printf(out, "<polyline class=\"line s%zu\" points=\"%s\"/>", s + 1,
                  mc_buf_cstr(&points));
    mc_buf_free(&points);
}

static void draw_numbers(const struct mc_chart *chart, const struct axis *x, struct mc_buf *out) {
    mc_buf_puts(out, "<script type=\"application/json\">{\"p\":[");
    for (size_t i = 0; i < chart->count; i++) {
        mc_buf_printf(out, "%s%.1f", i ? "," : "", place(x, chart->x[i]));
    }
    mc_buf_puts(out, "],\"x\":[");
    for (size_t i = 0; i < chart->count; i++) {
        mc_buf_printf(out, "%s%.5g", i ? "," : "", chart->x[i]);
    }
    mc_buf_printf(out, "],\"xu\":\"%s\",\"yu\":\"%s\",\"s\":[", chart->x_unit, chart->y_unit);
    for (size_t s = 0; s < chart->series_count; s++) {
        mc_buf_printf(out, "%s{\"n\":\"%s\",\"y\":[", s ? "," : "", chart->series[s].name);
        for (size_t i = 0; i < chart->count; i++) {
            mc_buf_printf(out, "%s%.5g", i ? "," : "", chart->series[s].y[i]);
        }
        mc_buf_puts(out, "]}");
    }
    mc_buf_puts(out, "]}</script>");
}

static void draw_caption(const struct mc_chart *chart, struct mc_buf *out) {
    mc_buf_puts(out, "<figcaption><b>");
    mc_html_escape(out, chart->title);
    mc_buf_puts(out, "</b><span>");
    mc_html_escape(out, chart->note);
    mc_buf_puts(out, "</span>");
    if (chart->series_count > 1) {
        mc_buf_puts(out, "<span class=\"legend\">");
        for (size_t s = 0; s < chart->series_count; s++) {
            mc_buf_printf(out, "<i class=\"s%zu\"></i>", s + 1);
            mc_html_escape(out, chart->series[s].name);
        }
        mc_buf_puts(out, "</span>");
    }
    mc_buf_puts(out, "</figcaption>\n");
}

void mc_chart_draw(const struct mc_chart *chart, struct mc_buf *out) {
    MC_ASSERT(chart->series_count <= MC_CHART_MAX_SERIES);
    mc_buf_puts(out, "<figure>");
    draw_caption(chart, out);
    if (chart->count < 2) {
        mc_buf_puts(out, "<p class=\"none\">The run was too short to draw this.</p></figure>\n");
        return;
    }
    struct axis x, y;
    fit_axes(chart, &x, &y);
    mc_buf_printf(out, "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", BOX_WIDTH,
                  BOX_HEIGHT);
    mc_html_escape(out, chart->title);
    mc_buf_puts(out, "\">");
    draw_y_ticks(chart, &y, out);
    draw_x_ticks(&x, out);
    mc_buf_printf(out, "<text class=\"axis\" text-anchor=\"middle\" x=\"%g\" y=\"%g\">",
                  (MARGIN_LEFT + BOX_WIDTH - MARGIN_RIGHT) / 2, BOX_HEIGHT - 4);
    mc_html_escape(out, chart->x_name);
    mc_buf_puts(out, "</text>");
    for (size_t s = 0; s < chart->series_count; s++) {
        draw_series(chart, s, &x, &y, out);
    }
    mc_buf_printf(out, "<line class=\"cursor\" y1=\"%g\" y2=\"%g\"/></svg>", MARGIN_TOP,
                  BOX_HEIGHT - MARGIN_BOTTOM);
    draw_numbers(chart, &x, out);
    mc_buf_puts(out, "<output></output></figure>\n");
}

void mc_html_escape(struct mc_buf *out, const char *text) {
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            mc_buf_puts(out, "&amp;");
            break;
        case '<':
            mc_buf_puts(out, "&lt;");
            break;
        case '>':
            mc_buf_puts(out, "&gt;");
            break;
        case '"':
            mc_buf_puts(out, "&quot;");
            break;
        default:
            mc_buf_putc(out, *text);
        }
    }
}

void mc_format_grouped(struct mc_buf *out, uint64_t value) {
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    for (int i = 0; i < len; i++) {
        mc_buf_putc(out, digits[i]);
        if (i + 1 < len && (len - 1 - i) % 3 == 0) {
            mc_buf_putc(out, ',');
        }
    }
}

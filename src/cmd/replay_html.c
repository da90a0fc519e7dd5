/*
 * The report of a replay as one HTML page. See cmd/replay_report.h.
 *
 * Style sheet and script are in the page, drawings are inline SVG: the file can be mailed, archived
 * or opened without a network. Light and dark follow the reader's system.
 */
#include "cmd/chart.h"
#include "cmd/replay_report.h"

#include <math.h>
#include <stdio.h>

static const char page_style[] =
    ":root{color-scheme:light "
    "dark;--paper:#fafaf8;--card:#fff;--ink:#1d2026;--soft:#667085;--rule:#e6e6e1;"
    "--c1:#2563c9;--c2:#c2571a;--good:#1a7f4b;--bad:#c0262d}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#14161a;--card:#1c1f25;--ink:#e8e9ec;--soft:#"
    "98a1b0;"
    "--rule:#30343d;--c1:#74a5ff;--c2:#f0a05a;--good:#5fd09a;--bad:#ff7d80}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
    "main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}h1{font-size:26px;margin:0 0 "
    "4px;font-weight:650}\n"
    ".lead{color:var(--soft);margin:0 0 28px}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px;margin-"
    "bottom:22px}\n"
    ".tile,figure,table{background:var(--card);border:1px solid var(--rule);border-radius:10px}\n"
    ".tile{padding:14px 18px}.tile "
    "b{display:block;font-size:25px;font-weight:650;font-variant-numeric:tabular-nums}\n"
    ".tile span{color:var(--soft);font-size:13px}.tile "
    "em{font-style:normal;font-size:13px;color:var(--soft);"
    "display:block}.good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:18px;margin-"
    "bottom:22px}\n"
    "@media(max-width:560px){.charts{grid-template-columns:1fr}}\n"
    "figure{margin:0;padding:16px 18px 10px;position:relative}figcaption "
    "b{display:block;font-weight:600}\n"
    "figcaption span{color:var(--soft);font-size:13px}.legend{display:block}.legend "
    "i{display:inline-block;width:14px;"
    "height:3px;border-radius:2px;margin:0 6px 3px 0}.legend i+i,.legend "
    "i:not(:first-child){margin-left:16px}\n"
    ".legend i.s1{background:var(--c1)}.legend i.s2{background:var(--c2)}\n"
    "svg{display:block;width:100%;height:auto;margin-top:8px}.grid{stroke:var(--rule)}\n"
    ".tick,.axis{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}\n"
    ".line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.line.s1{stroke:var("
    "--c1)}"
    ".line.s2{stroke:var(--c2)}.area{stroke:none;opacity:.12}.area.s1{fill:var(--c1)}.area.s2{fill:"
    "var(--c2)}\n"
    ".cursor{stroke:var(--soft);stroke-dasharray:3 3;visibility:hidden}.none{color:var(--soft)}\n"
    "output{position:absolute;top:14px;right:16px;background:var(--card);border:1px solid "
    "var(--rule);border-radius:7px;"
    "padding:5px "
    "10px;font-size:13px;font-variant-numeric:tabular-nums;visibility:hidden;pointer-events:none}\n"
    "table{border-collapse:separate;border-spacing:0;width:100%;font-variant-numeric:tabular-nums}"
    "\n"
    "td,th{padding:8px 18px;text-align:left;border-bottom:1px solid var(--rule);font-weight:400}"
    "tr:last-child>*{border-bottom:0}th{color:var(--soft);width:34%}\n";

/* Shows the values under the pointer. */
static const char page_script[] =
    "document.querySelectorAll('figure').forEach(f=>{"
    "const d=f.querySelector('script');if(!d)return;"
    "const c=JSON.parse(d.textContent),s=f.querySelector('svg'),"
    "l=f.querySelector('.cursor'),o=f.querySelector('output');"
    "s.addEventListener('pointermove',e=>{"
    "const b=s.getBoundingClientRect(),x=(e.clientX-b.left)/b.width*640;let i=0;"
    "c.p.forEach((p,j)=>{if(Math.abs(p-x)<Math.abs(c.p[i]-x))i=j});"
    "l.setAttribute('x1',c.p[i]);l.setAttribute('x2',c.p[i]);l.style.visibility='visible';"
    "o.textContent=+c.x[i].toPrecision(4)+' '+c.xu+': '+"
    "c.s.map(q=>(c.s.length>1?q.n+' ':'')+(+q.y[i].toPrecision(4)).toLocaleString('en')+c.yu)"
    ".join(', ');o.style.visibility='visible'});"
    "s.addEventListener('pointerleave',()=>{l.style.visibility=o.style.visibility='hidden'})})";

/* ---- tiles ---- */

static void tile(struct mc_buf *out, const char *name, const char *tone, const char *value,
                 const char *more) {
    mc_buf_printf(out,
                  "<div class=\"tile\"><span>%s</span><b class=\"%s\">%s</b><em>%s</em></div>\n",
                  name, tone, value, more);
}

static void draw_tiles(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_result *r = report->result;
    char value[64], more[160];
    struct mc_buf text = {0};
    double seconds = r->seconds > 0 ? r->seconds : 1;
    mc_buf_puts(out, "<div class=\"tiles\">\n");
    snprintf(value, sizeof(value), "%.3f", mc_rate(r->total.hit_blocks, r->total.blocks));
    snprintf(more, sizeof(more), "a cache without limit: %.3f", report->bound.hit_rate_blocks);
    tile(out, "Hit rate by blocks", "", value, more);
    snprintf(value, sizeof(value), "%.3f", mc_rate(r->total.hit_tokens, r->total.tokens));
    snprintf(more, sizeof(more), "a cache without limit: %.3f", report->bound.hit_rate_tokens);
    tile(out, "Hit rate by tokens", "", value, more);
    mc_format_size(&text, r->verified_bytes);
    snprintf(more, sizeof(more), "%llu blocks wrong, %llu errors",
             (unsigned long long)r->mismatches, (unsigned long long)r->errors);
    tile(out, "Verified, every byte", r->mismatches + r->errors == 0 ? "good" : "bad",
         mc_buf_cstr(&text), more);
    snprintf(value, sizeof(value), "%.2f GB/s",
             (double)(r->read_bytes + r->written_bytes) / seconds / 1e9);
    mc_buf_clear(&text);
    mc_format_grouped(&text, r->gets);
    mc_buf_puts(&text, " blocks read, ");
    mc_format_grouped(&text, r->puts);
    mc_buf_puts(&text, " written");
    tile(out, "Throughput", "", value, mc_buf_cstr(&text));
    snprintf(value, sizeof(value), "%.2f ms", mc_latencies_at(&r->get_latency, .5) / 1e3);
    snprintf(more, sizeof(more), "p99 %.2f ms, a whole request's blocks",
             mc_latencies_at(&r->get_latency, .99) / 1e3);
    tile(out, "Get latency, p50", "", value, more);
    snprintf(value, sizeof(value), "%.1f s", r->seconds);
    mc_buf_clear(&text);
    mc_format_grouped(&text, r->requests);
    mc_buf_puts(&text, " requests, ");
    mc_format_grouped(&text, (uint64_t)((double)r->requests / seconds));
    mc_buf_puts(&text, " a second");
    tile(out, "Duration", "", value, mc_buf_cstr(&text));
    mc_buf_puts(out, "</div>\n");
    mc_buf_free(&text);
}

/* ---- charts ---- */

#define MAX_POINTS 240 /* samples drawn; more would be finer than the screen */

static void draw_hit_rate(const struct mc_replay_result *r, struct mc_buf *out) {
    double x[MC_REPLAY_BINS], blocks[MC_REPLAY_BINS], tokens[MC_REPLAY_BINS];
    size_t count = 0;
    for (size_t i = 0; i < MC_REPLAY_BINS; i++) {
        const struct mc_replay_bin *bin = &r->bins[i];
        if (bin->blocks == 0) {
            continue;
        }
        x[count] = (double)(r->bin_ms * (2 * i + 1)) / 2 / 60e3;
        blocks[count] = 100 * mc_rate(bin->hit_blocks, bin->blocks);
        tokens[count] = 100 * mc_rate(bin->hit_tokens, bin->tokens);
        count++;
    }
    struct mc_chart chart = {
        .title = "Hit rate over time",
        .note = "per cent of the blocks and of the input tokens that the cluster had",
        .x_name = "time in the trace, minutes",
        .x_unit = "min",
        .y_unit = " %",
        .y_top = 50,
        .x = x,
        .count = count,
        .series = {{"by blocks", blocks}, {"by tokens", tokens}},
        .series_count = 2};
    mc_chart_draw(&chart, out);
}

#define LATENCY_STEPS 8                   /* a power of ten */
#define LATENCY_BINS  (7 * LATENCY_STEPS) /* 1 us to 10 s */

static void spread_latencies(const struct mc_latencies *latencies, double *percent) {
    for (size_t i = 0; i < LATENCY_BINS; i++) {
        percent[i] = 0;
    }
    for (size_t i = 0; i < latencies->count; i++) {
        double us = latencies->us[i] > 0 ? latencies->us[i] : 1;
        size_t bin = (size_t)(log10(us) * LATENCY_STEPS);
        percent[mc_min_u64(bin, LATENCY_BINS - 1)] += 100.0 / (double)latencies->count;
    }
}

static void draw_latency(const struct mc_replay_result *r, struct mc_buf *out) {
    double x[LATENCY_BINS], get[LATENCY_BINS], put[LATENCY_BINS];
    spread_latencies(&r->get_latency, get);
    spread_latencies(&r->put_latency, put);
    size_t first = 0, last = LATENCY_BINS;
    while (first < last && get[first] + put[first] == 0) {
        first++;
    }
    while (last > first && get[last - 1] + put[last - 1] == 0) {
        last--;
    }
    first = first > 0 ? first - 1 : first; /* the curve starts and ends at zero */
    last = last < LATENCY_BINS ? last + 1 : last;
    for (size_t i = first; i < last; i++) {
        x[i] = pow(10, ((double)i + .5) / LATENCY_STEPS) / 1e3;
    }
    char note[160];
    snprintf(
        note, sizeof(note), "per cent of requests; p50, p99 in ms: get %.2f, %.2f, put %.2f, %.2f",
        mc_latencies_at(&r->get_latency, .5) / 1e3, mc_latencies_at(&r->get_latency, .99) / 1e3,
        mc_latencies_at(&r->put_latency, .5) / 1e3, mc_latencies_at(&r->put_latency, .99) / 1e3);
    struct mc_chart chart = {.title = "Latency of a request's blocks",
                             .note = note,
                             .x_name = "milliseconds, logarithmic",
                             .x_unit = "ms",
                             .y_unit = " %",
                             .x_log = true,
                             .x = x + first,
                             .count = last - first,
                             .series = {{"get", get + first}, {"put", put + first}},
                             .series_count = 2};
    mc_chart_draw(&chart, out);
}

struct time_series {
    double x[MAX_POINTS], read[MAX_POINTS], written[MAX_POINTS], used[MAX_POINTS],
        evicted[MAX_POINTS];
    size_t count;
    bool cluster_known;
    double capacity;
};

static void collect_samples(const struct mc_replay_result *r, struct time_series *t) {
    *t = (struct time_series){0};
    size_t stride = r->sample_count / MAX_POINTS + 1;
    const struct mc_replay_sample *before = r->samples;
    for (size_t i = stride; i < r->sample_count; i += stride) {
        const struct mc_replay_sample *sample = &r->samples[i];
        double span = sample->seconds - before->seconds;
        if (span < 0.02) { /* a rate over so little time says nothing: the end of a run */
            continue;
        }
        t->x[t->count] = sample->seconds;
        t->read[t->count] = (double)(sample->read_bytes - before->read_bytes) / span / 1e9;
        t->written[t->count] = (double)(sample->written_bytes - before->written_bytes) / span / 1e9;
        t->used[t->count] = (double)sample->cluster.allocated_bytes / (1 << 30);
        t->evicted[t->count] =
            (double)(sample->cluster.evicted_keys - r->samples[0].cluster.evicted_keys);
        t->cluster_known = sample->cluster.known;
        t->capacity = (double)sample->cluster.capacity_bytes / (1 << 30);
        t->count++;
        before = sample;
    }
}

static void draw_time_series(const struct mc_replay_result *r, struct mc_buf *out) {
    struct time_series *t = mc_alloc(sizeof(*t));
    collect_samples(r, t);
    struct mc_chart chart = {.title = "Throughput",
                             .note = "GB/s of block contents, without headers",
                             .x_name = "seconds of the run",
                             .x_unit = "s",
                             .y_unit = " GB/s",
                             .x = t->x,
                             .count = t->count,
                             .series = {{"read", t->read}, {"written", t->written}},
                             .series_count = 2};
    mc_chart_draw(&chart, out);
    if (t->cluster_known) {
        char note[96];
        snprintf(note, sizeof(note), "GiB in use, of %.2f GiB that the nodes lend", t->capacity);
        chart.title = "Memory use";
        chart.note = note;
        chart.y_unit = " GiB";
        chart.y_top = t->capacity;
        chart.series[0] = (struct mc_chart_series){"in use", t->used};
        chart.series_count = 1;
        mc_chart_draw(&chart, out);
        chart.title = "Evictions";
        chart.note = "blocks evicted since the run began";
        chart.y_unit = " blocks";
        chart.y_top = 10;
        chart.series[0] = (struct mc_chart_series){"evicted", t->evicted};
        mc_chart_draw(&chart, out);
    }
    free(t);
}

static void draw_progress_chart(const struct mc_replay_result *r, struct mc_buf *out) {
    double x[MAX_POINTS], requests[MAX_POINTS];
    size_t count = 0, stride = r->sample_count / MAX_POINTS + 1;
    for (size_t i = 0; i < r->sample_count; i += stride) {
        x[count] = r->samples[i].seconds;
        requests[count++] = (double)r->samples[i].requests;
    }
    struct mc_chart chart = {.title = "Requests served",
                             .note = "requests finished since the run began",
                             .x_name = "seconds of the run",
                             .x_unit = "s",
                             .y_unit = " requests",
                             .y_top = 1,
                             .x = x,
                             .count = count,
                             .series = {{"requests", requests}},
                             .series_count = 1};
    mc_chart_draw(&chart, out);
}

/* ---- the page ---- */

static void row(struct mc_buf *out, const char *name, const char *value) {
    mc_buf_printf(out, "<tr><th>%s</th><td>", name);
    mc_html_escape(out, value);
    mc_buf_puts(out, "</td></tr>\n");
}

static void draw_table(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_result *r = report->result;
    struct mc_buf text = {0};
    mc_buf_puts(out, "<table>\n");
    row(out, "Cluster", report->cluster);
    mc_format_size(&text, report->block_bytes);
    mc_buf_printf(&text, " a block%s%s", report->model[0] ? ", preset " : "", report->model);
    row(out, "Objects", mc_buf_cstr(&text));
    mc_buf_clear(&text);
    mc_buf_printf(&text, "%u requests at a time, ", report->concurrency);
    if (report->speed > 0) {
        mc_buf_printf(&text, "%g times the trace's speed", report->speed);
    } else {
        mc_buf_puts(&text, "as fast as possible");
    }
    row(out, "Load", mc_buf_cstr(&text));
    mc_buf_clear(&text);
    mc_format_grouped(&text, r->total.blocks);
    mc_buf_puts(&text, " block references, ");
    mc_format_grouped(&text, report->trace->distinct_count);
    mc_buf_puts(&text, " distinct, ");
    mc_format_grouped(&text, r->total.tokens);
    mc_buf_puts(&text, " input tokens");
    row(out, "Trace", mc_buf_cstr(&text));
    mc_buf_clear(&text);
    mc_buf_printf(&text, "%.3f of the blocks, counting only those before a request's first miss",
                  mc_rate(r->total.prefix_blocks, r->total.blocks));
    row(out, "Prefix hits", mc_buf_cstr(&text));
    mc_buf_clear(&text);
    mc_format_grouped(&text, r->puts_refused);
    mc_buf_puts(&text, " blocks");
    row(out, "Refused for lack of room", mc_buf_cstr(&text));
    mc_buf_puts(out, "</table>\n");
    mc_buf_free(&text);
}

void mc_replay_report_html(const struct mc_replay_report *report, struct mc_buf *out) {
    const struct mc_replay_result *r = report->result;
    mc_buf_puts(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                     "<meta name=\"viewport\" "
                     "content=\"width=device-width,initial-scale=1\"><title>Mooncake replay: ");
    mc_html_escape(out, report->trace->title);
    mc_buf_printf(out,
                  "</title><style>\n%s</style></head><body><main>\n<h1>Mooncake replay</h1><p "
                  "class=\"lead\">",
                  page_style);
    mc_html_escape(out, report->trace->title);
    mc_buf_puts(out, ": ");
    mc_format_grouped(out, r->requests);
    mc_buf_printf(out, " requests%s on ", r->stopped_early ? " (stopped early)" : "");
    mc_html_escape(out, report->cluster);
    mc_buf_puts(out, ". Every read compared with what was written.</p>\n");
    draw_tiles(report, out);
    mc_buf_puts(out, "<div class=\"charts\">\n");
    draw_hit_rate(r, out);
    draw_latency(r, out);
    draw_time_series(r, out);
    draw_progress_chart(r, out);
    mc_buf_puts(out, "</div>\n");
    draw_table(report, out);
    mc_buf_printf(out, "</main><script>%s</script></body></html>\n", page_script);
}

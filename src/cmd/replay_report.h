/*
 * What a replay found: for the terminal, as JSON, and as one HTML page that needs nothing but
 * itself.
 */
#ifndef MC_CMD_REPLAY_REPORT_H
#define MC_CMD_REPLAY_REPORT_H

#include "cmd/replay.h"

struct mc_replay_report {
    const struct mc_trace *trace;
    const struct mc_replay_result *result;
    struct mc_trace_bound bound; /* of an infinite cache */
    const char *model;           /* preset, or "" when --block-bytes was given */
    uint64_t block_bytes;
    unsigned concurrency;
    double speed;
    const char *cluster; /* "embedded master, 3 node processes of 2.0 GiB", "master at host:port" */
};

/* The numbers that a program reads. docs/replay.md says what each means. */
void mc_replay_report_json(const struct mc_replay_report *report, struct mc_buf *out);
void mc_replay_report_text(const struct mc_replay_report *report, struct mc_buf *out);
void mc_replay_report_html(const struct mc_replay_report *report, struct mc_buf *out);

#endif

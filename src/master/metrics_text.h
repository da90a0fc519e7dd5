/*
 * Reading one value out of Prometheus text: for summaries of what a master exports, in this process
 * or fetched.
 */
#ifndef MC_MASTER_METRICS_TEXT_H
#define MC_MASTER_METRICS_TEXT_H

#include "base/base.h"

/* The value of the unlabelled metric `name` in NUL-terminated Prometheus text;
 * 0 when it is absent. */
int64_t mc_metrics_text_value(const char *text, const char *name);

#endif

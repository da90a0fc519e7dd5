/*
 * linear: is a history of one key linearizable?
 *
 * Each operation took effect at one moment between its begin and its end; is there an order of
 * these moments in which a cache of one object would have answered the same? Linearizability is
 * local, so that each key is judged by itself.
 *
 * The cache holds nothing or one value, each value is written by one operation, and it may lose its
 * value at any moment (eviction, crashes). An operation whose outcome is not known is a `maybe`: it
 * took effect before its end, or never. A new rule of the store is a new kind here, and one row in
 * apply() of linear.c.
 */
#ifndef MC_TESTS_SIM_LINEAR_H
#define MC_TESTS_SIM_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_op_kind {
    SIM_OP_WRITE,   /* the key holds the value now, whatever it held */
    SIM_OP_PUT,     /* the same, or it held another one, which stays */
    SIM_OP_READ,    /* it holds the value */
    SIM_OP_PRESENT, /* it holds some value */
    SIM_OP_ABSENT,  /* it holds nothing, perhaps from now on */
};
struct sim_op {
    enum sim_op_kind kind;
    bool maybe;
    uint32_t value; /* from 1; 0 = none */
    uint64_t begin_ns, end_ns;
};

struct sim_verdict {
    bool linearizable;
    bool given_up;  /* too many operations at once, or too many possibilities; not linearizable */
    size_t culprit; /* the operation that cannot be placed */
    size_t most;    /* possibilities that were open at a time */
};
struct sim_verdict sim_linear_check(const struct sim_op *ops, size_t count);
const char *sim_op_name(enum sim_op_kind kind);

#endif

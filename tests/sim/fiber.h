/*
 * Fibers: straight-line code that can be put aside in the middle of a call and taken up later.
 *
 * The client's protocol logic blocks in its port; in the simulator every process is a fiber, so a
 * blocked call is a parked fiber and one thread runs the whole cluster. A fiber ends only by
 * returning from its main function, so its stack is always unwound and nothing leaks.
 */
#ifndef MC_TESTS_SIM_FIBER_H
#define MC_TESTS_SIM_FIBER_H

#include <stdbool.h>
#include <stddef.h>

struct sim_fiber {
    void *own; /* stack pointers of the side that is put aside */
    void *scheduler;
    void (*main)(void *arg);
    void *arg;
    char *stack; /* NULL = not started or ended */
    bool done;
    /* AddressSanitizer follows the change of stacks with these */
    void *own_fake_stack;
    void *scheduler_fake_stack;
    const void *scheduler_bottom;
    size_t scheduler_size;
};

/* Runs `main` until it parks for the first time. */
void sim_fiber_start(struct sim_fiber *fiber, void (*main)(void *arg), void *arg);
/* From the scheduler: runs the fiber until it parks or ends. */
void sim_fiber_resume(struct sim_fiber *fiber);
/* From inside: back to the scheduler. */
void sim_fiber_park(struct sim_fiber *fiber);

#endif

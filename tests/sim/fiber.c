/*
 * Fibers on ucontext, with a guard page below each stack. See fiber.h.
 *
 * Every switch tells AddressSanitizer which stack comes next, else it would take the first access
 * to the other stack for an overflow.
 */
#include "sim/fiber.h"

#include <sys/mman.h>

#include "base/base.h"

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
static void leave_for(void **fake_stack, const void *bottom, size_t size) {
    __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
static void arrived(void *fake_stack, const void **old_bottom, size_t *old_size) {
    __sanitizer_finish_switch_fiber(fake_stack, old_bottom, old_size);
}
static void clean_shadow(void *stack, size_t size) {
    __asan_unpoison_memory_region(stack, size); /* of an earlier stack at the same place */
}
#else
static void leave_for(void **fake_stack, const void *bottom, size_t size) {
    (void)fake_stack, (void)bottom, (void)size;
}
static void arrived(void *fake_stack, const void **old_bottom, size_t *old_size) {
    (void)fake_stack, (void)old_bottom, (void)old_size;
}
static void clean_shadow(void *stack, size_t size) {
    (void)stack, (void)size;
}
#endif

static void trampoline(unsigned high, unsigned low) {
    struct sim_fiber *fiber = (struct sim_fiber *)((uintptr_t)high << 32 | low);
    arrived(NULL, &fiber->scheduler_bottom, &fiber->scheduler_size);
    fiber->main(fiber->arg);
    fiber->done = true;
    leave_for(NULL, fiber->scheduler_bottom, fiber->scheduler_size); /* NULL: never comes back */
    setcontext(&fiber->scheduler);
}

void sim_fiber_start(struct sim_fiber *fiber, void (*main)(void *arg), void *arg) {
    MC_ASSERT(fiber->stack == NULL);
    char *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_ASSERT(stack != MAP_FAILED);
    MC_ASSERT(mprotect(stack, GUARD_BYTES, PROT_NONE) == 0);
    clean_shadow(stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
    *fiber = (struct sim_fiber){.main = main, .arg = arg, .stack = stack};
    MC_ASSERT(getcontext(&fiber->own) == 0);
    fiber->own.uc_stack.ss_sp = stack;
    fiber->own.uc_stack.ss_size = STACK_BYTES;
    fiber->own.uc_link = NULL;
    uintptr_t self = (uintptr_t)fiber;
    makecontext(&fiber->own, (void (*)(void))trampoline, 2, (unsigned)(self >> 32),
                (unsigned)(self & UINT32_MAX));
    sim_fiber_resume(fiber);
}

void sim_fiber_resume(struct sim_fiber *fiber) {
    MC_ASSERT(fiber->stack != NULL && !fiber->done);
    leave_for(&fiber->scheduler_fake_stack, fiber->stack, STACK_BYTES);
    MC_ASSERT(swapcontext(&fiber->scheduler, &fiber->own) == 0);
    arrived(fiber->scheduler_fake_stack, NULL, NULL);
    if (fiber->done) {
        munmap(fiber->stack, STACK_BYTES);
        fiber->stack = NULL;
    }
}

void sim_fiber_park(struct sim_fiber *fiber) {
    leave_for(&fiber->own_fake_stack, fiber->scheduler_bottom, fiber->scheduler_size);
    MC_ASSERT(swapcontext(&fiber->own, &fiber->scheduler) == 0);
    arrived(fiber->own_fake_stack, &fiber->scheduler_bottom, &fiber->scheduler_size);
}

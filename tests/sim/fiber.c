/*
 * Fibers by a switch of stack pointers, with a guard page below each stack. See fiber.h.
 *
 * A switch saves what the ABI says that a call keeps, and nothing else: swapcontext(3) would enter
 * the kernel twice for signal masks that nobody changes, which was a fifth of the simulator's time.
 * Stacks are kept for the next fiber, as a run makes some dozens of them.
 *
 * Every switch tells AddressSanitizer which stack comes next, else it would take the first access
 * to the other stack for an overflow.
 */
#include "sim/fiber.h"

#include <sys/mman.h>

#include "base/base.h"

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u
#define STACKS_KEPT 64u

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

/* ---- switching ---- */

/* Saves the callee's registers on this stack, its pointer in *save, and goes on where `load` was
 * saved. A fresh stack is laid out as if it had been saved at the entry of sim_fiber_enter, with
 * the fiber in the first saved register. */
void sim_fiber_switch(void **save, void *load);
void sim_fiber_enter(void);
void sim_fiber_main(struct sim_fiber *fiber);

#if defined(__x86_64__)
#define SAVED_WORDS 6 /* r15 r14 r13 r12 rbx rbp */
#define FIRST_SAVED 0
__asm__(".text\n"
        ".globl sim_fiber_switch\n"
        ".type sim_fiber_switch, @function\n"
        "sim_fiber_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n"
        "    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n"
        "    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size sim_fiber_switch, .-sim_fiber_switch\n"
        ".globl sim_fiber_enter\n"
        ".type sim_fiber_enter, @function\n"
        "sim_fiber_enter:\n"
        "    mov %r15, %rdi\n"
        "    call sim_fiber_main\n"
        "    ud2\n"
        ".size sim_fiber_enter, .-sim_fiber_enter\n");
#elif defined(__aarch64__)
#define SAVED_WORDS 20 /* x19..x28 x29 x30, d8..d15 */
#define FIRST_SAVED 0
__asm__(".text\n"
        ".globl sim_fiber_switch\n"
        ".type sim_fiber_switch, %function\n"
        "sim_fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".globl sim_fiber_enter\n"
        ".type sim_fiber_enter, %function\n"
        "sim_fiber_enter:\n"
        "    mov x0, x19\n"
        "    bl sim_fiber_main\n"
        "    brk #0\n");
#else
#error "the simulator's fibers need a stack switch for this processor"
#endif

void sim_fiber_main(struct sim_fiber *fiber) {
    void *nowhere;
    arrived(NULL, &fiber->scheduler_bottom, &fiber->scheduler_size);
    fiber->main(fiber->arg);
    fiber->done = true;
    leave_for(NULL, fiber->scheduler_bottom, fiber->scheduler_size); /* NULL: never comes back */
    sim_fiber_switch(&nowhere, fiber->scheduler);
}

/* ---- stacks ---- */

/* Of the one thread that runs simulations. */
static char *kept_stacks[STACKS_KEPT];
static unsigned kept_count;

static char *take_stack(void) {
    if (kept_count > 0) {
        return kept_stacks[--kept_count];
    }
    char *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MC_ASSERT(stack != MAP_FAILED);
    MC_ASSERT(mprotect(stack, GUARD_BYTES, PROT_NONE) == 0);
    return stack;
}

static void give_stack(char *stack) {
    if (kept_count < STACKS_KEPT) {
        kept_stacks[kept_count++] = stack;
    } else {
        munmap(stack, STACK_BYTES);
    }
}

/* ---- fibers ---- */

void sim_fiber_start(struct sim_fiber *fiber, void (*main)(void *arg), void *arg) {
    MC_ASSERT(fiber->stack == NULL);
    char *stack = take_stack();
    clean_shadow(stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
    *fiber = (struct sim_fiber){.main = main, .arg = arg, .stack = stack};
    void **top = (void **)(stack + STACK_BYTES) - 2; /* aligned as a return address leaves it */
#if defined(__x86_64__)
    *--top = (void *)sim_fiber_enter;
    top -= SAVED_WORDS;
    memset(top, 0, SAVED_WORDS * sizeof(*top));
#else
    top -= SAVED_WORDS;
    memset(top, 0, SAVED_WORDS * sizeof(*top));
    top[11] = (void *)sim_fiber_enter; /* x30 */
#endif
    top[FIRST_SAVED] = fiber;
    fiber->own = top;
    sim_fiber_resume(fiber);
}

void sim_fiber_resume(struct sim_fiber *fiber) {
    MC_ASSERT(fiber->stack != NULL && !fiber->done);
    leave_for(&fiber->scheduler_fake_stack, fiber->stack, STACK_BYTES);
    sim_fiber_switch(&fiber->scheduler, fiber->own);
    arrived(fiber->scheduler_fake_stack, NULL, NULL);
    if (fiber->done) {
        give_stack(fiber->stack);
        fiber->stack = NULL;
    }
}

void sim_fiber_park(struct sim_fiber *fiber) {
    leave_for(&fiber->own_fake_stack, fiber->scheduler_bottom, fiber->scheduler_size);
    sim_fiber_switch(&fiber->own, fiber->scheduler);
    arrived(fiber->own_fake_stack, &fiber->scheduler_bottom, &fiber->scheduler_size);
}

/*
 * What every test uses: cmocka, and a pattern whose every byte depends on its place and a seed, so
 * that a byte that is missing, doubled or moved is seen.
 */
#ifndef MC_TESTS_SUPPORT_H
#define MC_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <cmocka.h>

#include "base/base.h"

#define assert_ok(expr) assert_int_equal((expr), MC_OK)

void mc_test_fill(void *buffer, size_t len, uint64_t seed);
/* Fails the test at the first byte that differs; len must be > 0. */
void mc_test_verify(const void *buffer, size_t len, uint64_t seed);

/* Stops a child with SIGSTOP. kill() alone returns while the child may still answer; when this
 * returns, all its threads stand still. */
void mc_test_stop_child(pid_t child);

#endif

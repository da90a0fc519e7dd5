/*
 * Contents derived from a key: what a replay or bench writes, and how it proves that a read
 * returned it.
 *
 * Eight 64-bit xorshift streams, seeded from the key, give 64 bytes a step; every byte depends on
 * the key and on its place, so a byte that is missing, doubled, moved or of another key is seen.
 * Only shifts and xors, lane by lane, so that the compiler keeps the state in vector registers:
 * checking runs at memory speed.
 */
#ifndef MC_CMD_CONTENT_H
#define MC_CMD_CONTENT_H

#include "base/base.h"

uint64_t mc_content_seed(const char *key);
void mc_content_fill(void *buffer, size_t length, uint64_t seed);
/* True when all `length` bytes are as filled; else *bad_at is the first that is not. */
bool mc_content_verify(const void *buffer, size_t length, uint64_t seed, size_t *bad_at);

#endif

#include "support/support.h"

#include <endian.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define BLOCK 4096

static uint64_t pattern(uint64_t word, uint64_t seed) {
    word = (word + 1) * 0x9e3779b97f4a7c15u ^ seed * 0xff51afd7ed558ccdu;
    return word ^ word >> 29;
}

/* Bytes [first, first + len) of the pattern; `first` is a multiple of 8. */
static void fill(uint8_t *to, size_t first, size_t len, uint64_t seed) {
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = htole64(pattern((first + i) / 8, seed));
        memcpy(to + i, &word, len - i < 8 ? len - i : 8);
    }
}

void mc_test_fill(void *buffer, size_t len, uint64_t seed) {
    fill(buffer, 0, len, seed);
}

void mc_test_verify(const void *buffer, size_t len, uint64_t seed) {
    const uint8_t *bytes = buffer;
    uint8_t expected[BLOCK];
    assert_true(len > 0);
    for (size_t at = 0; at < len; at += BLOCK) {
        size_t part = len - at < BLOCK ? len - at : BLOCK;
        fill(expected, at, part, seed);
        for (size_t i = 0; memcmp(bytes + at, expected, part) != 0 && i < part; i++) {
            if (bytes[at + i] != expected[i]) {
                fail_msg("byte %zu of %zu is %02x, not %02x", at + i, len, bytes[at + i],
                         expected[i]);
            }
        }
    }
}

void mc_test_stop_child(pid_t child) {
    int status = 0;
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
}

/*
 * CRC-64/ECMA-182 (not reflected, start 0) of an object's bytes: what upstream attaches and
 * verifies with MOONCAKE_STORE_CHECKSUM=1. ISA-L computes it by carry-less multiplication.
 */
#include "client/checksum.h"

#include <isa-l/crc64.h>

#include "base/base.h"
#include "te/device.h"

bool mc_checksum_possible(const struct mc_slice *slices, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!mc_device_is_host(slices[i].ptr)) {
            return false;
        }
    }
    return true;
}

uint64_t mc_checksum_slices(const struct mc_slice *slices, size_t count, uint64_t length) {
    /* ISA-L inverts on the way in and out; twice inverted is start 0, no final xor. */
    uint64_t crc = ~0ull;
    for (size_t i = 0; i < count && length > 0; i++) {
        uint64_t step = mc_min_u64(slices[i].length, length);
        crc = crc64_ecma_norm(crc, slices[i].ptr, step);
        length -= step;
    }
    return ~crc;
}

/*
 * CRC-64/ECMA-182 (not reflected, start 0) of an object's bytes: what upstream attaches and
 * verifies with MOONCAKE_STORE_CHECKSUM=1. ISA-L computes it by carry-less multiplication.
 */
#include "client/checksum.h"

#include <isa-l/crc64.h>

#include "base/base.h"
#include "te/device.h"

#define POLYNOMIAL 0x42f0e1eba9ea3693u
/* x to the power of 8 * 2^i, modulo the polynomial. */
static const uint64_t POWERS[64] = {
    0x0000000000000100u, 0x0000000000010000u, 0x0000000100000000u, 0x42f0e1eba9ea3693u,
    0x05f5c3c7eb52fab6u, 0x571bee0a227ef92bu, 0x5f6843ca540df020u, 0x05cf79dea9ac37d6u,
    0x7f52691a60ddc70du, 0x1c6ffb45e31ea184u, 0x4f3abb24f049ddb6u, 0xad7ab2db3f30285eu,
    0xdea023d37a0ecd82u, 0x578353356a6d562bu, 0xcedf2c3f65b7d94cu, 0xe9e9d0ac2b3f258au,
    0xb975f7ec6a15f28cu, 0x48ab18a8597e4f35u, 0xe731b2511cc547ffu, 0x727433067e969d12u,
    0x06246bb1ed3ce5b5u, 0xdd83a731b2a2a57cu, 0x8f57f0e365c7217au, 0x8b81bd366d92bf09u,
    0x172a4db8307c2947u, 0x852c11537b565f37u, 0x84c77c9a4847c8afu, 0x6890208ccea756cfu,
    0xe8e6de1dcccbdfc6u, 0xd1d0af4a871f06bdu, 0xbe6a8399415273a5u, 0x77aadbd30fa22bd0u,
    0xa142c80472416bbfu, 0x5e4445bd76d1b573u, 0x3adf2baf27e8d227u, 0xa3e5380b581394d9u,
    0xaa0257f02766c2d8u, 0xde687558aa853de4u, 0x096a59cd8b3dea55u, 0x9db2c485fc173febu,
    0x71ffc57f76192733u, 0x8f82ca679b25406cu, 0xa2868afb45b8d44eu, 0xc15b105cbbbc3f37u,
    0x67e0ac1533b69df0u, 0x010f0eb1e7f4fa48u, 0x68a558a6ed0af421u, 0xf6c19b31182c3d90u,
    0x909b698213666c2fu, 0xd336fb030cd7f6adu, 0x1a90cfe732076655u, 0xe2a94f597e188dedu,
    0x7ba926e21faa4c88u, 0x7eeba90c1ef98df1u, 0xcc8d413e33552375u, 0xf314218490b6726fu,
    0x051a435a574e56c0u, 0x56555ed748f7ac4au, 0xca1ea6a168deb7f4u, 0xadf60662b8a91f71u,
    0x28b2c0f090831ab9u, 0xde955bf959a36f6cu, 0x49a41619be8ab47du, 0x8f94eaf7f1ceb3deu};

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

static uint64_t multiply(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    for (int bit = 63; bit >= 0; bit--) {
        product = product << 1 ^ (product >> 63) * POLYNOMIAL;
        product ^= (b >> bit & 1) * a;
    }
    return product;
}

uint64_t mc_checksum_shift(uint64_t checksum, uint64_t zeros) {
    for (unsigned i = 0; i < 64 && zeros >> i != 0; i++) {
        checksum = zeros >> i & 1 ? multiply(checksum, POWERS[i]) : checksum;
    }
    return checksum;
}

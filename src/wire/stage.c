/* See stage.h. */
#include "wire/stage.h"

#include <endian.h>

static const char magic[4] = {'m', 'c', 's', '1'};

static void put64(uint8_t *at, uint64_t value) {
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static uint64_t get64(const char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

void mc_stage_encode(const struct mc_stage_message *m, uint8_t out[MC_STAGE_BYTES]) {
    uint32_t status = htole32((uint32_t)m->status);
    memset(out, 0, MC_STAGE_BYTES);
    memcpy(out, magic, sizeof(magic));
    out[4] = (uint8_t)m->op;
    out[5] = m->flags;
    memcpy(out + 8, &status, sizeof(status));
    put64(out + 16, m->engine.hi);
    put64(out + 24, m->engine.lo);
    put64(out + 32, m->chunk);
    put64(out + 40, m->device);
    put64(out + 48, m->length);
}

enum mc_status mc_stage_decode(struct mc_str bytes, struct mc_stage_message *m) {
    uint32_t status;
    if (bytes.len != MC_STAGE_BYTES || memcmp(bytes.ptr, magic, sizeof(magic)) != 0 ||
        bytes.ptr[4] < MC_STAGE_TAKE || bytes.ptr[4] > MC_STAGE_GIVE_BACK) {
        return MC_ERR_PROTOCOL;
    }
    memcpy(&status, bytes.ptr + 8, sizeof(status));
    int32_t code = (int32_t)le32toh(status);
    if (code > 0) { /* no status is positive */
        return MC_ERR_PROTOCOL;
    }
    *m = (struct mc_stage_message){
        .op = (enum mc_stage_op)bytes.ptr[4],
        .flags = (uint8_t)bytes.ptr[5],
        .status = (enum mc_status)code,
        .engine = {get64(bytes.ptr + 16), get64(bytes.ptr + 24)},
        .chunk = get64(bytes.ptr + 32),
        .device = get64(bytes.ptr + 40),
        .length = get64(bytes.ptr + 48),
    };
    return MC_OK;
}

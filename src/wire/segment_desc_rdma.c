/*
 * The RDMA members of a segment descriptor: devices, priority matrix, keys of buffers.
 *
 * Only descriptors whose every device has a name and a GID are of RDMA; other protocols use the
 * member `devices` with other contents. A buffer has either no keys (RDMA does not serve it) or one
 * a device. Counts are bounded before anything is allocated.
 */
#include "wire/segment_desc_rdma.h"

#include "wire/rdma_setup.h"

void mc_rdma_desc_free(struct mc_rdma_desc *rdma) {
    if (rdma != NULL) {
        free(rdma->devices);
        free(rdma->priority_matrix);
        free(rdma->keys);
        free(rdma->rkeys);
        free(rdma);
    }
}

const struct mc_rdma_keys_desc *mc_rdma_desc_find(const struct mc_rdma_desc *rdma, uint64_t addr) {
    size_t low = 0, high = rdma->key_count;
    while (low < high) { /* the last entry that begins at or before addr */
        size_t mid = (low + high) / 2;
        if (rdma->keys[mid].addr <= addr) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low == 0) {
        return NULL;
    }
    const struct mc_rdma_keys_desc *keys = &rdma->keys[low - 1];
    return addr - keys->addr < keys->length ? keys : NULL;
}

static bool decode_device(const json_t *item, struct mc_rdma_device_desc *device) {
    const char *name = json_string_value(json_object_get(item, "name"));
    const char *gid = json_string_value(json_object_get(item, "gid"));
    const json_t *lid = json_object_get(item, "lid");
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof(device->name) || gid == NULL ||
        mc_rdma_gid_parse(gid, device->gid) != MC_OK || !json_is_integer(lid) ||
        json_integer_value(lid) < 0 || json_integer_value(lid) > UINT16_MAX) {
        return false;
    }
    for (const char *c = name; *c != '\0'; c++) {
        if (*c < 0x21 || *c > 0x7e || *c == '@') {
            return false;
        }
    }
    memcpy(device->name, name, strlen(name) + 1);
    device->lid = (uint16_t)json_integer_value(lid);
    return true;
}

static bool decode_devices(const json_t *list, struct mc_rdma_desc *rdma) {
    rdma->device_count = json_array_size(list);
    rdma->devices = mc_zalloc(rdma->device_count * sizeof(*rdma->devices));
    for (size_t i = 0; i < rdma->device_count; i++) {
        if (!decode_device(json_array_get(list, i), &rdma->devices[i])) {
            return false;
        }
    }
    return true;
}

static bool decode_keys(const json_t *list, size_t count, uint32_t *out) {
    if (json_array_size(list) != count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *key = json_array_get(list, i);
        if (!json_is_integer(key) || json_integer_value(key) < 0 ||
            json_integer_value(key) > UINT32_MAX) {
            return false;
        }
        out[i] = (uint32_t)json_integer_value(key);
    }
    return true;
}

static int by_addr(const void *a, const void *b) {
    uint64_t x = ((const struct mc_rdma_keys_desc *)a)->addr;
    uint64_t y = ((const struct mc_rdma_keys_desc *)b)->addr;
    return (x > y) - (x < y);
}

/* Addresses and lengths have been checked with the buffers. */
static bool decode_buffers(const json_t *list, struct mc_rdma_desc *rdma) {
    size_t count = json_array_size(list);
    rdma->keys = mc_zalloc((count + 1) * sizeof(*rdma->keys));
    rdma->rkeys = mc_zalloc((count * rdma->device_count + 1) * sizeof(*rdma->rkeys));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const json_t *rkey = json_object_get(item, "rkey");
        if (json_array_size(rkey) == 0) {
            continue;
        }
        struct mc_rdma_keys_desc *keys = &rdma->keys[rdma->key_count];
        keys->addr = (uint64_t)json_integer_value(json_object_get(item, "addr"));
        keys->length = (uint64_t)json_integer_value(json_object_get(item, "length"));
        keys->first = rdma->key_count * rdma->device_count;
        if (json_array_size(json_object_get(item, "lkey")) != json_array_size(rkey) ||
            !decode_keys(rkey, rdma->device_count, rdma->rkeys + keys->first)) {
            return false;
        }
        rdma->key_count++;
    }
    qsort(rdma->keys, rdma->key_count, sizeof(*rdma->keys), by_addr);
    return true;
}

static bool has_gids(const json_t *devices) {
    for (size_t i = 0; i < json_array_size(devices); i++) {
        if (!json_is_string(json_object_get(json_array_get(devices, i), "gid"))) {
            return false;
        }
    }
    return json_array_size(devices) > 0;
}

struct mc_rdma_desc *mc_rdma_desc_decode(const json_t *root, const char **why) {
    const json_t *devices = json_object_get(root, "devices");
    const char *server = json_string_value(json_object_get(root, "rdma_server_name"));
    const json_t *matrix = json_object_get(root, "priority_matrix");
    if (!has_gids(devices)) {
        return NULL;
    }
    struct mc_rdma_desc *rdma = mc_zalloc(sizeof(*rdma));
    if (json_array_size(devices) > MC_RDMA_DEVICES_MAX || !decode_devices(devices, rdma)) {
        *why = "devices without name, GID or LID, or too many";
    } else if (!decode_buffers(json_object_get(root, "buffers"), rdma)) {
        *why = "a buffer's keys do not fit the devices";
    } else if (server != NULL && strlen(server) >= sizeof(rdma->server_name)) {
        *why = "rdma_server_name is too long";
    }
    if (*why != NULL) {
        mc_rdma_desc_free(rdma);
        return NULL;
    }
    if (server != NULL) {
        memcpy(rdma->server_name, server, strlen(server) + 1);
    }
    if (json_is_object(matrix)) {
        rdma->priority_matrix = json_dumps(matrix, JSON_COMPACT);
    }
    return rdma;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void mc_rdma_desc_join(const json_t *root, struct mc_segment_desc *desc) {
    const json_t *list = json_object_get(json_object_get(root, "mooncake_c"), "joined");
    size_t count = mc_min_u64(json_array_size(list), MC_SEGMENT_BUFFERS_MAX), kept = 0;
    if (count == 0) {
        return;
    }
    uint64_t *joined = mc_zalloc(count * sizeof(*joined));
    for (size_t i = 0; i < count; i++) {
        joined[i] = (uint64_t)json_integer_value(json_array_get(list, i));
    }
    qsort(joined, count, sizeof(*joined), by_value);
    for (size_t i = 0; i < desc->buffer_count; i++) {
        struct mc_segment_desc_buffer *b = &desc->buffers[i];
        struct mc_segment_desc_buffer *last = kept > 0 ? &desc->buffers[kept - 1] : NULL;
        if (last != NULL && last->addr + last->length == b->addr &&
            b->length <= INT64_MAX - last->length &&
            bsearch(&b->addr, joined, count, sizeof(*joined), by_value) != NULL) {
            last->length += b->length;
        } else {
            desc->buffers[kept++] = *b;
        }
    }
    desc->buffer_count = kept;
    free(joined);
}

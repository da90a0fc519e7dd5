/* See segment_desc_fabric.h. As the rest of the descriptor, nothing is trusted further than its
 * getter. */
#include "wire/segment_desc_fabric.h"

#include <jansson.h>
#include <stdio.h>

#include "wire/segment_desc.h"

void mc_fabric_desc_free(struct mc_fabric_desc *desc) {
    if (desc != NULL) {
        free(desc->regions);
        free(desc);
    }
}

const struct mc_fabric_region_desc *mc_fabric_desc_find(const struct mc_fabric_desc *desc,
                                                        uint64_t addr, uint64_t length) {
    size_t low = 0, high = desc->region_count;
    while (low < high) { /* the last that begins at or before addr */
        size_t mid = (low + high) / 2;
        if (desc->regions[mid].addr <= addr) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low == 0) {
        return NULL;
    }
    const struct mc_fabric_region_desc *r = &desc->regions[low - 1];
    return mc_range_inside(addr, length, r->addr, r->length) ? r : NULL;
}

/* ---- encoding ---- */

static json_t *encode_device(const struct mc_fabric_device_desc *d) {
    char text[2 * MC_FABRIC_ADDRESS_MAX + 1] = "";
    for (size_t i = 0; i < d->address_length; i++) {
        snprintf(text + 2 * i, 3, "%02x", d->address[i]);
    }
    return json_pack("[s, b]", text, (int)d->virtual_addresses);
}

void mc_fabric_desc_encode(const struct mc_fabric_desc *desc, void *ours) {
    json_t *devices = json_array(), *regions = json_array();
    for (size_t i = 0; i < desc->device_count; i++) {
        json_array_append_new(devices, encode_device(&desc->devices[i]));
    }
    for (size_t i = 0; i < desc->region_count; i++) {
        const struct mc_fabric_region_desc *r = &desc->regions[i];
        json_t *region = json_pack("[I, I]", (json_int_t)r->addr, (json_int_t)r->length);
        for (size_t k = 0; k < desc->device_count; k++) {
            json_array_append_new(region, json_integer((json_int_t)r->keys[k]));
        }
        json_array_append_new(regions, region);
    }
    json_t *fabric = json_pack("{s:s, s:o, s:o}", "provider", desc->provider, "devices", devices,
                               "regions", regions);
    MC_ASSERT(fabric != NULL && json_object_set_new(ours, "fabric", fabric) == 0);
}

/* ---- decoding ---- */

static int nibble(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool decode_device(const json_t *item, struct mc_fabric_device_desc *d) {
    const json_t *address = json_array_get(item, 0), *virtual_addresses = json_array_get(item, 1);
    size_t len = json_string_length(address);
    const char *text = json_string_value(address);
    if (text == NULL || len == 0 || len % 2 != 0 || len > 2 * MC_FABRIC_ADDRESS_MAX ||
        !json_is_boolean(virtual_addresses)) {
        return false;
    }
    for (size_t i = 0; i < len / 2; i++) {
        int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        d->address[i] = (uint8_t)(high << 4 | low);
    }
    d->address_length = len / 2;
    d->virtual_addresses = json_is_true(virtual_addresses);
    return true;
}

static bool decode_region(const json_t *item, size_t devices, struct mc_fabric_region_desc *r) {
    if (json_array_size(item) != 2 + devices) {
        return false;
    }
    for (size_t i = 0; i < 2 + devices; i++) {
        if (!json_is_integer(json_array_get(item, i))) {
            return false;
        }
    }
    json_int_t addr = json_integer_value(json_array_get(item, 0));
    json_int_t length = json_integer_value(json_array_get(item, 1));
    if (addr <= 0 || length <= 0) { /* both below 2^63: their sum does not wrap */
        return false;
    }
    r->addr = (uint64_t)addr;
    r->length = (uint64_t)length;
    for (size_t i = 0; i < devices; i++) {
        r->keys[i] = (uint64_t)json_integer_value(json_array_get(item, 2 + i));
    }
    return true;
}

static int by_addr(const void *a, const void *b) {
    uint64_t x = ((const struct mc_fabric_region_desc *)a)->addr;
    uint64_t y = ((const struct mc_fabric_region_desc *)b)->addr;
    return (x > y) - (x < y);
}

static bool decode_all(const json_t *fabric, struct mc_fabric_desc *desc) {
    const json_t *devices = json_object_get(fabric, "devices");
    const json_t *regions = json_object_get(fabric, "regions");
    const json_t *provider = json_object_get(fabric, "provider");
    desc->device_count = json_array_size(devices);
    desc->region_count = json_array_size(regions);
    if (!json_is_string(provider) || json_string_length(provider) >= sizeof(desc->provider) ||
        !json_is_array(devices) || desc->device_count == 0 ||
        desc->device_count > MC_FABRIC_DEVICES_MAX || !json_is_array(regions) ||
        desc->region_count > MC_SEGMENT_BUFFERS_MAX) {
        return false;
    }
    snprintf(desc->provider, sizeof(desc->provider), "%s", json_string_value(provider));
    for (size_t i = 0; i < desc->device_count; i++) {
        if (!decode_device(json_array_get(devices, i), &desc->devices[i])) {
            return false;
        }
    }
    desc->regions = mc_zalloc((desc->region_count + 1) * sizeof(*desc->regions));
    for (size_t i = 0; i < desc->region_count; i++) {
        if (!decode_region(json_array_get(regions, i), desc->device_count, &desc->regions[i])) {
            return false;
        }
    }
    qsort(desc->regions, desc->region_count, sizeof(*desc->regions), by_addr);
    return true;
}

struct mc_fabric_desc *mc_fabric_desc_decode(const void *ours, const char **why) {
    const json_t *fabric = json_object_get(ours, "fabric");
    if (fabric == NULL) {
        return NULL;
    }
    struct mc_fabric_desc *desc = mc_zalloc(sizeof(*desc));
    if (!decode_all(fabric, desc)) {
        *why = "malformed mooncake_c.fabric";
        mc_fabric_desc_free(desc);
        return NULL;
    }
    return desc;
}

/* What an engine says of its libfabric devices: encoded, decoded, the same; and what is refused. */
#include <jansson.h>

#include "support/support.h"
#include "wire/segment_desc_fabric.h"

static void the_members_round_trip(void **state) {
    struct mc_fabric_desc desc = {.provider = "efa", .device_count = 2, .region_count = 2};
    const char *why = NULL;
    desc.regions = mc_zalloc(2 * sizeof(*desc.regions));
    for (unsigned i = 0; i < 2; i++) {
        desc.devices[i].address_length = 32;
        desc.devices[i].virtual_addresses = i == 1;
        memset(desc.devices[i].address, 0xa0 + (int)i, 32);
        desc.regions[i] = (struct mc_fabric_region_desc){
            .addr = 0x10000 * (2 - i), .length = 0x1000, .keys = {UINT64_MAX - i, 7 + i}};
    }
    json_t *ours = json_object();
    mc_fabric_desc_encode(&desc, ours);
    struct mc_fabric_desc *back = mc_fabric_desc_decode(ours, &why);
    assert_null(why);
    assert_non_null(back);
    assert_string_equal(back->provider, "efa");
    assert_int_equal(back->device_count, 2);
    assert_memory_equal(back->devices, desc.devices, sizeof(desc.devices));
    assert_int_equal(back->region_count, 2);
    const struct mc_fabric_region_desc *r = mc_fabric_desc_find(back, 0x10010, 16);
    assert_non_null(r);
    assert_true(r->keys[0] == UINT64_MAX - 1 && r->keys[1] == 8);
    assert_non_null(mc_fabric_desc_find(back, 0x20fff, 1));
    assert_null(mc_fabric_desc_find(back, 0x20fff, 2));
    assert_null(mc_fabric_desc_find(back, 0xffff, 1));
    mc_fabric_desc_free(back);
    json_decref(ours);
    free(desc.regions);
}

static void what_cannot_be_used_is_refused(void **state) {
    static const char *const texts[] = {
        "{\"fabric\": 1}",
        "{\"fabric\": {\"provider\": \"efa\", \"devices\": [], \"regions\": []}}",
        "{\"fabric\": {\"provider\": 1, \"devices\": [[\"aa\", true]], \"regions\": []}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"a\", true]], \"regions\": []}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"zz\", true]], \"regions\": []}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", 1]], \"regions\": []}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", true]]}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", true]], \"regions\": [[1, 2]]}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", true]], \"regions\": [[0, 2, "
        "3]]}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", true]], \"regions\": [[1, -2, "
        "3]]}}",
        "{\"fabric\": {\"provider\": \"x\", \"devices\": [[\"aa\", true]], \"regions\": [[1, 2, "
        "\"\"]]}}"};
    for (size_t i = 0; i < MC_ARRAY_LEN(texts); i++) {
        const char *why = NULL;
        json_t *ours = json_loads(texts[i], 0, NULL);
        assert_non_null(ours);
        assert_null(mc_fabric_desc_decode(ours, &why));
        assert_non_null(why);
        json_decref(ours);
    }
    const char *why = NULL;
    json_t *none = json_object();
    assert_null(mc_fabric_desc_decode(none, &why));
    assert_null(why);
    json_decref(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_members_round_trip),
        cmocka_unit_test(what_cannot_be_used_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

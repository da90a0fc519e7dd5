/*
 * Every RPC has upstream's function id and type hashes: the table of spec/wire.md 6.3 row by row,
 * and the hashes of release 0.3.12 where they differ. Measured on upstream's programs;
 * is_shm_mapped_internal takes (u64, UUID).
 */
#include "support/support.h"
#include "wire/client_rpc.h"

static const struct {
    const char *service;
    const char *name;
    uint32_t function_id, args_hash, ret_hash; /* args 0 = empty body */
} ROWS[] = {
    {"WrappedMasterService", "ExistKey", 0x89385f09, 0x7cf91ed8, 0x90e800d2},
    {"WrappedMasterService", "BatchExistKey", 0xb89fa6b0, 0x00f78d62, 0x2a5f8c5c},
    {"WrappedMasterService", "BatchQueryIp", 0x7ce454a9, 0xa1eea206, 0xf594fb3c},
    {"WrappedMasterService", "BatchReplicaClear", 0x137b01fc, 0x472b2fa2, 0xe108bdea},
    {"WrappedMasterService", "GetReplicaListByRegex", 0xfe6af93c, 0x7cf91ed8, 0x7343c040},
    {"WrappedMasterService", "GetReplicaList", 0x1f7ef174, 0x7cf91ed8, 0x88c6276c},
    {"WrappedMasterService", "BatchGetReplicaList", 0x1b0d20ff, 0x00f78d62, 0x20c5453a},
    {"WrappedMasterService", "PutStart", 0x65ea9ac1, 0xe385bd0e, 0xc43927a6},
    {"WrappedMasterService", "PutEnd", 0x8e8b2099, 0xd1819222, 0xaf2868cc},
    {"WrappedMasterService", "PutRevoke", 0xa0767c44, 0x1b7a228a, 0xaf2868cc},
    {"WrappedMasterService", "BatchPutStart", 0x56be1822, 0x5870c0a4, 0xad006d02},
    {"WrappedMasterService", "BatchPutEnd", 0x80e020ab, 0xf57ea7c8, 0x39fc52ce},
    {"WrappedMasterService", "BatchPutRevoke", 0xb82567aa, 0x94ee5d44, 0x39fc52ce},
    {"WrappedMasterService", "UpsertStart", 0xa1335e41, 0xe385bd0e, 0xc43927a6},
    {"WrappedMasterService", "UpsertEnd", 0x2e20e258, 0xd1819222, 0xaf2868cc},
    {"WrappedMasterService", "UpsertRevoke", 0x610b042e, 0x1b7a228a, 0xaf2868cc},
    {"WrappedMasterService", "BatchUpsertStart", 0xd564b423, 0x5870c0a4, 0xad006d02},
    {"WrappedMasterService", "BatchUpsertEnd", 0xb1bcd72f, 0xdce93710, 0x39fc52ce},
    {"WrappedMasterService", "BatchUpsertRevoke", 0x9093ae79, 0xd6091496, 0x39fc52ce},
    {"WrappedMasterService", "Remove", 0xf1b09774, 0x18e89fee, 0xaf2868cc},
    {"WrappedMasterService", "RemoveByRegex", 0xfccc1fd3, 0x18e89fee, 0xb83381fe},
    {"WrappedMasterService", "RemoveAll", 0xd978ceb0, 0x48a6c274, 0x86666834},
    {"WrappedMasterService", "BatchRemove", 0x5902407d, 0x197a9ca0, 0x39fc52ce},
    {"WrappedMasterService", "MountSegment", 0x3e7ec4bb, 0x9ef70dae, 0xaf2868cc},
    {"WrappedMasterService", "MountNoFSegment", 0x14d3f74c, 0x70fcb3da, 0xaf2868cc},
    {"WrappedMasterService", "ReMountSegment", 0x0b053b72, 0xc6c66b88, 0xaf2868cc},
    {"WrappedMasterService", "ReMountNoFSegment", 0xc15a1a37, 0xc3ddcd16, 0xaf2868cc},
    {"WrappedMasterService", "UnmountSegment", 0x6f10b465, 0xd4c512e0, 0xaf2868cc},
    {"WrappedMasterService", "GracefulUnmountSegment", 0xa4ec3175, 0x8e092e9c, 0xaf2868cc},
    {"WrappedMasterService", "UnmountNoFSegment", 0xbb263e21, 0xd4c512e0, 0xaf2868cc},
    {"WrappedMasterService", "GetAllNoFSegments", 0x04eb3c85, 0, 0x8c274b46},
    {"WrappedMasterService", "GetNoFSegmentsByName", 0x6b194364, 0x9dcffa76, 0xaab07daa},
    {"WrappedMasterService", "GetFsdir", 0x3e585123, 0, 0x1cb3cc34},
    {"WrappedMasterService", "GetStorageConfig", 0x8da9b0a6, 0, 0x9cb568ea},
    {"WrappedMasterService", "Ping", 0xd6c2dae5, 0x3c6d83e0, 0x742a8f52},
    {"WrappedMasterService", "ServiceReady", 0x7b81bb56, 0, 0x1cb3cc34},
    {"WrappedMasterService", "MountLocalDiskSegment", 0x281fc089, 0xbfd50c0e, 0xaf2868cc},
    {"WrappedMasterService", "UnmountLocalDiskSegment", 0x59fe76e4, 0x3c6d83e0, 0xaf2868cc},
    {"WrappedMasterService", "OffloadObjectHeartbeat", 0x2a9b08f8, 0xbfd50c0e, 0x724674e6},
    {"WrappedMasterService", "PollRemoveAll", 0x05b21025, 0x3c6d83e0, 0x90e800d2},
    {"WrappedMasterService", "ReportSsdCapacity", 0x7e109a9c, 0x70a841e4, 0xaf2868cc},
    {"WrappedMasterService", "NotifyOffloadSuccess", 0x2df85842, 0xd4e79a92, 0xaf2868cc},
    {"WrappedMasterService", "PromotionObjectHeartbeat", 0x0a19072a, 0x3c6d83e0, 0x724674e6},
    {"WrappedMasterService", "PromotionAllocStart", 0x36430f70, 0xc6e729cc, 0x5c032896},
    {"WrappedMasterService", "NotifyPromotionSuccess", 0xfe6e3d25, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "NotifyPromotionFailure", 0xcbecf2b4, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "QuerySegmentStatus", 0x79b8af8c, 0x9dcffa76, 0x9851e9a8},
    {"WrappedMasterService", "QuerySegmentStatusById", 0x573fd453, 0x3c6d83e0, 0x9851e9a8},
    {"WrappedMasterService", "CreateCopyTask", 0x7801dba0, 0x5e43cb12, 0x8f9bae8a},
    {"WrappedMasterService", "CreateMoveTask", 0x97200d2c, 0x311dab7a, 0x8f9bae8a},
    {"WrappedMasterService", "QueryTask", 0x07816a74, 0x3c6d83e0, 0x02d57de6},
    {"WrappedMasterService", "FetchTasks", 0xdf141844, 0x759a9b84, 0x59e14526},
    {"WrappedMasterService", "MarkTaskToComplete", 0xa7060015, 0x22069e02, 0xaf2868cc},
    {"WrappedMasterService", "CopyStart", 0x29836d38, 0xb5bddd1a, 0x7c1668cc},
    {"WrappedMasterService", "DynamicReplicaCopyStart", 0x21118d62, 0x4e78be0e, 0x7c1668cc},
    {"WrappedMasterService", "CopyEnd", 0xf696f1d9, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "DynamicReplicaCopyEnd", 0x4f22bba4, 0xa1da4cba, 0xaf2868cc},
    {"WrappedMasterService", "CopyRevoke", 0x1f558b5c, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "DynamicReplicaCopyRevoke", 0x99768752, 0xa1da4cba, 0xaf2868cc},
    {"WrappedMasterService", "MoveStart", 0x458e4ce0, 0xef2ee70c, 0x3e9ed4b8},
    {"WrappedMasterService", "MoveEnd", 0x636a8b47, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "MoveRevoke", 0x919b315f, 0x6a2101f4, 0xaf2868cc},
    {"WrappedMasterService", "EvictDiskReplica", 0xd00ac42b, 0xf47f2e6a, 0xaf2868cc},
    {"WrappedMasterService", "BatchEvictDiskReplica", 0x74d1e980, 0xd1251872, 0x39fc52ce},
    {"RealClient", "batch_get_offload_object", 0xdc8109d6, 0x81a6a1e6, 0xfd03acb0},
    {"RealClient", "release_offload_buffer", 0xaa143bb9, 0xec7f7e7a, 0x13c8ffd8},
    {"RealClient", "service_ready_internal", 0xe833f9c8, 0, 0xaf2868cc},
    {"RealClient", "is_shm_mapped_internal", 0xfc06d53c, 0x8e72d1e2, 0x90e800d2},
    {"RealClient", "ping", 0x876368aa, 0x3c6d83e0, 0x742a8f52},
    {"RealClient", "acquire_buffer_dummy", 0xb9917e7d, 0xd3cadf22, 0x5288323a},
    {"RealClient", "allocate_buffer_dummy", 0x3a7c1a4a, 0x8e72d1e2, 0x5288323a},
    {"RealClient", "batchIsExist_internal", 0x5b35a287, 0x8a86e11a, 0x2a5f8c5c},
    {"RealClient", "batchRemove_internal", 0xf1c15e2d, 0xa389d4d8, 0x39fc52ce},
    {"RealClient", "batch_acquire_buffer_dummy", 0x0fa36629, 0x729856dc, 0xaec0be84},
    {"RealClient", "batch_get_into_dummy_helper", 0x6d242501, 0xbff0ea30, 0xd659bde8},
    {"RealClient", "batch_get_into_multi_buffers_dummy_helper", 0x0618109c, 0x445aa330, 0xd659bde8},
    {"RealClient", "batch_put_from_dummy_helper", 0x44bb4f32, 0xf9b61cd2, 0x39fc52ce},
    {"RealClient", "batch_put_from_multi_buffers_dummy_helper", 0x1d6aa546, 0x70f1517a, 0x39fc52ce},
    {"RealClient", "batch_upsert_from_dummy_helper", 0x95c3773f, 0x141c2146, 0x39fc52ce},
    {"RealClient", "batch_upsert_from_multi_buffers_dummy_helper", 0x9faa6d26, 0x70f1517a,
     0x39fc52ce},
    {"RealClient", "create_copy_task", 0x8ef447d8, 0xd1dc057a, 0x8f9bae8a},
    {"RealClient", "create_move_task", 0xc5aadc8d, 0xa429cc38, 0x8f9bae8a},
    {"RealClient", "getSize_internal", 0xb327e77d, 0x9dcffa76, 0xb83381fe},
    {"RealClient", "get_into_range_shm_helper", 0x771ec37f, 0xbb88a65a, 0xb83381fe},
    {"RealClient", "get_into_ranges_shm_helper", 0xb8c37ddb, 0xff810aa8, 0x5be2815a},
    {"RealClient", "isExist_internal", 0x406f57ef, 0x9dcffa76, 0x90e800d2},
    {"RealClient", "put_batch_dummy_helper", 0x8138f005, 0x7d8f482e, 0xaf2868cc},
    {"RealClient", "put_dummy_helper", 0xb337b643, 0x49719842, 0xaf2868cc},
    {"RealClient", "put_parts_dummy_helper", 0x1201d7ad, 0xc4fd9178, 0xaf2868cc},
    {"RealClient", "query_task", 0xd48a4f31, 0x3c6d83e0, 0x02d57de6},
    {"RealClient", "release_buffer_dummy", 0x048afcbf, 0x8e72d1e2, 0xaf2868cc},
    {"RealClient", "removeAll_internal", 0xf7627256, 0x13c8ffd8, 0xb83381fe},
    {"RealClient", "removeByRegex_internal", 0x9254d0cf, 0xdbcf8900, 0xb83381fe},
    {"RealClient", "remove_internal", 0xe475d346, 0xdbcf8900, 0xaf2868cc},
    {"RealClient", "unmap_shm_internal", 0x7cbfb191, 0x3c6d83e0, 0xaf2868cc},
    {"RealClient", "unregister_shm_buffer_internal", 0x482f16aa, 0x8e72d1e2, 0xaf2868cc},
    {"RealClient", "upsert_batch_dummy_helper", 0xd80ac80c, 0x7d8f482e, 0xaf2868cc},
    {"RealClient", "upsert_dummy_helper", 0x864b0fce, 0x49719842, 0xaf2868cc},
    {"RealClient", "upsert_from_dummy_helper", 0x4c3d3f22, 0x62ad1e9e, 0xaf2868cc},
    {"RealClient", "upsert_parts_dummy_helper", 0x8c252670, 0xc4fd9178, 0xaf2868cc},
};

static const struct {
    const char *name;
    uint32_t args_hash, ret_hash;
} OLD_ROWS[] = {
    {"BatchGetReplicaList", 0x00f78d62, 0x0a20c6b8},
    {"BatchPutEnd", 0x94ee5d44, 0x39fc52ce},
    {"BatchPutStart", 0x80485c74, 0xac1d82a2},
    {"BatchUpsertEnd", 0xd6091496, 0x39fc52ce},
    {"BatchUpsertStart", 0x80485c74, 0xac1d82a2},
    {"CopyStart", 0xb5bddd1a, 0x3a0eef84},
    {"GetReplicaList", 0x7cf91ed8, 0x75ecf440},
    {"GetReplicaListByRegex", 0x7cf91ed8, 0xf67fa572},
    {"MoveStart", 0xef2ee70c, 0x97f25be0},
    {"PromotionAllocStart", 0xc6e729cc, 0x2e4a74ce},
    {"PutEnd", 0x1b7a228a, 0xaf2868cc},
    {"PutStart", 0x6920ea5c, 0x12e5cdba},
    {"UpsertEnd", 0x1b7a228a, 0xaf2868cc},
    {"UpsertStart", 0x6920ea5c, 0x12e5cdba},
};

/* Functions of upstream's RealClient that no table describes:
 * only the way ids are made is checked. */
static const struct {
    const char *name;
    uint32_t function_id;
} REAL_CLIENT_IDS[] = {
    {"acquire_buffer_dummy", 0xb9917e7d},
    {"acquire_hot_cache", 0x19b975ba},
    {"allocate_buffer_dummy", 0x3a7c1a4a},
    {"ascend_ipc_shm_internal", 0x744b368f},
    {"ascend_shm_internal", 0x67a78cf0},
    {"ascend_unmap_shm_internal", 0x534af222},
    {"batchIsExist_internal", 0x5b35a287},
    {"batchRemove_internal", 0xf1c15e2d},
    {"batch_acquire_buffer_dummy", 0x0fa36629},
    {"batch_acquire_hot_cache", 0x7845db9c},
    {"batch_get_into_cuda_ipc_dummy_helper", 0x869ade6b},
    {"batch_get_into_dummy_helper", 0x6d242501},
    {"batch_get_into_multi_buffers_dummy_helper", 0x0618109c},
    {"batch_get_offload_object", 0xdc8109d6},
    {"batch_put_from_cuda_ipc_dummy_helper", 0x1f589a16},
    {"batch_put_from_dummy_helper", 0x44bb4f32},
    {"batch_put_from_multi_buffers_dummy_helper", 0x1d6aa546},
    {"batch_release_hot_cache", 0x1b3a83bc},
    {"batch_upsert_from_cuda_ipc_dummy_helper", 0x7f240199},
    {"batch_upsert_from_dummy_helper", 0x95c3773f},
    {"batch_upsert_from_multi_buffers_dummy_helper", 0x9faa6d26},
    {"create_copy_task", 0x8ef447d8},
    {"create_move_task", 0xc5aadc8d},
    {"getSize_internal", 0xb327e77d},
    {"get_into_range_shm_helper", 0x771ec37f},
    {"get_into_ranges_shm_helper", 0xb8c37ddb},
    {"isExist_internal", 0x406f57ef},
    {"is_shm_mapped_internal", 0xfc06d53c},
    {"map_shm_internal", 0xceec1d22},
    {"ping", 0x876368aa},
    {"put_batch_dummy_helper", 0x8138f005},
    {"put_dummy_helper", 0xb337b643},
    {"put_parts_dummy_helper", 0x1201d7ad},
    {"query_task", 0xd48a4f31},
    {"release_buffer_dummy", 0x048afcbf},
    {"release_hot_cache", 0xfae1919a},
    {"release_offload_buffer", 0xaa143bb9},
    {"removeAll_internal", 0xf7627256},
    {"removeByRegex_internal", 0x9254d0cf},
    {"remove_internal", 0xe475d346},
    {"service_ready_internal", 0xe833f9c8},
    {"unmap_shm_internal", 0x7cbfb191},
    {"unregister_shm_buffer_internal", 0x482f16aa},
    {"upsert_batch_dummy_helper", 0xd80ac80c},
    {"upsert_dummy_helper", 0x864b0fce},
    {"upsert_from_dummy_helper", 0x4c3d3f22},
    {"upsert_parts_dummy_helper", 0x8c252670},
};

static const struct mc_rpc_desc *by_name(const char *name) {
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    fail_msg("no RPC %s", name);
    return NULL;
}

static void test_ids_and_hashes_of_the_newest_release(void **state) {
    size_t master = 0, client = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(ROWS); i++) {
        bool of_master = strcmp(ROWS[i].service, "WrappedMasterService") == 0;
        const struct mc_rpc_desc *rpc = of_master ? mc_master_rpc_find(ROWS[i].function_id)
                                                  : mc_client_rpc_find(ROWS[i].function_id);
        assert_non_null(rpc);
        assert_string_equal(rpc->name, ROWS[i].name);
        assert_int_equal(rpc->function_id, ROWS[i].function_id);
        assert_int_equal(rpc->versions[0].args_hash, ROWS[i].args_hash);
        assert_int_equal(rpc->versions[0].ret_hash, ROWS[i].ret_hash);
        if (of_master) {
            assert_ptr_equal(&mc_master_rpc_table()[mc_master_rpc_index(rpc)], rpc);
            master++;
        } else {
            client++;
        }
    }
    assert_int_equal(master, MC_MASTER_RPC_FIRST_OWN);
    assert_int_equal(client, MC_CLIENT_RPC_COUNT);
    assert_null(mc_master_rpc_find(0x12345678));
    assert_null(mc_client_rpc_find(0x12345678));
}

static void test_hashes_of_the_older_release(void **state) {
    size_t several = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(OLD_ROWS); i++) {
        const struct mc_rpc_desc *rpc = by_name(OLD_ROWS[i].name);
        assert_int_equal(rpc->version_count, 2);
        assert_int_equal(rpc->versions[1].args_hash, OLD_ROWS[i].args_hash);
        assert_int_equal(rpc->versions[1].ret_hash, OLD_ROWS[i].ret_hash);
        assert_int_equal(mc_master_rpc_args_tell_version(rpc),
                         OLD_ROWS[i].args_hash != rpc->versions[0].args_hash);
    }
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        several += mc_master_rpc_table()[i].version_count > 1;
    }
    assert_int_equal(several, MC_ARRAY_LEN(OLD_ROWS));
}

static void test_ids_of_the_other_functions_of_a_real_client(void **state) {
    for (size_t i = 0; i < MC_ARRAY_LEN(REAL_CLIENT_IDS); i++) {
        struct mc_buf name = {0};
        mc_buf_printf(&name, "mooncake::RealClient::%s", REAL_CLIENT_IDS[i].name);
        assert_int_equal(mc_wire_md5_id(name.data, name.len), REAL_CLIENT_IDS[i].function_id);
        mc_buf_free(&name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_and_hashes_of_the_newest_release),
        cmocka_unit_test(test_hashes_of_the_older_release),
        cmocka_unit_test(test_ids_of_the_other_functions_of_a_real_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

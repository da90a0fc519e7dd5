/* What the master believes of clients' SSDs: tasks for what they have in memory, a replica for what
 * they were told to write and for nothing else. */
#include "support/master_fixture.h"

#include <fcntl.h>
#include <unistd.h>

/* What the disk acknowledges, and of the last answer to it; 0 = nothing. */
static uint64_t acked, given, current;

static void restart_with_offload(struct fixture *f) {
    acked = given = current = 0;
    f->config.enable_offload = true;
    f->config.default_kv_lease_ttl_ms = 100;
    fixture_restart(f);
    mount(f, "a:1", 16 << 20);
    struct mw_a_client_flag args = {client_a, true};
    struct mw_e_void ret;
    call(f, MC_RPC_MountLocalDiskSegment, &args, &ret);
    assert_int_equal(ret.error, 0);
}

static size_t heartbeat(struct fixture *f, struct mw_disk_task *first) {
    struct mw_a_client_flag args = {client_a, true};
    struct mw_e_vec ret;
    call(f, MC_RPC_OffloadObjectHeartbeat, &args, &ret);
    assert_int_equal(ret.error, 0);
    if (ret.value.count > 0 && first != NULL) {
        *first = ((struct mw_disk_task *)ret.value.items)[0];
    }
    return ret.value.count;
}

static int32_t written(struct fixture *f, const char *key, int64_t size, bool good) {
    struct mw_disk_task task = {str("default"), str(key), size};
    struct mw_storage_object object = {.bucket_id = good ? 7 : -1,
                                       .key_size = 9,
                                       .data_size = good ? size : -1,
                                       .endpoint = str(good ? "10.0.0.1:99" : "")};
    struct mw_a_offload_done args = {client_a, {&task, 1}, {&object, 1}};
    struct mw_e_void ret;
    call(f, MC_RPC_NotifyOffloadSuccess, &args, &ret);
    return ret.error;
}

/* How many replicas in memory and on SSD; -1 = no such key. */
static int places(struct fixture *f, const char *key, unsigned *memory) {
    struct mw_replica_list list;
    unsigned disk = 0;
    *memory = 0;
    if (mc_master_peek(f->m, str("default"), str(key), &f->arena, &list) != MC_OK) {
        return -1;
    }
    const struct mw_replica *r = list.replicas.items;
    for (size_t i = 0; i < list.replicas.count; i++) {
        if (r[i].tag == MW_TAG_LOCAL_DISK) {
            assert_true(mc_uuid_eq(r[i].local_disk.client_id, client_a));
            assert_true(mc_str_eq(r[i].local_disk.endpoint, str("10.0.0.1:99")));
            disk++;
        } else {
            (*memory)++;
        }
    }
    return (int)disk;
}

static void expect(struct fixture *f, const char *key, unsigned memory, int disk) {
    unsigned in_memory;
    assert_int_equal(places(f, key, &in_memory), disk);
    if (disk >= 0) {
        assert_int_equal(in_memory, memory);
    }
    fixture_check(f);
}

static void fill_until_evicted(struct fixture *f, const char *prefix) {
    char key[64];
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "%s/%u", prefix, i);
        (void)put(f, key, 1 << 20);
        tick_for_ms(f, 50);
    }
}

/* Of the key "k": [on a disk][gone again] */
static void count_event(void *ctx, const struct mc_object_event *event) {
    unsigned(*told)[2] = ctx;
    told[event->on_disk][event->removed] += mc_str_eq(event->key, str("k"));
}

static void test_an_object_is_written_and_outlives_its_memory(void **state) {
    struct fixture *f = *state;
    struct mw_disk_task task = {0};
    static unsigned told[2][2]; /* outlives the fixture */
    f->config.on_object_event = count_event;
    f->config.on_object_event_ctx = told;
    restart_with_offload(f);
    assert_int_equal(heartbeat(f, NULL), 0);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    assert_int_equal(heartbeat(f, &task), 1);
    assert_true(mc_str_eq(task.key, str("k")) && mc_str_eq(task.tenant, str("default")));
    assert_int_equal(task.size, 1 << 20);
    assert_int_equal(heartbeat(f, NULL), 0); /* told once */
    expect(f, "k", 1, 0);
    assert_int_equal(written(f, "k", 1 << 20, true), 0);
    expect(f, "k", 1, 1);
    assert_int_equal(metric(f, "master_offload_success_total"), 1);
    assert_true(told[0][0] == 1 && told[0][1] == 0 && told[1][0] == 1 && told[1][1] == 0);
    assert_int_equal(metric(f, "file_cache_nums_"), 1);
    assert_int_equal(metric(f, "master_allocated_file_size_bytes"), 1 << 20);
    fill_until_evicted(f, "other");
    expect(f, "k", 0, 1);
    assert_true(told[0][1] == 1 && told[1][0] == 1 && told[1][1] == 0);
    assert_true(metric(f, "master_memory_evictions_total") > 0);
    assert_int_equal(get(f, "k"), 0);
    assert_int_equal(put_start(f, "k", 1 << 20), MC_OBJECT_ALREADY_EXISTS);
    assert_int_equal(metric(f, "file_cache_hit_nums_"), 1);
    assert_int_equal(remove_key(f, "k", true), 0);
    assert_true(told[1][0] == 1 && told[1][1] == 1);
    assert_int_equal(metric(f, "file_cache_nums_"), 0);
    assert_int_equal(metric(f, "master_allocated_file_size_bytes"), 0);
    expect(f, "k", 0, -1);
}

/* How many tasks, and in *drops how many items that are to go; the first of the tasks. */
static int32_t sync_disk(struct fixture *f, struct mw_disk_item *first, const char *drop,
                         size_t *drops) {
    struct mw_a_sync_disk args = {client_a, true, acked};
    struct mw_e_disk_orders ret;
    call(f, MC_RPC_SyncDisk, &args, &ret);
    assert_int_equal(ret.error, 0);
    const struct mw_disk_item *items = ret.value.items.items;
    size_t count = ret.value.items.count;
    for (*drops = 0; *drops < count && items[*drops].size == MW_DISK_DROP; (*drops)++) {
        assert_true(drop == NULL || mc_str_eq(items[*drops].key, str(drop)));
        assert_true(mc_str_eq(items[*drops].tenant, str("default")));
    }
    if (count > *drops) {
        *first = items[*drops];
    }
    given = ret.value.serial;
    current = ret.value.current;
    return (int32_t)(count - *drops);
}

/* The same, and carries out what is to be dropped. */
static int32_t take_all(struct fixture *f, struct mw_disk_item *first, const char *drop,
                        size_t *drops) {
    int32_t tasks = sync_disk(f, first, drop, drops);
    acked = given;
    return tasks;
}
static int32_t take_ours(struct fixture *f, struct mw_disk_item *first) {
    size_t drops;
    return take_all(f, first, NULL, &drops);
}

/* The master's opinion of the item. */
static int32_t on_disk(struct fixture *f, const char *key, uint64_t version, bool found) {
    struct mw_disk_item items[] = {{.size = MW_DISK_CURRENT, .version = current},
                                   {str("default"), str(key), 1 << 20, version}};
    struct mw_a_on_disk args = {client_a, str("10.0.0.1:99"), found, {&items[!found], 1u + found}};
    struct mw_e_vec ret;
    call(f, MC_RPC_OnDisk, &args, &ret);
    assert_int_equal(ret.error, 0);
    assert_int_equal(ret.value.count, args.items.count);
    return ((struct mw_e_void *)ret.value.items)[found].error;
}

static void unmount_and_mount(struct fixture *f) {
    struct mw_e_void ret;
    call(f, MC_RPC_UnmountLocalDiskSegment, &client_a, &ret);
    assert_int_equal(ret.error, 0);
    struct mw_a_client_flag args = {client_a, true};
    call(f, MC_RPC_MountLocalDiskSegment, &args, &ret);
    assert_int_equal(ret.error, 0);
}

static void test_a_disk_does_not_bring_back_what_was_removed_or_replaced(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item first = {0}, second = {0};
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    assert_int_equal(take_ours(f, &first), 1);
    assert_true(first.version != 0);
    assert_int_equal(on_disk(f, "k", first.version, false), 0);
    assert_int_equal(on_disk(f, "k", first.version, false), 0); /* twice is once */
    expect(f, "k", 1, 1);
    assert_int_equal(remove_key(f, "k", true), 0);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    assert_int_equal(take_ours(f, &second), 1);
    /* what it told of the first, late, is no answer about the second */
    assert_int_equal(on_disk(f, "k", first.version, true), MC_OBJECT_NOT_FOUND);
    assert_int_equal(on_disk(f, "k", first.version, false), MC_OBJECT_NOT_FOUND);
    expect(f, "k", 1, 0);
    assert_int_equal(on_disk(f, "k", second.version, false), 0);
    expect(f, "k", 1, 1);
    fill_until_evicted(f, "other");
    expect(f, "k", 0, 1);
    unmount_and_mount(f);
    current = 0; /* the versions alone decide */
    expect(f, "k", 0, -1);
    assert_int_equal(on_disk(f, "k", first.version, true), MC_OBJECT_NOT_FOUND);
    expect(f, "k", 0, -1);
    assert_int_equal(on_disk(f, "k", second.version, true), 0); /* lost, not removed */
    expect(f, "k", 0, 1);
    unmount_and_mount(f);
    assert_int_equal(remove_key(f, "k", true), MC_OBJECT_NOT_FOUND); /* while nobody has it */
    assert_int_equal(on_disk(f, "k", second.version, true), MC_OBJECT_NOT_FOUND);
    assert_int_equal(on_disk(f, "k", 0, true), MC_OBJECT_NOT_FOUND);
    assert_int_equal(on_disk(f, "other/0", 12345, true), MC_OBJECT_NOT_FOUND); /* put anew since */
    unsigned in_memory; /* then that is all; else it may be that */
    assert_int_equal(on_disk(f, "other/0", 0, true),
                     places(f, "other/0", &in_memory) < 0 ? MC_OK : MC_OBJECT_NOT_FOUND);
    assert_int_equal(on_disk(f, "never", 12345, true), MC_OBJECT_NOT_FOUND); /* who knows */
    assert_int_equal(on_disk(f, "never", 0, true), 0);
    expect(f, "never", 0, 1);
    struct mw_a_remove_all all = {.force = true, .tenant = str("default")};
    int64_t removed;
    call(f, MC_RPC_RemoveAll, &all, &removed);
    unmount_and_mount(f);
    assert_int_equal(on_disk(f, "never", 0, true), MC_OBJECT_NOT_FOUND);
}

static size_t put_many(struct fixture *f, const char *prefix, unsigned count) {
    char key[64];
    for (unsigned i = 0; i < count; i++) {
        snprintf(key, sizeof(key), "%s/%u", prefix, i);
        assert_int_equal(put(f, key, 1 << 20), 0);
    }
    return count;
}

/* A master that starts again knows nothing of the newer value: the older one must not be there. */
static void test_a_disk_drops_what_is_removed_or_replaced(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item item = {0};
    size_t drops;
    restart_with_offload(f);
    for (int replaced = 0; replaced < 2; replaced++) {
        struct mc_vec out;
        assert_int_equal(put(f, "k", 1 << 20), 0);
        assert_int_equal(take_all(f, &item, NULL, &drops), 1);
        assert_int_equal(drops, 0);
        assert_int_equal(on_disk(f, "k", item.version, false), 0);
        if (replaced) {
            assert_int_equal(upsert_start(f, "k", 1 << 20, replicas(1), &out), 0);
            assert_int_equal(put_end(f, "k"), 0);
        } else {
            assert_int_equal(remove_key(f, "k", true), 0);
        }
        assert_int_equal(take_all(f, &item, "k", &drops),
                         replaced); /* the new value is to go there */
        assert_int_equal(drops, 1);
        assert_int_equal(take_all(f, &item, NULL, &drops), 0);
        assert_int_equal(drops, 0);
    }
}

/* Nor does it lose the newer value that has taken its place; upstream's clients have no such word.
 */
static void test_a_newer_value_on_the_disk_is_not_dropped(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item item = {0};
    size_t drops;
    restart_with_offload(f);
    for (int ours = 1; ours >= 0; ours--) {
        struct mw_object_info info;
        assert_int_equal(put(f, "k", 1 << 20), 0);
        assert_int_equal(take_ours(f, &item), 1);
        assert_int_equal(on_disk(f, "k", item.version, false), 0);
        assert_int_equal(remove_key(f, "k", true), 0);
        if (!ours) {
            assert_int_equal(heartbeat(f, NULL), 0);
            assert_int_equal(take_all(f, &item, NULL, &drops), 0);
            assert_int_equal(drops, 0);
            break;
        }
        assert_int_equal(put(f, "k", 1 << 20), 0);
        assert_ok(mc_master_inspect(f->m, str("default"), str("k"), &info));
        assert_int_equal(on_disk(f, "k", info.version, false), 0);
        expect(f, "k", 1, 1);
        (void)take_all(f, &item, NULL, &drops);
        assert_int_equal(drops, 0);
        assert_int_equal(remove_key(f, "k", true), 0);
        (void)take_all(f, &item, "k", &drops);
        assert_int_equal(drops, 1);
    }
}

/* A master with an SSD that has "k"; `item` is how it was told to take it. */
static void restart_with_k_on_disk(struct fixture *f, struct mw_disk_item *item) {
    size_t drops;
    *item = (struct mw_disk_item){0};
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    assert_int_equal(take_all(f, item, NULL, &drops), 1);
    assert_int_equal(on_disk(f, "k", item->version, false), 0);
}

/* Until it says that they are gone, and the version that it gets is past the removal. */
static void test_drops_are_given_again_until_they_are_done(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item item;
    size_t drops;
    restart_with_k_on_disk(f, &item);
    uint64_t before = current;
    assert_true(before > item.version);
    assert_int_equal(remove_key(f, "k", true), 0);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(sync_disk(f, &item, "k", &drops), 0);
        assert_int_equal(drops, 1);
        assert_true(current > before);
    }
    acked = given;
    assert_int_equal(sync_disk(f, &item, "k", &drops), 0);
    assert_int_equal(drops, 0);
}

/* The next master, with the notes of the last one: what is lost comes back, and what was changed
 * since the disk was last told does not. Without them nothing can be proved. */
static void test_the_next_master_believes_what_is_proved(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item kept = {0}, item = {0};
    char notes[] = "/dev/shm/mc_test_notes_XXXXXX";
    size_t drops;
    close(mkstemp(notes));
    f->config.offload_notes_path = notes;
    restart_with_offload(f);
    assert_int_equal(put(f, "kept", 1 << 20), 0);
    assert_int_equal(take_all(f, &kept, NULL, &drops), 1);
    assert_int_equal(on_disk(f, "kept", kept.version, false), 0);
    uint64_t versions[3];
    static const char *const KEYS[] = {"removed", "upserted", "all"};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(put(f, KEYS[i], 1 << 20), 0);
        assert_int_equal(take_all(f, &item, NULL, &drops), 1);
        assert_int_equal(on_disk(f, KEYS[i], item.version, false), 0);
        versions[i] = item.version;
    }
    (void)take_all(f, &item, NULL, &drops);
    uint64_t told = current;
    struct mc_vec out;
    assert_int_equal(remove_key(f, "removed", true), 0);
    assert_int_equal(upsert_start(f, "upserted", 1 << 20, replicas(1), &out), 0);
    for (unsigned life = 0; life < 3; life++) {
        restart_with_offload(f); /* the node did not send another heartbeat */
        current = told;
        assert_int_equal(on_disk(f, "removed", versions[0], true), MC_OBJECT_NOT_FOUND);
        assert_int_equal(on_disk(f, "upserted", versions[1], true), MC_OBJECT_NOT_FOUND);
        assert_int_equal(on_disk(f, "kept", kept.version, true), 0);
        expect(f, "kept", 0, 1);
        current = 0; /* of what is not told the version is enough, if nothing has happened */
        assert_int_equal(on_disk(f, "all", versions[2], true), 0);
        assert_int_equal(on_disk(f, "kept", kept.version + 1, true), MC_OBJECT_NOT_FOUND);
    }
    struct mw_a_remove_all all = {.force = true, .tenant = str("default")};
    int64_t removed;
    call(f, MC_RPC_RemoveAll, &all, &removed);
    restart_with_offload(f);
    current = told;
    assert_int_equal(on_disk(f, "all", versions[2], true), MC_OBJECT_NOT_FOUND);
    for (int trusting = 0; trusting < 2; trusting++) {
        assert_int_equal(unlink(notes), 0);
        f->config.offload_adopt_unproven = trusting;
        f->config.seed++; /* versions begin elsewhere */
        restart_with_offload(f);
        current = told;
        assert_int_equal(on_disk(f, "kept", kept.version, true),
                         trusting ? MC_OK : MC_OBJECT_NOT_FOUND);
        assert_int_equal(on_disk(f, "upstreams", 0, true), 0);
    }
    assert_int_equal(unlink(notes), 0);
    f->config.offload_notes_path = NULL; /* it is on our stack */
}

static void flip_byte(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Of a master that ended in order: one that was killed leaves memory, which is not looked at. */
static void test_notes_that_were_damaged_prove_nothing(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item item = {0};
    char notes[] = "/dev/shm/mc_test_notes_XXXXXX";
    static const off_t DAMAGES[] = {-1, 0, 48, 57, 66, 75, 4096 + 12345, 4095 + (32 << 20)};
    size_t drops;
    close(mkstemp(notes));
    f->config.offload_notes_path = notes;
    restart_with_offload(f);
    for (size_t i = 0; i < sizeof(DAMAGES) / sizeof(DAMAGES[0]); i++) {
        assert_int_equal(put(f, "k", 1 << 20), 0);
        assert_int_equal(take_all(f, &item, NULL, &drops), 1);
        assert_int_equal(on_disk(f, "k", item.version, false), 0);
        (void)take_all(f, &item, NULL, &drops);
        uint64_t told = current;
        mc_master_destroy(f->m);
        f->m = NULL;
        if (DAMAGES[i] >= 0) {
            flip_byte(notes, DAMAGES[i]);
        }
        f->config.seed++; /* a line of its own begins elsewhere */
        restart_with_offload(f);
        current = told;
        assert_int_equal(on_disk(f, "k", item.version, true),
                         DAMAGES[i] < 0 ? MC_OK : MC_OBJECT_NOT_FOUND);
        restart_with_offload(f);
    }
    assert_int_equal(unlink(notes), 0);
    f->config.offload_notes_path = NULL; /* it is on our stack */
}

/* What is put while a disk is away for long is not known of each key: who was told of nothing since
 * proves nothing. */
static void test_a_disk_that_was_away_for_too_long_proves_nothing(void **state) {
    struct fixture *f = *state;
    struct mw_disk_item item;
    size_t drops;
    restart_with_k_on_disk(f, &item);
    (void)take_all(f, &item, NULL, &drops);
    uint64_t version = item.version, told = current;
    for (int late = 0; late < 2; late++) {
        for (unsigned minute = 0; minute < 31 && late; minute++) {
            advance_ms(f, 60 * 1000); /* its client is gone, and has lost its memory */
            tick(f);
        }
        if (late) {
            mount(f, "a:1", 16 << 20);
        }
        unmount_and_mount(f);
        current = told;
        assert_int_equal(on_disk(f, "k", version, true), late ? MC_OBJECT_NOT_FOUND : MC_OK);
        (void)take_all(f, &item, NULL, &drops);
    }
}

static void test_above_the_watermark_the_coldest_are_written_before_eviction(void **state) {
    struct fixture *f = *state;
    f->config.offload_high_watermark_ratio = 0.5;
    restart_with_offload(f); /* 16 MiB */
    size_t objects = put_many(f, "a", 7);
    tick_for_ms(f, 500);
    assert_int_equal(heartbeat(f, NULL), 0); /* nothing at PutEnd, and there is room */
    assert_int_equal(get(f, "a/0"), 0);      /* it is leased: not the coldest */
    objects += put_many(f, "b", 5);
    tick_for_ms(f, 50);
    assert_int_equal(metric(f, "master_evicted_key_count"), 0);
    assert_int_equal(heartbeat(f, NULL), objects - 1);
    tick_for_ms(f, 500);
    assert_int_equal(heartbeat(f, NULL), 1); /* the lease is over */
    for (unsigned i = 0; i < 5; i++) {
        char key[16];
        snprintf(key, sizeof(key), "b/%u", i);
        assert_int_equal(written(f, key, 1 << 20, true), 0);
        expect(f, key, 1, 1); /* on disk, and still in memory */
    }
    tick_for_ms(f, 500);
    assert_int_equal(heartbeat(f, NULL), 0); /* each once */
    assert_int_equal(remove_key(f, "b/4", true), 0);
    assert_int_equal(put(f, "b/4", 1 << 20), 0); /* another object of the name */
    tick_for_ms(f, 50);
    assert_int_equal(heartbeat(f, NULL), 1);
}

static void test_what_waits_is_not_evicted_and_a_failure_ends_that(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    fill_until_evicted(f, "a");
    expect(f, "k", 1, 0); /* all wait: memory is full, puts are refused, nothing is lost */
    assert_true(heartbeat(f, NULL) >= 1);
    assert_int_equal(written(f, "k", 1 << 20, false), 0);
    assert_int_equal(metric(f, "master_offload_failures_total"), 1);
    fill_until_evicted(f, "b");
    expect(f, "k", 0, -1);
}

static void test_a_client_that_never_answers_pins_nothing(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 1 << 20), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    for (unsigned i = 0; i < 40; i++) { /* alive, and silent about it */
        advance_ms(f, 1000);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
        tick(f);
    }
    assert_int_equal(written(f, "k", 1 << 20, true), 0); /* too late */
    expect(f, "k", 1, 0);
}

static void test_late_words_about_another_object_are_not_believed(void **state) {
    struct fixture *f = *state;
    struct mc_vec out;
    restart_with_offload(f);
    assert_int_equal(put(f, "removed", 4096), 0);
    assert_int_equal(put(f, "again", 4096), 0);
    assert_int_equal(put(f, "upserted", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 3);
    assert_int_equal(remove_key(f, "removed", true), 0);
    assert_int_equal(remove_key(f, "again", true), 0);
    assert_int_equal(put(f, "again", 4096), 0); /* queued anew, and not yet told */
    assert_int_equal(upsert_start(f, "upserted", 4096, replicas(1), &out), 0);
    assert_int_equal(put_end(f, "upserted"), 0);
    assert_int_equal(written(f, "removed", 4096, true), 0);
    assert_int_equal(written(f, "again", 4096, true), 0);
    assert_int_equal(written(f, "upserted", 4096, true), 0);
    assert_int_equal(written(f, "never there", 4096, true), 0);
    expect(f, "removed", 0, -1);
    expect(f, "never there", 0, -1);
    expect(f, "again", 1, 0);
    expect(f, "upserted", 1, 0);
    assert_int_equal(heartbeat(f, NULL), 2);
    assert_int_equal(written(f, "again", 4096, true), 0);
    assert_int_equal(written(f, "upserted", 5000, true), 0); /* of another size */
    expect(f, "again", 1, 1);
    expect(f, "upserted", 1, 0);
}

/* While one client writes the object, another one that has just mounted names the bytes that its
 * disk has from an earlier object of this name and size. */
static void test_a_task_of_one_client_says_nothing_about_another(void **state) {
    struct fixture *f = *state;
    struct mw_disk_task task = {str("default"), str("k"), 4096};
    struct mw_storage_object object = {
        .bucket_id = 3, .key_size = 9, .data_size = 4096, .endpoint = str("10.0.0.2:99")};
    struct mw_a_client_flag flag = {client_b, true};
    struct mw_a_offload_done done = {client_b, {&task, 1}, {&object, 1}};
    struct mw_e_void ret;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    call(f, MC_RPC_MountLocalDiskSegment, &flag, &ret);
    assert_int_equal(ret.error, 0);
    call(f, MC_RPC_NotifyOffloadSuccess, &done, &ret);
    assert_int_equal(ret.error, 0);
    expect(f, "k", 1, 0);
    assert_int_equal(written(f, "k", 4096, true), 0);
    expect(f, "k", 1, 1);
}

static void test_an_answer_is_about_the_oldest_task(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    assert_int_equal(remove_key(f, "k", true), 0);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    assert_int_equal(written(f, "k", 4096, true), 0); /* delayed: about what was removed */
    expect(f, "k", 1, 0);
    assert_int_equal(written(f, "k", 4096, true), 0);
    expect(f, "k", 1, 1);
}

static void test_a_task_that_waits_no_longer_is_remembered(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    for (unsigned i = 0; i < 40; i++) { /* longer than the discard timeout */
        advance_ms(f, 1000);
        assert_int_equal(ping(f, client_a), MC_CLIENT_OK);
        tick(f);
    }
    assert_int_equal(remove_key(f, "k", true), 0);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    assert_int_equal(written(f, "k", 4096, true), 0); /* the first one's, at last */
    expect(f, "k", 1, 0);
    assert_int_equal(written(f, "k", 4096, true), 0);
    expect(f, "k", 1, 1);
}

static void test_a_client_that_comes_back_tells_what_it_has(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(put(f, "memory", 4096), 0);
    assert_int_equal(written(f, "found", 8192, true), 0); /* it has just mounted */
    assert_int_equal(written(f, "memory", 4096, true), 0);
    expect(f, "found", 0, 1);
    expect(f, "memory", 1, 0); /* who knows which bytes those are */
    assert_int_equal(heartbeat(f, NULL), 1);
    assert_int_equal(written(f, "late", 8192, true), 0);
    expect(f, "late", 0, -1);
    assert_int_equal(metric(f, "master_offload_adopted_total"), 1);
}

static void test_an_upsert_forgets_the_disk(void **state) {
    struct fixture *f = *state;
    struct mc_vec out;
    restart_with_offload(f);
    assert_int_equal(put(f, "k", 4096), 0);
    assert_int_equal(heartbeat(f, NULL), 1);
    assert_int_equal(written(f, "k", 4096, true), 0);
    assert_int_equal(upsert_start(f, "k", 4096, replicas(2), &out), 0);
    assert_int_equal(put_end(f, "k"), 0);
    expect(f, "k", 1, 0);
    assert_int_equal(heartbeat(f, NULL), 1);
}

static int32_t forget(struct fixture *f, const char *key, struct mc_uuid client, int32_t type) {
    struct mw_a_evict_disk args = {client, str(key), str("default"), type};
    struct mw_e_void ret;
    call(f, MC_RPC_EvictDiskReplica, &args, &ret);
    return ret.error;
}

static void test_a_client_forgets_its_own(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(written(f, "k", 8192, true), 0);
    assert_int_equal(forget(f, "k", client_b, MC_REPLICA_LOCAL_DISK), MC_REPLICA_NOT_FOUND);
    assert_int_equal(forget(f, "k", client_a, MC_REPLICA_MEMORY), MC_INVALID_PARAMS);
    assert_int_equal(forget(f, "k", client_a, MC_REPLICA_DISK), MC_REPLICA_NOT_FOUND);
    expect(f, "k", 0, 1);
    assert_int_equal(forget(f, "k", client_a, MC_REPLICA_LOCAL_DISK), 0);
    expect(f, "k", 0, -1);
    assert_int_equal(forget(f, "k", client_a, MC_REPLICA_LOCAL_DISK), MC_OBJECT_NOT_FOUND);
}

static bool wipe(struct fixture *f) {
    struct mw_e_bool ret;
    call(f, MC_RPC_PollRemoveAll, &client_a, &ret);
    assert_int_equal(ret.error, 0);
    return ret.value;
}

static void test_remove_all_empties_disks_that_nobody_needs(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(written(f, "kept", 8192, true), 0);
    assert_int_equal(get(f, "kept"), 0); /* leased */
    assert_int_equal(remove_all(f, "default", false), 0);
    assert_false(wipe(f));
    assert_int_equal(remove_all(f, "default", true), 1);
    assert_true(wipe(f));
    assert_false(wipe(f)); /* said once */
}

static void test_a_disk_goes_with_its_client(void **state) {
    struct fixture *f = *state;
    restart_with_offload(f);
    assert_int_equal(written(f, "k", 8192, true), 0);
    assert_int_equal(put(f, "waits", 4096), 0);
    struct mw_e_void ret;
    call(f, MC_RPC_UnmountLocalDiskSegment, &client_a, &ret);
    assert_int_equal(ret.error, 0);
    expect(f, "k", 0, -1);
    expect(f, "waits", 1, 0);
    assert_int_equal(written(f, "waits", 4096, true), MC_SEGMENT_NOT_FOUND);
    tick_for_ms(f, 200);
    fixture_check(f);
    restart_with_offload(f);
    assert_int_equal(written(f, "k", 8192, true), 0);
    for (unsigned i = 0; i < 30; i++) {
        advance_ms(f, 1000);
        tick(f);
    }
    expect(f, "k", 0, -1);
    assert_int_equal(key_count(f), 0);
}

static void test_off_is_said(void **state) {
    struct fixture *f = *state;
    struct mw_a_client_flag args = {client_a, true};
    struct mw_e_void ret;
    struct mw_e_vec tasks;
    call(f, MC_RPC_MountLocalDiskSegment, &args, &ret);
    assert_int_equal(ret.error, MC_UNABLE_OFFLOAD);
    call(f, MC_RPC_OffloadObjectHeartbeat, &args, &tasks);
    assert_int_equal(tasks.error, MC_UNABLE_OFFLOAD);
    assert_int_equal(written(f, "k", 1, true), MC_UNABLE_OFFLOAD);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_an_object_is_written_and_outlives_its_memory),
        TEST(test_a_disk_does_not_bring_back_what_was_removed_or_replaced),
        TEST(test_a_disk_drops_what_is_removed_or_replaced),
        TEST(test_a_newer_value_on_the_disk_is_not_dropped),
        TEST(test_drops_are_given_again_until_they_are_done),
        TEST(test_the_next_master_believes_what_is_proved),
        TEST(test_notes_that_were_damaged_prove_nothing),
        TEST(test_a_disk_that_was_away_for_too_long_proves_nothing),
        TEST(test_above_the_watermark_the_coldest_are_written_before_eviction),
        TEST(test_what_waits_is_not_evicted_and_a_failure_ends_that),
        TEST(test_a_client_that_never_answers_pins_nothing),
        TEST(test_late_words_about_another_object_are_not_believed),
        TEST(test_a_task_of_one_client_says_nothing_about_another),
        TEST(test_an_answer_is_about_the_oldest_task),
        TEST(test_a_task_that_waits_no_longer_is_remembered),
        TEST(test_a_client_that_comes_back_tells_what_it_has),
        TEST(test_an_upsert_forgets_the_disk),
        TEST(test_a_client_forgets_its_own),
        TEST(test_remove_all_empties_disks_that_nobody_needs),
        TEST(test_a_disk_goes_with_its_client),
        TEST(test_off_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

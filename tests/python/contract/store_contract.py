"""MooncakeDistributedStore: what each call takes, returns and leaves behind."""
import array
import http.client
import inspect
import os
import pickle
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request

from base import MASTER, MIB, OURS, Memory, StoreCase, new_store, ours_only, pattern


class Life(unittest.TestCase):
    def setUp(self):
        import mooncake.store
        self.module = mooncake.store
        self.fresh = mooncake.store.MooncakeDistributedStore()

    def test_before_setup(self):
        self.assertEqual(self.fresh.health_check(), 1)
        self.assertEqual(self.fresh.close(), 0)
        self.assertEqual(self.fresh.close(), 0)

    @ours_only("upstream crashes")
    def test_calls_before_setup_and_after_close_are_refused(self):
        store = new_store(segment=16 * MIB)
        store.close()
        for s in (self.fresh, store):
            self.assertEqual(s.put("k", b"v"), -600)
            self.assertEqual(s.get("k"), b"")
            self.assertEqual(s.get_batch(["a", "b"]), [b""])
            self.assertIsNone(s.get_buffer("k"))
            self.assertEqual(s.batch_get_buffer(["a", "b"]), [None, None])
            self.assertEqual(s.put_batch(["k"], [b"v"]), -600)
            self.assertEqual(s.put_parts("k", b"v"), -600)
            self.assertEqual(s.put_from("k", 4096, 1), -600)
            self.assertEqual(s.get_into("k", 4096, 1), -600)
            self.assertEqual(s.batch_put_from(["k"], [4096], [1]), [-600])
            self.assertEqual(s.batch_get_into(["k"], [4096], [1]), [-600])
            self.assertEqual(s.batch_put_from_multi_buffers(["k"], [[4096]], [[1]]), [])
            self.assertEqual(s.batch_get_into_multi_buffers(["k"], [[4096]], [[1]]), [])
            self.assertEqual(s.is_exist("k"), -600)
            self.assertEqual(s.batch_is_exist(["k"]), [-600])
            self.assertEqual(s.remove("k"), -600)
            self.assertEqual(s.get_hostname(), "")
            self.assertEqual(s.get_replica_desc("k"), [])
            self.assertEqual(s.batch_put_session_start(["k"], [1]), [])
            self.assertEqual(s.batch_get_session_end(["k"]), -1)
            self.assertEqual(s.mount_segment("/dev/shm/x", 1)["ret"], -1)
            self.assertEqual(s.query_task((1, 2)), (None, -600))

    def test_setup_names_what_it_does_not_know(self):
        args = ("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", MASTER, None)
        with self.assertRaises(TypeError) as caught:
            self.fresh.setup(*args, a_keyword_of_tomorrow=1)
        self.assertIn("a_keyword_of_tomorrow", str(caught.exception))
        with self.assertRaises(TypeError):
            self.fresh.setup("127.0.0.1", "P2PHANDSHAKE")

    def test_a_store_for_questions_only(self):
        node = new_store()
        try:
            self.assertEqual(self.fresh.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "rpc_only", "", MASTER), 0)
            self.assertEqual(node.put("asked", b"x"), 0)
            self.assertEqual(self.fresh.batch_is_exist(["asked", "none"]), [1, 0])
            self.assertEqual(node.remove("asked", True), 0)
        finally:
            self.fresh.close()
            node.close()

    def test_setup_can_be_inspected(self):
        try:
            self.assertIn("enable_ssd_offload", inspect.signature(self.fresh.setup).parameters)
        except ValueError:
            pass
        self.assertIn("enable_ssd_offload", self.fresh.setup.__doc__)
        self.assertTrue(hasattr(self.module.ReplicateConfig, "group_ids"))
        self.assertFalse(hasattr(self.fresh, "record_prefetched_tokens"))

    def test_setup_refuses(self):
        place = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": MASTER}
        for wrong in ({"global_segment_size": "12x"}, {"global_segment_size": 100}, {"local_buffer_size": "-1"},
                      {"local_buffer_size": 1 << 41}, {"local_hostname": ""}):
            self.assertEqual(self.fresh.setup({**place, **wrong}), -600, wrong)
        self.assertEqual(self.fresh.setup({"metadata_server": "P2PHANDSHAKE"}), -600)
        self.assertEqual(self.fresh.setup("", "P2PHANDSHAKE", 0, 0, "tcp", "", MASTER), -600)

    @unittest.skipUnless(OURS or os.environ.get("MC_CONTRACT_SLOW"), "takes upstream a minute; MC_CONTRACT_SLOW=1 runs it")
    def test_setup_without_a_master(self):
        self.assertEqual(self.fresh.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", "127.0.0.1:1"), -1)
        self.assertEqual(self.fresh.health_check(), 1)

    @ours_only("upstream passes over these names")
    def test_setup_takes_lmcaches_names(self):
        place = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "device_name": ""}
        self.assertEqual(self.fresh.setup({**place, "master_server_address": "127.0.0.1:1"}), -1)
        self.assertEqual(self.fresh.setup({**place, "master_server_address": MASTER}), 0)

    def test_setup_by_keywords_and_by_dict(self):
        for call in (lambda s: s.setup(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE",
                                       global_segment_size=16 * MIB, local_buffer_size=16 * MIB, protocol="tcp",
                                       rdma_devices="", master_server_addr=MASTER, engine=None),
                     lambda s: s.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
                                        "master_server_addr": MASTER, "global_segment_size": "16MB",
                                        "local_buffer_size": "0.015625 g", "unknown": 1, "enable_ssd_offload": False})):
            store = self.module.MooncakeDistributedStore()
            self.assertEqual(call(store), 0)
            self.assertEqual(store.health_check(), 0)
            host, port = store.get_hostname().rsplit(":", 1)
            self.assertEqual(host, "127.0.0.1")
            self.assertTrue(12300 <= int(port) <= 14300)
            self.assertEqual(store.put("life", b"x"), 0)
            self.assertEqual(store.get("life"), b"x")
            self.assertEqual((store.close(), store.health_check()), (0, 1))

    def test_rpc_only_asks_and_moves_nothing(self):
        store = self.module.MooncakeDistributedStore()
        self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "rpc_only", "", MASTER), 0)
        self.assertEqual(store.batch_is_exist(["absent"]), [0])
        self.assertEqual(store.put("k", b"v"), -600)
        store.close()


class Values(StoreCase):
    def test_every_size_comes_back(self):
        for size in (1, 2, 4095, 4096, 16383, 16384, 16385, 65537, MIB, 5 * MIB + 3):
            value = pattern(size, size)
            self.assertEqual(self.store.put(f"k{size}", value), 0)
            self.assertEqual(self.store.get_size(f"k{size}"), size)
            self.assertTrue(self.store.get(f"k{size}") == value, size)
            handle = self.store.get_buffer(f"k{size}")
            self.assertEqual((len(handle), handle.size()), (size, size))
            self.assertTrue(bytes(handle) == value, size)

    def test_an_existing_key_stays(self):
        self.assertEqual(self.store.put("k", b"first"), 0)
        self.assertEqual(self.store.put("k", b"second"), 0)
        self.assertEqual(self.store.get("k"), b"first")
        self.assertEqual(self.store.upsert("k", b"third!"), 0)
        self.assertEqual(self.store.get("k"), b"third!")

    def test_what_is_a_value(self):
        for i, value in enumerate((b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4], array.array("b", b"abc"))):
            self.assertEqual(self.store.put(f"v{i}", value), 0)
            self.assertEqual(self.store.get(f"v{i}"), b"abc")
        for wrong in ("text", 5, None, ["a"]):
            with self.assertRaises(TypeError):
                self.store.put("wrong", wrong)
        self.assertEqual(self.store.is_exist("wrong"), 0)

    @ours_only("upstream stores the wrong bytes of these")
    def test_all_bytes_of_arrays(self):
        self.assertEqual(self.store.put("words", array.array("h", [1, 2, 3])), 0)
        self.assertEqual(self.store.get("words"), array.array("h", [1, 2, 3]).tobytes())
        self.assertEqual(self.store.put("strided", memoryview(b"abcdef")[::2]), 0)
        self.assertEqual(self.store.get("strided"), b"ace")

    def test_what_is_a_key(self):
        self.assertEqual(self.store.put(b"bytes", b"x"), 0)
        self.assertEqual(self.store.get("bytes"), b"x")
        self.assertEqual(self.store.put("schlüssel/键", b"y"), 0)
        self.assertEqual(self.store.get("schlüssel/键"), b"y")
        self.assertEqual(self.store.put("k" * 4000, b"z"), 0)
        self.assertEqual(self.store.get("k" * 4000), b"z")
        for wrong in (1, None, 1.5):
            with self.assertRaises(TypeError):
                self.store.put(wrong, b"x")
            with self.assertRaises(TypeError):
                self.store.get(wrong)
        self.assertEqual(self.store.put("", b"x"), -600)
        self.assertEqual(self.store.get(""), b"")
        self.assertEqual(self.store.is_exist(""), 0)

    def test_no_bytes(self):
        self.assertEqual(self.store.put("e", b""), -600)
        self.assertEqual(self.store.put_parts("e", b""), 0)
        self.assertEqual(self.store.put_parts("e"), 0)
        self.assertEqual(self.store.upsert("e", b""), -600)
        self.assertEqual(self.store.upsert_parts("e"), 0)
        self.assertEqual(self.store.is_exist("e"), 0)

    def test_misses(self):
        self.assertEqual(self.store.get("absent"), b"")
        self.assertIsNone(self.store.get_buffer("absent"))
        self.assertEqual(self.store.get_size("absent"), -704)
        self.assertEqual(self.store.is_exist("absent"), 0)
        self.assertEqual(self.store.get_replica_desc("absent"), [])

    def test_parts(self):
        self.assertEqual(self.store.put_parts("p", b"ab", memoryview(b"cd"), bytearray(b"ef")), 0)
        self.assertEqual(self.store.get("p"), b"abcdef")
        self.assertEqual(self.store.put_parts("p2", b"x", config=self.config()), 0)
        self.assertEqual(self.store.upsert_parts("p", b"n", b"", b"v"), 0)
        self.assertEqual(self.store.get("p"), b"nv")
        with self.assertRaises(TypeError):
            self.store.put_parts("p3", 5)
        with self.assertRaises(TypeError):
            self.store.put_parts("p3", b"x", self.config())
        with self.assertRaises(TypeError):
            self.store.put_parts("p3", b"x", cfg=1)
        with self.assertRaisesRegex(RuntimeError, "parts must be 1-D bytes-like"):
            self.store.put_parts("p3", array.array("h", [1, 2]))
        self.assertEqual(self.store.is_exist("p3"), 0)

    def test_handles(self):
        value = pattern(5000)
        self.store.put("k", value)
        handle = self.store.get_buffer("k")
        view = memoryview(handle)
        self.assertEqual((view.ndim, view.itemsize, view.readonly, view.nbytes), (1, 1, False, 5000))
        self.assertEqual(view.format, "b")
        self.assertGreater(handle.ptr(), 0)
        self.store.upsert("k", pattern(5000, 2))
        self.assertTrue(view.tobytes() == value)  # a handle is a copy of its own
        with self.assertRaises(TypeError):
            self.module.BufferHandle()
        got = self.store.batch_get_buffer(["k", "absent", "k"])
        self.assertEqual([None if h is None else len(h) for h in got], [5000, None, 5000])
        self.assertEqual(self.store.batch_get_buffer([]), [])

    def test_threads(self):
        wrong = []

        def work(n):
            for i in range(30):
                value = pattern(3000 + i, n)
                if self.store.put(f"t{n}.{i}", value) or self.store.get(f"t{n}.{i}") != value:
                    wrong.append((n, i))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])


class Batches(StoreCase):
    def test_values(self):
        self.assertEqual(self.store.put_batch(["a", "b"], [b"1", bytearray(b"22")]), 0)
        self.assertEqual(self.store.get_batch(["a", "absent", "b"]), [b"1", b"", b"22"])
        self.assertEqual(self.store.get_batch(("b",)), [b"22"])
        self.assertEqual(self.store.get_batch([]), [b""])
        self.assertEqual(self.store.put_batch([], []), 0)
        self.assertEqual(self.store.put_batch(["c", "d"], [b"1"]), -600)
        self.assertEqual(self.store.put_batch(["e", "f"], [b"", b"x"]), -600)
        self.assertEqual(self.store.upsert_batch(["a", "g"], [b"new", b"g"]), 0)
        self.assertEqual(self.store.get_batch(["a", "g"]), [b"new", b"g"])
        self.assertEqual(self.store.upsert_batch(["a"], [b"1", b"2"]), -600)
        with self.assertRaises(TypeError):
            self.store.get_batch("abc")
        with self.assertRaises(TypeError):
            self.store.put_batch(["k"], ["text"])

    def test_values_of_many_sizes(self):
        sizes = [100000] * 20 + [16384, 16385, 5, 2 * MIB, 2 * MIB + 1] + [50000 + i for i in range(20)] + [100000] * 20
        values = {f"k{i}": pattern(size, i) for i, size in enumerate(sizes)}
        self.assertEqual(self.store.put_batch(list(values), list(values.values())), 0)
        keys = []
        for i, key in enumerate(values):
            keys += [key, f"absent {i}"] if i % 3 == 0 else [key]
        twice = [["k30", *keys], ["k0", "k0"]] if OURS else []  # upstream gives the bytes for the last of them only
        for wanted in (keys, keys[::-1], ["k30"], ["absent", "k0"], *twice):
            got = self.store.get_batch(wanted)
            wrong = [key for key, value in zip(wanted, got, strict=True) if value != values.get(key, b"")]
            self.assertEqual(wrong, [], f"of {wanted}")  # not the values: a diff of megabytes takes minutes

    def test_addresses(self):
        with Memory(self.store, MIB) as memory:
            values = [pattern(100 + i, i) for i in range(128)]
            places = [memory.fill(v, 512 * i) for i, v in enumerate(values)]
            keys, sizes = [f"k{i}" for i in range(128)], [len(v) for v in values]
            self.assertEqual(self.store.batch_put_from(keys, places, sizes), [0] * 128)
            memory.fill(bytes(MIB))
            wanted = keys[:64] + ["absent"] + keys[65:]
            got = self.store.batch_get_into(wanted, places, [512] * 128)
            self.assertEqual(got, sizes[:64] + [-704] + sizes[65:])
            for i, value in enumerate(values):
                if i != 64:
                    self.assertEqual(memory.read(len(value), 512 * i), value)
            self.assertEqual(self.store.batch_put_from([], [], []), [])
            self.assertEqual(self.store.batch_put_from(["x", "y"], [memory.ptr], [1]), [-600, -600])
            self.assertEqual(self.store.batch_put_from(["x", "y"], [memory.ptr] * 2, [0, 5]), [-600, 0])
            self.assertEqual(self.store.batch_get_into(["k0", "k1"], [memory.ptr], [1]), [-600, -600])
            self.assertEqual(self.store.batch_get_into(["k0", "k1"], [memory.ptr] * 2, [1000, 50]), [100, -600])
            self.assertEqual(self.store.batch_upsert_from(["k0", "n"], places[1:3], [101, 102], config=self.config()),
                             [0, 0])
            self.assertEqual(self.store.get("k0"), self.store.get("k1"))

    def test_single_addresses(self):
        with Memory(self.store, 65536) as memory:
            value = pattern(300)
            memory.fill(value)
            self.assertEqual(self.store.put_from("k", memory.ptr, 300), 0)
            self.assertEqual(self.store.get_into("k", memory.ptr + 1000, 300), 300)
            self.assertEqual(memory.read(300, 1000), value)
            self.assertEqual(self.store.get_into("k", memory.ptr, 299), -600)
            self.assertEqual(self.store.get_into("absent", memory.ptr, 300), -704)
            self.assertEqual(self.store.put_from("zero", memory.ptr, 0), 0)
            self.assertEqual(self.store.upsert_from("zero", memory.ptr, 0), 0)
            self.assertEqual(self.store.is_exist("zero"), 0)
            self.assertEqual(self.store.upsert_from("k", memory.ptr + 10, 20), 0)
            self.assertEqual(self.store.get("k"), value[10:30])
            self.assertEqual(self.store.put_from_with_metadata("m", memory.ptr, memory.ptr + 100, 10, 5), 0)
            self.assertEqual(self.store.get("m"), value[100:105] + value[:10])
            for wrong in (1.5, "x", -1, None):
                with self.assertRaises(TypeError):
                    self.store.get_into("k", wrong, 10)
                with self.assertRaises(TypeError):
                    self.store.put_from("k", memory.ptr, wrong)

    def test_many_buffers(self):
        with Memory(self.store, 65536) as memory:
            value = pattern(1000)
            memory.fill(value)
            p = memory.ptr
            self.assertEqual(self.store.batch_put_from_multi_buffers(["a", "b"], [[p, p + 500], [p + 700]],
                                                                     [[10, 20], [7]], self.config()), [0, 0])
            self.assertEqual(self.store.get("a"), value[:10] + value[500:520])
            self.assertEqual(self.store.get("b"), value[700:707])
            got = self.store.batch_get_into_multi_buffers(["a", "absent", "b"], [[p + 2000, p + 3000], [p], [p]],
                                                          [[10, 20], [5], [3]])
            self.assertEqual(got, [30, -704, -600])
            self.assertEqual(memory.read(10, 2000) + memory.read(20, 3000), value[:10] + value[500:520])
            self.assertEqual(self.store.batch_put_from_multi_buffers(["c"], [[p]], [[10, 20]]), [-600])
            self.assertEqual(self.store.batch_put_from_multi_buffers(
                ["d"], [[p]], [[10]], self.config(prefer_alloc_in_same_node=True)), [0])

    def test_exist(self):
        self.store.put_batch(["a", "b"], [b"1", b"2"])
        self.assertEqual(self.store.is_exist("a"), 1)
        self.assertEqual(self.store.batch_is_exist(["a", "absent", "", "b"]), [1, 0, 0, 1])
        self.assertEqual(self.store.batch_is_exist([]), [])
        many = [f"m{i}" for i in range(1000)]
        self.assertEqual(self.store.batch_is_exist(many), [0] * 1000)

    def test_registering(self):
        memory = Memory(self.store, 8192)
        self.assertEqual(self.store.register_buffer(memory.ptr, 8192), -600)
        self.assertEqual(self.store.register_buffer(memory.ptr, 0), -600)
        self.assertEqual(self.store.register_buffer(0, 8192), -600)
        self.assertEqual(self.store.unregister_buffer(memory.ptr), 0)
        self.assertEqual(self.store.unregister_buffer(memory.ptr), -600)


class Removing(StoreCase):
    def test_lease_and_force(self):
        self.store.put("k", b"v")
        self.store.get("k")
        self.assertEqual(self.store.remove("k"), -706)
        self.assertEqual(self.store.remove("k", True), 0)
        self.assertEqual(self.store.remove("k", force=True), -704)
        self.assertEqual(self.store.remove("absent"), -704)

    def test_many(self):
        self.store.put_batch(["a1", "a2", "b1", "b2"], [b"x"] * 4)
        self.assertEqual(self.store.batch_remove(["a1", "absent"], force=True), [0, -704])
        self.assertEqual(self.store.batch_remove([]), [])
        self.assertEqual(self.store.remove_by_regex("^a", True), 1)
        self.assertEqual(self.store.remove_by_regex("(", True), -600)
        self.assertEqual(self.store.remove_all(force=True), 2)
        self.assertEqual(self.store.remove_all(), 0)


@ours_only("lives and conditions are ours")
class Terms(StoreCase):
    def info(self, key):
        return self.store.inspect([key])[0]

    def test_life(self):
        self.assertEqual(self.store.put("k", b"x" * 100, self.config(ttl_ms=60000)), 0)
        self.assertTrue(0 < self.info("k").ttl_ms <= 60000)
        self.assertEqual((self.info("k").size, self.info("k").replicas), (100, 1))
        self.assertEqual(self.store.upsert("k", b"y", self.config()), 0)
        self.assertIsNone(self.info("k").ttl_ms)
        self.assertEqual(self.store.put("short", b"x", self.config(ttl_ms=1)), 0)
        deadline = time.monotonic() + 30
        while self.store.is_exist("short") and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.store.inspect(["short", "k", "none"])[::2], [-704, -704])

    def test_conditions(self):
        first = self.config(if_absent=True)
        self.assertEqual(self.store.put("k", b"one", first), 0)
        self.assertEqual(self.store.put("k", b"two", first), -705)
        self.assertEqual(self.store.put_batch(["k", "l"], [b"two", b"two"], first), -705)
        self.assertEqual(self.store.get("l"), b"two")
        version = self.info("k").version
        self.assertEqual(self.store.upsert("k", b"two", self.config(if_version=[version])), 0)
        self.assertNotEqual(self.info("k").version, version)
        self.assertEqual(self.store.upsert("k", b"three", self.config(if_version=[version])), -300)
        self.assertEqual(self.store.upsert("none", b"three", self.config(if_version=[version])), -704)
        self.assertEqual(self.store.upsert("k", b"three", self.config(if_version=[version, 1])), -600)
        self.assertEqual(self.store.upsert("k", b"three", self.config(if_checksum=[1 << 64 - 1])), -300)
        self.assertEqual(self.store.get("k"), b"two")

    def test_attributes(self):
        config = self.config()
        self.assertEqual((config.ttl_ms, config.if_absent, config.if_version, config.if_checksum), (None, False, None, None))
        config = self.config(ttl_ms=5, if_version=(1, 2))
        self.assertEqual((config.ttl_ms, config.if_version), (5, [1, 2]))
        self.assertTrue(str(config).endswith("data_type: UNKNOWN, ttl_ms: 5, if_version: [1, 2] }"), str(config))
        for name, value in (("ttl_ms", -1), ("if_version", 3), ("if_version", ["x"]), ("if_checksum", [-1])):
            with self.assertRaises((TypeError, OverflowError), msg=name):
                setattr(config, name, value)
        with self.assertRaises(ValueError):
            self.store.put("k", b"x", self.config(if_absent=True, if_version=[1]))

    def test_for_people(self):
        from mooncake.client import Closed, Conflict, InvalidArgument, KeyNotFound, MooncakeStore
        with MooncakeStore(MASTER) as store:
            store.put("k", b"one", ttl=60, if_absent=True)
            self.assertTrue(0 < store.info("k").ttl_ms <= 60000)
            with self.assertRaises(Conflict):
                store.put("k", b"two", if_absent=True)
            version = store.info("k").version
            store.upsert("k", b"two", if_version=version)
            with self.assertRaises(Conflict):
                store.upsert("k", b"three", if_version=version)
            store.put_many({"a": b"1", "b": b"2"}, ttl=60, group="g")
            self.assertEqual(store.get_many(["a", "b"]), {"a": b"1", "b": b"2"})
            with self.assertRaises(KeyNotFound):
                store.info("none")
            for wrong, error in ((lambda: store.get_many("ab"), TypeError), (lambda: store.put_many([1]), TypeError),
                                 (lambda: len(store), TypeError), (lambda: store.put("t", b"", ttl="5"), TypeError),
                                 (lambda: store.put("t", b"x", ttl=-1), InvalidArgument),
                                 (lambda: store.put("t", b"x", tll=1), TypeError),
                                 (lambda: MooncakeStore(MASTER, segment="lots"), InvalidArgument)):
                with self.assertRaises(error):
                    wrong()
            child = os.fork()
            if child == 0:
                try:
                    store.get("k")
                except Closed as closed:
                    os._exit(0 if "parent process" in str(closed) else 1)
                finally:
                    os._exit(2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        store.close()
        with self.assertRaisesRegex(Closed, "^this store is closed$"):
            store.get("k")


@ours_only("the master's list of keys is ours")
class Keys(StoreCase):
    def test_pages(self):
        keys = {f"a/{i}" for i in range(250)} | {f"b/{i}" for i in range(3)}
        self.assertEqual(self.store.put_batch(list(keys), [b"x"] * len(keys)), 0)
        for prefix, limit in (("", 100000), ("", 7), ("a/", 100), ("b/", 1), ("a/24", 1000), ("none", 5)):
            got, pages = [], 0
            page, after = self.store.list_keys(prefix, limit=limit)
            while True:
                self.assertLessEqual(len(page), limit)
                got, pages = got + page, pages + 1
                if not after:
                    break
                page, after = self.store.list_keys(prefix, after, limit)
            self.assertEqual(sorted(got), sorted(key for key in keys if key.startswith(prefix)))
            self.assertGreaterEqual(pages * limit, len(got))
        self.assertEqual(self.store.put(b"\xff", b"x"), 0)
        self.assertEqual(self.store.list_keys(b"\xff"), ([b"\xff"], ""))
        for wrong in ({"limit": 0}, {"limit": 100001}, {"after": "nowhere"}):
            self.assertEqual(self.store.list_keys(**wrong), -600)
        with self.assertRaises(TypeError):
            self.store.list_keys(5)

    def test_for_people(self):
        import asyncio
        from unittest import mock
        from mooncake.client import Closed, MooncakeStore

        async def listed(store):
            return [key async for key in store.aio.keys("a/")]

        with MooncakeStore(MASTER) as store, mock.patch("mooncake.client.PAGE_KEYS", 20):
            self.assertEqual(list(store), [])
            self.assertTrue(store)
            wanted = {f"a/{i}": b"%d" % i for i in range(100)}
            store.put_many({**wanted, "other": b"x"})
            self.assertEqual(sorted(store.keys("a/")), sorted(wanted))
            self.assertEqual(sorted(asyncio.run(listed(store))), sorted(wanted))
            self.assertEqual(dict(store), {**wanted, "other": b"x"})
            self.assertEqual(store.get_many(store.keys("a/1")), {k: v for k, v in wanted.items() if k.startswith("a/1")})
            for key in store:  # a listing goes on while its keys are removed
                del store[key]
            self.assertEqual(list(store), [])
        with self.assertRaises(Closed):
            next(store.keys())


class HttpServer(StoreCase):
    HEALTHY = (200, "application/json", b'{"status":"healthy","code":0}')

    @staticmethod
    def ask(port, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            return error.code, None, None

    def start(self):
        """A port that was free may be somebody else's by the time the store asks for it: then another one."""
        for _ in range(5):
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            try:
                store = new_store(enable_client_http_server=True, client_http_port=port)
            except AssertionError:
                continue
            try:
                if self.ask(port, "/health") == self.HEALTHY:
                    return port, store
            except (OSError, http.client.HTTPException):
                pass
            store.close()
        self.fail("no store's server answers")

    def test_http_server(self):
        port, store = self.start()
        try:
            self.assertEqual(store.put("http", b"value"), 0)
            self.assertEqual(self.ask(port, "/health"), self.HEALTHY)
            status, kind, text = self.ask(port, "/metrics")
            self.assertEqual((status, kind), (200, "text/plain; version=0.0.4"))
            self.assertIn(b"# TYPE mooncake_transfer_write_bytes counter", text)
            self.assertEqual(self.ask(port, "/metrics/summary")[:2], (200, "text/plain"))
            self.assertEqual(self.ask(port, "/other")[0], 404)
        finally:
            store.close()
        deadline = time.monotonic() + 30
        with self.assertRaises(OSError):
            while time.monotonic() < deadline:
                self.ask(port, "/health")


class Configs(StoreCase):
    def test_defaults(self):
        config = self.module.ReplicateConfig()
        wanted = {"replica_num": 1, "nof_replica_num": 0, "dfs_replica_num": 0, "soft_pin_ttl_ms": None,
                  "with_hard_pin": False, "preferred_segments": [], "preferred_nof_segments": [], "preferred_segment": "",
                  "prefer_alloc_in_same_node": False, "group_ids": None,
                  "soft_pin_action": self.module.SoftPinAction.PRESERVE, "data_type": self.module.ObjectDataType.UNKNOWN}
        self.assertEqual({name: getattr(config, name) for name in wanted}, wanted)
        self.assertEqual(str(config), "ReplicateConfig: { replica_num: 1, nof_replica_num: 0, dfs_replica_num: 0, "
                         "soft_pin_action: PRESERVE, soft_pin_ttl_ms: default, with_hard_pin: 0, preferred_segments: [], "
                         "preferred_nof_segments: [], prefer_alloc_in_same_node: 0, data_type: UNKNOWN }")
        self.assertTrue(repr(config).startswith("<mooncake.store.ReplicateConfig object at 0x"))

    def test_text(self):
        config = self.config(replica_num=3, preferred_segments=["a", "b"], preferred_segment="q", group_ids=["g"],
                             soft_pin_ttl_ms=5, soft_pin_action=self.module.SoftPinAction.ENABLE, with_hard_pin=True,
                             data_type=self.module.ObjectDataType.TENSOR)
        self.assertEqual(str(config), "ReplicateConfig: { replica_num: 3, nof_replica_num: 0, dfs_replica_num: 0, "
                         "soft_pin_action: ENABLE, soft_pin_ttl_ms: 5, with_hard_pin: 1, preferred_segments: [a, b], "
                         "preferred_segment (deprecated): q, preferred_nof_segments: [], prefer_alloc_in_same_node: 0, "
                         "data_type: TENSOR, group_ids: [g] }")

    def test_attributes_take_their_type_only(self):
        config = self.module.ReplicateConfig()
        config.preferred_segments = ("a",)
        config.preferred_segments.append("lost")  # of a copy
        self.assertEqual(config.preferred_segments, ["a"])
        config.with_hard_pin = 1
        self.assertIs(config.with_hard_pin, True)
        for name, value in (("replica_num", -1), ("replica_num", 1.0), ("replica_num", "x"), ("preferred_segments", "abc"),
                            ("preferred_segments", None), ("group_ids", [1]), ("data_type", 2), ("soft_pin_ttl_ms", -1),
                            ("soft_pin_action", 1)):
            with self.assertRaises(TypeError, msg=name):
                setattr(config, name, value)
        with self.assertRaises(AttributeError):
            config.no_such_field = 1

    @ours_only("upstream dropped the name that older clients set")
    def test_older_soft_pin(self):
        config = self.config(with_soft_pin=True)
        self.assertEqual(config.soft_pin_action, self.module.SoftPinAction.ENABLE)
        config.with_soft_pin = False
        self.assertEqual(config.soft_pin_action, self.module.SoftPinAction.PRESERVE)

    def test_what_calls_refuse(self):
        same = self.config(prefer_alloc_in_same_node=True)
        self.assertEqual(self.store.put("k", b"x", same), -600)
        self.assertEqual(self.store.put_parts("k", b"x", config=same), -600)
        self.assertEqual(self.store.put_batch(["k"], [b"x"], same), -600)
        self.assertEqual(self.store.upsert("k", b"x", same), -600)
        groups = self.config(group_ids=["a", "b"])
        self.assertEqual(self.store.put("k", b"x", groups), -600)
        self.assertEqual(self.store.put_batch(["k1", "k2"], [b"x", b"y"], groups), 0)
        self.assertEqual(self.store.put("k", b"x", self.config(replica_num=0)), -600)
        self.assertEqual(self.store.is_exist("k"), 0)
        self.assertEqual(self.store.put("k", b"x", self.config(replica_num=5)), 0)
        self.assertEqual(self.store.put("pinned", b"x", config=self.config(with_hard_pin=True)), 0)
        with self.assertRaises(TypeError):
            self.store.put("k", b"x", "no config")


class Inside(StoreCase):
    def test_replicas(self):
        self.store.put("k", b"hello")
        replica, = self.store.get_replica_desc("k")
        self.assertEqual(replica.status, self.module.ReplicaStatus.COMPLETE)
        self.assertEqual((replica.is_memory_replica(), replica.is_disk_replica(), replica.is_local_disk_replica()),
                         (True, False, False))
        place = replica.get_memory_descriptor().buffer_descriptor
        self.assertEqual(place.size, 5)
        self.assertGreater(place.buffer_address, 0)
        self.assertEqual(repr(place), f"<Descriptor size=5 buffer_address={place.buffer_address} "
                         f"transport_endpoint={place.transport_endpoint}>")
        with self.assertRaisesRegex(RuntimeError, "Expected DiskDescriptor"):
            replica.get_disk_descriptor()
        found = self.store.batch_get_replica_desc(["k", "absent"])
        self.assertEqual({k: len(v) for k, v in found.items()}, {"k": 1})
        self.assertEqual(self.store.batch_get_replica_desc([]), {})

    def test_data_classes(self):
        m = self.module
        self.assertEqual(repr(m.Descriptor()), "<Descriptor size=0 buffer_address=0 transport_endpoint=>")
        self.assertEqual(repr(m.QueryTaskResponse()), "QueryTaskResponse(id=0-0, type=0, status=0, created_at=0, "
                         'last_updated_at=0, assigned_client=0-0, message="")')
        for name in ("ReplicaDescriptor", "MemoryDescriptor", "DiskDescriptor"):
            with self.assertRaises(TypeError):
                getattr(m, name)()
        axis = m.ParallelAxis()
        self.assertEqual([getattr(axis, n) for n in ("kind", "rank", "size", "split_dim", "expert_id", "stage_id")],
                         ["", 0, 1, None, None, None])
        target = m.ReadTarget()
        self.assertEqual((target.mode, target.parallelism), ("as_stored", None))
        target.mode = "FULL"
        self.assertEqual(target.mode, "full")
        with self.assertRaisesRegex(RuntimeError, "Unsupported ReadTarget mode"):
            target.mode = "other"

    def test_enums(self):
        m = self.module
        self.assertEqual((int(m.TaskStatus.FAILED), int(m.TaskStatus.SUCCESS)), (2, 3))
        self.assertEqual(repr(m.TaskStatus.SUCCESS), "<TaskStatus.SUCCESS: 3>")
        self.assertEqual(str(m.TaskStatus.SUCCESS), "TaskStatus.SUCCESS")
        self.assertEqual((m.TaskStatus.SUCCESS.name, m.TaskStatus.SUCCESS.value), ("SUCCESS", 3))
        self.assertEqual(m.TaskStatus(2), m.TaskStatus.FAILED)
        self.assertFalse(m.TaskStatus.SUCCESS == 3)
        self.assertFalse(m.TaskStatus.PENDING == m.ReplicaStatus.UNDEFINED)
        self.assertEqual(list(m.TaskStatus.__members__), ["PENDING", "PROCESSING", "SUCCESS", "FAILED"])
        self.assertEqual([m.PROCESSING, m.FAILED, m.TENSOR], [m.TaskStatus.PROCESSING, m.TaskStatus.FAILED,
                                                              m.ObjectDataType.TENSOR])
        self.assertFalse(hasattr(m, "PRESERVE"))
        self.assertEqual({m.TaskStatus.FAILED: 1}[m.TaskStatus(2)], 1)
        self.assertEqual(pickle.loads(pickle.dumps(m.ObjectDataType.WEIGHT)), m.ObjectDataType.WEIGHT)
        self.assertEqual([[].__class__, "abc"[m.TaskType.REPLICA_MOVE]], [list, "b"])

    def test_numbers_of_enums(self):
        numbers = {"ObjectDataType": "UNKNOWN KVCACHE TENSOR WEIGHT SAMPLE ACTIVATION GRADIENT OPTIMIZER_STATE METADATA GENERAL",
                   "SoftPinAction": "PRESERVE ENABLE DISABLE", "TaskType": "REPLICA_COPY REPLICA_MOVE",
                   "ReplicaStatus": "UNDEFINED INITIALIZED PROCESSING COMPLETE REMOVED FAILED"}
        for enum, names in numbers.items():
            found = {name: int(value) for name, value in getattr(self.module, enum).__members__.items()}
            self.assertEqual(found, {name: i for i, name in enumerate(names.split())})

    def test_what_is_within(self):
        self.assertIsNotNone(self.module._get_pyclient_from_wrapper(self.store))
        self.assertIsNone(self.module._get_pyclient_from_wrapper(self.module.MooncakeDistributedStore()))
        times = self.module.QueryTaskResponse()
        self.assertEqual((times.created_at_ms_epoch, times.last_updated_at_ms_epoch), (0, 0))
        for thing in (self.module.DiskDescriptor.file_path, self.module.DiskDescriptor.object_size):
            self.assertTrue(hasattr(thing, "__get__"))

    @ours_only("upstream's refuses nothing and asks an SPDK target that is not there")
    def test_drives_of_others_are_not_in_this_build(self):
        register = self.module.MooncakeDistributedNoFRegister()
        self.assertEqual(register.real_register("nqn", 1, "127.0.0.1", "4420", 0, 1 << 30, MASTER), -1012)
        self.assertEqual(register.real_unregister_by_endpoint("nqn", 1, "127.0.0.1", "4420", MASTER), -1012)

    @ours_only("upstream crashes before setup")
    def test_the_old_setup_has_its_places_written_in(self):
        self.assertIn(self.module.MooncakeDistributedStore().init_all("tcp", "", 16 * MIB), (-1, -600))

    def test_small_things(self):
        self.assertEqual(self.store.get_offload_rpc_read_count(), 0)
        self.assertEqual(self.store.alloc_from_mem_pool(100), 0)
        self.assertEqual(self.store.unmount_local_disk_segment(), 0)
        self.assertIsNone(self.module.bind_to_numa_node(0))
        self.assertGreater(self.module.get_alloc_func_addr(), 0)
        self.assertGreater(self.module.get_free_func_addr(), 0)
        allocator = self.module.MooncakeHostMemAllocator()
        ptr = allocator.alloc(8192)
        self.assertGreater(ptr, 0)
        self.assertEqual(self.store.register_buffer(ptr, 8192), 0)
        self.assertEqual(self.store.unregister_buffer(ptr), 0)
        self.assertEqual(allocator.free(ptr), 0)
        with self.assertRaisesRegex(RuntimeError, "Failed to map shared memory"):
            allocator.alloc(0)


class Pieces(StoreCase):
    def test_put_session(self):
        with Memory(self.store, 65536) as memory:
            value = pattern(1000)
            memory.fill(value)
            p = memory.ptr
            self.assertEqual(self.store.batch_put_session_start(["a", "b"], [1000, 500]), [0, 0])
            self.assertEqual(self.store.batch_put_session_start(["a"], [1000]), [-600])
            self.assertEqual(self.store.batch_put_session_start(["c", "d"], [1]), [-600, -600])
            self.assertEqual(self.store.batch_put_from_multi_buffer_ranges(
                ["a", "b"], [[p + 600, p], [p]], [[400, 600], [500]], [[600, 0], [0]]), [1000, 500])
            self.assertEqual(self.store.batch_put_from_multi_buffer_ranges(["a"], [[p]], [[10]], [[995]]), [-600])
            self.assertEqual(self.store.get("a"), b"")
            self.assertEqual(self.store.batch_put_session_end(["a"]), [0])
            self.assertEqual(self.store.batch_put_session_revoke(["b"]), [0])
            self.assertEqual(self.store.get("a"), value)
            self.assertEqual(self.store.is_exist("b"), 0)

    def test_get_session(self):
        with Memory(self.store, 65536) as memory:
            value = pattern(2000)
            self.store.put_batch(["a", "b"], [value, value[:100]])
            p = memory.ptr
            self.assertEqual(self.store.batch_get_session_start(["a", "absent", "b"]), [0, -704, 0])
            self.assertEqual(self.store.batch_get_into_multi_buffer_ranges(
                ["a", "b"], [[p, p + 3000], [p + 5000]], [[100, 50], [100]], [[1900, 7], [0]]), [150, 100])
            self.assertEqual(memory.read(100), value[1900:])
            self.assertEqual(memory.read(50, 3000), value[7:57])
            self.assertEqual(memory.read(100, 5000), value[:100])
            self.assertEqual(self.store.batch_get_into_multi_buffer_ranges(["a"], [[p]], [[10]], [[1995]]), [-600])
            self.assertEqual(self.store.batch_get_session_end(["a", "b"]), 0)

    def test_ranges(self):
        with Memory(self.store, 65536) as memory:
            value = pattern(2000)
            self.store.put_batch(["a", "b"], [value, value[:100]])
            got = self.store.get_into_ranges([memory.ptr, memory.ptr + 8192], [["a", "b"], ["a"]],
                                             [[[0, 100], [200]], [[0]]], [[[10, 1000], [50]], [[1]]],
                                             [[[100, 20], [50]], [[999]]])
            self.assertEqual(got, [[[100, 20], [50]], [[999]]])
            self.assertEqual(memory.read(100), value[10:110])
            self.assertEqual(memory.read(20, 100), value[1000:1020])
            self.assertEqual(memory.read(50, 200), value[50:100])
            self.assertEqual(memory.read(999, 8192), value[1:1000])
            self.assertEqual(self.store.get_into_ranges([memory.ptr], [["a"]], [[[0, 1]]], [[[0]]], [[[1]]]),
                             [[[-600, -600]]])
            self.assertEqual(self.store.get_into_ranges([memory.ptr], [["absent"]], [[[0]]], [[[0]]], [[[1]]]), [[[-704]]])


class Segments(StoreCase):
    def test_lending_more(self):
        made = self.store.allocate_and_mount_segment(1000)
        self.assertEqual((made["ret"], made["allocated_size"]), (0, 16 * MIB))
        segment, = made["segment_ids"]
        self.assertRegex(segment, r"^\d+-\d+$")
        self.assertEqual(self.store.unmount_and_free_segment([segment]), 0)
        self.assertEqual(self.store.unmount_segment([segment]), -1)
        self.assertEqual(self.store.unmount_segment(["x"]), -1)
        self.assertEqual(self.store.unmount_segment([]), 0)
        self.assertEqual(self.store.allocate_and_mount_segment(0)["ret"], -1)
        self.assertEqual(self.store.mount_segment("/nonexistent", 100), {"ret": -1, "segment_ids": []})

    def test_tasks(self):
        self.assertEqual(self.store.query_task((1, 2)), (None, -1400))
        for task, code in (self.store.create_copy_task("absent", ["x"]), self.store.create_move_task("absent", "x", "y")):
            self.assertEqual(task, (0, 0))
            self.assertIn(code, (-704, -1012) if OURS else (-704,))  # a master of ours may not hand out tasks
        self.assertEqual(self.store.batch_replica_clear(["absent"], ""), [])
        with self.assertRaises(TypeError):
            self.store.query_task("no")


if __name__ == "__main__":
    unittest.main()

"""A store by way of a mooncake_client (setup_dummy). The real client is of this side, or of the other one
(MC_CONTRACT_REAL_CLIENT says where)."""
import ctypes
import os
import unittest

from base import MIB, ours_only, pattern

REAL = os.environ.get("MC_CONTRACT_REAL_CLIENT", "")
BUFFER = 16 * MIB


@unittest.skipUnless(REAL, "no real client was started")
class Dummy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import mooncake.store
        cls.module = mooncake.store
        cls.store = mooncake.store.MooncakeDistributedStore()
        assert cls.store.setup_dummy(64 * MIB, BUFFER, REAL) == 0
        cls.ptr = cls.store.alloc_from_mem_pool(MIB)
        assert cls.ptr and cls.store.register_buffer(cls.ptr, MIB) == 0

    @classmethod
    def tearDownClass(cls):
        assert cls.store.close() == 0

    def setUp(self):
        self.store.remove_all(True)

    def fill(self, data, at=0):
        ctypes.memmove(self.ptr + at, data, len(data))
        return self.ptr + at

    def read(self, size, at=0):
        return ctypes.string_at(self.ptr + at, size)

    def test_values(self):
        value = pattern(3 * MIB)
        self.assertEqual(self.store.put("k", value), 0)
        self.assertEqual(self.store.get("k"), value)
        self.assertEqual(self.store.get_size("k"), len(value))
        self.assertEqual(bytes(memoryview(self.store.get_buffer("k"))), value)
        self.assertEqual(self.store.put("k", b"other"), 0)
        self.assertEqual(self.store.get("k"), value)
        self.assertEqual(self.store.upsert("k", b"other"), 0)
        self.assertEqual(self.store.get("k"), b"other")
        self.assertEqual(self.store.put("empty", b""), -600)
        self.assertEqual(self.store.get("none"), b"")
        self.assertEqual(self.store.get_size("none"), -704)

    def test_batches_and_parts(self):
        self.assertEqual(self.store.put_batch(["a", "b"], [b"1", b"22"]), 0)
        self.assertEqual(self.store.get_batch(["a", "b", "none"]), [b"1", b"22", b""])
        self.assertEqual(self.store.put_parts("p", b"12", b"3"), 0)
        self.assertEqual(self.store.get("p"), b"123")
        self.assertEqual(self.store.upsert_batch(["a", "c"], [b"3", b"4"]), 0)
        self.assertEqual(self.store.get_batch(["a", "c"]), [b"3", b"4"])
        self.assertEqual(self.store.upsert_parts("p", b"x", b"y"), 0)
        self.assertEqual(self.store.get("p"), b"xy")
        self.assertEqual(self.store.batch_is_exist(["a", "none"]), [1, 0])

    def test_addresses(self):
        one, two = pattern(4096, 1), pattern(4096, 2)
        self.fill(one)
        self.fill(two, 4096)
        self.assertEqual(self.store.put_from("1", self.ptr, 4096), 0)
        self.assertEqual(self.store.batch_put_from(["2", "3"], [self.ptr, self.ptr + 4096], [4096, 4096]), [0, 0])
        self.assertEqual(self.store.batch_put_from_multi_buffers(["m"], [[self.ptr, self.ptr + 4096]], [[10, 20]]), [0])
        self.assertEqual(self.store.get("m"), one[:10] + two[:20])
        self.fill(bytes(4 * 4096))
        self.assertEqual(self.store.get_into("1", self.ptr, 8192), 4096)
        self.assertEqual(self.read(4096), one)
        self.fill(bytes(4 * 4096))
        self.assertEqual(self.store.batch_get_into(["3", "none", "2"], [self.ptr, self.ptr + 8192, self.ptr + 4096], [4096] * 3),
                         [4096, -704, 4096])
        self.assertEqual(self.read(8192), two + one)
        self.assertEqual(self.store.batch_get_into_multi_buffers(["m"], [[self.ptr, self.ptr + 4096]], [[10, 20]]), [30])
        self.assertEqual((self.read(10), self.read(20, 4096)), (one[:10], two[:20]))
        self.assertEqual(self.store.get_into("1", self.ptr, 100), -600)
        self.assertEqual(self.store.batch_get_into(["1"], [self.ptr], [100]), [-600])
        self.assertEqual(self.store.get_into("none", self.ptr, 100), -704)
        self.assertEqual(self.store.upsert_from("1", self.ptr, 10), 0)
        self.assertEqual(self.store.get("1"), one[:10])

    def test_ranges(self):
        value = pattern(1000)
        self.store.put("r", value)
        self.assertEqual(self.store.get_into_ranges([self.ptr], [["r", "none"]], [[[0, 16], [64]]], [[[5, 9000], [0]]],
                                                    [[[16, 8], [4]]]), [[[16, -600], [-704]]])
        self.assertEqual(self.read(16), value[5:21])

    def test_memory_that_the_real_client_does_not_know(self):
        own = ctypes.create_string_buffer(4096)
        address = ctypes.addressof(own)
        self.store.put("k", b"12345")
        self.assertEqual(self.store.register_buffer(address, 4096), -1)
        self.assertEqual(self.store.register_buffer(self.ptr + 4096, 4096), -1)
        self.assertEqual(self.store.put_from("o", address, 4096), -600)
        self.assertEqual(self.store.put_from("o", self.ptr + MIB - 10, 4096), -600)
        self.assertEqual(self.store.get_into("k", address, 4096), -600)

    def test_memory_of_the_allocator(self):
        allocator = self.module.MooncakeHostMemAllocator()
        address, value = allocator.alloc(MIB), pattern(MIB)
        ctypes.memmove(address, value, MIB)
        self.assertEqual(self.store.register_buffer(address, MIB), 0)
        self.assertEqual(self.store.register_buffer(address, MIB), 0)
        self.assertEqual(self.store.put_from("h", address, MIB), 0)
        self.assertEqual(self.store.get("h"), value)
        self.assertEqual(self.store.unregister_buffer(address), 0)
        self.assertEqual(self.store.unregister_buffer(address), -1)
        self.assertEqual(self.store.put_from("i", address, MIB), -600)
        self.assertEqual(allocator.free(address), 0)

    def test_what_a_dummy_has_not(self):
        self.assertEqual(self.store.get_hostname(), "")
        self.assertEqual(self.store.health_check(), 0)
        self.assertEqual(self.store.batch_put_session_start(["z"], [10], self.module.ReplicateConfig()), [-600])
        self.assertEqual(self.store.batch_replica_clear(["a"], ""), [])
        self.assertEqual(self.store.allocate_and_mount_segment(16 * MIB)["ret"], -1)
        self.assertEqual(self.store.query_task((1, 2)), (None, -1400))

    def test_removals(self):
        self.store.put_batch(["x1", "x2", "y"], [b"1", b"2", b"3"])
        self.assertEqual(self.store.remove("y", True), 0)
        self.assertEqual(self.store.batch_remove(["x1", "none"], True), [0, -704])
        self.assertEqual(self.store.remove_by_regex("^x", True), 1)
        self.assertEqual(self.store.remove_all(True), 0)

    @ours_only("upstream's copies through the local buffer and has no other way")
    def test_a_value_larger_than_the_buffer(self):
        if os.environ.get("MC_CONTRACT_REAL_SIDE") == "ours":
            self.assertEqual(self.store.put("large", pattern(BUFFER + 1)), 0)
            self.assertEqual(self.store.get_size("large"), BUFFER + 1)


if __name__ == "__main__":
    unittest.main()

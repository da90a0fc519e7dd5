"""Tensors: the header, every dtype, shards. Without torch (tools/torch) there is nothing to test."""
import unittest

from base import Memory, StoreCase, ours_only

try:
    import torch
except ImportError:
    torch = None

HEAD = "4e4f4f4d01003001"  # magic, version, size


@unittest.skipIf(torch is None, "torch is not installed")
class Tensors(StoreCase):
    def setUp(self):
        super().setUp()
        self.x = torch.arange(24, dtype=torch.float32).reshape(4, 6)

    def same(self, got, wanted):
        self.assertIsNotNone(got)
        self.assertEqual(got.dtype, wanted.dtype)
        self.assertEqual(got.shape, wanted.shape)
        self.assertTrue(torch.equal(got.view(torch.uint8), wanted.contiguous().view(torch.uint8)))

    def parallel(self, **axes):
        p = self.module.TensorParallelism()
        made = []
        for kind, (rank, size, fields) in axes.items():
            axis = self.module.ParallelAxis()
            axis.kind, axis.rank, axis.size = kind, rank, size
            for name, value in fields.items():
                setattr(axis, name, value)
            made.append(axis)
        p.axes = made
        return p

    def tp(self, rank, size, split_dim=0):
        return self.parallel(tp=(rank, size, {"split_dim": split_dim}))

    def target(self, mode, parallelism=None):
        target = self.module.ReadTarget()
        target.mode = mode
        if parallelism is not None:
            target.parallelism = parallelism
        return target

    def test_header(self):
        self.assertEqual(self.store.put_tensor("a", self.x), 0)
        data = self.store.get("a")
        self.assertEqual(len(data), 304 + 96)
        self.assertEqual(data[:40].hex(), HEAD + "000000000200000000000000000000003001000000000000" + "6000000000000000")
        self.assertEqual(data[40:56], (4).to_bytes(8, "little") + (6).to_bytes(8, "little"))
        self.assertEqual(data[56:64], b"\xff" * 8)
        self.assertEqual(data[104:120], data[40:56])
        self.assertEqual(data[168:304], bytes(136))
        self.assertEqual(data[304:], self.x.numpy().tobytes())

    def test_dtypes(self):
        names = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16",
                 "bfloat16", "float8_e4m3fn", "float8_e5m2")
        raw = torch.arange(32, dtype=torch.uint8) % 2
        tested = 0
        for code, name in enumerate(names):
            dtype = getattr(torch, name, None)
            if dtype is None:
                continue
            tensor = raw.view(dtype) if name != "bool" else raw.bool()
            self.assertEqual(self.store.put_tensor(name, tensor), 0, name)
            self.assertEqual(int.from_bytes(self.store.get(name)[8:12], "little"), code)
            got = self.store.get_tensor(name)
            self.assertEqual((got.dtype, got.shape), (dtype, tensor.shape))
            self.assertTrue(torch.equal(got.view(torch.uint8), tensor.view(torch.uint8)))
            tested += 1
        self.assertGreaterEqual(tested, 10)
        self.assertEqual(self.store.put_tensor("complex", torch.zeros(2, dtype=torch.complex64)), -600)
        self.assertEqual(self.store.put_tensor("none", 5), -600)
        self.assertIsNone(self.store.get_tensor("absent"))

    def test_shapes(self):
        self.assertEqual(self.store.put_tensor("t", self.x.t()), 0)
        self.same(self.store.get_tensor("t"), self.x.t().contiguous())
        self.assertEqual(self.store.put_tensor("z", torch.empty(0, 3)), 0)
        self.assertEqual(self.store.get_size("z"), 304)
        self.assertEqual(self.store.get_tensor("z").shape, (0, 3))
        self.assertEqual(self.store.put_tensor("s", torch.tensor(3.5)), 0)
        self.assertEqual(self.store.get_tensor("s").item(), 3.5)

    @ours_only("upstream gives a scalar back with one dimension")
    def test_scalars(self):
        self.store.put_tensor("s", torch.tensor(3.5))
        self.assertEqual(self.store.get_tensor("s").shape, ())

    def test_no_tensor(self):
        self.store.put("bytes", b"x" * 400)
        self.assertIsNone(self.store.get_tensor("bytes"))

    def test_batches(self):
        self.assertEqual(self.store.batch_put_tensor(["a", "b"], [self.x, self.x.t()]), [0, 0])
        self.assertEqual(self.store.batch_put_tensor(["c", "d"], [self.x, 5]), [0, -600])
        self.assertEqual(self.store.batch_put_tensor(["e"], [self.x, self.x]), [-600])
        self.assertEqual(self.store.batch_put_tensor([], []), [])
        got = self.store.batch_get_tensor(["b", "absent", "a"])
        self.same(got[0], self.x.t().contiguous())
        self.assertIsNone(got[1])
        self.same(got[2], self.x)
        self.assertEqual(self.store.upsert_tensor("a", self.x + 1), 0)
        self.same(self.store.get_tensor("a"), self.x + 1)
        self.assertEqual(self.store.batch_upsert_tensor(["a", "new"], [self.x, self.x + 2]), [0, 0])
        self.same(self.store.get_tensor("new"), self.x + 2)
        self.assertEqual(self.store.pub_tensor("p", self.x, self.config(preferred_segments=["a", "b"])), -600)
        self.assertEqual(self.store.pub_tensor("p", self.x, self.config(replica_num=1)), 0)

    def test_buffers(self):
        self.store.put_tensor("a", self.x)
        with Memory(self.store, 16384) as memory:
            self.same(self.store.get_tensor_into("a", memory.ptr, 16384), self.x)
            self.assertIsNone(self.store.get_tensor_into("a", memory.ptr + 8192, 300))
            self.assertEqual(self.store.put_tensor_from("f", memory.ptr, 400), 0)
            self.same(self.store.get_tensor("f"), self.x)
            self.assertEqual(self.store.put_tensor_from("g", memory.ptr, 399), -600)
            self.assertEqual(self.store.batch_put_tensor_from(["h", "i"], [memory.ptr] * 2, [400, 399]), [-600, -600])
            self.assertEqual(self.store.batch_put_tensor_from(["h"], [memory.ptr], [400]), [0])
            self.assertEqual(self.store.put_tensor_with_tp_from("t", memory.ptr, 400, 0, 2, 0), 0)
            self.same(self.store.get_tensor("t_tp_1"), self.x[2:])
            got = self.store.batch_get_tensor_into(["a", "absent"], [memory.ptr, memory.ptr + 4096], [4096] * 2)
            self.same(got[0], self.x)
            self.assertIsNone(got[1])
            self.assertEqual(self.store.batch_get_tensor_into(["a"], [memory.ptr], [1, 2]), [-600])

    def test_tp_shards(self):
        self.assertEqual(self.store.put_tensor_with_tp("b", self.x, 0, 2, 1), 0)
        self.assertEqual(self.store.is_exist("b"), 0)
        self.same(self.store.get_tensor_with_tp("b", 1, 2), self.x[:, 3:])
        self.same(self.store.batch_get_tensor_with_tp(["b"], 0, 2)[0], self.x[:, :3])
        data = self.store.get("b_tp_1")
        self.assertEqual(int.from_bytes(data[16:20], "little"), 1)
        self.assertEqual(data[168:208].hex(), "0100000000000000" + "0100000000000000" + "0100000002000000" +
                         "0100000000000000" + "0300000000000000")
        for wrong in ((0, 3, 0), (0, 2, 5), (0, 2, -1)):
            self.assertEqual(self.store.put_tensor_with_tp("c", self.x, *wrong), -600)

    def test_parallel_shards(self):
        for rank in range(2):
            self.assertEqual(self.store.put_tensor_with_parallelism("p", self.x + rank, self.tp(rank, 2)), 0)
        self.assertEqual(self.store.get("p__parallelism_manifest").hex()[:64],
                         "4e414d5701006000" + "0000000002000000" + "0000000002000000" + "0000000000000000")
        self.assertEqual(len(self.store.get("p__parallelism_manifest")), 96)
        read = self.store.get_tensor_with_parallelism
        self.same(read("p", self.target("shard", self.tp(1, 2))), self.x + 1)
        whole = torch.cat([self.x, self.x + 1])
        self.same(read("p", self.target("full", self.tp(0, 2))), whole)
        self.same(read("p", self.target("shard", self.tp(3, 4))), whole[6:])
        self.assertIsNone(read("p", self.target("full")))
        self.assertIsNone(read("p", self.target("as_stored", self.tp(0, 2))))
        both = self.parallel(tp=(1, 2, {"split_dim": 1}), ep=(0, 4, {"expert_id": 3}))
        self.assertEqual(self.store.put_tensor_with_parallelism("e", self.x, both), 0)
        self.same(self.store.get_tensor("e__tp_1of2_sd1__ep_0of4_eid3"), self.x[:, 3:])
        stage = self.parallel(pp=(1, 2, {"stage_id": 7}))
        self.assertEqual(self.store.put_tensor_with_parallelism("s", self.x, stage), 0)
        self.same(self.store.get_tensor("s__pp_1of2_sid7"), self.x)
        self.same(read("s", self.target("shard", stage)), self.x)
        for wrong in (self.parallel(tp=(0, 2, {})), self.parallel(dp=(0, 2, {"split_dim": 0})), self.parallel(ep=(0, 2, {})),
                      self.parallel(pp=(0, 2, {})), self.tp(2, 2), self.parallel(other=(0, 2, {})), self.parallel()):
            self.assertEqual(self.store.put_tensor_with_parallelism("w", self.x, wrong), -600)

    def test_writer_partitions(self):
        class Part:
            rank, size, split_dim = 0, 2, 1

        class Other(Part):
            rank = 1
        for part in (Part(), Other()):
            self.assertEqual(self.store.put_tensor_with_parallelism("w", self.x, writer_partition=part), 0)
        self.same(self.store.get_tensor("w__writer_1of2_sd1"), self.x[:, 3:])
        self.same(self.store.get_tensor_with_parallelism("w", self.target("full")), self.x)
        self.same(self.store.get_tensor_with_parallelism("w", self.target("shard", self.tp(1, 2, 1))), self.x[:, 3:])
        self.assertIsNone(self.store.get_tensor_with_parallelism("w", self.target("shard", self.tp(0, 2, 0))))
        self.assertEqual(self.store.put_tensor_with_parallelism("v", self.x, self.tp(0, 2), writer_partition=Part()), -600)

    def test_published_and_replaced(self):
        y, config = self.x + 1, self.config(replica_num=1)
        self.assertEqual(self.store.batch_pub_tensor(["a", "b"], [self.x, y], config), [0, 0])
        self.assertEqual(self.store.batch_pub_tensor(["c"], [self.x, y], config), [-600])
        self.assertEqual(self.store.upsert_pub_tensor("a", y, config), 0)
        self.assertEqual(self.store.batch_upsert_pub_tensor(["b", "c"], [self.x, self.x], config), [0, 0])
        for key, wanted in (("a", y), ("b", self.x), ("c", self.x)):
            self.same(self.store.get_tensor(key), wanted)
        with Memory(self.store, 16384) as memory:
            self.same(self.store.get_tensor_into("a", memory.ptr, 400), y)
            self.assertEqual(self.store.upsert_tensor_from("b", memory.ptr, 400), 0)
            self.assertEqual(self.store.upsert_tensor_from("b", memory.ptr, 399), -600)
            self.assertEqual(self.store.batch_upsert_tensor_from(["c", "d"], [memory.ptr] * 2, [400] * 2), [0, 0])
            for key in "bcd":
                self.same(self.store.get_tensor(key), y)

    def test_memory_of_a_gpu_is_a_dummy_clients(self):
        self.store.put_tensor("a", self.x)
        self.assertEqual(self.store.get_tensor_into_cuda("a", self.x), -600)
        self.assertEqual(self.store.batch_get_tensor_into_cuda(["a"], [self.x]), [-600])

    def test_tp_shards_of_many(self):
        y, config = self.x + 1, self.config(replica_num=1)
        self.assertEqual(self.store.pub_tensor_with_tp("a", self.x, config, 0, 2, 1), 0)
        self.assertEqual(self.store.batch_put_tensor_with_tp(["b", "c"], [self.x, y], 0, 2, 0), [0, 0])
        self.assertEqual(self.store.batch_pub_tensor_with_tp(["d", "e"], [self.x, y], config, 0, 2, 0), [0, 0])
        self.same(self.store.get_tensor_with_tp("a", 1, 2), self.x[:, 3:])
        for key, whole in (("b", self.x), ("c", y), ("d", self.x), ("e", y)):
            self.same(self.store.get_tensor(key + "_tp_1"), whole[2:])
        with Memory(self.store, 16384) as memory:
            self.same(self.store.get_tensor_with_tp_into("c", memory.ptr, 4096, 1, 2), y[2:])
            self.assertIsNone(self.store.get_tensor_with_tp_into("absent", memory.ptr, 4096, 1, 2))
            got = self.store.batch_get_tensor_with_tp_into(["b", "absent"], [memory.ptr, memory.ptr + 8192], [4096] * 2, 0, 2)
            self.same(got[0], self.x[:2])
            self.assertIsNone(got[1])
            self.same(self.store.get_tensor_into("b_tp_0", memory.ptr, 4096), self.x[:2])
            self.store.put_tensor("whole", y)
            self.store.get_tensor_into("whole", memory.ptr, 4096)
            self.assertEqual(self.store.batch_put_tensor_with_tp_from(["f", "g"], [memory.ptr] * 2, [400] * 2, 0, 2, 0), [0, 0])
            self.same(self.store.get_tensor("g_tp_1"), y[2:])

    def test_parallel_shards_of_many(self):
        parts, y = [self.tp(0, 2), self.tp(1, 2)], self.x + 1
        self.assertEqual(self.store.batch_put_tensor_with_parallelism(["a", "a"], [self.x, y], parts), [0, 0])
        self.assertEqual(self.store.upsert_tensor_with_parallelism("a", y, parts[0]), 0)
        self.assertEqual(self.store.batch_upsert_tensor_with_parallelism(["a"], [self.x], parts[1:]), [0])
        shard = [self.target("shard", part) for part in parts]
        got = self.store.batch_get_tensor_with_parallelism(["a", "a", "absent"], [*shard, shard[0]])
        self.same(got[0], y)
        self.same(got[1], self.x)
        self.assertIsNone(got[2])
        with Memory(self.store, 32768) as memory:
            self.same(self.store.get_tensor_with_parallelism_into("a", memory.ptr, 4096, shard[0]), y)
            self.assertIsNone(self.store.get_tensor_with_parallelism_into("absent", memory.ptr, 4096, shard[0]))
            got = self.store.batch_get_tensor_with_parallelism_into(["a", "a"], [memory.ptr, memory.ptr + 8192], [4096] * 2, shard)
            self.same(got[0], y)
            self.same(got[1], self.x)
            self.store.put_tensor("whole", self.x)
            self.store.get_tensor_into("whole", memory.ptr, 4096)
            put = self.store.put_tensor_with_parallelism_from
            self.assertEqual([put("b", memory.ptr, 400, part) for part in parts], [0, 0])
            self.assertEqual(put("c", memory.ptr, 399, parts[0]), -600)
            self.same(self.store.get_tensor_with_parallelism("b", shard[1]), self.x[2:])
            self.assertEqual(self.store.batch_put_tensor_with_parallelism_from(["d", "d"], [memory.ptr] * 2, [400] * 2, parts), [0, 0])
            self.same(self.store.get_tensor_with_parallelism("d", shard[0]), self.x[:2])
            self.store.upsert_tensor("whole", y)
            self.store.get_tensor_into("whole", memory.ptr, 4096)
            self.assertEqual(self.store.upsert_tensor_with_parallelism_from("b", memory.ptr, 400, parts[1]), 0)
            self.assertEqual(self.store.batch_upsert_tensor_with_parallelism_from(["d"], [memory.ptr], [400], parts[:1]), [0])
            self.same(self.store.get_tensor_with_parallelism("b", shard[1]), y[2:])
            self.same(self.store.get_tensor_with_parallelism("d", shard[0]), y[:2])

    def test_safetensors(self):
        try:
            import safetensors.torch  # noqa: F401
        except ImportError:
            self.skipTest("no safetensors")
        import tempfile
        with tempfile.TemporaryDirectory() as place:
            path = place + "/file"
            self.store.put_tensor("a", self.x)
            self.assertEqual(self.store.save_tensor_to_safetensor("a", path), 0)
            self.assertEqual(self.store.save_tensor_to_safetensor("absent", path), -1100)
            self.assertEqual(self.store.save_tensor_to_safetensor("a", place + "/no/such"), -600)
            self.same(self.store.load_tensor_from_safetensor("b", path), self.x)
            self.same(self.store.get_tensor("b"), self.x)
            self.same(self.store.load_tensor_from_safetensor(file_name=path), self.x)
            self.same(self.store.get_tensor(path), self.x)
            self.assertIsNone(self.store.load_tensor_from_safetensor("c", place + "/no/such"))

    def test_serializing(self):
        head, address, size, owner = self.module._serialize_tensor(self.x.t())
        self.assertEqual((len(head), size, self.module._tensor_metadata_size()), (304, 96, 304))
        self.store.put_tensor("a", self.x)
        self.same(self.module._deserialize_tensor(self.store.get("a")), self.x)
        with self.assertRaises(ValueError):
            self.module._deserialize_tensor(b"x" * 400)
        with self.assertRaises(ValueError):
            self.module._serialize_tensor(5)


if __name__ == "__main__":
    unittest.main()

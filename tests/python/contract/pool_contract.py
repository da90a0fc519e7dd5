"""BufferPool and EngramStore: what is borrowed, what is refused."""
import unittest

from base import MIB, StoreCase, new_store

try:
    import numpy
except ImportError:
    numpy = None


class Pools(StoreCase):
    def pool(self, **keywords):
        return self.module.BufferPool(self.store, **keywords)

    def test_names(self):
        m = self.module
        self.assertIs(m.RegisteredBufferPool, m.BufferPool)
        self.assertIs(m.RegisteredBufferLease, m.BufferLease)
        self.assertIs(m.RegisteredBufferLeaseView, m.BufferLeaseView)

    def test_leases(self):
        pool = self.pool()
        with pool.acquire(100000) as lease:
            self.assertEqual((lease.size, len(lease.buffer), lease.buffer.format), (100000, 100000, "B"))
            lease.buffer[:5] = b"hello"
            self.assertEqual(self.store.put_from("leased", lease.ptr, 5), 0)
            self.assertEqual(self.store.get("leased"), b"hello")
            with self.assertRaisesRegex(RuntimeError, "cannot close buffer pool with active leases"):
                pool.close()
        with self.assertRaisesRegex(RuntimeError, "buffer lease is closed"):
            lease.ptr
        lease.release()
        pool.prewarm(1000, 2)
        pool.close()
        with self.assertRaisesRegex(RuntimeError, "buffer pool is clos"):
            pool.acquire(10)

    def test_views_hold(self):
        pool = self.pool()
        lease = pool.buffer(1000)
        view = memoryview(lease.buffer)
        with self.assertRaisesRegex(RuntimeError, "cannot release buffer while exported views exist"):
            lease.release()
        view.release()
        lease.release()
        pool.close()

    def test_limits(self):
        pool = self.pool(max_bytes=64 * MIB)
        with self.assertRaisesRegex(RuntimeError, "requested buffer size exceeds pool capacity"):
            pool.acquire(1 << 40)
        with self.assertRaisesRegex(RuntimeError, "timeout must be non-negative"):
            pool.acquire(10, timeout=-1)
        lease = pool.acquire(60 * MIB)
        with self.assertRaisesRegex(RuntimeError, "buffer pool is exhausted"):
            pool.acquire(60 * MIB, block=False)
        with self.assertRaisesRegex(RuntimeError, "timed out waiting for buffer"):
            pool.acquire(60 * MIB, timeout=0.05)
        lease.release()
        pool.close()

    def test_refused(self):
        make = self.module.BufferPool
        with self.assertRaises(RuntimeError):
            make(object())
        with self.assertRaisesRegex(RuntimeError, "is not initialized"):
            make(self.module.MooncakeDistributedStore())
        with self.assertRaisesRegex(RuntimeError, "must be positive"):
            self.pool(min_size_class=0)
        with self.assertRaisesRegex(RuntimeError, "power of two"):
            self.pool(alignment=3)
        bare = new_store(segment=0, buffer=0)
        with self.assertRaisesRegex(RuntimeError, "requires a store configured with a local buffer"):
            make(bare)
        bare.close()
        self.assertIs(self.module.RegisteredBufferPool, make)


@unittest.skipIf(numpy is None, "numpy is not installed")
class Engrams(StoreCase):
    def test_lookup(self):
        config = self.module.EngramStoreConfig()
        config.table_vocab_sizes, config.embedding_dim = [10, 20], 4
        engram = self.module.EngramStore(3, config, self.store)
        self.assertEqual(engram.get_store_keys(), ["engram:l3:h0", "engram:l3:h1"])
        self.assertEqual((engram.get_num_heads(), engram.get_embedding_dim(), engram.get_table_vocab_sizes()), (2, 4, [10, 20]))
        tables = [numpy.arange(n * 4, dtype=numpy.float32).reshape(n, 4) + h * 1000 for h, n in enumerate((10, 20))]
        engram.populate(tables)
        self.assertEqual(self.store.get("engram:l3:h0"), tables[0].tobytes())
        ids = numpy.array([[[0, 19], [9, 0], [3, 3]]], dtype=numpy.int64)
        got = engram.lookup(ids)
        self.assertEqual(got.shape, (1, 3, 2, 4))
        for i in range(3):
            for h in range(2):
                self.assertTrue((got[0, i, h] == tables[h][ids[0, i, h]]).all())
        self.assertTrue((engram.lookup(ids.tolist()) == got).all())
        for wrong, text in ((numpy.zeros((1, 1), numpy.int64), "shape"), (numpy.zeros((1, 1, 3), numpy.int64), "num_heads"),
                            (numpy.full((1, 1, 2), 99, numpy.int64), "lookup failed")):
            with self.assertRaisesRegex(RuntimeError, text):
                engram.lookup(wrong)
        with self.assertRaises(RuntimeError):
            engram.populate([tables[0]])
        self.assertEqual(engram.remove_from_store(True), 2)


if __name__ == "__main__":
    unittest.main()

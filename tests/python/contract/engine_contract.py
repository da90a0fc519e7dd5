"""TransferEngine: what each call takes, returns and moves. Both ends are engines of this process, or of two."""
import ctypes
import json
import os
import subprocess
import sys
import unittest

from base import MASTER, MIB, OURS, ours_only, pattern

PEER = """
import ctypes, sys
import mooncake.engine
e = mooncake.engine.TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = ctypes.create_string_buffer(1 << 20)
assert e.register_memory(ctypes.addressof(memory), 1 << 20) == 0
print("AT", e.get_rpc_port(), ctypes.addressof(memory), flush=True)
for line in sys.stdin:
    word = line.split()
    if word[0] == "fill":
        ctypes.memset(memory, int(word[1]), 1 << 20)
        print("SAID ok", flush=True)
    elif word[0] == "read":
        print("SAID", memory.raw[int(word[1]):int(word[1]) + int(word[2])].hex(), flush=True)
    elif word[0] == "notifies":
        print("SAID", repr([(n.name, n.msg) for n in e.get_notifies()]), flush=True)
"""


class Peer:
    """An engine in a process of its own."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        _, port, address = self.line("AT")
        self.name, self.address = f"127.0.0.1:{port}", int(address)

    def line(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line.split(maxsplit=2 if word == "AT" else 1)
        raise AssertionError("the peer ended")

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return (self.line("SAID") + [""])[1].strip()

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Transfers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import mooncake.engine
        cls.module = mooncake.engine
        cls.engine = mooncake.engine.TransferEngine()
        assert cls.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        cls.memory = ctypes.create_string_buffer(MIB)
        cls.ptr = ctypes.addressof(cls.memory)
        assert cls.engine.register_memory(cls.ptr, MIB) == 0
        cls.peer = Peer()

    @classmethod
    def tearDownClass(cls):
        cls.engine.unregister_memory(cls.ptr)
        cls.peer.close()

    def fill(self, data, at=0):
        ctypes.memmove(self.ptr + at, data, len(data))

    def test_write_and_read(self):
        data = pattern(100000)
        self.fill(data)
        self.assertEqual(self.engine.transfer_sync_write(self.peer.name, self.ptr, self.peer.address + 10, 100000), 0)
        self.assertEqual(self.peer.ask("read 10 100000"), data.hex())
        self.assertEqual(self.engine.transfer_sync_read(self.peer.name, self.ptr + 200000, self.peer.address + 10, 100000), 0)
        self.assertEqual(ctypes.string_at(self.ptr + 200000, 100000), data)
        self.assertEqual(self.engine.transfer_sync(self.peer.name, self.ptr, self.peer.address + 10, 100,
                                                   self.module.TransferOpcode.Read), 0)

    def test_batches(self):
        data = pattern(64 * 1000, 3)
        self.fill(data)
        local = [self.ptr + 1000 * i for i in range(64)]
        remote = [self.peer.address + 2000 * i for i in range(64)]
        self.assertEqual(self.engine.batch_transfer_sync_write(self.peer.name, local, remote, [1000] * 64), 0)
        self.assertEqual(self.peer.ask("read 2000 1000"), data[1000:2000].hex())
        back = [self.ptr + 500000 + 1000 * i for i in range(64)]
        self.assertEqual(self.engine.batch_transfer_sync_read(self.peer.name, back, remote, [1000] * 64), 0)
        self.assertEqual(ctypes.string_at(self.ptr + 500000, 64000), data)
        self.assertEqual(self.engine.batch_transfer_sync(self.peer.name, local, remote, [1000] * 64,
                                                         self.module.TransferOpcode.Write), 0)
        self.assertEqual(self.engine.batch_transfer_sync_write(self.peer.name, local, remote[:3], [1000] * 64), -1)

    def test_batches_that_go_on(self):
        data = pattern(3000, 5)
        self.fill(data)
        first = self.engine.batch_transfer_async_write(self.peer.name, [self.ptr], [self.peer.address], [3000])
        second = self.engine.batch_transfer_async_read(self.peer.name, [self.ptr + 700000], [self.peer.address + 500000], [10])
        self.assertTrue(first and second and first != second)
        self.assertEqual(self.engine.get_batch_transfer_status([first, second]), 0)
        self.assertEqual(self.peer.ask("read 0 3000"), data.hex())
        one = self.engine.transfer_submit_write(self.peer.name, self.ptr, self.peer.address, 3000)
        self.assertTrue(one)
        while True:
            state = self.engine.transfer_check_status(one)
            if state:
                break
        self.assertEqual(state, 1)
        self.assertTrue(self.engine.batch_transfer_async(self.peer.name, [self.ptr], [self.peer.address], [1],
                                                         self.module.TransferOpcode.Write))

    def test_notifications(self):
        notify = self.module.TransferNotify("name", "message")
        self.assertEqual((notify.name, notify.msg, self.module.TransferNotify().name), ("name", "message", ""))
        self.assertEqual(self.engine.transfer_sync(self.peer.name, self.ptr, self.peer.address, 10,
                                                   self.module.TransferOpcode.Write, notify), 0)
        self.assertEqual(self.peer.ask("notifies"), "[('name', 'message')]")
        self.assertEqual(self.peer.ask("notifies"), "[]")
        self.assertEqual(self.engine.get_notifies(), [])

    def test_notification_alone(self):
        self.assertEqual(self.engine.transfer_sync(self.peer.name, self.ptr, self.peer.address, 0,
                                                   self.module.TransferOpcode.Write,
                                                   self.module.TransferNotify("a", "b")), 0)
        self.assertEqual(self.peer.ask("notifies"), "[('a', 'b')]")

    def test_memory(self):
        other = ctypes.create_string_buffer(8192)
        at = ctypes.addressof(other)
        self.assertEqual(self.engine.batch_register_memory([at, at + 4096], [4096, 4096]), 0)
        self.assertEqual(self.engine.batch_unregister_memory([at, at + 4096]), 0)
        self.assertNotEqual(self.engine.unregister_memory(at), 0)
        managed = self.engine.allocate_managed_buffer(100000)
        self.assertGreater(managed, 0)
        self.assertEqual(self.engine.write_bytes_to_buffer(managed, b"a\0b", 3), 0)
        self.assertEqual(self.engine.read_bytes_from_buffer(managed, 3), b"a\0b")
        self.assertEqual(self.engine.transfer_sync_write(self.peer.name, managed, self.peer.address, 3), 0)
        self.assertEqual(self.peer.ask("read 0 3"), b"a\0b".hex())
        self.assertEqual(self.engine.free_managed_buffer(managed, 100000), 0)

    def test_questions(self):
        self.assertTrue(0 < self.engine.get_rpc_port() < 65536)
        self.assertEqual(self.engine.get_first_buffer_address(self.peer.name), self.peer.address)
        self.assertEqual(self.engine.send_probe(self.peer.name), 0)
        self.assertNotEqual(self.engine.send_probe("127.0.0.1:1"), 0)
        self.assertEqual(self.engine.warmup_efa_segment(self.peer.name), 0)
        self.assertIsInstance(json.loads(self.engine.get_local_topology()), dict)
        self.assertGreater(self.engine.get_engine_ptr(), 0)

    def test_the_kind_of_metadata_can_be_said_apart(self):
        other = self.module.TransferEngine()
        self.assertEqual(other.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", ""), 0)
        self.assertEqual(other.send_probe(self.peer.name), 0)

    def test_constants(self):
        m = self.module
        self.assertEqual((int(m.TransferOpcode.Read), int(m.TransferOpcode.Write)), (0, 1))
        self.assertEqual((m.Read, m.Write), (m.TransferOpcode.Read, m.TransferOpcode.Write))
        self.assertEqual(m.TransferEngine.TransferOpcode.Write, m.TransferOpcode.Write)
        self.assertTrue(m.TransferOpcode.Read < m.TransferOpcode.Write)
        self.assertFalse(m.TransferOpcode.Write == 1)
        for support in ("SUPPORT_CUDA", "SUPPORT_EFA", "SUPPORT_HIP", "SUPPORT_MNNVL", "SUPPORT_MUSA", "SUPPORT_INTRA_NVLINK"):
            self.assertIs(getattr(m, support), False, support)
        self.assertIsInstance(self.engine.get_engine(), m.InnerTransferEngine)

    def test_wrong_types(self):
        for wrong in (1.5, "x", None, -1):
            with self.assertRaises(TypeError):
                self.engine.transfer_sync_write(self.peer.name, wrong, self.peer.address, 10)
        with self.assertRaises(TypeError):
            self.engine.batch_transfer_sync_write(self.peer.name, 5, [1], [1])
        with self.assertRaises(TypeError):
            self.engine.transfer_sync_write(5, self.ptr, self.peer.address, 10)

    @ours_only("upstream crashes")
    def test_before_initialize(self):
        fresh = self.module.TransferEngine()
        self.assertEqual(fresh.transfer_sync_write(self.peer.name, self.ptr, self.peer.address, 10), -1)
        self.assertEqual(fresh.get_rpc_port(), 0)
        self.assertEqual(fresh.get_notifies(), [])
        self.assertEqual(fresh.allocate_managed_buffer(10), 0)
        self.assertEqual(fresh.register_memory(self.ptr, 10), -1)
        self.assertEqual(fresh.transfer_check_status(7), -1)
        self.assertIsNone(fresh.get_engine())
        self.assertEqual(fresh.send_probe("127.0.0.1:1"), -1)

    @unittest.skipUnless(OURS or os.environ.get("MC_CONTRACT_SLOW"), "takes upstream half a minute; MC_CONTRACT_SLOW=1 runs it")
    def test_failures(self):
        self.assertEqual(self.engine.transfer_sync_write("127.0.0.1:1", self.ptr, 4096, 10), -1)
        self.assertEqual(self.engine.transfer_sync_write(self.peer.name, self.ptr, self.peer.address + MIB, 10), -1)
        self.assertEqual(self.engine.transfer_sync_write(self.peer.name, self.ptr, self.peer.address, 10), 0)
        self.assertEqual(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""), -1)

    def test_a_store_uses_the_engine(self):
        import mooncake.store
        store = mooncake.store.MooncakeDistributedStore()
        self.assertEqual(store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "tcp", "", MASTER,
                                     self.engine.get_engine()), 0)
        self.assertEqual(store.put("of the engine", pattern(5000)), 0)
        self.assertEqual(store.get("of the engine"), pattern(5000))
        self.assertEqual(store.close(), 0)
        self.assertEqual(self.engine.transfer_sync_write(self.peer.name, self.ptr, self.peer.address, 10), 0)
        with self.assertRaises(RuntimeError):
            store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", MASTER, engine="no engine")


if __name__ == "__main__":
    unittest.main()

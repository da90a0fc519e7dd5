"""RpcInterface: messages to the callback of another process. MC_CONTRACT_RPC_PEER is the address of one with the other
implementation (rpc_peer.py), which sends everything back."""
import os
import socket
import threading
import unittest

from base import OURS, ours_only, pattern


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


class Box:
    """A server with a list of what came."""

    def __init__(self):
        from mooncake.engine import RpcInterface
        self.came, self.changed = [], threading.Condition()
        while True:
            self.rpc, self.address = RpcInterface(), free_address()
            assert self.rpc.initialize_server(self.address, 4, 5)
            self.rpc.set_data_receive_callback(self.take)
            if self.rpc.start_server_async():
                break

    def take(self, message):
        with self.changed:
            self.came.append(message)
            self.changed.notify_all()

    def wait(self, count):
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.came) >= count, 60):
                raise AssertionError(f"{len(self.came)} of {count} messages")
            return list(self.came)


class Rpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import mooncake.engine
        cls.engine = mooncake.engine
        cls.box = Box()
        cls.client = mooncake.engine.RpcInterface()
        assert cls.client.initialize_client(4, 20)

    @classmethod
    def tearDownClass(cls):
        cls.box.rpc.stop_server()

    def setUp(self):
        self.box.came.clear()

    def test_messages_of_every_size_come(self):
        values = [pattern(n, n) for n in (0, 1, 255, 256, 1023, 1024, 4095, 4096, 65536, 3 << 20)]
        for value in values:
            self.assertEqual(self.client.send_data(self.box.address, value), 0)
        self.assertEqual([one["data"] for one in self.box.wait(len(values))], values)
        self.assertEqual(self.box.came[0], {"source": "", "data": b""})

    def test_threads_send_at_once(self):
        results = []
        def work(i):
            results.extend(self.client.send_data(self.box.address, pattern(5000 + i, i)) for _ in range(25))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [0] * 200)
        self.assertEqual(sorted(one["data"] for one in self.box.wait(200)),
                         sorted(pattern(5000 + i, i) for i in range(8) for _ in range(25)))

    def test_what_is_refused(self):
        for wrong in ("text", 5, None):
            with self.assertRaises(TypeError):
                self.client.send_data(self.box.address, wrong)
            with self.assertRaises(TypeError):
                self.client.set_data_receive_callback(wrong)
        self.assertEqual(self.client.send_tensor(self.box.address, object()), -1)
        fresh = self.engine.RpcInterface()
        self.assertEqual(fresh.send_data(self.box.address, b"x"), -1)
        self.assertFalse(fresh.start_server())
        self.assertIsNone(fresh.stop_server())

    def test_made_by_functions(self):
        client = self.engine.create_rpc_client(3, 4)
        self.assertEqual(client.send_data(self.box.address, b"of a function"), 0)
        self.assertEqual(self.box.wait(1)[0]["data"], b"of a function")
        self.assertIsInstance(self.engine.create_rpc_server(), self.engine.CoroRPCInterface)
        for name in ("data_size", "get_bytes", "get_memory_view", "source_address"):
            self.assertTrue(hasattr(self.engine.ReceivedData, name))
        self.assertTrue(hasattr(self.engine.ReceivedTensor, "total_bytes"))

    def test_nobody_there(self):
        self.assertEqual(self.client.send_data("127.0.0.1:1", b"x"), -1)

    def test_one_server_for_one_address(self):
        self.assertFalse(self.box.rpc.start_server_async())
        other = self.engine.RpcInterface()
        self.assertTrue(other.initialize(self.box.address, 2))
        self.assertFalse(other.start_server_async())
        self.assertEqual(other.send_data(self.box.address, b"of the other"), 0)
        self.assertEqual(self.box.wait(1)[0]["data"], b"of the other")

    def test_a_callback_that_fails_is_the_receivers_business(self):
        box = Box()
        def fail(message):
            raise ValueError("of the test")
        box.rpc.set_data_receive_callback(fail)
        self.assertEqual(self.client.send_data(box.address, b"x"), 0)
        box.rpc.stop_server()

    def test_tensors_are_their_elements(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        tensor = torch.arange(600, dtype=torch.float32).reshape(20, 30) + 0.5
        self.assertEqual(self.client.send_tensor(self.box.address, tensor), 0)
        self.assertEqual([one["data"] for one in self.box.wait(1)], [tensor.numpy().tobytes()])

    def test_what_has_a_tensors_header_goes_to_the_tensor_callback(self):
        import struct
        box, came = Box(), []
        data = struct.pack("<II8q", 2, 2, 2, 3, *[0] * 6) + struct.pack("<6f", *range(6))
        if OURS:  # Upstream drops it.
            self.assertEqual(self.client.send_data(box.address, data), 0)
            self.assertEqual(box.wait(1)[0]["data"], data)
            box.came.clear()
        done = threading.Event()
        def take(tensor):
            came.append((tensor.dtype, tensor.source_address, tensor.get_data_size(), tensor.get_data_as_bytes(),
                         bytes(tensor.get_memory_view()), tensor.shape if OURS else [2, 3]))  # Upstream's shape is a TypeError.
            done.set()
        box.rpc.set_tensor_receive_callback(take)
        self.assertEqual(self.client.send_data(box.address, data), 0)
        self.assertTrue(done.wait(60))
        self.assertEqual(came, [("float32", "", len(data), data, data, [2, 3])])
        others = [struct.pack("<II", 10, 1) + bytes(80), struct.pack("<II", 2, 5) + bytes(80), *([data[:71]] if OURS else [])]
        for other in others:  # Upstream drops the last, which breaks off in the header.
            self.assertEqual(self.client.send_data(box.address, other), 0)
        self.assertEqual([one["data"] for one in box.wait(len(others))], others)
        box.rpc.stop_server()

    @ours_only("upstream does not take the interpreter's lock there, and dies")
    def test_awaitables(self):
        import asyncio

        async def main():
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*(self.client.send_data_async(self.box.address, b"a%d" % i, loop) for i in range(5)))
        self.assertEqual(asyncio.run(main()), [0] * 5)
        self.assertTrue(callable(self.client.send_tensor_async))
        self.assertEqual(sorted(one["data"] for one in self.box.wait(5)), [b"a%d" % i for i in range(5)])

    @ours_only("upstream says 0 to a peer that does not answer, after 30 s whatever the limit is")
    def test_a_peer_that_does_not_answer(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = self.engine.RpcInterface()
            client.initialize_client(1, 1)
            self.assertEqual(client.send_data("127.0.0.1:%d" % silent.getsockname()[1], b"x"), -1)

    @ours_only("upstream says 0 to a peer that hung up, and starts no server twice")
    def test_a_server_ends_and_starts_again(self):
        box = Box()
        self.assertEqual(self.client.send_data(box.address, b"1"), 0)
        box.rpc.stop_server()
        self.assertEqual(self.client.send_data(box.address, b"lost"), -1)
        self.assertTrue(box.rpc.start_server_async())
        self.assertEqual(self.client.send_data(box.address, b"2"), 0)
        self.assertEqual([one["data"] for one in box.came], [b"1", b"2"])
        box.rpc.stop_server()

    @ours_only("the bytes that a peer may send are not upstream's to refuse")
    def test_other_bytes_end_the_connection_or_are_an_error(self):
        import struct
        host, port = self.box.address.split(":")
        def ask(data):
            with socket.create_connection((host, int(port)), 20) as sock:
                try:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    return sock.makefile("rb").read()
                except OSError:  # Hung up on before it had read everything: the rest is thrown away with a reset.
                    return b""
        def frame(function, body, magic=21, attached=0):
            return struct.pack("<BBBBIIII", magic, 0, 0, 0, 7, function, len(body), attached) + body
        string = bytes.fromhex("77facf9d04800c00")
        for data in (b"GET / HTTP/1.0\r\n\r\n" * 4, frame(0x25764C34, string, 22), b"\x15", frame(0x25764C34, string, 21, 1 << 31)):
            self.assertEqual(ask(data), b"")
        for data, error in ((frame(1, b""), 11), (frame(0x25764C34, b""), 4), (frame(0x25764C34, string), 4),
                            (frame(0x25764C34, string + b"\x05abc"), 4), (frame(0x25764C34, string[:7] + b"\1\1a"), 4)):
            self.assertEqual(ask(data)[2], error, data)
        self.assertEqual(self.box.came, [])

    @unittest.skipUnless(os.environ.get("MC_CONTRACT_RPC_PEER"), "no peer of the other implementation")
    def test_to_the_other_implementation_and_back(self):
        values = [pattern(n, n) for n in (1, 100, 256, 1024, 4096, 70000, 2 << 20)]
        for value in values:
            envelope = self.box.address.encode().ljust(32) + value
            self.assertEqual(self.client.send_data(os.environ["MC_CONTRACT_RPC_PEER"], envelope), 0)
        self.assertEqual(sorted(one["data"] for one in self.box.wait(len(values))), sorted(values))
        self.assertIn(values[-1], [one["data"] for one in self.box.came])

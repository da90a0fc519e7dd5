"""Host memory that processes share (engine.SharedSegment, mooncake.shared_segment), and copies of many arrays (_fast_copy)."""
import ctypes
import os
import subprocess
import sys
import threading
import unittest

from base import ours_only

import mooncake.engine

try:
    import numpy as np
    from mooncake import _fast_copy
except ImportError:
    np = None
try:
    import torch
    from mooncake import shared_segment
except ImportError:
    torch = None

PEER = """
import ctypes, sys
from mooncake.engine import SharedSegment
own = bytes.fromhex(sys.stdin.readline())
segment, blob = SharedSegment.create("pages", 8192, 2, 1)
print("blob", blob.hex(), flush=True)
segment.complete([own, blob])
assert ctypes.string_at(segment.base_addr(), 8192) == bytes(range(256)) * 32, "the owner's bytes"
ctypes.memmove(segment.base_addr() + 4096, b"written by the peer", 19)
print("done", flush=True)
"""


def named(segment_blob):
    return segment_blob[32:].rstrip(b"\0").decode()


class Segments(unittest.TestCase):
    create = staticmethod(mooncake.engine.SharedSegment.create)

    def test_alone(self):
        segment, blob = self.create("one", 5000, 1, 0)
        self.assertFalse(segment.ready())
        segment.complete([blob])
        self.assertEqual((segment.ready(), segment.size(), segment.device_addr()), (True, 5000, 0))
        self.assertEqual(ctypes.string_at(segment.base_addr(), 5000), bytes(5000))

    def test_two_processes(self):
        segment, blob = self.create("pages", 8192, 2, 0)
        ctypes.memmove(segment.base_addr(), bytes(range(256)) * 32, 8192)
        peer = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        out, _ = peer.communicate(blob.hex() + "\n", timeout=60)
        self.assertIn("done", out)
        other = next(line for line in out.splitlines() if line.startswith("blob "))
        segment.complete([blob, bytes.fromhex(other.split()[1])])
        self.assertTrue(segment.ready())
        self.assertEqual(ctypes.string_at(segment.base_addr() + 4096, 19), b"written by the peer")

    def test_what_is_refused(self):
        for bad in ((0, 1, 0), (10, 1, 1), (10, 0, 0)):
            with self.assertRaises(RuntimeError):
                self.create("x", *bad)
        with self.assertRaises(RuntimeError):
            self.create("x", 10, 1, 0, 0, 0, False)
        self.assertFalse(mooncake.engine.SharedSegment.supported(False))
        one, blob = self.create("three", 4096, 2, 0)
        _, other = self.create("three", 8192, 2, 1)
        for blobs in ([blob], [blob, b"xx"], [blob, other]):
            with self.assertRaises(RuntimeError):
                one.complete(blobs)
        self.assertFalse(one.ready())

    @ours_only("its names in /dev/shm stay until the process ends")
    def test_the_name_goes_with_the_segment(self):
        segment, blob = self.create("gone", 4096, 1, 0)
        path = "/dev/shm" + named(blob)
        self.assertTrue(os.path.exists(path))
        del segment
        self.assertFalse(os.path.exists(path))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_tensors(self):
        self.assertTrue(shared_segment.shared_segment_supported())
        segment = shared_segment.create_shared_segment(
            "t", {"kv": {"shape": (2, 3), "dtype": torch.float16, "count": 3}}, 1, 0)
        tensors = segment.tensors("kv")
        self.assertEqual(segment.total_size(), 3 * 4096)
        tensors[1][...] = torch.arange(6).reshape(2, 3)
        again = segment.tensors("kv")
        self.assertTrue(torch.equal(again[1], torch.arange(6, dtype=torch.float16).reshape(2, 3)))
        self.assertEqual((again[0].abs().sum().item(), again[2].data_ptr() - segment.base_addr()), (0, 8192))
        del segment
        self.assertEqual(tensors[1][1, 2].item(), 5)
        with self.assertRaises(shared_segment.SharedSegmentError):
            shared_segment.create_shared_segment("t", {"kv": {"shape": (2,), "count": 1}}, 1, 0)
        with self.assertRaises(shared_segment.SharedSegmentError):
            shared_segment.create_shared_segment("t", {"kv": {"shape": (2,), "dtype": torch.uint8, "count": 1}}, 2, 0)


@unittest.skipIf(np is None, "numpy is not installed")
class FastCopy(unittest.TestCase):
    def test_arrays_one_behind_the_other(self):
        arrays = [np.arange(3, dtype=np.int32), np.ones(2), np.zeros(0), np.arange(4, dtype=np.uint8)]
        expected, room = b"".join(a.tobytes() for a in arrays), np.full(64, 255, np.uint8)
        self.assertEqual(_fast_copy.concat_arrays_into(arrays, room.ctypes.data, 64), len(expected))
        self.assertEqual(room.tobytes(), expected + b"\xff" * (64 - len(expected)))
        self.assertEqual(_fast_copy.concat_arrays_into(arrays, room.ctypes.data, 64, 1, 3), 20)
        self.assertEqual(room[:20].tobytes(), expected[12:])
        self.assertEqual(_fast_copy.concat_arrays_into([], room.ctypes.data, 64), 0)
        with self.assertRaisesRegex(ValueError, "need 32 bytes, got 31"):
            _fast_copy.concat_arrays_into(arrays, room.ctypes.data, 31)
        with self.assertRaisesRegex(ValueError, r"arrays\[1\] is not C-contiguous"):
            _fast_copy.concat_arrays_into([room, np.ones((3, 3)).T[:2]], room.ctypes.data, 640)
        with self.assertRaises(TypeError):
            _fast_copy.concat_arrays_into([5], room.ctypes.data, 64)
        with self.assertRaises(TypeError):
            _fast_copy.concat_arrays_into(tuple(arrays), room.ctypes.data, 64)

    def test_threads(self):
        arrays = [np.random.default_rng(i).integers(0, 256, size, np.uint8) for i, size in enumerate(
            (5 << 20, 1, 3 << 20, 0, 7, 1 << 20))]
        total = sum(a.size for a in arrays)
        for threads in (1, 2, 7, 1000):
            room = np.zeros(total, np.uint8)
            self.assertEqual(_fast_copy.concat_arrays_into(arrays, room.ctypes.data, total, 0, len(arrays), threads), total)
            self.assertTrue(np.array_equal(room, np.concatenate(arrays)))

    def test_other_threads_run_meanwhile(self):
        source, room, ticks, stop = np.ones(256 << 20, np.uint8), np.zeros(256 << 20, np.uint8), [0], threading.Event()

        def tick():
            while not stop.wait(0.001):
                ticks[0] += 1
        thread = threading.Thread(target=tick)
        thread.start()
        while ticks[0] == 0:  # It runs.
            pass
        before = ticks[0]
        while ticks[0] == before:  # Ends only if it also runs during a copy, or between two.
            _fast_copy.concat_arrays_into([source], room.ctypes.data, room.nbytes)
        stop.set()
        thread.join()
        self.assertTrue(room.all())

"""What the contract tests share. One file of tests is run by two interpreters: one that has our package, one that has
upstream's wheel, each against its own master (MC_CONTRACT_MASTER). A test that fails on upstream is a wrong test, unless
it is marked `ours_only` with the reason that docs/compatibility.md gives.
"""
import ctypes
import os
import time
import unittest

OURS = os.environ.get("MC_CONTRACT_SIDE", "ours") == "ours"
MASTER = os.environ.get("MC_CONTRACT_MASTER", "")
MIB = 1 << 20


def ours_only(reason):
    return unittest.skipUnless(OURS, f"differs from upstream: {reason}")


def new_store(segment=64 * MIB, buffer=64 * MIB, **keywords):
    import mooncake.store
    store = mooncake.store.MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", MASTER, **keywords)
    if code:
        raise AssertionError(f"setup: {code}")
    if segment:
        wait_for_room(store)
    return store


def wait_for_room(store):
    """A store of a process may by chance get port and memory of an earlier one. Our master then gives nothing away there until
    the last lease on the earlier one's objects has ended."""
    deadline = time.monotonic() + 120
    while (code := store.put("probe", b"x")) == -200 and time.monotonic() < deadline:
        time.sleep(0.1)
    if code or store.remove("probe", True):
        raise AssertionError(f"put to a new store: {code}")


def pattern(size, seed=1):
    """Bytes that repeat at no power of two."""
    unit = bytes((i * 31 + seed * 17 + (i >> 3)) & 0xff for i in range(251))
    return (unit * (size // 251 + 1))[:size]


class Memory:
    """A buffer of the caller's, registered with the store."""

    def __init__(self, store, size):
        self.store, self.size = store, size
        self.bytes = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self.bytes)
        if store.register_buffer(self.ptr, size):
            raise AssertionError("register_buffer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.unregister_buffer(self.ptr)

    def fill(self, data, at=0):
        ctypes.memmove(self.ptr + at, data, len(data))
        return self.ptr + at

    def read(self, size, at=0):
        return ctypes.string_at(self.ptr + at, size)


class StoreCase(unittest.TestCase):
    """One store for the class, emptied before each test."""

    @classmethod
    def setUpClass(cls):
        import mooncake.store
        cls.module = mooncake.store
        cls.store = new_store()

    @classmethod
    def tearDownClass(cls):
        cls.store.close()

    def setUp(self):
        self.store.remove_all(True)

    def config(self, **fields):
        config = self.module.ReplicateConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return config

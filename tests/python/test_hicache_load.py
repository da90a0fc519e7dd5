#!/usr/bin/env python3
"""The load of SGLang's HiCache: threads write pages of 64 KiB to 2 MiB back in batches of 128 and announce them, others prefetch
them into their own pool and compare every byte; all through one store client, whose memory is in another process."""
import ctypes
import os
import queue
import struct
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

BATCH = 128
THREADS = 2  # Of each kind.
LOADS = ((64 << 10, 6), (256 << 10, 3), (1 << 20, 2), (2 << 20, 1))  # Bytes of a page, batches of a thread.


class Pool:
    """A registered host pool of BATCH pages."""

    def __init__(self, store, page):
        self.store, self.page = store, page
        self.memory = ctypes.create_string_buffer(BATCH * page)
        self.base = ctypes.addressof(self.memory)
        self.places = [self.base + i * page for i in range(BATCH)]
        assert store.register_buffer(self.base, BATCH * page) == 0

    def close(self):
        assert self.store.unregister_buffer(self.base) == 0


def stamp(writer, batch, page):
    return struct.pack("<QQQ", writer, batch, page)


class Load:
    def __init__(self, store, page, batches):
        self.store, self.page, self.batches = store, page, batches
        self.body = os.urandom(page - len(stamp(0, 0, 0)))
        self.written = queue.Queue(2)  # Bounded, so that the pages that are alive fit the node.
        self.errors, self.compared, self.lock = [], 0, threading.Lock()

    def keys(self, writer, batch):
        return [f"load{self.page}/{writer}/{batch}/{i}" for i in range(BATCH)]

    def write_back(self, writer):
        pool = Pool(self.store, self.page)
        for place in pool.places:
            ctypes.memmove(place + 24, self.body, len(self.body))
        for batch in range(self.batches):
            keys = self.keys(writer, batch)
            assert self.store.batch_is_exist(keys) == [0] * BATCH
            for i, place in enumerate(pool.places):
                ctypes.memmove(place, stamp(writer, batch, i), 24)
            codes = self.store.batch_put_from(keys, pool.places, [self.page] * BATCH)
            assert codes == [0] * BATCH, codes
            self.written.put((writer, batch), timeout=120)
        pool.close()

    def prefetch(self, _):
        pool = Pool(self.store, self.page)
        while (item := self.written.get(timeout=120)) is not None:
            keys = self.keys(*item)
            assert self.store.batch_is_exist(keys + ["absent"]) == [1] * BATCH + [0]
            ctypes.memset(pool.base, 0, BATCH * self.page)
            sizes = self.store.batch_get_into(keys, pool.places, [self.page] * BATCH)
            assert sizes == [self.page] * BATCH, sizes
            for i, place in enumerate(pool.places):
                assert ctypes.string_at(place, self.page) == stamp(*item, i) + self.body, keys[i]
            assert self.store.batch_remove(keys, True) == [0] * BATCH
            with self.lock:
                self.compared += BATCH * self.page
        pool.close()

    def guarded(self, work, number):
        try:
            work(number)
        except BaseException as error:
            self.errors.append(f"{work.__name__} {number}: {type(error).__name__} {str(error)[:300]}")

    def run(self):
        def start(work):
            threads = [threading.Thread(target=self.guarded, args=(work, n), daemon=True) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            return threads
        readers, writers = start(self.prefetch), start(self.write_back)
        for thread in writers:
            thread.join()
        for _ in readers:
            self.written.put(None, timeout=120)
        for thread in readers:
            thread.join()
        assert not self.errors, self.errors
        assert self.compared == THREADS * self.batches * BATCH * self.page, self.compared
        print(f"{self.page >> 10} KiB pages: {self.compared >> 20} MiB written back, prefetched and compared", flush=True)


def write_back_and_prefetch(peers):
    sys.path.insert(0, os.path.join(peers.build, "python"))
    import mooncake.store
    master = peers.master("ours")
    peers.node("ours", master, segment="2GB")
    store = mooncake.store.MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.address) == 0
    for page, batches in LOADS:
        Load(store, page, batches).run()
    assert store.close() == 0


if __name__ == "__main__":
    if not os.path.exists(os.path.join(sys.argv[1], "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        sys.exit(77)
    interop.main(write_back_and_prefetch)

"""Runs inside the process under test: one client library (ours by ctypes, upstream's by its wheel), driven by JSON lines.

A line is [op, args, kwargs]; the answer is {"result": ...} or {"error": text}. Values never travel: both sides make
them from a seed, and every get compares all bytes here and answers how many it compared.
"""
import ctypes
import functools
import json
import os
import random
import struct
import sys
import threading
import time
import traceback


@functools.lru_cache(maxsize=4)
def value(seed, size):
    return random.Random(seed).randbytes(size)


STAMP = struct.Struct("<QQ")


def stamped(seed, size):
    return STAMP.pack(seed, size) + value(seed, size - STAMP.size)


def compare(got, seed, size, what):
    want = value(seed, size)
    if got == want:
        return size
    if got is None or len(got) != size:
        raise AssertionError(f"{what}: {None if got is None else len(got)} bytes, expected {size}")
    at = next(i for i in range(size) if got[i] != want[i])
    bad = sum(1 for a, b in zip(got, want) if a != b)
    raise AssertionError(f"{what}: {bad} of {size} bytes differ, first at {at}")


class Agent:
    def __init__(self, backend):
        self.backend = backend
        self.store = None
        self.engine = None

    # -- store: single objects

    def open_store(self, **config):
        self.store = (self.backend.StoreC if os.environ.get("MOONCAKE_TEST_ABI") else self.backend.Store)(**config)

    def put(self, key, seed, size, **config):
        return self.store.put(key, value(seed, size), **config)

    def put_parts(self, key, seed, size, cuts):
        whole = value(seed, size)
        edges = [0, *cuts, size]
        return self.store.put_parts(key, [whole[a:b] for a, b in zip(edges, edges[1:])])

    def upsert(self, key, seed, size):
        return self.store.upsert(key, value(seed, size))

    def get(self, key, seed, size):
        return compare(self.store.get(key), seed, size, f"get {key}")

    def get_buffer(self, key, seed, size):
        return compare(self.store.get_buffer(key), seed, size, f"get_buffer {key}")

    def missing(self, key):
        """How the library says that there is no such object: True, or what it answered instead."""
        got = self.store.get(key)
        return True if not got else len(got)

    def put_from(self, key, seed, size):
        return self.store.put_from(key, value(seed, size))

    def upsert_from(self, key, seed, size):
        return self.store.upsert_from(key, value(seed, size))

    def get_into(self, key, seed, size):
        return compare(self.store.get_into(key, size), seed, size, f"get_into {key}")

    # -- store: values that say which they are, for keys that others write at the same time

    def stamped_write(self, how, key, seed, size):
        return getattr(self.store, how)(key, stamped(seed, size))

    def stamped_read(self, how, key, size=0):
        """The seed of the value that is there, all of whose bytes are compared; None when the library gives none."""
        try:
            got = self.store.get_into(key, size) if how == "get_into" else getattr(self.store, how)(key)
        except AssertionError:  # a status
            return None
        if not got:
            return None
        seed, length = STAMP.unpack_from(got)
        if length != len(got) or got != stamped(seed, length):
            raise AssertionError(f"{how} {key}: {len(got)} bytes that nobody wrote, stamped {seed} and {length}")
        return seed

    # -- store: parts

    def put_in_pieces(self, key, seed, size, cuts):
        return self.store.put_in_pieces(key, value(seed, size), cuts)

    def get_in_pieces(self, key, seed, size, cuts):
        return compare(self.store.get_in_pieces(key, size, cuts), seed, size, f"get_in_pieces {key}")

    def get_ranges(self, key, seed, size, cuts):
        return compare(self.store.get_ranges(key, size, cuts), seed, size, f"get_ranges {key}")

    # -- store: batches

    def put_batch(self, keys, seeds, sizes):
        return self.store.put_batch(keys, [value(s, n) for s, n in zip(seeds, sizes)])

    def upsert_batch(self, keys, seeds, sizes):
        return self.store.upsert_batch(keys, [value(s, n) for s, n in zip(seeds, sizes)])

    def batch_put_from(self, keys, seeds, sizes):
        return self.store.batch_put_from(keys, [value(s, n) for s, n in zip(seeds, sizes)])

    def batch_upsert_from(self, keys, seeds, sizes):
        return self.store.batch_upsert_from(keys, [value(s, n) for s, n in zip(seeds, sizes)])

    def get_batch(self, keys, seeds, sizes):
        got = self.store.get_batch(keys)
        return sum(compare(g, s, n, f"get_batch {k}") for g, k, s, n in zip(got, keys, seeds, sizes, strict=True))

    def batch_get_into(self, keys, seeds, sizes):
        got = self.store.batch_get_into(keys, sizes)
        return sum(compare(g, s, n, f"batch_get_into {k}") for g, k, s, n in zip(got, keys, seeds, sizes, strict=True))

    def get_many_threads(self, keys, seeds, sizes, threads):
        """Each thread gets every key; bytes compared by all."""
        counts, errors = [0] * threads, []

        def work(index):
            try:
                for k, s, n in zip(keys, seeds, sizes):
                    counts[index] += compare(self.store.get(k), s, n, f"thread get {k}")
            except Exception as why:
                errors.append(repr(why))

        running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for t in running:
            t.start()
        for t in running:
            t.join()
        if errors:
            raise AssertionError(errors[0])
        return sum(counts)

    def read_until(self, key, seed, size, seconds):
        """Gets again until the object is there (a cluster that is coming back); seconds it took."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            got = self.store.get(key)
            if got:
                compare(got, seed, size, f"read_until {key}")
                return time.monotonic() - begun
            time.sleep(0.05)
        raise AssertionError(f"{key} did not become readable in {seconds} s")

    def put_until(self, key, seed, size, seconds):
        begun = time.monotonic()
        while True:
            got = self.store.put(key, value(seed, size))
            if got == 0:
                return time.monotonic() - begun
            if time.monotonic() - begun > seconds:
                raise AssertionError(f"put of {key} still fails with {got} after {seconds} s")
            time.sleep(0.05)

    def refused(self, key):
        """True when a get gives an error or nothing; else what it gave."""
        try:
            got = self.store.get(key)
        except AssertionError:
            return True
        return True if not got else f"{len(got)} bytes"

    # -- engine: memory here, which peers address

    def open_engine(self, metadata):
        kind = "EngineC" if os.environ.get("MOONCAKE_TEST_ABI") else \
            "DeviceEngine" if os.environ.get("MOONCAKE_TEST_DEVICE") else "Engine"
        self.engine = getattr(self.backend, kind)(metadata)
        self.inside = getattr(self.engine, "inside", lambda address: address)

    def fill(self, address, seed, size):
        ctypes.memmove(self.inside(address), value(seed, size), size)

    def check(self, address, seed, size):
        return compare(ctypes.string_at(self.inside(address), size), seed, size, f"memory at {address:#x}")

    def settle(self, address, seed, size):
        """Waits until the memory holds the value (a write without an acknowledgement)."""
        want, deadline = value(seed, size), time.monotonic() + 10
        while ctypes.string_at(address, size) != want and time.monotonic() < deadline:
            time.sleep(0.01)

    def differs(self, address, seed, size, page):
        """How many pages are not the value's any more."""
        got, want = ctypes.string_at(address, size), value(seed, size)
        return sum(got[i:i + page] != want[i:i + page] for i in range(0, size, page))

    # -- what needs no value

    def call(self, op, args, kwargs):
        if op.startswith("measure_"):  # bench/peers drives its clients through the same agents
            import measure
            return getattr(measure, op)(self, *args, **kwargs)
        for holder in (self, self.engine, self.store):
            method = getattr(holder, op, None)
            if method is not None and not op.startswith("_"):
                return method(*args, **kwargs)
        raise AssertionError(f"no operation {op}")


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints belongs in the log
    if sys.argv[1] == "ours":
        import ours as backend
    else:
        import upstream as backend
    agent = Agent(backend)
    for line in sys.stdin:
        op, args, kwargs = json.loads(line)
        try:
            answer = {"result": agent.call(op, args, kwargs)}
        except Exception as why:
            traceback.print_exc()
            answer = {"error": f"{type(why).__name__}: {why}"}
        answers.write(json.dumps(answer) + "\n")
    backend.leave(agent)


if __name__ == "__main__":
    main()

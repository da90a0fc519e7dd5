"""Timed loops inside an agent (tests/interop/agent.py): a Python package, upstream's wheel or ours in its place, called by
the same lines. Arguments are prepared before the clock starts."""
import ctypes
import threading
import time

clock = time.perf_counter_ns
SET_BYTES = 256 << 20
SET_KEYS = 8192


# ---- one operation, prepared ----

def operations(agent):
    """{op: make}: each makes a callable for given keys, addresses and size that returns the number of failures."""
    s = agent.store.s

    def put(keys, addresses, size):
        if len(keys) == 1:
            key, address = keys[0], addresses[0]
            return lambda: s.put_from(key, address, size) != 0
        sizes = [size] * len(keys)
        return lambda: sum(r != 0 for r in s.batch_put_from(keys, addresses, sizes))

    def get(keys, addresses, size):
        if len(keys) == 1:
            key, address = keys[0], addresses[0]
            return lambda: s.get_into(key, address, size) != size
        sizes = [size] * len(keys)
        return lambda: sum(r != size for r in s.batch_get_into(keys, addresses, sizes))

    def exist(keys, _addresses, _size):
        if len(keys) == 1:
            key = keys[0]
            return lambda: s.is_exist(key) != 1
        return lambda: sum(r != 1 for r in s.batch_is_exist(keys))
    return {"put": put, "get": get, "exist": exist}


# ---- loops ----

class Memory:
    """Registered with the store, one region for each thread."""

    def __init__(self, store, size):
        self.buffer = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.buffer)
        ctypes.memset(self.address, 0x5A, size)
        store.register(self.address, size)
        self.release = lambda: store.unregister(self.address)


def run_threads(calls, seconds, cyclic):
    """calls[thread] = prepared operations; (operations done, failures, seconds, sorted samples of one thread in ns)."""
    done, failed, samples = [0] * len(calls), [0] * len(calls), [[] for _ in calls]
    barrier = threading.Barrier(len(calls) + 1)

    def work(t):
        mine, times, count, bad = calls[t], samples[t], 0, 0
        barrier.wait()
        begun = clock()
        end = begun + int(seconds * 1e9)
        while True:
            for call in mine:
                bad += call()
                now = clock()
                times.append(now - begun)
                begun = now
                count += 1
                if now >= end:
                    break
            if not cyclic or begun >= end:
                break
        done[t], failed[t] = count, bad

    running = [threading.Thread(target=work, args=(t,)) for t in range(len(calls))]
    for t in running:
        t.start()
    barrier.wait()
    begun = clock()
    for t in running:
        t.join()
    return sum(done), int(sum(failed)), (clock() - begun) / 1e9, sorted(x for s in samples for x in s)


def percentile(samples, p):
    return samples[int(p * (len(samples) - 1))] / 1000 if samples else 0.0


def measure_store(agent, op, size, batch, threads, seconds, tag):
    """One figure: values a second, GB/s, p50 and p99 of a call in us."""
    make = operations(agent)
    memory = Memory(agent.store, threads * batch * size)
    slots = [[memory.address + (t * batch + i) * size for i in range(batch)] for t in range(threads)]
    keys = max(min(SET_BYTES // size, SET_KEYS) // (batch * threads), 1) * batch * threads
    if op == "put":
        keys = max(min((768 << 20) // size, 60000) // (batch * threads), 1) * batch * threads
    names = [f"{tag}/{i}" for i in range(keys)]
    groups = [names[i:i + batch] for i in range(0, keys, batch)]
    if op != "put":  # what is looked for must be there
        bad = sum(make["put"](g, slots[0], size)() for g in groups)
        if bad:
            raise AssertionError(f"{bad} of {keys} puts fail while preparing")
        ctypes.memset(memory.address, 0, threads * batch * size)
    calls = [[make[op](g, slots[t], size) for g in groups[t::threads]] for t in range(threads)]
    done, failed, took, samples = run_threads(calls, seconds, op != "put")
    if failed:
        raise AssertionError(f"{failed} of {done * batch} {op}s fail")
    if op == "get":
        want = b"\x5a" * size
        if any(ctypes.string_at(a, size) != want for a in slots[0]):
            raise AssertionError("a get gave other bytes")
    memory.release()
    agent.store.remove_all(force=True)
    return {"per_second": done * batch / took, "gb_per_second": done * batch * size / took / 1e9, "failures": failed,
            "calls": done, "p50_us": percentile(samples, .5), "p99_us": percentile(samples, .99)}


def measure_engine(agent, op, peer, local, remote, size, seconds, batch=1):
    """Transfers (of so many blocks) one after another; p50 and p99 in us."""
    engine = agent.engine
    call = engine.prepared(op, peer, local, remote, size)
    if batch > 1:
        many = engine.batch_read if op == "read" else engine.batch_write
        blocks = [[base + i * size for i in range(batch)] for base in (local, remote)]

        def call():
            return many(peer, *blocks, [size] * batch)
    for _ in range(100):
        call()
    done, failed, took, samples = run_threads([[lambda: call() != 0]], seconds, True)
    return {"per_second": done / took, "gb_per_second": done * batch * size / took / 1e9, "failures": failed,
            "p50_us": percentile(samples, .5), "p99_us": percentile(samples, .99)}

#!/usr/bin/env python3
"""What the package does to the process that it lives in: the GIL is free while a call waits, nothing leaks, and no misuse ends the
process. Ours only."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import peers as interop  # noqa: E402

# Each scenario is a program of its own: argv = master, name of a node or "". It ends with status 0 and prints "fine".
COMMON = """
import ctypes, gc, os, signal, sys, threading, time
import mooncake.store, mooncake.engine
MASTER, NODE = sys.argv[1], sys.argv[2]
def store(segment=0, **keywords):
    s = mooncake.store.MooncakeDistributedStore()
    assert s.setup("127.0.0.1", "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", MASTER, **keywords) == 0
    return s
def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function.__doc__
    return function


@scenario
def the_gil_is_free_while_a_call_waits():
    """
# A stopped master makes every call wait for its timeout; a thread that ticks must keep ticking.
os.environ["MC_RPC_TIMEOUT_MS"] = "2000"
s = store(64 << 20)
memory = ctypes.create_string_buffer(8192)
p = ctypes.addressof(memory)
assert s.register_buffer(p, 8192) == 0
pid = int(NODE)
calls = {
    "put": lambda: s.put("k", b"v"), "get": lambda: s.get("k"), "get_buffer": lambda: s.get_buffer("k"),
    "upsert": lambda: s.upsert("k", b"v"), "put_parts": lambda: s.put_parts("k", b"v", b"w"),
    "get_batch": lambda: s.get_batch(["k", "l"]), "put_batch": lambda: s.put_batch(["k"], [b"v"]),
    "is_exist": lambda: s.is_exist("k"), "batch_is_exist": lambda: s.batch_is_exist(["k", "l"]),
    "get_size": lambda: s.get_size("k"), "get_into": lambda: s.get_into("k", p, 10),
    "put_from": lambda: s.put_from("k", p, 10), "batch_put_from": lambda: s.batch_put_from(["k"], [p], [10]),
    "batch_get_into": lambda: s.batch_get_into(["k"], [p], [10]),
    "multi": lambda: s.batch_put_from_multi_buffers(["k"], [[p]], [[10]]),
    "remove": lambda: s.remove("k"), "remove_all": lambda: s.remove_all(), "remove_by_regex": lambda: s.remove_by_regex("k"),
    "batch_remove": lambda: s.batch_remove(["k"]), "replicas": lambda: s.get_replica_desc("k"),
    "session": lambda: s.batch_get_session_start(["k"]), "put_session": lambda: s.batch_put_session_start(["k"], [10]),
    "task": lambda: s.query_task((1, 2)),
}
ticks, running = [0], True
def tick():
    while running:
        time.sleep(0.01)
        ticks[0] += 1
ticker = threading.Thread(target=tick)
ticker.start()
time.sleep(0.3)
before, begin = ticks[0], time.monotonic()
time.sleep(1)
rate = (ticks[0] - before) / (time.monotonic() - begin)
os.kill(pid, signal.SIGSTOP)
def runs(thread):
    with open(f"/proc/{pid}/task/{thread}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "T"
while any(runs(thread) for thread in os.listdir(f"/proc/{pid}/task")):
    time.sleep(0.01)  # kill() returns while the other may still answer
try:
    threads, slow = [], []
    for name, call in calls.items():  # all at once, else this takes a minute; the ticker must get its turn all the same
        def run(name=name, call=call):
            begin = time.monotonic()
            call()
            if time.monotonic() - begin < 1.5:
                slow.append((name, time.monotonic() - begin))
        threads.append(threading.Thread(target=run))
    before, begin = ticks[0], time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - begin
    got = (ticks[0] - before) / took
finally:
    os.kill(pid, signal.SIGCONT)
    running = False
ticker.join()
assert not slow, f"did not wait: {slow}"
assert took < 20, took
assert got >= 0.9 * rate, f"{got:.1f} ticks a second of {rate:.1f}"
"""


@scenario
def nothing_leaks_over_many_calls():
    """
os.environ["MC_LAZY_MEMORY"] = "1"  # else the segment's pages come in the background, and count
s = store(64 << 20)
config = mooncake.store.ReplicateConfig()
config.preferred_segments = ["a"]
config.group_ids = ["g"]
value = b"x" * 1000
memory = ctypes.create_string_buffer(65536)
p = ctypes.addressof(memory)
s.register_buffer(p, 65536)
s.put("k", value)
s.put("large", b"y" * 50000)
def once(i):
    s.get("k"); s.get("absent"); s.get("large"); s.get_buffer("large"); s.put("k", value, config)
    s.is_exist("k"); s.batch_is_exist(["k", "absent"]); s.get_size("k")
    s.get_into("k", p, 65536); s.batch_get_into(["k", "absent"], [p, p], [2000, 2000]); s.get_batch(["k", "absent", "large"])
    s.put_parts("k", b"a", b"b"); s.batch_put_from(["k"], [p], [10], config); s.put_batch(["k", "large"], [b"a", b"b"])
    s.batch_put_from_multi_buffers(["k"], [[p, p]], [[1, 2]]); s.get_replica_desc("k"); s.batch_get_buffer(["k", "absent"])
    for wrong in (lambda: s.put(1, b""), lambda: s.put("k", 5), lambda: s.put("k", b"", 5), lambda: s.get_batch(["a", 1]),
                  lambda: s.put_parts("k", b"a", 5), lambda: s.batch_put_from(["k"], [1.5], [1]), lambda: s.get(),
                  lambda: s.put_batch(["k"], [b"a", 5]), lambda: s.get_into("k", 1, "x"), lambda: s.put(k=1),
                  lambda: s.batch_put_from_multi_buffers(["k"], [[p], 5], [[1]])):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError("no TypeError")
    str(config); mooncake.store.ReplicateConfig()
for i in range(300):
    once(i)
gc.collect()
first = rss()
for i in range(3500):  # some 30 calls a round
    once(i)
gc.collect()
grown = rss() - first
assert grown < 3 << 20, f"{grown} bytes more"
"""


@scenario
def misuse_ends_in_errors():
    """
s = mooncake.store.MooncakeDistributedStore()
names = [n for n in dir(s) if not n.startswith("__")]
things = [None, 1, -1, 1.5, "x", b"x", [], [1], ["x"], [[1]], {}, object(), 2 ** 70, (), lambda: 0, s]
calls = 0
def poke(target, names):
    global calls
    for name in names:
        method = getattr(target, name)
        if not callable(method) or name in ("close", "setup", "init_all", "allocate_and_mount_segment"):
            continue
        for n in range(0, 5):
            for thing in things:
                try:
                    method(*[thing] * n)
                except (TypeError, ValueError, RuntimeError, AttributeError, OverflowError, IndexError, NotImplementedError,
                        OSError, KeyError):
                    pass
                calls += 1
poke(s, names)  # not set up
# What takes addresses is not poked with a live store: there 1 is an address.
live = store()
poke(live, [n for n in names if not any(w in n for w in ("from", "into", "register_buffer", "ranges"))])
e = mooncake.engine.TransferEngine()
poke(e, [n for n in dir(e) if not n.startswith("__") and "bytes" not in n and "initialize" not in n])
for cls in (mooncake.store.ReplicateConfig, mooncake.store.BufferHandle, mooncake.store.MooncakeHostMemAllocator,
            mooncake.engine.InnerTransferEngine, mooncake.store.MooncakeDistributedStore, mooncake.engine.TransferEngine):
    for thing in things:
        try:
            cls(thing)
        except TypeError:
            pass
config = mooncake.store.ReplicateConfig()
for name in [n for n in dir(config) if not n.startswith("_")]:
    for thing in things:
        try:
            setattr(config, name, thing)
        except (TypeError, OverflowError):
            pass
    try:
        delattr(config, name)
    except AttributeError:
        pass
str(config)
assert calls > 5000, calls
"""


@scenario
def closing_waits_for_calls_of_other_threads():
    """
errors = []
for round in range(5):
    s = store(32 << 20)
    s.put("k", b"v" * 100000)
    stop = False
    def work():
        while not stop:
            if s.get("k") not in (b"", b"v" * 100000):
                errors.append("other bytes")
            s.put("k2", b"x"); s.get_buffer("k"); s.batch_is_exist(["k", "l"])
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.2)
    assert s.close() == 0
    stop = True
    for t in threads:
        t.join()
    assert s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", MASTER) == 0
    threads = [threading.Thread(target=s.close) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
assert not errors, errors
"""


@scenario
def handles_outlive_their_store():
    """
s = store(32 << 20)
value = bytes(range(256)) * 4000
s.put("k", value)
handles = [s.get_buffer("k") for _ in range(8)]
views = [memoryview(h) for h in handles]
s.close()
del s, handles
gc.collect()
assert all(v.tobytes() == value for v in views)
e = mooncake.engine.TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
s = store(32 << 20, engine=e.get_engine())
inner = e.get_engine()
del e
gc.collect()
assert s.put("of the engine", value) == 0 and s.get("of the engine") == value
del inner
gc.collect()
assert s.get("of the engine") == value
del s
gc.collect()
"""


@scenario
def a_forked_child_is_refused():
    """
s = store(32 << 20)
s.put("k", b"v")
handle = s.get_buffer("k")
pid = os.fork()
if pid == 0:
    try:
        assert s.get("k") == b"" and s.put("x", b"y") == -600 and s.is_exist("k") == -600
        assert bytes(handle) == b"v"
        assert s.close() == 0
        other = store(16 << 20)
        assert other.put("child", b"c") == 0 and other.get("child") == b"c"
        other.close()
        del s, handle
        gc.collect()
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert s.get("k") == b"v"
"""


@scenario
def the_interpreter_ends_with_everything_open():
    """
# No close(): the end of the interpreter unmounts. Daemon threads are inside calls.
stores = [store(32 << 20) for _ in range(3)]
e = mooncake.engine.TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
stores[0].put("left", b"v" * 50000)
def work(s):
    while True:
        s.get("left"); s.put("more", b"x")
for s in stores:
    threading.Thread(target=work, args=(s,), daemon=True).start()
time.sleep(0.3)
with open("/proc/self/fd/1", "w"):
    pass
"""


def run(peers, name, master, watched):
    code = COMMON + SCENARIOS[name] + "\nprint('fine', flush=True)\n"
    env = dict(os.environ, PYTHONPATH=os.path.join(peers.build, "python"), MC_LOG_LEVEL="ERROR", PYTHONFAULTHANDLER="1")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, master.address, str(watched)], env=env, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    good = done.returncode == 0 and "fine" in done.stdout
    print(f"{'ok     ' if good else 'FAILED '} {name}", flush=True)
    if not good:
        print(f"status {done.returncode}\n{done.stdout[-3000:]}", flush=True)
    return good


def main():
    if not os.path.exists(os.path.join(sys.argv[1], "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    peers = interop.Peers(sys.argv[1])
    failed = True
    try:
        master = peers.master("ours")
        results = [run(peers, name, master, master.popen.pid) for name in sys.argv[2:] or SCENARIOS]
        left = interop.http_get(f"http://127.0.0.1:{master.admin}/get_all_segments").split()
        if left:
            print(f"FAILED  segments are left: {left}")
        failed = not all(results) or bool(left)
    finally:
        peers.close(failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

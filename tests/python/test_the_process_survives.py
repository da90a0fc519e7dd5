#!/usr/bin/env python3
"""What the package does to the process that it lives in: the GIL is free while many calls wait at once, and no misuse ends the
process (test_each_call: the GIL and the memory of each call). Ours only."""
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
class Ticker(threading.Thread):  # ticks a hundred times a second while it gets the GIL
    def __init__(self):
        super().__init__()
        self.ticks, self.running = 0, True
        self.start()
        time.sleep(0.3)
    def run(self):
        while self.running:
            time.sleep(0.01)
            self.ticks += 1
    def rate(self):
        before, begin = self.ticks, time.monotonic()
        time.sleep(1)
        return (self.ticks - before) / (time.monotonic() - begin)
    def stop(self):
        self.running = False
        self.join()
def enough(rate):  # A call that holds the GIL leaves next to none; of few ticks on a starved machine nine tenths are chance.
    return (0.9 if rate >= 50 else 0.3) * rate
"""

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function.__doc__
    return function


@scenario
def the_gil_is_free_while_a_call_waits():
    """
# A master that stands still makes every call wait until it goes on; a thread that ticks must keep ticking.
STILL_S = 2.5
os.environ["MC_RPC_TIMEOUT_MS"] = "30000"
s = store(64 << 20)
memory = ctypes.create_string_buffer(8192)
p = ctypes.addressof(memory)
assert s.register_buffer(p, 8192) == 0
pid = int(NODE)
for i in range(3):
    assert s.put(f"there {i}", b"v" * 10) == 0
assert s.batch_put_session_start(["ends", "revoked"], [10, 10]) == [0, 0]
mounted = [s.allocate_and_mount_segment(16 << 20)["segment_ids"] for _ in range(2)]
with open(f"/dev/shm/mooncake-gil-{os.getpid()}", "wb") as file:
    file.truncate(32 << 20)
other = mooncake.store.MooncakeDistributedStore()
closing = store(16 << 20)
calls = {  # every method that asks the master
    "put": ("k", b"v"), "upsert": ("k", b"v"), "put_parts": ("k", b"v", b"w"), "upsert_parts": ("k", b"v", b"w"),
    "put_batch": (["k"], [b"v"]), "upsert_batch": (["k"], [b"v"]), "put_from": ("k", p, 10), "upsert_from": ("k", p, 10),
    "put_from_with_metadata": ("k", p, p, 10, 10), "batch_put_from": (["k"], [p], [10]), "batch_upsert_from": (["k"], [p], [10]),
    "batch_put_from_multi_buffers": (["k"], [[p]], [[10]]),
    "get": ("k",), "get_buffer": ("k",), "get_batch": (["k", "l"],), "batch_get_buffer": (["k", "l"],), "get_into": ("k", p, 10),
    "batch_get_into": (["k"], [p], [10]), "batch_get_into_multi_buffers": (["k"], [[p]], [[10]]),
    "get_into_ranges": ([p], [["k"]], [[[0]]], [[[0]]], [[[10]]]),
    "is_exist": ("k",), "batch_is_exist": (["k", "l"],), "get_size": ("k",), "get_replica_desc": ("k",),
    "batch_get_replica_desc": (["k"],), "inspect": (["k"],), "list_keys": (),
    "remove": ("k",), "remove_all": (), "remove_by_regex": ("k",), "batch_remove": (["k"],), "batch_replica_clear": (["there 0"], ""),
    "create_copy_task": ("k", ["x"]), "create_move_task": ("k", "x", "y"), "query_task": ((1, 2),),
    "batch_get_session_start": (["k"],), "batch_put_session_start": (["k"], [10]), "batch_put_session_end": (["ends"],),
    "batch_put_session_revoke": (["revoked"],),
    "mount_segment": (f"/dev/shm/mooncake-gil-{os.getpid()}", 32 << 20), "allocate_and_mount_segment": (16 << 20,),
    "unmount_segment": (mounted[0],), "unmount_and_free_segment": (mounted[1],),
}
calls = {name: lambda name=name, given=given: getattr(s, name)(*given) for name, given in calls.items()}
calls["setup"] = lambda: other.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", MASTER)
calls["close"] = closing.close
here = {  # asks nobody, or a node's memory only
    "alloc_from_mem_pool", "batch_get_session_end", "batch_get_into_multi_buffer_ranges", "batch_put_from_multi_buffer_ranges",
    "get_hostname", "get_offload_rpc_read_count", "health_check", "init_all", "metrics", "register_buffer", "setup_dummy",
    "unmount_local_disk_segment", "unregister_buffer", "load_tensor_from_safetensor", "save_tensor_to_safetensor"}
names = {n for n in dir(s) if not n.startswith("_") and "tensor" not in n}  # Those of tensors are Python over the others.
assert names - set(calls) - here == set(), names - set(calls) - here
ticker = Ticker()
rate = ticker.rate()
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
            if time.monotonic() - begin < 0.9:  # Some have a limit of their own, of a second.
                slow.append((name, time.monotonic() - begin))
        threads.append(threading.Thread(target=run))
    before, begin = ticker.ticks, time.monotonic()
    for t in threads:
        t.start()
    time.sleep(STILL_S)
    got = (ticker.ticks - before) / (time.monotonic() - begin)
    os.kill(pid, signal.SIGCONT)
    for t in threads:
        t.join()
    took = time.monotonic() - begin
    rate = min(rate, ticker.rate())  # Others may have begun to work on this machine.
finally:
    os.kill(pid, signal.SIGCONT)
    ticker.stop()
    os.unlink(f"/dev/shm/mooncake-gil-{os.getpid()}")
assert not slow, f"did not wait: {slow}"
assert took < 20, took
assert got >= enough(rate), f"{got:.1f} ticks a second of {rate:.1f}"
"""


@scenario
def the_gil_is_free_while_a_transfer_waits():
    """
# The same of the engine: its peer stands still, and is asked over the network.
os.environ["MC_FORCE_TCP"] = "1"
import subprocess
PEER = (
    "import ctypes, sys, mooncake.engine\\n"
    "e = mooncake.engine.TransferEngine()\\n"
    "assert e.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0\\n"
    "m = ctypes.create_string_buffer(1 << 20)\\n"
    "assert e.register_memory(ctypes.addressof(m), 1 << 20) == 0\\n"
    "print('AT', e.get_rpc_port(), ctypes.addressof(m), flush=True)\\n"
    "sys.stdin.read()\\n")
peer = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
_, port, there = next(line for line in peer.stdout if line.startswith("AT")).split()
name, there = f"127.0.0.1:{port}", int(there)
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
e = TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = ctypes.create_string_buffer(1 << 20)
p = ctypes.addressof(memory)
assert e.register_memory(p, 1 << 20) == 0
assert e.transfer_sync_write(name, p, there, 10) == 0
W, R = TransferOpcode.Write, TransferOpcode.Read
calls = {
    "transfer_sync_write": (name, p, there, 10), "transfer_sync_read": (name, p, there, 10),
    "batch_transfer_sync_write": (name, [p], [there], [10]), "batch_transfer_sync_read": (name, [p], [there], [10]),
    "transfer_sync": (name, p, there, 10, W, TransferNotify("a", "b")), "batch_transfer_sync": (name, [p], [there], [10], R),
    "send_probe": (name,), "get_first_buffer_address": (name,),
}
calls = {method: lambda method=method, given=given: getattr(e, method)(*given) for method, given in calls.items()}
calls["get_batch_transfer_status"] = lambda: e.get_batch_transfer_status([e.batch_transfer_async_write(name, [p], [there], [10])])
ticker = Ticker()
rate = ticker.rate()
os.kill(peer.pid, signal.SIGSTOP)
os.waitid(os.P_PID, peer.pid, os.WSTOPPED)
wrong = []
def run(method, call):
    begin = time.monotonic()
    answer = call()
    took = time.monotonic() - begin
    cached = method == "get_first_buffer_address"  # Asked once, remembered.
    if (took < 2 and not cached) or (answer != 0 and not cached):
        wrong.append((method, answer, took))
threads = [threading.Thread(target=run, args=item) for item in calls.items()]
before, begin = ticker.ticks, time.monotonic()
for t in threads:
    t.start()
time.sleep(2.5)
got = (ticker.ticks - before) / (time.monotonic() - begin)
os.kill(peer.pid, signal.SIGCONT)
for t in threads:
    t.join()
rate = min(rate, ticker.rate())
ticker.stop()
peer.stdin.close()
peer.wait()
assert not wrong, wrong
assert got >= enough(rate), f"{got:.1f} ticks a second of {rate:.1f}"
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

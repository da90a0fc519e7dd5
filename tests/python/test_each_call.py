#!/usr/bin/env python3
"""Every native call of the package, one after the other: does it free the GIL, does it keep memory?

`gil`: tests/preload/slow_native.c makes every native function that the call asks take long, and says whether the calling thread held
the GIL in it, which is exact; a thread that ticks must also keep its ticks meanwhile, as many as it has before and after beside a wait
that certainly has no GIL. `leaks`: the call is made many times; what malloc, the interpreter and the kernel say is in use afterwards
must not grow with the number of calls.

CI makes short waits and few calls. By hand, for as long as one likes:
    tests/python/test_each_call.py build/release gil --delay 2
    tests/python/test_each_call.py build/release leaks --calls 100000 [--seconds 60] [--only get,put]
"""
import argparse
import atexit
import concurrent.futures
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VALUE = bytes(range(250)) * 4
LARGE = bytes(range(250)) * 200
COPIED = 128 << 20


def eq(got, want):
    assert got == want, f"{got!r}, not {want!r}"


class Calls:
    """name -> function that makes the call once and checks its result. A name lists the native methods that it stands for, and after
    a colon what is special."""

    def __init__(self, master, real):
        import mooncake.engine
        import mooncake.store
        self.master, self.real = master, real
        self.modules = mooncake.store, mooncake.engine
        self.file = f"/dev/shm/mooncake-each-call-{os.getpid()}"
        with open(self.file, "wb") as file:
            file.truncate(16 << 20)
        atexit.register(os.unlink, self.file)
        self.memory = ctypes.create_string_buffer(65536)
        self.page = ctypes.create_string_buffer(4096)
        self.p, self.q = ctypes.addressof(self.memory), ctypes.addressof(self.page)
        self.s = self.store(64 << 20)
        self.e = self.engine()
        self.table = {**self.writes(), **self.reads(), **self.questions(), **self.sessions(), **self.lives(), **self.transfers(),
                      **self.engine_memory(), **self.wrong_types()}
        self.every_native_method_is_here()

    def store(self, segment=0, **keywords):
        s = self.modules[0].MooncakeDistributedStore()
        eq(s.setup("127.0.0.1", "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", self.master, **keywords), 0)
        return s

    def engine(self):
        e = self.modules[1].TransferEngine()
        eq(e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        return e

    def every_native_method_is_here(self):
        store, engine = self.modules
        here = {part for name in self.table for part in methods(name)}
        for cls in (store.MooncakeDistributedStore, store.MooncakeHostMemAllocator, store.BufferHandle, engine.TransferEngine,
                    engine.InnerTransferEngine):
            native = {name for name, what in vars(cls).items()
                      if type(what).__name__ in ("method_descriptor", "classmethod_descriptor") and not name.startswith("__")}
            assert native <= here, f"no call here of {sorted(native - here)}"

    def writes(self):
        s, p = self.s, self.p
        eq(s.register_buffer(p, 65536), 0)
        ctypes.memmove(p, VALUE, len(VALUE))
        config = self.modules[0].ReplicateConfig()
        config.preferred_segments, config.group_ids = ["a"], ["g"]

        def put(name, *given):
            code = getattr(s, name)("w", *given)
            eq((code, s.remove("w", True)), (0, 0))

        def batch(name, *given):
            codes = getattr(s, name)(["w1", "w2"], *given)
            eq((codes or [0, 0], s.batch_remove(["w1", "w2"], True)), ([0, 0], [0, 0]))

        return {
            "put, remove": lambda: put("put", VALUE),
            "put: placed": lambda: put("put", VALUE, config),
            "put: there already": lambda: eq(s.put("k", VALUE), 0),
            "upsert": lambda: eq(s.upsert("u", VALUE), 0),
            "put_parts": lambda: put("put_parts", b"a", VALUE),
            "upsert_parts": lambda: eq(s.upsert_parts("u", VALUE[:500], VALUE[500:]), 0),
            "put_batch, batch_remove": lambda: batch("put_batch", [VALUE, LARGE]),
            "upsert_batch": lambda: eq(s.upsert_batch(["u"], [VALUE]), 0),
            "put_from": lambda: put("put_from", p, 1000),
            "upsert_from": lambda: eq(s.upsert_from("u", p, 1000), 0),
            "put_from_with_metadata": lambda: put("put_from_with_metadata", p, p, 10, 10),
            "batch_put_from": lambda: batch("batch_put_from", [p, p], [1000, 500]),
            "batch_upsert_from": lambda: eq(s.batch_upsert_from(["u"], [p], [1000]), [0]),
            "batch_put_from_multi_buffers": lambda: batch("batch_put_from_multi_buffers", [[p, p], [p]], [[500, 1], [9]]),
            "_batch_upsert_from_multi_buffers": lambda: eq(s._batch_upsert_from_multi_buffers(["u"], [[p, p]], [[500, 500]]), [0]),
        }

    def reads(self):
        s, p = self.s, self.p
        eq((s.put("k", VALUE), s.put("large", LARGE)), (0, 0))
        n = len(VALUE)
        return {
            "get": lambda: eq(s.get("k"), VALUE),
            "get: large": lambda: eq(s.get("large"), LARGE),
            "get: absent": lambda: eq(s.get("absent"), b""),
            "get_batch": lambda: eq(s.get_batch(["k", "absent", "large"]), [VALUE, b"", LARGE]),
            "get_buffer, ptr, size": lambda: eq((lambda b: (b.size(), b.ptr() != 0, bytes(b)))(s.get_buffer("large")),
                                                (len(LARGE), True, LARGE)),
            "batch_get_buffer": lambda: eq([b and bytes(b) for b in s.batch_get_buffer(["k", "absent"])], [VALUE, None]),
            "get_into": lambda: eq(s.get_into("k", p, 65536), n),
            "get_into: too small": lambda: self.negative(s.get_into("k", p, 10)),
            "batch_get_into": lambda: eq(s.batch_get_into(["k", "absent"], [p, p], [n, n]), [n, -704]),
            "batch_get_into_multi_buffers": lambda: eq(s.batch_get_into_multi_buffers(["k"], [[p, p + 500]], [[500, 500]]), [n]),
            "_get_ranges": lambda: eq(s.get_into_ranges([p], [["k"]], [[[0]]], [[[0]]], [[[10]]]), [[[10]]]),
        }

    @staticmethod
    def negative(code):
        assert code < 0, code

    def questions(self):
        s = self.s
        other = self.other = self.store(16 << 20, tenant_id="each-call")

        def everything():
            eq((other.put("k", VALUE), other.remove_all(True)), (0, 1))

        def regex():
            eq((s.put("regex-1", VALUE), s.remove_by_regex("^regex-", True)), (0, 1))

        return {
            "is_exist": lambda: eq(s.is_exist("k"), 1),
            "batch_is_exist": lambda: eq(s.batch_is_exist(["k", "absent"]), [1, 0]),
            "get_size": lambda: eq(s.get_size("k"), len(VALUE)),
            "get_replica_desc": lambda: eq(len(s.get_replica_desc("k")), 1),
            "batch_get_replica_desc": lambda: eq(list(s.batch_get_replica_desc(["k", "absent"])), ["k"]),
            "inspect": lambda: eq([type(x).__name__ for x in s.inspect(["k", "absent"])], ["ObjectInfo", "int"]),
            "list_keys": lambda: eq((lambda keys, after: ("k" in keys, after))(*s.list_keys("k")), (True, "")),
            "remove: absent": lambda: eq(s.remove("absent"), -704),
            "remove_by_regex": regex,
            "remove_all": everything,
            "batch_replica_clear": lambda: eq(s.batch_replica_clear(["absent"], ""), []),
            "create_copy_task": lambda: s.create_copy_task("absent", ["x"]),
            "create_move_task": lambda: s.create_move_task("absent", "x", "y"),
            "query_task": lambda: s.query_task((1, 2)),
            "health_check": lambda: eq(s.health_check(), 0),
            "get_hostname": lambda: eq(s.get_hostname().split(":")[0], "127.0.0.1"),
            "metrics": lambda: eq(len(s.metrics()) > 100, True),
            "_local_buffer_size": lambda: eq(s._local_buffer_size(), 16 << 20),
        }

    def sessions(self):
        s, p = self.s, self.p

        def put(end):
            eq(s.batch_put_session_start(["session"], [100]), [0])
            eq(s.batch_put_from_multi_buffer_ranges(["session"], [[p, p]], [[60, 40]], [[0, 60]]), [100])
            eq(end(["session"]), [0])

        def ends():
            put(s.batch_put_session_end)
            eq(s.remove("session", True), 0)

        def get():
            eq(s.batch_get_session_start(["k", "absent"]), [0, -704])
            eq(s.batch_get_into_multi_buffer_ranges(["k"], [[p]], [[100]], [[7]]), [100])
            eq(s.batch_get_session_end(["k"]), 0)

        return {
            "batch_put_session_start, batch_put_from_multi_buffer_ranges, batch_put_session_end": ends,
            "batch_put_session_revoke": lambda: put(s.batch_put_session_revoke),
            "batch_get_session_start, batch_get_into_multi_buffer_ranges, batch_get_session_end": get,
        }

    def lives(self):
        s, q = self.s, self.q
        allocator = self.modules[0].MooncakeHostMemAllocator()

        def life():
            eq(self.store().close(), 0)

        def init_all():
            other = self.modules[0].MooncakeDistributedStore()
            self.negative(other.init_all("tcp", "", 16 << 20))  # It would look for a master where this test has none.

        def dummy():
            other = self.modules[0].MooncakeDistributedStore()
            eq(other.setup_dummy(16 << 20, 16 << 20, self.real), 0)
            there = other.alloc_from_mem_pool(4096)
            assert there
            eq((other.put("dummy", VALUE), other.get("dummy"), other.remove("dummy", True)), (0, VALUE, 0))
            eq(other.close(), 0)

        def mount(mounted, unmount):
            assert mounted["segment_ids"], mounted
            eq(unmount(mounted["segment_ids"]), 0)

        def register():
            eq((s.register_buffer(q, 4096), s.unregister_buffer(q)), (0, 0))

        def host_memory():
            there = allocator.alloc(8192)
            eq(allocator.free(there), 0)

        return {
            "register_buffer, unregister_buffer": register,
            "alloc, free": host_memory,
            "mount_segment, unmount_segment": lambda: mount(s.mount_segment(self.file, 16 << 20), s.unmount_segment),
            "allocate_and_mount_segment, unmount_and_free_segment":
                lambda: mount(s.allocate_and_mount_segment(16 << 20), s.unmount_and_free_segment),
            "setup, close": life,
            "setup: dropped": lambda: self.store(),  # its end closes it
            "init_all": init_all,
            "setup_dummy, alloc_from_mem_pool": dummy,
        }

    def transfers(self):
        e, p, q = self.e, self.p, self.q
        engine = self.modules[1]
        name = self.name = f"127.0.0.1:{e.get_rpc_port()}"
        eq((e.register_memory(p, 65536), e.register_memory(q, 4096)), (0, 0))
        W, R = engine.TransferOpcode.Write, engine.TransferOpcode.Read

        def life(name, *more):
            one = engine.TransferEngine()
            eq(getattr(one, name)("127.0.0.1", "P2PHANDSHAKE", "tcp", "", *more), 0)

        def submitted():
            batch = e.transfer_submit_write(name, p, q, 10)
            assert batch > 0, batch
            while (status := e.transfer_check_status(batch)) == 0:
                pass
            eq(status, 1)

        def notified():
            eq(e.transfer_sync(name, p, q, 10, W, engine.TransferNotify("a", "b")), 0)
            until = time.monotonic() + 30
            while not (got := e.get_notifies()) and time.monotonic() < until:
                pass
            eq([(n.name, n.msg) for n in got], [("a", "b")])

        def waited(start, *more):
            eq(e.get_batch_transfer_status([start(name, [p], [q], [10], *more)]), 0)

        return {
            "initialize": lambda: life("initialize"),
            "initialize_ext": lambda: life("initialize_ext", "P2PHANDSHAKE"),
            "transfer_sync_write": lambda: eq(e.transfer_sync_write(name, p, q, 10), 0),
            "transfer_sync_read": lambda: eq(e.transfer_sync_read(name, p, q, 10), 0),
            "batch_transfer_sync_write": lambda: eq(e.batch_transfer_sync_write(name, [p], [q], [10]), 0),
            "batch_transfer_sync_read": lambda: eq(e.batch_transfer_sync_read(name, [p], [q], [10]), 0),
            "batch_transfer_sync": lambda: eq(e.batch_transfer_sync(name, [p, p], [q, q + 100], [10, 10], R), 0),
            "transfer_sync, _receive": notified,
            "batch_transfer_async_write, get_batch_transfer_status": lambda: waited(e.batch_transfer_async_write),
            "batch_transfer_async_read": lambda: waited(e.batch_transfer_async_read),
            "batch_transfer_async": lambda: waited(e.batch_transfer_async, W),
            "transfer_submit_write, transfer_check_status": submitted,
            "transfer_sync_write: not registered": lambda: self.negative(e.transfer_sync_write(name, p, 64, 10)),
            "send_probe": lambda: eq(e.send_probe(name), 0),
            "get_first_buffer_address": lambda: eq(e.get_first_buffer_address(name) != 0, True),
            "get_rpc_port": lambda: eq(e.get_rpc_port() > 0, True),
            "get_name": lambda: eq(e.get_name(), name),
            "metrics: of the engine": lambda: eq(len(e.metrics()) > 100, True),
            "get_engine, _engine_capsule": lambda: e.get_engine()._engine_capsule(),
            "get_engine_ptr": lambda: eq(e.get_engine_ptr() != 0, True),
        }

    def engine_memory(self):
        e, p = self.e, self.p
        self.extra = [ctypes.create_string_buffer(4096) for _ in range(2)]
        places = [ctypes.addressof(m) for m in self.extra]

        def one():
            eq((e.register_memory(places[0], 4096), e.unregister_memory(places[0])), (0, 0))

        def several():
            eq((e.batch_register_memory(places, [4096] * 2), e.batch_unregister_memory(places)), (0, 0))

        def managed():
            there = e.allocate_managed_buffer(4096)
            assert there > 0, there
            eq(e.free_managed_buffer(there, 4096), 0)

        def written():
            eq((e.write_bytes_to_buffer(p, VALUE, 1000), e.read_bytes_from_buffer(p, 1000)), (0, VALUE))

        return {
            "register_memory, unregister_memory": one,
            "batch_register_memory, batch_unregister_memory": several,
            "allocate_managed_buffer, free_managed_buffer": managed,
            "write_bytes_to_buffer, read_bytes_from_buffer": written,
        }

    def wrong_types(self):
        s, e, p = self.s, self.e, self.p

        def wrong(call):
            try:
                call()
            except TypeError:
                return
            raise AssertionError("no TypeError")

        calls = {"put: a key": lambda: s.put(1, b""), "put: a value": lambda: s.put("k", 5), "put: a config": lambda: s.put("k", b"", 5),
                 "put: a keyword": lambda: s.put(k=1), "get: nothing": lambda: s.get(),
                 "get_batch: a key": lambda: s.get_batch(["a", 1]), "put_parts: a part": lambda: s.put_parts("k", b"a", 5),
                 "batch_put_from: an address": lambda: s.batch_put_from(["k"], [1.5], [1]),
                 "put_batch: a value": lambda: s.put_batch(["k"], [b"a", 5]), "get_into: a size": lambda: s.get_into("k", 1, "x"),
                 "batch_put_from_multi_buffers: a list": lambda: s.batch_put_from_multi_buffers(["k"], [[p], 5], [[1]]),
                 "transfer_sync_write: an address": lambda: e.transfer_sync_write("x", "p", 1, 1),
                 "setup: a size": lambda: self.modules[0].MooncakeDistributedStore().setup("h", "m", "x", 1, "tcp", "", "m")}
        return {name + " of the wrong type": lambda call=call: wrong(call) for name, call in calls.items()}

    def copies(self):
        """Long without help: no native function of the library is in them."""
        import mooncake._fast_copy
        self.big = ctypes.create_string_buffer(COPIED)
        there = ctypes.addressof(self.big)
        source = bytes(COPIED)
        big = self.store(COPIED + (16 << 20))
        eq(big.put("big", source), 0)
        return {
            "write_bytes_to_buffer: 128 MiB": lambda: eq(self.e.write_bytes_to_buffer(there, source, COPIED), 0),
            "read_bytes_from_buffer: 128 MiB": lambda: eq(len(self.e.read_bytes_from_buffer(there, COPIED)), COPIED),
            "get_batch: 128 MiB": lambda: eq(len(big.get_batch(["big"])[0]), COPIED),
            "get_buffer: 128 MiB, and its end": lambda: eq(big.get_buffer("big").size(), COPIED),
            "concat_arrays_into: 128 MiB": lambda: eq(mooncake._fast_copy.concat_arrays_into([source], there, COPIED), COPIED),
        }


# ---- the GIL ----

class Ticker(threading.Thread):
    """Ticks about a thousand times a second while it gets the GIL."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ticks = 0
        self.start()

    def run(self):
        while True:
            time.sleep(0.001)
            self.ticks += 1

    def beside(self, call):
        """(ticks a second, seconds) while call() runs."""
        before, begin = self.ticks, time.monotonic()
        call()
        took = time.monotonic() - begin
        return (self.ticks - before) / took, took


class Slow:
    """tests/preload/slow_native.c."""

    def __init__(self):
        self.native = ctypes.CDLL(None)  # LD_PRELOAD put it there; a call through ctypes is made without the GIL.
        self.native.slow_native_disarm.restype = self.native.slow_native_quick.restype = ctypes.c_char_p
        self.quick = set(self.native.slow_native_quick().decode().split())  # May have the GIL: nothing in them can take long.

    def wait(self, seconds):
        self.native.slow_native_sleep(int(seconds * 1e6))

    def seen(self, call, delay):
        """{native function: it never had the GIL} of one call() whose native functions each took `delay`; but for the quick ones."""
        self.native.slow_native_arm(int(delay * 1e6))
        try:
            call()
        finally:
            lines = self.native.slow_native_disarm().decode().split("\n")
        seen = {}
        for name, free in (line.split() for line in lines if line):
            if name in self.quick:
                continue
            seen[name] = seen.get(name, True) and free == "1"
        return seen


def frees_the_gil(ticker, slow, name, call, delay, native=True):
    """What is wrong with the call, or ""."""
    call()
    for attempt in range(3):
        wait = delay * (1 if delay >= 1 else 3 ** attempt)
        control, _ = ticker.beside(lambda: slow.wait(wait))
        seen = {}
        rate, took = ticker.beside(lambda: seen.update(slow.seen(call, wait)))
        held = sorted(function for function, free in seen.items() if not free)
        if held:
            return f"holds the GIL in {', '.join(held)}"
        if native and not seen:
            print(f"        {name}: asks nothing native", flush=True)
            return ""
        control = min(control, ticker.beside(lambda: slow.wait(wait))[0])  # Others may have begun to work on this machine.
        share = rate / control if control else 1
        least = 0.9 if took >= 1 else 0.5  # Of a wait that is hardly longer than others' slices of processor time, half must do.
        if share >= least:
            print(f"{100 * share:6.0f}% {name}: {took:.2f} s in {', '.join(sorted(seen)) or 'a copy'}", flush=True)
            return ""
    return f"leaves a ticking thread {100 * share:.0f} % of its ticks ({rate:.0f} a second of {control:.0f})"


def gil(calls, options):
    ticker, slow = Ticker(), Slow()
    time.sleep(0.1)
    wrong = {}
    for table, native in ((calls.table, True), (calls.copies(), False)):
        for name, call in chosen(table, options).items():
            if problem := frees_the_gil(ticker, slow, name, call, options.delay, native):
                wrong[name] = problem
    return wrong


# ---- leaks ----

class Memory:
    """What is in use: by malloc, blocks of the interpreter, and by what the kernel counts. Segments are shared memory and do not
    count."""

    class Mallinfo2(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                         "uordblks", "fordblks", "keepcost")]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2

    def __init__(self):
        gc.collect()
        info = self.libc.mallinfo2()
        self.native, self.blocks = info.uordblks + info.hblkhd, sys.getallocatedblocks()
        with open("/proc/self/status") as status:
            self.rss = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


# What malloc holds for threads that come and go is not the same from one time to the next.
STARTS_THREADS = {"setup", "setup_dummy", "init_all", "initialize", "initialize_ext"}


def methods(name):
    return {part.strip() for part in name.split(":")[0].split(",")}


def keeps_nothing(name, call, most, seconds):
    """(what is wrong with the call or "", calls made)."""
    total = 0
    for _ in range(5):  # A pool that grows once is no leak: what leaks does it every time.
        begin = time.monotonic()
        for _ in range(max(50, most // 10)):  # until pools and caches have their size
            call()
            total += 1
            if time.monotonic() - begin > seconds / 5:
                break
        before, begin, made = Memory(), time.monotonic(), 0
        while made < most and time.monotonic() - begin < seconds:
            call()
            made += 1
        took = time.monotonic() - begin
        after = Memory()
        total += made
        native, blocks, rss = after.native - before.native, after.blocks - before.blocks, after.rss - before.rss
        figures = (f"{made} calls: malloc {native:+}, interpreter {blocks:+} blocks, RSS {rss >> 10:+} KiB, "
                   f"{1e6 * took / made:.0f} us a call")
        noise = 256 << 10 if methods(name) & STARTS_THREADS else 4 << 10
        if native < noise + 8 * made and blocks < 200 + made / 4 and rss < 1 << 20:
            print(f"ok      {name}: {figures}", flush=True)
            return "", total
    return f"keeps memory: {figures}", total


def leaks(calls, options):
    wrong, total = {}, 0
    for name, call in chosen(calls.table, options).items():
        problem, made = keeps_nothing(name, call, options.calls, options.seconds)
        total += made
        if problem:
            wrong[name] = problem
    print(f"{total} calls", flush=True)
    return wrong


# ---- running them ----

MODES = {"gil": gil, "leaks": leaks}


def chosen(table, options):
    only = set(options.only.split(",")) - {""}
    return {name: call for name, call in table.items() if not only or only & methods(name)}


def child(options):
    calls = Calls(*options.child)
    wrong = MODES[options.modes[0]](calls, options)
    for name, problem in wrong.items():
        print(f"FAILED  {name} {problem}", flush=True)
    print("fine" if not wrong else f"{len(wrong)} calls are wrong", flush=True)
    return int(bool(wrong))


def run(peers, mode, options):
    master = peers.master("ours")
    node = peers.node("ours", master, segment="64MB")
    port = next(a.split("=")[1] for a in node.args if a.startswith("--port="))
    env = dict(os.environ, PYTHONPATH=os.path.join(peers.build, "python"), MC_LOG_LEVEL="OFF", PYTHONFAULTHANDLER="1")
    if mode == "gil":
        env["LD_PRELOAD"] = os.path.join(peers.build, "tests", "libslow_native.so")
        if not os.path.exists(env["LD_PRELOAD"]):
            print("skipped: gil: this build has no slow_native (GCC, no sanitizer)")
            return True
    argv = [sys.executable, "-W", "ignore", os.path.abspath(__file__), peers.build, mode, "--child", master.address,
            f"127.0.0.1:{port}", "--delay", str(options.delay), "--calls", str(options.calls), "--seconds", str(options.seconds),
            "--only", options.only]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") \
        if not options.by_hand else subprocess.run(argv, env=env)
    if done.returncode != 0 and not options.by_hand:
        print(f"{mode}: status {done.returncode}\n{done.stdout[-6000:]}", flush=True)
    print(f"{'ok     ' if done.returncode == 0 else 'FAILED '} {mode}", flush=True)
    return done.returncode == 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("modes", nargs="*", default=list(MODES), help="gil, leaks; both when none is given")
    parser.add_argument("--delay", type=float, default=0.04, help="seconds that every native function takes")
    parser.add_argument("--calls", type=int, default=300, help="calls of each")
    parser.add_argument("--seconds", type=float, default=0.3, help="at most, for each call's calls")
    parser.add_argument("--only", default="", help="methods, with commas between")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.by_hand = len(sys.argv) > 2
    return options


def main():
    options = arguments()
    if options.child:
        return child(options)
    sys.path.insert(0, os.path.join(HERE, "..", "interop"))
    import peers as interop
    if not os.path.exists(os.path.join(options.build, "python", "mooncake", "store.abi3.so")):
        print("skipped: this build has no Python package")
        return 77
    peers = interop.Peers(options.build)
    failed = True
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:  # One mostly waits, the other mostly works.
            failed = not all(list(pool.map(lambda mode: run(peers, mode, options), options.modes)))
    finally:
        peers.close(failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

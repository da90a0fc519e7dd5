#!/usr/bin/env python3
"""The Python package beside upstream's wheel, in one run: every figure is measured on both sides in turns, so that what else the
machine does falls on both. Usage: bench/bench_python.py BUILD [--rounds N] [--seconds S] [--json FILE]

Each side has its own master and a node process of its own; the client is a third process. One client thread. A round gives each
figure S seconds on each side; printed is the median of the rounds. "get_into of no key" goes all the way into the library and is
refused there at once: what a call costs above the C API (arguments, gate, GIL), in processor time, least of the rounds. A put's
time is that of the put; the key is removed after it. Without upstream's wheel ours stands alone. The tensor figures need torch
(tools/torch).
"""
import argparse
import ctypes
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "interop"))


OVERHEAD = "get_into of no key"


# ---- the client process: measures what it is told ----

def mean(call, seconds):
    """Seconds of a call: what it says that it took, a float, or else all of its time."""
    count, told, begin = 0, 0.0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        took = call()
        told += took if type(took) is float else 0.0
        count += 1
    return (told or time.perf_counter() - begin) / count


def client(side, master):
    import mooncake.store
    if side != "ours":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    store = mooncake.store.MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 512 << 20, "tcp", "", master) == 0
    size = 32 << 20
    memory = ctypes.create_string_buffer(size)
    base = ctypes.addressof(memory)
    ctypes.memmove(base, os.urandom(size), size)
    assert store.register_buffer(base, size) == 0
    small, large = os.urandom(4096), os.urandom(1 << 20)
    page = 65536

    def pages(n):
        return [f"page{n}.{i}" for i in range(n)]

    for key, value in (("small", small), ("large", large)):
        assert store.put(key, value) == 0
    for n in (32, 128):
        assert store.batch_put_from(pages(n), [base + page * i for i in range(n)], [page] * n) == [0] * n
    many = [f"page32.{i}" if i < 32 else f"absent{i}" for i in range(1000)]
    counter = iter(range(1 << 60))
    clock = time.perf_counter

    def put(value):
        key = f"put{next(counter)}"
        begin = clock()
        code = store.put(key, value)
        took = clock() - begin
        assert code == 0 and store.remove(key, True) == 0
        return took

    def batch_put(n):
        keys, places, sizes = [f"b{next(counter)}" for _ in range(n)], [base + page * i for i in range(n)], [page] * n
        begin = clock()
        codes = store.batch_put_from(keys, places, sizes)
        took = clock() - begin
        assert codes == [0] * n
        store.batch_remove(keys, True)
        return took

    def batch_get(n):
        assert store.batch_get_into(pages(n), [base + page * i for i in range(n)], [page] * n)[0] == page

    work = {
        "put 4 KiB": lambda: put(small), "put 1 MiB": lambda: put(large),
        "get 4 KiB": lambda: store.get("small"), "get 1 MiB": lambda: store.get("large"),
        "get_buffer 4 KiB": lambda: store.get_buffer("small"), "get_buffer 1 MiB": lambda: store.get_buffer("large"),
        "batch_put_from 32 x 64 KiB": lambda: batch_put(32), "batch_put_from 128 x 64 KiB": lambda: batch_put(128),
        "batch_get_into 32 x 64 KiB": lambda: batch_get(32), "batch_get_into 128 x 64 KiB": lambda: batch_get(128),
        "get_batch 32 x 64 KiB": lambda: store.get_batch(pages(32)), "get_batch 128 x 64 KiB": lambda: store.get_batch(pages(128)),
        "batch_is_exist 1000": lambda: store.batch_is_exist(many),
    }
    assert store.get("large") == large and store.get("small") == small and bytes(store.get_buffer("large")) == large
    assert sum(store.batch_is_exist(many)) == 32
    assert store.get_batch(pages(128)) == [ctypes.string_at(base + page * i, page) for i in range(128)]
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        tensor = torch.arange(1 << 18, dtype=torch.float32)

        def put_tensor():
            key = f"t{next(counter)}"
            begin = clock()
            code = store.put_tensor(key, tensor)
            took = clock() - begin
            assert code == 0 and store.remove(key, True) == 0
            return took
        assert store.put_tensor("tensor", tensor) == 0 and torch.equal(store.get_tensor("tensor"), tensor)
        work["put_tensor 1 MiB"], work["get_tensor 1 MiB"] = put_tensor, lambda: store.get_tensor("tensor")
    if side == "ours":  # upstream asks its master even so
        def refused():
            begin = time.thread_time()
            for _ in range(100):
                store.get_into("", base, 10)
            return (time.thread_time() - begin) / 100
        work[OVERHEAD] = refused
    print(json.dumps(list(work)), flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        print(json.dumps(mean(work[name], seconds) * 1e6), flush=True)
    store.close()


# ---- the two sides ----

class Side:
    def __init__(self, peers, who):
        import peers as interop
        self.who, self.results = who, {}
        self.master = peers.master(who)
        peers.node(who, self.master, segment="2GB")
        if who == "ours":
            python, env = sys.executable, dict(os.environ, PYTHONPATH=os.path.join(peers.build, "python"), MC_LOG_LEVEL="ERROR")
        else:
            wheel = interop.wheel(peers.build, interop.NEWEST)
            python, env = wheel.python, dict(wheel.env)
        torch = interop.torch_python()
        if torch:
            if who != "ours":
                env["PYTHONPATH"] = glob.glob(os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python*",
                                                           "site-packages"))[0]
            python = torch
        self.python, self.env = python, env
        self.process = subprocess.Popen([python, os.path.abspath(__file__), "--client", who, self.master.address], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.names = self.answer()

    def import_us(self):
        """Processor time of the import, the least of five; Python files are compiled before, as pip compiles them."""
        code = "import time; t = time.process_time(); import mooncake.store; print('took', (time.process_time() - t) * 1e6)"
        with tempfile.TemporaryDirectory() as compiled:
            env = {**self.env, "PYTHONPYCACHEPREFIX": compiled}
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            took = [subprocess.run([self.python, "-c", code], env=env, text=True, check=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL).stdout.rsplit("took", 1)[1] for _ in range(6)]
        return min(float(one) for one in took)

    def answer(self):
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue  # a log line
        raise SystemExit(f"the client of {self.who} ended")

    def measure(self, name, seconds):
        self.process.stdin.write(json.dumps((name, seconds)) + "\n")
        self.process.stdin.flush()
        self.results.setdefault(name, []).append(self.answer())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    options = parser.parse_args()
    import peers as interop
    peers = interop.Peers(options.build)
    try:
        sides = [Side(peers, "ours")]
        try:
            sides.append(Side(peers, "upstream"))
        except interop.Skip as reason:
            print(f"upstream is not measured: {reason}")
        for side in sides:  # pages, connections, caches
            for name in side.names:
                side.measure(name, 0.1)
            side.results.clear()
        for turn in range(options.rounds):
            for name in sides[0].names:
                for side in sides if turn % 2 == 0 else reversed(sides):
                    if name in side.names:
                        side.measure(name, options.seconds)
        medians = [{name: (min if name == OVERHEAD else statistics.median)(values) for name, values in side.results.items()}
                   for side in sides] + [{}]
        for side, figures in zip(sides, medians):
            figures["import mooncake.store"] = side.import_us()
        print(f"{'microseconds a call':34} {'ours':>10} {'upstream':>10} {'times':>7}")
        for name, ours in medians[0].items():
            theirs = medians[1].get(name)
            print(f"{name:34} {ours:10.1f} " + (f"{theirs:10.1f} {theirs / ours:7.2f}" if theirs else ""))
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"unit": "us", "ours": medians[0], "upstream": medians[1]}, file, indent=1)
        for side in sides:
            side.close()
    finally:
        peers.close(False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], sys.argv[3])
    else:
        main()

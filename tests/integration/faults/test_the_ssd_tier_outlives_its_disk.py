#!/usr/bin/env python3
"""A node whose disk fails to read, write and sync, is full, slow or taken away, and which is stopped, and killed in the
middle of writing: a get returns the bytes that were put, or an error; and when the disk is well again, so is the node. Every
backend. In the order of a seed; told is how often each of these happened, and none of them never.

    test_the_ssd_tier_outlives_its_disk.py BUILD_DIRECTORY [SECONDS [SEED]]     (for each backend; ten minutes: 200)
"""
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "interop"))
from peers import Peers  # noqa: E402

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 8
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 7
ROUNDS_MAX = 10  # until each fault has happened
SIZE = 200_000
MEMORY = 16 << 20
MASTER = ("--enable_offload=true", "--promotion_on_hit=true", "--default_kv_lease_ttl=200",
          "--eviction_high_watermark_ratio=0.6", "--client_ttl=3", "--put_start_discard_timeout_sec=60")
BACKENDS = ("bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend")
FIELDS = ("read", "write", "sync", "no_space", "delay_us", "calls", "read_errors", "write_errors", "sync_errors", "full",
          "slow")
TOLD = FIELDS[FIELDS.index("calls"):]  # counted there
FAULTS = ({"write": 300}, {"read": 300}, {"sync": 500}, {"no_space": 1}, {"delay_us": 20000},
          {"read": 100, "write": 100, "sync": 100})


class Disk:
    """The control file of tests/preload/disk_faults.c."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(bytes(4 * len(FIELDS)))
        self.file = open(path, "r+b")
        self.map = mmap.mmap(self.file.fileno(), 4 * len(FIELDS))

    def set(self, **values):
        for name, value in values.items():
            struct.pack_into("<I", self.map, 4 * FIELDS.index(name), value)

    def well(self):
        self.set(read=0, write=0, sync=0, no_space=0, delay_us=0)

    def get(self, name):
        return struct.unpack_from("<I", self.map, 4 * FIELDS.index(name))[0]


class Chaos:
    def __init__(self, peers, backend, scratch):
        self.peers, self.backend, self.scratch = peers, backend, scratch
        self.directory = os.path.join(scratch, "ssd")
        os.mkdir(self.directory)
        self.disk = Disk(os.path.join(scratch, "faults"))
        self.dice = random.Random(SEED)
        self.done = dict.fromkeys(("unplugged", "stopped", "killed"), 0)
        self.master = peers.master("ours", args=MASTER)
        self.node = self.start_node()
        self.client = peers.store("ours", self.master)
        self.put_keys, self.compared, self.missed = [], 0, 0

    def start_node(self):
        env = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": self.directory, "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
               "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": self.backend, "MC_DISK_FAULTS": self.disk.file.name,
               "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(128 << 20), "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "8",
               "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(16 << 20), "MC_TIER_SCRUB_BYTES_PER_SECOND": str(16 << 20),
               "MC_DISK_FAULTS_UNDER": os.path.realpath(self.directory),
               "LD_PRELOAD": os.path.join(self.peers.build, "tests", "libdisk_faults.so"),
               "ASAN_OPTIONS": "verify_asan_link_order=0"}
        return self.peers.node("ours", self.master, segment=str(MEMORY), args=("--enable_offload=true",), env=env)

    def put(self):
        number = len(self.put_keys)
        try:
            done = self.client.put(f"key/{number}", number, SIZE + number) == 0
        except AssertionError:
            done = False  # no room just now: memory waits for the disk
        self.put_keys.append(done)
        return done

    def get(self, number):
        """True when all bytes came; an error is none."""
        try:
            self.compared += self.client.get(f"key/{number}", number, SIZE + number)
            return True
        except AssertionError as why:
            if "bytes differ" in str(why) or "bytes, expected" in str(why) and "None bytes" not in str(why):
                raise
            self.missed += 1
            return False

    def some(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.put()
            for _ in range(2):
                self.get(self.dice.randrange(len(self.put_keys)))

    def kill_and_restart(self):
        self.disk.set(delay_us=5000)  # so that the kill finds it writing
        self.some(0.3)
        self.peers.stop(self.node, kill=True)
        deadline = time.monotonic() + 30
        while self.master.segments() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.disk.well()
        self.node = self.start_node()

    def unplug(self):
        away = self.directory + ".away"
        os.rename(self.directory, away)
        self.some(0.7)
        os.rename(away, self.directory)

    def stop_and_go_on(self):
        """Sometimes beyond its time to live."""
        self.node.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.choice((0.5, 4)))
        self.node.send_signal(signal.SIGCONT)

    def fault(self, values):
        self.disk.set(**values)
        self.some(0.7)
        self.disk.well()

    def round(self):
        steps = [lambda values=values: self.fault(values) for values in FAULTS]
        for what, step in zip(self.done, (self.unplug, self.stop_and_go_on, self.kill_and_restart)):
            steps.append(lambda what=what, step=step: (step(), self.count(what)))
        self.dice.shuffle(steps)
        for step in steps:
            step()
            self.some(0.3)

    def count(self, what):
        self.done[what] += 1

    def all_happened(self):
        """On a busy machine little is written in a round, and what fails is one call in some."""
        self.done.update((what, self.disk.get(what)) for what in TOLD)
        return self.compared > 0 and all(self.done.values())

    def settled(self):
        """A disk that is well again: what is put now is kept, beyond what the memory holds."""
        fresh, deadline = [], time.monotonic() + 90
        while len(fresh) * SIZE < 2 * MEMORY:
            if self.put():
                fresh.append(len(self.put_keys) - 1)
            else:
                assert time.monotonic() < deadline, "puts find no room although the disk is well"
                time.sleep(0.1)
        lost = [number for number in fresh if not self.get(number)]
        assert not lost, f"lost on a disk that is well: {lost}"


def one(backend):
    peers, scratch, bad = Peers(sys.argv[1]), os.path.abspath(tempfile.mkdtemp(prefix="mc_chaos_", dir=".")), True
    try:
        chaos = Chaos(peers, backend, scratch)
        begin, rounds = time.monotonic(), 0
        while not chaos.all_happened() and rounds < ROUNDS_MAX or time.monotonic() < begin + SECONDS:
            chaos.round()
            rounds += 1
        chaos.settled()
        assert not peers.crashed(), f"crashed: {peers.crashed()}"
        assert chaos.all_happened(), f"never happened: {chaos.done}, compared {chaos.compared}"
        print(f"ok    {backend}: puts={len(chaos.put_keys)} done={sum(chaos.put_keys)} compared_bytes={chaos.compared} "
              f"errors={chaos.missed} " + " ".join(f"{what}={n}" for what, n in chaos.done.items()), flush=True)
        bad = False
    finally:
        peers.close(bad)
        shutil.rmtree(scratch, ignore_errors=True)


for name in BACKENDS:
    one(name)

#!/usr/bin/env python3
"""Clients and nodes of ours and of upstream put, upsert, read and remove the same keys at once, at random, while some of them
are killed. What is read is whole, and no older than what was written before the read began.

    STORM_SECONDS=600 STORM_SEED=7 tests/interop/test_clients_of_both_sorts_die_under_load.py BUILD
"""
import os
import random
import threading
import time

from peers import Died, main
from scenarios import equal

SECONDS = float(os.environ.get("STORM_SECONDS", 25))
SEED = int(os.environ.get("STORM_SEED", random.SystemRandom().randrange(1 << 30)))
KEYS = 24
LATE_S = 5  # a write that failed, or whose writer was killed, may still be carried out so much later
CLIENTS = ["ours", "upstream", "ours", "upstream"]
NODES = ["ours", "upstream"]


class History:
    """Of one key: what was written when, and what a read may therefore give."""

    def __init__(self):
        self.lock = threading.Lock()
        self.writes = {}  # seed: [begun, ended (None: it goes on)]
        self.replaced = []  # [begun, ended] of what certainly took the place of all before

    def begin(self, seed):
        with self.lock:
            self.writes[seed] = [time.monotonic(), None]

    def end(self, seed, certain, replaces):
        with self.lock:
            begun, now = self.writes[seed][0], time.monotonic()
            self.writes[seed][1] = now if certain else now + LATE_S
            if certain and replaces:
                self.replaced.append((begun, now, seed))

    def check(self, key, seed, begun):
        with self.lock:
            written = self.writes.get(seed)
            if written is None:
                raise AssertionError(f"{key}: a value that was never written there, seed {seed}")
            for first, last, other in self.replaced:
                if written[1] is not None and first > written[1] and last < begun:
                    raise AssertionError(f"{key}: read the value {seed}, which {other} had replaced {begun - last:.3f} s before")


class Storm:
    def __init__(self, peers, master):
        # Under upstream's master its clients were seen to read torn values while others upserted and removed by force:
        # those two respect no reader's lease there.
        self.rude = master == "ours"
        self.peers, self.master = peers, peers.master(master, args=["--client_ttl=5", "--default_kv_lease_ttl=500"])
        self.keys = {f"storm/{i}": History() for i in range(KEYS)}
        self.seeds = iter(range(1, 1 << 40))
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(["written", "refused", "removed", "read", "nothing", "bytes", "killed"], 0)
        self.sizes = {}
        self.error = None
        self.ends = time.monotonic() + SECONDS

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def next_seed(self, size):
        with self.lock:
            seed = next(self.seeds)
            self.sizes[seed] = size
        return seed

    def write(self, agent, rng, key, history):
        how = rng.choice(["put", "put_from"] + 2 * self.rude * ["upsert", "upsert_from"])
        size = rng.choice([16, 17, 255, 4096, 65537, 1 << 20]) + rng.randrange(3000)
        seed = self.next_seed(size)
        history.begin(seed)
        try:
            status = agent.stamped_write(how, key, seed, size)
        except Died:
            history.end(seed, False, False)
            raise
        done = status == 0
        history.end(seed, done, how.startswith("upsert"))  # a put of a key that exists changes nothing
        self.count("written" if done else "refused")

    def read(self, agent, rng, key, history):
        how, begun = rng.choice(["get", "get_buffer"]), time.monotonic()
        seed = agent.stamped_read(how, key)
        if seed is None:
            self.count("nothing")
            return
        history.check(key, seed, begun)
        self.count("read")
        self.count("bytes", self.sizes[seed])

    def remove(self, agent, rng, key, history):
        seed = self.next_seed(0)
        history.begin(seed)
        try:
            status = agent.remove(key, force=self.rude)
        except Died:
            history.end(seed, False, False)
            raise
        history.end(seed, status == 0, True)
        self.count("removed", status == 0)

    def client(self, who, index):
        """One client after the other: each lives until it is killed."""
        rng = random.Random(SEED * 100 + index)
        while time.monotonic() < self.ends and self.error is None:
            try:
                agent = self.peers.store(who, self.master, segment=rng.choice([0, 48 << 20]), buffer=64 << 20)
                kill_at = time.monotonic() + rng.uniform(3, 12)
                killer = threading.Timer(kill_at - time.monotonic(), agent.popen.kill)
                killer.start()
                while time.monotonic() < self.ends and self.error is None:
                    key = rng.choice(list(self.keys))
                    act = rng.choice([self.write, self.write, self.read, self.read, self.read, self.read, self.remove])
                    act(agent, rng, key, self.keys[key])
                killer.cancel()
            except (Died, BrokenPipeError):
                self.count("killed")
            except Exception as why:
                self.error = self.error or why

    def node(self, who, index):
        rng = random.Random(SEED * 100 + 50 + index)
        while time.monotonic() < self.ends and self.error is None:
            try:
                popen = self.peers.node(who, self.master, segment="96MB", ready=lambda: True)  # others come and go
                until = min(self.ends, time.monotonic() + rng.uniform(6, 20))
                while time.monotonic() < until and self.error is None:
                    time.sleep(0.1)
                self.peers.stop(popen, kill=True)
                self.count("killed")
            except Exception as why:
                self.error = self.error or why

    def run(self):
        threads = [threading.Thread(target=self.client, args=(who, i)) for i, who in enumerate(CLIENTS)]
        threads += [threading.Thread(target=self.node, args=(who, i)) for i, who in enumerate(NODES)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.error is not None:
            raise self.error
        print(f"      seed {SEED}, {SECONDS:.0f} s: {self.counts}")
        for what in ("written", "read", "bytes", "killed"):
            equal(self.counts[what] > 0, True, f"something {what}")
        equal(self.master.popen.poll(), None, "the master's end")


def under_our_master(peers):
    Storm(peers, "ours").run()


def under_upstreams_master(peers):
    Storm(peers, "upstream").run()


if __name__ == "__main__":
    main(under_our_master, under_upstreams_master)

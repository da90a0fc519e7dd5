#!/usr/bin/env python3
"""One host stops hearing another, in one direction, while values are on their way: puts go to the node that hears or fail in
their time, gets fail in theirs, no read ever returns other bytes, and when the network is whole again everything works."""
import concurrent.futures
import hashlib
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from hosts import Cluster, Net, skip_unless_possible  # noqa: E402
from programs import bin_dir, check, check_equal, main  # noqa: E402

BIN = bin_dir()
TIMEOUT = 4
SLACK = 12  # a loaded machine; without a deadline the wait would be minutes


def value_of(key, size):
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Writer:
    def __init__(self, cluster, host):
        self.cluster, self.host = cluster, host

    def put(self, key, size):
        begin = time.monotonic()
        answer = self.cluster.mooncake(self.host, "put", f"--timeout={TIMEOUT}s", key, input_bytes=value_of(key, size))
        took = time.monotonic() - begin
        check(took < TIMEOUT + SLACK, f"put of {key} took {took:.1f} s")
        return answer.returncode == 0

    def get(self, key, size):
        """True: it is there and right; False: an error, in time. Anything else fails the test."""
        begin = time.monotonic()
        answer = self.cluster.mooncake(self.host, "get", f"--timeout={TIMEOUT}s", key)
        took = time.monotonic() - begin
        check(took < TIMEOUT + SLACK, f"get of {key} took {took:.1f} s")
        if answer.returncode != 0:
            return False
        check(answer.stdout == value_of(key, size), f"get of {key} returned other bytes")
        return True


def one_way(closing, scratch):
    net = Net("4", 4)
    closing.append(net)
    cluster = Cluster(closing, BIN, net, net.hosts[1:3], "--default_kv_lease_ttl=200")
    deaf, client = net.hosts[1], net.hosts[3]
    writer, size = Writer(cluster, client), 2 << 20
    before = [f"before-{i}" for i in range(8)]
    for key in before:
        check(writer.put(key, size), f"put of {key} on a whole network")
    try:  # slow enough that the cut falls into the middle of a transfer
        client.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "80mbit", "burst", "64kb", "latency", "200ms")
    except subprocess.CalledProcessError:
        print("(this kernel cannot slow a link: the cut falls where it falls)")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        during = [f"during-{i}" for i in range(8)]
        running = [pool.submit(writer.put, key, size) for key in during]
        time.sleep(0.4)
        deaf.deaf_to(client)
        stored = {key for key, put in zip(during, running) if put.result()}
        readable = list(pool.map(lambda key: writer.get(key, size), before))
        after = [f"after-{i}" for i in range(4)]
        stored |= {key for key, good in zip(after, pool.map(lambda key: writer.put(key, size), after)) if good}
    print(f"while it was cut: {len(stored)} of {len(during) + len(after)} puts stored, {sum(readable)} of {len(before)} reads served")
    check(any(readable) and not all(readable), "what is on the other node can be read, what is on the deaf one cannot")
    deaf.hears_again()
    for key in before + sorted(stored):
        for _ in range(5):
            if writer.get(key, size):
                break
            time.sleep(1)
        else:
            raise AssertionError(f"{key} was stored and cannot be read on the healed network")
    for key in set(during + after) - stored:
        writer.get(key, size)  # there or not, but never other bytes
    check(writer.put("healed", size) and writer.get("healed", size), "a put on the healed network")
    check_equal([p.process.poll() for p in cluster.processes.values()], [None, None], "the nodes run on")


skip_unless_possible()
main(one_way)

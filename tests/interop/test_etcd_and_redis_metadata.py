#!/usr/bin/env python3
"""Engines of both sides find each other through a real etcd; every byte that they then move is compared. Redis is not
compiled into upstream's wheel: there what is written is compared with the documented bytes by an independent reader, and
ours finds what is written as upstream writes it."""
import base64
import json
import os
import shutil
import socket
import urllib.request

import scenarios
from peers import OLDER, Died, Skip, free_port, main
from scenarios import equal


# ---- the services, and an independent look into them ----

def program(name):
    path = shutil.which(name) or f"/usr/bin/{name}"
    if not os.path.exists(path):
        raise Skip(f"{name} is not installed (tools/setup does that)")
    return path


class Etcd:
    def __init__(self, peers):
        path = program("etcd")
        for _ in range(5):
            client, peer = free_port(), free_port()
            url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            popen, _ = peers.start("etcd", [
                path, "--name", "test", "--data-dir", f"etcd-{client}", "--listen-client-urls", url,
                "--advertise-client-urls", url, "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls",
                peer_url, "--initial-cluster", f"test={peer_url}", "--unsafe-no-fsync"])

            def ready():
                with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                    return b"true" in answer.read()

            if peers.until("etcd", popen, ready):
                self.address, self.api = f"127.0.0.1:{client}", f"{url}/v3/kv/range"
                self.url = f"etcd://{self.address}"
                return
        raise Died("etcd does not start")

    def all(self):
        """{key: (value, has a lease)} of everything that is there."""
        everything = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
        with urllib.request.urlopen(self.api, everything, timeout=5) as answer:
            found = json.load(answer).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): (base64.b64decode(kv["value"]), "lease" in kv) for kv in found}


class Redis:
    PASSWORD = "open sesame"

    def __init__(self, peers):
        path = program("redis-server")
        for _ in range(5):
            self.port = free_port()
            popen, _ = peers.start("redis", [path, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                             "--requirepass", self.PASSWORD])
            if peers.until("redis", popen, lambda: self.command("PING") == b"PONG"):
                self.url = f"redis://127.0.0.1:{self.port}"
                return
        raise Died("redis-server does not start")

    def command(self, *words, db=0):
        """The last answer: bytes, int, None or a list; no library in between."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
            stream = sock.makefile("rwb")
            for command in (("AUTH", self.PASSWORD), ("SELECT", db), words):
                words_bytes = [w if isinstance(w, bytes) else str(w).encode() for w in command]
                stream.write(b"*%d\r\n" % len(words_bytes) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words_bytes))
                stream.flush()
                answer = self.read(stream)
            return answer

    def read(self, stream):
        line = stream.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise AssertionError(rest.decode())
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
        return [self.read(stream) for _ in range(int(rest))]


def check_records(records, name, leased):
    """Both records of an engine, in the form that both sides write: compact JSON, sorted keys, one newline."""
    equal(sorted(k for k in records if k.endswith("/" + name)), [f"mooncake/ram/{name}", f"mooncake/rpc_meta/{name}"],
          "keys")
    address, has_lease = records[f"mooncake/rpc_meta/{name}"]
    parsed = json.loads(address)
    # Upstream puts the address of its first interface here, whatever its name says.
    expected = '{"ip_or_host_name":"%s","rpc_port":%d}\n' % (parsed["ip_or_host_name"], parsed["rpc_port"])
    equal(address.decode(), expected, f"address of {name}")
    descriptor, descriptor_lease = records[f"mooncake/ram/{name}"]
    equal(descriptor[-1:] + descriptor[:1], b"\n{", "ends of the descriptor")
    equal(b"\n" in descriptor[:-1] or b": " in descriptor or b", " in descriptor, False, "descriptor is compact")
    known = json.loads(descriptor)
    equal((known["name"], known["protocol"]), (name, "tcp"), "descriptor")
    equal((has_lease, descriptor_lease), (leased, leased), "leases")
    return known


class Copied:
    """An engine of upstream in etcd, whose records come into Redis (database 2) as its Redis build would write them:
    the same bytes under the same keys."""

    def __init__(self, agent, etcd, redis):
        self.agent, self.etcd, self.redis = agent, etcd, redis

    def allocate(self, size):
        address = self.agent.allocate(size)
        for key, (value, _) in self.etcd.all().items():
            self.redis.command("SET", key, value, db=2)
        return address

    def __getattr__(self, name):
        return getattr(self.agent, name)


# ---- tests ----

def move(peers, initiator, target, url, env=None):
    a, b = peers.engine(initiator, url, env), peers.engine(target, url, env)
    compared = scenarios.engine_pair(a, b) + scenarios.engine_notify(a, b)
    equal(compared > 0, True, "something was compared")
    print(f"      {initiator} initiates, {target} is the target: {compared >> 20} MiB compared")
    return a, b


def ours_and_upstream_meet_in_etcd(peers):
    etcd = Etcd(peers)
    a, b = move(peers, "ours", "upstream", etcd.url)
    records = etcd.all()
    ours = set(check_records(records, a.engine_name(), leased=True))
    theirs = set(check_records(records, b.engine_name(), leased=False))
    print(f"      members only of upstream: {sorted(theirs - ours)}, only of ours: {sorted(ours - theirs)}")
    equal(theirs - ours - {"rdma_server_name", "tcp_data_host"}, set(), "members that upstream alone writes")
    move(peers, "upstream", "ours", etcd.url)


def the_older_release_too(peers):
    etcd = Etcd(peers)
    move(peers, "ours", OLDER, etcd.url)
    move(peers, OLDER, "ours", etcd.url)


def a_bare_address_and_a_cluster(peers):
    etcd = Etcd(peers)
    env = {"MC_METADATA_CLUSTER_ID": "blue"}
    for pair in (("ours", "upstream"), ("upstream", "ours")):
        move(peers, *pair, etcd.address, env)
    keys = list(etcd.all())
    equal([k for k in keys if not k.startswith("mooncake/blue/")], [], "keys outside the cluster's prefix")
    equal(len(keys), 8, "two records for each engine")


def ours_in_redis_as_upstream_writes_it(peers):
    etcd, redis = Etcd(peers), Redis(peers)
    env = {"MC_REDIS_PASSWORD": Redis.PASSWORD, "MC_REDIS_DB_INDEX": "2"}
    a, b = move(peers, "ours", "ours", redis.url, env)
    equal(redis.command("KEYS", "*"), [], "keys in database 0")
    keys = redis.command("KEYS", "*", db=2)
    records = {k.decode(): (redis.command("GET", k, db=2), redis.command("TTL", k, db=2) > 0) for k in keys}
    equal(len(records), 4, "two records for each engine")
    for engine in (a, b):
        check_records(records, engine.engine_name(), leased=True)
    upstream = Copied(peers.engine("upstream", etcd.url), etcd, redis)
    equal(scenarios.engine_pair(peers.engine("ours", redis.url, env), upstream) > 0, True, "bytes by Redis' records")


if __name__ == "__main__":
    main(ours_and_upstream_meet_in_etcd, the_older_release_too, a_bare_address_and_a_cluster,
         ours_in_redis_as_upstream_writes_it)

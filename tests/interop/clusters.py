"""Clusters put together from ours and upstream's programs, and the scenarios run on them."""
import os
import pathlib
import re
import struct
import sys
import time
import urllib.error
import urllib.request

import peers as harness
import scenarios
from scenarios import equal

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.programs import certificates, has_openssl, tls_environment  # noqa: E402

CHECKSUM = {"MOONCAKE_STORE_CHECKSUM": "1"}


def metadata_of(peers, metadata):
    """Connection string: "p2p", or of whose HTTP metadata server to start."""
    if metadata == "p2p":
        return "P2PHANDSHAKE"
    return peers.master(metadata, metadata_server=True).metadata


def cluster(peers, master, nodes=(), own_segment=(), writers=(), readers=(), metadata="p2p",
            hosts=None, large=False):
    """Starts the cluster and runs every scenario for each writer and reader. `nodes` are mooncake_client processes,
    `own_segment` processes with the client library that lend a segment. `hosts` gives some implementations an address
    of their own, as the master sees it; `large` adds values of 16 and 64 MiB. Returns the number of compared bytes."""
    leader = peers.master(master)
    where = metadata_of(peers, metadata)

    def store(who, segment):
        seen = peers.seen_from(leader, hosts[who]) if hosts and who in hosts else leader
        return peers.store(who, seen, where, segment=segment)

    for who in nodes:
        peers.node(who, leader, where)
    for who in own_segment:
        name = store(who, 512 << 20).hostname()
        equal(name in leader.segments(), True, f"{name} among {leader.segments()}")
    segments, compared = leader.segments(), 0
    equal(len(segments), len(nodes) + len(own_segment), f"segments {segments}")
    writing = {who: store(who, 0) for who in dict.fromkeys(writers)}
    reading = {who: store(who, 0) for who in dict.fromkeys(readers)}
    sizes = scenarios.SIZES + (scenarios.LARGE if large else [])
    for i, w in enumerate(writers):
        for j, r in enumerate(readers):
            done = scenarios.everything(writing[w], reading[r], f"{i}{j}", segments if len(segments) > 1 else None,
                                        sizes)
            print(f"      {w} writes, {r} reads: {done >> 20} MiB compared")
            compared += done
    return compared


def extras(peers, master):
    """What only upstream's client offers: a revoked put session, more segments, clearing."""
    leader = peers.master(master, args=["--default_kv_lease_ttl=200"])
    a = peers.store("upstream", leader, segment=64 << 20)
    b = peers.store("upstream", leader, segment=64 << 20)
    equal(a.put_session(["s1", "s2"], [4096, 100]), [[0, 0], [0, 0]], "put session, revoked")
    equal(b.batch_exist(["s1", "s2"]), [0, 0], "exist after revoke")
    for grace in (0, 1):
        equal(a.extra_segment(16 << 20, grace), 0, f"mount and unmount a further segment, grace {grace}")
    equal(a.put("cleared", 3, 1000), 0, "put")
    time.sleep(0.5)
    equal(a.replica_clear(["cleared"]), ["cleared"], "batch_replica_clear")
    equal(b.exist("cleared"), 0, "exist after clear")
    equal(a.health(), 0, "health")


def work(peers, master, owners):
    """Sessions, ranges, copies and moves among segments that different implementations own and carry out."""
    leader = peers.master(master)
    stores = [peers.store(who, leader, segment=256 << 20) for who in owners]
    names = [s.hostname() for s in stores]
    compared = 0
    for i, w in enumerate(stores):
        compared += scenarios.tasks(w, stores[1 - i], f"w{i}", names) + scenarios.parts(w, stores[1 - i], f"w{i}")
    print(f"      {master} master, segments of {' and '.join(owners)}: {compared >> 20} MiB compared")


def restart(peers, master, client, node):
    """kill -9 of the master: its clients mount their segments again by themselves and the cluster serves."""
    leader = peers.master(master)
    c = peers.store(client, leader, segment=64 << 20)
    peers.node(node, leader, segment="64MB")
    segments = set(leader.segments())
    equal(c.put("before", 1, 100000), 0, "put")
    compared = c.get("before", 1, 100000)
    peers.stop(leader.popen, kill=True)
    equal(c.put("while down", 2, 1000) != 0, True, "put without a master fails")
    equal(c.refused("before"), True, "get without a master is an error or a miss")
    leader = leader.restart_with()
    took = c.put_until("after", 3, 100000, 30)
    peers.until("both segments are mounted again", None, lambda: set(leader.segments()) == segments)
    compared += c.get("after", 3, 100000)
    for i in range(8):
        equal(c.put(f"again{i}", 10 + i, 200000), 0, "put")
        compared += c.get(f"again{i}", 10 + i, 200000)
    equal(c.exist("before"), 0, "what the old master knew is gone")
    equal(compared, 2 * 100000 + 8 * 200000, "compared bytes")
    print(f"      {client} client on a restarted {master} master: writes again after {took:.1f} s")


# ---- checksums ----

def crc64(data):
    """CRC-64/ECMA-182, bit by bit: a second opinion."""
    crc = 0
    for byte in data:
        crc ^= byte << 56
        for _ in range(8):
            crc = (crc << 1) ^ (0x42F0E1EBA9EA3693 if crc >> 63 else 0)
            crc &= (1 << 64) - 1
    return crc


def stored_checksum(leader, key):
    """The checksum in the master's answer to GetReplicaList: optional<u64> at its end; None when there is none."""
    name, tenant = key.encode(), b"default"
    body = struct.pack("<I", 0x7CF91ED8) + bytes([len(name)]) + name + bytes([len(tenant)]) + tenant
    err, answer = harness.raw_call(leader.rpc, "GetReplicaList", body)
    equal(err, 0, "GetReplicaList")
    return struct.unpack("<Q", answer[-8:])[0] if answer[-9] == 1 else None


def checksums(peers, master, w, r):
    leader = peers.master(master)
    peers.node("upstream", leader, segment="64MB", env=CHECKSUM)
    writer, reader = (peers.store(who, leader, env=CHECKSUM) for who in (w, r))
    from agent import value
    equal(writer.put("sum", 1, 1000), 0, "put")
    equal(stored_checksum(leader, "sum"), crc64(value(1, 1000)), "stored checksum")
    equal(writer.put_batch(["b1", "b2"], [2, 3], [999, 1]), 0, "put_batch")
    equal(stored_checksum(leader, "b1"), crc64(value(2, 999)), "stored checksum of a batch")
    equal(writer.put("large", 4, 5 << 20), 0, "put")
    compared = reader.get("sum", 1, 1000) + reader.get_batch(["b1", "b2"], [2, 3], [999, 1])
    compared += reader.get("large", 4, 5 << 20) + reader.get_into("large", 4, 5 << 20)
    equal(writer.upsert("sum", 5, 1000), 0, "upsert")
    equal(stored_checksum(leader, "sum"), crc64(value(5, 1000)), "stored checksum of an upsert")
    compared += reader.get("sum", 5, 1000)
    equal(compared, 2 * (5 << 20) + 3000, "compared bytes")
    # One byte changes in the node's memory, behind the store's back.
    vandal = peers.engine("upstream")
    local = vandal.allocate(4096)
    vandal.fill(local, 77, 4096)
    endpoint, _, _, address = reader.replicas("sum")[0]
    equal(vandal.write(endpoint, local, address + 500, 1), 0, "write of one byte")
    equal(reader.refused("sum"), True, "a get of changed bytes")
    compared += reader.get("large", 4, 5 << 20)


# ---- objects that lie on several segments ----

STRIPES = {"MC_STORE_STRIPE_BYTES": str(32 << 20)}


def striped(peers):
    """Who does not know stripes is given the whole object or an error, never a part, and can replace them. Where the master
    knows none, the object lies in one piece, for both."""
    size = 32 << 20
    leader = peers.master("ours")
    for _ in range(2):
        peers.node("ours", leader, segment="64MB")
    writer, reader = peers.store("ours", leader, env=STRIPES), peers.store("upstream", leader)
    equal(writer.put("large", 1, size), 0, "put")
    equal(len(writer.replicas("large")), 2, "stripes")
    compared = writer.get("large", 1, size)
    equal(reader.exist("large"), 1, "it is there")
    equal(reader.refused("large"), True, "a get of a striped object")
    equal(reader.upsert("large", 2, 1 << 20), 0, "upsert by who knows no stripes")
    compared += reader.get("large", 2, 1 << 20) + writer.get("large", 2, 1 << 20)
    leader = peers.master("upstream")
    peers.node("ours", leader, segment="64MB")
    writer, reader = peers.store("ours", leader, env=STRIPES), peers.store("upstream", leader)
    equal(writer.put("large", 1, size), 0, "put")
    compared += reader.get("large", 1, size)
    equal(compared, 2 * size + (2 << 20), "compared bytes")


# ---- engines ----

def engines(peers, initiator, target, metadata="p2p", env=None, checked_writes=True):
    where = metadata_of(peers, metadata)
    a, b = peers.engine(initiator, where, env), peers.engine(target, where)
    compared = scenarios.engine_pair(a, b, settle=not checked_writes)
    compared += scenarios.engine_notify(a, b, settle=not checked_writes)
    if checked_writes:
        compared += scenarios.engine_rejects(a, b)
    print(f"      {initiator} initiates, {target} is the target: {compared >> 20} MiB compared")
    return compared


def engines_with_tls(peers, mode):
    """An engine of ours with certificates and one of upstream's, which speaks no TLS: under "prefer" they move bytes both ways,
    in plain; under "require" neither gets at the other's memory, and ours says why."""
    if not has_openssl():
        raise harness.Skip("no openssl program to make certificates with")
    folder = pathlib.Path(peers.directory)
    certificates(folder)
    env = tls_environment(folder, MC_TLS_PEERS=mode)
    ours, theirs, size, compared = peers.engine("ours", env=env), peers.engine("upstream"), 1 << 20, 0
    for i, (a, b) in enumerate(((ours, theirs), (theirs, ours))):
        mine, there = a.allocate(size), b.allocate(size)
        for operation in ("write", "read"):
            a.fill(mine, 10 * i + 1, size)
            b.fill(there, 10 * i + 2, size)
            try:
                status = getattr(a, operation)(b.engine_name(), mine, there, size)
            except AssertionError as why:  # the segment cannot even be opened
                status = str(why)
            equal(status == 0, mode == "prefer", f"{operation} by {a.name}: {status}")
            wrote, got = operation == "write", operation == "read"
            compared += b.check(there, 10 * i + (1 if status == 0 and wrote else 2), size)
            compared += a.check(mine, 10 * i + (2 if status == 0 and got else 1), size)
    equal(compared, 8 * size, "compared bytes")
    if mode == "require":
        log = open(ours.log).read()
        equal("TLS" in log and theirs.engine_name() in log, True, f"what ours says: {log}")


def engines_with_device_memory(peers):
    """Ours with memory of a (stand-in) device, which every way goes through host memory of ours, and upstream's engine, which
    knows nothing of that: each moves bytes into and out of the other's."""
    device = os.path.join(peers.build, "tests", "standins", "libstandin_cuda.so")
    ours, theirs = peers.engine("ours", env={"MOONCAKE_TEST_DEVICE": device}), peers.engine("upstream")
    size, compared = (3 << 20) + 5, 0
    for i, (a, b) in enumerate(((ours, theirs), (theirs, ours))):
        mine, there = a.allocate(size), b.allocate(size)
        for operation in ("write", "read"):
            a.fill(mine, 10 * i + 1, size)
            b.fill(there, 10 * i + 2, size)
            equal(getattr(a, operation)(b.engine_name(), mine, there, size), 0, f"{operation} by {a.name}")
            moved = 10 * i + (1 if operation == "write" else 2)
            compared += b.check(there, moved, size) + a.check(mine, moved, size)
    equal(compared, 8 * size, "compared bytes")


BLOCK, BATCH, THREADS = 65536, 16, 2


def bench_arguments(mode, **flags):
    base = dict(mode=mode, metadata_server="P2PHANDSHAKE", local_server_name="127.0.0.1", protocol="tcp",
                block_size=BLOCK, batch_size=BATCH, threads=THREADS, buffer_size=BLOCK * BATCH * THREADS, duration=2,
                logtostderr="true")
    return [f"--{k}={v}" for k, v in {**base, **flags}.items()]


def bench_target(peers, who):
    program, env = peers.program(who, "transfer_engine_bench")
    popen, log = peers.start(f"bench-target-{who}", [program, *bench_arguments("target")], env)
    peers.until("bench target", popen, lambda: re.search(r"listening on\s+[\d.]+:\d+", open(log).read()))
    return re.search(r"listening on\s+([\d.]+:\d+)", open(log).read())[1]


def run_bench(peers, who, segment, operation):
    program, env = peers.program(who, "transfer_engine_bench")
    verify = {"verify": "true"} if who == "ours" else {}
    popen, log = peers.start(f"bench-initiator-{who}", [program, *bench_arguments(
        "initiator", segment_id=segment, operation=operation, **verify)], env)
    equal(popen.wait(timeout=60), 0, f"status of the {operation} bench")
    done = re.search(r"batch count (\d+), throughput ([\d.]+)", open(log).read())
    equal(done is not None and int(done[1]) > 0, True, f"{operation} bench completes")
    print(f"      {who} {operation}: {done[1]} batches, {done[2]} GB/s")


def bench_programs(peers, initiator, target):
    name = bench_target(peers, target)
    for operation in ("read", "write"):
        run_bench(peers, initiator, name, operation)


def upstream_bench_on_our_memory(peers):
    """Upstream's program checks nothing, so the target's memory is looked at: reads leave it alone, writes reach all of
    it."""
    size, b = BLOCK * BATCH * THREADS, peers.engine("ours")
    memory = b.allocate(size)
    b.fill(memory, 1, size)
    run_bench(peers, "upstream", b.engine_name(), "read")
    equal(b.check(memory, 1, size), size, "compared bytes")
    run_bench(peers, "upstream", b.engine_name(), "write")
    equal(b.differs(memory, 1, size, 4096), size // 4096, "pages written")


def our_engine_on_bench_memory(peers):
    """The memory of upstream's bench target, written and read back by our engine in another order."""
    name, size, a, compared = bench_target(peers, "upstream"), BLOCK * BATCH * THREADS, peers.engine("ours"), 0
    theirs, mine, pieces = a.first_buffer(name), a.allocate(2 * size), range(0, size, BLOCK)
    for seed in range(3):
        a.fill(mine, seed, size)
        there = [theirs + size - BLOCK - p for p in pieces]
        equal(a.batch_write(name, [mine + p for p in pieces], there, [BLOCK] * len(pieces)), 0, "batch write")
        equal(a.batch_read(name, [mine + size + p for p in pieces], there, [BLOCK] * len(pieces)), 0, "batch read")
        compared += a.check(mine + size, seed, size)
    equal(compared, 3 * size, "compared bytes")


def http_metadata_by_hand(peers):
    """Both HTTP metadata servers give the same status and the same bytes (upstream's does not decode %2F in keys and ours
    does, so that here a key is always written in one way)."""
    def call(server, method, key, body=None):
        query = f"?key={key}" if key is not None else ""
        request = urllib.request.Request(server + query, method=method, data=body,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    value = b'{"name":"127.0.0.1:1","buffers":[]}'
    script = [("GET", "mooncake%2Fram%2Fx", None), ("PUT", "mooncake%2Fram%2Fx", value),
              ("GET", "mooncake%2Fram%2Fx", None), ("PUT", "mooncake%2Fram%2Fx", b"{}"),
              ("GET", "mooncake%2Fram%2Fx", None), ("DELETE", "mooncake%2Fram%2Fx", None),
              ("DELETE", "mooncake%2Fram%2Fx", None), ("PUT", "mooncake%2Frpc_meta%2Fx", value),
              ("PUT", "mooncake%2Frpc_meta%2Fx", value), ("PUT", "mooncake%2Frpc_meta%2Fx", b"{}"),
              ("GET", None, None), ("DELETE", "mooncake%2Frpc_meta%2Fx", None), ("GET", "mooncake%2Frpc_meta%2Fx", None)]
    servers = [peers.master(who, metadata_server=True).metadata for who in ("ours", "upstream")]
    for method, key, body in script:
        ours, theirs = (call(s, method, key, body) for s in servers)
        equal(ours, theirs, f"{method} {key}")

#!/usr/bin/env python3
"""Three times as much as the memory holds is put, and every byte is read back, most of it from the node's SSD; after the node
was killed and started again too."""
import json
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, Process, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
MEMORY = 32 << 20
MASTER = ("--enable_offload", "--default_kv_lease_ttl=200ms", "--eviction_high_watermark_ratio=0.8", "--client_ttl=2")
os.environ.update(MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1", MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(16 << 20))


def metric(master, name):
    found = re.search(rf"^{name} (\d+)$", http("GET", master.admin, "/metrics")[2], re.MULTILINE)
    check(found, f"no metric {name}")
    return int(found.group(1))


def written_in_place(node):
    port = node.wait_for(r"http port (\d+)").group(1)
    return int(re.search(r"^mooncake_client_ssd_borrowed_objects_total (\d+)$", http("GET", f"127.0.0.1:{port}", "/metrics")[2],
                         re.MULTILINE).group(1))


def node_on(master, directory):
    return Node(BIN, master, str(MEMORY), f"--ssd_offload_path={directory}", "--http", "--http_port=0")


def put(master, scratch, key, value, timeout=60):
    """Puts; while memory is full of what is not offloaded yet, tries again."""
    (scratch / "in").write_bytes(value)
    until = time.monotonic() + timeout
    while True:
        done = run([BIN / "mooncake", "put", f"--master={master.rpc}", key, scratch / "in"])
        if done.returncode == 0:
            return
        check(time.monotonic() < until, f"put of {key}: {done.stderr.decode()}")
        time.sleep(0.1)


def get(master, scratch, key):
    """The leases of this master are short: where a read takes longer, its client is to ask again, and so it does."""
    out = scratch / "out"
    out.unlink(missing_ok=True)
    until = time.monotonic() + 60
    while True:
        done = run([BIN / "mooncake", "get", f"--master={master.rpc}", key, out])
        if b"LEASE_EXPIRED" not in done.stderr or time.monotonic() > until:
            break
    check(done.returncode == 0, f"get of {key}: {done.stdout.decode()}{done.stderr.decode()}")
    return out.read_bytes()


def value_of(i):
    return os.urandom(64) * (8192 + 577 * (i % 13)) + bytes([i])


def wait_until(what, condition, timeout=30):
    until = time.monotonic() + timeout
    while not condition():
        check(time.monotonic() < until, f"not within {timeout} s: {what}")
        time.sleep(0.05)


def fill(master, scratch):
    values, total = {}, 0
    while total < 3 * MEMORY:
        key = f"key/{len(values)}"
        values[key] = value_of(len(values))
        put(master, scratch, key, values[key])
        total += len(values[key])
    wait_until("everything is offloaded", lambda: metric(master, "master_offload_success_total") == len(values))
    return values


def read_all(master, scratch, values):
    compared = 0
    for key, value in values.items():
        check(get(master, scratch, key) == value, f"{key} has other bytes")
        compared += len(value)
    check(compared > 0, "nothing was compared")
    return compared


def three_times_the_memory_and_a_killed_node(closing, scratch):
    master = Master(BIN, *MASTER)
    closing.append(master)
    directory = scratch / "ssd"
    directory.mkdir()
    node = node_on(master, directory)
    closing.append(node)
    values = fill(master, scratch)
    check(read_all(master, scratch, values) >= 3 * MEMORY, "too little was read")
    check(metric(master, "master_memory_evictions_total") > len(values) // 2, "too little was evicted")
    check_equal(metric(master, "master_key_count"), len(values), "keys")
    check(written_in_place(node) > 0, "nothing was written from where it lay")

    node.stop(9)
    wait_until("the node is forgotten", lambda: metric(master, "master_key_count") == 0)
    node = node_on(master, directory)
    closing.append(node)
    wait_until("the node's SSD is known again", lambda: metric(master, "master_key_count") == len(values))
    check_equal(metric(master, "master_offload_adopted_total"), len(values), "objects found")
    read_all(master, scratch, values)

    second = run([BIN / "mooncake", "node", f"--master={master.rpc}", "--host=127.0.0.1", "--segment_bytes=1MB",
                  f"--ssd_offload_path={directory}"])
    check(second.returncode != 0 and b"owns the directory" in second.stderr, f"a second owner: {second.stderr}")


def a_removed_object_does_not_come_back_by_a_late_write(closing, scratch):
    master = Master(BIN, *MASTER)
    closing.append(master)
    (scratch / "ssd").mkdir()
    closing.append(node_on(master, scratch / "ssd"))
    for i in range(20):
        put(master, scratch, f"gone/{i}", value_of(i))
        removed = run([BIN / "mooncake", "rm", f"--master={master.rpc}", "--force", f"gone/{i}"])
        check_equal(removed.returncode, 0, "rm")
    put(master, scratch, "stays", value_of(1))
    wait_until("the last one is offloaded", lambda: metric(master, "master_offload_success_total") >= 1)
    check_equal(metric(master, "master_key_count"), 1, "keys")


def offload_at_eviction(closing, scratch):
    master = Master(BIN, *MASTER, "--offload_on_evict")
    closing.append(master)
    (scratch / "ssd").mkdir()
    closing.append(node_on(master, scratch / "ssd"))
    put(master, scratch, "first", value_of(0))
    time.sleep(1.5)
    check_equal(metric(master, "master_offload_queued_total"), 0, "queued without an eviction")
    values = {}
    while metric(master, "master_memory_evictions_total") < 20:
        key = f"key/{len(values)}"
        values[key] = value_of(len(values))
        put(master, scratch, key, values[key])
        check(len(values) < 400, "nothing is evicted")
    read_all(master, scratch, values)


def without_enable_offload_it_is_refused(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    (scratch / "ssd").mkdir()
    done = run([BIN / "mooncake", "node", f"--master={master.rpc}", "--host=127.0.0.1", "--segment_bytes=1MB",
                f"--ssd_offload_path={scratch}/ssd"])
    check(done.returncode != 0 and b"UNABLE_OFFLOAD" in done.stderr, f"no refusal: {done.stderr}")


main(three_times_the_memory_and_a_killed_node, a_removed_object_does_not_come_back_by_a_late_write, offload_at_eviction,
     without_enable_offload_it_is_refused)

#!/usr/bin/env python3
"""`mooncake drain` empties a node while somebody reads all the time; then the node ends, and nothing is missing, not even what
only its SSD had. The endpoints behind it answer as upstream's do."""
import json
import os
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
JSON = "application/json; charset=utf-8"
JOBS = "/api/v1/drain_jobs"


def mooncake(*args, **kwargs):
    return run([BIN / "mooncake", *args], **kwargs)


def failure(code, message):
    return f'{{"success":false,"error_code":{code},"error_message":"{message}"}}'


def used(master, name):
    detail = json.loads(http("GET", master.admin, "/get_segments_detail")[2])
    return sum(s["allocator_used_bytes"] for s in detail["segments"] if s["segment_name"] == name)


def fill(master, scratch, count):
    values = {}
    for i in range(count):
        values[f"key/{i}"] = os.urandom(100_000 + 7919 * i % 400_000)
        (scratch / "in").write_bytes(values[f"key/{i}"])
        check_equal(mooncake("put", f"--master={master.rpc}", f"key/{i}", scratch / "in").returncode, 0, "put")
    return values


def read_all(master, values):
    for key, value in values.items():
        until = time.monotonic() + 60
        while True:  # the leases here are short: where a read takes longer, who reads is to ask again
            got = mooncake("get", f"--master={master.rpc}", key)
            if b"LEASE_EXPIRED" not in got.stderr or time.monotonic() > until:
                break
        check(got.returncode == 0 and got.stdout == value, f"{key}: {got.returncode} {got.stderr} {len(got.stdout)} bytes")


def a_node_leaves(closing, scratch):
    master = Master(BIN, "--default_kv_lease_ttl=500")
    nodes = [Node(BIN, master) for _ in range(3)]
    closing += [master, *nodes]
    values = fill(master, scratch, 30)
    check(used(master, nodes[0].name) > 0, "the first node holds something")
    stop, faults = threading.Event(), []

    def reader():
        while not stop.is_set():
            try:
                read_all(master, values)
            except Exception as why:
                faults.append(why)
                return

    thread = threading.Thread(target=reader)
    thread.start()
    drained = mooncake("drain", f"--master={master.rpc}", nodes[0].name, timeout=200)
    check_equal(drained.returncode, 0, f"drain: {drained.stderr}")
    check_equal(used(master, nodes[0].name), 0, "bytes on the drained node")
    check_equal(json.loads(http("GET", master.admin, f"/api/v1/segments/status?segment={nodes[0].name}")[2])["status_name"],
                "DRAINED", "status of the segment")
    check_equal(nodes[0].stop(), 0, "the drained node ends")
    read_all(master, values)
    stop.set()
    thread.join()
    check(not faults, f"the reader noticed: {faults}")
    job = drained.stdout.decode().strip()
    status, kind, body = http("GET", master.admin, f"{JOBS}/query?job_id={job}")
    check_equal((status, kind), (200, JSON), "query")
    answer = json.loads(body)
    check_equal(list(answer), ["success", "job_id", "type", "type_name", "status", "status_name", "created_at_ms_epoch",
                               "last_updated_at_ms_epoch", "segments", "succeeded_units", "failed_units", "blocked_units",
                               "active_units", "migrated_bytes", "disk_only_units", "message", "error_code", "error_message"], "members")
    check_equal((answer["status_name"], answer["segments"]), ("SUCCEEDED", [nodes[0].name]), "job")
    check(answer["succeeded_units"] > 0 and answer["migrated_bytes"] > 0, f"nothing was moved: {answer}")


def metric(master, name):
    return int(re.search(rf"^{name} (\d+)$", http("GET", master.admin, "/metrics")[2], re.MULTILINE).group(1))


def put_patiently(master, key, path):
    """Memory may be full of what is not on the SSD yet."""
    until = time.monotonic() + 60
    while (done := mooncake("put", f"--master={master.rpc}", key, path)).returncode != 0:
        check(time.monotonic() < until, f"put of {key}: {done.stderr}")
        time.sleep(0.1)


def its_ssd_goes_along(closing, scratch):
    os.environ["MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS"] = "1"
    master = Master(BIN, "--enable_offload", "--default_kv_lease_ttl=200", "--eviction_high_watermark_ratio=0.8")
    (scratch / "ssd").mkdir()
    node = Node(BIN, master, "16MB", f"--ssd_offload_path={scratch / 'ssd'}", "--http", "--http_port=0")
    closing += [master, node]
    values = {}
    for i in range(30): # twice its memory
        values[f"key/{i}"] = os.urandom(1_000_000 + 7919 * i)
        (scratch / "in").write_bytes(values[f"key/{i}"])
        put_patiently(master, f"key/{i}", scratch / "in")
    until = time.monotonic() + 60
    while metric(master, "master_offload_success_total") < len(values):
        check(time.monotonic() < until, "not everything is on the SSD")
        time.sleep(0.05)
    closing.append(Node(BIN, master, "128MB"))
    drained = mooncake("drain", f"--master={master.rpc}", node.name, timeout=200)
    check_equal(drained.returncode, 0, f"drain: {drained.stderr}")
    check(b"0 on SSD only" in drained.stderr, f"drain: {drained.stderr}")
    check(metric(master, "master_promotion_completed_total") > 0, "the SSD had nothing that memory had not")
    check_equal(node.stop(), 0, "the drained node ends")
    read_all(master, values)


def what_cannot_be(closing, scratch):
    master = Master(BIN)
    node = Node(BIN, master)
    closing += [master, node]

    def post(body):
        return http("POST", master.admin, JOBS, body)

    name = json.dumps(node.name)
    check(post("{")[0] == 400 and "Invalid JSON body: " in post("{")[2], f"broken JSON: {post('{')}")
    check(post("[]")[0] == 400, f"not an object: {post('[]')}")
    for body in ("{}", '{"segments":[]}', '{"segments":"x"}', f'{{"segments":[{name}],"target_segments":[{name}]}}',
                 f'{{"segments":[{name}],"max_concurrency":0}}', f'{{"segments":[{name}],"max_concurrency":"4"}}',
                 f'{{"segments":[{name}],"leave_disks":1}}'):
        check_equal(post(body), (400, JSON, failure(-600, "INVALID_PARAMS")), body)
    for body in ('{"segments":["nope"]}', f'{{"segments":[{name}],"target_segments":["nope"]}}'):
        check_equal(post(body), (404, JSON, failure(-101, "SEGMENT_NOT_FOUND")), body)
    # What cannot be sent is refused, not left out: the rest of the names would be another job.
    for names in ([node.name, "\udcff"], [node.name, "--to=\udcff"], ["nope", f"--to={node.name},\udcff"]):
        strange = mooncake("drain", f"--master={master.rpc}", *names, timeout=30)
        check(strange.returncode == 1 and b"not UTF-8" in strange.stderr, f"{names}: {strange}")
    (scratch / "in").write_bytes(b"x" * 1000)
    check_equal(mooncake("put", f"--master={master.rpc}", "stays", scratch / "in").returncode, 0, "put")
    begun = mooncake("drain", f"--master={master.rpc}", "--detach", node.name)
    job = begun.stdout.decode().strip()
    check_equal(begun.returncode, 0, f"drain --detach: {begun.stderr}")
    again = mooncake("drain", f"--master={master.rpc}", node.name)
    check(again.returncode == 1 and b"UNAVAILABLE_IN_CURRENT_STATUS" in again.stderr, f"drained twice: {again}")
    check(mooncake("put", f"--master={master.rpc}", "new", scratch / "in").returncode != 0, "a put found a draining node")
    check_equal(mooncake("drain", f"--master={master.rpc}", "--cancel", job).returncode, 0, "cancel")
    check_equal(mooncake("put", f"--master={master.rpc}", "new", scratch / "in").returncode, 0, "put after the cancel")
    check_equal(json.loads(http("GET", master.admin, f"{JOBS}/query?job_id={job}")[2])["status_name"], "CANCELED", "status")
    check_equal(http("POST", master.admin, f"{JOBS}/cancel?job_id={job}", ""),
                (409, JSON, failure(-1010, "UNAVAILABLE_IN_CURRENT_STATUS")), "cancelled twice")
    nowhere = mooncake("drain", f"--master={master.rpc}", "--timeout=1s", node.name)
    check(nowhere.returncode == 1 and b"--cancel" in nowhere.stderr, f"nowhere to go: {nowhere}")
    check_equal(mooncake("drain").returncode, 2, "no segment")
    check_equal(mooncake("drain", "--cancel=1-2", "x").returncode, 2, "segments and --cancel")


main(a_node_leaves, its_ssd_goes_along, what_cannot_be)

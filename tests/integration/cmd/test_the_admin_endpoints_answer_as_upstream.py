#!/usr/bin/env python3
"""Every endpoint of the master's HTTP administration and of the embedded metadata server gives upstream's status, type and
body (as seen from upstream's release), and looking grants no lease."""
import json
import pathlib
import re
import sys
import time
import urllib.error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
METRICS = pathlib.Path(__file__).resolve().parent / "upstream_metrics.txt"
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; version=0.0.4"


def cluster(closing):
    master = Master(BIN, "--default_kv_lease_ttl=100")
    node = Node(BIN, master, "16MB")
    closing += [master, node]
    for key, size in (("k1", 100), ("k2", 200)):
        done = run([BIN / "mooncake", "put", f"--master={master.rpc}", key], input_bytes=b"x" * size)
        check_equal(done.returncode, 0, f"put: {done.stderr}")
    return master, node


def failure(code, text):
    return f'{{"success":false,"error_code":{code},"error_message":"{text}"}}'


def fixed_answers(closing, scratch):
    master, _ = cluster(closing)
    want = {
        ("GET", "/health"): (200, JSON, '{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,'
                                        '"leader_address":null,"view_version":null}'),
        ("GET", "/role"): (200, "text/plain; charset=utf-8", "leader"),
        ("GET", "/ha_status"): (200, "text/plain; charset=utf-8", "serving"),
        ("GET", "/leader"): (200, JSON, '{"present":false,"leader_address":null,"view_version":null}'),
        ("GET", "/kv_events/status"): (200, JSON, '{"enabled":false,"published_batches":0,"published_events":0,'
                                                  '"dropped_events":0,"skipped_unparsed_keys":0}'),
        ("GET", "/query_key?key=nope"): (404, JSON, failure(-704, "OBJECT_NOT_FOUND")),
        ("GET", "/query_key"): (404, JSON, failure(-704, "OBJECT_NOT_FOUND")),
        ("GET", "/batch_query_keys"): (400, JSON, '{"success":false,"error":"No keys provided. Use ?keys=key1,key2,..."}'),
        ("GET", "/batch_query_keys?keys="): (400, JSON,
                                             '{"success":false,"error":"No keys provided. Use ?keys=key1,key2,..."}'),
        ("GET", "/query_segment"): (500, TEXT, "Failed to query segment"),
        ("GET", "/query_segment?segment=nope"): (500, TEXT, "Failed to query segment"),
        ("GET", "/api/v1/segments/status"): (400, JSON, failure(-600, "Missing segment query parameter")),
        ("GET", "/api/v1/segments/status?segment=nope"): (404, JSON, failure(-101, "SEGMENT_NOT_FOUND")),
        ("GET", "/api/v1/drain_jobs/query"): (400, JSON, failure(-600, "Missing or invalid job_id")),
        ("GET", "/api/v1/drain_jobs/query?job_id=1-x"): (400, JSON, failure(-600, "Missing or invalid job_id")),
        ("GET", "/api/v1/drain_jobs/query?job_id=1-2"): (404, JSON, failure(-1402, "JOB_NOT_FOUND")),
        ("POST", "/api/v1/drain_jobs/cancel?job_id=1-2"): (404, JSON, failure(-1402, "JOB_NOT_FOUND")),
        ("GET", "/api/v1/tenant_quotas"): (409, JSON, failure(-1011, "UNAVAILABLE_IN_CURRENT_MODE")),
        ("PUT", "/api/v1/tenant_quotas?tenant_id=t1"): (409, JSON, failure(-1011, "UNAVAILABLE_IN_CURRENT_MODE")),
        ("DELETE", "/api/v1/tenant_quotas?tenant_id=t1"): (409, JSON, failure(-1011, "UNAVAILABLE_IN_CURRENT_MODE")),
    }
    for (method, path), answer in want.items():
        check_equal(http(method, master.admin, path, "" if method in ("PUT", "POST") else None), answer, f"{method} {path}")
    check_equal(http("GET", master.admin, "/nosuch")[0], 404, "an unknown path")
    check(http("POST", master.admin, "/health", "")[0] in (404, 405), "a wrong method")
    check_equal(http("GET", master.admin, "/api/v1/remove_all")[0] in (404, 405), True, "remove_all by GET")


def keys(closing, scratch):
    master, node = cluster(closing)
    status, kind, body = http("GET", master.admin, "/get_all_keys")
    check_equal((status, kind, sorted(body.split("\n"))), (200, TEXT, ["", "k1", "k2"]), "get_all_keys")
    status, kind, body = http("GET", master.admin, "/query_key?key=k1")
    check_equal((status, kind), (200, JSON), "query_key")
    check(re.fullmatch(r'\{"success":true,"data":\[\{"size_":100,"buffer_address_":\d+,"protocol_":"tcp",'
                       r'"transport_endpoint_":"127\.0\.0\.1:\d+"\}\]\}', body), f"query_key: {body}")
    status, kind, body = http("GET", master.admin, "/batch_query_keys?keys=k1,k2,nope")
    check_equal((status, kind), (200, JSON), "batch_query_keys")
    data = json.loads(body)["data"]
    check_equal(list(data), ["k1", "k2", "nope"], "keys of the answer")
    check_equal(data["nope"], {"ok": False, "error": "OBJECT_NOT_FOUND", "values": None, "disk_values": None,
                               "local_disk_values": None, "nof_values": None}, "a missing key")
    check_equal(list(data["k2"]), ["ok", "error", "values", "disk_values", "local_disk_values", "nof_values"], "members")
    check_equal((data["k2"]["ok"], data["k2"]["error"], data["k2"]["values"][0]["size_"]), (True, None, 200), "k2")


def segments(closing, scratch):
    master, node = cluster(closing)
    check_equal(http("GET", master.admin, "/get_all_segments"), (200, TEXT, node.name + "\n"), "get_all_segments")
    check_equal(http("GET", master.admin, f"/query_segment?segment={node.name}"),
                (200, TEXT, f"{node.name}\nUsed(bytes): 300\nCapacity(bytes) : {16 << 20}\n"), "query_segment")
    check_equal(http("GET", master.admin, f"/api/v1/segments/status?segment={node.name}"),
                (200, JSON, f'{{"success":true,"segment":"{node.name}","status":1,"status_name":"OK","error_code":0,'
                            f'"error_message":""}}'), "segments/status")
    status, kind, body = http("GET", master.admin, "/get_segments_detail")
    check_equal((status, kind), (200, JSON), "get_segments_detail")
    detail = json.loads(body)
    check_equal(detail["total_segments"], 1, "total_segments")
    segment = detail["segments"][0]
    check_equal(list(segment), ["segment_name", "segment_id", "client_id", "base_address", "size_bytes", "size_human",
                                "te_endpoint", "protocol", "status", "allocator_used_bytes", "allocator_capacity_bytes",
                                "allocator_usage_percent"], "members")
    check_equal((segment["segment_name"], segment["size_bytes"], segment["size_human"], segment["status"],
                 segment["allocator_used_bytes"], segment["allocator_capacity_bytes"]),
                (node.name, 16 << 20, "0.015625 GiB", "OK", 300, 16 << 20), "the segment")
    check(re.fullmatch(r"\d+-\d+", segment["segment_id"]) and re.fullmatch(r"\d+-\d+", segment["client_id"]), "ids")
    check(re.fullmatch(r"0x[0-9a-f]+", segment["base_address"]), "base_address")
    check(abs(segment["allocator_usage_percent"] - 100 * 300 / (16 << 20)) < 1e-9, "usage")


def metrics(closing, scratch):
    master, node = cluster(closing)
    status, kind, text = http("GET", master.admin, "/metrics")
    check_equal((status, kind), (200, TEXT), "metrics")
    value = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    check_equal(int(value["master_key_count"]), 2, "master_key_count")
    check_equal(int(value["master_allocated_bytes"]), 300, "master_allocated_bytes")
    check_equal(int(value["master_total_capacity_bytes"]), 16 << 20, "master_total_capacity_bytes")
    check_equal(int(value[f'segment_allocated_bytes{{segment="{node.name}"}}']), 300, "segment_allocated_bytes")
    check_equal(int(value[f'segment_total_capacity_bytes{{segment="{node.name}"}}']), 16 << 20, "segment capacity")
    for line in text.splitlines():
        check(re.fullmatch(r"# (HELP|TYPE) .*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? -?[0-9.e+Inf-]+", line), f"not a metric: {line}")
    status, kind, text = http("GET", master.admin, "/metrics/summary")
    check_equal((status, kind), (200, TEXT), "summary")
    check("Keys: 2" in text and "Clients: 1" in text and text.startswith("role=leader"), f"summary: {text}")


def every_metric_of_upstreams_is_served(closing, scratch):
    """metrics.txt: upstream's names with their types, and for those that are not here why."""
    master, _ = cluster(closing)
    text = http("GET", master.admin, "/metrics")[2]
    served = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helped = re.findall(r"^# HELP (\S+) \S.*$", text, re.MULTILINE)
    check_equal(sorted(helped), sorted(served), "each has a text and a type, once")
    names = [line.split("#")[0].split() for line in METRICS.read_text().splitlines()]
    wanted = {name: kind for name, kind in filter(None, names)}
    check(len(wanted) > 180, f"{len(wanted)} names of upstream's")
    for name, kind in wanted.items():
        check_equal(served.get(name, "absent"), kind, name)


def looking_grants_no_lease(closing, scratch):
    master, _ = cluster(closing)
    time.sleep(0.3)  # leases of the puts, if any, are over
    for _ in range(3):
        http("GET", master.admin, "/query_key?key=k1")
        http("GET", master.admin, "/batch_query_keys?keys=k1,k2")
        http("GET", master.admin, "/get_all_keys")
    check_equal(http("POST", master.admin, "/api/v1/remove_all", ""), (200, JSON, '{"success":true,"removed_count":2}'),
                "remove_all without force")
    check_equal(http("GET", master.admin, "/get_all_keys")[2], "", "keys afterwards")
    bad = http("POST", master.admin, "/api/v1/remove_all?force=perhaps", "")
    check_equal(bad[0], 400, "remove_all with a wrong force")


def metadata_server(closing, scratch):
    master = Master(BIN, "--enable_http_metadata_server")
    closing.append(master)
    steps = [
        ("GET", "/metadata?key=a", None, 404, "metadata not found"),
        ("PUT", "/metadata?key=a", "v1", 200, "metadata updated"),
        ("GET", "/metadata?key=a", None, 200, "v1"),
        ("PUT", "/metadata?key=a", "v2", 200, "metadata updated"),
        ("GET", "/metadata?key=a", None, 200, "v2"),
        ("PUT", "/metadata?key=x/rpc_meta/y", "v1", 200, "metadata updated"),
        ("PUT", "/metadata?key=x/rpc_meta/y", "v1", 200, "metadata unchanged"),
        ("PUT", "/metadata?key=x/rpc_meta/y", "v2", 400, "Duplicate rpc_meta key not allowed"),
        ("GET", "/metadata?key=x%2Frpc_meta%2Fy", None, 200, "v1"),
        ("DELETE", "/metadata?key=a", None, 200, "metadata deleted"),
        ("DELETE", "/metadata?key=a", None, 404, "metadata not found"),
        ("GET", "/metadata", None, 400, "Missing key parameter"),
        ("PUT", "/metadata", "x", 400, "Missing key parameter"),
        ("GET", "/health", None, 200, "OK"),
    ]
    for method, path, body, status, text in steps:
        got = http(method, master.metadata, path, body)
        check_equal((got[0], got[2]), (status, text), f"{method} {path} {body}")
    check_equal(http("GET", master.metadata, "/metadata?key=x/rpc_meta/y")[1], "application/json", "type of a value")
    check(http("POST", master.metadata, "/metadata?key=b", "x")[0] in (404, 405), "POST")
    try:
        status = http("PUT", master.metadata, "/metadata?key=big", "x" * (5 << 20))[0]
        check(status in (413, 507), f"a value that is too large: {status}")
    except urllib.error.URLError:
        pass  # the server closed before it had read everything
    check_equal(http("GET", master.metadata, "/metadata?key=big")[0], 404, "a value that was refused")


def metadata_of_lost_clients_goes(closing, scratch):
    master = Master(BIN, "--enable_http_metadata_server", "--enable_metadata_cleanup_on_timeout", "--client_ttl=1")
    closing.append(master)
    node = Node(BIN, master, "16MB", f"--metadata=http://{master.metadata}/metadata")
    closing.append(node)
    key = f"/metadata?key=mooncake/ram/{node.name}"
    check_equal(http("GET", master.metadata, key)[0], 200, "the node's descriptor")
    node.process.kill()
    until = time.monotonic() + 30
    while http("GET", master.metadata, key)[0] != 404:
        check(time.monotonic() < until, "the descriptor of a killed node stays")
        time.sleep(0.05)


main(fixed_answers, keys, segments, metrics, every_metric_of_upstreams_is_served, looking_grants_no_lease, metadata_server, metadata_of_lost_clients_goes)

#!/usr/bin/env python3
"""A node's /metrics has every name of upstream's client with upstream's type, labels and buckets, and the numbers are those of
what was done: each RPC to the master by its name, each object on the SSD."""
import os
import pathlib
import re
import sys
import time
from collections import defaultdict

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Process, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
METRICS = pathlib.Path(__file__).resolve().parent / "upstream_client_metrics.txt"
TEXT = "text/plain; version=0.0.4"
BUCKETS = {
    "calls": [50, 75, 125, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 7000, 15000, 20000, 50000, 100000,
              200000, 500000, 1000000, 2000000, 5000000, 10000000, 20000000],
    "ssd": [50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000,
            30000000]}
OBJECTS = {"k1": 1000, "k2": 200000}


class Client(Process):
    """mooncake_client with an SSD and HTTP."""

    def __init__(self, master, directory, **more):
        super().__init__([BIN / "mooncake_client", f"--master_server_address={master.rpc}", "--metadata_server=P2PHANDSHAKE",
                          "--host=127.0.0.1", "--port=0", "--global_segment_size=64MB", "--enable_offload",
                          "--enable_http_server", "--http_port=0"],
                         {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(directory), "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
                          "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(4 << 20), **more})
        self.http = "127.0.0.1:" + self.wait_for(r"^node .* http port (\d+)").group(1)


def parse(text):
    """{name: type}, and {name: {labels as a frozenset of pairs: value}}."""
    series = defaultdict(dict)
    for line in text.splitlines():
        found = re.fullmatch(r"([a-z0-9_]+)(?:\{(.*)\})? (-?\d+)", line)
        check(found or line.startswith("# "), f"not a metric: {line}")
        if found:
            series[found[1]][frozenset(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))] = int(found[3])
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)), series


def check_histogram(name, series, bounds):
    """Each of its label sets has upstream's bounds in their order, rises, and ends with its count."""
    for labels, count in series[f"{name}_count"].items():
        buckets = [(dict(l)["le"], n) for l, n in series[f"{name}_bucket"].items() if l - {("le", dict(l)["le"])} == labels]
        check_equal([le for le, _ in buckets], [f"{b}.000000" for b in bounds] + ["+Inf"], f"bounds of {name}")
        numbers = [n for _, n in buckets]
        check_equal((numbers, numbers[-1]), (sorted(numbers), count), f"buckets of {name}")
        check(labels in series[f"{name}_sum"], f"{name}_sum")


def labels_of(name, kind, series):
    found = {"histogram": f"{name}_count", "summary": f"{name}_count"}.get(kind, name)
    return {frozenset(key for key, _ in labels) for labels in series[found]}


def every_name_is_served(closing, scratch):
    master = Master(BIN, "--enable_offload")
    closing.append(master)
    client = Client(master, scratch, MC_STORE_CLUSTER_ID='a"b')
    closing.append(client)
    status, content, text = http("GET", client.http, "/metrics")
    check_equal((status, content), (200, TEXT), "metrics")
    check('{client_mode="real",cluster_id="a\\"b"} 0' in text, "an escaped label")
    types, series = parse(text.replace('a\\"b', "ab"))
    wanted = [line.split() for line in METRICS.read_text().splitlines() if not line.startswith("#")]
    check_equal(len(wanted), 26, "names of upstream's")
    for name, kind, label, buckets in wanted:
        check_equal(types.get(name, "absent"), kind, name)
        if label != "op_name":  # a node by itself moves nothing
            check_equal(labels_of(name, kind, series), {frozenset({"client_mode", "cluster_id"} | ({label} - {"-"}))}, name)
        if kind == "summary":
            check_equal([dict(labels)["quantile"] for labels in series[name] if labels], ["0.500000", "0.900000", "0.990000"], name)
        if buckets != "-":
            check_histogram(name, series, BUCKETS[buckets])


def numbers(client):
    types, series = parse(http("GET", client.http, "/metrics")[2])
    return {(name, dict(labels).get("rpc_name", "")): value for name, of in series.items() for labels, value in of.items()
            if not any(key in ("le", "quantile") for key, _ in labels)}


def rpcs_and_the_ssd_are_counted(closing, scratch):
    master = Master(BIN, "--enable_offload")
    closing.append(master)
    client = Client(master, scratch)
    closing.append(client)
    for key, size in OBJECTS.items():
        done = run([BIN / "mooncake", "put", f"--master={master.rpc}", key], input_bytes=b"x" * size)
        check_equal(done.returncode, 0, f"put: {done.stderr}")
    rpcs = ("ServiceReady", "MountSegment", "Ping", "MountLocalDiskSegment", "PollRemoveAll", "SyncDisk", "OnDisk")
    until = time.monotonic() + 60
    while True:
        seen = numbers(client)
        missing = [rpc for rpc in rpcs if ("mooncake_client_rpc_latency_count", rpc) not in seen]
        if seen["mooncake_ssd_write_ops_total", ""] >= len(OBJECTS) and not missing:
            break
        check(time.monotonic() < until, f"not offloaded, or not asked: {missing}")
        time.sleep(0.1)
    size = sum(OBJECTS.values())
    for what in ("write", "total"):
        check_equal((seen[f"mooncake_ssd_{what}_ops_total", ""], seen[f"mooncake_ssd_{what}_bytes_total", ""]),
                    (len(OBJECTS), size), f"{what} on the SSD")
        for kind in ("latency_us", "latency_summary_us"):
            check(1 <= seen[f"mooncake_ssd_{what}_{kind}_count", ""] <= len(OBJECTS), f"times of {what}")
            check(seen[f"mooncake_ssd_{what}_{kind}_sum", ""] > 0, f"time of {what}")
    check_equal(seen["mooncake_ssd_read_ops_total", ""], 0, "read on the SSD")
    for rpc in rpcs:
        check(seen["mooncake_client_rpc_latency_sum", rpc] > 0, f"time of {rpc}")
        check(1 <= seen["mooncake_client_rpc_latency_count", rpc] <= seen["mooncake_client_rpc_count", rpc], f"answers of {rpc}")
    check(("mooncake_client_rpc_count", "PutStart") not in seen, "an RPC that nobody asked for")


def it_reports_what_it_did(closing, scratch):
    """The lines that upstream's variables ask for; without the rates the other of the two."""
    master = Master(BIN, "--enable_offload")
    closing.append(master)
    for number, (bandwidth, rates) in enumerate((("true", r" read_bytes_per_s=\d+ written_bytes_per_s=\d+"), ("0", ""))):
        directory = pathlib.Path(scratch) / str(number)
        directory.mkdir()
        client = Client(master, directory, MC_STORE_CLIENT_METRIC_INTERVAL="1",
                        MC_STORE_CLIENT_METRIC_BANDWIDTH=bandwidth, MC_LOG_LEVEL="INFO")
        closing.append(client)
        client.wait_for(rf"client report name=\S+ read_bytes=0 written_bytes=0{rates}\n")
        client.wait_for(r"client report name=\S+ requests:.* MountSegment=1/\d+/\d+")


def metrics_may_be_off(closing, scratch):
    master = Master(BIN, "--enable_offload")
    closing.append(master)
    client = Client(master, scratch, MC_STORE_CLIENT_METRIC="0")
    closing.append(client)
    for path in ("/metrics", "/metrics/summary"):
        check_equal(http("GET", client.http, path)[::2], (503, "metrics not available"), path)
    check_equal(http("GET", client.http, "/health")[0], 200, "health")


main(every_name_is_served, rpcs_and_the_ssd_are_counted, it_reports_what_it_did, metrics_may_be_off)

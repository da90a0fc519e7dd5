#!/usr/bin/env python3
"""A master with certificates for RPC and HTTP: nodes and commands that know its CA work as ever, others get a clear error and
nothing else. And a cluster that speaks TLS on every plane at once, into which nobody else looks."""
import json
import pathlib
import random
import re
import ssl
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from programs import (Master, Process, bin_dir, certificates, check, check_equal, has_openssl, main, run,  # noqa: E402
                      tls_environment)

BIN = bin_dir()


def mooncake(*args, env, input_bytes=None):
    return run([BIN / "mooncake", *args], input_bytes=input_bytes, env=env)


def everything_works_for_who_may(closing, scratch):
    certificates(scratch)
    master = Master(BIN, f"--rpc_tls_cert={scratch}/server.pem", f"--rpc_tls_key={scratch}/server.key", f"--rpc_tls_ca={scratch}/ca.pem")
    closing.append(master)
    env = tls_environment(scratch, "client")
    node = Process([BIN / "mooncake", "node", f"--master={master.rpc}", "--segment_bytes=64MB", "--host=127.0.0.1"], env=env)
    closing.append(node)
    node.wait_for("lends")
    at, value = f"--master={master.rpc}", bytes(range(256)) * 8000
    check_equal(mooncake("put", at, "key", env=env, input_bytes=value).returncode, 0, "put")
    check(mooncake("get", at, "key", env=env).stdout == value, "get returns every byte")
    check_equal(mooncake("ls", at, env=env).stdout, b"key\n", "ls")
    bench = mooncake("bench", at, "--value_bytes=10000", "--batch=16", "--threads=4", "--count=20", env=env)
    check(bench.returncode == 0, f"bench: {bench}")
    for what, wrong in (("plain", {}), ("no certificate", {"MC_TLS_CA": env["MC_TLS_CA"]}),
                        ("another CA", dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))):
        answer = mooncake("get", at, "--timeout=3s", "key", env=wrong)
        check(answer.returncode == 1 and answer.stdout == b"", f"{what}: {answer}")
    stranger = mooncake("get", at, "--timeout=60s", "key", env=dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))
    check(b"certificate verify failed" in stranger.stderr, f"another CA is named: {stranger}")
    missing = mooncake("get", at, "key", env=dict(env, MC_TLS_CA=f"{scratch}/nothing.pem"))
    check(b"nothing.pem" in missing.stderr and b"No such file" in missing.stderr, f"a missing file is named: {missing}")
    check(mooncake("get", at, "key", env=env).stdout == value, "and the cluster is as it was")


def admin_and_metadata_speak_it_too(closing, scratch):
    certificates(scratch)
    files = [f"--{plane}_tls_{what}={scratch}/{file}" for plane in ("rpc", "http")
             for what, file in (("cert", "server.pem"), ("key", "server.key"), ("ca", "ca.pem"))]
    master = Master(BIN, "--enable_http_metadata_server", *files)
    closing.append(master)
    env = tls_environment(scratch, "client")
    metadata = f"--metadata=https://{master.metadata}/metadata"
    node = Process([BIN / "mooncake", "node", f"--master={master.rpc}", metadata, "--segment_bytes=64MB", "--host=127.0.0.1"], env=env)
    closing.append(node)
    node.wait_for("lends")
    at, value = f"--master={master.rpc}", bytes(range(256)) * 800
    check_equal(mooncake("put", at, metadata, "key", env=env, input_bytes=value).returncode, 0, "put")
    check(mooncake("get", at, metadata, "key", env=env).stdout == value, "get returns every byte")
    for found in (at, f"--admin=https://{master.admin}"):
        stat = mooncake("stat", found, env=env)
        check(stat.returncode == 0 and b"1" in stat.stdout, f"stat by {found}: {stat}")
    plain = mooncake("stat", f"--admin={master.admin}", env=env)
    check(plain.returncode != 0 and master.admin.encode() in plain.stderr, f"plain: {plain}")
    nobody = mooncake("stat", f"--admin=https://{master.admin}", env={"MC_TLS_CA": env["MC_TLS_CA"]})
    check(nobody.returncode != 0, f"no certificate: {nobody}")
    stranger = mooncake("get", at, f"--metadata=http://{master.metadata}/metadata", "--timeout=3s", "key", env=env)
    check(stranger.returncode != 0 and stranger.stdout == b"", f"plain metadata: {stranger}")


def every_plane_of_a_whole_cluster(closing, scratch):
    """RPC, admin and metadata of the master, HTTP and RPC of nodes, handshake and data between peers."""
    certificates(scratch)

    def files(*planes):
        return [f"--{plane}_tls_{what}={scratch}/{file}" for plane in planes
                for what, file in (("cert", "server.pem"), ("key", "server.key"), ("ca", "ca.pem"))]

    env = tls_environment(scratch, MC_TLS_PEERS="require", MC_FORCE_TCP="1")  # so that no byte goes by shared memory
    master = Master(BIN, "--enable_http_metadata_server", *files("rpc", "http"))
    closing.append(master)
    at = [f"--master={master.rpc}", f"--metadata=https://{master.metadata}/metadata", "--host=127.0.0.1"]
    nodes = [Process([BIN / "mooncake", "node", *at, "--segment_bytes=64MB", "--http", "--http_port=0", "--listen=127.0.0.1",
                      "--port=0", *files("http")], env=env) for _ in range(2)]
    closing.extend(nodes)
    pages = ["127.0.0.1:" + node.wait_for(r"lends .* http port (\d+)").group(1) for node in nodes]
    value = random.Random(1).randbytes(3_000_001)
    check_equal(mooncake("put", *at, "--replicas=2", "key", env=env, input_bytes=value).returncode, 0, "put")
    check(mooncake("get", *at, "key", env=env).stdout == value, "get returns every byte")
    bench = mooncake("bench", *at, "--value_bytes=100000", "--batch=16", "--threads=2", "--count=20", env=env)
    check(bench.returncode == 0, f"bench: {bench}")
    trace = scratch / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": i, "input_length": 1536, "output_length": 1,
                                         "hash_ids": [i % 5, i % 7, 100 + i % 3]}) + "\n" for i in range(60)))
    replay = mooncake("replay", *at, "--noprogress", "--block_bytes=40000", f"--json={scratch}/r.json", trace, env=env)
    check(replay.returncode == 0, f"replay: {replay}")
    report = json.loads((scratch / "r.json").read_text())
    check(report["verified_bytes"] > 1_000_000 and report["mismatches"] == report["errors"] == 0, f"replay: {report}")
    for page in pages:
        context = ssl.create_default_context(cafile=f"{scratch}/ca.pem")
        context.load_cert_chain(f"{scratch}/client.pem", f"{scratch}/client.key")
        with urllib.request.urlopen(f"https://{page}/metrics", context=context, timeout=60) as answer:
            metrics = answer.read().decode()
        served = re.search(r'^mooncake_te_tcp_served_bytes_total\{op="write"\} (\d+)$', metrics, re.MULTILINE)
        check(served is not None and int(served.group(1)) > 3_000_000, f"bytes that the node served: {metrics}")
    for what, wrong in (("plain", {"MC_FORCE_TCP": "1"}),
                        ("plain between peers", dict(env, MC_TLS_PEERS="off")),
                        ("another CA", dict(env, MC_TLS_CA=f"{scratch}/stranger.pem"))):
        answer = mooncake("get", *at, "--timeout=3s", "key", env=wrong)
        check(answer.returncode == 1 and answer.stdout == b"", f"{what}: {answer}")
    check_equal(nodes[0].stop(9), -9, "a killed node")
    check(mooncake("get", *at, "key", env=env).stdout == value, "the other replica serves")
    check_equal(nodes[1].stop(), 0, "the node's end")


def a_master_without_its_key_does_not_start(closing, scratch):
    certificates(scratch)
    for flags, word in (([f"--rpc_tls_cert={scratch}/server.pem"], b"go together"),
                        ([f"--rpc_tls_cert={scratch}/server.pem", f"--rpc_tls_key={scratch}/client.key"], b"client.key"),
                        ([f"--http_tls_cert={scratch}/server.pem"], b"go together"),
                        ([f"--http_tls_cert={scratch}/none.pem", f"--http_tls_key={scratch}/server.key"], b"none.pem"),
                        ([f"--rpc_tls_cert={scratch}/none.pem", f"--rpc_tls_key={scratch}/server.key"], b"none.pem")):
        answer = run([BIN / "mooncake_master", "--port=0", "--metrics_port=0", *flags], timeout=20)
        check(answer.returncode == 1 and word in answer.stderr, f"{flags}: {answer}")


if not has_openssl():
    print("skipped: no openssl program to make certificates with")
    sys.exit(77)
main(everything_works_for_who_may, admin_and_metadata_speak_it_too, every_plane_of_a_whole_cluster,
     a_master_without_its_key_does_not_start)

#!/usr/bin/env python3
"""What people get wrong when they start things: a port that is taken, an address in the wrong shape, a configuration or
a trace with a mistake. Each is an exit status of 1 (or 2 for a wrong command line) and one message that names the port, the
text, or the file and line. And the addresses that are right work, IPv6 from end to end.
"""
import gzip
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, Process, bin_dir, check, check_equal, main, run  # noqa: E402

BIN = bin_dir()
VALUE = bytes(range(256)) * 4000
GOOD_LINE = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}'
PORTS = ["--port=0", "--metrics_port=0", "--http_metadata_server_port=0"]


def fails(args, *words, status=1):
    done = run(args, timeout=120)
    said = (done.stdout + done.stderr).decode(errors="replace")
    check_equal(done.returncode, status, f"{args}: {said}")
    for word in words:
        check(word in said, f"{args}: '{word}' is not in: {said}")


def taken_port(family=socket.AF_INET, host="127.0.0.1"):
    holder = socket.socket(family)
    holder.bind((host, 0))
    holder.listen()
    return holder, holder.getsockname()[1]


def every_port_that_is_taken(closing, scratch):
    holder, port = taken_port()
    local = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--http_metadata_server_host=127.0.0.1",
             "--enable_http_metadata_server"]
    said = ["port is in use", f"port={port}"]
    for program in ([BIN / "mooncake_master"], [BIN / "mooncake", "master"]):
        for i in range(3):
            ports = [p if k != i else p.replace("=0", f"={port}") for k, p in enumerate(PORTS)]
            fails([*program, *local, *ports], *said)
    for option in ("--port", "--admin_port", "--metadata_port"):
        others = [f"{o}=0" for o in ("--port", "--admin_port") if o != option]
        fails([BIN / "mooncake", "up", "--nodes=1", *others, f"{option}={port}"], *said)
    master = Master(BIN)
    closing.append(master)
    node = [BIN / "mooncake", "node", f"--master={master.rpc}", "--host=127.0.0.1", "--listen=127.0.0.1",
            "--segment_bytes=1MB"]
    fails([*node, f"--port={port}"], *said)
    fails([*node, "--http", f"--http_port={port}"], *said)
    client = [BIN / "mooncake_client", f"--master_server_address={master.rpc}", "--metadata_server=P2PHANDSHAKE",
              "--host=127.0.0.1", "--global_segment_size=1MB"]
    fails([*client, f"--port={port}"], *said)
    fails([*client, "--port=0", "--enable_http_server", f"--http_port={port}"], *said)
    fails([BIN / "transfer_engine_bench", "--mode=target", f"--local_server_name=127.0.0.1:{port}", "--buffer_size=1MB"],
          *said)
    holder.close()


WRONG = ["", ":", ":1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:99999999999", "127.0.0.1:-1", "127.0.0.1:1x",
         "127.0.0.1:+1", "127.0.0.1: 1", "127.0.0.1", "[::1]", "[::1:1", "::1:1", "[]:1", "a b:1", "127.0.0.1:1/x",
         "http://127.0.0.1:1", "[127.0.0.1]:1", "127.0.0.1:1 ", "[::1]1", "[::1]:", "[::g]:1", "[::1%]:1",
         "[::1%" + "x" * 300 + "]:1", "h" * 5000 + ":1"]


def addresses_in_every_shape(closing, scratch):
    value = scratch / "value"
    value.write_bytes(VALUE)
    for text in WRONG:
        shown = text if len(text) < 200 else text[:20]
        for args in (["put", "k", value], ["get", "k"], ["rm", "--force", "k"], ["node", "--segment_bytes=1MB"],
                     ["bench"]):
            fails([BIN / "mooncake", args[0], f"--master={text}", "--timeout=1s", *args[1:]], shown)
        if text and text not in ("127.0.0.1", "[::1]", "::1:1"):  # these have the default port
            for verb in ("ls", "stat", "top"):
                fails([BIN / "mooncake", verb, f"--admin={text}"], shown, status=2)
    for host in ("1.2.3.4", "no.such.host.invalid", "300.1.1.1", "::2"):  # addresses that are not this machine's
        fails([BIN / "mooncake_master", f"--rpc_address={host}", *PORTS], host)
        fails([BIN / "mooncake_master", f"--metrics_host={host}", *PORTS], host)
    fails([BIN / "mooncake_master", "--rpc_interface=nope0", *PORTS], "rpc_interface")
    for port in ("65536", "-1", "x", "", "1.5", "0x"):
        fails([BIN / "mooncake_master", f"--port={port}"], f"--port={port}", "0 to 65535")


def ipv6_from_end_to_end(closing, scratch):
    try:
        holder, _ = taken_port(socket.AF_INET6, "::1")
        holder.close()
    except OSError:
        print("skipped: no IPv6 here")
        return
    master = Process([BIN / "mooncake_master", *PORTS, "--enable_http_metadata_server", "--rpc_address=::1",
                      "--metrics_host=::1", "--http_metadata_server_host=::1"])
    closing.append(master)
    ready = master.wait_for(r"master ready rpc=::1:(\d+) .*admin=::1:(\d+) metadata=::1:(\d+)")
    rpc, admin, metadata = (f"[::1]:{ready.group(i)}" for i in (1, 2, 3))
    value = scratch / "value"
    value.write_bytes(VALUE)
    for way in ("P2PHANDSHAKE", f"http://{metadata}/metadata"):
        node = Process([BIN / "mooncake", "node", f"--master={rpc}", "--host=::1", "--segment_bytes=64MB",
                        f"--metadata={way}"])
        closing.append(node)
        node.wait_for(r"^node \[::1\]:\d+ lends")
        for host in ("::1", "[::1]", "localhost"):
            key = f"{way} {host}"
            at = [f"--master={rpc}", f"--metadata={way}", f"--host={host}"]
            put = run([BIN / "mooncake", "put", *at, key, value])
            check_equal(put.returncode, 0, f"put of {key}: {put.stderr.decode()}")
            got = run([BIN / "mooncake", "get", *at, key])
            check(got.returncode == 0 and got.stdout == VALUE, f"get of {key}: {got.stderr.decode()}")
            check(key in run([BIN / "mooncake", "ls", f"--admin={admin}"]).stdout.decode(), f"ls without {key}")
        check_equal(node.stop(), 0, "the node's end")
    both = Process([BIN / "mooncake_master", *PORTS, "--rpc_address=::", "--metrics_host=::"])  # IPv4 and IPv6 together
    closing.append(both)
    port = both.wait_for(r"master ready rpc=:::(\d+) ").group(1)
    for at in (f"127.0.0.1:{port}", f"[::1]:{port}", f"localhost:{port}"):
        node = Process([BIN / "mooncake", "node", f"--master={at}", "--host=127.0.0.1", "--segment_bytes=1MB"])
        closing.append(node)
        node.wait_for(r"lends")


YAML = [("no_such_option: 3\n", ":1: no_such_option: unknown"), ("\n\nrpc_port: x\n", ":3: rpc_port:"),
        ("eviction_ratio: 2\n", "from 0 to 1"), ("rpc_port: [1]\n", "plain value"), ("rpc_port: 1\nrpc_port: 2\n", ":2:"),
        ("a: [1,\n", "a: must"), ("- 1\n", ":1:"), ("hello", ":1:"), ("a: &a [*a]\n", ":1:"), ("a: \0\n", ":1:"),
        ("enable_ha: maybe\n", "true or false"), ("default_kv_lease_ttl: soon\n", "duration")]
JSON = [('{"no_such_option": 3}', "no_such_option: unknown"), ('{"rpc_port": "x"}', "rpc_port"),
        ('{"rpc_port": 99999}', "0 to 65535"), ('{"rpc_port": 1.5}', "whole number"), ('{"rpc_port": null}', "plain value"),
        ('{"rpc_port": {"a": 1}}', "plain value"), ('{"rpc_port": 1', ":1:"), ("[1]", "object"), ("", ":1:"),
        ('{"a":' * 100000, "depth"), ('{"rpc_port": 1, "rpc_port": 2}', "")]


def configurations_with_mistakes(closing, scratch):
    for suffix, cases in ((".yaml", YAML), (".json", JSON)):
        for text, word in cases:
            path = scratch / f"config{suffix}"
            path.write_text(text)
            fails([BIN / "mooncake_master", "--rpc_address=127.0.0.1", *PORTS, f"--config_path={path}"], str(path), word)
    fails([BIN / "mooncake_master", "--config_path=/no/such/file.yaml"], "/no/such/file.yaml", "No such file")
    fails([BIN / "mooncake_master", f"--config_path={scratch}"], str(scratch))


TRACE_MISTAKES = [
    ('{"timestamp": -1, "input_length": 10, "output_length": 1, "hash_ids": [1]}', "timestamp"),
    ('{"timestamp": "x", "input_length": 10, "output_length": 1, "hash_ids": [1]}', "timestamp"),
    ('{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": 7}', "hash_ids"),
    ('{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
    ('{"timestamp": 0, "input_length": 10, "output_length": 1}', "hash_ids"),
    ('{"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": [1]}', "input_length"),
    ('{"timestamp": 0, "input_length": 99999999999999, "output_length": 1, "hash_ids": [1]}', "input_length"),
    ('{"timestamp": 1e400, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "JSON"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [99999999999999999999]}', "JSON"),
    ("null", "JSON"), ("[]", "JSON"), ("{", "JSON"), ("\xff", "JSON"), ('{"a":' * 5000, "JSON")]


def traces_with_mistakes(closing, scratch):
    path = scratch / "trace.jsonl"
    for line, word in TRACE_MISTAKES:
        path.write_text(f"{GOOD_LINE}\n\n{line}\n{GOOD_LINE}\n", encoding="latin-1")
        fails([BIN / "mooncake", "replay", "--noprogress", path], f"{path}:3", word)
    packed = gzip.compress((GOOD_LINE + "\n").encode() * 5000)
    path = scratch / "trace.jsonl.gz"
    damaged = bytearray(packed)
    damaged[len(damaged) // 2] ^= 0xff
    for data, word in ((packed[:len(packed) // 2], "cut off"), (packed[:-4], ""), (bytes(damaged), ""), (b"", "no request"),
                       (gzip.compress(b""), "no request"), (b"\x1f\x8b", "")):
        path.write_bytes(data)
        fails([BIN / "mooncake", "replay", "--noprogress", path], str(path), word)
    fails([BIN / "mooncake", "replay", "--noprogress", "/no/such/trace"], "/no/such/trace", "No such file")
    fails([BIN / "mooncake", "replay", "--noprogress", scratch], str(scratch))
    check_equal(run([BIN / "mooncake", "replay"]).returncode, 2, "replay of nothing")


main(every_port_that_is_taken, addresses_in_every_shape, ipv6_from_end_to_end, configurations_with_mistakes,
     traces_with_mistakes)

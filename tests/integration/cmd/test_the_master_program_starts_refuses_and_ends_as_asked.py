#!/usr/bin/env python3
"""mooncake_master: flags in every shape, files, flagfiles; what is wrong is named and the exit status is 1; a port in use is
named; SIGTERM and SIGINT end it with 0; features that this build has not are refused; 64 started at once get 64 ports; it
stays small. mooncake_client and transfer_engine_bench: the same manners."""
import pathlib
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Process, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
ANY = ("--port=0", "--metrics_port=0")
SANITIZED = "asan" in str(BIN) or "tsan" in str(BIN)


def refused(*flags, words, program="mooncake_master"):
    done = run([BIN / program, *flags], timeout=30)
    text = (done.stdout + done.stderr).decode()
    check_equal(done.returncode, 1, f"{program} {flags}: exit status; said {text}")
    for word in words:
        check(word in text, f"{program} {flags}: '{word}' is not in: {text}")


def wrong_command_lines(closing, scratch):
    refused("--no_such_flag=1", words=["ERROR: unknown command line flag 'no_such_flag'"])
    refused("--eviction_ratio=1.5", words=["eviction_ratio", "1.5"])
    refused("--rpc_port=70000", words=["rpc_port", "70000"])
    refused("--default_kv_lease_ttl=ten", words=["default_kv_lease_ttl", "ten"])
    refused("--allocation_strategy=best", words=["allocation_strategy", "free_ratio_first"])
    refused("--cluster_id=a/b", words=["cluster_id"])
    refused("--rpc_interface=nosuch0", words=["rpc_interface"])
    refused("surplus", words=["surplus"])
    refused("--put_start_discard_timeout_sec=700", words=["put_start_release_timeout_sec"])


def features_that_are_not_there(closing, scratch):
    for flag in ("enable_ha", "enable_oplog", "enable_snapshot", "enable_snapshot_restore", "enable_cxl"):
        refused(*ANY, f"--{flag}", words=[flag, "this build"])
    refused(*ANY, "--memory_allocator=cachelib", words=["memory_allocator", "offset"])


def every_upstream_flag_is_accepted_with_its_default(closing, scratch):
    master = Master(BIN, "--eviction_ratio=0.0", "--eviction_high_watermark_ratio=1.0", "-enable_ha=false",
                    "--nooffload_on_evict", "--ha_backend_type", "etcd", "--cluster_id=mooncake_cluster",
                    "--snapshot_payload_store_type=local", "--snapshot_payload_backend_type=local",
                    "--kv_events_queue_capacity=65536", "--tenant_quota_connector_type=file", "--cxl_path=/dev/dax0.0",
                    "--cxl_size=8589934592", "--promotion_admission_threshold=2", "--pod_name=x", "--max_threads=16",
                    "--global_file_segment_size=9223372036854775807", "--client_live_ttl_sec=10", "--v=0",
                    "--logtostderr=true", "--minloglevel=0", "--log_dir=", "--rpc_thread_num=2")
    closing.append(master)
    check_equal(http("GET", master.admin, "/role")[2], "leader", "role")
    check_equal(master.stop(15), 0, "exit status after SIGTERM")


def files(closing, scratch):
    (scratch / "master.yaml").write_text("default_kv_lease_ttl: 5s\neviction_ratio: 0.1\nclient_live_ttl_sec: 60\n")
    master = Master(BIN, f"--config_path={scratch}/master.yaml")
    closing.append(master)
    check_equal(master.stop(2), 0, "exit status after SIGINT")
    (scratch / "master.json").write_text('{"eviction_high_watermark_ratio": 1.0, "rpc_thread_num": 1}')
    master = Master(BIN, f"--config_path={scratch}/master.json")
    closing.append(master)
    check("threads=1" in master.output(), "the file's thread count")
    (scratch / "wrong.yaml").write_text("default_kv_lease_ttl: 5s\nno_such_option: 1\n")
    refused(f"--config_path={scratch}/wrong.yaml", words=["no_such_option", "wrong.yaml"])
    refused(f"--config_path={scratch}/missing.yaml", words=["missing.yaml"])
    (scratch / "flags").write_text("# a comment\n--rpc_thread_num=1\n--vmodule=a=1\n\n--enable_http_metadata_server\n")
    master = Master(BIN, "--alsologtostderr", "-stderrthreshold", "0", "--nolog_prefix", "--max-log-size=9",
                    f"--flagfile={scratch}/flags")
    closing.append(master)
    check(master.metadata and "threads=1" in master.output(), f"the flagfile's flags: {master.output()}")
    for name in ("alsologtostderr", "stderrthreshold", "log_prefix", "max_log_size", "vmodule"):
        check(f"no effect here: --{name}\n" in master.output(), f"--{name} is named: {master.output()}")
    refused("--nostderrthreshold", words=["ERROR: unknown command line flag 'nostderrthreshold'"])
    refused(f"--flagfile={scratch}/missing", words=["flagfile", "missing"])
    refused(f"--flagfile={scratch}", words=["flagfile", str(scratch), "directory"])
    (scratch / "cut").write_bytes(b"--rpc_thread_num=1\n\0--no_such_flag\n")
    refused(f"--flagfile={scratch}/cut", words=["flagfile", "cut", "NUL"])
    refused("--flagfile=/dev/zero", words=["flagfile", "/dev/zero", "larger"])
    log = Process([BIN / "mooncake_master", *ANY, "--logtostderr=false", f"--log_dir={scratch}"])
    closing.append(log)
    until = time.monotonic() + 30
    while "master ready" not in (scratch / "mooncake_master.log").read_text() if \
            (scratch / "mooncake_master.log").exists() else True:
        check(time.monotonic() < until, "no log file")
        time.sleep(0.01)


def rpc_port_0_is_any_free_one(closing, scratch):
    at = [BIN / "mooncake_master", "--metrics_port=0", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
    ready = r"master ready rpc=\S+:(\d+) "
    with socket.socket() as taken:  # whether or not somebody has 50051, this one must not want it
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 50051))
            taken.listen()
        except OSError:
            pass
        for _ in range(2):
            master = Process([*at, "--rpc_port=0"])
            closing.append(master)
            check(int(master.wait_for(ready).group(1)) not in (0, 50051), "a port of its own")
        refused("--rpc_address=127.0.0.1", "--metrics_port=0", words=["50051", "in use"])
        refused("--rpc_port=0", "--port=50051", "--rpc_address=127.0.0.1", "--metrics_port=0", words=["50051", "in use"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = Process([*at, "--rpc_port=0", f"--port={port}"])  # upstream's words for "as --port says"
    closing.append(master)
    check_equal(int(master.wait_for(ready).group(1)), port, "the port of --port")


def a_port_in_use_is_named(closing, scratch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        at = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--http_metadata_server_host=127.0.0.1"]
        refused(*at, f"--port={port}", "--metrics_port=0", words=[str(port), "in use"])
        refused(*at, "--port=0", f"--metrics_port={port}", words=[str(port), "in use"])
        refused(*at, *ANY, "--enable_http_metadata_server", f"--http_metadata_server_port={port}",
                words=[str(port), "in use"])


def ipv6(closing, scratch):
    if not socket.has_ipv6:
        return
    try:
        socket.socket(socket.AF_INET6).bind(("::1", 0))
    except OSError:
        return
    master = Process([BIN / "mooncake_master", *ANY, "--rpc_address=::1", "--metrics_host=::1"])
    closing.append(master)
    port = master.wait_for(r"admin=::1:(\d+)").group(1)
    check_equal(http("GET", f"[::1]:{port}", "/role")[2], "leader", "role over IPv6")


def sixty_four_at_once(closing, scratch):
    masters = [Process([BIN / "mooncake_master", *ANY, "--rpc_thread_num=1"]) for _ in range(64)]
    closing.extend(masters)
    ports = [m.wait_for(r"rpc=\S+:(\d+) .*admin=\S+:(\d+)").groups() for m in masters]
    check_equal(len({p for pair in ports for p in pair}), 128, "different ports of 64 masters")
    for master in masters:
        master.process.terminate()
    check_equal([m.stop(0) for m in masters], [0] * 64, "exit statuses")


def it_is_small(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    status = dict(line.split(":", 1) for line in
                  pathlib.Path(f"/proc/{master.process.pid}/status").read_text().splitlines() if ":" in line)
    check(int(status["Threads"]) <= 8, f"threads: {status['Threads']}")
    if not SANITIZED:
        check(int(status["VmRSS"].split()[0]) < 12 * 1024, f"resident memory: {status['VmRSS']}")


def the_other_programs(closing, scratch):
    refused("-no_such_flag", words=["ERROR: unknown command line flag 'no_such_flag'"], program="mooncake_client")
    refused("--enable_offload", "--nostart_offload_rpc_server", words=["start_offload_rpc_server"],
            program="mooncake_client")
    refused("--protocol=nvlink", "--mode=target", words=["no transport nvlink"], program="transfer_engine_bench")
    refused("--mode=initiator", words=["segment_id"], program="transfer_engine_bench")
    master = Master(BIN, "--enable_http_metadata_server")
    closing.append(master)
    client = Process([BIN / "mooncake_client", "--host=127.0.0.1", "--port=0", f"--master_server_address={master.rpc}",
                      f"--metadata_server=http://{master.metadata}/metadata", "--global_segment_size=64 MB",
                      "--enable_http_server", "--http_port=0", "--threads=2"])
    closing.append(client)
    found = client.wait_for(r"^node (\S+) lends .* rpc port (\d+), http port (\d+)")
    web = f"127.0.0.1:{found.group(3)}"
    check_equal(http("GET", web, "/health"), (200, "application/json; charset=utf-8", '{"status":"healthy","code":0}'),
                "health of the node")
    check("# TYPE" in http("GET", web, "/metrics")[2], "metrics of the node")
    check_equal(http("GET", web, "/metrics/summary")[0], 200, "summary of the node")
    segments = http("GET", master.admin, "/get_all_segments")[2].split()
    check_equal(segments, [found.group(1)], "the node's segment")
    check_equal(client.stop(15), 0, "exit status of the node")
    check_equal(http("GET", master.admin, "/get_all_segments")[2], "", "segments after the node left")


def transfers(closing, scratch):
    for protocol in ("tcp", "auto"):
        size = [f"--protocol={protocol}", "--block_size=65536", "--batch_size=4", "--threads=2", "--buffer_size=16MB",
                "--local_server_name=127.0.0.1"]
        target = Process([BIN / "transfer_engine_bench", "--mode=target", *size])
        closing.append(target)
        name = target.wait_for(r"listening on (\S+)").group(1)
        for operation in ("read", "write"):
            done = run([BIN / "transfer_engine_bench", f"--segment_id={name}", f"--operation={operation}", "--duration=1",
                        "--verify", *size])
            text = done.stdout.decode()
            check(done.returncode == 0 and "Test completed: duration" in text and "Verified: 0 blocks wrong" in text,
                  f"{protocol} {operation}: {done}")
            check("batch count 0," not in text, f"nothing was moved: {text}")
        check_equal(target.stop(15), 0, "exit status of the target")


main(wrong_command_lines, features_that_are_not_there, every_upstream_flag_is_accepted_with_its_default, files, rpc_port_0_is_any_free_one,
     a_port_in_use_is_named, ipv6, sixty_four_at_once, it_is_small, the_other_programs, transfers)

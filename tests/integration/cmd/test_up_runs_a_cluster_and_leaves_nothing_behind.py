#!/usr/bin/env python3
"""`mooncake up` runs a master and nodes, says how to reach them, ends with 0 on a signal, and however it ends no node process
stays."""
import os
import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Process, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()


def children(pid):
    return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def up(closing, *flags):
    process = Process([BIN / "mooncake", "up", "--nodes=2", "--node_bytes=32MB", "--port=0", "--admin_port=0", *flags])
    closing.append(process)
    process.wait_for("Ctrl-C ends it")
    text = process.output()
    return process, re.search(r"master +(\S+)", text).group(1), re.search(r"http://(\S+)/metrics", text).group(1)


def nobody_stays(nodes):
    until = time.monotonic() + 30
    while any(is_running(pid) for pid in nodes):
        check(time.monotonic() < until, f"node processes stay: {[p for p in nodes if is_running(p)]}")
        time.sleep(0.01)


def a_cluster_that_works(closing, scratch):
    process, master, admin = up(closing, "--metadata_port=0")
    nodes = children(process.process.pid)
    check_equal(len(nodes), 2, "node processes")
    check_equal(len(http("GET", admin, "/get_all_segments")[2].split()), 2, "segments")
    metadata = re.search(r"http://(\S+)/metadata", process.output()).group(1)
    check_equal(http("GET", metadata, "/health")[2], "OK", "metadata server")
    check_equal(run([BIN / "mooncake", "put", f"--master={master}", "greeting"], b"hello").returncode, 0, "put")
    check_equal(run([BIN / "mooncake", "get", f"--master={master}", "greeting"]).stdout, b"hello", "get")
    check_equal(process.stop(signal.SIGINT), 0, "exit status after SIGINT")
    nobody_stays(nodes)


def killed(closing, scratch):
    process, _, _ = up(closing)
    nodes = children(process.process.pid)
    check_equal(len(nodes), 2, "node processes")
    check_equal(process.stop(signal.SIGKILL), -9, "exit status after SIGKILL")
    nobody_stays(nodes)


def nodes_that_die_are_told(closing, scratch):
    process, _, _ = up(closing)
    nodes = children(process.process.pid)
    for pid in nodes:
        os.kill(pid, signal.SIGKILL)
    process.wait_for("0 of 2 are left")
    check_equal(process.stop(0), 1, "exit status when every node has gone")


def a_port_in_use(closing, scratch):
    _, master, _ = up(closing)
    port = master.rsplit(":", 1)[1]
    second = run([BIN / "mooncake", "up", f"--port={port}", "--admin_port=0", "--nodes=1", "--node_bytes=16MB"])
    check(second.returncode == 1 and port.encode() in second.stderr, f"a port in use: {second}")


main(a_cluster_that_works, killed, nodes_that_die_are_told, a_port_in_use)

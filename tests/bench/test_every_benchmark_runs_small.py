#!/usr/bin/env python3
"""Every program in bench/ runs at its smallest and prints what its readers expect: so that a benchmark does not rot until the
day it is needed. No figure decides anything."""
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from programs import Master, bin_dir, check, has_openssl, main  # noqa: E402

BIN = bin_dir()
NUMBER = r"[\d.]+"

# Program: arguments, a line of its output, at least how many of them.
SMALL = {
    "bench_allocator": (["2000"], rf"^\S.*\s{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}$", 10),
    "bench_fit": (["1", "200"], rf"^\S.*\s{NUMBER}\s+{NUMBER}$", 5),
    "bench_master_core": (["1"], rf"^(Exist|GetReplicaList|PutStart\+PutEnd)\s+{NUMBER}\s+{NUMBER}$", 3),
    "bench_reactor": (["200"], rf"^(raw blocking sockets|reactor, \S+)\s+\d+ B\s+{NUMBER} us\s+{NUMBER} GB/s$", 6),
    "bench_wire_rpc": (["0.005"], rf"({NUMBER} M keys/s|{NUMBER} K calls/s|p50 {NUMBER} p99 {NUMBER} us)", 5),
    "bench_tcp": (["0.0005", "far"], rf"^(read|write)\s+\d+\s+\d+\s+\d+ \|\s+{NUMBER}\s+{NUMBER}\s+{NUMBER} \|", 20),
    "bench_checksum": (["1"], rf"^(put|get)\s+\d+ KiB:\s+{NUMBER} GB/s without,\s+{NUMBER} with: x{NUMBER}; ", 8),
    "bench_placement": (["20000"], rf"^\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+x{NUMBER}\s+{NUMBER}$", 20),
    "bench_fabric": (["0.005"], rf"^(read|write)\s+\d+\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}$", 8),
    "bench_sched": (["--seconds=0.005", "--rounds=1"], NUMBER, 5),
}
# Those that need more than a line here: the functions below; or hardware: they say so themselves.
OTHERS = {"bench_te", "bench_store", "bench_master_rpc", "bench_tier", "bench_offload"}
NEEDS_HARDWARE = {"bench_rdma"}


def output_of(program, args, timeout=240):
    answer = subprocess.run([BIN / program, *args], capture_output=True, text=True, timeout=timeout)
    check(answer.returncode == 0, f"{program} {args}: exit status {answer.returncode}\n{answer.stdout}{answer.stderr}")
    return answer.stdout


def check_lines(program, text, pattern, least):
    found = re.findall(pattern, text, re.MULTILINE)
    check(len(found) >= least, f"{program}: {len(found)} lines of figures, at least {least} are expected:\n{text}")


def the_simple_ones(closing, scratch):
    for program, (args, pattern, least) in SMALL.items():
        check_lines(program, output_of(program, args), pattern, least)


def the_transfer_engine(closing, scratch):
    report = scratch / "te.json"
    transports = "shm,shm-unregistered,tcp" + (",tls" if has_openssl() else "")
    text = output_of("bench_te", ["--seconds=0.005", "--rounds=1", "--sizes=4096,65536", "--batches=1,16", "--threads=1", "--set-mib=1",
                                  f"--transports={transports}", f"--json={report}"])
    check(re.search(NUMBER, text), text)
    check(len(json.loads(report.read_text())) > 0, "bench_te writes JSON")


def the_store(closing, scratch):
    report = scratch / "store.json"
    text = output_of("bench_store", ["--seconds", "0.0005", "--size", "65536", "--json", str(report)])
    check_lines("bench_store", text, rf"^(tcp|host|base|socket)\s+\w+\s+\d+ \wiB\s+batch\s+\d+\s+threads\s+\d+\s+{NUMBER} values/s", 20)
    check(len(json.loads(report.read_text())) > 20, "bench_store writes JSON")


def the_master(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    text = output_of("bench_master_rpc", [master.rpc, "0.02", "2", "4"])
    check(len(re.findall(NUMBER, text)) > 6, text)


def the_tier(closing, scratch):
    place = scratch / "tier"
    place.mkdir()
    text = output_of("bench_tier", [place, "--objects", "40", "--size", "4096", "--depth", "4", "--rounds", "1"])
    check_lines("bench_tier", text, rf"^tier\s+(write|read|read x1)\s+{NUMBER} GB/s", 4)


def the_offload(closing, scratch):
    place = scratch / "offload"
    place.mkdir()
    text = output_of("bench_offload", [place, "--rounds", "1", "--milliseconds", "20", "--size", "4096", "--segment", "64"])
    check_lines("bench_offload", text, rf"^(put|get) (alone|beside offloading):\s+{NUMBER} GB/s", 4)


def the_python_package(closing, scratch):
    if not (BIN.parent / "python" / "mooncake" / "store.abi3.so").exists():
        return
    report = scratch / "python.json"
    bench = pathlib.Path(__file__).resolve().parents[2] / "bench" / "bench_python.py"
    answer = subprocess.run([sys.executable, bench, BIN.parent, "--rounds", "1", "--seconds", "0.005", "--json", report],
                            capture_output=True, text=True, timeout=280)
    check(answer.returncode == 0, f"bench_python: {answer.stdout}{answer.stderr}")
    check_lines("bench_python", answer.stdout, rf"^\w.*\s{NUMBER}\s", 12)
    check(len(json.loads(report.read_text())["ours"]) >= 13, "bench_python writes JSON")


def none_is_forgotten(closing, scratch):
    known = set(SMALL) | OTHERS | NEEDS_HARDWARE
    built = {path.name for path in BIN.glob("bench_*")}
    check(built <= known, f"these have no line here: {sorted(built - known)}")


main(the_simple_ones, the_transfer_engine, the_store, the_master, the_tier, the_offload, the_python_package, none_is_forgotten)

#!/usr/bin/env python3
"""Machines that lack something: file descriptors, address space, memory, room for files, system calls that a container's
filter denies, /proc, room in /dev/shm. Programs either say what is missing, or do without it; what they move is whole.
"""
import contextlib
import ctypes
import os
import pathlib
import platform
import resource
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, Process, bin_dir, check, check_equal, main, run  # noqa: E402

BIN = bin_dir()
SANITIZED = "asan" in str(BIN) or "tsan" in str(BIN)
VALUE = bytes(range(256)) * 12000  # 3 MB
TRACE = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'


def limited(args, *limits, timeout=60):
    """Runs a program with (resource, value) limits; its exit status and what it said."""
    def apply():
        for what, value in limits:
            resource.setrlimit(what, (value, value))
    done = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=timeout, preexec_fn=apply)
    return done.returncode, done.stdout.decode(errors="replace")


def node_args(master, size):
    return [BIN / "mooncake", "node", f"--master={master.rpc}", "--host=127.0.0.1", f"--segment_bytes={size}"]


def client(verb, master, *args, **kwargs):
    return run([BIN / "mooncake", verb, f"--master={master.rpc}", "--host=127.0.0.1", *args], **kwargs)


def round_trip(master, scratch, key, prefix=(), env=None):
    value = scratch / "value"
    value.write_bytes(VALUE)
    common = [*prefix, BIN / "mooncake"]
    at = [f"--master={master.rpc}", "--host=127.0.0.1"]
    put = run([*common, "put", *at, key, value], env=env)
    check_equal(put.returncode, 0, f"put: {put.stderr.decode()}")
    got = run([*common, "get", *at, key], env=env)
    check_equal(got.returncode, 0, f"get: {got.stderr.decode()}")
    check(got.stdout == VALUE, f"{len(got.stdout)} bytes came back, not the {len(VALUE)} that were put")


# ---- limits ----


def more_memory_than_there_is(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    status, said = limited(node_args(master, 2 * total))
    check_equal(status, 1, f"a node that lends twice this machine's memory: {said}")
    check("memory" in said and str(total) in said, f"does not say how much there is: {said}")
    if not SANITIZED:  # their shadow needs all the address space
        status, said = limited(node_args(master, "1GB"), (resource.RLIMIT_AS, 400 << 20))
        check_equal(status, 1, f"a node with too little address space: {said}")
        check("out of memory" in said, f"a node with too little address space: {said}")
    closing.append(Node(BIN, master))
    round_trip(master, scratch, "still works")


def file_descriptors(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    worked = failed = 0
    for count in range(5, 40, 3):  # each place that can run out of them does
        status, said = limited([BIN / "mooncake_master", "--port=0", "--metrics_port=0", "--config_path=/no/such/file"],
                               (resource.RLIMIT_NOFILE, count))
        check_equal(status, 1, f"master with {count} files: {said}")
        value = scratch / "value"
        value.write_bytes(VALUE)
        status, said = limited([BIN / "mooncake", "put", f"--master={master.rpc}", "--host=127.0.0.1", "--timeout=2s",
                                f"k{count}", value], (resource.RLIMIT_NOFILE, count))
        check(status == 1 and said.strip(), f"put without a node, with {count} files: {status} {said}")
    node = Node(BIN, master)
    closing.append(node)
    for count in range(8, 60, 3):
        status, said = limited([BIN / "mooncake", "put", f"--master={master.rpc}", "--host=127.0.0.1", "--timeout=5s",
                                f"n{count}", scratch / "value"], (resource.RLIMIT_NOFILE, count))
        check(status in (0, 1), f"put with {count} files: {status} {said}")
        check(status == 0 or said.strip(), f"put with {count} files failed without a word")
        worked += status == 0
        failed += status == 1
        got = client("get", master, f"n{count}")
        check((got.returncode == 0) == (status == 0), f"put with {count} files said {status}, get {got.returncode}: {said}")
        check(status != 0 or got.stdout == VALUE, f"put with {count} files: other bytes")
    check(worked > 0 and failed > 0, f"{worked} worked and {failed} failed: the range of the test is wrong")


def descriptors(pid):
    """{number: what it is}; those that close meanwhile are left out."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return found


def closed_standard_descriptors(closing, scratch):
    """What the log and the output are written to is never a socket or a file of the program's own."""
    master = Master(BIN)
    closing.append(master)
    for args in ([BIN / "mooncake_master", "--port=0", "--metrics_port=0", "--rpc_address=127.0.0.1"],
                 node_args(master, "1MB")):
        program = subprocess.Popen([str(a) for a in args], preexec_fn=lambda: [os.close(fd) for fd in range(3)])
        try:
            until = time.monotonic() + 60
            while not any("socket" in what for what in descriptors(program.pid).values()):
                check(program.poll() is None and time.monotonic() < until, f"{args[0]} opens no socket")
                time.sleep(0.01)
            standard = [descriptors(program.pid).get(fd) for fd in range(3)]
            check_equal(standard, ["/dev/null"] * 3, f"standard descriptors of {args[0]}")
        finally:
            program.kill()
            program.wait()


def files_that_may_not_grow(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    status, said = limited(node_args(master, "64MB"), (resource.RLIMIT_FSIZE, 1 << 20))
    check_equal(status, 1, f"a node under ulimit -f: {said}")
    check("ERROR" in said, f"a node under ulimit -f: {said}")


def disks_that_are_full(closing, scratch):
    trace = scratch / "one.jsonl"
    trace.write_text(TRACE)
    for option in ("--json", "--html"):
        for place, why in (("/dev/full", "No space left"), (scratch / "no/such/folder/x", "No such file"),
                           (scratch, "Is a directory")):
            done = run([BIN / "mooncake", "replay", "--noprogress", "--nodes=1", f"{option}={place}", trace])
            said = done.stderr.decode()
            check(done.returncode == 1 and why in said and str(place) in said, f"{option}={place}: {done}")
    master = Master(BIN)
    closing.append(master)
    closing.append(Node(BIN, master))
    round_trip(master, scratch, "k")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BIN / "mooncake", "get", f"--master={master.rpc}", "--host=127.0.0.1", "k"], stdout=full,
                              stderr=subprocess.PIPE, timeout=60)
    check(done.returncode == 1 and b"No space left" in done.stderr, f"get to a full disk: {done}")


# ---- system calls that are denied ----

CALLS = {"process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319, "io_uring_setup": 425, "pidfd_open": 434}
EPERM, ENOSYS = 1, 38


def deny(names, errno):
    """In the child: these system calls fail from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    rules = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the number
    for name in names:
        rules.append(struct.pack("HBBI", 0x15, 0, 1, CALLS[name]))  # equal: the next, else skip it
        rules.append(struct.pack("HBBI", 0x06, 0, 0, 0x00050000 | errno))
    rules.append(struct.pack("HBBI", 0x06, 0, 0, 0x7fff0000))
    code = ctypes.create_string_buffer(b"".join(rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program) != 0:
        os._exit(77)


def denied_prefix(scratch, names, errno):
    """A command prefix that runs what follows without these system calls."""
    script = scratch / "deny.py"
    lines = ["import ctypes, os, struct, sys", f"CALLS = {CALLS!r}"]
    source = pathlib.Path(__file__).read_text()
    begin = source.index("def deny(")
    lines.append(source[begin:source.index("\n\ndef denied_prefix")])
    lines.append(f"deny({names!r}, {errno})\nos.execv(sys.argv[1], sys.argv[1:])\n")
    script.write_text("\n".join(lines))
    return [sys.executable, script]


def without_some_system_calls(closing, scratch):
    if platform.machine() != "x86_64":
        print("skipped: the numbers are x86_64's")
        return
    vm = ["process_vm_readv", "process_vm_writev"]
    for names, errno in ((vm, EPERM), (vm, ENOSYS), (["pidfd_open"], ENOSYS), (["io_uring_setup"], EPERM)):
        prefix = denied_prefix(scratch, names, errno)
        master = Master(BIN)
        closing.append(master)
        closing.append(Node(BIN, master))
        round_trip(master, scratch, "client without", prefix=prefix)
        closing[-1].stop()
        node = Process([*prefix, *node_args(master, "64MB")])
        closing.append(node)
        node.wait_for(r"^node (\S+) lends")
        round_trip(master, scratch, "node without")
        round_trip(master, scratch, "both without", prefix=prefix)
        node.stop()
    prefix = denied_prefix(scratch, ["memfd_create"], ENOSYS)
    node = Process([*prefix, *node_args(master, "64MB")])
    closing.append(node)
    said = node.wait_for(r"lends|memfd_create failed").group(0)
    if said == "lends":
        round_trip(master, scratch, "node without memfd")


def without_proc_and_shm(closing, scratch):
    if os.geteuid() != 0 or shutil.which("unshare") is None or run(["unshare", "-m", "true"]).returncode != 0:
        print("skipped: needs a mount namespace")
        return
    for hide in ("mount -t tmpfs tmpfs /proc", "mount -t tmpfs -o size=64k tmpfs /dev/shm"):
        if SANITIZED and "/proc" in hide:
            continue  # the sanitizers read it
        prefix = ["unshare", "-m", "sh", "-c", f"{hide} && exec \"$0\" \"$@\""]
        master = Master(BIN)
        closing.append(master)
        node = Process([*prefix, *node_args(master, "64MB")])
        closing.append(node)
        node.wait_for(r"^node (\S+) lends")
        round_trip(master, scratch, "k1")
        round_trip(master, scratch, "k2", prefix=prefix)


main(more_memory_than_there_is, file_descriptors, closed_standard_descriptors, files_that_may_not_grow, disks_that_are_full,
     without_some_system_calls, without_proc_and_shm)

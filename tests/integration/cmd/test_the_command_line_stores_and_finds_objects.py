#!/usr/bin/env python3
"""`mooncake` put, get, ls, stat, rm, bench and top do what they say against a master and two node processes; without a cluster
each says clearly that there is none."""
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()


def mooncake(*args, **kwargs):
    return run([BIN / "mooncake", *args], **kwargs)


def cluster(closing, nodes=2, *flags):
    master = Master(BIN, *flags)
    closing.append(master)
    for _ in range(nodes):
        closing.append(Node(BIN, master))
    return master


def round_trip(closing, scratch):
    master = cluster(closing)
    at = f"--master={master.rpc}"
    for size in (1, 4096, 1_000_003):
        value = os.urandom(size)
        (scratch / "in").write_bytes(value)
        check_equal(mooncake("put", at, f"key-{size}", scratch / "in").returncode, 0, "put of a file")
        check_equal(mooncake("get", at, f"key-{size}", scratch / "out").returncode, 0, "get to a file")
        check((scratch / "out").read_bytes() == value, f"{size} bytes came back differently")
    check_equal(mooncake("put", at, "from/stdin", input_bytes=b"hello").returncode, 0, "put of standard input")
    check_equal(mooncake("get", at, "from/stdin").stdout, b"hello", "get to standard output")
    kept = mooncake("put", at, "from/stdin", input_bytes=b"other")
    check(kept.returncode == 0 and b"keeps its object" in kept.stderr, f"put of a key that exists: {kept}")
    check_equal(mooncake("put", at, "--upsert", "from/stdin", input_bytes=b"other").returncode, 0, "upsert")
    check_equal(mooncake("get", at, "from/stdin").stdout, b"other", "get after upsert")


def lives_and_conditions(closing, scratch):
    master = cluster(closing, 1)
    at, admin = f"--master={master.rpc}", f"--admin={master.admin}"
    first = ("put", at, "--if_absent", "--ttl=1h", "k")
    check_equal(mooncake(*first, input_bytes=b"one").returncode, 0, "put of an absent key")
    again = mooncake(*first, input_bytes=b"two")
    check(again.returncode == 1 and b"OBJECT_ALREADY_EXISTS" in again.stderr, f"put of a present key: {again}")
    stat = mooncake("stat", admin, "k").stdout.decode()
    check("ends in 3" in stat and "  version " in stat, f"stat: {stat}")
    version = stat.split("  version ")[1].split(",")[0]
    check_equal(mooncake("put", at, f"--if_version={version}", "k", input_bytes=b"two").returncode, 0, "put of a version")
    stale = mooncake("put", at, f"--if_version={version}", "k", input_bytes=b"three")
    check(stale.returncode == 1 and b"INVALID_VERSION" in stale.stderr, f"put of a version that is gone: {stale}")
    check_equal(mooncake("get", at, "k").stdout, b"two", "get after it")
    check("ends in" not in mooncake("stat", admin, "k").stdout.decode(), "the new object has no end")
    for wrong in (("--if_version=x1",), ("--if_version=-1",), ("--if_version=1", "--if_absent")):
        said = mooncake("put", at, *wrong, "k", input_bytes=b"x")
        check(said.returncode == 2 and b"--if_version" in said.stderr, f"{wrong}: {said}")
    check_equal(mooncake("put", at, "--ttl=1ms", "short", input_bytes=b"x").returncode, 0, "put of a short life")
    until = time.monotonic() + 60
    while (gone := mooncake("get", at, "short")).returncode == 0 and time.monotonic() < until:
        time.sleep(0.01)
    check(b"OBJECT_NOT_FOUND" in gone.stderr, f"the end of a short life: {gone}")


def listing_and_removing(closing, scratch):
    master = cluster(closing, 1, "--default_kv_lease_ttl=50")
    at, admin = f"--master={master.rpc}", f"--admin={master.admin}"
    for key in ("a/1", "a/2", "b/1"):
        check_equal(mooncake("put", at, key, input_bytes=key.encode()).returncode, 0, f"put {key}")
    check_equal(sorted(mooncake("ls", admin).stdout.decode().split()), ["a/1", "a/2", "b/1"], "ls")
    check_equal(sorted(mooncake("ls", admin, "a/*").stdout.decode().split()), ["a/1", "a/2"], "ls a/*")
    check_equal(sorted(mooncake("ls", admin, "a/").stdout.decode().split()), ["a/1", "a/2"], "ls of a prefix")
    check_equal(mooncake("ls", admin, "--tenant=other").stdout, b"", "ls of another tenant")
    pages, after = [], ""
    while True:
        page = mooncake("ls", admin, "--limit=1", f"--after={after}")
        check_equal(page.returncode, 0, f"a page: {page.stderr}")
        pages += page.stdout.decode().split()
        if b"--after=" not in page.stderr:
            break
        after = page.stderr.decode().split("--after=")[1].strip()
    check_equal(sorted(pages), ["a/1", "a/2", "b/1"], "ls page by page")
    strange = mooncake("ls", admin, "--after=nonsense")
    check(strange.returncode == 1 and b"not a cursor" in strange.stderr, f"a strange cursor: {strange}")
    stat = mooncake("stat", admin, "b/1").stdout.decode()
    check("3 bytes in memory of 127.0.0.1:" in stat, f"stat of a key: {stat}")
    whole = mooncake("stat", admin).stdout.decode()
    check("3 objects" in whole and "1 segments" in whole, f"stat of the cluster: {whole}")
    check_equal(mooncake("rm", at, "--force", "a/1").returncode, 0, "rm")
    gone = mooncake("get", at, "a/1")
    check(gone.returncode == 1 and b"OBJECT_NOT_FOUND" in gone.stderr and gone.stdout == b"", f"get of a removed key: {gone}")
    missing = mooncake("rm", at, "a/1")
    check(missing.returncode == 1 and b"OBJECT_NOT_FOUND" in missing.stderr, f"rm of a removed key: {missing}")
    leased = mooncake("rm", at, "--regex", "^no-such-key$")
    check(leased.stdout == b"0 removed\n" and b"--force" in leased.stderr, f"rm that passes over leases: {leased}")
    broken = mooncake("rm", at, "--regex", "(")
    check(broken.returncode == 1 and b"not a regular expression" in broken.stderr, f"rm of a broken pattern: {broken}")
    check_equal(mooncake("rm", at, "--force", "--regex", "^a/").stdout, b"1 removed\n", "rm --regex")
    check_equal(mooncake("rm", at, "--force", "--all").stdout, b"1 removed\n", "rm --all")
    check_equal(mooncake("ls", admin).stdout, b"", "ls of nothing")


def bench_and_top(closing, scratch):
    master = cluster(closing)
    at, admin = f"--master={master.rpc}", f"--admin={master.admin}"
    for batch in (1, 16):
        bench = mooncake("bench", at, "--value_bytes=10000", f"--batch={batch}", "--threads=2", "--count=20")
        check(bench.returncode == 0 and bench.stdout.startswith(b"put") and b"\nget" in bench.stdout, f"bench: {bench}")
    check_equal(http("GET", master.admin, "/get_all_keys")[2], "", "keys after bench")
    top = mooncake("top", admin, "--count=2", "--interval=100ms")
    check(top.returncode == 0 and top.stdout.count(b"keys a second") == 2, f"top: {top}")


def the_admin_endpoint_is_found(closing, scratch):
    master = cluster(closing)
    at = f"--master={master.rpc}"
    check_equal(mooncake("put", at, "found", input_bytes=b"x").returncode, 0, "put")
    check_equal(mooncake("ls", at).stdout, b"found\n", "ls with the master's address only")
    check(b"1 objects" in mooncake("stat", at).stdout, "stat with the master's address only")
    check(b"1 objects" in mooncake("top", at, "--count=1").stdout, "top with the master's address only")
    wrong = mooncake("ls", "--master=not:an:address")
    check(wrong.returncode == 2 and b"'not:an:address' is no address" in wrong.stderr, f"ls: {wrong}")


def without_a_cluster(closing, scratch):
    for verb in (["put", "key"], ["get", "key"], ["rm", "key"], ["bench"]):
        answer = mooncake(verb[0], "--master=127.0.0.1:1", "--timeout=2s", *verb[1:], input_bytes=b"x")
        check(answer.returncode == 1 and b"no master answers at 127.0.0.1:1" in answer.stderr, f"{verb}: {answer}")
    for verb in ("ls", "stat", "top"):
        answer = mooncake(verb, "--admin=127.0.0.1:1")
        check(answer.returncode == 1 and b"127.0.0.1:1 does not answer" in answer.stderr, f"{verb}: {answer}")
        # Nobody to ask: the default port is tried, and the message says all of it.
        answer = mooncake(verb, "--master=127.87.65.43:1")
        for part in (b"127.87.65.43:9003 does not answer", b"the master at 127.87.65.43:1 does not answer", b"--admin host:port"):
            check(answer.returncode == 1 and part in answer.stderr, f"{verb}: {part} in {answer}")


def command_lines(closing, scratch):
    help_text = mooncake("--help").stdout.decode()
    for verb in ("up", "replay", "master", "node", "put", "get", "ls", "rm", "stat", "top", "bench", "links", "explain",
                 "doctor"):
        check(f"  {verb} " in help_text, f"{verb} is not in the help")
        own = mooncake(verb, "--help")
        check(own.returncode == 0 and b"Usage: mooncake" in own.stdout, f"{verb} --help: {own}")
        wrong = mooncake(verb, "--no_such_option=1")
        check(wrong.returncode != 0 and b"no_such_option" in wrong.stderr, f"{verb} with a wrong option: {wrong}")
    check_equal(mooncake("no-such-verb").returncode, 2, "an unknown verb")
    for verb in ("up", "node", "top", "bench", "doctor", "topo"):  # no word is ignored without a word
        strange = mooncake(verb, "5")
        check(strange.returncode == 2 and b"unexpected argument '5'" in strange.stderr, f"{verb} 5: {strange}")
    check(mooncake("--version").stdout.startswith(b"mooncake "), "--version")
    doctor = mooncake("doctor")
    check(b"open files" in doctor.stdout and b"port 50051" in doctor.stdout, f"doctor: {doctor}")


main(round_trip, lives_and_conditions, listing_and_removing, bench_and_top, the_admin_endpoint_is_found, without_a_cluster, command_lines)

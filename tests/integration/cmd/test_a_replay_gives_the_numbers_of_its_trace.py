#!/usr/bin/env python3
"""`mooncake replay` on a cluster of its own, and on a given one: the hit rates of a cache without limit when there is room for
everything, fewer and evictions when there is not, every byte verified, a page without references to the network."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, main, run  # noqa: E402

BIN = bin_dir()
DATA = pathlib.Path(__file__).resolve().parents[3] / "data/traces"
CONVERSATION = DATA / "conversation_trace.jsonl.gz"


def replay(scratch, *args):
    done = run([BIN / "mooncake", "replay", "--noprogress", f"--json={scratch}/out.json", f"--html={scratch}/out.html",
                *args], timeout=280)
    check_equal(done.returncode, 0, f"replay: {done.stderr.decode()}")
    return json.loads((scratch / "out.json").read_text())


def near(got, want, what, tolerance=1e-5):
    check(abs(got - want) <= tolerance, f"{what}: got {got}, want {want}")


def whole_is_right(got, what):
    check_equal((got["mismatches"], got["errors"]), (0, 0), f"{what}: mismatches and errors")
    check(got["complete"], f"{what}: not complete")
    check_equal(got["verified_bytes"], got["gets"] * got["block_bytes"], f"{what}: verified bytes")
    check(got["verified_bytes"] > 0 and got["seconds"] > 0, f"{what}: nothing was read")


def room_for_everything(closing, scratch):
    got = replay(scratch, CONVERSATION, "--requests=1500", "--block_bytes=4KB", "--concurrency=8", "--nodes=3")
    whole_is_right(got, "embedded")
    check_equal(got["requests"], 1500, "requests")
    near(got["hit_rate_blocks"], got["infinite_cache_hit_rate_blocks"], "hit rate by blocks")
    near(got["hit_rate_tokens"], got["infinite_cache_hit_rate_tokens"], "hit rate by tokens")
    check_equal(got["gets"] + got["puts"], got["blocks"], "each block is read or written")
    check_equal((got["puts_refused"], got["evicted_blocks"]), (0, 0), "refused and evicted")
    check(got["memory_used_bytes"] >= got["puts"] * 4096, "the master counts the blocks")
    page = (scratch / "out.html").read_text()
    check(page.endswith("</html>\n") and "://" not in page, "the page refers to something outside")
    check_equal(page.count("<svg"), 6, "plots")


def sessions_on_a_given_cluster(closing, scratch):
    master = Master(BIN)
    closing.append(master)
    closing.append(Node(BIN, master, "256MB"))
    sessions = [DATA / "agentic/trace_0002.json.gz", DATA / "agentic/trace_0317.json.gz"]
    common = [*sessions, f"--master={master.rpc}", f"--admin={master.admin}", "--block_bytes=2KB", "--key_prefix=same/"]
    first = replay(scratch, *common)
    whole_is_right(first, "first run")
    near(first["hit_rate_blocks"], first["infinite_cache_hit_rate_blocks"], "hit rate by blocks")
    again = replay(scratch, *common)
    whole_is_right(again, "second run")
    near(again["hit_rate_blocks"], 1, "the second run finds everything")
    check_equal(again["puts"], 0, "puts of the second run")


def too_little_room(closing, scratch):
    master = Master(BIN, "--default_kv_lease_ttl=500")
    closing.append(master)
    closing.append(Node(BIN, master, "32MB"))
    got = replay(scratch, CONVERSATION, "--requests=1500", f"--master={master.rpc}", f"--admin={master.admin}",
                 "--block_bytes=8KB", "--concurrency=2")
    whole_is_right(got, "with evictions")
    check(got["evicted_blocks"] > 0, "nothing was evicted")
    check(got["hit_rate_blocks"] < got["infinite_cache_hit_rate_blocks"], "a small cache hits as often as an infinite one")
    check(got["hit_rate_blocks"] > 0, "a small cache hits nothing")
    check(got["memory_used_bytes"] <= got["memory_capacity_bytes"], "more memory used than there is")


def broken_input(closing, scratch):
    bad = scratch / "bad.jsonl"
    bad.write_text('{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0\n')
    done = run([BIN / "mooncake", "replay", bad])
    check(done.returncode == 1 and f"{bad}:2: not JSON" in done.stderr.decode(), f"a broken line: {done}")
    done = run([BIN / "mooncake", "replay", "--model=no-such", CONVERSATION])
    check(done.returncode == 2 and b"no model 'no-such'" in done.stderr, f"a wrong model: {done}")
    done = run([BIN / "mooncake", "replay", "--model=llama-3.1-70b", CONVERSATION])
    check(done.returncode == 1 and b"do not fit" in done.stderr, f"more than there is memory: {done}")
    done = run([BIN / "mooncake", "replay"])
    check(done.returncode == 2 and b"which trace" in done.stderr, f"no trace: {done}")


main(room_for_everything, sessions_on_a_given_cluster, too_little_room, broken_input)

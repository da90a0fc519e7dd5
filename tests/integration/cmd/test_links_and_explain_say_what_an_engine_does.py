#!/usr/bin/env python3
"""`mooncake links` shows the rails of a running node's engine; `mooncake explain` says how a transfer to it would go, by the
default, by a policy and by a hint. Both say clearly why when they cannot."""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, main, run  # noqa: E402

BIN = bin_dir()


def mooncake(*args, fails=False, **kwargs):
    done = run([BIN / "mooncake", *args], **kwargs)
    check((done.returncode != 0) == fails, f"{args}: {done}")
    return (done.stderr if fails else done.stdout).decode()


def node_of(closing):
    master = Master(BIN)
    closing.append(master)
    closing.append(Node(BIN, master, "64MB", "--http=true", "--http_port=0"))
    return closing[-1]


def engine_of(node):
    return node.wait_for(r"engine started name=(\S+)").group(1)


def links(closing, scratch):
    node = node_of(closing)
    port = node.wait_for(r"http port (\d+)").group(1)
    rails = {link["rail"]: link for link in json.loads(mooncake("links", "--json", f"127.0.0.1:{port}"))}
    for rail in ("local", "shm", "tcp"):
        check_equal(rails[rail]["transport"], rail, "transport")
        check_equal(rails[rail]["state"], "healthy", "state")
        check_equal(rails[rail]["errors"], 0, "errors")
    text = mooncake("links", f"127.0.0.1:{port}")
    check(re.search(r"^tcp +tcp +healthy ", text, re.MULTILINE), text)
    check("does not answer" in mooncake("links", "127.0.0.1:1", fails=True), "nobody there")


def explain(closing, scratch):
    node = node_of(closing)
    where = ["--host=127.0.0.1"]
    write = mooncake("explain", *where, ".", engine_of(node), "1MB")
    check(re.search(r"^write 1 MiB to ", write) and "rule: none" in write, write)
    check(re.search(r"^  shm .*<- chosen$", write, re.MULTILINE), write)
    read = mooncake("explain", *where, engine_of(node), "cpu:0", "32MB")
    check(read.startswith("read ") and re.search(r"^  tcp +cost 100", read, re.MULTILINE), read)
    rules = scratch / "policy.json"
    rules.write_text(json.dumps({"policy": [{"name": "far", "min_size": "1MB", "transports": ["tcp"]}]}))
    ruled = mooncake("explain", *where, f"--policy={rules}", ".", engine_of(node), "8MB")
    check("rule: far" in ruled and re.search(r"^  tcp .*<- chosen$", ruled, re.MULTILINE), ruled)
    check("slices: 2 of at most 4" in ruled, ruled)
    rules.write_text('{"policy": [{"transports": ["tpc", "tcp"]}], "transports": {"smh": {"enable": false}}}')
    spelt = run([BIN / "mooncake", "explain", *where, f"--policy={rules}", ".", engine_of(node), "4KB"]).stderr.decode()
    for name in ("tpc", "smh"):
        check(f"no such transport here transport={name}" in spelt, f"a misspelt transport: {spelt}")
    check("transport=tcp" not in spelt, spelt)
    hinted = mooncake("explain", *where, "--hint=tcp", ".", engine_of(node), "4KB")
    check(re.search(r"^  tcp .*<- chosen$", hinted, re.MULTILINE), hinted)
    check("is not a size" in mooncake("explain", *where, ".", engine_of(node), "much", fails=True), "a bad size")
    check("is a segment" in mooncake("explain", *where, ".", ".", "1", fails=True), "no segment")
    nobody = mooncake("explain", *where, ".", "127.0.0.1:1", "1", fails=True)
    check("no Transfer Engine answers" in nobody and "mooncake stat" in nobody, f"where nobody is: {nobody}")
    rules.write_text("{")
    broken = mooncake("explain", *where, f"--policy={rules}", ".", engine_of(node), "1", fails=True)
    check("the policy cannot be read" in broken and str(rules) in broken, broken)


main(links, explain)

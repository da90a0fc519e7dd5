#!/usr/bin/env python3
"""Master, nodes and client on hosts of their own (network namespaces): a trace is replayed over IPv4, IPv6 and both, and every
byte is verified and crossed the network: what the hosts have in common, the kernel, is no way round it."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from hosts import Cluster, Net, skip_unless_possible  # noqa: E402
from programs import bin_dir, check, check_equal, main  # noqa: E402

BIN = bin_dir()
TRACE = pathlib.Path(__file__).resolve().parents[2] / "data/traces/conversation_trace.jsonl.gz"


def replayed(closing, families, nodes_family=None, client_family=None):
    net = Net(families, 4)
    closing.append(net)
    cluster = Cluster(closing, BIN, net, net.hosts[1:3], family=nodes_family)
    client = net.hosts[3]
    if client_family:
        cluster.master = f"{net.address(net.hosts[0], client_family)}:50051"
    answer = cluster.mooncake(client, "replay", TRACE, "--requests=250", "--block_bytes=4KB", "--concurrency=4", "--json=-",
                              "--progress=false", f"--host={net.address(client, client_family)}")
    check_equal(answer.returncode, 0, f"replay: {answer.stderr.decode()}")
    report = json.loads(answer.stdout[answer.stdout.index(b"{"):])
    check_equal((report["mismatches"], report["errors"]), (0, 0), f"replay over IPv{families}")
    check(report["verified_bytes"] > 1000000 and report["puts"] > 1000, f"there was something to verify: {report}")
    moved = sum(int(host.run("cat", f"/sys/class/net/eth0/statistics/{way}_bytes").stdout) for host in net.hosts[1:3] for way in ("rx", "tx"))
    check(moved > report["verified_bytes"], f"{moved} bytes crossed the nodes' links")
    check(b"2 segments" in cluster.mooncake(client, "stat").stdout, "the admin endpoint answers across hosts")


def ipv4(closing, scratch):
    replayed(closing, "4")


def ipv6_only(closing, scratch):
    replayed(closing, "6")


def both_at_once(closing, scratch):
    """Nodes that are known by IPv6, a client that comes by IPv4."""
    replayed(closing, "46", nodes_family="6", client_family="4")


skip_unless_possible()
main(ipv4, ipv6_only, both_at_once)

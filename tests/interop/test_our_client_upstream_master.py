#!/usr/bin/env python3
"""Our client library against upstream's mooncake_master, with upstream nodes and with its own segment; also through the
C ABI that upstream's Go and Rust bindings load."""
from clusters import cluster, restart
from peers import main


def upstream_nodes(peers):
    cluster(peers, "upstream", nodes=["upstream"], own_segment=["upstream"], writers=["ours"], readers=["ours"])


def its_own_segment(peers):
    cluster(peers, "upstream", own_segment=["ours", "ours"], writers=["ours"], readers=["ours"])


def our_node(peers):
    cluster(peers, "upstream", nodes=["ours"], writers=["ours"], readers=["ours"])


def upstream_abi(peers):
    cluster(peers, "upstream", nodes=["upstream"], own_segment=["ours-abi"], writers=["ours-abi"], readers=["ours-abi"])


def our_http_metadata(peers):
    cluster(peers, "upstream", nodes=["upstream"], own_segment=["ours"], writers=["ours"], readers=["ours"],
            metadata="ours")


def upstream_http_metadata(peers):
    cluster(peers, "upstream", nodes=["upstream"], own_segment=["ours"], writers=["ours"], readers=["ours"],
            metadata="upstream")


def master_killed_and_restarted(peers):
    restart(peers, "upstream", "ours", "upstream")


if __name__ == "__main__":
    main(upstream_nodes, its_own_segment, our_node, upstream_abi, our_http_metadata, upstream_http_metadata,
         master_killed_and_restarted)

#!/usr/bin/env python3
"""Upstream's Python client and node against our master, with our node and with its own segment."""
from clusters import cluster, extras, restart, striped
from peers import main


def our_nodes(peers):
    cluster(peers, "ours", nodes=["ours", "ours"], writers=["upstream"], readers=["upstream"])


def its_own_segment(peers):
    cluster(peers, "ours", own_segment=["upstream", "upstream"], writers=["upstream"], readers=["upstream"])


def upstream_node(peers):
    cluster(peers, "ours", nodes=["upstream"], writers=["upstream"], readers=["upstream"])


def our_http_metadata(peers):
    cluster(peers, "ours", nodes=["ours"], own_segment=["upstream"], writers=["upstream"], readers=["upstream"],
            metadata="ours")


def upstream_http_metadata(peers):
    cluster(peers, "ours", nodes=["ours"], own_segment=["upstream"], writers=["upstream"], readers=["upstream"],
            metadata="upstream")


def calls_that_only_upstream_has(peers):
    extras(peers, "ours")


def master_killed_and_restarted(peers):
    restart(peers, "ours", "upstream", "ours")


if __name__ == "__main__":
    main(our_nodes, its_own_segment, upstream_node, our_http_metadata, upstream_http_metadata,
         calls_that_only_upstream_has, striped, master_killed_and_restarted)

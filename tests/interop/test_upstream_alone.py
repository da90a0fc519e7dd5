#!/usr/bin/env python3
"""The control experiment: the same harness and scenarios with upstream on both sides. When this fails, the harness (or
upstream) is wrong and the other tests prove nothing."""
from clusters import cluster, engines
from peers import main


def upstream_store_p2p(peers):
    cluster(peers, master="upstream", nodes=["upstream", "upstream"], writers=["upstream"], readers=["upstream"])


def upstream_store_http_metadata(peers):
    cluster(peers, master="upstream", nodes=["upstream"], writers=["upstream"], readers=["upstream"],
            metadata="upstream")


def upstream_engines_p2p(peers):
    engines(peers, "upstream", "upstream")


def upstream_engines_http_metadata(peers):
    engines(peers, "upstream", "upstream", metadata="upstream")


if __name__ == "__main__":
    main(upstream_store_p2p, upstream_store_http_metadata, upstream_engines_p2p, upstream_engines_http_metadata)

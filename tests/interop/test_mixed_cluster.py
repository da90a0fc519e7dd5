#!/usr/bin/env python3
"""One cluster of both: nodes of ours and of upstream, upstream writes what ours reads and the reverse, 1 B to 64 MiB."""
from clusters import cluster
from peers import main


def our_master(peers):
    cluster(peers, "ours", nodes=["ours", "upstream"], writers=["ours", "upstream"], readers=["upstream", "ours"],
            large=True)


def upstream_master(peers):
    cluster(peers, "upstream", nodes=["ours", "upstream"], writers=["ours", "upstream"], readers=["upstream", "ours"],
            large=True)


def segments_of_clients_and_our_http_metadata(peers):
    cluster(peers, "ours", own_segment=["ours", "upstream"], writers=["ours", "upstream"],
            readers=["upstream", "ours"], metadata="ours", large=True)


def segments_of_clients_and_upstream_http_metadata(peers):
    cluster(peers, "upstream", own_segment=["ours", "upstream"], writers=["ours", "upstream"],
            readers=["upstream", "ours"], metadata="upstream", large=True)


if __name__ == "__main__":
    main(our_master, upstream_master, segments_of_clients_and_our_http_metadata,
         segments_of_clients_and_upstream_http_metadata)

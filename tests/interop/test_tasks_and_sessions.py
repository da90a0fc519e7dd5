#!/usr/bin/env python3
"""Copies and moves that a node of one implementation carries out for a master of another, between segments of both;
objects that one writes piece by piece and another reads in parts."""
from clusters import work
from peers import main


def our_master_upstream_nodes(peers):
    work(peers, "ours", ["upstream", "upstream"])


def our_master_both_nodes(peers):
    work(peers, "ours", ["ours", "upstream"])


def upstream_master_our_nodes(peers):
    work(peers, "upstream", ["ours", "ours"])


def upstream_master_both_nodes(peers):
    work(peers, "upstream", ["ours", "upstream"])


if __name__ == "__main__":
    main(our_master_upstream_nodes, our_master_both_nodes, upstream_master_our_nodes, upstream_master_both_nodes)

#!/usr/bin/env python3
"""Object checksums (CRC-64/ECMA-182) travel both ways: written by one and verified by the other, and bytes that were
changed behind the store's back are an error for both, never data."""
from clusters import checksums
from peers import main


def control(peers):
    checksums(peers, "upstream", "upstream", "upstream")


def upstream_writes_ours_verifies(peers):
    checksums(peers, "ours", "upstream", "ours")


def ours_writes_upstream_verifies(peers):
    checksums(peers, "ours", "ours", "upstream")


def ours_on_upstream_master(peers):
    checksums(peers, "upstream", "ours", "ours")


if __name__ == "__main__":
    main(control, upstream_writes_ours_verifies, ours_writes_upstream_verifies, ours_on_upstream_master)

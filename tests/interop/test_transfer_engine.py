#!/usr/bin/env python3
"""Our Transfer Engine and upstream's move bytes into and out of each other's memory; every byte checked at both ends
(upstream's transfer_engine_bench checks none, so its runs are checked in the target's memory)."""
from clusters import (bench_programs, engines, engines_with_device_memory, engines_with_tls, http_metadata_by_hand,
                      our_engine_on_bench_memory, upstream_bench_on_our_memory)
from peers import OLDER, main


def ours_to_upstream_p2p(peers):
    engines(peers, "ours", "upstream")


def upstream_to_ours_p2p(peers):
    engines(peers, "upstream", "ours")


def c_interface_to_upstream(peers):
    """libtransfer_engine.so, called as NIXL calls it."""
    engines(peers, "ours-abi", "upstream")


def upstream_to_c_interface(peers):
    engines(peers, "upstream", "ours-abi")


def ours_to_upstream_our_metadata(peers):
    engines(peers, "ours", "upstream", metadata="ours")


def upstream_to_ours_our_metadata(peers):
    engines(peers, "upstream", "ours", metadata="ours")


def ours_to_upstream_upstream_metadata(peers):
    engines(peers, "ours", "upstream", metadata="upstream")


def upstream_to_ours_upstream_metadata(peers):
    engines(peers, "upstream", "ours", metadata="upstream")


def older_release(peers):
    engines(peers, "ours", OLDER)
    engines(peers, OLDER, "ours")


def unpooled_connections(peers):
    """A connection for each transfer, upstream's default until 0.3.12, and protocol version 1."""
    engines(peers, "upstream", "ours", env={"MC_TCP_ENABLE_CONNECTION_POOL": "0"})
    engines(peers, "upstream", "ours", env={"MC_TCP_PROTO": "1"}, checked_writes=False)


def upstream_bench_program_our_bench_target(peers):
    bench_programs(peers, "upstream", "ours")


def our_bench_program_upstream_bench_target(peers):
    bench_programs(peers, "ours", "upstream")


def bench_data(peers):
    upstream_bench_on_our_memory(peers)
    our_engine_on_bench_memory(peers)


def tls_preferred_is_plain_to_upstream(peers):
    engines_with_tls(peers, "prefer")


def tls_required_is_nothing_to_upstream(peers):
    engines_with_tls(peers, "require")


def device_memory_of_ours(peers):
    engines_with_device_memory(peers)


def metadata_servers_answer_alike(peers):
    http_metadata_by_hand(peers)


if __name__ == "__main__":
    main(ours_to_upstream_p2p, upstream_to_ours_p2p, c_interface_to_upstream, upstream_to_c_interface,
         ours_to_upstream_our_metadata, upstream_to_ours_our_metadata,
         ours_to_upstream_upstream_metadata, upstream_to_ours_upstream_metadata, older_release, unpooled_connections,
         upstream_bench_program_our_bench_target, our_bench_program_upstream_bench_target, bench_data,
         tls_preferred_is_plain_to_upstream, tls_required_is_nothing_to_upstream, device_memory_of_ours,
         metadata_servers_answer_alike)

#!/usr/bin/env python3
"""The control experiment: the same harness and scenarios with upstream on both sides. When this fails, the harness (or
upstream) is wrong and the other tests prove nothing."""
from clusters import bench_programs, cluster, engines, extras, restart, work
from peers import OLDER, main


def upstream_store_p2p(peers):
    cluster(peers, "upstream", nodes=["upstream", "upstream"], writers=["upstream"], readers=["upstream"])


def upstream_store_http_metadata(peers):
    cluster(peers, "upstream", nodes=["upstream"], writers=["upstream"], readers=["upstream"], metadata="upstream")


def upstream_client_only_calls(peers):
    extras(peers, "upstream")


def upstream_tasks_and_sessions(peers):
    work(peers, "upstream", ["upstream", "upstream"])


def upstream_restart(peers):
    restart(peers, "upstream", "upstream", "upstream")


def upstream_engines_p2p(peers):
    engines(peers, "upstream", "upstream")


def upstream_engines_http_metadata(peers):
    engines(peers, "upstream", "upstream", metadata="upstream")


def upstream_bench(peers):
    bench_programs(peers, "upstream", "upstream")


def older_release(peers):
    cluster(peers, OLDER, nodes=[OLDER], own_segment=[OLDER], writers=[OLDER], readers=[OLDER])


if __name__ == "__main__":
    main(upstream_store_p2p, upstream_store_http_metadata, upstream_client_only_calls, upstream_tasks_and_sessions,
         upstream_restart, upstream_engines_p2p, upstream_engines_http_metadata, upstream_bench, older_release)

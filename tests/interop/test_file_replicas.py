#!/usr/bin/env python3
"""A master with a root directory: both sides' clients keep copies of what they put in files there, and read each other's when
no memory has the object any more."""
import json
import os
import shutil
import tempfile
import time

import scenarios
from peers import NEWEST, Died, http_get, main

SIZES = (1, 5000, 300_000, 3 << 20)


def replicas(master, key):
    answer = json.loads(http_get(f"http://127.0.0.1:{master.admin}/batch_query_keys?keys={key}"))
    entry = answer["data"].get(key, {})
    return (entry.get("values") or [], entry.get("disk_values") or []) if entry.get("ok") else ([], [])


def wait_until(what, condition):
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise Died(f"not within a minute: {what}")
        time.sleep(0.1)


def copies_outlive_the_memory(peers, master_of):
    root = tempfile.mkdtemp(prefix="mc_root_")
    try:
        master = peers.master(master_of, args=(f"--root_fs_dir={root}", "--cluster_id=shared", "--default_kv_lease_ttl=200",
                                            "--client_ttl=3"))
        node = peers.node("ours", master, segment=str(64 << 20))
        clients = {who: peers.store(who, master) for who in ("ours", NEWEST)}
        keys, upserted = {}, {}
        for who, client in clients.items():
            for i, size in enumerate(SIZES):
                key = f"{who}/{i}"
                scenarios.equal(client.put(key, i, size), 0, f"put {key}")
                keys[key] = (i, size)
        for who, client in clients.items():
            for i, size in enumerate(SIZES):
                key = f"{who}/upserted/{i}"
                scenarios.equal(client.put(key, 20 + i, size), 0, f"put {key}")
                scenarios.equal(client.upsert(key, 10 + i, size), 0, f"upsert {key}")
                upserted[key] = (10 + i, size)
        if master_of == "ours":  # upstream's names are the keys', so that a late writer could reach them: ours writes none
            keys.update(upserted)
        for key, (_, size) in keys.items():
            wait_until(f"{key} is in a file", lambda key=key: replicas(master, key)[1])
            path = replicas(master, key)[1][0]["file_path"]
            scenarios.equal(os.stat(path).st_size, size, path)
        peers.stop(node, kill=True)
        wait_until("the memory is gone", lambda: not any(replicas(master, key)[0] for key in keys))
        compared = sum(client.get(key, seed, size) for client in clients.values() for key, (seed, size) in keys.items())
        scenarios.equal(compared, (4 if master_of == "ours" else 2) * 2 * sum(SIZES), "compared bytes")
        print(f"upserted, with the master of {master_of}:", {key: len(replicas(master, key)[1]) for key in upserted}, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def with_upstreams_master(peers):
    copies_outlive_the_memory(peers, NEWEST)


def with_our_master(peers):
    copies_outlive_the_memory(peers, "ours")


main(with_upstreams_master, with_our_master)

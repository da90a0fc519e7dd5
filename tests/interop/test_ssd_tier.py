#!/usr/bin/env python3
"""Objects on SSD, whoever is the master, the node and the reader; and a directory that one side wrote is the other's after it."""
import contextlib
import json
import os
import shutil
import struct
import tempfile
import time

import scenarios
from peers import NEWEST, Died, http_get, main

SIZE = 1 << 20
COUNT = 48
MEMORY = 16 << 20
MASTER = ("--enable_offload=true", "--default_kv_lease_ttl=200", "--eviction_high_watermark_ratio=0.6", "--client_ttl=3")


BUCKET, PER_KEY, OFFSET = "bucket_storage_backend", "file_per_key_storage_backend", "offset_allocator_storage_backend"


def environment(directory, backend):
    # One object a bucket: upstream writes nothing before a bucket is full.
    return {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": directory, "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
            "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": backend,
            "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 << 20), "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": "1",
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(256 << 20), "MOONCAKE_OFFSET_PERSIST_MODE": "strict"}


def node_on(peers, who, master, directory, backend=BUCKET):
    return peers.node(who, master, segment=str(MEMORY), args=("--enable_offload=true",), env=environment(directory, backend))


def written(directory, backend):
    """How many objects are whole on disk."""
    if backend == BUCKET:
        return sum(name.endswith(".meta") for name in os.listdir(directory))
    if backend == OFFSET:
        with contextlib.suppress(FileNotFoundError):
            meta = open(os.path.join(directory, "kv_cache.meta"), "rb").read(64)
            state = next(i for i in range(3, 13) if meta[i] < 0x80) + 1  # behind the field's length
            return struct.unpack_from("<Q", meta, state + 32)[0]
        return 0
    return sum(os.stat(os.path.join(at, name)).st_size > SIZE for at, _, names in
               os.walk(os.path.join(directory, "file_per_key_dir")) for name in names)


def fill(writer, directory, backend=BUCKET):
    """Three times the memory; a put waits for room while what is there is not on SSD yet."""
    for i in range(COUNT):
        until = time.monotonic() + 60
        while writer.put(f"key/{i}", i, SIZE) != 0:
            if time.monotonic() > until:
                raise Died(f"no room for key/{i}")
            time.sleep(0.2)
    until = time.monotonic() + 60
    while written(directory, backend) < COUNT:
        if time.monotonic() > until:
            raise Died(f"{written(directory, backend)} of {COUNT} objects are on SSD")
        time.sleep(0.1)


def read_all(readers):
    for reader in readers:
        compared = sum(reader.get(f"key/{i}", i, SIZE) for i in range(COUNT))
        scenarios.equal(compared, COUNT * SIZE, "compared bytes")


def served(peers, master_of, node_of, backend=BUCKET):
    directory = tempfile.mkdtemp(prefix="mc_ssd_")
    try:
        master = peers.master(master_of, args=MASTER)
        node_on(peers, node_of, master, directory, backend)
        readers = [peers.store(who, master) for who in ("ours", NEWEST)]
        fill(readers[0], directory, backend)
        read_all(readers)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def handed_over(peers, first, second, backend=BUCKET):
    """The node of `first` dies and one of `second` opens its directory."""
    directory = tempfile.mkdtemp(prefix="mc_ssd_")
    try:
        master = peers.master("ours", args=MASTER)
        node = node_on(peers, first, master, directory, backend)
        writer = peers.store("ours", master)
        fill(writer, directory, backend)
        peers.stop(node, kill=True)
        until = time.monotonic() + 30
        while master.segments() and time.monotonic() < until:
            time.sleep(0.1)
        node_on(peers, second, master, directory, backend)
        time.sleep(2)
        scenarios.equal(written(directory, backend), COUNT, "objects on SSD")
        read_all([writer, peers.store(NEWEST, master)])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def brought_back(peers, master_of, node_of):
    """An object that is on SSD only is in memory again when it has been read a few times."""
    directory = tempfile.mkdtemp(prefix="mc_ssd_")
    try:
        master = peers.master(master_of, args=(*MASTER, "--promotion_on_hit=true"))
        node_on(peers, node_of, master, directory)
        reader = peers.store("ours", master)
        fill(reader, directory)
        until = time.monotonic() + 60
        while "key/0" in in_memory(master):  # the first to be evicted
            if time.monotonic() > until:
                raise Died("key/0 stays in memory")
            reader.put(f"more/{time.monotonic()}", 1, SIZE)
            time.sleep(0.05)
        for i in range(30, COUNT):  # make room: memory above the watermark takes nothing back
            reader.remove(f"key/{i}", force=True)
        while "key/0" not in in_memory(master):
            if time.monotonic() > until:
                raise Died("key/0 does not come back to memory")
            scenarios.equal(reader.get("key/0", 0, SIZE), SIZE, "compared bytes")
            time.sleep(0.1)
        scenarios.equal(reader.get("key/0", 0, SIZE), SIZE, "compared bytes")
        scenarios.equal(peers.store(NEWEST, master).get("key/0", 0, SIZE), SIZE, "compared bytes")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def in_memory(master):
    answer = json.loads(http_get(f"http://127.0.0.1:{master.admin}/batch_query_keys?keys=key/0"))
    return [key for key, entry in answer["data"].items() if entry["ok"] and entry.get("values")]


def upstreams_node_brings_back_what_our_master_names(peers):
    brought_back(peers, "ours", NEWEST)


def our_node_brings_back_what_upstreams_master_names(peers):
    brought_back(peers, NEWEST, "ours")


def ours_brings_back_what_is_read(peers):
    brought_back(peers, "ours", "ours")


def our_node_with_upstreams_master(peers):
    served(peers, NEWEST, "ours")


def upstreams_node_with_our_master(peers):
    served(peers, "ours", NEWEST)


def all_ours_and_an_upstream_reader(peers):
    served(peers, "ours", "ours")


def upstreams_directory_is_ours_afterwards(peers):
    handed_over(peers, NEWEST, "ours")


def our_directory_is_upstreams_afterwards(peers):
    handed_over(peers, "ours", NEWEST)


def our_node_keeps_a_file_per_key(peers):
    served(peers, NEWEST, "ours", PER_KEY)


def our_master_takes_files_per_key_of_upstreams(peers):
    served(peers, "ours", NEWEST, PER_KEY)


def upstreams_files_per_key_are_ours_afterwards(peers):
    handed_over(peers, NEWEST, "ours", PER_KEY)


def our_files_per_key_are_upstreams_afterwards(peers):
    handed_over(peers, "ours", NEWEST, PER_KEY)


def our_node_keeps_one_file(peers):
    served(peers, NEWEST, "ours", OFFSET)


def our_master_takes_objects_of_upstreams_one_file(peers):
    served(peers, "ours", NEWEST, OFFSET)


def upstreams_one_file_is_ours_afterwards(peers):
    handed_over(peers, NEWEST, "ours", OFFSET)


def our_one_file_is_upstreams_afterwards(peers):
    handed_over(peers, "ours", NEWEST, OFFSET)


main(our_node_with_upstreams_master, upstreams_node_with_our_master, all_ours_and_an_upstream_reader,
     upstreams_directory_is_ours_afterwards, our_directory_is_upstreams_afterwards,
     our_node_keeps_a_file_per_key, our_master_takes_files_per_key_of_upstreams,
     upstreams_files_per_key_are_ours_afterwards, our_files_per_key_are_upstreams_afterwards,
     our_node_keeps_one_file, our_master_takes_objects_of_upstreams_one_file,
     upstreams_one_file_is_ours_afterwards, our_one_file_is_upstreams_afterwards,
     upstreams_node_brings_back_what_our_master_names, our_node_brings_back_what_upstreams_master_names,
     ours_brings_back_what_is_read)

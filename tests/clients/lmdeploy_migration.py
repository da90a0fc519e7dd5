"""lmdeploy's Mooncake backend, which moves KV caches from prefill to decode engines: two processes, a link each, blocks of two
registered regions read by the decoder. mmengine's registry and lmdeploy's logger stand as small classes, the NIC as a program that
names one."""
import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile

import stand_ins
from stand_ins import CLIENT, absent, package, same

for name in ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.disagg", "lmdeploy.pytorch.disagg.backend",
             "lmdeploy.pytorch.disagg.conn"):
    package(name)
absent("lmdeploy.utils").get_logger = logging.getLogger


class Registry(dict):
    def __init__(self, *_, **__):
        super().__init__()

    def register_module(self, name):
        return lambda cls: self.setdefault(name, cls)


absent("mmengine")
absent("mmengine.registry").Registry = Registry

import torch  # noqa: E402
import mooncake.engine  # noqa: E402
from lmdeploy.pytorch.disagg.backend import mooncake as backend  # noqa: E402
from lmdeploy.pytorch.disagg.backend.backend import MIGRATION_BACKENDS  # noqa: E402
from lmdeploy.pytorch.disagg.config import MigrationBackend  # noqa: E402
from lmdeploy.pytorch.disagg.conn import protocol  # noqa: E402
from lmdeploy.pytorch.disagg.messages import AssignmentInstruct, DistServeRegisterMRMessage, MigrationAssignment  # noqa: E402

assert backend.__file__.startswith(CLIENT) and "/build/" in mooncake.engine.__file__
backend.get_local_ip_by_remote = lambda: "127.0.0.1"  # Its own asks for the way to the Internet.
BLOCK, BLOCKS, REGIONS = 48 << 10, 32, (1, 7)
RDMA = protocol.MigrationProtocol.RDMA


def link(own, peer, seed):
    """(backend, regions) with a link to the peer."""
    one = MIGRATION_BACKENDS[MigrationBackend.Mooncake.name]()
    one.p2p_initialize(protocol.DistServeInitRequest.model_construct(
        local_engine_id=own, local_engine_config=None, remote_engine_id=peer, remote_engine_config=None, protocol=RDMA, rank=0))
    regions = {key: stand_ins.random_bytes(torch, BLOCK * BLOCKS, seed + key) for key in REGIONS}
    for key, memory in regions.items():
        one.register_memory_region(DistServeRegisterMRMessage(protocol=RDMA, remote_engine_id=peer, mr_key=key,
                                                              addr=memory.data_ptr(), offset=0, length=memory.nbytes))
    return one, regions


def prefill():
    one, regions = link("prefill", "decode", 100)
    print("info", json.dumps(one.endpoint_info("decode", RDMA)), flush=True)
    sys.stdin.readline()
    del one, regions


def decode():
    peer = subprocess.Popen([sys.executable, __file__, "prefill"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    info = next(line for line in peer.stdout if line.startswith("info "))[5:]
    one, regions = link("decode", "prefill", 0)
    one.p2p_connect("prefill", protocol.DistServeKVTransferEndpointInfo(protocol=RDMA, endpoint_info=info))
    before = {key: memory.clone() for key, memory in regions.items()}
    moves = [(key, target, (target * 5 + 3) % BLOCKS) for key in REGIONS for target in range(0, BLOCKS, 2)]
    # source is what is here, target what is there.
    asyncio.run(one.p2p_migrate(MigrationAssignment(protocol=RDMA, remote_engine_id="prefill", batch=[
        AssignmentInstruct(mr_key=key, source_offset=here * BLOCK, target_offset=there * BLOCK, length=BLOCK)
        for key, here, there in moves])))
    for key in REGIONS:
        theirs = stand_ins.random_bytes(torch, BLOCK * BLOCKS, 100 + key)
        came = {here: there for k, here, there in moves if k == key}
        for block in range(BLOCKS):
            at = came.get(block)
            wanted = before[key][block * BLOCK:][:BLOCK] if at is None else theirs[at * BLOCK:][:BLOCK]
            same(torch, regions[key][block * BLOCK:][:BLOCK], wanted, f"region {key}, block {block}")
    try:
        asyncio.run(one.p2p_migrate(MigrationAssignment(protocol=RDMA, remote_engine_id="prefill", batch=[
            AssignmentInstruct(mr_key=1, source_offset=0, target_offset=1 << 40, length=BLOCK)])))
    except RuntimeError as error:
        assert "sync transfer" in str(error), error
    else:
        raise SystemExit("memory that nobody registered was read")
    peer.stdin.write("\n")
    peer.stdin.flush()
    assert peer.wait(60) == 0
    print(f"{len(moves)} blocks of {BLOCK} bytes", flush=True)


def with_a_nic():
    """A program in the path that says what ibv_devices says on a machine with one NIC."""
    directory = tempfile.mkdtemp(dir=os.getcwd())
    path = os.path.join(directory, "ibv_devices")
    with open(path, "w") as out:
        out.write("#!/bin/sh\nprintf 'device node GUID\\n------ ---------\\nrdma_0 0000000000000001\\n'\n")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    os.environ["PATH"] = directory + os.pathsep + os.environ["PATH"]


if sys.argv[1:] == ["prefill"]:
    prefill()
else:
    with_a_nic()
    decode()
    stand_ins.finish(len(REGIONS) * BLOCKS * BLOCK)
sys.stdout.flush()

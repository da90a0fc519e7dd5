"""Clusters put together from ours and upstream's programs, and the scenarios run on them."""
import scenarios


def metadata_of(peers, master, metadata):
    """Connection string: "p2p", or whose HTTP metadata server to start."""
    if metadata == "p2p":
        return "P2PHANDSHAKE"
    if master is not None and master.metadata_port and metadata == "same":
        return master.metadata
    return peers.master(metadata, metadata_server=True).metadata


def cluster(peers, master, nodes, writers, readers, metadata="p2p", own_segment=None, everything=True,
            master_args=(), env=None):
    """Starts the cluster and runs every scenario for each writer and reader. `nodes` are mooncake_client processes,
    `own_segment` clients that lend a segment themselves (a process with the client library). Returns compared bytes."""
    leader = peers.master(master, args=master_args)
    where = metadata_of(peers, leader, metadata)
    names = []
    for who in nodes:
        peers.node(who, leader, where)
    for who in own_segment or []:
        names.append(peers.store(who, leader, where, segment=512 << 20, env=env).hostname())
    segments = leader.segments()
    for name in names:
        scenarios.equal(name in segments, True, f"{name} among {segments}")
    agents, compared = {}, 0
    for who in [*writers, *readers]:
        if who not in agents:
            agents[who] = peers.store(who, leader, where, env=env)
    for i, w in enumerate(writers):
        for j, r in enumerate(readers):
            tag = f"{i}{j}"
            reader = agents[r]
            if w == r:  # two processes, so that nothing is served from the writer's own memory
                reader = peers.store(r, leader, where, env=env)
            done = (scenarios.everything(agents[w], reader, tag, segments if len(segments) > 1 else None)
                    if everything else scenarios.single_objects(agents[w], reader, tag))
            print(f"      {w} writes, {r} reads: {done >> 20} MiB compared")
            compared += done
    return compared


def engines(peers, initiator, target, metadata="p2p"):
    where = metadata_of(peers, None, metadata)
    a, b = peers.engine(initiator, where), peers.engine(target, where)
    compared = scenarios.engine_pair(a, b, "pair")
    compared += scenarios.engine_notify(a, b)
    compared += scenarios.engine_rejects(a, b)
    print(f"      {initiator} initiates, {target} is the target: {compared >> 20} MiB compared")
    return compared

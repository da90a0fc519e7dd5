#!/usr/bin/env python3
"""0.3.12.post1, whose schema differs, served by the same master at the same time as 0.3.13.post1 and ours."""
import scenarios
from clusters import cluster
from peers import NEWEST, OLDER, main


def older_alone(peers):
    cluster(peers, "ours", nodes=["ours"], own_segment=[OLDER], writers=[OLDER], readers=[OLDER])


def older_node(peers):
    cluster(peers, "ours", nodes=[OLDER, "ours"], writers=[OLDER], readers=["ours"])


def both_generations_at_once(peers):
    """Each on an address of its own, as on machines of their own."""
    cluster(peers, "ours", nodes=["ours"], own_segment=[OLDER, NEWEST], writers=[OLDER, NEWEST],
            readers=["ours", NEWEST, OLDER], hosts={OLDER: "127.0.0.12", NEWEST: "127.0.0.13"})


def both_generations_on_one_address(peers):
    """Who writes or pings is told apart by what it says. A connection that has said nothing yet may lose a read (see
    docs/compatibility.md), so a read is repeated here; it may fail but never gives other bytes, and it soon succeeds."""
    master = peers.master("ours")
    agents = {release: peers.store(release, master, segment=64 << 20) for release in (OLDER, NEWEST)}
    lost = 0
    for i in range(60):
        for w, writer in agents.items():
            key, size = f"{w}/{i}", 1 + 997 * i
            scenarios.equal(writer.put(key, i, size), 0, "put")
            for r, reader in agents.items():
                lost += reader.read_until(key, i, size, 10) > 0.04
    print(f"      {lost} of 240 reads repeated")


def a_reader_that_never_wrote(peers):
    """Nothing in its requests tells its release. It may lose its first read, and no other."""
    master = peers.master("ours")
    writer = peers.store("ours", master, segment=64 << 20)
    for i in range(10):
        scenarios.equal(writer.put(f"k{i}", i, 5000 + i), 0, "put")
    for release, source in ((OLDER, "127.0.0.12"), (NEWEST, "127.0.0.13"), (OLDER, "127.0.0.14")):
        reader = peers.store(release, peers.seen_from(master, source))
        lost = compared = 0
        for i in range(10):
            if reader.missing(f"k{i}") is True:
                lost += 1
            else:
                compared += reader.get(f"k{i}", i, 5000 + i) + reader.get_batch([f"k{i}"], [i], [5000 + i])
        scenarios.equal(lost <= (1 if release == OLDER else 0), True, f"{release}: {lost} reads lost")
        scenarios.equal(compared >= 2 * 9 * 5000, True, "compared bytes")
        print(f"      {release}: {lost} of 10 first reads lost")


def our_client_on_an_older_master(peers):
    cluster(peers, OLDER, nodes=["ours"], own_segment=[OLDER], writers=["ours", OLDER], readers=["ours", OLDER])


if __name__ == "__main__":
    main(older_alone, older_node, both_generations_at_once, both_generations_on_one_address,
         a_reader_that_never_wrote, our_client_on_an_older_master)

"""What two clients do to one cluster, whoever wrote them: `w` writes and `r` reads, and both are agents (peers.py).

Every scenario compares all bytes it reads, counts them, and fails when it compared none. Keys carry a tag so that scenarios
share a cluster.
"""
import time


SIZES = [1, 2, 255, 256, 257, 4095, 4096, 65536, 65537, (1 << 20) - 1, 1 << 20, (4 << 20) + 3]
LARGE = [16 << 20, 64 << 20]


def equal(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: {got!r}, expected {want!r}")


def single_objects(w, r, tag, sizes):
    """Put by one, found, measured and read by both."""
    compared = 0
    for i, size in enumerate(sizes):
        key = f"{tag}/one/{size}"
        equal(r.exist(key), 0, f"exist {key} before put")
        equal(w.put(key, i, size), 0, f"put {key}")
        equal(r.exist(key), 1, f"exist {key}")
        equal(r.size(key), size, f"size {key}")
        compared += r.get(key, i, size) + w.get(key, i, size) + r.get_into(key, i, size)
    equal(compared, 3 * sum(sizes), "compared bytes")
    for size in sizes:
        equal(w.remove(f"{tag}/one/{size}", force=True), 0, "remove")
        equal(r.exist(f"{tag}/one/{size}"), 0, "exist after remove")
    return compared


def rules(w, r, tag):
    """A second put changes nothing; a missing key is missing; a lease holds a plain remove off; odd keys work."""
    key = f"{tag}/rules"
    equal(r.missing(f"{tag}/never"), True, "get of a missing key")
    equal(r.size(f"{tag}/never"), -704, "size of a missing key")
    equal(r.remove(f"{tag}/never"), -704, "remove of a missing key")
    equal(w.put(key, 1, 1000), 0, "put")
    equal(w.put(key, 2, 1000), 0, "put again")
    compared = r.get(key, 1, 1000)
    equal(w.remove(key), -706, "remove under a lease")
    equal(w.remove(key, force=True), 0, "forced remove")
    equal(w.put(f"{tag}/plain", 3, 10), 0, "put")
    equal(w.remove(f"{tag}/plain"), 0, "remove without a lease")
    for odd in (f"{tag}/" + "k" * 300, f"{tag}/with space%2F?&=", f"{tag}/schlüssel-鍵"):
        equal(w.put(odd, 4, 33), 0, f"put {odd!r}")
        compared += r.get(odd, 4, 33)
    equal(compared, 1000 + 3 * 33, "compared bytes")
    return compared


def copies_in_and_out(w, r, tag):
    """Every way in, every way out."""
    size = 300001
    equal(w.put_parts(f"{tag}/parts", 1, size, [1, 100000, 100000 + 65536]), 0, "put_parts")
    equal(w.put_from(f"{tag}/from", 2, size), 0, "put_from")
    compared = 0
    for key, seed in ((f"{tag}/parts", 1), (f"{tag}/from", 2)):
        compared += r.get(key, seed, size) + r.get_into(key, seed, size) + r.get_buffer(key, seed, size)
    equal(compared, 6 * size, "compared bytes")
    return compared


def batches(w, r, tag, count=128):
    sizes = [1 + (i * 7919) % 20000 for i in range(count - 2)] + [1 << 20, (2 << 20) + 1]
    seeds = list(range(count))
    compared = 0
    for name, put in (("batch", w.put_batch), ("batch-from", w.batch_put_from)):
        keys = [f"{tag}/{name}/{i}" for i in range(count)]
        done = put(keys, seeds, sizes)
        equal(done if isinstance(done, int) else sorted(set(done)), 0 if isinstance(done, int) else [0], f"put {name}")
        equal(r.batch_exist(keys + [f"{tag}/none"]), [1] * count + [0], "batch_exist")
        compared += r.get_batch(keys, seeds, sizes) + r.batch_get_into(keys, seeds, sizes)
        compared += w.get_batch(keys, seeds, sizes)
        equal(r.batch_replicas(keys[:3] + [f"{tag}/none"]), [[k, 1] for k in sorted(keys[:3])], "replicas of a batch")
        removed = r.batch_remove(keys + [f"{tag}/none"], force=True)
        equal(removed, [0] * count + [-704], "batch_remove")
        equal(set(w.batch_exist(keys)), {0}, "exist after batch_remove")
    equal(compared, 6 * sum(sizes), "compared bytes")
    return compared


def upserts(w, r, tag):
    """Replace in place, replace with another size, insert; single and batch."""
    key, compared = f"{tag}/up", 0
    for seed, size in ((1, 5000), (2, 5000), (3, 70000), (4, 10)):
        equal(w.upsert(key, seed, size), 0, f"upsert to {size}")
        compared += r.get(key, seed, size)
    equal(w.upsert_from(key, 5, 1234), 0, "upsert_from")
    compared += r.get(key, 5, 1234)
    keys = [f"{tag}/ub/{i}" for i in range(20)]
    equal(w.put_batch(keys[:10], list(range(10)), [100 + i for i in range(10)]), 0, "put_batch")
    equal(w.upsert_batch(keys, list(range(50, 70)), [100 + 3 * i for i in range(20)]), 0, "upsert_batch")
    compared += r.get_batch(keys, list(range(50, 70)), [100 + 3 * i for i in range(20)])
    equal(set(w.batch_upsert_from(keys, list(range(90, 110)), [200] * 20)), {0}, "batch_upsert_from")
    compared += r.get_batch(keys, list(range(90, 110)), [200] * 20)
    equal(compared > 80000, True, "compared bytes")
    return compared


def regex_and_all(w, r, tag):
    for i in range(10):
        equal(w.put(f"{tag}/re/{i}", i, 64), 0, "put")
    equal(r.remove_regex(f"^{tag}/re/[0-3]$", force=True), 4, "remove_by_regex")
    equal(r.batch_exist([f"{tag}/re/{i}" for i in range(10)]), [0] * 4 + [1] * 6, "exist after regex")
    equal(r.remove_regex("([", force=True), -600, "a bad regex")
    compared = sum(r.get(f"{tag}/re/{i}", i, 64) for i in range(4, 10))
    equal(w.remove_all(force=True) >= 6, True, "remove_all")
    equal(set(r.batch_exist([f"{tag}/re/{i}" for i in range(10)])), {0}, "exist after remove_all")
    equal(compared, 6 * 64, "compared bytes")
    return compared


def replicas(w, r, tag, segments):
    """Two replicas on two segments; a preferred segment; both clients see the same places."""
    key = f"{tag}/two"
    equal(w.put(key, 1, 100000, replicas=2), 0, "put of two replicas")
    places = r.replicas(key)
    equal(len({p[0] for p in places}), 2, f"segments of {places}")
    equal([p[1:3] for p in places], [[100000, True]] * 2, "replica sizes and states")
    equal(sorted(w.replicas(key)), sorted(places), "places as the writer sees them")
    compared = r.get(key, 1, 100000)
    for i, name in enumerate(segments):
        equal(w.put(f"{tag}/pref/{i}", i, 777, preferred=[name]), 0, f"put to {name}")
        compared += r.get(f"{tag}/pref/{i}", i, 777)
    where = {r.replicas(f"{tag}/pref/{i}")[0][0] for i in range(len(segments))}
    equal(len(where), len(segments), f"places of preferred puts {where}")
    equal(w.put(f"{tag}/pin", 9, 99, soft_pin=True), 0, "soft pinned put")
    equal(w.put(f"{tag}/hard", 8, 88, hard_pin=True), 0, "hard pinned put")
    compared += r.get(f"{tag}/pin", 9, 99) + r.get(f"{tag}/hard", 8, 88)
    equal(compared, 100000 + 777 * len(segments) + 99 + 88, "compared bytes")
    return compared


def threads(w, r, tag):
    keys, sizes = [f"{tag}/t/{i}" for i in range(16)], [1 + 40000 * i for i in range(16)]
    equal(w.put_batch(keys, list(range(16)), sizes), 0, "put_batch")
    compared = r.get_many_threads(keys, list(range(16)), sizes, 4)
    equal(compared, 4 * sum(sizes), "compared bytes")
    return compared


def parts(w, r, tag):
    """Sessions that write and read piece by piece, and reads of ranges."""
    size, cuts, compared = 300001, [0, 1, 4096, 70000, 299999], 0
    for i, (writer, reader) in enumerate(((w, r), (r, w))):
        key = f"{tag}/parts-of/{i}"
        equal(writer.put_in_pieces(key, i, size, cuts), 0, "put in pieces")
        equal(writer.put_in_pieces(key, i, size, cuts), -705, "put in pieces of what exists")
        compared += reader.get(key, i, size) + reader.get_in_pieces(key, i, size, cuts)
        compared += reader.get_ranges(key, i, size, cuts)
    equal(compared, 6 * size, "compared bytes")
    return compared


def tasks(w, r, tag, names):
    """Copies and moves from each segment to each other one, carried out by their owners."""
    size, compared = 1500000, 0
    for i, source in enumerate(names):
        for j, target in enumerate(names):
            if i == j:
                continue
            copied, moved = f"{tag}/copied/{i}{j}", f"{tag}/moved/{i}{j}"
            equal(w.put(copied, 1, size, preferred=[source]), 0, "put")
            equal(w.put(moved, 2, size, preferred=[source]), 0, "put")
            before = r.replicas(moved)[0][0]
            equal(w.copy_task(copied, [target]), "SUCCESS", f"copy from {source} to {target}")
            equal(w.move_task(moved, source, target), "SUCCESS", f"move from {source} to {target}")
            equal(len({p[0] for p in r.replicas(copied)}), 2, "segments after the copy")
            after = [p[0] for p in r.replicas(moved)]
            equal(len(after) == 1 and after[0] != before, True, f"moved from {before} to {after}")
            for _ in range(4):  # readers choose among replicas
                compared += r.get(copied, 1, size)
            compared += r.get(moved, 2, size) + w.get(moved, 2, size)
    equal(w.copy_task(f"{tag}/none", [names[0]]), "error -704", "copy of what is not there")
    equal(w.move_task(copied, names[0], names[0]), "error -600", "move to where it is")
    equal(compared, len(names) * (len(names) - 1) * 6 * size, "compared bytes")
    return compared


def everything(w, r, tag, segments, sizes):
    """All of the above; the number of compared bytes."""
    compared = rules(w, r, tag) + copies_in_and_out(w, r, tag) + batches(w, r, tag) + upserts(w, r, tag)
    if segments:
        compared += replicas(w, r, tag, segments)
    compared += threads(w, r, tag) + regex_and_all(w, r, tag) + single_objects(w, r, tag, sizes)
    if compared <= 0:
        raise AssertionError("nothing was compared")
    return compared


# ---- transfer engine ----

def arrived(b, address, seed, size, settle):
    """Compares the target's memory. Protocol version 1 has no acknowledgement: then a write may still be on its way."""
    if settle:
        b.settle(address, seed, size)
    return b.check(address, seed, size)


def engine_pair(a, b, settle=False):
    """`a` moves bytes into and out of the memory of `b`, which takes no part; every byte compared at both ends."""
    size = 64 << 20
    mine, theirs = a.allocate(size), b.allocate(size)
    peer, compared = b.engine_name(), 0
    for i, n in enumerate([1, 7, 4096, 65536, 65537, 1 << 20, (16 << 20) + 5, size]):
        a.fill(mine, i, n)
        equal(a.write(peer, mine, theirs, n), 0, f"write of {n}")
        compared += arrived(b, theirs, i, n, settle)
        b.fill(theirs, 100 + i, n)
        equal(a.read(peer, mine, theirs, n), 0, f"read of {n}")
        compared += a.check(mine, 100 + i, n)
    # A batch of scattered pieces, in another order there than here.
    count, piece = 128, 70001
    a.fill(mine, 1, count * piece)
    order = [(i * 37) % count for i in range(count)]
    equal(a.batch_write(peer, [mine + i * piece for i in range(count)], [theirs + o * piece for o in order],
                        [piece] * count), 0, "batch write")
    if settle:
        time.sleep(1)
    back = [mine + (32 << 20) + i * piece for i in range(count)]
    equal(a.batch_read(peer, back, [theirs + o * piece for o in order], [piece] * count), 0, "batch read")
    compared += a.check(back[0], 1, count * piece)
    equal(compared > 2 * size, True, "compared bytes")
    return compared


def engine_rejects(a, b):
    """Outside registered memory: an error, and the engine goes on."""
    mine, theirs = a.allocate(1 << 20), b.allocate(1 << 20)
    b.fill(theirs, 1, 1 << 20)
    equal(a.read(b.engine_name(), mine, theirs, 4096), 0, "read inside")
    for address, n in ((8192, 16), (theirs + (1 << 20) - 8, 64 << 20)):
        equal(a.read(b.engine_name(), mine, address, min(n, 1 << 20)) != 0, True, f"read at {address:#x} is refused")
    equal(a.read(b.engine_name(), mine, theirs, 1 << 20), 0, "read inside again")
    return a.check(mine, 1, 1 << 20)


def engine_notify(a, b, settle=False):
    mine, theirs = a.allocate(4096), b.allocate(4096)
    a.fill(mine, 5, 4096)
    equal(a.probe(b.engine_name()), True, "probe")
    equal(a.write_notify(b.engine_name(), mine, theirs, 4096, "layer-7", "done: 4096 bytes"), 0, "write with notify")
    for _ in range(200):
        got = b.notifications()
        if got:
            break
        time.sleep(0.01)
    equal(got, [["layer-7", "done: 4096 bytes"]], "notification")
    return arrived(b, theirs, 5, 4096, settle)

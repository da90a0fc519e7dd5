"""Named buffers in a store as one object, which a manifest describes: the layer below structured_object_store.

    <prefix>/<partition>/<uuid>/manifest       JSON: where everything is
    .../meta[/chunk/N]                         bytes of the caller's
    .../buffer/<name>[/chunk/N]                a buffer; in chunks when it is longer than chunk_bytes

The manifest is written last, so that who can read it can read all; a put that fails takes back what it had written. The store is
anything with put, get and remove. What else a store can do is used where it has it: put_batch (one question to the master for many
chunks), batch_get_into and get_into_ranges (into the destination, without a copy in between), batch_remove.
"""
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import json
import uuid

import numpy as np

MISSING_OBJECT_ERROR = -704
BATCH_BYTES = 64 << 20  # Put at once.


def view_of(name, value):
    """The bytes of a buffer, without a copy where that can be."""
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value)
        return memoryview(value.reshape(-1).view(np.uint8)) if value.size else memoryview(b"")
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    return view.cast("B") if view.nbytes else memoryview(b"")


@dataclasses.dataclass
class Parts:
    """A payload of several pieces that lie one behind the other: the header of a tensor, and its data."""
    pieces: list
    metadata_bytes: int = 0

    def chunks(self, chunk_bytes):
        """Lists of pieces, each of chunk_bytes in all (the last may be shorter)."""
        now, room = [], chunk_bytes
        for piece in self.pieces:
            while piece.nbytes:
                now.append(piece[:room])
                room -= now[-1].nbytes
                piece = piece[now[-1].nbytes:]
                if room == 0:
                    yield now
                    now, room = [], chunk_bytes
        if now:
            yield now


def checked_name(what, name):
    if not isinstance(name, str) or not name or "\0" in name or (what == "buffer name" and "/" in name):
        raise ValueError(f"invalid bundle {what}: {name!r}")
    return name


class Bundles:
    def __init__(self, store, key_prefix, default_chunk_bytes, buffer_pool):
        self.store, self.key_prefix, self.default_chunk_bytes, self.pool = store, key_prefix, default_chunk_bytes, buffer_pool

    # ---- writing ----

    def put(self, meta, buffers, partition, chunk_bytes, policy, config):
        """The manifest of what was stored. buffers: {name: bytes-like, ndarray or Parts}."""
        chunk_bytes = self.default_chunk_bytes if chunk_bytes is None else chunk_bytes
        if chunk_bytes <= 0:
            raise ValueError("chunk_bytes must be positive")
        object_id = f"{checked_name('partition', partition)}/{uuid.uuid4().hex}"
        base = f"{self.key_prefix}/{object_id}"
        payloads = [(f"{base}/meta", Parts([view_of("meta", meta)]))]
        for name, value in buffers.items():
            checked_name("buffer name", name)
            payloads.append((f"{base}/buffer/{name}", value if isinstance(value, Parts) else Parts([view_of(name, value)])))
        specs, writes = [], []
        for key, payload in payloads:
            chunks = list(payload.chunks(chunk_bytes))
            keys = [key] if len(chunks) == 1 else [f"{key}/chunk/{i}" for i in range(len(chunks))]
            sizes = [sum(piece.nbytes for piece in chunk) for chunk in chunks]
            spec = {"key": key, "bytes": sum(sizes), "chunks": [{"key": k, "bytes": n} for k, n in zip(keys, sizes)]}
            if payload.metadata_bytes:
                spec["metadata_bytes"] = payload.metadata_bytes
            specs.append(spec)
            writes += zip(keys, chunks, sizes)
        manifest = {"version": 1, "layout": "bundle", "object_id": object_id, "meta": specs[0],
                    "buffers": dict(zip(buffers, specs[1:]))}
        self.write_all(writes, policy, config)
        try:
            self.put_manifest(f"{base}/manifest", manifest, config)
        except BaseException:
            self.remove_keys([key for key, _, _ in writes], quiet=True)
            raise
        return f"{base}/manifest", manifest

    def put_manifest(self, key, manifest, config):
        self.write(key, [memoryview(json.dumps(manifest, separators=(",", ":")).encode())], config)

    def write(self, key, pieces, config):
        value = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        code = self.store.put(key, value) if config is None else self.store.put(key, value, config)
        if code != 0:
            raise RuntimeError(f"put failed for {key}: {code}")

    def write_batch(self, writes, config):
        keys = [key for key, _, _ in writes]
        values = [pieces[0] if len(pieces) == 1 else b"".join(pieces) for _, pieces, _ in writes]
        code = self.store.put_batch(keys, values) if config is None else self.store.put_batch(keys, values, config)
        if code != 0:
            raise RuntimeError(f"put failed for {keys[0]} and {len(keys) - 1} more: {code}")

    def write_all(self, writes, policy, config):
        together = policy.put_mode != "parallel" and hasattr(self.store, "put_batch") and not getattr(config, "group_ids", None)
        jobs = []
        for write in writes:
            if together and jobs and sum(n for _, _, n in jobs[-1]) + write[2] <= BATCH_BYTES:
                jobs[-1].append(write)
            else:
                jobs.append([write])

        def one(job):
            if together and len(job) > 1:
                self.write_batch(job, config)
            else:
                self.write(job[0][0], job[0][1], config)
        try:
            if policy.max_inflight_put > 1 and len(jobs) > 1:
                with concurrent.futures.ThreadPoolExecutor(policy.max_inflight_put) as threads:
                    for done in [threads.submit(one, job) for job in jobs]:
                        done.result()
            else:
                for job in jobs:
                    one(job)
        except BaseException:
            self.remove_keys([key for key, _, _ in writes], quiet=True)
            raise

    # ---- reading ----

    def manifest(self, ref):
        """(key, manifest) of a RemoteBundleRef or of a mapping with its fields; read when it is not there."""
        if isinstance(ref, str):
            raise TypeError("a reference to a bundle is a RemoteBundleRef or a mapping with manifest_key")
        fields = ref if hasattr(ref, "get") else {"manifest_key": ref.manifest_key, "manifest": ref.manifest}
        if not isinstance(fields.get("manifest_key"), str):
            raise TypeError("a reference to a bundle has a manifest_key")
        key, manifest = fields["manifest_key"], fields.get("manifest")
        if not manifest:
            text = bytes(self.store.get(key))
            if not text:
                raise RuntimeError(f"get failed for {key}: no such manifest")
            manifest = json.loads(text)
        if manifest.get("version") != 1 or manifest.get("layout") != "bundle":
            raise ValueError(f"{key} is not the manifest of a bundle that this version knows")
        return key, manifest

    @contextlib.contextmanager
    def registered(self, address, size):
        """The memory at address, as the store may write into it."""
        known = not hasattr(self.store, "register_buffer") or self.store.register_buffer(address, size) != 0
        try:
            yield
        finally:
            if not known:
                self.store.unregister_buffer(address)

    def read_into(self, spec, address, begin=0, end=None, registered=False):
        """Bytes [begin, end) of a payload into memory at address."""
        end = spec["bytes"] if end is None else end
        wanted, at = [], 0  # (key, chunk's bytes, first byte, count)
        for chunk in spec["chunks"]:
            first, last = max(begin - at, 0), min(end - at, chunk["bytes"])
            if first < last:
                wanted.append((chunk["key"], chunk["bytes"], first, last - first))
            at += chunk["bytes"]
        if sum(n for *_, n in wanted) != end - begin:
            raise ValueError(f"the chunks of {spec['key']} are not {spec['bytes']} bytes")
        if not wanted:
            return
        whole = all(first == 0 and n == size for _, size, first, n in wanted)
        direct = hasattr(self.store, "batch_get_into" if whole else "get_into_ranges")
        with contextlib.nullcontext() if registered or not direct else self.registered(address, end - begin):
            if direct:
                self.read_directly(wanted, address, end - begin, whole)
            else:
                self.read_by_copies(wanted, address)

    def read_directly(self, wanted, address, total, whole):
        keys = [key for key, *_ in wanted]
        counts = [n for *_, n in wanted]
        places = [sum(counts[:i]) for i in range(len(counts))]
        if whole:
            got = self.store.batch_get_into(keys, [address + place for place in places], counts)
        else:
            got = self.store.get_into_ranges([address], [keys], [[[place] for place in places]],
                                             [[[first] for _, _, first, _ in wanted]], [[[n] for n in counts]])
            got = [pieces[0] for pieces in got[0]]
        for key, count, number in zip(keys, counts, got):
            if number != count:
                raise RuntimeError(f"get failed for {key}: expected {count} bytes, got {number}")

    def read_by_copies(self, wanted, address):
        for key, size, first, count in wanted:
            data = bytes(self.store.get(key))
            if len(data) != size:
                raise RuntimeError(f"get failed for {key}: expected {size} bytes, got {len(data)}")
            ctypes.memmove(address, data[first:first + count], count)
            address += count

    def read(self, spec, begin=0, end=None):
        """Bytes [begin, end) of a payload as an array of bytes."""
        end = spec["bytes"] if end is None else end
        out = np.empty(end - begin, np.uint8)
        if out.size and self.pool is not None:
            with self.pool.acquire(out.size) as lease:
                self.read_into(spec, lease.ptr, begin, end, registered=True)
                ctypes.memmove(out.ctypes.data, lease.ptr, out.size)
        elif out.size:
            self.read_into(spec, out.ctypes.data, begin, end)
        return out

    # ---- removing ----

    def remove_keys(self, keys, quiet=False):
        keys = list(dict.fromkeys(keys))
        if hasattr(self.store, "batch_remove") and len(keys) > 1:
            codes = self.store.batch_remove(keys, True)
        else:
            codes = [self.store.remove(key, True) for key in keys]
        bad = [(key, code) for key, code in zip(keys, codes) if code not in (0, MISSING_OBJECT_ERROR)]
        if bad and not quiet:
            raise RuntimeError(f"remove failed for {bad[0][0]}: {bad[0][1]}" + (f", and {len(bad) - 1} more" if bad[1:] else ""))

    @staticmethod
    def keys_of(key, manifest):
        """All keys of a bundle, the manifest's first: what is half removed cannot be found any more."""
        specs = [manifest["meta"], *manifest["buffers"].values()]
        return [key, *(chunk["key"] for spec in specs for chunk in spec["chunks"]), *manifest.get("cleanup_keys", ())]

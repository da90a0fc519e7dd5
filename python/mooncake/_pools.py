"""BufferPool: registered memory that callers borrow. EngramStore: embedding tables as objects."""
import ctypes
import time

_PAGE = 4096


class BufferLeaseView:
    """The memory of a lease."""
    __slots__ = ("buffer",)

    def __init__(self, buffer):
        self.buffer = buffer


class BufferLease:
    """Memory of a pool, until release() or the end of the `with`."""
    __slots__ = ("_pool", "_region", "_size", "_lent")

    def __init__(self, pool, region, size):
        self._pool, self._region, self._size = pool, region, size
        self._lent = pool._lent_type(region.ptr, size, region)

    def _open(self):
        if self._region is None:
            raise RuntimeError("buffer lease is closed")
        return self._region

    ptr = property(lambda self: self._open().ptr)
    size = property(lambda self: self._size)

    @property
    def buffer(self):
        self._open()
        return memoryview(self._lent)

    def release(self):
        if self._region is None:
            return
        if self._lent.exports:
            raise RuntimeError("cannot release buffer while exported views exist")
        region, self._region = self._region, None
        self._pool._give(region)

    def __enter__(self):
        self._open()
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        if self._region is not None and not self._lent.exports:  # else the memory stays with its views
            self.release()


class _Region:
    """Registered memory of one size class."""
    __slots__ = ("memory", "offset", "ptr", "size")

    def __init__(self, size, alignment):
        self.memory = (ctypes.c_char * (size + alignment))()
        address = ctypes.addressof(self.memory)
        self.offset = -address % alignment
        self.ptr, self.size = address + self.offset, size


class BufferPool:
    """Registered buffers of a store, by size class, at most `max_bytes` together (0 = twice the store's local buffer)."""

    def __init__(self, store, max_bytes=0, min_size_class=65536, max_size_class=None, alignment=8388608,
                 block_on_exhaustion=True, default_timeout=None, max_regions=None, prewarm_size=None, prewarm_count=0):
        capsule = getattr(store, "_get_pyclient_capsule", None)
        if capsule is None:
            raise RuntimeError("BufferPool store parameter must be a PyClient or store wrapper that implements "
                               "_get_pyclient_capsule()")
        owner = capsule()
        if owner is None:
            raise RuntimeError("MooncakeDistributedStore is not initialized")
        if min_size_class <= 0 or alignment <= 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment & (alignment - 1) or alignment < 8:
            raise RuntimeError("alignment must be a power of two and at least sizeof(void*)")
        local = owner._local_buffer_size()
        if local == 0:
            raise RuntimeError("BufferPool requires a store configured with a local buffer")
        self._store, self._alignment, self._smallest = owner, alignment, min_size_class
        self._capacity = max(max_bytes, local) if max_bytes else 2 * local
        self._block, self._timeout = block_on_exhaustion, default_timeout
        import threading
        from mooncake.store import _Lent
        self._lent_type = _Lent
        self._changed = threading.Condition()
        self._idle, self._bytes, self._lent, self._closed = {}, 0, 0, False

    def _class(self, size):
        return max(self._smallest, 1 << (size - 1).bit_length())

    def acquire(self, size, block=None, timeout=None):
        """A lease of `size` bytes; waits for one when the pool is exhausted, unless told otherwise."""
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None and timeout < 0:
            raise RuntimeError("timeout must be non-negative")
        if size <= 0:
            raise RuntimeError("requested buffer size must be positive")
        wanted = self._class(size)
        if wanted > self._capacity:
            wanted = size
        if wanted > self._capacity:
            raise RuntimeError("requested buffer size exceeds pool capacity")
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                region = self._take(wanted)
                if region is not None:
                    self._lent += 1
                    return BufferLease(self, region, size)
                if not (self._block if block is None else block):
                    raise RuntimeError("buffer pool is exhausted")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    buffer = acquire

    def _take(self, size):
        if self._idle.get(size):
            return self._idle[size].pop()
        while self._bytes + size > self._capacity and any(self._idle.values()):  # idle ones of other sizes go first
            self._drop(next(regions for regions in self._idle.values() if regions).pop())
        if self._bytes + size > self._capacity:
            return None
        region = _Region(size, min(self._alignment, max(_PAGE, size)))
        if self._store.register_buffer(region.ptr, size):
            raise RuntimeError("overflow buffer registration failed")
        self._bytes += size
        return region

    def _drop(self, region):
        self._store.unregister_buffer(region.ptr)
        self._bytes -= region.size

    def _give(self, region):
        with self._changed:
            self._lent -= 1
            if self._closed:
                self._drop(region)
            else:
                self._idle.setdefault(region.size, []).append(region)
            self._changed.notify_all()

    def prewarm(self, size, count):
        """Nothing to do: memory is made when it is first asked for."""

    def close(self):
        """Gives the memory back; RuntimeError while a lease lives."""
        with self._changed:
            if self._lent:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            for regions in self._idle.values():
                while regions:
                    self._drop(regions.pop())
            self._changed.notify_all()


class EngramStoreConfig:
    """The tables of a layer: rows of each, and floats in a row."""
    __slots__ = ("table_vocab_sizes", "embedding_dim")

    def __init__(self):
        self.table_vocab_sizes, self.embedding_dim = [], 0


class EngramStore:
    """One layer's embedding tables, each an object `engram:l<layer>:h<head>` of float32 rows."""

    def __init__(self, layer_id, config, store=None):
        self._sizes, self._dim = [int(n) for n in config.table_vocab_sizes], int(config.embedding_dim)
        if not self._sizes or self._dim <= 0 or any(n <= 0 for n in self._sizes):
            raise RuntimeError("table_vocab_sizes and embedding_dim must be positive")
        self._store = store
        self._keys = [f"engram:l{layer_id}:h{head}" for head in range(len(self._sizes))]

    def get_table_vocab_sizes(self):
        return list(self._sizes)

    def get_store_keys(self):
        return list(self._keys)

    def get_num_heads(self):
        return len(self._sizes)

    def get_embedding_dim(self):
        return self._dim

    def populate(self, embedding_buffers):
        """Stores the tables, one float32 array [rows, dim] a head."""
        import numpy
        if len(embedding_buffers) != len(self._sizes):
            raise RuntimeError("embedding_buffers must have one array per head")
        tables = []
        for table, rows in zip(embedding_buffers, self._sizes):
            if not isinstance(table, numpy.ndarray) or table.dtype != numpy.float32 or table.shape != (rows, self._dim):
                raise RuntimeError(f"each table must be a float32 array of shape [N_h, D], here [{rows}, {self._dim}]")
            tables.append(memoryview(numpy.ascontiguousarray(table).reshape(-1).view(numpy.uint8)))
        if self._store is None or self._store.put_batch(self._keys, tables):
            raise RuntimeError("populate failed")

    def lookup(self, row_ids):
        """Lookup embeddings by precomputed row IDs. Returns [B, L, H, D]."""
        import numpy
        ids = numpy.asarray(row_ids, dtype=numpy.int64)
        if ids.size == 0:
            raise RuntimeError("row_ids must not be empty")
        if ids.ndim != 3:
            raise RuntimeError("row_ids array must have shape [B, L, H]")
        if ids.shape[2] != len(self._sizes):
            raise RuntimeError("row_ids last dimension must match num_heads")
        out = numpy.empty(ids.shape + (self._dim,), numpy.float32)
        row = 4 * self._dim
        for head, (key, rows) in enumerate(zip(self._keys, self._sizes)):
            wanted, place = numpy.unique(ids[:, :, head], return_inverse=True)
            if wanted[0] < 0 or wanted[-1] >= rows or self._store is None:
                raise RuntimeError("EngramStore lookup failed")
            got = numpy.empty((len(wanted), self._dim), numpy.float32)
            base = got.ctypes.data
            answer = self._store._get_ranges([key], [[base + row * i for i in range(len(wanted))]], [[row] * len(wanted)],
                                             [[int(w) * row for w in wanted]])
            if answer != [row] * len(wanted):
                raise RuntimeError("EngramStore lookup failed")
            out[:, :, head] = got[place.reshape(ids.shape[:2])]
        return out

    def remove_from_store(self, force=False):
        """Remove all Mooncake Store tables owned by this EngramStore layer. Returns the number of removed head tables; missing
        keys are ignored."""
        return 0 if self._store is None else sum(code == 0 for code in self._store.batch_remove(self._keys, force))


class MooncakeDistributedNoFRegister:
    """NVMe-oF segments are not in this build: both calls return -1012 (not supported)."""

    def real_register(self, nqn, nsid, traddr, trsvcid, base, size, master_server_addr):
        return -1012

    def real_unregister_by_endpoint(self, nqn, nsid, traddr, trsvcid, master_server_addr):
        return -1012


CLASSES = (BufferPool, BufferLease, BufferLeaseView, EngramStore, EngramStoreConfig, MooncakeDistributedNoFRegister)
for _class in CLASSES:
    _class.__module__ = "mooncake.store"

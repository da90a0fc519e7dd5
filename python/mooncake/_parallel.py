"""Tensors spread over processes (tensor, expert, pipeline, data parallelism): which key a shard has, how a reader gets the shard or
the whole that it wants. The forms are upstream's, byte for byte; objects of any class with the right attributes are taken.

A shard of one TP axis is given as it is and stored as <key>_tp_<rank>; with further axes it is cut out of the full tensor. Readers
of another TP degree put their shard together from what was stored, by the manifest, which holds the full shape.
"""
import struct

from mooncake import _tensors as t

_MANIFEST = struct.Struct("<IHHiiiiii8q")
_MANIFEST_MAGIC, _MANIFEST_SIZE = 0x574D414E, 96
_MANIFEST_KEY = "{}__parallelism_manifest"
_WRITER_KEY = "{}__writer_manifest"
assert _MANIFEST.size == _MANIFEST_SIZE


class _Wrong(Exception):
    """What was asked for makes no sense."""


class _Axis:
    __slots__ = ("kind", "rank", "size", "split_dim", "number")

    def __init__(self, axis):
        self.kind = str(axis.kind).lower()
        self.rank, self.size = int(axis.rank), int(axis.size)
        split, expert, stage = (getattr(axis, name, None) for name in ("split_dim", "expert_id", "stage_id"))
        self.split_dim = -1 if split is None else int(split)
        self.number = 0
        if self.kind not in t.KINDS or not 0 <= self.rank < self.size:
            raise _Wrong(f"axis {self.kind} {self.rank} of {self.size}")
        if (self.kind == "tp") != (split is not None) or (split is not None and self.split_dim < 0):
            raise _Wrong(f"axis {self.kind}: split_dim {split}")
        if self.kind in ("ep", "pp"):
            wanted = expert if self.kind == "ep" else stage
            if wanted is None:
                raise _Wrong(f"axis {self.kind} has no number")
            self.number = int(wanted)

    def suffix(self):
        text = f"__{self.kind}_{self.rank}of{self.size}"
        if self.kind == "tp":
            text += f"_sd{self.split_dim}"
        return text + {"ep": f"_eid{self.number}", "pp": f"_sid{self.number}"}.get(self.kind, "")


def _axes(parallelism):
    """The axes in the order of names and headers."""
    axes = [_Axis(axis) for axis in parallelism.axes]
    if not 1 <= len(axes) <= t.MAX_AXES or len({axis.kind for axis in axes}) != len(axes):
        raise _Wrong("1 to 4 axes of different kinds")
    return sorted(axes, key=lambda axis: t.KINDS[axis.kind])


def _key(key, axes):
    if len(axes) == 1 and axes[0].kind == "tp":
        return t.tp_key(key, axes[0].rank)
    return key + "".join(axis.suffix() for axis in axes)


def _tp(axes):
    return next((axis for axis in axes if axis.kind == "tp"), None)


def _with_rank(axes, rank):
    """The same axes with another TP rank."""
    changed = []
    for axis in axes:
        if axis.kind == "tp":
            copy = object.__new__(_Axis)
            copy.kind, copy.rank, copy.size, copy.split_dim, copy.number = "tp", rank, axis.size, axis.split_dim, 0
            axis = copy
        changed.append(axis)
    return changed


# ---- manifests ----

def _pack_manifest(dtype, shape, split_dim, count):
    shape = tuple(shape) + (-1,) * (t.MAX_DIMS - len(shape))
    return _MANIFEST.pack(_MANIFEST_MAGIC, 1, _MANIFEST_SIZE, dtype, sum(extent >= 0 for extent in shape), split_dim, count, 0, 0,
                          *shape)


def _read_manifest(store, key):
    """(shape, split_dim, shards), or None."""
    data = store.get(key)
    if len(data) != _MANIFEST_SIZE:
        return None
    magic, version, size, dtype, ndim, split_dim, count, _, _, *shape = _MANIFEST.unpack(data)
    if (magic, version, size) != (_MANIFEST_MAGIC, 1, _MANIFEST_SIZE) or not (0 <= ndim <= t.MAX_DIMS and 0 <= split_dim < ndim):
        return None
    return (shape[:ndim], split_dim, count) if count > 0 else None


# ---- writing ----

def _write(self, key, tensor, parallelism, config, writer, upsert, cut):
    """`cut`: also a single TP shard is cut out of a full tensor."""
    if parallelism is not None and writer is not None:
        return t.INVALID
    if parallelism is None and writer is None:
        return t._write(self, key, tensor, config, upsert)
    described = t.describe(tensor) if self.health_check() != 1 else None
    if described is None:
        return t.INVALID
    try:
        if writer is not None:
            return _write_part(self, key, tensor, writer, config, upsert)
        return _write_shard(self, key, tensor, _axes(parallelism), config, upsert, cut)
    except (_Wrong, AttributeError, TypeError, ValueError) as error:
        t._log.error("'%s' cannot be stored so: %s", key, error)
        return t.INVALID


def _manifest(self, key, header, split_dim, count, config, upsert):
    data = _pack_manifest(header.dtype, header.global_shape, split_dim, count)
    write = self.upsert if upsert else self.put
    return write(key, data) if config is None else write(key, data, config)


def _write_part(self, key, tensor, writer, config, upsert):
    rank, size, split_dim = int(writer.rank), int(writer.size), int(writer.split_dim)
    if size <= 0 or not 0 <= rank < size or split_dim < 0:
        raise _Wrong(f"writer partition {rank} of {size} along {split_dim}")
    shards = t.shards_of(tensor, size, split_dim)
    if shards is None:
        raise _Wrong(f"dimension {split_dim} does not split into {size}")
    shard, header = shards[rank]
    code = t._store(self, t.describe(shard), f"{key}__writer_{rank}of{size}_sd{split_dim}", config, upsert, header)
    return code or _manifest(self, _WRITER_KEY.format(key), header, split_dim, size, config, upsert)


def _write_shard(self, key, tensor, axes, config, upsert, cut):
    tp = _tp(axes)
    full = list(tensor.shape)
    shard = tensor
    if tp is not None:
        if tp.split_dim >= tensor.dim():
            raise _Wrong(f"no dimension {tp.split_dim}")
        if cut or len(axes) > 1:
            shards = t.shards_of(tensor, tp.size, tp.split_dim)
            if shards is None:
                raise _Wrong(f"dimension {tp.split_dim} does not split into {tp.size}")
            shard = shards[tp.rank][0]
        else:
            full[tp.split_dim] *= tp.size
    records = [(t.KINDS[axis.kind], i, axis.rank, axis.size, axis.split_dim, axis.number,
                shard.shape[axis.split_dim] if axis.kind == "tp" else 0) for i, axis in enumerate(axes)]
    described = t.describe(shard)
    header = t.Header(described[0].dtype, described[0].local_shape, full, t.SHARD, records)
    code = t._store(self, described, _key(key, axes), config, upsert, header)
    if code or tp is None:
        return code
    return _manifest(self, _MANIFEST_KEY.format(key), header, tp.split_dim, tp.size, config, upsert)


# ---- reading ----

def _tensors(self, keys):
    """All of them, or None."""
    found = t.batch_get_tensor(self, keys)
    return None if any(tensor is None for tensor in found) else found


def _joined(tensors, split_dim):
    import torch
    if tensors is None or any(tensor.dim() <= split_dim for tensor in tensors):
        return None
    if tensors[0].dtype in (torch.uint16, torch.uint32, torch.uint64) if hasattr(torch, "uint16") else False:
        signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}[tensors[0].dtype]
        return torch.cat([tensor.view(signed) for tensor in tensors], split_dim).view(tensors[0].dtype)
    return torch.cat(tensors, split_dim)


def _whole_of_writers(self, key):
    manifest = _read_manifest(self, _WRITER_KEY.format(key))
    if manifest is None:
        return t.get_tensor(self, key)
    _, split_dim, count = manifest
    return _joined(_tensors(self, [f"{key}__writer_{rank}of{count}_sd{split_dim}" for rank in range(count)]), split_dim)


def _whole_of_shards(self, key, axes):
    tp = _tp(axes)
    if tp is None:
        return None
    return _joined(_tensors(self, [_key(key, _with_rank(axes, rank)) for rank in range(tp.size)]), tp.split_dim)


def _from_other_degree(self, key, axes, tp):
    """The shard out of shards of another TP degree."""
    manifest = _read_manifest(self, _MANIFEST_KEY.format(key))
    if manifest is None or manifest[1] != tp.split_dim or manifest[0][tp.split_dim] % tp.size:
        return None
    shape, split_dim, count = manifest
    if shape[split_dim] % count:
        return None
    extent, stored = shape[split_dim] // tp.size, shape[split_dim] // count
    begin, end = extent * tp.rank, extent * (tp.rank + 1)
    first, last = begin // stored, (end - 1) // stored if end > begin else begin // stored
    others = [f"{t.tp_key(key, rank)}" if len(axes) == 1 else None for rank in range(first, last + 1)]
    if None in others:
        return None
    whole = _joined(_tensors(self, others), split_dim)
    return None if whole is None else whole.narrow(split_dim, begin - first * stored, extent).contiguous()


def _stored_as(self, key, axes):
    """The shard at its own key, when its header tells of the same axes."""
    handle = self.get_buffer(key)
    tensor = t.from_handle(handle)
    if tensor is None:
        return None
    header = t.parse(memoryview(handle).cast("B")[:t.SIZE], len(handle))
    same = [(kind, rank, count, split_dim, number) for kind, _, rank, count, split_dim, number, _ in header.axes] == [
        (t.KINDS[axis.kind], axis.rank, axis.size, axis.split_dim, axis.number) for axis in axes]
    return tensor if same else None


def _shard(self, key, axes):
    tensor = _stored_as(self, _key(key, axes), axes)
    tp = _tp(axes)
    if tensor is not None or tp is None or len(axes) > 1:
        return tensor
    tensor = t.get_tensor(self, f"{key}__writer_{tp.rank}of{tp.size}_sd{tp.split_dim}")
    if tensor is None:
        tensor = _from_other_degree(self, key, axes, tp)
    return tensor


def _read(self, key, target):
    mode = "as_stored" if target is None else str(target.mode).lower()
    parallelism = None if target is None else getattr(target, "parallelism", None)
    try:
        if mode == "as_stored":
            return t.get_tensor(self, key) if parallelism is None else None
        if mode == "full":
            return _whole_of_writers(self, key) if parallelism is None else _whole_of_shards(self, key, _axes(parallelism))
        return None if mode != "shard" or parallelism is None else _shard(self, key, _axes(parallelism))
    except (_Wrong, AttributeError, TypeError, ValueError) as error:
        t._log.error("'%s' cannot be read so: %s", key, error)
        return None


def _read_into(self, key, buffer_ptr, size, target):
    """Header and elements of what _read() gives, in the caller's buffer."""
    import ctypes
    tensor = _read(self, key, target)
    described = None if tensor is None else t.describe(tensor)
    if described is None or not buffer_ptr or t.SIZE + described[2] > size:
        return None
    header, address, nbytes, owner = described
    ctypes.memmove(buffer_ptr, header.pack(), t.SIZE)
    if nbytes:
        ctypes.memmove(buffer_ptr + t.SIZE, address, nbytes)
    del owner
    return t.from_memory(buffer_ptr, t.SIZE + nbytes)


def _targets(keys, given):
    keys = list(keys)
    given = [None] * len(keys) if given is None else list(given)
    return keys, given if len(given) == len(keys) else None


# ---- the methods ----

def get_tensor_with_parallelism(self, key, target=None):
    """Get a PyTorch tensor from the store using a ReadTarget request."""
    return _read(self, key, target)


def batch_get_tensor_with_parallelism(self, keys, targets=None):
    """Get a batch of PyTorch tensors from the store using ReadTarget requests."""
    keys, targets = _targets(keys, targets)
    return [None] * len(keys) if targets is None else [_read(self, key, one) for key, one in zip(keys, targets)]


def get_tensor_with_parallelism_into(self, key, buffer_ptr, size, target=None):
    """Get a PyTorch tensor from the store directly into a pre-allocated buffer using a ReadTarget request."""
    return _read_into(self, key, buffer_ptr, size, target)


def batch_get_tensor_with_parallelism_into(self, keys, buffer_ptrs, sizes, targets=None):
    """Get a batch of PyTorch tensors into pre-allocated buffers using ReadTarget requests."""
    keys, targets = _targets(keys, targets)
    if targets is None or not len(keys) == len(buffer_ptrs) == len(sizes):
        return [None] * len(keys)
    return [_read_into(self, *call) for call in zip(keys, buffer_ptrs, sizes, targets)]


def _write_many(self, keys, tensors, parallelisms, config, writers, upsert, cut):
    keys, parallelisms = _targets(keys, parallelisms)
    _, writers = _targets(keys, writers)
    if parallelisms is None or writers is None or len(tensors) != len(keys):
        return [t.INVALID] * len(keys)
    return [_write(self, key, tensor, one, config, writer, upsert, cut)
            for key, tensor, one, writer in zip(keys, tensors, parallelisms, writers)]


def _from(self, ptr, size):
    return None if t.header_at(ptr, size) is None else t.from_memory(ptr, size)


def _make(name, doc, many, upsert, by_address):
    """One of the eight writing methods; they differ in three words."""
    if many and by_address:
        def method(self, keys, buffer_ptrs, sizes, parallelisms=None, config=None, writer_partitions=None):
            if not len(list(keys)) == len(buffer_ptrs) == len(sizes):
                return [t.INVALID] * len(list(keys))
            tensors = [_from(self, ptr, size) for ptr, size in zip(buffer_ptrs, sizes)]
            return _write_many(self, keys, tensors, parallelisms, config, writer_partitions, upsert, True)
    elif many:
        def method(self, keys, tensors_list, parallelisms=None, config=None, writer_partitions=None):
            return _write_many(self, keys, list(tensors_list), parallelisms, config, writer_partitions, upsert, False)
    elif by_address:
        def method(self, key, buffer_ptr, size, parallelism=None, config=None, writer_partition=None):
            return _write(self, key, _from(self, buffer_ptr, size), parallelism, config, writer_partition, upsert, True)
    else:
        def method(self, key, tensor, parallelism=None, config=None, writer_partition=None):
            return _write(self, key, tensor, parallelism, config, writer_partition, upsert, False)
    method.__name__ = method.__qualname__ = name
    method.__doc__ = doc
    return method


METHODS = (get_tensor_with_parallelism, batch_get_tensor_with_parallelism, get_tensor_with_parallelism_into,
           batch_get_tensor_with_parallelism_into) + tuple(
    _make(f"{'batch_' if many else ''}{verb}_tensor_with_parallelism{'_from' if by_address else ''}",
          f"{verb.capitalize()} {'a batch of tensors' if many else 'a tensor'}"
          f"{' directly from pre-allocated buffers' if by_address else ''} using TensorParallelism requests or writer_partition "
          "requests.", many, verb == "upsert", by_address)
    for many in (False, True) for verb in ("put", "upsert") for by_address in (False, True))

"""Tensors as objects: a header of 304 bytes, then the elements in order. Every function here works on the store's byte calls, so
the bytes go from the tensor's memory to its replicas without a copy in between.

torch is imported when the first tensor is met, never before; any version from 1.13 on does, less the dtypes that it has not.
"""
import ctypes
import struct


class _Log:
    """logging, imported when there is something to say."""

    def __getattr__(self, level):
        import logging
        return getattr(logging.getLogger("mooncake"), level)


_log = _Log()

MAGIC, VERSION, SIZE = 0x4D4F4F4E, 1, 304
MAX_DIMS, MAX_AXES = 8, 4
FULL, SHARD = 0, 1
INVALID = -600
NOT_FOUND = -704

_HEAD = struct.Struct("<IHHiiIIQQ8q8qII")
_AXIS = struct.Struct("<iiiiiiq")
assert _HEAD.size + MAX_AXES * _AXIS.size == SIZE

# code: (name of the dtype, bytes of an element)
DTYPES = (("float32", 4), ("float64", 8), ("int8", 1), ("uint8", 1), ("int16", 2), ("uint16", 2), ("int32", 4), ("uint32", 4),
          ("int64", 8), ("uint64", 8), ("bool", 1), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1))
_CODES = {name: code for code, (name, _) in enumerate(DTYPES)}
KINDS = {"dp": 0, "tp": 1, "ep": 2, "pp": 3}


class Header:
    """The metadata before a tensor's bytes."""
    __slots__ = ("dtype", "layout", "global_shape", "local_shape", "axes")

    def __init__(self, dtype, local_shape, global_shape=None, layout=FULL, axes=()):
        self.dtype, self.layout, self.axes = dtype, layout, tuple(axes)
        self.local_shape = tuple(local_shape)
        self.global_shape = tuple(local_shape if global_shape is None else global_shape)

    @property
    def nbytes(self):
        total = DTYPES[self.dtype][1]
        for extent in self.local_shape:
            total *= extent
        return total

    def pack(self):
        def padded(shape):
            return tuple(shape) + (-1,) * (MAX_DIMS - len(shape))
        head = _HEAD.pack(MAGIC, VERSION, SIZE, self.dtype, len(self.local_shape), self.layout, 0, SIZE, self.nbytes,
                          *padded(self.global_shape), *padded(self.local_shape), len(self.axes), 0)
        axes = b"".join(_AXIS.pack(*axis) for axis in self.axes)
        return head + axes + bytes(SIZE - len(head) - len(axes))


def parse(data, total):
    """The Header at the start of an object of `total` bytes; None when it is none."""
    if total < SIZE:
        return None
    fields = _HEAD.unpack_from(data)
    magic, version, size, dtype, ndim, layout, _, offset, nbytes = fields[:9]
    shapes, axis_count = (fields[9:17], fields[17:25]), fields[25]
    if (magic, version, size) != (MAGIC, VERSION, SIZE) or not (0 <= dtype < len(DTYPES) and 0 <= ndim <= MAX_DIMS):
        return None
    if axis_count > MAX_AXES or layout > SHARD or offset != SIZE or nbytes != total - offset:
        return None
    for shape in shapes:
        if any(extent < 0 for extent in shape[:ndim]) or any(extent != -1 for extent in shape[ndim:]):
            return None
    axes = [_AXIS.unpack_from(data, _HEAD.size + i * _AXIS.size) for i in range(axis_count)]
    for kind, _, rank, count, split_dim, _, _ in axes:
        if not (0 <= kind <= 4 and 0 <= rank < count and -1 <= split_dim < ndim):
            return None
    header = Header(dtype, shapes[1][:ndim], shapes[0][:ndim], layout, axes)
    return header if header.nbytes == nbytes else None


# ---- torch ----

def is_tensor(value):
    return "Tensor" in type(value).__name__


def _code(tensor):
    """The code of the tensor's dtype, or None."""
    return _CODES.get(str(tensor.dtype).rsplit(".", 1)[-1])


def _dense(tensor):
    """A contiguous tensor in host memory with the same elements."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    return tensor.contiguous()


def describe(tensor):
    """(Header, address, bytes, owner) of a tensor, or None when it cannot be stored."""
    if not is_tensor(tensor):
        return None
    code = _code(tensor)
    if code is None or tensor.dim() > MAX_DIMS:
        _log.error("a tensor of dtype %s and %d dimensions cannot be stored", tensor.dtype, tensor.dim())
        return None
    owner = _dense(tensor)
    header = Header(code, owner.shape)
    return header, owner.data_ptr() if header.nbytes else 0, header.nbytes, owner


def _torch_dtype(code):
    import torch
    return getattr(torch, DTYPES[code][0], None)


def build(header, buffer, offset=SIZE):
    """A tensor over `buffer`, whose memory it keeps; None when this torch has no such dtype."""
    import torch
    dtype = _torch_dtype(header.dtype)
    if dtype is None:
        _log.error("torch %s has no dtype %s", torch.__version__, DTYPES[header.dtype][0])
        return None
    if header.nbytes == 0:
        return torch.empty(header.local_shape, dtype=dtype)
    raw = torch.frombuffer(buffer, dtype=torch.uint8, count=header.nbytes, offset=offset)
    if offset % DTYPES[header.dtype][1] or raw.data_ptr() % DTYPES[header.dtype][1]:
        raw = raw.clone()
    return raw.view(dtype).reshape(header.local_shape)


def from_handle(handle):
    """A tensor that keeps the BufferHandle; None when the object is no tensor."""
    if handle is None:
        return None
    header = parse(memoryview(handle).cast("B")[:SIZE], len(handle))
    return None if header is None else build(header, handle)


def from_memory(address, total, capacity=None):
    """A tensor over memory of the caller's that holds header and elements."""
    if total < SIZE:
        return None
    memory = (ctypes.c_char * total).from_address(address)
    header = parse(memory, total)
    return None if header is None else build(header, memory)


def header_at(address, size):
    """The Header of a buffer of exactly one tensor, or None."""
    if not address or size < SIZE:
        return None
    return parse(ctypes.string_at(address, SIZE), size)


# ---- module functions ----

def _serialize_tensor(tensor):
    """(metadata bytes, address, bytes, owner): what put_tensor() would store."""
    described = describe(tensor)
    if described is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    header, address, nbytes, owner = described
    return header.pack(), address, nbytes, owner


def _tensor_metadata_size():
    """Bytes of the header before a tensor's elements."""
    return SIZE


def _deserialize_tensor(data):
    """The tensor of an object's bytes."""
    if not isinstance(data, bytes):
        raise TypeError(f"_deserialize_tensor() takes bytes, not {type(data).__name__}")
    header = parse(data, len(data))
    tensor = None if header is None else build(header, bytearray(data))
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor


# ---- writing ----

def _store(self, described, key, config, upsert, header=None):
    """One tensor under one key."""
    own, address, nbytes, owner = described
    parts = [(header or own).pack()]
    if nbytes:
        parts.append((ctypes.c_char * nbytes).from_address(address))
    write = self.upsert_parts if upsert else self.put_parts
    code = write(key, *[memoryview(part).cast("B") for part in parts], **({} if config is None else {"config": config}))
    del owner
    return code


def _checked(config):
    """0, or why a configuration of pub_tensor() is refused."""
    segments = [] if config is None else config.preferred_segments
    return INVALID if segments and len(segments) != config.replica_num else 0


def _write(self, key, tensor, config, upsert):
    described = describe(tensor) if self.health_check() != 1 else None
    if described is None or _checked(config):
        return INVALID
    return _store(self, described, key, config, upsert)


def _write_many(self, keys, tensors, config, upsert):
    keys, tensors = list(keys), list(tensors)
    if len(keys) != len(tensors) or not keys or _checked(config):
        return [INVALID] * len(keys)
    described = [describe(tensor) for tensor in tensors]
    codes = [INVALID] * len(keys)
    places = [i for i, one in enumerate(described) if one is not None]
    heads = [described[i][0].pack() for i in places]
    buffers = [ctypes.create_string_buffer(head, SIZE) for head in heads]
    pointers = [[ctypes.addressof(head)] + ([described[i][1]] if described[i][2] else []) for head, i in zip(buffers, places)]
    sizes = [[SIZE] + ([described[i][2]] if described[i][2] else []) for i in places]
    wanted = [keys[i] for i in places]
    if upsert:
        results = self._batch_upsert_from_multi_buffers(wanted, pointers, sizes, *([] if config is None else [config]))
    else:
        results = self.batch_put_from_multi_buffers(wanted, pointers, sizes, *([] if config is None else [config]))
    for i, code in zip(places, results):
        codes[i] = code
    return codes


def put_tensor(self, key, tensor):
    """Put a PyTorch tensor into the store"""
    return _write(self, key, tensor, None, False)


def upsert_tensor(self, key, tensor):
    """Upsert a PyTorch tensor into the store (insert or update)"""
    return _write(self, key, tensor, None, True)


def pub_tensor(self, key, tensor, config=None):
    """Publish a PyTorch tensor with configurable replication settings"""
    return _write(self, key, tensor, config, False)


def upsert_pub_tensor(self, key, tensor, config=None):
    """Upsert a PyTorch tensor with configurable replication settings"""
    return _write(self, key, tensor, config, True)


def batch_put_tensor(self, keys, tensors_list):
    """Put a batch of PyTorch tensors into the store"""
    return _write_many(self, keys, tensors_list, None, False)


def batch_upsert_tensor(self, keys, tensors_list):
    """Upsert a batch of PyTorch tensors into the store (insert or update)"""
    return _write_many(self, keys, tensors_list, None, True)


def batch_pub_tensor(self, keys, tensors_list, config=None):
    """Publish a batch of PyTorch tensors into the store with configurable replication settings"""
    return _write_many(self, keys, tensors_list, config, False)


def batch_upsert_pub_tensor(self, keys, tensors_list, config=None):
    """Batch upsert PyTorch tensors with configurable replication settings"""
    return _write_many(self, keys, tensors_list, config, True)


def put_tensor_from(self, key, buffer_ptr, size):
    """Put a tensor directly from a pre-allocated buffer. Buffer layout must be [TensorMetadata][tensor data], same as
    get_tensor_into."""
    return INVALID if header_at(buffer_ptr, size) is None else self.put_from(key, buffer_ptr, size)


def upsert_tensor_from(self, key, buffer_ptr, size):
    """Upsert a tensor directly from a pre-allocated buffer. Buffer layout must be [TensorMetadata][tensor data]."""
    return INVALID if header_at(buffer_ptr, size) is None else self.upsert_from(key, buffer_ptr, size)


def _many_from(call, keys, buffer_ptrs, sizes):
    keys = list(keys)
    if not len(keys) == len(buffer_ptrs) == len(sizes) or not keys:
        return [INVALID] * len(keys)
    if any(header_at(ptr, size) is None for ptr, size in zip(buffer_ptrs, sizes)):
        return [INVALID] * len(keys)  # one that is no tensor spoils the batch (as upstream)
    return call(keys, buffer_ptrs, sizes)


def batch_put_tensor_from(self, keys, buffer_ptrs, sizes):
    """Put tensors directly from pre-allocated buffers for multiple keys. Each buffer layout: [TensorMetadata][tensor data]."""
    return _many_from(self.batch_put_from, keys, buffer_ptrs, sizes)


def batch_upsert_tensor_from(self, keys, buffer_ptrs, sizes):
    """Upsert tensors directly from pre-allocated buffers for multiple keys. Each buffer layout: [TensorMetadata][tensor
    data]."""
    return _many_from(self.batch_upsert_from, keys, buffer_ptrs, sizes)


# ---- reading ----

def get_tensor(self, key):
    """Get a PyTorch tensor from the store"""
    return from_handle(self.get_buffer(key))


def batch_get_tensor(self, keys):
    """Get a batch of PyTorch tensors from the store"""
    return [from_handle(handle) for handle in self.batch_get_buffer(keys)]


def get_tensor_into(self, key, buffer_ptr, size):
    """Get tensor directly into a pre-allocated buffer"""
    total = self.get_into(key, buffer_ptr, size)
    return from_memory(buffer_ptr, total) if total >= 0 else None


def batch_get_tensor_into(self, keys, buffer_ptrs, sizes):
    """Get tensors directly into pre-allocated buffers for multiple keys"""
    keys = list(keys)
    if not len(keys) == len(buffer_ptrs) == len(sizes):
        return [INVALID] * len(keys)
    totals = self.batch_get_into(keys, buffer_ptrs, sizes)
    return [from_memory(ptr, total) if total >= 0 else None for ptr, total in zip(buffer_ptrs, totals)]


def get_tensor_into_cuda(self, key, tensor):
    """-600: only a dummy client shares CUDA memory"""
    return INVALID


def batch_get_tensor_into_cuda(self, keys, tensors_list):
    """-600 each: only a dummy client shares CUDA memory"""
    return [INVALID] * len(list(keys))


# ---- shards of tensor parallelism, the older calls ----

def tp_key(key, rank):
    return f"{key}_tp_{rank}"


def shards_of(tensor, size, split_dim):
    """[(tensor, Header)] of the uniform shards, or None when the dimension cannot be split so."""
    if not is_tensor(tensor) or not 0 <= split_dim < tensor.dim() or tensor.shape[split_dim] % size:
        return None
    code = _code(tensor)
    if code is None or tensor.dim() > MAX_DIMS:
        return None
    extent = tensor.shape[split_dim] // size
    return [(shard, Header(code, shard.shape, tensor.shape, SHARD,
                           [(KINDS["tp"], 0, rank, size, split_dim, 0, extent)]))
            for rank, shard in ((r, tensor.narrow(split_dim, r * extent, extent)) for r in range(size))]


def _put_tp(self, key, tensor, config, tp_size, split_dim):
    if tp_size <= 1:
        return _write(self, key, tensor, config, False)
    shards = shards_of(tensor, tp_size, split_dim) if self.health_check() != 1 else None
    if shards is None or _checked(config):
        return INVALID
    for rank, (shard, header) in enumerate(shards):
        code = _store(self, describe(shard), tp_key(key, rank), config, False, header)
        if code:
            return code
    return 0


def put_tensor_with_tp(self, key, tensor, tp_rank=0, tp_size=1, split_dim=0):
    """Put a PyTorch tensor into the store, split into shards for tensor parallelism.
    The tensor is chunked immediately and stored as separate keys (e.g., key_tp_0)."""
    return _put_tp(self, key, tensor, None, tp_size, split_dim)


def pub_tensor_with_tp(self, key, tensor, config=None, tp_rank=0, tp_size=1, split_dim=0):
    """Publish a PyTorch tensor into the store with configurable replication settings, split into shards for tensor
    parallelism. The tensor is chunked immediately and stored as separate keys (e.g., key_tp_0)."""
    return _put_tp(self, key, tensor, config, tp_size, split_dim)


def _put_tp_many(self, keys, tensors, config, tp_size, split_dim):
    keys, tensors = list(keys), list(tensors)
    if len(keys) != len(tensors) or not keys:
        return [INVALID] * len(keys)
    if tp_size <= 1:
        return _write_many(self, keys, tensors, config, False)
    return [_put_tp(self, key, tensor, config, tp_size, split_dim) for key, tensor in zip(keys, tensors)]


def batch_put_tensor_with_tp(self, base_keys, tensors_list, tp_rank=0, tp_size=1, split_dim=0):
    """Put a batch of PyTorch tensors into the store, splitting each into shards for tensor parallelism."""
    return _put_tp_many(self, base_keys, tensors_list, None, tp_size, split_dim)


def batch_pub_tensor_with_tp(self, base_keys, tensors_list, config=None, tp_rank=0, tp_size=1, split_dim=0):
    """Publish a batch of PyTorch tensors into the store with configurable replication settings, splitting each into shards for
    tensor parallelism."""
    return _put_tp_many(self, base_keys, tensors_list, config, tp_size, split_dim)


def _tp_name(key, rank, size):
    return key if size <= 1 else tp_key(key, rank)


def get_tensor_with_tp(self, key, tp_rank=0, tp_size=1, split_dim=0):
    """Get a PyTorch tensor from the store, optionally sliced for Tensor Parallelism."""
    return get_tensor(self, _tp_name(key, tp_rank, tp_size))


def batch_get_tensor_with_tp(self, base_keys, tp_rank=0, tp_size=1):
    """Get a batch of PyTorch tensor shards from the store for a given Tensor Parallel rank."""
    return batch_get_tensor(self, [_tp_name(key, tp_rank, tp_size) for key in base_keys])


def get_tensor_with_tp_into(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
    """Get a PyTorch tensor from the store directly into a pre-allocated buffer, optionally sliced for Tensor Parallelism."""
    return get_tensor_into(self, _tp_name(key, tp_rank, tp_size), buffer_ptr, size)


def batch_get_tensor_with_tp_into(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1):
    """Get a batch of PyTorch tensor shards from the store directly into pre-allocated buffers for a given Tensor Parallel
    rank."""
    return batch_get_tensor_into(self, [_tp_name(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)


def put_tensor_with_tp_from(self, key, buffer_ptr, size, tp_rank=0, tp_size=1, split_dim=0):
    """Put a full tensor directly from a pre-allocated buffer for Tensor Parallelism. The buffer is split internally and stored
    under key_tp_<rank> for all ranks."""
    if header_at(buffer_ptr, size) is None:
        return INVALID
    if tp_size <= 1:
        return put_tensor_from(self, key, buffer_ptr, size)
    return _put_tp(self, key, from_memory(buffer_ptr, size), None, tp_size, split_dim)


def batch_put_tensor_with_tp_from(self, base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1, split_dim=0):
    """Put a batch of full tensors directly from pre-allocated buffers for Tensor Parallelism. Each buffer is internally split and
    stored under key_tp_<rank> for all ranks."""
    base_keys = list(base_keys)
    if not len(base_keys) == len(buffer_ptrs) == len(sizes):
        return [INVALID] * len(base_keys)
    return [put_tensor_with_tp_from(self, key, ptr, size, tp_rank, tp_size, split_dim)
            for key, ptr, size in zip(base_keys, buffer_ptrs, sizes)]


# ---- safetensors ----

def save_tensor_to_safetensor(self, key, file_name=None):
    """Export a tensor stored under the given key into a safetensors file. If file_name is not provided, the key will be used as
    the filename."""
    tensor = get_tensor(self, key)
    if tensor is None:
        return -1100
    try:
        from safetensors.torch import save_file
        save_file({key: tensor}, file_name or key)
    except Exception as error:  # of the library, the file system or the tensor: all the same number to upstream's callers
        _log.error("the tensor '%s' could not be saved: %s", key, error)
        return INVALID
    return 0


def load_tensor_from_safetensor(self, key=None, file_name=None):
    """Load a tensor from a safetensors file and store it back in Mooncake.
    If the 'key' parameter is not provided, the file_name is used as the store key.
    If the provided key is not found in the safetensor file, the first tensor in the file is used and a warning is logged."""
    if not isinstance(file_name, str):
        raise TypeError("load_tensor_from_safetensor() missing required argument 'file_name'")
    try:
        from safetensors.torch import load_file
        tensors = load_file(file_name)
    except Exception as error:
        _log.error("'%s' could not be loaded: %s", file_name, error)
        return None
    if not tensors:
        return None
    tensor = tensors.get(key)
    if tensor is None:
        first = next(iter(tensors))
        if key is not None:
            _log.warning("'%s' has no tensor '%s', taking '%s'", file_name, key, first)
        tensor = tensors[first]
    return tensor if put_tensor(self, key or file_name, tensor) == 0 else None


METHODS = (put_tensor, upsert_tensor, pub_tensor, upsert_pub_tensor, batch_put_tensor, batch_upsert_tensor, batch_pub_tensor,
           batch_upsert_pub_tensor, put_tensor_from, upsert_tensor_from, batch_put_tensor_from, batch_upsert_tensor_from,
           get_tensor, batch_get_tensor, get_tensor_into, batch_get_tensor_into, get_tensor_into_cuda,
           batch_get_tensor_into_cuda, put_tensor_with_tp, pub_tensor_with_tp, batch_put_tensor_with_tp,
           batch_pub_tensor_with_tp, get_tensor_with_tp, batch_get_tensor_with_tp, get_tensor_with_tp_into,
           batch_get_tensor_with_tp_into, put_tensor_with_tp_from, batch_put_tensor_with_tp_from, save_tensor_to_safetensor,
           load_tensor_from_safetensor)
FUNCTIONS = (_serialize_tensor, _tensor_metadata_size, _deserialize_tensor)

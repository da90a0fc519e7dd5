"""The Python half of mooncake.store: what the extension module takes in when it is imported."""
from mooncake import _parallel, _pools, _tensors, _types


_INVALID_PARAMS = -600


def get_into_ranges(self, buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes):
    """Get multiple byte ranges from multiple objects into multiple pre-allocated buffers. The result is indexed
    [buffer][key][fragment]: bytes, or a negative error."""
    nested = (all_dst_offsets, all_src_offsets, all_sizes)
    same = len(buffer_ptrs) == len(all_keys) and all(
        len(rows) == len(all_keys) and all(len(row) == len(keys) for row, keys in zip(rows, all_keys))
        for rows in nested) and all(
        len({len(rows[b][k]) for rows in nested}) == 1 for b, keys in enumerate(all_keys) for k in range(len(keys)))
    answer = None
    if same:
        flat = [(b, k) for b, keys in enumerate(all_keys) for k in range(len(keys))]
        answer = self._get_ranges([all_keys[b][k] for b, k in flat],
                                  [[buffer_ptrs[b] + offset for offset in all_dst_offsets[b][k]] for b, k in flat],
                                  [all_sizes[b][k] for b, k in flat], [all_src_offsets[b][k] for b, k in flat])
    if answer is None:  # not set up, or lists of different shapes
        return [[[_INVALID_PARAMS] * len(row) for row in rows] for rows in all_dst_offsets]
    values = iter(answer)
    return [[[next(values) for _ in row] for row in rows] for rows in all_dst_offsets]


def unmount_local_disk_segment(self, grace_period_seconds=0):
    """0: this client has no disk segment to take back."""
    return 0 if self.health_check() != 1 else -1


def get_offload_rpc_read_count(self):
    """Reads that another client's disk served for this one."""
    return 0


def _get_pyclient_capsule(self):
    """Internal use: what a BufferPool holds on to; None before setup()."""
    return self if self.health_check() != 1 else None


def _get_pyclient_from_wrapper(wrapper):
    """_get_pyclient_capsule() of a store or of what wraps one; None when it has none."""
    get = getattr(wrapper, "_get_pyclient_capsule", None)
    return None if get is None else get()


_METHODS = (_get_pyclient_capsule, get_into_ranges, unmount_local_disk_segment, get_offload_rpc_read_count)


def _install(module):
    for cls in _types._PUBLIC + _pools.CLASSES:
        setattr(module, cls.__name__, cls)
    for enum in _types._EXPORTED:
        for name, member in enum.__members__.items():
            setattr(module, name, member)
    module.RegisteredBufferPool, module.RegisteredBufferLease = _pools.BufferPool, _pools.BufferLease
    module.RegisteredBufferLeaseView = _pools.BufferLeaseView
    for function in _tensors.FUNCTIONS + (_get_pyclient_from_wrapper,):
        setattr(module, function.__name__, function)
    for method in _METHODS + _tensors.METHODS + _parallel.METHODS:
        setattr(module.MooncakeDistributedStore, method.__name__, method)

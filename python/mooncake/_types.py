"""Enums and data classes of mooncake.store. They behave as upstream's, which pybind11 made: an enum member is not an
int and equals only members of its own enum; vectors are given out as copies; classes that only the store makes have no
constructor.
"""
from collections import namedtuple


def _no_constructor(cls, *args, **keywords):
    raise TypeError(f"mooncake.store.{cls.__name__}: No constructor defined!")


class _Enum:
    __slots__ = ("_name", "_value")

    def __new__(cls, value):
        known = cls._by_value.get(value)
        if known is not None:
            return known
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{cls.__name__}() takes an int, not {value!r}")
        return cls._make("???", value)

    @classmethod
    def _make(cls, name, value):
        self = object.__new__(cls)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_value", value)
        return self

    @classmethod
    def _define(cls, **members):
        cls._by_value = {}
        cls.__members__ = {}
        for name, value in members.items():
            member = cls._make(name, value)
            cls._by_value[value] = cls.__members__[name] = member
            setattr(cls, name, member)
        return cls

    name = property(lambda self: self._name)
    value = property(lambda self: self._value)

    def __setattr__(self, name, value):
        raise AttributeError(f"members of {type(self).__name__} do not change")

    def __int__(self):
        return self._value

    __index__ = __int__

    def __eq__(self, other):
        return type(other) is type(self) and other._value == self._value

    def __hash__(self):
        return self._value

    def __repr__(self):
        return f"<{type(self).__name__}.{self._name}: {self._value}>"

    def __str__(self):
        return f"{type(self).__name__}.{self._name}"

    def __reduce__(self):
        return type(self), (self._value,)


class ObjectDataType(_Enum):
    """What an object holds."""


class SoftPinAction(_Enum):
    """What a put does to the object's soft pin."""


class ReplicaStatus(_Enum):
    """Where a replica is in its life."""


class TaskType(_Enum):
    """What a task does."""


class TaskStatus(_Enum):
    """How a task stands; mind the order of the numbers, which is upstream's."""


ObjectDataType._define(UNKNOWN=0, KVCACHE=1, TENSOR=2, WEIGHT=3, SAMPLE=4, ACTIVATION=5, GRADIENT=6,
                       OPTIMIZER_STATE=7, METADATA=8, GENERAL=9)
SoftPinAction._define(PRESERVE=0, ENABLE=1, DISABLE=2)
ReplicaStatus._define(UNDEFINED=0, INITIALIZED=1, PROCESSING=2, COMPLETE=3, REMOVED=4, FAILED=5)
TaskType._define(REPLICA_COPY=0, REPLICA_MOVE=1)
TaskStatus._define(PENDING=0, PROCESSING=1, SUCCESS=3, FAILED=2)

# Whose members are also names of the module; of equal names the last wins.
_EXPORTED = (ObjectDataType, ReplicaStatus, TaskType, TaskStatus)


# ---- replicas ----

class Descriptor:
    """Descriptor for allocated buffers. Only memory descriptors are supported."""
    __slots__ = ("size", "buffer_address", "transport_endpoint")

    def __init__(self):
        self.size = self.buffer_address = 0
        self.transport_endpoint = ""

    def __repr__(self):
        return (f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
                f"transport_endpoint={self.transport_endpoint}>")


class MemoryDescriptor:
    """Where a replica in memory lies."""
    __slots__ = ("_buffer",)
    __new__ = _no_constructor
    buffer_descriptor = property(lambda self: self._buffer)


class DiskDescriptor:
    """Where a replica on a shared file system lies."""
    __slots__ = ("_path", "_size")
    __new__ = _no_constructor
    file_path = property(lambda self: self._path)
    object_size = property(lambda self: self._size)


_MEMORY, _NOF, _DISK, _LOCAL_DISK, _DFS = range(5)


class ReplicaDescriptor:
    """One replica of an object."""
    __slots__ = ("_type", "_status", "_place")
    __new__ = _no_constructor
    status = property(lambda self: self._status)

    def is_memory_replica(self):
        return self._type == _MEMORY

    def is_disk_replica(self):
        return self._type == _DISK

    def is_local_disk_replica(self):
        return self._type == _LOCAL_DISK

    def get_memory_descriptor(self):
        if self._type != _MEMORY:
            raise RuntimeError("Expected MemoryDescriptor")
        return self._place

    def get_disk_descriptor(self):
        if self._type != _DISK:
            raise RuntimeError("Expected DiskDescriptor")
        return self._place


def _replica(kind, status, size, address, endpoint, path):
    self = object.__new__(ReplicaDescriptor)
    self._type, self._status, self._place = kind, ReplicaStatus(status), None
    if kind == _MEMORY:
        self._place = object.__new__(MemoryDescriptor)
        self._place._buffer = buffer = Descriptor()
        buffer.size, buffer.buffer_address, buffer.transport_endpoint = size, address, endpoint
    elif kind == _DISK:
        self._place = object.__new__(DiskDescriptor)
        self._place._path, self._place._size = path, size
    return self


# ---- tasks ----

class QueryTaskResponse:
    """Response structure for QueryTask operation."""
    __slots__ = ("_values",)
    _NAMES = ("id", "type", "status", "created_at_ms_epoch", "last_updated_at_ms_epoch", "assigned_client", "message")

    def __init__(self):
        self._values = ((0, 0), TaskType(0), TaskStatus(0), 0, 0, (0, 0), "")

    def __repr__(self):
        v = self._values
        return (f"QueryTaskResponse(id={v[0][0]}-{v[0][1]}, type={int(v[1])}, status={int(v[2])}, created_at={v[3]}, "
                f'last_updated_at={v[4]}, assigned_client={v[5][0]}-{v[5][1]}, message="{v[6]}")')


for _index, _name in enumerate(QueryTaskResponse._NAMES):
    setattr(QueryTaskResponse, _name, property(lambda self, i=_index: self._values[i]))


def _task(task_id, kind, status, created, updated, client, message):
    self = QueryTaskResponse()
    self._values = (task_id, TaskType(kind), TaskStatus(status), created, updated, client, message)
    return self


# ---- parallelism ----

class ParallelAxis:
    """One way in which a tensor is spread over processes: kind "dp", "tp", "ep" or "pp"."""
    __slots__ = ("kind", "rank", "size", "split_dim", "expert_id", "stage_id")

    def __init__(self):
        self.kind, self.rank, self.size = "", 0, 1
        self.split_dim = self.expert_id = self.stage_id = None


class TensorParallelism:
    """How a tensor is spread: its axes. The list is given out as a copy: assign a new one."""
    __slots__ = ("_axes",)

    def __init__(self):
        self._axes = []

    @property
    def axes(self):
        return list(self._axes)

    @axes.setter
    def axes(self, value):
        value = list(value)
        if not all(isinstance(axis, ParallelAxis) for axis in value):
            raise TypeError("axes must be a list of ParallelAxis")
        self._axes = value


class ReadTarget:
    """What a parallel read wants: mode "as_stored", "shard" or "full", and of which parallelism."""
    __slots__ = ("_mode", "_parallelism")
    _MODES = ("as_stored", "shard", "full")

    def __init__(self):
        self._mode, self._parallelism = "as_stored", None

    @property
    def mode(self):
        return self._mode

    @mode.setter
    def mode(self, value):
        if not isinstance(value, str):
            raise TypeError("mode must be a str")
        if value.lower() not in self._MODES:
            raise RuntimeError("Unsupported ReadTarget mode")
        self._mode = value.lower()

    @property
    def parallelism(self):
        return self._parallelism

    @parallelism.setter
    def parallelism(self, value):
        if value is not None and not isinstance(value, TensorParallelism):
            raise TypeError("parallelism must be a TensorParallelism or None")
        self._parallelism = value


# ---- texts ----

class ObjectInfo(namedtuple("ObjectInfo", "size version checksum ttl_ms replicas")):
    """What the master knows of an object. The version is another one each time that the key is written; ttl_ms is what is left of
    its life, None when it has no end; checksum is None when it has none."""
    __slots__ = ()


def _object_info(size, version, has_checksum, checksum, has_ttl, ttl_ms, replicas):
    return ObjectInfo(size, version, checksum if has_checksum else None, ttl_ms if has_ttl else None, replicas)


def _config_text(config):
    """str() of a ReplicateConfig, as upstream's."""
    ttl = "default" if config.soft_pin_ttl_ms is None else config.soft_pin_ttl_ms
    single, groups = config.preferred_segment, config.group_ids
    ours = [(name, getattr(config, name)) for name in ("ttl_ms", "if_absent", "if_version", "if_checksum")]
    return ("ReplicateConfig: { "
            f"replica_num: {config.replica_num}, nof_replica_num: {config.nof_replica_num}, "
            f"dfs_replica_num: {config.dfs_replica_num}, soft_pin_action: {config.soft_pin_action.name}, "
            f"soft_pin_ttl_ms: {ttl}, with_hard_pin: {int(config.with_hard_pin)}, "
            f"preferred_segments: [{', '.join(config.preferred_segments)}]"
            + (f", preferred_segment (deprecated): {single}" if single else "")
            + f", preferred_nof_segments: [{', '.join(config.preferred_nof_segments)}], "
            f"prefer_alloc_in_same_node: {int(config.prefer_alloc_in_same_node)}, "
            f"data_type: {config.data_type.name}"
            + (f", group_ids: [{', '.join(groups)}]" if groups is not None else "")
            + "".join(f", {name}: {value}" for name, value in ours if value) + " }")


_PUBLIC = (ObjectDataType, SoftPinAction, ReplicaStatus, TaskType, TaskStatus, Descriptor, MemoryDescriptor,
           DiskDescriptor, ReplicaDescriptor, QueryTaskResponse, ParallelAxis, TensorParallelism, ReadTarget, ObjectInfo)
for _class in _PUBLIC:
    _class.__module__ = "mooncake.store"

"""The Mooncake store: see docs/python.md. Calls return 0 or a negative error unless their type says otherwise."""
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, final, overload

from typing_extensions import disjoint_base

from mooncake.engine import InnerTransferEngine

_Buffer = bytes | bytearray | memoryview | Any
"""Whatever has the buffer protocol."""
_Tensor = Any
"""torch.Tensor, which is not needed to use this module."""

class _Enum:
    __members__: ClassVar[dict[str, Any]]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...

class ObjectDataType(_Enum):
    UNKNOWN: ClassVar[ObjectDataType]
    KVCACHE: ClassVar[ObjectDataType]
    TENSOR: ClassVar[ObjectDataType]
    WEIGHT: ClassVar[ObjectDataType]
    SAMPLE: ClassVar[ObjectDataType]
    ACTIVATION: ClassVar[ObjectDataType]
    GRADIENT: ClassVar[ObjectDataType]
    OPTIMIZER_STATE: ClassVar[ObjectDataType]
    METADATA: ClassVar[ObjectDataType]
    GENERAL: ClassVar[ObjectDataType]

class SoftPinAction(_Enum):
    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]

class ReplicaStatus(_Enum):
    UNDEFINED: ClassVar[ReplicaStatus]
    INITIALIZED: ClassVar[ReplicaStatus]
    PROCESSING: ClassVar[ReplicaStatus]
    COMPLETE: ClassVar[ReplicaStatus]
    REMOVED: ClassVar[ReplicaStatus]
    FAILED: ClassVar[ReplicaStatus]

class TaskType(_Enum):
    REPLICA_COPY: ClassVar[TaskType]
    REPLICA_MOVE: ClassVar[TaskType]

class TaskStatus(_Enum):
    PENDING: ClassVar[TaskStatus]
    PROCESSING: ClassVar[TaskStatus]
    SUCCESS: ClassVar[TaskStatus]
    FAILED: ClassVar[TaskStatus]

UNKNOWN: ObjectDataType
KVCACHE: ObjectDataType
TENSOR: ObjectDataType
WEIGHT: ObjectDataType
SAMPLE: ObjectDataType
ACTIVATION: ObjectDataType
GRADIENT: ObjectDataType
OPTIMIZER_STATE: ObjectDataType
METADATA: ObjectDataType
GENERAL: ObjectDataType
UNDEFINED: ReplicaStatus
INITIALIZED: ReplicaStatus
PROCESSING: TaskStatus
COMPLETE: ReplicaStatus
REMOVED: ReplicaStatus
FAILED: TaskStatus
REPLICA_COPY: TaskType
REPLICA_MOVE: TaskType
PENDING: TaskStatus
SUCCESS: TaskStatus

@final
class ReplicateConfig:
    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_soft_pin: bool
    with_hard_pin: bool
    preferred_segments: list[str]
    preferred_nof_segments: list[str]
    preferred_segment: str
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None
    # Ours; -1012 with upstream's master.
    ttl_ms: int | None
    if_absent: bool
    if_version: list[int] | None
    if_checksum: list[int] | None
    def __init__(self) -> None: ...

class ObjectInfo(NamedTuple):
    size: int
    version: int
    checksum: int | None
    ttl_ms: int | None
    replicas: int

@final
class BufferHandle:
    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Descriptor:
    size: int
    buffer_address: int
    transport_endpoint: str
    def __init__(self) -> None: ...

class MemoryDescriptor:
    def __new__(cls, *args: Any, **keywords: Any) -> NoReturn: ...
    @property
    def buffer_descriptor(self) -> Descriptor: ...

class DiskDescriptor:
    def __new__(cls, *args: Any, **keywords: Any) -> NoReturn: ...
    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

class ReplicaDescriptor:
    def __new__(cls, *args: Any, **keywords: Any) -> NoReturn: ...
    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor: ...

class QueryTaskResponse:
    @property
    def id(self) -> tuple[int, int]: ...
    @property
    def type(self) -> TaskType: ...
    @property
    def status(self) -> TaskStatus: ...
    @property
    def created_at_ms_epoch(self) -> int: ...
    @property
    def last_updated_at_ms_epoch(self) -> int: ...
    @property
    def assigned_client(self) -> tuple[int, int]: ...
    @property
    def message(self) -> str: ...

class ParallelAxis:
    kind: str
    rank: int
    size: int
    split_dim: int | None
    expert_id: int | None
    stage_id: int | None

class TensorParallelism:
    axes: list[ParallelAxis]

class ReadTarget:
    mode: str
    parallelism: TensorParallelism | None

@final
class MooncakeHostMemAllocator:
    def alloc(self, size: int, /) -> int: ...
    def free(self, ptr: int, /) -> int: ...

class BufferLeaseView:
    def __init__(self, buffer: memoryview) -> None: ...
    buffer: memoryview

class BufferLease:
    def __init__(self, pool: BufferPool, region: Any, size: int) -> None: ...
    def __del__(self) -> None: ...
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def buffer(self) -> memoryview: ...
    def release(self) -> None: ...
    def __enter__(self) -> BufferLease: ...
    def __exit__(self, *exc: object) -> None: ...

class BufferPool:
    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None: ...
    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease: ...
    def buffer(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease: ...
    def prewarm(self, size: int, count: int) -> None: ...
    def close(self) -> None: ...

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
RegisteredBufferLeaseView = BufferLeaseView

class EngramStoreConfig:
    table_vocab_sizes: list[int]
    embedding_dim: int

class EngramStore:
    def __init__(self, layer_id: int, config: EngramStoreConfig, store: MooncakeDistributedStore | None = None) -> None: ...
    def get_table_vocab_sizes(self) -> list[int]: ...
    def get_store_keys(self) -> list[str]: ...
    def get_num_heads(self) -> int: ...
    def get_embedding_dim(self) -> int: ...
    def populate(self, embedding_buffers: Sequence[Any]) -> None: ...
    def lookup(self, row_ids: Any) -> Any: ...
    def remove_from_store(self, force: bool = False) -> int: ...

class MooncakeDistributedNoFRegister:
    def real_register(
        self, nqn: str, nsid: int, traddr: str, trsvcid: int, base: int, size: int, master_server_addr: str
    ) -> int: ...
    def real_unregister_by_endpoint(self, nqn: str, nsid: int, traddr: str, trsvcid: int, master_server_addr: str) -> int: ...

def bind_to_numa_node(node: int, /) -> None: ...
def get_alloc_func_addr() -> int: ...
def get_free_func_addr() -> int: ...
def _serialize_tensor(tensor: _Tensor) -> tuple[bytes, int, int, _Tensor]: ...
def _deserialize_tensor(data: bytes) -> _Tensor: ...
def _tensor_metadata_size() -> int: ...

@disjoint_base
class MooncakeDistributedStore:
    def __init__(self) -> None: ...
    def alloc_from_mem_pool(self, size: int) -> int: ...
    def allocate_and_mount_segment(self, size: int, protocol: str = 'tcp', location: str = '') -> dict[str, Any]: ...
    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]: ...
    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]: ...
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]: ...
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]: ...
    def inspect(self, keys: Sequence[str]) -> list[ObjectInfo | int]: ...
    def list_keys(self, prefix: str = "", after: str = "", limit: int = 1000) -> tuple[list[str], str] | int: ...
    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]: ...
    def batch_get_session_end(self, keys: Sequence[str]) -> int: ...
    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]: ...
    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]: ...
    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
    ) -> list[Any]: ...
    def batch_get_tensor_into_cuda(self, keys: Sequence[str], tensors_list: Sequence[_Tensor]) -> list[Any]: ...
    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str], targets: Sequence[ReadTarget | None] | None = None,
    ) -> list[Any]: ...
    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Sequence[ReadTarget | None] | None = None,
    ) -> list[Any]: ...
    def batch_get_tensor_with_tp(self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1) -> list[Any]: ...
    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]: ...
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...
    def batch_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[_Tensor], config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[_Tensor],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]: ...
    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]: ...
    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[_Tensor]) -> list[int]: ...
    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
    ) -> list[int]: ...
    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[_Tensor],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]: ...
    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]: ...
    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[_Tensor],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]: ...
    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]: ...
    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = '') -> list[str]: ...
    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[_Tensor], config: ReplicateConfig | None = None,
    ) -> list[int]: ...
    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[_Tensor]) -> list[int]: ...
    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
    ) -> list[int]: ...
    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[_Tensor],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]: ...
    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[TensorParallelism | None] | None = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Sequence[Any] | None = None,
    ) -> list[int]: ...
    def close(self) -> int: ...
    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]: ...
    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]: ...
    def get(self, key: str) -> bytes: ...
    def get_batch(self, keys: Sequence[str]) -> list[bytes]: ...
    def get_buffer(self, key: str) -> BufferHandle | None: ...
    def get_hostname(self) -> str: ...
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int: ...
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]: ...
    def get_offload_rpc_read_count(self) -> int: ...
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]: ...
    def get_size(self, key: str) -> int: ...
    def get_tensor(self, key: str) -> _Tensor | None: ...
    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> _Tensor | None: ...
    def get_tensor_into_cuda(self, key: str, tensor: _Tensor) -> int: ...
    def get_tensor_with_parallelism(self, key: str, target: ReadTarget | None = None) -> _Tensor | None: ...
    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: ReadTarget | None = None,
    ) -> _Tensor | None: ...
    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> _Tensor | None: ...
    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0,
    ) -> _Tensor | None: ...
    def health_check(self) -> int: ...
    def init_all(self, protocol: str, device_name: str, mount_segment_size: int) -> int: ...
    def is_exist(self, key: str) -> int: ...
    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str | None = None) -> _Tensor | None: ...
    def metrics(self) -> str: ...
    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = 'tcp', location: str = '',
    ) -> dict[str, Any]: ...
    def pub_tensor(self, key: str, tensor: _Tensor, config: ReplicateConfig | None = None) -> int: ...
    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: _Tensor,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int: ...
    def put(self, key: str, value: _Buffer, config: ReplicateConfig | None = None) -> int: ...
    def put_batch(
        self, keys: Sequence[str], values: Sequence[_Buffer], config: ReplicateConfig | None = None,
    ) -> int: ...
    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int: ...
    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int: ...
    def put_parts(self, key: str, *parts: _Buffer, config: ReplicateConfig | None = None) -> int: ...
    def put_tensor(self, key: str, tensor: _Tensor) -> int: ...
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int: ...
    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: _Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int: ...
    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int: ...
    def put_tensor_with_tp(
        self, key: str, tensor: _Tensor, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0,
    ) -> int: ...
    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0,
    ) -> int: ...
    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def remove(self, key: str, force: bool = False) -> int: ...
    def remove_all(self, force: bool = False) -> int: ...
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int: ...
    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: InnerTransferEngine | None = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = '',
        tenant_id: str = 'default',
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int: ...
    @overload
    def setup(self, config: dict[str, Any]) -> int: ...
    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int: ...
    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int: ...
    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int: ...
    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def upsert(self, key: str, value: _Buffer, config: ReplicateConfig | None = None) -> int: ...
    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[_Buffer], config: ReplicateConfig | None = None,
    ) -> int: ...
    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int: ...
    def upsert_parts(self, key: str, *parts: _Buffer, config: ReplicateConfig | None = None) -> int: ...
    def upsert_pub_tensor(self, key: str, tensor: _Tensor, config: ReplicateConfig | None = None) -> int: ...
    def upsert_tensor(self, key: str, tensor: _Tensor) -> int: ...
    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int: ...
    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: _Tensor,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int: ...
    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int: ...

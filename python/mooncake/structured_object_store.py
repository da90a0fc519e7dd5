"""Objects of tensors, arrays and other Python values in a store, field by field: what trainers pass from stage to stage.

    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put({"ids": torch.arange(8), "prompt": ["..."] * 8, "step": 3}, type="dict")
    handle = export_ref(ref)                          # JSON: send it to another process
    part = transfer.get(handle, type="dict", fields=["ids"], rows=slice(2, 4))

Upstream's interface and layout in the store: each side reads what the other wrote. Dense fields (tensors, arrays) are stored as
they are; columns of other values are encoded (mooncake._structured_columns); what belongs to no row travels in the reference.
`store` is a MooncakeDistributedStore or anything with put, get and remove; all calls but those to it are free of side effects.
Needs numpy; torch for tensors, msgpack for columns of lists and dicts.
"""
import ctypes
import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Dict, List, Literal, Optional, Protocol, Tuple, Union

import numpy as np

from mooncake import _structured_columns as columns
from mooncake._bundles import MISSING_OBJECT_ERROR, Bundles, Parts, view_of
from mooncake._structured_columns import MISSING, infer_structure, is_tensor

__all__ = [
    "AUTO_PARALLEL_MIN_BYTES", "AUTO_PARALLEL_MIN_CHUNKS", "BundleStore", "BundleTransferPolicy", "DATAPROTO_REF_HANDLE_TYPE",
    "DATAPROTO_REF_HANDLE_VERSION", "DEFAULT_BUNDLE_CHUNK_BYTES", "FieldSchema", "MISSING", "MISSING_OBJECT_ERROR",
    "MooncakeBundleTransfer", "MooncakeDataProtoRef", "RemoteBundleRef", "STORAGE_GROUP_ID", "STRUCTURED_FIELD_SPECS_KEY",
    "StructuredFieldLocation", "StructuredMemberSlice", "StructuredObjectPayload", "StructuredObjectReadSpec",
    "StructuredObjectResult", "export_dataproto_ref", "export_ref", "import_dataproto_ref", "import_ref", "infer_structure",
    "is_dataproto_ref_handle", "raw_destination", "tensor_object_buffer"]

DEFAULT_BUNDLE_CHUNK_BYTES = 64 << 20
AUTO_PARALLEL_MIN_BYTES = 64 << 20
AUTO_PARALLEL_MIN_CHUNKS = 8
DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1
STORAGE_GROUP_ID = "storage_group_id"
STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"
WRAPPED = "__mooncake_wrapped_object__"
AUTO_PARALLEL_PUTS = 4


# ---- what callers hold ----

class BundleStore(Protocol):
    """What a store has to have."""

    def put(self, key: str, value: Any, config: Any = None) -> int: ...
    def get(self, key: str) -> bytes: ...
    def remove(self, key: str, force: bool = False) -> int: ...
    def is_exist(self, key: str) -> int: ...


@dataclasses.dataclass(frozen=True)
class BundleTransferPolicy:
    """How many puts are under way at once, and whether chunks go to the store in batches. copy_mode is upstream's: here a copy is
    made where one is needed, whatever it says."""
    max_inflight_put: int = 1
    put_mode: Literal["auto", "batch", "parallel"] = "auto"
    copy_mode: Literal["auto", "zero_copy", "copy"] = "auto"

    def __post_init__(self):
        if self.max_inflight_put < 1:
            raise ValueError("max_inflight_put must be positive")
        if self.put_mode not in ("auto", "batch", "parallel"):
            raise ValueError(f"unknown put_mode: {self.put_mode!r}")
        if self.copy_mode not in ("auto", "zero_copy", "copy"):
            raise ValueError(f"unknown copy_mode: {self.copy_mode!r}")


@dataclasses.dataclass(frozen=True)
class FieldSchema:
    """How a field is to be stored: codec as in mooncake._structured_columns; metadata["section"] may be "batch",
    "non_tensor_batch" or "meta_info"."""
    codec: str
    nullable: bool = True
    metadata: Dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RemoteBundleRef:
    manifest_key: str
    manifest: Dict[str, Any]


class StructuredObjectPayload:
    def __init__(self, metadata: Optional[Mapping] = None, buffers: Optional[Mapping] = None) -> None:
        self.metadata, self.buffers = dict(metadata or {}), dict(buffers or {})


@dataclasses.dataclass
class StructuredObjectResult:
    metadata: Dict[str, Any]
    objects: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StructuredFieldLocation:
    stage: str
    member: str
    section: Literal["batch", "non_tensor_batch"]


@dataclasses.dataclass(frozen=True)
class StructuredMemberSlice:
    axis: int
    start: int
    end: int
    step: int = 1


@dataclasses.dataclass
class MooncakeDataProtoRef:
    """Where the fields of a batch are. It holds no data but meta_info."""
    batch_size: int
    stage_refs: Dict[str, RemoteBundleRef]
    field_index: Dict[str, StructuredFieldLocation]
    meta_info: Dict[str, Any]
    namespace: str = "default"
    partition: str = "default"
    global_indexes: Optional[List[int]] = None
    encoded_non_tensor: Dict[str, Any] = dataclasses.field(default_factory=dict)
    _storage_group_id: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class StructuredObjectReadSpec:
    """What is to be read of an object; each method makes another one."""
    ref: Union[RemoteBundleRef, Mapping]
    member_names: Optional[Tuple[str, ...]] = None
    member_slices: Tuple[Tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Optional[Sequence[str]]) -> "StructuredObjectReadSpec":
        return dataclasses.replace(self, member_names=None if names is None else tuple(names))

    def slice_member(self, name: str, axis: int, start: int, end: int, step: int = 1) -> "StructuredObjectReadSpec":
        kept = tuple(pair for pair in self.member_slices if pair[0] != name)
        return dataclasses.replace(self, member_slices=kept + ((name, StructuredMemberSlice(axis, start, end, step)),))

    def member_slice(self, name: str) -> Optional[StructuredMemberSlice]:
        return dict(self.member_slices).get(name)


@dataclasses.dataclass
class _RawDestination:
    """Memory of the caller's for the data of one member."""
    ptr: int
    size: int
    owner: Any = None
    pre_registered: bool = False


@dataclasses.dataclass
class _TensorObjectBuffer:
    """Memory of the caller's with, or for, a tensor as the store has it: 304 bytes of header, then the data."""
    ptr: int
    size: int
    owner: Any = None
    batch_size: Optional[int] = None


def raw_destination(ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False) -> _RawDestination:
    return _RawDestination(ptr, size, owner, pre_registered)


def tensor_object_buffer(ptr: int, size: int, owner: Any = None, batch_size: Optional[int] = None) -> _TensorObjectBuffer:
    return _TensorObjectBuffer(ptr, size, owner, batch_size)


# ---- references as JSON ----

def _json_safe(value):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_safe(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _json_safe(value.tolist())
    raise TypeError(f"DataProto ref handles support only JSON-safe values, got {type(value).__name__}")


def is_dataproto_ref_handle(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def export_dataproto_ref(ref: MooncakeDataProtoRef) -> Dict[str, Any]:
    """The reference as JSON-safe values, for another process."""
    handle = {"type": DATAPROTO_REF_HANDLE_TYPE, "version": DATAPROTO_REF_HANDLE_VERSION, "kind": "bundle_stages",
              "batch_size": ref.batch_size, "namespace": ref.namespace, "partition": ref.partition,
              "global_indexes": _json_safe(ref.global_indexes),
              "stage_refs": {stage: {"manifest_key": one.manifest_key} for stage, one in ref.stage_refs.items()},
              "field_index": {name: dataclasses.asdict(place) for name, place in ref.field_index.items()},
              "meta_info": _json_safe(ref.meta_info), "encoded_non_tensor": _json_safe(ref.encoded_non_tensor)}
    if ref._storage_group_id:
        handle[STORAGE_GROUP_ID] = ref._storage_group_id
    return handle


def import_dataproto_ref(handle: Mapping) -> MooncakeDataProtoRef:
    """A reference from what export_dataproto_ref() made; the manifests are read when they are needed."""
    if not is_dataproto_ref_handle(handle):
        raise ValueError("not a Mooncake DataProto ref handle")
    if handle.get("version") != DATAPROTO_REF_HANDLE_VERSION or handle.get("kind") != "bundle_stages":
        raise ValueError(f"unsupported DataProto ref handle: version {handle.get('version')}, kind {handle.get('kind')}")
    return MooncakeDataProtoRef(
        batch_size=int(handle["batch_size"]),
        stage_refs={stage: RemoteBundleRef(one["manifest_key"], {}) for stage, one in handle["stage_refs"].items()},
        field_index={name: StructuredFieldLocation(**place) for name, place in handle["field_index"].items()},
        meta_info=dict(handle["meta_info"]), namespace=handle.get("namespace", "default"),
        partition=handle.get("partition", "default"), global_indexes=handle.get("global_indexes"),
        encoded_non_tensor=dict(handle.get("encoded_non_tensor") or {}), _storage_group_id=handle.get(STORAGE_GROUP_ID))


export_ref, import_ref = export_dataproto_ref, import_dataproto_ref


# ---- one member ----

def _element_type(name):
    import torch
    kind = getattr(torch, name.rsplit(".", 1)[-1], None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown tensor dtype {name!r}")
    return kind


def _member_out(name, value):
    """(what is stored, how it is described) of a member."""
    if is_tensor(value):
        from mooncake.store import _serialize_tensor
        head, address, size, owner = _serialize_tensor(value.detach().cpu())
        data = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B") if size else memoryview(b"")
        parts = Parts([memoryview(head), data], len(head))
        parts.owner = owner
        return parts, {"encoding": "torch_tensor", "dtype": str(value.dtype), "shape": list(value.shape),
                       "element_size": value.element_size()}
    if isinstance(value, _TensorObjectBuffer):
        return _tensor_object_out(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{name}: an array of Python objects is no dense member")
        return view_of(name, value), {"encoding": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
    return view_of(name, value), {"encoding": "bytes"}


def _tensor_object_out(value):
    from mooncake.store import _deserialize_tensor, _tensor_metadata_size
    head = _tensor_metadata_size()
    data = memoryview((ctypes.c_ubyte * value.size).from_address(value.ptr)).cast("B")
    tensor = _deserialize_tensor(bytes(data))  # Refuses what is no tensor.
    return Parts([data], head), {"encoding": "torch_tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape),
                                 "element_size": tensor.element_size()}


class _Member:
    """A member in the store, ready to be read."""

    def __init__(self, bundles, name, payload, spec):
        self.bundles, self.name, self.payload, self.spec = bundles, name, payload, spec
        self.encoding = spec.get("encoding", "bytes")
        self.head = payload.get("metadata_bytes", 0) if self.encoding == "torch_tensor" else 0
        if self.encoding == "torch_tensor" and not self.head:
            from mooncake.store import _tensor_metadata_size
            self.head = _tensor_metadata_size()
        if self.encoding not in ("bytes", "ndarray", "torch_tensor"):
            raise ValueError(f"{name}: unknown encoding {self.encoding!r}")

    @property
    def shape(self):
        return tuple(self.spec.get("shape", (self.payload["bytes"],)))

    def row_bytes(self):
        size = 1 if self.encoding == "bytes" else (self.spec["element_size"] if self.head else np.dtype(self.spec["dtype"]).itemsize)
        for length in self.shape[1:]:
            size *= length
        return size

    def shaped(self, data, shape):
        if self.encoding == "bytes":
            return data.tobytes()
        if self.encoding == "ndarray":
            return data.view(np.dtype(self.spec["dtype"])).reshape(shape) if data.size else np.empty(shape, self.spec["dtype"])
        import torch
        if not data.size:
            return torch.empty(shape, dtype=_element_type(self.spec["dtype"]))
        return torch.from_numpy(data).view(_element_type(self.spec["dtype"])).reshape(shape)

    def whole(self):
        return self.shaped(self.bundles.read(self.payload, self.head), self.shape)

    def rows(self, begin, end):
        """Rows [begin, end) of axis 0; only their bytes travel."""
        size = self.row_bytes()
        data = self.bundles.read(self.payload, self.head + begin * size, self.head + end * size)
        return self.shaped(data, (end - begin, *self.shape[1:]))

    def sliced(self, part):
        what = "tensor" if self.encoding == "torch_tensor" else "ndarray"
        if self.encoding == "bytes" or part.axis != 0:
            raise ValueError(f"structured {what} slicing currently supports axis=0 only")
        if part.step != 1 and self.encoding == "torch_tensor":
            raise ValueError("structured tensor slicing currently requires step=1")
        if part.step < 1 or not self.shape:
            raise ValueError(f"member {self.name} cannot be sliced so")
        begin, end, _ = slice(part.start, part.end).indices(self.shape[0])
        got = self.rows(begin, max(begin, end))
        return got if part.step == 1 else got[::part.step]

    def into(self, destination):
        """Reads into memory of the caller's; what the result is to name."""
        size = self.payload["bytes"] - self.head
        if isinstance(destination, _TensorObjectBuffer):
            if self.encoding != "torch_tensor" or destination.size < self.payload["bytes"]:
                raise ValueError(f"structured member {self.name} needs a tensor_object_buffer of {self.payload['bytes']} bytes")
            self.bundles.read_into(self.payload, destination.ptr)
            return self.viewed(destination.ptr + self.head, destination)
        if isinstance(destination, _RawDestination):
            if destination.size < size:
                raise ValueError(f"structured member {self.name} destination is too small: {size} bytes, got {destination.size}")
            self.bundles.read_into(self.payload, destination.ptr, self.head, registered=destination.pre_registered)
            return self.viewed(destination.ptr, destination)
        if self.encoding == "torch_tensor":
            raise ValueError(f"structured tensor member {self.name} only supports tensor_object_buffer or raw_destination "
                             "destinations")
        if self.encoding != "ndarray" or not isinstance(destination, np.ndarray):
            raise ValueError(f"structured member {self.name} cannot be read into {type(destination).__name__}")
        for what, ours, theirs in (("shape", self.shape, destination.shape),
                                   ("dtype", np.dtype(self.spec["dtype"]), destination.dtype)):
            if ours != theirs:
                raise ValueError(f"structured ndarray field {self.name} destination {what} mismatch: expected {ours}, got {theirs}")
        if destination.flags.c_contiguous and destination.flags.writeable:
            self.bundles.read_into(self.payload, destination.ctypes.data)
        else:
            destination[...] = self.whole()
        return destination

    def viewed(self, address, owner):
        data = np.frombuffer((ctypes.c_ubyte * (self.payload["bytes"] - self.head)).from_address(address), np.uint8)
        data.base.owner = owner  # The memory lives as long as what looks at it.
        return self.shaped(data, self.shape)


# ---- the transfer ----

DataProtoRefLike = Union[MooncakeDataProtoRef, Mapping]


class MooncakeBundleTransfer:
    """Puts and gets objects by way of `store`. Threads may share one as they may share the store."""

    def __init__(self, store: BundleStore, key_prefix: str = "bundle", default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES,
                 buffer_pool: Any = None) -> None:
        if default_chunk_bytes <= 0:
            raise ValueError("default_chunk_bytes must be positive")
        self.store, self.key_prefix, self.default_chunk_bytes = store, key_prefix, default_chunk_bytes
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes, buffer_pool)

    # ---- bundles: raw bytes by name ----

    def put_bundle(self, meta, buffers: Mapping, partition: str = "default", chunk_bytes: Optional[int] = None,
                   policy: Optional[BundleTransferPolicy] = None, max_inflight_put: Optional[int] = None,
                   config: Any = None) -> RemoteBundleRef:
        """Stores bytes and named buffers; nothing can be seen of them before all are there."""
        policy = policy or BundleTransferPolicy()
        if max_inflight_put is not None:
            policy = dataclasses.replace(policy, max_inflight_put=max_inflight_put)
        return RemoteBundleRef(*self._bundles.put(meta, buffers, partition, chunk_bytes, policy, config))

    def remove_bundle(self, ref) -> None:
        """Removes all of a bundle; what is not there any more is no error."""
        self._bundles.remove_keys(Bundles.keys_of(*self._bundles.manifest(ref)))

    # ---- structured objects: named members and JSON ----

    def put_structured_object(self, payload: StructuredObjectPayload, partition: str = "default",
                              chunk_bytes: Optional[int] = None, policy: Optional[BundleTransferPolicy] = None,
                              max_inflight_put: Optional[int] = None, config: Any = None) -> RemoteBundleRef:
        """Stores tensors, arrays and bytes by name, and JSON beside them."""
        out, specs = {}, {}
        for name, value in payload.buffers.items():
            out[name], specs[name] = _member_out(name, value)
        meta = {**payload.metadata}
        meta.setdefault("layout", "structured")
        meta[STRUCTURED_FIELD_SPECS_KEY] = specs
        text = json.dumps(meta, separators=(",", ":")).encode()
        return self.put_bundle(text, out, partition, chunk_bytes, policy, max_inflight_put, config)

    def put_object(self, obj: Any, partition: str = "default", chunk_bytes: Optional[int] = None,
                   policy: Optional[BundleTransferPolicy] = None, max_inflight_put: Optional[int] = None,
                   config: Any = None) -> RemoteBundleRef:
        """Stores a mapping of tensors, arrays and bytes, or one such value; get_object() gives it back."""
        if isinstance(obj, Mapping):
            payload = StructuredObjectPayload({}, obj)
        else:
            payload = StructuredObjectPayload({WRAPPED: True}, {"value": obj})
        return self.put_structured_object(payload, partition, chunk_bytes, policy, max_inflight_put, config)

    def get_object(self, ref) -> Any:
        result = self.materialize(self.read_spec(ref))
        return result.objects["value"] if result.metadata.get(WRAPPED) else result.objects

    def read_spec(self, ref) -> StructuredObjectReadSpec:
        return StructuredObjectReadSpec(ref)

    def _members(self, ref):
        """(metadata, {name: _Member}) of a structured object."""
        key, manifest = self._bundles.manifest(ref)
        meta = json.loads(self._bundles.read(manifest["meta"]).tobytes())
        specs = meta.get(STRUCTURED_FIELD_SPECS_KEY)
        if specs is None:
            raise ValueError(f"{key} is a bundle of raw buffers, no structured object")
        return meta, {name: _Member(self._bundles, name, payload, specs.get(name, {}))
                      for name, payload in manifest["buffers"].items()}

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Reads what spec says."""
        return self.materialize_into(spec, None)

    def materialize_into(self, spec: StructuredObjectReadSpec, destinations: Optional[Mapping]) -> StructuredObjectResult:
        """Reads what spec says, members that destinations names into these: arrays, raw_destination()s,
        tensor_object_buffer()s."""
        meta, members = self._members(spec.ref)
        names = tuple(members) if spec.member_names is None else spec.member_names
        unknown = sorted(set(names) - set(members))
        if unknown:
            raise KeyError(f"unknown bundle buffers: {unknown}")
        objects = {}
        for name in names:
            part = spec.member_slice(name)
            destination = (destinations or {}).get(name)
            if part is not None and destination is not None:
                raise ValueError(f"member {name} is sliced: it cannot be read into a destination")
            objects[name] = (members[name].sliced(part) if part is not None else members[name].whole()
                             if destination is None else members[name].into(destination))
        return StructuredObjectResult(meta, objects)

    @staticmethod
    def release_result(result: Any) -> None:
        """Nothing that get() returns holds a lease here: its memory goes with the last reference."""

    # ---- batches: fields of rows ----

    def put(self, data: Any, *, type: Literal["dataproto", "dict"] = "dataproto", namespace: str = "default",
            partition: str = "default", stage: str = "default", chunk_bytes: Optional[int] = None,
            policy: Optional[BundleTransferPolicy] = None, config: Any = None,
            field_schemas: Optional[Mapping] = None) -> MooncakeDataProtoRef:
        """Stores a batch: an object with batch, non_tensor_batch and meta_info, or a flat dict of columns."""
        ref = MooncakeDataProtoRef(0, {}, {}, {}, namespace, partition, _storage_group_id=f"structured-{uuid.uuid4().hex}")
        sections = _sections(data, type, field_schemas or {})
        return self._with_stage(ref, sections, stage, chunk_bytes, policy, config, field_schemas or {})

    def put_dataproto(self, data: Any, *, namespace: str = "default", partition: str = "default", stage: str = "default",
                      chunk_bytes: Optional[int] = None, policy: Optional[BundleTransferPolicy] = None,
                      field_schemas: Optional[Mapping] = None, config: Any = None) -> MooncakeDataProtoRef:
        return self.put(data, namespace=namespace, partition=partition, stage=stage, chunk_bytes=chunk_bytes, policy=policy,
                        config=config, field_schemas=field_schemas)

    def append_dataproto_fields(self, ref: DataProtoRefLike, data: Any, *, stage: str, overwrite: bool = False,
                                chunk_bytes: Optional[int] = None, policy: Optional[BundleTransferPolicy] = None,
                                field_schemas: Optional[Mapping] = None, config: Any = None) -> MooncakeDataProtoRef:
        """A new reference that also has the fields of data; the old one stays as it is."""
        ref = _as_ref(ref)
        sections = _sections(data, "dataproto", field_schemas or {})
        batch, columns_in, _ = sections
        known = sorted((set(batch) | set(columns_in)) & set(ref.field_index))
        if known and not overwrite:
            raise ValueError(f"DataProto fields already exist: {known}")
        rows = _rows_of(batch, columns_in)
        if rows is not None and ref.field_index and rows != ref.batch_size:
            raise ValueError(f"DataProto append batch size {rows} does not match ref batch size {ref.batch_size}")
        return self._with_stage(ref, sections, stage, chunk_bytes, policy, config, field_schemas or {})

    def _with_stage(self, ref, sections, stage, chunk_bytes, policy, config, schemas):
        batch, columns_in, meta_info = sections
        rows = _rows_of(batch, columns_in)
        new = dataclasses.replace(ref, stage_refs=dict(ref.stage_refs), field_index=dict(ref.field_index),
                                  meta_info={**ref.meta_info, **meta_info}, encoded_non_tensor=dict(ref.encoded_non_tensor),
                                  batch_size=ref.batch_size if rows is None else rows)
        if rows is None:
            return new
        members = {f"batch.{name}": value for name, value in batch.items()}
        for name in batch:
            new.field_index[name] = StructuredFieldLocation(stage, f"batch.{name}", "batch")
            new.encoded_non_tensor.pop(name, None)
        for name, value in columns_in.items():
            member = f"non_tensor_batch.{name}"
            new.field_index[name] = StructuredFieldLocation(stage, member, "non_tensor_batch")
            new.encoded_non_tensor.pop(name, None)
            if isinstance(value, np.ndarray) and not value.dtype.hasobject and name not in schemas:
                members[member] = value
                continue
            own, info = _encoded(name, member, value, schemas.get(name))
            members.update(own)
            new.encoded_non_tensor[name] = info
        dataproto = {"version": 1, "namespace": new.namespace, "partition": new.partition, "stage": stage, "batch_size": rows}
        payload = StructuredObjectPayload({"layout": "dataproto_stage", "dataproto": dataproto}, members)
        config = _grouped(self.store, config, new._storage_group_id)
        made = self.put_structured_object(payload, new.partition, chunk_bytes, policy or _policy_for(members), config=config)
        before = ref.stage_refs.get(stage)
        new.stage_refs[stage] = made if before is None else self._joined(before, made, new.partition, config)
        return new

    def _joined(self, before, made, partition, config):
        """One bundle of the members of two: a new manifest and metadata over the same buffers."""
        bundles, olds = self._bundles, [self._bundles.manifest(before), self._bundles.manifest(made)]
        metas = [json.loads(bundles.read(manifest["meta"]).tobytes()) for _, manifest in olds]
        meta = {**metas[0], **metas[1]}
        meta[STRUCTURED_FIELD_SPECS_KEY] = {**metas[0][STRUCTURED_FIELD_SPECS_KEY], **metas[1][STRUCTURED_FIELD_SPECS_KEY]}
        key, manifest = bundles.put(json.dumps(meta, separators=(",", ":")).encode(), {}, partition, None,
                                    BundleTransferPolicy(), config)
        manifest["buffers"] = {**olds[0][1]["buffers"], **olds[1][1]["buffers"]}
        manifest["buffer_object_ids"] = [one for _, old in olds
                                         for one in old.get("buffer_object_ids", [old["object_id"]])]
        replaced = [spec for name, spec in olds[0][1]["buffers"].items() if name in olds[1][1]["buffers"]]
        manifest["cleanup_keys"] = [
            one for old_key, old in olds for one in (
                *old.get("cleanup_keys", ()), old_key, *(chunk["key"] for chunk in old["meta"]["chunks"]))]
        manifest["cleanup_keys"] += [chunk["key"] for spec in replaced for chunk in spec["chunks"]]
        bundles.remove_keys([key])  # Who has no reference yet cannot look for it.
        bundles.put_manifest(key, manifest, config)
        return RemoteBundleRef(key, manifest)

    def dataproto_manifest_view(self, ref: DataProtoRefLike) -> Dict[str, Any]:
        """What fields there are, with their specs, by section; and the stages."""
        ref = _as_ref(ref)
        metas = {stage: self._members(one)[0] for stage, one in ref.stage_refs.items()}
        view = {"namespace": ref.namespace, "partition": ref.partition, "batch_size": ref.batch_size, "batch_fields": {},
                "non_tensor_fields": {}, "meta_info_keys": list(ref.meta_info),
                "stages": {stage: {"manifest_key": one.manifest_key, "dataproto": metas[stage].get("dataproto")}
                           for stage, one in ref.stage_refs.items()}}
        for name, place in ref.field_index.items():
            specs, info = metas[place.stage][STRUCTURED_FIELD_SPECS_KEY], ref.encoded_non_tensor.get(name)
            spec = specs.get(place.member) if info is None else {
                "encoding": "structured_non_tensor", "codec": info["codec"], "metadata": info["metadata"],
                "payload_members": info["payload_members"],
                "payload_specs": {part: specs[member] for part, member in info["payload_members"].items()}}
            section = "batch_fields" if place.section == "batch" else "non_tensor_fields"
            view[section][name] = {"section": place.section, "stage": place.stage, "member": place.member, "spec": spec}
        return view

    def get(self, ref: DataProtoRefLike, *, type: Literal["dataproto", "dict"] = "dataproto",
            fields: Optional[Sequence[str]] = None, batch_fields: Optional[Sequence[str]] = None,
            non_tensor_fields: Optional[Sequence[str]] = None, meta_info_keys: Optional[Sequence[str]] = None,
            data_cls: Optional[Any] = None, destinations: Optional[Mapping] = None, rows: Any = None) -> Any:
        """Reads fields of a batch (all without a choice), of the rows: a slice, or their numbers. Of rows only their bytes
        travel. type="dict" returns one flat dict; data_cls is called with batch, non_tensor_batch and meta_info."""
        if type not in ("dataproto", "dict"):
            raise ValueError(f"unknown type: {type!r}")
        ref = _as_ref(ref)
        names = _chosen(ref, fields, batch_fields, non_tensor_fields)
        wanted = None if rows is None else _row_numbers(rows, ref.batch_size)
        if wanted is not None and destinations:
            raise ValueError("destinations are for whole fields, not for rows")
        stages = {stage: self._members(ref.stage_refs[stage])[1] for stage in {ref.field_index[name].stage for name in names}}
        batch, columns_out = {}, {}
        for name in names:
            place = ref.field_index[name]
            value = self._field(stages[place.stage], place, ref.encoded_non_tensor.get(name), wanted,
                                (destinations or {}).get(name))
            if type == "dataproto" and isinstance(value, list):
                value = _object_array(value)
            (batch if place.section == "batch" else columns_out)[name] = value
        keys = ref.meta_info if meta_info_keys is None else meta_info_keys
        unknown = sorted(set(keys) - set(ref.meta_info))
        if unknown:
            raise KeyError(f"unknown DataProto meta_info keys: {unknown}")
        meta_info = {key: ref.meta_info[key] for key in keys}
        if type == "dict":
            return {**meta_info, **batch, **columns_out}
        parts = {"batch": batch, "non_tensor_batch": columns_out, "meta_info": meta_info}
        return parts if data_cls is None else data_cls(**parts)

    def get_dataproto(self, ref: DataProtoRefLike, *, fields: Optional[Sequence[str]] = None,
                      batch_fields: Optional[Sequence[str]] = None, non_tensor_fields: Optional[Sequence[str]] = None,
                      meta_info_keys: Optional[Sequence[str]] = None, data_cls: Optional[Any] = None,
                      destinations: Optional[Mapping] = None, rows: Any = None) -> Any:
        return self.get(ref, fields=fields, batch_fields=batch_fields, non_tensor_fields=non_tensor_fields,
                        meta_info_keys=meta_info_keys, data_cls=data_cls, destinations=destinations, rows=rows)

    @staticmethod
    def _field(members, place, info, wanted, destination):
        if info is not None:
            if destination is not None:
                raise ValueError(f"field {place.member} is encoded: it cannot be read into a destination")
            return _decoded(members, info, wanted)
        member = members[place.member]
        if wanted is not None:
            return _rows(member, wanted)
        return member.whole() if destination is None else member.into(destination)

    def cleanup_dataproto(self, ref: DataProtoRefLike) -> None:
        """Removes all stages of a batch."""
        for one in _as_ref(ref).stage_refs.values():
            try:
                self.remove_bundle(one)
            except RuntimeError as error:
                if "no such manifest" not in str(error):
                    raise

    def cleanup_dataproto_append(self, previous: DataProtoRefLike, appended: DataProtoRefLike) -> None:
        """Removes what an append added that nobody was told of; previous stays whole."""
        kept = set()
        for one in _as_ref(previous).stage_refs.values():
            kept.update(Bundles.keys_of(*self._bundles.manifest(one)))
        for one in _as_ref(appended).stage_refs.values():
            self._bundles.remove_keys([key for key in Bundles.keys_of(*self._bundles.manifest(one)) if key not in kept])


# ---- rows, columns, sections ----

def _as_ref(ref):
    if isinstance(ref, MooncakeDataProtoRef):
        return ref
    return import_dataproto_ref(ref)


def _policy_for(members):
    size = sum(getattr(value, "nbytes", 0) for value in members.values())
    return BundleTransferPolicy(AUTO_PARALLEL_PUTS if size >= AUTO_PARALLEL_MIN_BYTES else 1)


def _grouped(store, config, group):
    """With a store that knows groups, what belongs together is evicted together."""
    if config is not None or not group or not hasattr(store, "batch_put_from_multi_buffers"):
        return config
    from mooncake.store import ReplicateConfig
    config = ReplicateConfig()
    config.group_ids = [group]
    return config


def _is_dense(value):
    return (is_tensor(value) and value.dim() > 0) or isinstance(value, _TensorObjectBuffer) or (
        isinstance(value, np.ndarray) and value.ndim > 0 and not value.dtype.hasobject)


def _length(value):
    if isinstance(value, _TensorObjectBuffer):
        return value.batch_size
    return len(value)


def _rows_of(batch, columns_in):
    """The number of rows; None without a field. All fields agree."""
    sizes = {_length(value) for value in [*batch.values(), *columns_in.values()]} - {None}
    if len(sizes) > 1:
        raise ValueError(f"DataProto fields have ambiguous batch sizes: {sorted(sizes)}")
    return sizes.pop() if sizes else None


def _sections(data, kind, schemas):
    """(batch, non_tensor_batch, meta_info) of what a caller wants stored."""
    if kind == "dataproto":
        if not any(hasattr(data, name) for name in ("batch", "non_tensor_batch", "meta_info")):
            raise TypeError(f"a DataProto has batch, non_tensor_batch or meta_info, {type(data).__name__} has none")
        batch, other, meta = (dict((getattr(data, name, None) or {}).items() if getattr(data, name, None) is not None else {})
                              for name in ("batch", "non_tensor_batch", "meta_info"))
        return batch, other, meta
    if kind != "dict":
        raise ValueError(f"unknown type: {kind!r}")
    if not isinstance(data, Mapping):
        raise TypeError(f"type='dict' takes a mapping, got {type(data).__name__}")
    dense = {len(value) if not isinstance(value, _TensorObjectBuffer) else value.batch_size
             for value in data.values() if _is_dense(value)} - {None}
    if len(dense) > 1:
        raise ValueError(f"flat dict dense fields have ambiguous batch sizes: {sorted(dense)}")
    lists = {len(value) for value in data.values() if isinstance(value, (list, tuple))}
    if not dense and len(lists) > 1:
        raise ValueError(f"flat dict columns have ambiguous batch sizes: {sorted(lists)}")
    rows = dense.pop() if dense else lists.pop() if lists else None
    sections = {"batch": {}, "non_tensor_batch": {}, "meta_info": {}}
    for name, value in data.items():
        pinned = schemas[name].metadata.get("section") if name in schemas else None
        column = isinstance(value, (list, tuple)) and len(value) == rows
        section = pinned or ("batch" if _is_dense(value) else "non_tensor_batch" if column else "meta_info")
        if section not in sections:
            raise ValueError(f"field {name!r}: unknown section {section!r}")
        sections[section][name] = value
    return sections["batch"], sections["non_tensor_batch"], sections["meta_info"]


def _encoded(name, member, rows, schema):
    """({member: value}, description) of a column."""
    try:
        codec, metadata, own = columns.encode(member, rows, schema.codec if schema else None)
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        if schema is None:
            raise
        raise ValueError(f"failed to encode non_tensor_batch field {name!r} with FieldSchema codec {schema.codec!r}: "
                         f"{error}") from error
    places = {part: f"{member}.{part}" for part in own}
    info = {"codec": codec, "rows": len(rows), "metadata": metadata, "payload_members": places}
    return {places[part]: value for part, value in own.items()}, info


def _decoded(members, info, wanted):
    parts = {part: members[place] for part, place in info["payload_members"].items()}
    run = None if wanted is None else _run(wanted)
    if run is not None and info["codec"] in columns.CODECS:
        return columns.decode(info["codec"], info["metadata"], _column_rows(parts, *run))
    rows = columns.decode(info["codec"], info["metadata"], {part: member.whole() for part, member in parts.items()})
    return rows if wanted is None else [rows[i] for i in wanted]


def _column_rows(parts, begin, end):
    """The members of a column, of rows [begin, end) alone."""
    if "offsets" not in parts:
        return {part: member.rows(begin, end) for part, member in parts.items()}
    out = {part: member.rows(begin, end) for part, member in parts.items() if part not in ("offsets", "data")}
    out["offsets"] = parts["offsets"].rows(begin, end + 1)
    out["data"] = parts["data"].rows(int(out["offsets"][0]), int(out["offsets"][-1]))
    return out


def _run(wanted):
    """(first, last + 1) when the rows are consecutive."""
    if wanted and wanted == list(range(wanted[0], wanted[0] + len(wanted))):
        return wanted[0], wanted[0] + len(wanted)
    return None


def _rows(member, wanted):
    run = _run(wanted)
    if run is not None:
        return member.rows(*run)
    if not wanted:
        return member.rows(0, 0)
    first = min(wanted)
    return member.rows(first, max(wanted) + 1)[[i - first for i in wanted]]


def _row_numbers(rows, count):
    if isinstance(rows, StructuredMemberSlice):
        if rows.axis != 0:
            raise ValueError("rows are of axis 0")
        rows = slice(rows.start, rows.end, rows.step)
    if isinstance(rows, slice):
        return list(range(*rows.indices(count)))
    numbers = [int(row) for row in rows]
    for number in numbers:
        if not -count <= number < count:
            raise IndexError(f"DataProto row index {number} out of range for {count} rows")
    return [number % count for number in numbers]


def _chosen(ref, fields, batch_fields, non_tensor_fields):
    chosen = [names for names in (fields, batch_fields, non_tensor_fields) if names is not None]
    if not chosen:
        return list(ref.field_index)
    names = list(dict.fromkeys(name for some in chosen for name in some))
    wrong = sorted(name for name in names if name not in ref.field_index)
    for section, some in (("batch", batch_fields), ("non_tensor_batch", non_tensor_fields)):
        wrong += sorted(name for name in some or () if name in ref.field_index and ref.field_index[name].section != section)
    if wrong:
        raise KeyError(f"unknown DataProto fields: {wrong}")
    return names


def _object_array(rows):
    out = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        out[i] = row
    return out

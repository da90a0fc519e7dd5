"""What the manifests of every kind of resource have in common: the names of things, what a manifest has to tell about itself, and
a piece of memory that holds a fragment.

The names are strings on the wire; as NewTypes a checker keeps a placement's from a participant's.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, Optional, Protocol

from ._checks import MAX_U64, assign, integer, integers, texts, u64

LeaseId = NewType("LeaseId", str)
ParticipantId = NewType("ParticipantId", str)
PlacementFragmentId = NewType("PlacementFragmentId", str)
PlacementId = NewType("PlacementId", str)
PlacementSetId = NewType("PlacementSetId", str)
ResourceId = NewType("ResourceId", str)
RevisionId = NewType("RevisionId", str)
RuntimeFragmentId = NewType("RuntimeFragmentId", str)
RuntimeInstanceId = NewType("RuntimeInstanceId", str)
StoredFragmentId = NewType("StoredFragmentId", str)
TensorId = NewType("TensorId", str)
TopologyId = NewType("TopologyId", str)

__all__ = ["LeaseId", "ParticipantId", "PlacementFragmentId", "PlacementId", "PlacementManifest", "PlacementSetId", "ResourceId",
           "ResourceKind", "ResourceManifest", "RevisionId", "RuntimeBindingManifest", "RuntimeBindingFragment",
           "RuntimeFragmentId", "RuntimeInstanceId", "StoredFragmentId", "TensorId", "TopologyId", "StoredResourceManifest",
           "validate_resource_binding_identity"]


class ResourceKind(str, Enum):
    MODEL_WEIGHT = "model_weight"
    KV_CACHE = "kv_cache"


class ResourceManifest(Protocol):
    @property
    def resource_id(self) -> ResourceId: ...
    @property
    def resource_kind(self) -> ResourceKind: ...


class PlacementManifest(ResourceManifest, Protocol):
    """Where the parts of a resource belong, without addresses."""

    @property
    def placement_id(self) -> PlacementId: ...
    @property
    def digest(self) -> str: ...


class RuntimeBindingManifest(ResourceManifest, Protocol):
    """Where the parts lie now; true while the instance, its generation and its lease are."""

    @property
    def placement_id(self) -> PlacementId: ...
    @property
    def placement_digest(self) -> str: ...
    @property
    def instance_id(self) -> RuntimeInstanceId: ...
    @property
    def generation(self) -> int: ...
    @property
    def lease_id(self) -> LeaseId: ...


class StoredResourceManifest(ResourceManifest, Protocol):
    """A resource whose parts are objects of a store."""

    namespace: str
    group_id: str
    manifest_key: str
    created_at: str


def validate_resource_binding_identity(placement: PlacementManifest, binding: RuntimeBindingManifest) -> None:
    """A binding to another placement, or to this one before it changed, is a ValueError."""
    for ours, theirs in (("resource_kind", "resource_kind"), ("resource_id", "resource_id"), ("placement_id", "placement_id"),
                         ("digest", "placement_digest")):
        if getattr(placement, ours) != getattr(binding, theirs):
            raise ValueError(f"the binding's {theirs} {getattr(binding, theirs)!r} is not the placement's")


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The bytes from one index to the next, of each dimension, with nothing between the elements."""
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides)) if shape else ()


@dataclass(frozen=True)
class RuntimeBindingFragment:
    """A fragment in memory: `nbytes` at `address`, inside the allocation that `storage_*` describes. `owner` keeps the memory
    alive in this process and goes nowhere else: neither equality nor pickle knows it."""

    placement_fragment_id: PlacementFragmentId
    fragment_id: RuntimeFragmentId
    address: int
    nbytes: int
    worker_id: str
    endpoint: str
    device: str
    itemsize: int
    local_shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    storage_address: int
    storage_nbytes: int
    storage_offset_bytes: int
    owner: Optional[object] = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        texts(self, "placement_fragment_id", "fragment_id", "worker_id", "endpoint", "device")
        integer(self.itemsize, "itemsize", 1)
        shape = integers(self.local_shape, "local_shape", 1)
        strides = integers(self.strides_bytes, "strides_bytes")
        if len(strides) != len(shape):
            raise ValueError(f"strides_bytes {list(strides)} are not one for each dimension of {list(shape)}")
        if any(extent > 1 and not stride for extent, stride in zip(shape, strides)):
            raise ValueError("strides_bytes is 0 in a dimension of more than one index")
        # No step is ever taken in a dimension of one index, so its stride says nothing.
        strides = tuple(dense if extent == 1 else stride
                        for extent, stride, dense in zip(shape, strides, contiguous_strides(shape, self.itemsize)))
        assign(self, local_shape=shape, strides_bytes=strides)
        for address, size in (("address", "nbytes"), ("storage_address", "storage_nbytes")):
            begin = u64(getattr(self, address), address, 1)
            if u64(getattr(self, size), size, 1) > MAX_U64 - begin:
                raise ValueError(f"{address} + {size} is beyond 64 bits")
        offset = u64(self.storage_offset_bytes, "storage_offset_bytes")
        if self.address != self.storage_address + offset:
            raise ValueError("address is not storage_address + storage_offset_bytes")
        if offset + self.nbytes > self.storage_nbytes:
            raise ValueError("the fragment ends behind its storage")

    def __reduce__(self):
        return type(self), tuple(getattr(self, name) for name in self.__dataclass_fields__ if name != "owner")

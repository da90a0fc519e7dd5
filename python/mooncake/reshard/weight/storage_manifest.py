"""Weights as objects of a store: which range of which object is which box of which tensor. All keys begin with the group's name,
so that a generation is removed as a whole."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from .._checks import aliases as checked_aliases
from .._checks import an, assign, canonical_json, digest, integer, integers, items, sequence, sha256_hex, texts, u64
from ..contracts import ResourceId, ResourceKind, RevisionId, StoredFragmentId, TensorId
from .placement import box, check_geometry, covers, grouped
from .serde import members, parsed, tensor_in, weight_resource
from .types import TensorDescriptor

FRAGMENT = ("fragment_id", "tensor_id", "global_offset", "local_shape", "object_key", "object_offset", "nbytes", "aliases")
NAMES = ("namespace", "resource_id", "revision", "weight_generation", "group_id", "manifest_key", "created_at")


@dataclass(frozen=True)
class StoredManifestIdentity:
    """Which manifest is meant, down to its bytes."""

    namespace: str
    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    group_id: str
    manifest_key: str
    content_sha256: str

    def __post_init__(self) -> None:
        texts(self, "namespace", "resource_id", "revision", "group_id", "manifest_key")
        u64(self.weight_generation, "weight_generation")
        sha256_hex(self.content_sha256, "content_sha256")


@dataclass(frozen=True)
class StoredFragment:
    fragment_id: StoredFragmentId
    tensor_id: TensorId
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    object_key: str
    object_offset: int
    nbytes: int
    aliases: tuple[TensorId, ...] = ()

    def __post_init__(self) -> None:
        texts(self, "fragment_id", "tensor_id", "object_key")
        integer(self.object_offset, "object_offset")
        integer(self.nbytes, "nbytes", 1)
        assign(self, global_offset=integers(self.global_offset, "global_offset"),
               local_shape=integers(self.local_shape, "local_shape", 1), aliases=checked_aliases(self.aliases, self.tensor_id))

    def wire(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in FRAGMENT}


@dataclass(frozen=True)
class WeightManifest:
    """A whole generation in the store. `manifest_digest` follows from the rest."""

    namespace: str
    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    group_id: str
    manifest_key: str
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[StoredFragment, ...]
    created_at: str
    manifest_digest: str = field(init=False)

    def __post_init__(self) -> None:
        texts(self, "namespace", "resource_id", "revision", "group_id", "manifest_key", "created_at")
        u64(self.weight_generation, "weight_generation")
        assign(self, tensors=items(self.tensors, "tensors", TensorDescriptor),
               fragments=items(self.fragments, "fragments", StoredFragment))
        if self.manifest_key != f"{self.group_id}/manifest":
            raise ValueError(f"manifest_key is {self.group_id}/manifest, not {self.manifest_key}")
        for fragment in self.fragments:
            if not fragment.object_key.startswith(f"{self.group_id}/payload/"):
                raise ValueError(f"object_key {fragment.object_key} does not begin with {self.group_id}/payload/")
        _check_coverage(self.tensors, self.fragments)
        _check_aliases(self.tensors, self.fragments)
        _check_objects(self.fragments)
        assign(self, manifest_digest=digest(self.to_json()))

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT

    @property
    def manifest_identity(self) -> StoredManifestIdentity:
        return StoredManifestIdentity(self.namespace, self.resource_id, self.revision, self.weight_generation, self.group_id,
                                      self.manifest_key, self.manifest_digest)

    def to_json(self) -> str:
        return canonical_json({**{name: getattr(self, name) for name in NAMES}, "resource_kind": self.resource_kind.value,
                               "tensors": [tensor.wire() for tensor in self.tensors],
                               "fragments": [fragment.wire() for fragment in self.fragments]}, ascii_only=False)

    @classmethod
    def from_json(cls, value: Union[str, bytes, bytearray]) -> WeightManifest:
        return cls.from_dict(parsed(value, "a weight manifest"))

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> WeightManifest:
        found = members(raw, (*NAMES, "resource_kind", "tensors", "fragments"), "a weight manifest")
        weight_resource(found)
        return cls(tensors=tuple(tensor_in(item) for item in sequence(found["tensors"], "tensors")),
                   fragments=tuple(StoredFragment(**members(item, FRAGMENT, "a stored fragment"))
                                   for item in sequence(found["fragments"], "fragments")),
                   **{name: found[name] for name in NAMES})


def _check_coverage(tensors: Sequence[TensorDescriptor], fragments: Sequence[StoredFragment]) -> None:
    check_geometry(tensors, fragments)
    held = grouped(fragments, lambda item: item.tensor_id)
    for tensor in tensors:
        if not covers(tensor, held.get(tensor.tensor_id, ())):
            raise ValueError(f"the fragments of {tensor.tensor_id} do not cover it exactly")


def _check_aliases(tensors: Sequence[TensorDescriptor], fragments: Sequence[StoredFragment]) -> None:
    """Every alias is there in the same pieces, and may be one."""
    by_id = {tensor.tensor_id: tensor for tensor in tensors}
    aliased = grouped((item for item in fragments if item.aliases), lambda item: (item.aliases, box(item)))
    for (group, _), held in aliased.items():
        if {item.tensor_id for item in held} != set(group):
            raise ValueError(f"the aliases {list(group)} are not stored in the same pieces")
        if not all(by_id[group[0]].can_alias(by_id[name]) for name in group[1:]):
            raise ValueError(f"the aliases {list(group)} are different tensors")


def _check_objects(fragments: Sequence[StoredFragment]) -> None:
    for key, held in grouped(fragments, lambda item: item.object_key).items():
        held.sort(key=lambda item: item.object_offset)
        for before, after in zip(held, held[1:]):
            if after.object_offset < before.object_offset + before.nbytes:
                raise ValueError(f"fragments {before.fragment_id} and {after.fragment_id} overlap in the object {key}")


def validate_weight_manifest_snapshot(manifest: WeightManifest) -> WeightManifest:
    """The manifest made anew, checks and digest and all: somebody may have forced another value into a frozen one."""
    an(manifest, "manifest", WeightManifest)
    return WeightManifest(tensors=manifest.tensors, fragments=manifest.fragments,
                          **{name: getattr(manifest, name) for name in NAMES})

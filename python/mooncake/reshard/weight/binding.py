"""The memory that holds a placement: which address of which worker is which fragment."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._checks import an, assign, items, sha256_hex, texts, u64, unique
from ..contracts import (LeaseId, ParticipantId, PlacementId, ResourceId, ResourceKind, RevisionId, RuntimeBindingFragment,
                         RuntimeInstanceId, contiguous_strides, validate_resource_binding_identity)
from .placement import WeightPlacementManifest, grouped
from .types import PlacementFragment


@dataclass(frozen=True)
class WeightRuntimeBindingManifest:
    """One participant's fragments in memory, for as long as its instance, generation and lease last."""

    resource_id: ResourceId
    placement_id: PlacementId
    placement_digest: str
    instance_id: RuntimeInstanceId
    generation: int
    lease_id: LeaseId
    revision: RevisionId
    participant_id: ParticipantId
    fragments: tuple[RuntimeBindingFragment, ...]

    def __post_init__(self) -> None:
        texts(self, "resource_id", "placement_id", "instance_id", "lease_id", "revision", "participant_id")
        sha256_hex(self.placement_digest, "placement_digest")
        u64(self.generation, "generation")
        fragments = items(self.fragments, "fragments", RuntimeBindingFragment)
        unique([item.placement_fragment_id for item in fragments], "placement_fragment_id")
        unique([item.fragment_id for item in fragments], "fragment_id")
        assign(self, fragments=tuple(sorted(fragments, key=lambda item: item.placement_fragment_id)))

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT


Bound = tuple[PlacementFragment, RuntimeBindingFragment]


def _bound(placement: WeightPlacementManifest, binding: WeightRuntimeBindingManifest) -> list[Bound]:
    """Each fragment of the participant with its memory, which has to fit it."""
    an(placement, "placement", WeightPlacementManifest)
    an(binding, "binding", WeightRuntimeBindingManifest)
    validate_resource_binding_identity(placement, binding)
    if placement.revision != binding.revision:
        raise ValueError("the binding is of another revision than the placement")
    parts = [part for part in placement.parts if part.participant_id == binding.participant_id]
    if not parts:
        raise ValueError(f"{binding.participant_id} is no participant of the placement")
    itemsize = {tensor.tensor_id: tensor.itemsize for tensor in parts[0].tensors}
    memory = {item.placement_fragment_id: item for item in binding.fragments}
    wanted = {item.placement_fragment_id for item in parts[0].fragments}
    if wanted != memory.keys():
        raise ValueError(f"the binding of {binding.participant_id} lacks the fragments {sorted(wanted - memory.keys())[:1]} "
                         f"or has the unknown {sorted(memory.keys() - wanted)[:1]}")
    bound = [(item, memory[item.placement_fragment_id]) for item in parts[0].fragments]
    for fragment, held in bound:
        size = itemsize[fragment.tensor_id]
        if (held.nbytes, held.local_shape, held.itemsize, held.strides_bytes) != (
                fragment.nbytes, fragment.local_shape, size, contiguous_strides(fragment.local_shape, size)):
            raise ValueError(f"the memory of {fragment.fragment_id} is not a contiguous {list(fragment.local_shape)} of "
                             f"{size} bytes each")
    return bound


def _check_ranges(values: Sequence, begin: Callable, size: Callable, shared: Callable, what: str) -> None:
    """Ranges that overlap without being shared are a ValueError. Every pair that overlaps is looked at."""
    open_: list = []
    for value in sorted(values, key=begin):
        open_ = [other for other in open_ if begin(other) + size(other) > begin(value)]
        if not all(shared(other, value) for other in open_):
            raise ValueError(f"{what} overlap at {begin(value):#x}")
        open_.append(value)


def _check_memory(placement: WeightPlacementManifest, bound: Sequence[tuple[RuntimeInstanceId, Bound]]) -> None:
    """In one memory of one worker, fragments share bytes only as declared aliases of one another, and allocations are the
    same or apart."""
    tensors = {tensor.tensor_id: tensor for tensor in placement.tensors}

    def aliased(left: Bound, right: Bound) -> bool:
        (one, there), (other, here) = left, right
        return (there.address == here.address and there.nbytes == here.nbytes and bool(one.aliases)
                and one.aliases == other.aliases and one.global_offset == other.global_offset
                and one.local_shape == other.local_shape and tensors[one.tensor_id].can_alias(tensors[other.tensor_id]))

    def memory(item: tuple[RuntimeInstanceId, Bound]) -> tuple[str, str, str]:
        return item[0], item[1][1].worker_id, item[1][1].device

    for where, held in grouped(bound, memory).items():
        pairs = [pair for _, pair in held]
        _check_ranges(pairs, lambda pair: pair[1].address, lambda pair: pair[1].nbytes, aliased, f"fragments in {where}")
        allocations = {(item.storage_address, item.storage_nbytes) for _, item in pairs}
        _check_ranges(list(allocations), lambda one: one[0], lambda one: one[1], lambda one, other: False,
                      f"allocations in {where}")


def validate_runtime_binding(placement: WeightPlacementManifest, binding: WeightRuntimeBindingManifest) -> None:
    """A binding of one participant that does not fit the placement is a ValueError."""
    _check_memory(placement, [(binding.instance_id, pair) for pair in _bound(placement, binding)])


def validate_runtime_bindings(placement: WeightPlacementManifest, bindings: object) -> None:
    """The same for those of all participants that hold anything: none missing, none twice, and no two in the same memory."""
    found = items(bindings, "bindings", WeightRuntimeBindingManifest)
    unique([binding.participant_id for binding in found], "binding of")
    _check_memory(placement, [(binding.instance_id, pair) for binding in found for pair in _bound(placement, binding)])
    wanted = {part.participant_id for part in placement.parts if part.fragments}
    if wanted != {binding.participant_id for binding in found}:
        raise ValueError(f"bindings are wanted of exactly {sorted(wanted)}")

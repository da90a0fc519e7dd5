"""A whole placement: every participant's part of every tensor. What does not add up is refused here, once, so that a planner may
take it for granted: each tensor is complete on each of its owners and replicas, and each split axis really cuts its dimension."""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Callable, Optional, TypeVar

from .._checks import an, assign, canonical_json, digest, identity, items, text, texts, u64, unique
from ..contracts import ParticipantId, PlacementId, PlacementSetId, ResourceId, ResourceKind, RevisionId, TopologyId
from ..geometry import boxes_exactly_cover, boxes_overlap
from .types import (KINDS, OwnershipAxis, ParallelRank, ParallelTopology, PlacementFragment, ReplicatedAxis, SplitAxis,
                    TensorDescriptor, validate_fragment_geometry)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(values: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def box(fragment) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return fragment.global_offset, fragment.local_shape


def at(rank: ParallelRank, kinds: Sequence[str]) -> tuple[int, ...]:
    return tuple(getattr(rank, kind) for kind in kinds)


def covers(tensor: TensorDescriptor, fragments: Sequence) -> bool:
    return boxes_exactly_cover((0,) * len(tensor.global_shape), tensor.global_shape, tuple(box(item) for item in fragments))


# ---- one fragment, one part ----

def check_geometry(tensors: Sequence[TensorDescriptor], fragments: Sequence) -> None:
    """Each name is there once, and each fragment is of one of the tensors and inside it."""
    unique([tensor.tensor_id for tensor in tensors], "tensor_id")
    unique([fragment.fragment_id for fragment in fragments], "fragment_id")
    by_id = {tensor.tensor_id: tensor for tensor in tensors}
    for fragment in fragments:
        if fragment.tensor_id not in by_id:
            raise ValueError(f"fragment {fragment.fragment_id} is of the unknown tensor {fragment.tensor_id}")
        validate_fragment_geometry(by_id[fragment.tensor_id], fragment_id=fragment.fragment_id,
                                   global_offset=fragment.global_offset, local_shape=fragment.local_shape,
                                   nbytes=fragment.nbytes)


def _check_fragments(tensors: Sequence[TensorDescriptor], fragments: Sequence[PlacementFragment]) -> None:
    check_geometry(tensors, fragments)
    for (tensor_id, rank), held in grouped(fragments, lambda item: (item.tensor_id, item.rank)).items():
        if boxes_overlap([box(item) for item in held]):
            raise ValueError(f"fragments of {tensor_id} overlap on {rank}")


def _check_referenced(tensors: Iterable[TensorDescriptor], fragments: Iterable[PlacementFragment]) -> None:
    unused = {tensor.tensor_id for tensor in tensors} - {fragment.tensor_id for fragment in fragments}
    if unused:
        raise ValueError(f"no fragment is of the tensor {min(unused)}")


@dataclass(frozen=True)
class WeightPlacementPart:
    """What one participant holds."""

    resource_id: ResourceId
    revision: RevisionId
    weight_generation: int
    placement_set_id: PlacementSetId
    topology_id: TopologyId
    participant_id: ParticipantId
    rank: ParallelRank
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[PlacementFragment, ...]

    def __post_init__(self) -> None:
        texts(self, "resource_id", "revision", "placement_set_id", "topology_id", "participant_id")
        u64(self.weight_generation, "weight_generation")
        an(self.rank, "rank", ParallelRank)
        tensors = items(self.tensors, "tensors", TensorDescriptor)
        fragments = items(self.fragments, "fragments", PlacementFragment)
        for fragment in fragments:
            if fragment.rank != self.rank:
                raise ValueError(f"fragment {fragment.fragment_id} is of {fragment.rank}, the part of {self.rank}")
        _check_referenced(tensors, fragments)
        _check_fragments(tensors, fragments)
        assign(self, tensors=tuple(sorted(tensors, key=lambda item: item.tensor_id)),
               fragments=tuple(sorted(fragments, key=lambda item: item.fragment_id)))

    def wire(self) -> dict[str, object]:
        return {"participant_id": self.participant_id, "rank": self.rank.wire(),
                "fragments": [fragment.wire() for fragment in self.fragments]}


# ---- all parts together ----

def _check_aliases(by_id: dict[str, TensorDescriptor], fragments: Sequence[PlacementFragment]) -> None:
    """Who is named as an alias says the same of itself, in every fragment."""
    said = {tensor_id: {item.aliases for item in held} for tensor_id, held in
            grouped(fragments, lambda item: item.tensor_id).items()}
    for group in {fragment.aliases for fragment in fragments if fragment.aliases}:
        for tensor_id in group:
            if tensor_id not in by_id:
                raise ValueError(f"the alias {tensor_id} is no tensor of this placement")
            if said[tensor_id] != {group}:
                raise ValueError(f"fragments of {tensor_id} do not agree on its aliases {list(group)}")


def _check_undeclared(tensor: TensorDescriptor, fragments: Sequence[PlacementFragment], topology: ParallelTopology) -> None:
    """An axis with several ranks that the tensor does not speak of: nobody could tell a replica from a gap. Only tensor and
    expert ranks may be left out, where the other axes already say which process is meant."""
    declared = tuple(axis.kind for axis in tensor.parallel_axes)
    varying = tuple(kind for kind in declared if len({getattr(item.rank, kind) for item in fragments}) > 1)
    for kind in KINDS:
        if kind in declared or getattr(topology, f"{kind}_size") == 1:
            continue
        several = len({getattr(item.rank, kind) for item in fragments}) > 1
        places = grouped(fragments, lambda item: at(item.rank, varying))
        follows = all(len({getattr(item.rank, kind) for item in held}) == 1 for held in places.values())
        if kind in ("dp", "pp") or not several or not varying or not follows:
            raise ValueError(f"{tensor.tensor_id} does not say what the ranks of {kind} are to it")


def _check_split(tensor: TensorDescriptor, fragments: Sequence[PlacementFragment], ranks: set[tuple[int, ...]],
                 topology: ParallelTopology) -> None:
    """`ranks`: those of the split axes that have to take part."""
    axes = [axis for axis in tensor.parallel_axes if isinstance(axis, SplitAxis)]
    kinds = [axis.kind for axis in axes]
    if {at(item.rank, kinds) for item in fragments} != ranks:
        raise ValueError(f"{tensor.tensor_id} is not split over exactly the ranks that there are")
    if any({rank[place] for rank in ranks} != set(range(getattr(topology, f"{kind}_size"))) for place, kind in enumerate(kinds)):
        raise ValueError(f"{tensor.tensor_id} lacks ranks of an axis that splits it")
    if ranks != set(product(*({rank[place] for rank in ranks} for place in range(len(kinds))))):
        raise ValueError(f"{tensor.tensor_id} is split over combinations of ranks that form no grid")
    for axis in axes:
        _check_slabs(tensor, axis, fragments)


def _check_slabs(tensor: TensorDescriptor, axis: SplitAxis, fragments: Sequence[PlacementFragment]) -> None:
    """The ranks' ranges of the dimension lie one behind the other: what one rank of the axis holds no other does."""
    ranges = []
    for held in grouped(fragments, lambda item: getattr(item.rank, axis.kind)).values():
        runs: list[list[int]] = []
        for begin, end in sorted({(item.global_offset[axis.dim], item.global_offset[axis.dim] + item.local_shape[axis.dim])
                                  for item in held}):
            if runs and begin <= runs[-1][1]:
                runs[-1][1] = max(runs[-1][1], end)
            else:
                runs.append([begin, end])
        ranges += runs
    ranges.sort()
    ends = [0, *(end for _, end in ranges)]
    if [begin for begin, _ in ranges] != ends[:-1] or ends[-1] != tensor.global_shape[axis.dim]:
        raise ValueError(f"the ranks of {axis.kind} do not cut dimension {axis.dim} of {tensor.tensor_id}")


def _check_tensor(tensor: TensorDescriptor, fragments: Sequence[PlacementFragment], topology: ParallelTopology) -> None:
    _check_undeclared(tensor, fragments, topology)
    owning, copied, cut = tensor.of(OwnershipAxis), tensor.of(ReplicatedAxis), tensor.of(SplitAxis)
    for owner, owned in grouped(fragments, lambda item: at(item.rank, owning)).items():
        present = [item.rank for item in topology.participants if at(item.rank, owning) == owner]
        replicas = grouped(owned, lambda item: at(item.rank, copied))
        if set(replicas) != {at(rank, copied) for rank in present}:
            raise ValueError(f"{tensor.tensor_id} is not on every rank that it is replicated to")
        for replica, held in replicas.items():
            if not covers(tensor, held):
                raise ValueError(f"the fragments of {tensor.tensor_id} do not cover it exactly")
            if cut:
                _check_split(tensor, held, {at(rank, cut) for rank in present if at(rank, copied) == replica}, topology)


@dataclass(frozen=True, init=False)
class WeightPlacementManifest:
    """One generation of a model's weights, spread over a topology."""

    resource_id: ResourceId
    placement_id: PlacementId
    revision: RevisionId
    weight_generation: int
    placement_set_id: PlacementSetId
    topology: ParallelTopology
    parts: tuple[WeightPlacementPart, ...]
    tensors: tuple[TensorDescriptor, ...]
    fragments: tuple[PlacementFragment, ...]

    def __init__(self, *, resource_id: ResourceId, revision: RevisionId, weight_generation: int,
                 placement_set_id: PlacementSetId, topology: ParallelTopology, parts: tuple[WeightPlacementPart, ...],
                 placement_id: Optional[PlacementId] = None) -> None:
        assign(self, resource_id=text(resource_id, "resource_id"), revision=text(revision, "revision"),
               weight_generation=u64(weight_generation, "weight_generation"),
               placement_set_id=text(placement_set_id, "placement_set_id"), topology=an(topology, "topology", ParallelTopology))
        if placement_id is not None:
            text(placement_id, "placement_id")
        found = sorted(items(parts, "parts", WeightPlacementPart), key=lambda item: item.participant_id)
        self._check_parts(found)
        by_id: dict[str, TensorDescriptor] = {}
        for part in found:
            for tensor in part.tensors:
                if by_id.setdefault(tensor.tensor_id, tensor) != tensor:
                    raise ValueError(f"parts describe {tensor.tensor_id} in different ways")
        fragments = sorted((item for part in found for item in part.fragments), key=lambda item: item.fragment_id)
        if not fragments:
            raise ValueError("a placement has at least one fragment")
        assign(self, parts=tuple(found), tensors=tuple(by_id[name] for name in sorted(by_id)), fragments=tuple(fragments))
        unique([fragment.fragment_id for fragment in fragments], "fragment_id")
        _check_aliases(by_id, fragments)
        for tensor_id, held in grouped(fragments, lambda item: item.tensor_id).items():
            _check_tensor(by_id[tensor_id], held, topology)
        named = identity("complete-weight-placement", self._content())
        if placement_id not in (None, named):
            raise ValueError(f"placement_id {placement_id!r} is another placement's")
        assign(self, placement_id=named)

    def _check_parts(self, parts: Sequence[WeightPlacementPart]) -> None:
        unique([part.participant_id for part in parts], "participant")
        ranks = {item.participant_id: item.rank for item in self.topology.participants}
        missing = ranks.keys() - {part.participant_id for part in parts}
        if missing:
            raise ValueError(f"the participant {min(missing)} has no part")
        for part in parts:
            if part.participant_id not in ranks:
                raise ValueError(f"{part.participant_id} is no participant of the topology")
            if part.rank != ranks[part.participant_id] or part.topology_id != self.topology.topology_id:
                raise ValueError(f"the part of {part.participant_id} is of another topology")
            for name in ("resource_id", "revision", "weight_generation", "placement_set_id"):
                if getattr(part, name) != getattr(self, name):
                    raise ValueError(f"the part of {part.participant_id} has another {name}")

    @property
    def resource_kind(self) -> ResourceKind:
        return ResourceKind.MODEL_WEIGHT

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the JSON form."""
        return digest(canonical_json(self.wire()))

    def _content(self) -> dict[str, object]:
        return {"resource_id": self.resource_id, "revision": self.revision, "weight_generation": self.weight_generation,
                "placement_set_id": self.placement_set_id, "topology": self.topology.wire(),
                "tensors": [tensor.wire() for tensor in self.tensors], "parts": [part.wire() for part in self.parts]}

    def wire(self) -> dict[str, object]:
        return {"resource_kind": self.resource_kind.value, "placement_id": self.placement_id, **self._content()}

    @classmethod
    def from_fragments(cls, *, resource_id: ResourceId, revision: RevisionId, weight_generation: int,
                       placement_set_id: PlacementSetId, topology: ParallelTopology, tensors: Sequence[TensorDescriptor],
                       fragments: Sequence[PlacementFragment],
                       placement_id: Optional[PlacementId] = None) -> WeightPlacementManifest:
        """The same from one list of fragments, each of which goes to the participant with its rank."""
        described = items(tensors, "tensors", TensorDescriptor)
        held = items(fragments, "fragments", PlacementFragment)
        unique([tensor.tensor_id for tensor in described], "tensor_id")
        by_id = {tensor.tensor_id: tensor for tensor in described}
        for fragment in held:
            if fragment.tensor_id not in by_id:
                raise ValueError(f"fragment {fragment.fragment_id} is of the unknown tensor {fragment.tensor_id}")
        _check_referenced(described, held)
        by_rank = grouped(held, lambda item: item.rank)
        parts = []
        for participant in topology.participants:
            mine = tuple(by_rank.pop(participant.rank, ()))
            parts.append(WeightPlacementPart(
                resource_id=resource_id, revision=revision, weight_generation=weight_generation,
                placement_set_id=placement_set_id, topology_id=topology.topology_id,
                participant_id=participant.participant_id, rank=participant.rank,
                tensors=tuple(by_id[name] for name in sorted({item.tensor_id for item in mine})), fragments=mine))
        if by_rank:
            raise ValueError(f"no participant has {next(iter(by_rank))}")
        return cls(resource_id=resource_id, revision=revision, weight_generation=weight_generation,
                   placement_set_id=placement_set_id, topology=topology, parts=tuple(parts), placement_id=placement_id)

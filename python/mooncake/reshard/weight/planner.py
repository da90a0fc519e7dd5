"""Makes plans: for each fragment of the target, the boxes of the source that fill it.

The source may hold a tensor several times. Of its data-parallel replicas the target's rank dp takes number dp modulo their count,
so that readers spread over senders; among several owners (the same tensor in two stages) and several holders of one box, the first
by rank is taken. Both planners of the same two layouts thus come to the same plan, each by itself.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Optional, Union

from .._checks import an
from ..contracts import ParticipantId
from ..geometry import boxes_exactly_cover, intersection
from .placement import WeightPlacementManifest, at, box, covers, grouped
from .plan import (LogicalTransferOperation, LogicalTransferPlan, PipelineRouteGroup, PlacementExecutorPlan, PlanningLimits,
                   TransferRegion, executor_of, loops_of)
from .storage_manifest import StoredFragment, WeightManifest
from .types import OwnershipAxis, PlacementFragment, TensorDescriptor

__all__ = ["LogicalTransferPlan", "LogicalTransferOperation", "PlanningLimits", "PipelineRouteGroup", "PlacementExecutorPlan",
           "TransferRegion", "plan_placement_transfer", "plan_placement_transfer_to_local_target",
           "plan_stored_transfer_to_target_placement"]

Source = Union[PlacementFragment, StoredFragment]


class _Boxes:
    """Fragments of one tensor, asked for those that meet a box. Sorted by where they begin in the dimension that tells most of
    them apart; `reach` is how far any up to there goes, which ends the way back."""

    def __init__(self, fragments: Sequence[Source]) -> None:
        self.dim = max(range(len(fragments[0].local_shape)),
                       key=lambda dim: len({(item.global_offset[dim], item.local_shape[dim]) for item in fragments}))
        self.fragments = sorted(fragments, key=lambda item: item.global_offset[self.dim])
        self.begins = [item.global_offset[self.dim] for item in self.fragments]
        self.reach = list(accumulate((item.global_offset[self.dim] + item.local_shape[self.dim] for item in self.fragments),
                                     max))

    def meeting(self, target: PlacementFragment):
        begin = target.global_offset[self.dim]
        index = bisect_left(self.begins, begin + target.local_shape[self.dim])
        while index and self.reach[index - 1] > begin:
            index -= 1
            overlap = intersection(box(self.fragments[index]), box(target))
            if overlap:
                yield (*overlap, self.fragments[index])


def _one_of_each_box(fragments: Sequence[Source]) -> list[Source]:
    def order(item: Source):
        if isinstance(item, StoredFragment):
            return item.object_key, item.fragment_id
        return item.rank.dp, item.rank.pp, item.rank.ep, item.rank.tp, item.fragment_id

    return [min(same, key=order) for same in grouped(fragments, box).values()]


class _Stored:
    """A source of which everything is there once."""

    def __init__(self, manifest: WeightManifest) -> None:
        self.boxes = {tensor_id: _Boxes(_one_of_each_box(held)) for tensor_id, held in
                      grouped(manifest.fragments, lambda item: item.tensor_id).items()}

    def of(self, target: PlacementFragment) -> _Boxes:
        return self.boxes[target.tensor_id]


class _Placed:
    """A source that is a placement: whose copy of a tensor a target reads."""

    def __init__(self, placement: WeightPlacementManifest) -> None:
        self.tensors = {tensor.tensor_id: tensor for tensor in placement.tensors}
        # A placement is complete on each owner and replica (placement.py), so a rank dp with one fragment has the tensor.
        self.copies = {tensor_id: self._copies(self.tensors[tensor_id], held) for tensor_id, held in
                       grouped(placement.fragments, lambda item: item.tensor_id).items()}
        replicated = [set(copies) for tensor_id, copies in self.copies.items() if not self._by_dp(tensor_id)]
        self.replicas = sorted(set.intersection(*replicated)) if replicated else []
        if replicated and not self.replicas:
            raise ValueError("no rank dp of the source holds every tensor")
        for tensor_id, copies in self.copies.items():
            if self._by_dp(tensor_id) and len(copies) > 1:
                raise ValueError(f"{tensor_id} has {len(copies)} owners in the source, and nothing says which one counts")
        self.boxes: dict[tuple[str, object], _Boxes] = {}

    def _by_dp(self, tensor_id: str) -> bool:
        return "dp" in self.tensors[tensor_id].of(OwnershipAxis)

    @staticmethod
    def _copies(tensor: TensorDescriptor, held: Sequence[PlacementFragment]):
        """The fragments of the tensor by copy: by owner where dp owns it, else by dp, there those of the first owner."""
        owning = tensor.of(OwnershipAxis)
        by_owner = "dp" in owning
        copies = {}
        for copy, fragments in grouped(held, lambda item: at(item.rank, owning) if by_owner else item.rank.dp).items():
            owners = grouped(fragments, lambda item: at(item.rank, owning))
            copies[copy] = owners[min(owners)]
        return copies

    def of(self, target: PlacementFragment) -> _Boxes:
        copies = self.copies[target.tensor_id]
        copy = next(iter(copies)) if self._by_dp(target.tensor_id) else self.replicas[target.rank.dp % len(self.replicas)]
        key = target.tensor_id, copy
        if key not in self.boxes:
            self.boxes[key] = _Boxes(_one_of_each_box(copies[copy]))
        return self.boxes[key]


def _check_tensors(source: dict[str, TensorDescriptor], target: dict[str, TensorDescriptor], all_of_them: bool) -> None:
    if all_of_them and source.keys() - target.keys():
        raise ValueError(f"the target lacks the tensor {min(source.keys() - target.keys())}")
    if target.keys() - source.keys():
        raise ValueError(f"the source lacks the tensor {min(target.keys() - source.keys())}")
    for tensor_id, tensor in target.items():
        if not tensor.same_elements(source[tensor_id]):
            raise ValueError(f"{tensor_id} is another tensor in the source than in the target")


def _operations(source: Union[_Stored, _Placed], targets: Sequence[PlacementFragment],
                limits: PlanningLimits) -> tuple[LogicalTransferOperation, ...]:
    operations: list[LogicalTransferOperation] = []
    total = 0
    for target in targets:
        overlaps = []
        for overlap in source.of(target).meeting(target):
            overlaps.append(overlap)
            limits.check(len(operations) + len(overlaps), 0, 0)
        if not boxes_exactly_cover(*box(target), tuple((offset, shape) for offset, shape, _ in overlaps)):
            raise ValueError(f"the source does not cover {target.fragment_id} exactly")
        for offset, shape, fragment in overlaps:
            region = TransferRegion(tensor_id=target.tensor_id, source=fragment, target=target, overlap_offset=offset,
                                    overlap_shape=shape, **loops_of(fragment, target, offset, shape))
            total += region.segment_count
            limits.check(0, region.segment_count, total)
            operations.append(region)
    operations.sort(key=lambda item: (item.target.fragment_id, item.target_base_offset, item.source.fragment_id,
                                      item.source_base_offset))
    return tuple(operations)


def _executors(placement: WeightPlacementManifest, fragments: set[str]) -> tuple[PlacementExecutorPlan, ...]:
    """Those participants with one of the fragments, by rank."""
    touched = [part for part in placement.parts if not fragments.isdisjoint(item.fragment_id for item in part.fragments)]
    touched.sort(key=lambda part: (part.rank.dp, part.rank.pp, part.rank.ep, part.rank.tp))
    return tuple(executor_of(placement.placement_id, part) for part in touched)


def _plan(source: Union[WeightPlacementManifest, WeightManifest], target: WeightPlacementManifest,
          participant: Optional[ParticipantId], limits: Optional[PlanningLimits]) -> LogicalTransferPlan:
    limits = limits or PlanningLimits()
    for name in ("resource_id", "revision", "weight_generation"):
        if getattr(source, name) != getattr(target, name):
            raise ValueError(f"source and target differ in {name}: {getattr(source, name)!r}, {getattr(target, name)!r}")
    place = target
    if participant is not None:
        place = next((part for part in target.parts if part.participant_id == participant), None)
        if place is None:
            raise ValueError(f"{participant!r} is no participant of the target")
        if not place.fragments:
            raise ValueError(f"{participant!r} holds nothing in the target")
    _check_tensors({tensor.tensor_id: tensor for tensor in source.tensors},
                   {tensor.tensor_id: tensor for tensor in place.tensors}, participant is None)
    placed = isinstance(source, WeightPlacementManifest)
    operations = _operations(_Placed(source) if placed else _Stored(source), place.fragments, limits)
    return LogicalTransferPlan(
        resource_id=target.resource_id, revision=target.revision, source_placement=source if placed else None,
        target_placement=target, source_tensors=tuple(sorted(source.tensors, key=lambda item: item.tensor_id)),
        target_tensors=place.tensors, operations=operations, source_manifest=None if placed else source,
        planning_limits=limits,
        source_executors=_executors(source, {item.source.fragment_id for item in operations}) if placed else (),
        target_executors=_executors(target, {item.target.fragment_id for item in operations}))


def plan_placement_transfer(source_placement: WeightPlacementManifest, target_placement: WeightPlacementManifest, *,
                            planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """From every participant of one placement to every one of another."""
    return _plan(an(source_placement, "source_placement", WeightPlacementManifest),
                 an(target_placement, "target_placement", WeightPlacementManifest), None, planning_limits)


def plan_placement_transfer_to_local_target(source_placement: WeightPlacementManifest,
                                            target_placement: WeightPlacementManifest,
                                            target_participant_id: Optional[ParticipantId] = None, *,
                                            planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """The part of that which one participant of the target needs; it may be left unnamed where it is the only one."""
    an(source_placement, "source_placement", WeightPlacementManifest)
    an(target_placement, "target_placement", WeightPlacementManifest)
    if target_participant_id is None:
        if target_placement.topology.world_size != 1:
            raise ValueError("target_participant_id says for which of the target's participants the plan is")
        target_participant_id = target_placement.parts[0].participant_id
    return _plan(source_placement, target_placement, target_participant_id, planning_limits)


def plan_stored_transfer_to_target_placement(source_manifest: WeightManifest, target_placement: WeightPlacementManifest, *,
                                             planning_limits: Optional[PlanningLimits] = None) -> LogicalTransferPlan:
    """From objects of a store to every participant of a placement. A run of bytes of an operation begins, in the object
    `source.object_key`, at `source.object_offset` plus the run's offset in the source."""
    return _plan(an(source_manifest, "source_manifest", WeightManifest),
                 an(target_placement, "target_placement", WeightPlacementManifest), None, planning_limits)

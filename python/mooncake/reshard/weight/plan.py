"""A plan: boxes that go from a fragment to a fragment, each as a loop over runs of bytes.

A plan is made by planner.py, or comes out of a pickle; either way it is checked as a whole when it is made, against both
manifests: every region is the one that its two fragments and its box give, every target fragment that the plan is for is written
exactly once, and the executors are those that have something to do.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from math import prod
from typing import Generic, Optional, TypeVar, Union

from .._checks import an, assign, integer, integers, items, text, texts, unique
from ..contracts import ParticipantId, PlacementFragmentId, PlacementId, ResourceId, RevisionId, TensorId, contiguous_strides
from ..geometry import box_contains, regions_exactly_cover
from .placement import WeightPlacementManifest, WeightPlacementPart, box, grouped
from .storage_manifest import StoredFragment, StoredManifestIdentity, WeightManifest, validate_weight_manifest_snapshot
from .types import ParallelRank, PlacementFragment, TensorDescriptor

S = TypeVar("S", bound=Union[PlacementFragment, StoredFragment])
D = TypeVar("D", bound=Union[PlacementFragment, StoredFragment])


@dataclass(frozen=True)
class PlanningLimits:
    """A plan beyond one of these is refused: so many regions, so many runs of bytes in one, and in all."""

    max_transfer_regions: int = 1_000_000
    max_segments_per_region: int = 1_000_000
    max_total_lowered_segments: int = 10_000_000

    def __post_init__(self) -> None:
        for name in ("max_transfer_regions", "max_segments_per_region", "max_total_lowered_segments"):
            integer(getattr(self, name), name, 1)

    def check(self, regions: int, segments: int, total: int) -> None:
        for name, value in (("max_transfer_regions", regions), ("max_segments_per_region", segments),
                            ("max_total_lowered_segments", total)):
            if value > getattr(self, name):
                raise ValueError(f"the plan exceeds {name}: {value} of {getattr(self, name)}")


# ---- regions ----

def itemsize_of(fragment: Union[PlacementFragment, StoredFragment]) -> int:
    size, odd = divmod(fragment.nbytes, prod(fragment.local_shape))
    if odd or not size:
        raise ValueError(f"fragment {fragment.fragment_id} of {fragment.nbytes} bytes has no whole elements")
    return size


def loops_of(source, target, offset: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, object]:
    """The box as nested loops over runs that are contiguous in both fragments, as long as they get: a dimension joins the run
    while, on both sides, one step of it ends where the run does."""
    size = itemsize_of(source)
    if size != itemsize_of(target):
        raise ValueError(f"elements of {source.fragment_id} and {target.fragment_id} differ in size")
    steps = [contiguous_strides(fragment.local_shape, size) for fragment in (source, target)]
    begins = [sum((at - begin) * step for at, begin, step in zip(offset, fragment.global_offset, strides))
              for fragment, strides in zip((source, target), steps)]
    outer, run = len(shape) - 1, shape[-1] * size
    while outer and steps[0][outer - 1] == run == steps[1][outer - 1]:
        outer -= 1
        run *= shape[outer]
    return {"source_base_offset": begins[0], "target_base_offset": begins[1], "inner_bytes": run,
            "outer_loop_counts": shape[:outer], "source_strides": steps[0][:outer], "target_strides": steps[1][:outer]}


@dataclass(frozen=True)
class TransferRegion(Generic[S, D]):
    """One box, from one fragment to one. Offsets and strides are bytes, relative to the fragments."""

    tensor_id: TensorId
    source: S
    target: D
    overlap_offset: tuple[int, ...]
    overlap_shape: tuple[int, ...]
    source_base_offset: int
    target_base_offset: int
    inner_bytes: int
    outer_loop_counts: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        text(self.tensor_id, "tensor_id")
        for name in ("overlap_offset", "overlap_shape", "outer_loop_counts", "source_strides", "target_strides"):
            assign(self, **{name: integers(getattr(self, name), name, int(name in ("overlap_shape", "outer_loop_counts")))})
        for name in ("source_base_offset", "target_base_offset"):
            integer(getattr(self, name), name)
        integer(self.inner_bytes, "inner_bytes", 1)
        for fragment in (self.source, self.target):
            if fragment.tensor_id != self.tensor_id:
                raise ValueError(f"fragment {fragment.fragment_id} is of {fragment.tensor_id}, not of {self.tensor_id}")
            if not (self.overlap_offset and len(fragment.global_offset) == len(self.overlap_offset) == len(self.overlap_shape)
                    and box_contains(*box(fragment), self.overlap_offset, self.overlap_shape)):
                raise ValueError(f"the region is no box inside {fragment.fragment_id}")
        # Everything else follows from the box, so a region that says otherwise would move other bytes.
        for name, value in loops_of(self.source, self.target, self.overlap_offset, self.overlap_shape).items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} of the region is {value}, not {getattr(self, name)}")
        self.validate_bounds()

    @property
    def segment_count(self) -> int:
        return prod(self.outer_loop_counts)

    @property
    def total_bytes(self) -> int:
        return self.inner_bytes * self.segment_count

    @property
    def source_offset(self) -> int:
        return self.source_base_offset

    @property
    def target_offset(self) -> int:
        return self.target_base_offset

    @property
    def nbytes(self) -> int:
        """Of one run."""
        return self.inner_bytes

    @property
    def repeat(self) -> int:
        return self.segment_count

    @property
    def source_stride(self) -> int:
        return self._only(self.source_strides)

    @property
    def target_stride(self) -> int:
        return self._only(self.target_strides)

    @staticmethod
    def _only(strides: tuple[int, ...]) -> int:
        if len(strides) > 1:
            raise ValueError(f"the region has {len(strides)} strides, one in another")
        return strides[0] if strides else 0

    def validate_bounds(self) -> None:
        for fragment, begin, strides in ((self.source, self.source_base_offset, self.source_strides),
                                         (self.target, self.target_base_offset, self.target_strides)):
            last = begin + sum((count - 1) * stride for count, stride in zip(self.outer_loop_counts, strides, strict=True))
            if last + self.inner_bytes > fragment.nbytes:
                raise ValueError(f"the region ends behind {fragment.fragment_id}")

    def iter_segments(self, *, max_segments: int) -> Iterator[tuple[int, int, int]]:
        """(offset in the source, offset in the target, bytes) of every run, in the order of the target."""
        integer(max_segments, "max_segments", 1)
        if self.segment_count > max_segments:
            raise ValueError(f"the region has {self.segment_count} segments, max_segments is {max_segments}")
        for place in product(*map(range, self.outer_loop_counts)):
            yield (self.source_base_offset + sum(map(int.__mul__, place, self.source_strides)),
                   self.target_base_offset + sum(map(int.__mul__, place, self.target_strides)), self.inner_bytes)


LogicalTransferOperation = TransferRegion[Union[PlacementFragment, StoredFragment], PlacementFragment]


# ---- who does what ----

@dataclass(frozen=True)
class PipelineRouteGroup:
    """The operations from one pipeline stage to one."""

    source_pp: Optional[int]
    source_pipeline_stage_id: Optional[int]
    target_pp: int
    target_pipeline_stage_id: Optional[int]
    operation_indices: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("source_pp", "source_pipeline_stage_id", "target_pipeline_stage_id"):
            if getattr(self, name) is not None:
                integer(getattr(self, name), name)
        integer(self.target_pp, "target_pp")
        assign(self, operation_indices=integers(tuple(self.operation_indices), "operation_indices"))
        unique(self.operation_indices, "operation")


@dataclass(frozen=True)
class PlacementExecutorPlan:
    """A participant that sends or receives."""

    placement_id: PlacementId
    participant_id: ParticipantId
    rank: ParallelRank
    placement_fragment_ids: tuple[PlacementFragmentId, ...]

    def __post_init__(self) -> None:
        texts(self, "placement_id", "participant_id")
        assign(self, placement_fragment_ids=tuple(self.placement_fragment_ids))
        if not self.placement_fragment_ids:
            raise ValueError(f"{self.participant_id} has no fragment")
        unique(self.placement_fragment_ids, "fragment")


def executor_of(placement_id: PlacementId, part: WeightPlacementPart) -> PlacementExecutorPlan:
    return PlacementExecutorPlan(placement_id, part.participant_id, part.rank,
                                 tuple(fragment.placement_fragment_id for fragment in part.fragments))


def _check_executors(side: str, executors: Sequence[PlacementExecutorPlan], placement: WeightPlacementManifest,
                     operations: Sequence[LogicalTransferOperation]) -> list[WeightPlacementPart]:
    """The parts that the operations touch; the executors are theirs and no others."""
    owner = {fragment.placement_fragment_id: (part, fragment) for part in placement.parts for fragment in part.fragments}
    touched: dict[str, WeightPlacementPart] = {}
    for operation in operations:
        fragment = an(getattr(operation, side), f"{side} of an operation", PlacementFragment)
        part, known = owner.get(fragment.placement_fragment_id, (None, None))
        if part is None or known != fragment:
            raise ValueError(f"the {side} placement has no such fragment as {fragment.fragment_id}")
        touched[part.participant_id] = part
    unique([executor.participant_id for executor in executors], f"{side} executor")
    wanted = {executor_of(placement.placement_id, part) for part in touched.values()}
    if not wanted or wanted != set(executors):
        raise ValueError(f"the {side} executors are not the participants that the operations touch")
    return list(touched.values())


def _sorted_tensors(tensors) -> tuple[TensorDescriptor, ...]:
    return tuple(sorted(tensors, key=lambda item: item.tensor_id))


@dataclass(frozen=True)
class LogicalTransferPlan:
    """Everything that has to move so that the target's fragments hold the source's tensors. The source is a placement or a
    manifest of stored objects."""

    resource_id: ResourceId
    revision: RevisionId
    source_placement: Optional[WeightPlacementManifest]
    target_placement: WeightPlacementManifest
    source_tensors: tuple[TensorDescriptor, ...]
    target_tensors: tuple[TensorDescriptor, ...]
    operations: tuple[LogicalTransferOperation, ...]
    source_manifest: Optional[WeightManifest] = None
    planning_limits: PlanningLimits = field(default_factory=PlanningLimits)
    source_executors: tuple[PlacementExecutorPlan, ...] = ()
    target_executors: tuple[PlacementExecutorPlan, ...] = ()
    source_manifest_identity: Optional[StoredManifestIdentity] = field(init=False)

    def __post_init__(self) -> None:
        texts(self, "resource_id", "revision")
        an(self.planning_limits, "planning_limits", PlanningLimits)
        if (self.source_placement is None) == (self.source_manifest is None):
            raise ValueError("a plan has a source_placement or a source_manifest, and not both")
        for name, kind in (("source_tensors", TensorDescriptor), ("target_tensors", TensorDescriptor),
                           ("operations", TransferRegion), ("source_executors", PlacementExecutorPlan),
                           ("target_executors", PlacementExecutorPlan)):
            assign(self, **{name: items(tuple(getattr(self, name)), name, kind)})
        assign(self, source_manifest_identity=None)
        if self.source_manifest is not None:
            manifest = validate_weight_manifest_snapshot(self.source_manifest)
            assign(self, source_manifest=manifest, source_manifest_identity=manifest.manifest_identity)
        self._check_identity()
        self._check_limits()
        self._check_target()
        self.validate_source_manifest_snapshot()
        self.validate_source_placement_snapshot()

    def _check_identity(self) -> None:
        if self.source_placement is not None:
            an(self.source_placement, "source_placement", WeightPlacementManifest)
        an(self.target_placement, "target_placement", WeightPlacementManifest)
        for side in (self.source_placement or self.source_manifest, self.target_placement):
            if (side.resource_id, side.revision, side.weight_generation) != (
                    self.resource_id, self.revision, self.target_placement.weight_generation):
                raise ValueError("source, target and plan are not of the same resource, revision and generation")

    def _check_limits(self) -> None:
        total = 0
        self.planning_limits.check(len(self.operations), 0, 0)
        for operation in self.operations:
            total += operation.segment_count
            self.planning_limits.check(0, operation.segment_count, total)

    def _check_target(self) -> None:
        parts = _check_executors("target", self.target_executors, self.target_placement, self.operations)
        if self.target_tensors != _sorted_tensors({tensor for part in parts for tensor in part.tensors}):
            raise ValueError("target_tensors are not those of the participants that the plan is for")
        written = grouped(self.operations, lambda item: item.target.fragment_id)
        for part in parts:
            for fragment in part.fragments:
                if not regions_exactly_cover(fragment, written.get(fragment.fragment_id, ())):
                    raise ValueError(f"the plan does not write {fragment.fragment_id} exactly once")

    def validate_source_manifest_snapshot(self) -> None:
        """ValueError when the stored source is not what it was when the plan was made."""
        if self.source_manifest is None:
            return
        manifest = validate_weight_manifest_snapshot(self.source_manifest)
        known = {fragment.fragment_id: fragment for fragment in manifest.fragments}
        if (manifest.manifest_identity != self.source_manifest_identity or self.source_executors
                or self.source_tensors != _sorted_tensors(manifest.tensors)
                or any(known.get(operation.source.fragment_id) != operation.source for operation in self.operations)):
            raise ValueError("the stored source is not the one that the plan was made for")

    def validate_source_placement_snapshot(self) -> None:
        """The same for a source that is a placement."""
        if self.source_placement is None:
            return
        _check_executors("source", self.source_executors, self.source_placement, self.operations)
        if self.source_tensors != self.source_placement.tensors:
            raise ValueError("source_tensors are not the source placement's")

    def __reduce__(self):
        return type(self), tuple(getattr(self, item.name) for item in fields(self) if item.init)

    @property
    def total_bytes(self) -> int:
        return sum(operation.total_bytes for operation in self.operations)

    @property
    def source_placement_id(self) -> Optional[PlacementId]:
        return self.source_placement.placement_id if self.source_placement is not None else None

    @property
    def target_placement_id(self) -> PlacementId:
        return self.target_placement.placement_id

    @cached_property
    def pipeline_routes(self) -> tuple[PipelineRouteGroup, ...]:
        def stages(index: int) -> tuple[Optional[int], Optional[int], int, Optional[int]]:
            source, target = self.operations[index].source, self.operations[index].target
            sent = (source.rank.pp, source.pipeline_stage_id) if isinstance(source, PlacementFragment) else (None, None)
            return (*sent, target.rank.pp, target.pipeline_stage_id)

        routes = grouped(range(len(self.operations)), stages)
        return tuple(PipelineRouteGroup(*route, tuple(routes[route]))
                     for route in sorted(routes, key=lambda route: [-1 if stage is None else stage for stage in route]))

    @cached_property
    def _touching(self) -> dict[str, dict[str, list[int]]]:
        return {side: grouped(range(len(self.operations)), lambda index: getattr(self.operations[index], side).fragment_id)
                for side in ("source", "target")}

    def operation_indices_for_executor(self, executor: PlacementExecutorPlan, side: str) -> tuple[int, ...]:
        """The operations that this participant takes part in, as indices into `operations`."""
        if side not in ("source", "target"):
            raise ValueError(f"side is source or target, not {side!r}")
        if executor not in getattr(self, f"{side}_executors"):
            raise ValueError(f"this plan has no such {side} executor")
        return tuple(sorted(index for fragment_id in executor.placement_fragment_ids
                            for index in self._touching[side].get(fragment_id, ())))

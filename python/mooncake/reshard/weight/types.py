"""Tensors of a model, the ranks of the processes that hold it, and which part of a tensor a rank holds."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, Optional, Union

from .._checks import aliases as checked_aliases
from .._checks import an, assign, identity, integer, integers, items, sequence, text, u64, unique
from ..contracts import ParticipantId, PlacementFragmentId, TensorId, TopologyId

ParallelAxisKind = Literal["dp", "pp", "ep", "tp"]
SplitAxisKind = Literal["ep", "tp"]
KINDS: tuple[ParallelAxisKind, ...] = ("dp", "pp", "ep", "tp")


@dataclass(frozen=True)
class ParallelRank:
    """A process by its coordinates: data, tensor, pipeline, expert parallel."""

    dp: int = 0
    tp: int = 0
    pp: int = 0
    ep: int = 0

    def __post_init__(self) -> None:
        for name, value in self.wire().items():
            integer(value, f"rank {name}")

    def wire(self) -> dict[str, int]:
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp, "ep": self.ep}


def _kind(kind: object, allowed: tuple[str, ...] = KINDS) -> None:
    if type(kind) is not str or kind not in allowed:
        raise ValueError(f"the kind of this axis is one of {', '.join(allowed)}, not {kind!r}")


@dataclass(frozen=True)
class SplitAxis:
    """The ranks of this axis hold one tensor between them, cut along `dim`."""

    kind: SplitAxisKind
    dim: int

    def __post_init__(self) -> None:
        _kind(self.kind, ("ep", "tp"))
        integer(self.dim, "dim", 0, 0 if self.kind == "ep" else None)  # Experts are the first dimension of a tensor.

    def wire(self) -> dict[str, object]:
        return {"semantics": "split", "kind": self.kind, "dim": self.dim}


@dataclass(frozen=True)
class ReplicatedAxis:
    """Every rank of this axis holds the tensor."""

    kind: ParallelAxisKind

    def __post_init__(self) -> None:
        _kind(self.kind)

    def wire(self) -> dict[str, object]:
        return {"semantics": "replicated", "kind": self.kind}


@dataclass(frozen=True)
class OwnershipAxis:
    """Those ranks of this axis hold the tensor that have fragments of it: the stage of a layer, the owner of an expert."""

    kind: ParallelAxisKind

    def __post_init__(self) -> None:
        _kind(self.kind)

    def wire(self) -> dict[str, object]:
        return {"semantics": "ownership", "kind": self.kind}


ParallelAxis = Union[SplitAxis, ReplicatedAxis, OwnershipAxis]


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor as the model knows it. `layout_fingerprint` stands for what the framework did to its elements (packing,
    transposing): bytes only move between tensors that have the same."""

    tensor_id: TensorId
    global_shape: tuple[int, ...]
    dtype: str
    itemsize: int
    shard_dims: tuple[int, ...]
    layout_fingerprint: str
    parallel_axes: tuple[ParallelAxis, ...]
    layer_id: Optional[int] = None
    expert_id: Optional[int] = None

    def __post_init__(self) -> None:
        text(self.tensor_id, "tensor_id")
        text(self.dtype, "dtype")
        text(self.layout_fingerprint, "layout_fingerprint")
        integer(self.itemsize, "itemsize", 1)
        for name in ("layer_id", "expert_id"):
            if getattr(self, name) is not None:
                integer(getattr(self, name), name)
        shape = integers(self.global_shape, "global_shape", 1)
        if not shape:
            raise ValueError("global_shape has at least one dimension")
        axes = sequence(self.parallel_axes, "parallel_axes")
        if not all(isinstance(axis, (SplitAxis, ReplicatedAxis, OwnershipAxis)) for axis in axes):
            raise ValueError("parallel_axes holds SplitAxis, ReplicatedAxis and OwnershipAxis")
        axes = tuple(sorted(axes, key=lambda axis: KINDS.index(axis.kind)))
        unique([axis.kind for axis in axes], "axis")
        cut = [axis.dim for axis in axes if isinstance(axis, SplitAxis)]
        unique(cut, "split dimension")
        dims = integers(self.shard_dims, "shard_dims")
        if dims != tuple(sorted(cut)) or any(dim >= len(shape) for dim in dims):
            raise ValueError(f"shard_dims {list(dims)} are not the dimensions, in order, that split axes cut: {sorted(cut)} "
                             f"of {len(shape)}")
        if self.expert_id is not None and any(axis.kind == "ep" and isinstance(axis, SplitAxis) for axis in axes):
            raise ValueError(f"{self.tensor_id} is one expert: the axis ep owns it and does not split it")
        assign(self, global_shape=shape, shard_dims=dims, parallel_axes=axes)

    def of(self, semantics: type) -> tuple[str, ...]:
        """The kinds of the axes with these semantics."""
        return tuple(axis.kind for axis in self.parallel_axes if isinstance(axis, semantics))

    def same_elements(self, other: TensorDescriptor) -> bool:
        """Whether the bytes of both mean the same, however they are spread."""
        return all(getattr(self, name) == getattr(other, name) for name in
                   ("global_shape", "dtype", "itemsize", "layer_id", "expert_id", "layout_fingerprint"))

    def can_alias(self, other: TensorDescriptor) -> bool:
        return self.same_elements(other) and self.parallel_axes == other.parallel_axes

    def wire(self) -> dict[str, object]:
        return {"tensor_id": self.tensor_id, "global_shape": self.global_shape, "dtype": self.dtype, "itemsize": self.itemsize,
                "shard_dims": self.shard_dims, "layout_fingerprint": self.layout_fingerprint,
                "parallel_axes": [axis.wire() for axis in self.parallel_axes], "layer_id": self.layer_id,
                "expert_id": self.expert_id}


def validate_fragment_geometry(tensor: TensorDescriptor, *, fragment_id: str, global_offset: tuple[int, ...],
                               local_shape: tuple[int, ...], nbytes: int) -> None:
    """A fragment that is no box of its tensor, or not of the box' size, is a ValueError."""
    if not len(global_offset) == len(local_shape) == len(tensor.global_shape):
        raise ValueError(f"fragment {fragment_id} has not the {len(tensor.global_shape)} dimensions of {tensor.tensor_id}")
    if any(offset + extent > total for offset, extent, total in zip(global_offset, local_shape, tensor.global_shape)):
        raise ValueError(f"fragment {fragment_id} leaves {tensor.tensor_id}")
    if nbytes != prod(local_shape) * tensor.itemsize:
        raise ValueError(f"fragment {fragment_id} has {prod(local_shape) * tensor.itemsize} bytes, not {nbytes}")


@dataclass(frozen=True, init=False)
class PlacementFragment:
    """The box of a tensor that belongs to one rank. Without a name of its own it is called after its content."""

    tensor_id: TensorId
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    nbytes: int
    rank: ParallelRank
    pipeline_stage_id: Optional[int]
    aliases: tuple[TensorId, ...]
    placement_fragment_id: PlacementFragmentId

    def __init__(self, tensor_id: TensorId, global_offset: tuple[int, ...], local_shape: tuple[int, ...], nbytes: int,
                 rank: ParallelRank, pipeline_stage_id: Optional[int] = None, aliases: tuple[TensorId, ...] = (),
                 placement_fragment_id: Optional[PlacementFragmentId] = None) -> None:
        assign(self, tensor_id=text(tensor_id, "tensor_id"), global_offset=integers(global_offset, "global_offset"),
               local_shape=integers(local_shape, "local_shape", 1), nbytes=u64(nbytes, "nbytes", 1),
               rank=an(rank, "rank", ParallelRank), aliases=checked_aliases(aliases, tensor_id),
               pipeline_stage_id=None if pipeline_stage_id is None else integer(pipeline_stage_id, "pipeline_stage_id"))
        named = (identity("weight-placement-fragment", self._content()) if placement_fragment_id is None
                 else text(placement_fragment_id, "placement_fragment_id"))
        assign(self, placement_fragment_id=named)

    @property
    def fragment_id(self) -> PlacementFragmentId:
        return self.placement_fragment_id

    def _content(self) -> dict[str, object]:
        content = {"tensor_id": self.tensor_id, "global_offset": self.global_offset, "local_shape": self.local_shape,
                   "nbytes": self.nbytes, "rank": self.rank.wire(), "aliases": self.aliases}
        # Only where there is one: names of placements without stages are as they were before stages were thought of.
        return content if self.pipeline_stage_id is None else {**content, "pipeline_stage_id": self.pipeline_stage_id}

    def wire(self) -> dict[str, object]:
        return {"placement_fragment_id": self.placement_fragment_id, **self._content()}


@dataclass(frozen=True)
class TopologyParticipant:
    participant_id: ParticipantId
    rank: ParallelRank

    def __post_init__(self) -> None:
        text(self.participant_id, "participant_id")
        an(self.rank, "rank", ParallelRank)

    def wire(self) -> dict[str, object]:
        return {"participant_id": self.participant_id, "rank": self.rank.wire()}


@dataclass(frozen=True, init=False)
class ParallelTopology:
    """The processes and the sizes of the axes. Not every combination of ranks has to be there: tensor and expert ranks may be
    the same processes, and one replica out of `dp_size` may be all that is described."""

    tp_size: int
    pp_size: int
    ep_size: int
    dp_size: int
    participants: tuple[TopologyParticipant, ...]
    topology_id: TopologyId

    def __init__(self, *, tp_size: int, pp_size: int, ep_size: int, dp_size: int,
                 participants: tuple[TopologyParticipant, ...], topology_id: Optional[TopologyId] = None) -> None:
        sizes = {"tp_size": tp_size, "pp_size": pp_size, "ep_size": ep_size, "dp_size": dp_size}
        for name, size in sizes.items():
            integer(size, name, 1)
        found = sorted(items(participants, "participants", TopologyParticipant), key=lambda item: item.participant_id)
        if not found:
            raise ValueError("a topology has at least one participant")
        unique([item.participant_id for item in found], "participant")
        unique([item.rank for item in found], "rank")
        for item in found:
            for kind, value in item.rank.wire().items():
                if value >= sizes[f"{kind}_size"]:
                    raise ValueError(f"{kind} of {item.participant_id} is {value}, of {sizes[f'{kind}_size']} ranks")
        assign(self, participants=tuple(found), **sizes)
        named = identity("weight-parallel-topology", self._content())
        if topology_id not in (None, named):
            raise ValueError(f"topology_id {topology_id!r} is another topology's")
        assign(self, topology_id=named)

    @property
    def world_size(self) -> int:
        return len(self.participants)

    def participant(self, participant_id: ParticipantId) -> TopologyParticipant:
        for item in self.participants:
            if item.participant_id == participant_id:
                return item
        raise ValueError(f"{participant_id!r} is no participant of this topology")

    def _content(self) -> dict[str, object]:
        return {"tp_size": self.tp_size, "pp_size": self.pp_size, "ep_size": self.ep_size, "dp_size": self.dp_size,
                "participants": [item.wire() for item in self.participants]}

    def wire(self) -> dict[str, object]:
        return {"topology_id": self.topology_id, **self._content()}

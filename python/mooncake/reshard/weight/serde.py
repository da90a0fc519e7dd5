"""Manifests as JSON. What is read has to have exactly the members that are written: neither fewer, nor others, nor one twice."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Union

from .._checks import an, canonical_json, sequence, text, unique
from ..contracts import ResourceKind
from .placement import WeightPlacementManifest, WeightPlacementPart
from .types import (OwnershipAxis, ParallelAxis, ParallelRank, ParallelTopology, PlacementFragment, ReplicatedAxis, SplitAxis,
                    TensorDescriptor, TopologyParticipant)

TENSOR = ("tensor_id", "global_shape", "dtype", "itemsize", "shard_dims", "layout_fingerprint", "parallel_axes", "layer_id",
          "expert_id")
FRAGMENT = ("placement_fragment_id", "tensor_id", "global_offset", "local_shape", "nbytes", "rank", "aliases")
SIZES = ("tp_size", "pp_size", "ep_size", "dp_size")


def members(value: object, names: Sequence[str], what: str, optional: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(value, Mapping) or set(value) - set(optional) != set(names):
        raise ValueError(f"{what} is an object with exactly the members {', '.join(names)}")
    return dict(value)


def parsed(encoded: Union[str, bytes, bytearray], what: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique([name for name, _ in pairs], f"in {what} the member")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of {what}")

    try:
        return json.loads(encoded, object_pairs_hook=once, parse_constant=refuse)
    except (TypeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def weight_resource(value: Mapping[str, Any]) -> None:
    if value["resource_kind"] != ResourceKind.MODEL_WEIGHT.value:
        raise ValueError(f"resource_kind is model_weight here, not {value['resource_kind']!r}")


def axis_in(value: object) -> ParallelAxis:
    semantics = value.get("semantics") if isinstance(value, Mapping) else None
    if semantics == "split":
        split = members(value, ("semantics", "kind", "dim"), "a split axis")
        return SplitAxis(split["kind"], split["dim"])
    whole = members(value, ("semantics", "kind"), "an axis")
    if semantics not in ("replicated", "ownership"):
        raise ValueError(f"an axis is split, replicated or ownership, not {semantics!r}")
    return (ReplicatedAxis if semantics == "replicated" else OwnershipAxis)(whole["kind"])


def tensor_in(value: object) -> TensorDescriptor:
    tensor = members(value, TENSOR, "a tensor")
    axes = tuple(axis_in(axis) for axis in sequence(tensor.pop("parallel_axes"), "parallel_axes"))
    return TensorDescriptor(parallel_axes=axes, **tensor)


def _rank(value: object) -> ParallelRank:
    return ParallelRank(**members(value, ("dp", "tp", "pp", "ep"), "a rank"))


def _fragment(value: object) -> PlacementFragment:
    fragment = members(value, FRAGMENT, "a fragment", ("pipeline_stage_id",))
    text(fragment["placement_fragment_id"], "placement_fragment_id")
    return PlacementFragment(rank=_rank(fragment.pop("rank")), **fragment)


def _topology(value: object) -> ParallelTopology:
    topology = members(value, (*SIZES, "topology_id", "participants"), "a topology")
    text(topology["topology_id"], "topology_id")
    participants = []
    for item in sequence(topology.pop("participants"), "participants"):
        one = members(item, ("participant_id", "rank"), "a participant")
        participants.append(TopologyParticipant(one["participant_id"], _rank(one["rank"])))
    return ParallelTopology(participants=tuple(participants), **topology)


def weight_placement_to_json(placement: WeightPlacementManifest) -> str:
    return canonical_json(an(placement, "placement", WeightPlacementManifest).wire())


def weight_placement_from_json(value: str) -> WeightPlacementManifest:
    names = ("resource_id", "revision", "weight_generation", "placement_set_id")
    raw = members(parsed(value, "a placement"), (*names, "resource_kind", "placement_id", "topology", "tensors", "parts"),
                  "a placement")
    weight_resource(raw)
    text(raw["placement_id"], "placement_id")
    common = {name: raw[name] for name in names}
    topology = _topology(raw["topology"])
    tensors = [tensor_in(item) for item in sequence(raw["tensors"], "tensors")]
    unique([tensor.tensor_id for tensor in tensors], "tensor_id")
    unused = {tensor.tensor_id: tensor for tensor in tensors}
    by_id = dict(unused)
    parts = []
    for item in sequence(raw["parts"], "parts"):
        part = members(item, ("participant_id", "rank", "fragments"), "a part")
        fragments = tuple(_fragment(fragment) for fragment in sequence(part["fragments"], "fragments"))
        held = {fragment.tensor_id for fragment in fragments}
        for name in held:
            unused.pop(name, None)
        parts.append(WeightPlacementPart(topology_id=topology.topology_id, participant_id=part["participant_id"],
                                         rank=_rank(part["rank"]), fragments=fragments,
                                         tensors=tuple(by_id[name] for name in sorted(held & by_id.keys())), **common))
    if unused:
        raise ValueError(f"no fragment is of the tensor {min(unused)}")
    return WeightPlacementManifest(topology=topology, parts=tuple(parts), placement_id=raw["placement_id"], **common)

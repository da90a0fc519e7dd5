"""The manifests of a placement and of its memory, by the name that upstream gives their module."""
from .binding import WeightRuntimeBindingManifest, validate_runtime_binding, validate_runtime_bindings
from ..contracts import RuntimeBindingFragment
from .placement import WeightPlacementManifest, WeightPlacementPart
from .types import (OwnershipAxis, ParallelRank, ParallelTopology, PlacementFragment, ReplicatedAxis, SplitAxis,
                    TensorDescriptor, TopologyParticipant)

__all__ = ["ParallelRank", "ParallelTopology", "PlacementFragment", "TopologyParticipant", "WeightPlacementManifest",
           "WeightPlacementPart", "RuntimeBindingFragment", "WeightRuntimeBindingManifest", "SplitAxis", "ReplicatedAxis",
           "OwnershipAxis", "TensorDescriptor", "validate_runtime_binding", "validate_runtime_bindings"]

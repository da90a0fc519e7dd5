"""Plans that move a resource of a model (its weights) from one parallel layout to another.

Nothing here opens a connection or touches memory: a manifest says which part of which tensor lies where, a plan says which byte
ranges go from which part to which. What carries a plan out is the engine (ranges between two processes) or the store (ranges of
objects, get_into_ranges). Names, JSON and digests are upstream's, so each side reads the other's manifests.
"""
from .contracts import PlacementManifest, ResourceKind, ResourceManifest, RuntimeBindingManifest

__all__ = ["ResourceKind", "ResourceManifest", "PlacementManifest", "RuntimeBindingManifest"]

"""Boxes in the index space of a tensor: (offset, shape), one number for each dimension.

That parts neither overlap nor leave a gap is what every manifest and plan rests on. A layout made by cutting, again and again and
right through, is taken apart along the same cuts: time grows with the boxes times the cuts one inside another. What cannot be
cut right through is compared pair by pair. Both count steps, and more than MAX_STEPS of them are refused rather than waited for.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Protocol

__all__ = ["LogicalBox", "OverlapRegion", "box_contains", "boxes_exactly_cover", "boxes_overlap", "regions_exactly_cover"]

Box = tuple[tuple[int, ...], tuple[int, ...]]
MAX_STEPS = 10_000_000


class LogicalBox(Protocol):
    @property
    def global_offset(self) -> tuple[int, ...]: ...
    @property
    def local_shape(self) -> tuple[int, ...]: ...


class OverlapRegion(Protocol):
    @property
    def overlap_offset(self) -> tuple[int, ...]: ...
    @property
    def overlap_shape(self) -> tuple[int, ...]: ...


def box_contains(outer_offset: tuple[int, ...], outer_shape: tuple[int, ...], inner_offset: tuple[int, ...],
                 inner_shape: tuple[int, ...]) -> bool:
    return all(begin <= inner and inner + size <= begin + extent
               for begin, extent, inner, size in zip(outer_offset, outer_shape, inner_offset, inner_shape, strict=True))


def intersection(left: Box, right: Box) -> Box | None:
    """The box that both have in common, if any."""
    offset = tuple(map(max, left[0], right[0]))
    shape = tuple(min(a + n, b + m) - begin
                  for a, n, b, m, begin in zip(*left, *right, offset, strict=True))
    return (offset, shape) if all(extent > 0 for extent in shape) else None


class _Steps:
    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ValueError(f"the layout's boxes are not told apart in {MAX_STEPS} steps")


def _cut(boxes: Sequence[Box], dim: int) -> list[list[Box]]:
    """Groups with a cut right through dimension `dim` between each and the next."""
    groups: list[list[Box]] = []
    reached = None
    for box in sorted(boxes, key=lambda box: box[0][dim]):
        begin, end = box[0][dim], box[0][dim] + box[1][dim]
        if reached is None or begin >= reached:
            groups.append([box])
            reached = end
        else:
            groups[-1].append(box)
            reached = max(reached, end)
    return groups


def boxes_overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two have an index in common. ValueError when that takes too many steps to tell."""
    steps = _Steps()
    pending = [list(boxes)]
    while pending:
        group = pending.pop()
        if len(group) < 2:
            continue
        for dim in range(len(group[0][0])):
            steps.take(len(group))
            groups = _cut(group, dim)
            if len(groups) > 1:
                pending.extend(groups)
                break
        else:
            if _any_pair(group, steps):
                return True
    return False


def _any_pair(group: Sequence[Box], steps: _Steps) -> bool:
    for index, left in enumerate(group):
        steps.take(index + 1)
        if any(intersection(left, right) for right in group[:index]):
            return True
    return False


def boxes_exactly_cover(container_offset: tuple[int, ...], container_shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether every index of the container is in one box and no box leaves it. As the boxes lie inside and do not overlap,
    counting indices tells that none is missing."""
    return (bool(boxes) and all(box_contains(container_offset, container_shape, *box) for box in boxes)
            and sum(prod(shape) for _, shape in boxes) == prod(container_shape) and not boxes_overlap(boxes))


def regions_exactly_cover(target: LogicalBox, regions: Iterable[OverlapRegion]) -> bool:
    return boxes_exactly_cover(target.global_offset, target.local_shape,
                               tuple((region.overlap_offset, region.overlap_shape) for region in regions))

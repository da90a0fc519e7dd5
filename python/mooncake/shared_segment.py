"""Tensors in host memory that the processes of one machine share; the ranks of a group declare the same blocks and see the same
bytes.

    segment = create_shared_segment("cache", {"kv": {"shape": (64, 1024), "dtype": torch.float16}}, world_size, rank, comm_group=g)
    segment.tensors("kv")[0][...] = ...

A block is a mapping with shape, dtype and, where there are several of it, count. Blocks lie one behind the other, each tensor at a
multiple of 4096 bytes.
"""
import ctypes
from collections.abc import Mapping
from typing import Any, Optional

import torch

from mooncake import engine

__all__ = ["SharedSegment", "SharedSegmentError", "create_shared_segment", "shared_segment_supported"]

ALIGNMENT = 4096


class SharedSegmentError(RuntimeError):
    """A shared segment cannot be made or has no such block."""


class _Block:
    def __init__(self, name, spec, begin):
        known = {"shape", "dtype", "count"}
        if not isinstance(spec, Mapping) or "shape" not in spec or "dtype" not in spec or set(spec) - known:
            raise SharedSegmentError(f"block {name!r}: wants shape and dtype, and count where there are several")
        self.shape, self.dtype, self.count = tuple(int(n) for n in spec["shape"]), spec["dtype"], int(spec.get("count", 1))
        if not isinstance(self.dtype, torch.dtype) or any(n < 1 for n in self.shape) or self.count < 1:
            raise SharedSegmentError(f"block {name!r}: dtype is a torch.dtype, shape and count are positive")
        self.begin, self.bytes = begin, torch.Size(self.shape).numel() * torch.empty(0, dtype=self.dtype).element_size()
        self.stride = -(-self.bytes // ALIGNMENT) * ALIGNMENT
        self.end = begin + self.count * self.stride


class SharedSegment:
    """Keep it as long as tensors of it are in use."""

    def __init__(self, segment, blocks):
        self._segment, self._blocks = segment, blocks

    def tensors(self, block: str) -> "list[torch.Tensor]":
        """The tensors of a block; they look at the shared memory."""
        if block not in self._blocks:
            raise SharedSegmentError(f"no block {block!r}; there are {sorted(self._blocks)}")
        one, out = self._blocks[block], []
        for i in range(one.count):
            memory = (ctypes.c_ubyte * one.bytes).from_address(self.base_addr() + one.begin + i * one.stride)
            memory.owner = self._segment  # Not unmapped under a tensor.
            out.append(torch.frombuffer(memory, dtype=torch.uint8).view(one.dtype).reshape(one.shape))
        return out

    def base_addr(self) -> int:
        return self._segment.base_addr()

    def total_size(self) -> int:
        return self._segment.size()


def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool:
    return engine.SharedSegment.supported(mmap, host_register)


def _gathered(blob, world_size, group):
    if world_size == 1:
        return [blob]
    if group is None:
        raise SharedSegmentError("a group of several ranks needs comm_group, by which they tell each other of their memory")
    if hasattr(group, "all_gather_object"):
        return group.all_gather_object(blob)
    blobs = [None] * world_size
    torch.distributed.all_gather_object(blobs, blob, group=getattr(group, "cpu_group", group))
    return blobs


def create_shared_segment(name: str, blocks: "Mapping[str, Mapping[str, Any]]", world_size: int, rank_id: int,
                          owner_rank: int = 0, device_id: Optional[int] = None, comm_group: Any = None, mmap: bool = True,
                          host_register: bool = False, *, tp_group: Any = None) -> SharedSegment:
    """Makes the segment and returns it ready; every rank of the group calls this with the same declaration. comm_group is the
    process group of torch.distributed (tp_group: its older name)."""
    placed, at = {}, 0
    for block in sorted(blocks):
        placed[block] = _Block(block, blocks[block], at)
        at = placed[block].end
    if not placed:
        raise SharedSegmentError("a shared segment has blocks")
    declared = f"{name}:" + ";".join(f"{n}={b.count}x{b.shape}:{b.dtype}" for n, b in placed.items())
    try:
        segment, blob = engine.SharedSegment.create(declared, at, world_size, rank_id, owner_rank, device_id or 0, mmap,
                                                    host_register)
        segment.complete(_gathered(blob, world_size, comm_group if comm_group is not None else tp_group))
        if world_size > 1:
            _gathered(b"", world_size, comm_group if comm_group is not None else tp_group)  # All have it before the owner may go.
    except SharedSegmentError:
        raise
    except RuntimeError as error:
        raise SharedSegmentError(str(error)) from error
    return SharedSegment(segment, placed)

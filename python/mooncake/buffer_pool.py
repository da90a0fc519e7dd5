"""Registered buffers that are borrowed: see BufferPool."""
from mooncake.store import BufferPool

RegisteredBufferPool = BufferPool
__all__ = ["BufferPool", "RegisteredBufferPool"]

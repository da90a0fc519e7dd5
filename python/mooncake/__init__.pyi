from mooncake.client import MooncakeError as MooncakeError
from mooncake.client import MooncakeStore as MooncakeStore
from mooncake.store import BufferPool as BufferPool
from mooncake.store import RegisteredBufferPool as RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool", "MooncakeStore", "MooncakeError"]

"""Mooncake: a distributed object cache for the KV caches of LLM serving, and its Transfer Engine.

    from mooncake.store import MooncakeDistributedStore     # upstream's interface, number for number
    from mooncake import MooncakeStore                      # the same with exceptions, `with`, `[]`, `await`
    from mooncake.engine import TransferEngine

Nothing is loaded before it is used: importing this package costs next to nothing.
"""
from pkgutil import extend_path as _extend_path

__path__ = _extend_path(__path__, __name__)  # mooncake.reshard and the like may live elsewhere
__all__ = ["BufferPool", "RegisteredBufferPool", "MooncakeStore", "MooncakeError"]

_PLACES = {
    "BufferPool": "mooncake.buffer_pool",
    "RegisteredBufferPool": "mooncake.buffer_pool",
    "MooncakeStore": "mooncake.client",
    "MooncakeError": "mooncake.client",
}


def __getattr__(name):
    if name in _PLACES:
        from importlib import import_module
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'mooncake' has no attribute '{name}'")

"""Mooncake: a distributed object cache for the KV caches of LLM serving, and its Transfer Engine.

    from mooncake.store import MooncakeDistributedStore     # upstream's interface, number for number
    from mooncake import MooncakeStore                      # the same with exceptions, `with`, `[]`, `await`
    from mooncake.engine import TransferEngine

Nothing is loaded before it is used: importing this package costs next to nothing.
"""
import os as _os
import sys as _sys

# mooncake.reshard and the like may live elsewhere on the path. pkgutil.extend_path() does this in 20 ms.
for _entry in _sys.path:
    _place = _os.path.join(_entry, "mooncake")
    if _entry and _place not in __path__ and _os.path.isdir(_place):
        __path__.append(_place)

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

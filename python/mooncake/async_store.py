"""MooncakeDistributedStore with coroutines: for every method m there is async_m, which runs m in the loop's executor."""
import asyncio
import functools

from mooncake.store import MooncakeDistributedStore


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """Calls block a thread of the executor, never the loop."""

    def __getattr__(self, name):
        method = getattr(type(self), name[len("async_"):], None) if name.startswith("async_") else None
        if not callable(method):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        bound = functools.partial(method, self)

        async def call(*args, **keywords):
            return await asyncio.get_running_loop().run_in_executor(None, functools.partial(bound, *args, **keywords))
        call.__name__, call.__doc__ = name, method.__doc__
        return call

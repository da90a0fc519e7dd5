"""The store for people: exceptions with codes, `with`, `[]`, `in`, `await`, numpy and torch in one line.

    from mooncake import MooncakeStore

    with MooncakeStore("10.0.0.1:50051", segment="4GB") as store:
        store["prompt/17"] = b"..."                       # replaces; store.put() keeps what is there
        store.put_array("kv", array)                      # numpy
        array = store.get_array("kv")
        value = await store.aio.get("prompt/17")          # any method, without blocking the loop

`store.raw` is the MooncakeDistributedStore below, whose calls return numbers.
"""
from __future__ import annotations

import asyncio
import ctypes
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from mooncake import store as _native

__all__ = ["MooncakeStore", "MooncakeError", "KeyNotFound", "NoSpace", "KeyInUse", "Conflict", "Unreachable",
           "InvalidArgument", "Closed"]

CHUNK_BYTES = 64 << 20  # of one step of a copy that reports its progress
PAGE_KEYS = 1000  # asked for at once


class MooncakeError(Exception):
    """A call failed. `code` is the store's error number, `name` its name."""

    def __init__(self, code: int, what: str) -> None:
        self.code, self.name = int(code), _native._status_name(int(code))
        super().__init__(f"{what}: {_native._status_text(self.code)} ({self.name}, {self.code})")


class KeyNotFound(MooncakeError, KeyError):
    """There is no such object."""
    __str__ = Exception.__str__  # type: ignore[assignment]


class NoSpace(MooncakeError):
    """No segment has room for the object."""


class KeyInUse(MooncakeError):
    """A reader holds a lease, or the object is being written or copied."""


class Conflict(MooncakeError):
    """A conditional put found another object than it wanted: the key exists, or has another version or checksum."""


class Unreachable(MooncakeError, ConnectionError):
    """The master, or the node that has the object, does not answer."""


class InvalidArgument(MooncakeError, ValueError):
    """The store does not take this argument, or is closed."""


class Closed(InvalidArgument):
    """The store is closed, or the parent's of this process."""

    def __init__(self, why: str) -> None:
        super().__init__(-600, why)
        self.args = (why,)


_CLASSES = {-704: KeyNotFound, -200: NoSpace, -703: KeyInUse, -706: KeyInUse, -708: KeyInUse, -714: KeyInUse, -705: Conflict,
            -300: Conflict, -800: Unreachable, -900: Unreachable, -901: Unreachable, -400: InvalidArgument, -600: InvalidArgument}


def _error(code: int, what: str) -> MooncakeError:
    return _CLASSES.get(code, MooncakeError)(code, what)


def _check(code: int, what: str) -> int:
    if code < 0:
        raise _error(code, what)
    return code


class _Async:
    """The store's methods as coroutines, run by the loop's executor."""

    def __init__(self, store: MooncakeStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._store, name)
        if not callable(method) or name.startswith("_"):
            raise AttributeError(f"MooncakeStore has no method '{name}'")

        @functools.wraps(method)
        async def call(*args: Any, **keywords: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(None, functools.partial(method, *args, **keywords))
        return call

    async def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """keys() for `async for`."""
        after: str | None = ""
        while after is not None:
            page, after = await asyncio.get_running_loop().run_in_executor(None, self._store._page, prefix, after)
            for key in page:
                yield key


def _put_options(replicas: int = 1, soft_pin: bool = False, soft_pin_ms: int | None = None, hard_pin: bool = False,
            preferred: str | Iterable[str] = (), group: str | None = None, ttl: float | None = None, if_absent: bool = False,
            if_version: int | list[int] | None = None, if_checksum: int | list[int] | None = None,
            keys: int = 1) -> _native.ReplicateConfig:
    config = _native.ReplicateConfig()
    config.replica_num, config.with_hard_pin = replicas, hard_pin
    if soft_pin:
        config.soft_pin_action = _native.SoftPinAction.ENABLE
        config.soft_pin_ttl_ms = soft_pin_ms
    config.preferred_segments = [preferred] if isinstance(preferred, str) else list(preferred)
    if group is not None:
        config.group_ids = [group] * keys
    if ttl is not None:
        if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
            raise TypeError(f"ttl must be a number of seconds, not {type(ttl).__name__}")
        if not ttl > 0:
            raise InvalidArgument(-600, f"ttl={ttl}")
        config.ttl_ms = max(1, round(ttl * 1000))
    config.if_absent = if_absent
    config.if_version, config.if_checksum = ([value] if isinstance(value, int) else value
                                             for value in (if_version, if_checksum))
    return config


def _keys(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be an iterable of str, not one {type(keys).__name__}")
    return list(keys)


class MooncakeStore:
    """A client of the store at `master`. `segment` is the memory that it lends to the cluster, a number or a text like "4GB".

    Options of put, upsert and put_array: replicas, soft_pin (evicted after the others; soft_pin_ms = for how long), hard_pin
    (never evicted), preferred (names of segments), group, ttl (seconds until the object ends by itself), and one of if_absent,
    if_version, if_checksum (of info(); put_many: one a key): what the key must be for the put to take place, else Conflict. The
    last four need our master.
    """

    def __init__(self, master: str = "127.0.0.1:50051", *, segment: int | str = 0, hostname: str | None = None,
                 metadata: str = "P2PHANDSHAKE", protocol: str = "tcp", devices: str = "", tenant: str = "default",
                 cache: int | str = "64MB") -> None:
        self._raw, self._pid, self._closed = _native.MooncakeDistributedStore(), os.getpid(), False
        config = {"local_hostname": hostname or os.environ.get("MOONCAKE_LOCAL_HOSTNAME", "127.0.0.1"),
                  "metadata_server": metadata, "master_server_addr": master, "global_segment_size": segment,
                  "local_buffer_size": cache, "protocol": protocol, "rdma_devices": devices, "tenant_id": tenant}
        code = self._raw.setup(config)
        if code:
            given = {"segment": segment, "hostname": hostname, "metadata": metadata, "protocol": protocol, "devices": devices,
                     "tenant": tenant, "cache": cache}
            said = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
            code = -900 if code == -1 else code  # All that setup() says of a master that does not answer.
            raise (InvalidArgument if code == -600 else Unreachable)(code, f"no store at the master {master!r}, {said}")
        self.aio = _Async(self)

    # ---- life ----

    @property
    def raw(self) -> _native.MooncakeDistributedStore:
        """The MooncakeDistributedStore below."""
        if self._pid != os.getpid():
            raise Closed("this store belongs to the parent process: open one after the fork")
        if self._closed:
            raise Closed("this store is closed")
        return self._raw

    def close(self) -> None:
        """Takes the segment back and disconnects; again is allowed."""
        self._closed = True
        self._raw.close()

    def __enter__(self) -> MooncakeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> MooncakeStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aio.close()

    @property
    def name(self) -> str:
        """"host:port", the name of this client's segment."""
        return self._raw.get_hostname()

    @property
    def healthy(self) -> bool:
        """The master answers."""
        return self._raw.health_check() == 0

    def __repr__(self) -> str:
        return f"<MooncakeStore {self.name or 'closed'}>"

    # ---- bytes ----

    def put(self, key: str, value: Any, **options: Any) -> None:
        """Stores the bytes of `value`; an object that exists stays as it is."""
        _check(self.raw.put(key, value, _put_options(**options)), f"put '{key}'")

    def upsert(self, key: str, value: Any, **options: Any) -> None:
        """Stores the bytes of `value`, in the place of what was there."""
        _check(self.raw.upsert(key, value, _put_options(**options)), f"upsert '{key}'")

    def view(self, key: str) -> memoryview:
        """The object's bytes as a memoryview, which keeps its memory; cheaper than get()."""
        for _ in range(2):
            handle = self.raw.get_buffer(key)
            if handle is not None:
                return memoryview(handle).cast("B")
            _check(self.raw.get_size(key), f"get '{key}'")  # why not; when it is there now, once more
        raise _error(-703, f"get '{key}'")

    def get(self, key: str, default: Any = None) -> Any:
        """The object's bytes; `default` when there is none."""
        try:
            return bytes(self.view(key))
        except KeyNotFound:
            return default

    def size(self, key: str) -> int:
        """Bytes of the object."""
        return _check(self.raw.get_size(key), f"size of '{key}'")

    def info(self, key: str) -> _native.ObjectInfo:
        """ObjectInfo: size, version, checksum, what is left of its life in ms, replicas. Keeps nothing from eviction."""
        found = self.raw.inspect([key])[0]
        if isinstance(found, int):
            raise _error(found, f"info '{key}'")
        return found

    def remove(self, key: str, force: bool = False) -> None:
        """Removes the object; `force` also one that is leased."""
        _check(self.raw.remove(key, force), f"remove '{key}'")

    def clear(self, force: bool = False) -> int:
        """Removes every object that is not leased (all, with `force`); how many."""
        return _check(self.raw.remove_all(force), "remove all")

    # ---- mapping ----

    # No len(): it would be a listing of the whole cluster, and an empty store would be false.

    def _page(self, prefix: str, after: str) -> tuple[list[str], str | None]:
        page = self.raw.list_keys(prefix, after, PAGE_KEYS)
        if isinstance(page, int):
            raise _error(page, f"list the keys of '{prefix}'")
        return page[0], page[1] or None

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that begin with `prefix`, in no order, asked for in pages as they are used: one that is there all the time
        comes exactly once, whatever else comes and goes. Keeps nothing from eviction. Needs our master."""
        after: str | None = ""
        while after is not None:
            page, after = self._page(prefix, after)
            yield from page

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __setitem__(self, key: str, value: Any) -> None:
        self.upsert(key, value)

    def __getitem__(self, key: str) -> bytes:
        return bytes(self.view(key))

    def __delitem__(self, key: str) -> None:
        self.remove(key, force=True)

    def __contains__(self, key: str) -> bool:
        return _check(self.raw.is_exist(key), f"exist '{key}'") == 1

    def exist(self, keys: Iterable[str]) -> dict[str, bool]:
        """{key: bool}, asked at once."""
        keys = _keys(keys)
        found = self.raw.batch_is_exist(keys)
        if any(code < 0 for code in found):
            raise _error(-900, "exist")
        return {key: code == 1 for key, code in zip(keys, found)}

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """{key: bytes} of the keys that are there, read at once."""
        keys = _keys(keys)
        return {key: bytes(handle) for key, handle in zip(keys, self.raw.batch_get_buffer(keys)) if handle is not None}

    def put_many(self, values: Mapping[str, Any], **options: Any) -> None:
        """put() of every key of a mapping, at once."""
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of keys to bytes, not {type(values).__name__}")
        keys = list(values)
        _check(self.raw.put_batch(keys, [values[key] for key in keys], _put_options(keys=len(keys), **options)), f"put {len(keys)} keys")

    # ---- arrays ----

    def put_array(self, key: str, array: Any, **options: Any) -> None:
        """Stores a numpy array so that get_array() and get_tensor() give it back with shape and dtype."""
        import numpy
        from mooncake import _tensors
        array = numpy.asarray(array, order="C")
        name = array.dtype.name
        code = _tensors._CODES.get(name)
        if code is None or array.ndim > _tensors.MAX_DIMS:
            raise InvalidArgument(-600, f"an array of {name} with {array.ndim} dimensions")
        data = array.reshape(-1).view(numpy.uint8) if array.size else b""
        head = _tensors.Header(code, array.shape).pack()
        _check(self.raw.upsert_parts(key, head, memoryview(data), config=_put_options(**options)), f"put array '{key}'")

    def get_array(self, key: str) -> Any:
        """The numpy array of an object that put_array() or put_tensor() stored."""
        import numpy
        from mooncake import _tensors
        view = self.view(key)
        header = _tensors.parse(view[:_tensors.SIZE], len(view))
        if header is None:
            raise InvalidArgument(-600, f"'{key}' is no array")
        try:
            dtype = numpy.dtype(_tensors.DTYPES[header.dtype][0])
        except TypeError:
            raise InvalidArgument(-600, f"numpy has no {_tensors.DTYPES[header.dtype][0]}, which '{key}' is of") from None
        return numpy.frombuffer(view, numpy.uint8, header.nbytes, _tensors.SIZE).view(dtype).reshape(header.local_shape)

    def put_tensor(self, key: str, tensor: Any) -> None:
        """Stores a torch tensor."""
        _check(self.raw.upsert_tensor(key, tensor), f"put tensor '{key}'")

    def get_tensor(self, key: str) -> Any:
        """The torch tensor of an object."""
        tensor = self.raw.get_tensor(key)
        if tensor is None:
            _check(self.raw.get_size(key), f"get tensor '{key}'")
            raise InvalidArgument(-600, f"'{key}' is no tensor")
        return tensor

    # ---- long copies ----

    def put_large(self, key: str, value: Any, progress: Callable[[int, int], object] | None = None) -> None:
        """put() in steps, with progress(bytes done, bytes in all) after each; readable after the last."""
        view = memoryview(value).cast("B")
        holder = (ctypes.c_char * len(view)).from_buffer_copy(view) if view.readonly else (
            ctypes.c_char * len(view)).from_buffer(view)
        address, total = ctypes.addressof(holder), len(view)
        code = self.raw.batch_put_session_start([key], [total])[0]
        if code == -705:
            return  # it exists, as for put()
        _check(code, f"put '{key}'")
        try:
            for done in range(0, total, CHUNK_BYTES):
                size = min(CHUNK_BYTES, total - done)
                _check(self.raw.batch_put_from_multi_buffer_ranges([key], [[address + done]], [[size]], [[done]])[0],
                       f"put '{key}'")
                if progress is not None:
                    progress(done + size, total)
            _check(self.raw.batch_put_session_end([key])[0], f"put '{key}'")
        except BaseException:
            self.raw.batch_put_session_revoke([key])
            raise

    def get_large(self, key: str, progress: Callable[[int, int], object] | None = None) -> bytearray:
        """get() in steps, as a bytearray; every byte of it from the same object."""
        total = self.size(key)
        result = bytearray(total)
        address = ctypes.addressof((ctypes.c_char * total).from_buffer(result))
        _check(self.raw.batch_get_session_start([key])[0], f"get '{key}'")
        try:
            for done in range(0, total, CHUNK_BYTES):
                size = min(CHUNK_BYTES, total - done)
                _check(self.raw.batch_get_into_multi_buffer_ranges([key], [[address + done]], [[size]], [[done]])[0],
                       f"get '{key}'")
                if progress is not None:
                    progress(done + size, total)
        finally:
            self.raw.batch_get_session_end([key])
        return result

"""The agent's face of our library, by ctypes on libmooncake.so: mooncake/store.h and mooncake/transfer.h (which have
everything), and the upstream-compatible C ABIs, each from its own thin library: compat/store_c.h (class StoreC) and
compat/transfer_engine_c.h (class EngineC), for the calls that they have."""
import ctypes
import os
import time
from ctypes import (POINTER, Structure, byref, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint,
                    c_uint16, c_uint32, c_uint64, c_uint8, c_void_p)

lib = ctypes.CDLL(os.environ["MOONCAKE_LIBRARY"])
MINUTE_MS = 60000


# ---- mooncake/store.h ----

class StoreOptions(Structure):
    _fields_ = [("master", c_char_p), ("metadata", c_char_p), ("local_hostname", c_char_p),
                ("segment_bytes", c_uint64), ("local_buffer_bytes", c_uint64), ("protocol", c_char_p),
                ("device", c_char_p), ("tenant", c_char_p), ("timeout_ms", c_uint32), ("checksum", c_bool),
                ("stripe_bytes", c_uint64), ("hot_cache_bytes", c_uint64), ("hot_object_bytes", c_uint64),
                ("hot_admission", c_uint32),
                ("tls_ca", c_char_p), ("tls_cert", c_char_p), ("tls_key", c_char_p), ("tls_peers", c_char_p),
                ("ssd_offload_path", c_char_p), ("engine", c_void_p), ("real_client", c_char_p),
                ("disable_shm", c_bool), ("disable_local_copy", c_bool)]


class ReplicateConfig(Structure):
    _fields_ = [("replica_num", c_uint64), ("with_soft_pin", c_bool), ("soft_pin_ttl_ms", c_uint64),
                ("with_hard_pin", c_bool), ("preferred_segments", POINTER(c_char_p)),
                ("preferred_segment_count", c_size_t), ("prefer_same_node", c_bool), ("group_ids", POINTER(c_char_p)),
                ("group_id_count", c_size_t), ("without_soft_pin", c_bool), ("data_type", c_uint8),
                ("ttl_ms", c_uint64), ("condition", c_int), ("expected", POINTER(c_uint64)),
                ("expected_count", c_size_t)]


class Slice(Structure):
    _fields_ = [("ptr", c_void_p), ("length", c_size_t)]


class Item(Structure):
    _fields_ = [("key", c_char_p), ("slices", POINTER(Slice)), ("slice_count", c_size_t), ("length", c_size_t),
                ("status", c_int), ("allocate", c_void_p), ("allocate_ctx", c_void_p)]


class ReplicaInfo(Structure):
    _fields_ = [("id", c_uint64), ("type", c_int), ("status", c_int), ("size", c_uint64), ("address", c_uint64),
                ("endpoint", c_char * 280), ("file_path", c_char * 1024)]


class Range(Structure):
    _fields_ = [("ptr", c_void_p), ("length", c_size_t), ("offset", c_uint64), ("status", c_int)]


class RangeItem(Structure):
    _fields_ = [("key", c_char_p), ("ranges", POINTER(Range)), ("range_count", c_size_t), ("length", c_size_t),
                ("status", c_int)]


class TaskId(Structure):
    _fields_ = [("hi", c_uint64), ("lo", c_uint64)]


class Task(Structure):
    _fields_ = [("id", TaskId), ("type", c_int), ("status", c_int), ("created_ms", c_int64), ("updated_ms", c_int64),
                ("client", TaskId), ("message", c_char * 512)]


lib.mc_store_hostname.restype = c_char_p
lib.mc_store_put.argtypes = lib.mc_store_upsert.argtypes = [c_void_p, c_char_p, c_char_p, c_size_t, c_void_p]
lib.mc_store_get.argtypes = [c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t)]
lib.mc_store_remove.argtypes = [c_void_p, c_char_p, c_bool]
lib.mc_store_remove_regex.argtypes = [c_void_p, c_char_p, c_bool, POINTER(c_uint64)]
lib.mc_store_remove_all.argtypes = [c_void_p, c_bool, POINTER(c_uint64)]
lib.mc_store_register_buffer.argtypes = [c_void_p, c_void_p, c_size_t]
lib.mc_store_unregister_buffer.argtypes = [c_void_p, c_void_p]

OBJECT_NOT_FOUND = -704


def strings(texts):
    return (c_char_p * len(texts))(*[t.encode() for t in texts])


def counted(status, count):
    return status or count.value


class Pieces:
    """Items for a batch call over memory that this object keeps alive."""

    def __init__(self, keys, sizes, values=None):
        self.memory = ctypes.create_string_buffer(max(sum(sizes), 1))
        self.address = ctypes.addressof(self.memory)
        self.sizes = sizes
        self.edges = [sum(sizes[:i]) for i in range(len(sizes))]
        self.slices = (Slice * len(keys))(*[Slice(self.address + e, n) for e, n in zip(self.edges, sizes)])
        self.names = [k.encode() for k in keys]
        self.items = (Item * len(keys))()
        for i, name in enumerate(self.names):
            self.items[i] = Item(name, ctypes.pointer(self.slices[i]), 1, sizes[i], 0)
        for edge, v in zip(self.edges, values or []):
            ctypes.memmove(self.address + edge, v, len(v))

    def statuses(self):
        return [i.status for i in self.items]

    def read(self):
        return [self.memory.raw[e:e + n] if i.status == 0 and i.length == n else None
                for e, n, i in zip(self.edges, self.sizes, self.items)]


class Store:
    def __init__(self, master, metadata, segment, buffer, tcp_only=False):
        options = StoreOptions()
        lib.mc_store_options_init(byref(options))
        self.texts = [master.encode(), metadata.encode(), b"127.0.0.1"]
        options.master, options.metadata, options.local_hostname = self.texts
        options.segment_bytes, options.local_buffer_bytes = segment, buffer
        if tcp_only:
            options.disable_shm = options.disable_local_copy = True
        handle = c_void_p()
        status = lib.mc_store_open(byref(options), byref(handle))
        if status:
            raise AssertionError(f"mc_store_open: {status}")
        self.s = handle

    def hostname(self):
        return lib.mc_store_hostname(self.s).decode()

    def health(self):
        return lib.mc_store_health(self.s)

    def _config(self, replicas=1, soft_pin=False, hard_pin=False, preferred=None):
        config = ReplicateConfig(replica_num=replicas, with_soft_pin=soft_pin, with_hard_pin=hard_pin)
        if preferred:
            self.preferred = strings(preferred)
            config.preferred_segments, config.preferred_segment_count = self.preferred, len(preferred)
        return byref(config)

    def register(self, address, size):
        status = lib.mc_store_register_buffer(self.s, address, size)
        if status:
            raise AssertionError(f"mc_store_register_buffer: {status}")

    def unregister(self, address):
        status = lib.mc_store_unregister_buffer(self.s, address)
        if status:
            raise AssertionError(f"mc_store_unregister_buffer: {status}")

    def put(self, key, data, **config):
        return lib.mc_store_put(self.s, key.encode(), data, len(data), self._config(**config) if config else None)

    def put_parts(self, key, parts):
        buffers = [ctypes.create_string_buffer(p, len(p)) for p in parts]
        slices = (Slice * len(parts))(*[Slice(ctypes.addressof(b), len(p)) for b, p in zip(buffers, parts)])
        item = Item(key.encode(), slices, len(parts), 0, 0)
        return lib.mc_store_put_batch(self.s, byref(item), c_size_t(1), None) or item.status

    def upsert(self, key, data):
        return lib.mc_store_upsert(self.s, key.encode(), data, len(data), None)

    def size(self, key):
        length = c_uint64()
        return counted(lib.mc_store_size(self.s, key.encode(), byref(length)), length)

    def get(self, key):
        size = self.size(key)
        if size == OBJECT_NOT_FOUND:
            return None
        if size < 0:
            raise AssertionError(f"mc_store_size {key}: {size}")
        buffer, length = ctypes.create_string_buffer(size), c_size_t()
        status = lib.mc_store_get(self.s, key.encode(), ctypes.addressof(buffer), size, byref(length))
        if status:
            raise AssertionError(f"mc_store_get {key}: {status}")
        return buffer.raw[:length.value]

    def _registered(self, pieces, call):
        self.register(pieces.address, max(sum(pieces.sizes), 1))
        status = call()
        if status:
            raise AssertionError(f"batch: {status}")
        self.unregister(pieces.address)
        return pieces

    def _batch(self, function, keys, values=None, sizes=None, registered=False):
        pieces = Pieces(keys, sizes or [len(v) for v in values], values)
        extra = [] if function is lib.mc_store_get_batch else [None]

        def call():
            return function(self.s, pieces.items, c_size_t(len(keys)), *extra)

        if registered:
            return self._registered(pieces, call)
        status = call()
        if status:
            raise AssertionError(f"batch: {status}")
        return pieces

    def put_from(self, key, data):
        return self._batch(lib.mc_store_put_batch, [key], [data], registered=True).statuses()[0]

    def upsert_from(self, key, data):
        return self._batch(lib.mc_store_upsert_batch, [key], [data], registered=True).statuses()[0]

    def get_into(self, key, size):
        return self._batch(lib.mc_store_get_batch, [key], sizes=[size], registered=True).read()[0]

    get_buffer = get

    def put_batch(self, keys, values):
        return next((s for s in self._batch(lib.mc_store_put_batch, keys, values).statuses() if s), 0)

    def upsert_batch(self, keys, values):
        return next((s for s in self._batch(lib.mc_store_upsert_batch, keys, values).statuses() if s), 0)

    def batch_put_from(self, keys, values):
        return self._batch(lib.mc_store_put_batch, keys, values, registered=True).statuses()

    def batch_upsert_from(self, keys, values):
        return self._batch(lib.mc_store_upsert_batch, keys, values, registered=True).statuses()

    def get_batch(self, keys):
        return self._batch(lib.mc_store_get_batch, keys, sizes=[max(self.size(k), 1) for k in keys]).read()

    def batch_get_into(self, keys, sizes):
        return self._batch(lib.mc_store_get_batch, keys, sizes=sizes, registered=True).read()

    def exist(self, key):
        found = c_bool()
        return counted(lib.mc_store_exist(self.s, key.encode(), byref(found)), found) + 0

    def batch_exist(self, keys):
        found, results = (c_bool * len(keys))(), (c_int * len(keys))()
        status = lib.mc_store_exist_batch(self.s, strings(keys), c_size_t(len(keys)), found, results)
        if status:
            raise AssertionError(f"mc_store_exist_batch: {status}")
        return [r or int(f) for f, r in zip(found, results)]

    def remove(self, key, force=False):
        return lib.mc_store_remove(self.s, key.encode(), force)

    def batch_remove(self, keys, force=False):
        results = (c_int * len(keys))()
        status = lib.mc_store_remove_batch(self.s, strings(keys), c_size_t(len(keys)), c_bool(force), results)
        if status:
            raise AssertionError(f"mc_store_remove_batch: {status}")
        return list(results)

    def remove_regex(self, pattern, force=False):
        removed = c_uint64()
        return counted(lib.mc_store_remove_regex(self.s, pattern.encode(), force, byref(removed)), removed)

    def remove_all(self, force=False):
        removed = c_uint64()
        return counted(lib.mc_store_remove_all(self.s, force, byref(removed)), removed)

    def replicas(self, key):
        infos, count = (ReplicaInfo * 16)(), c_size_t()
        status = lib.mc_store_replicas(self.s, key.encode(), infos, c_size_t(16), byref(count))
        if status:
            raise AssertionError(f"mc_store_replicas: {status}")
        return [[i.endpoint.decode(), i.size, i.status == 3, i.address] for i in infos[:count.value]]

    # -- parts, tasks

    def _parts(self, function, key, buffer, cuts):
        edges = [*cuts, len(buffer)]
        ranges = (Range * len(cuts))(*[Range(ctypes.addressof(buffer) + a, b - a, a, 0) for a, b in zip(edges, edges[1:])])
        item = RangeItem(key.encode(), ranges, len(cuts), 0, 0)
        status = function(self.s, byref(item), c_size_t(1)) or item.status
        return status or item.length

    def _session(self, function, key):
        result = c_int()
        return function(self.s, strings([key]), c_size_t(1), byref(result)) or result.value

    def put_in_pieces(self, key, data, cuts):
        buffer, size, result = ctypes.create_string_buffer(data, len(data)), c_uint64(len(data)), c_int()
        status = lib.mc_store_put_session_start(self.s, strings([key]), byref(size), c_size_t(1), None, byref(result))
        status = status or result.value
        if status:
            return status
        written = self._parts(lib.mc_store_put_session_write, key, buffer, cuts)
        return written if written != len(data) else self._session(lib.mc_store_put_session_end, key)

    def get_in_pieces(self, key, size, cuts):
        buffer = ctypes.create_string_buffer(size)
        status = self._session(lib.mc_store_get_session_start, key)
        got = status or self._parts(lib.mc_store_get_session_read, key, buffer, cuts)
        lib.mc_store_get_session_end(self.s, strings([key]), c_size_t(1))
        return buffer.raw if got == size else None

    def get_ranges(self, key, size, cuts):
        buffer = ctypes.create_string_buffer(size)
        return buffer.raw if self._parts(lib.mc_store_get_ranges, key, buffer, cuts) == size else None

    def copy_task(self, key, targets):
        task = TaskId()
        return self._task(lib.mc_store_copy(self.s, key.encode(), strings(targets), c_size_t(len(targets)), byref(task)), task)

    def move_task(self, key, source, target):
        task = TaskId()
        return self._task(lib.mc_store_move(self.s, key.encode(), source.encode(), target.encode(), byref(task)), task)

    def _task(self, error, task):
        if error:
            return f"error {error}"
        for _ in range(300):
            answer = Task()
            error = lib.mc_store_task(self.s, task, byref(answer))
            if error:
                return f"query error {error}"
            if answer.status >= 2:
                return "SUCCESS" if answer.status == 3 else f"FAILED {answer.message.decode()}"
            time.sleep(0.05)
        return "does not end"

    def batch_replicas(self, keys):
        found = []
        for key in keys:
            count = c_size_t()
            if lib.mc_store_replicas(self.s, key.encode(), None, c_size_t(0), byref(count)) == 0:
                found.append((key, count.value))
        return sorted(found)

    def close_store(self):
        lib.mc_store_close(self.s)
        self.s = None
        return 0


# ---- compat/store_c.h ----


def thin_library(name):
    return ctypes.CDLL(os.path.join(os.path.dirname(os.environ["MOONCAKE_LIBRARY"]), name))


abi = thin_library("libmooncake_store.so")


class StoreC(Store):
    """The same agent through the C ABI that upstream's Go and Rust bindings load; what the ABI lacks stays Store's (the
    two handles are two clients of the cluster)."""

    def __init__(self, master, metadata, segment, buffer):
        super().__init__(master, metadata, 0, buffer)
        abi.mooncake_store_create.restype = c_void_p
        for name in ("get_into", "get_size", "remove_by_regex", "remove_all"):
            getattr(abi, f"mooncake_store_{name}").restype = c_int64
        self.c = c_void_p(abi.mooncake_store_create())
        status = abi.mooncake_store_setup(self.c, b"127.0.0.1", metadata.encode(), c_uint64(segment),
                                          c_uint64(buffer), b"tcp", b"", master.encode())
        if status:
            raise AssertionError(f"mooncake_store_setup: {status}")

    def hostname(self):
        text = ctypes.create_string_buffer(300)
        if abi.mooncake_store_get_hostname(self.c, text, c_size_t(300)):
            raise AssertionError("mooncake_store_get_hostname")
        return text.value.decode()

    def health(self):
        return abi.mooncake_store_health_check(self.c)

    def put(self, key, data, **config):
        if config:
            return super().put(key, data, **config)
        return abi.mooncake_store_put(self.c, key.encode(), data, c_size_t(len(data)), None)

    def size(self, key):
        return abi.mooncake_store_get_size(self.c, key.encode())

    def get(self, key):
        size = self.size(key)
        if size == OBJECT_NOT_FOUND:
            return None
        if size < 0:
            raise AssertionError(f"mooncake_store_get_size {key}: {size}")
        buffer = ctypes.create_string_buffer(size)
        got = abi.mooncake_store_get_into(self.c, key.encode(), c_void_p(ctypes.addressof(buffer)), c_size_t(size))
        if got != size:
            raise AssertionError(f"mooncake_store_get_into {key}: {got}")
        return buffer.raw

    def _with_buffer(self, pieces, call):
        size = max(sum(pieces.sizes), 1)
        if abi.mooncake_store_register_buffer(self.c, c_void_p(pieces.address), c_size_t(size)):
            raise AssertionError("mooncake_store_register_buffer")
        result = call((c_void_p * len(pieces.sizes))(*[pieces.address + e for e in pieces.edges]),
                      (c_size_t * len(pieces.sizes))(*pieces.sizes))
        if abi.mooncake_store_unregister_buffer(self.c, c_void_p(pieces.address)):
            raise AssertionError("mooncake_store_unregister_buffer")
        return result

    def put_from(self, key, data):
        return self._with_buffer(Pieces([key], [len(data)], [data]), lambda p, n: abi.mooncake_store_put_from(
            self.c, key.encode(), c_void_p(p[0]), c_size_t(n[0]), None))

    def batch_put_from(self, keys, values):
        results = (c_int * len(keys))()
        status = self._with_buffer(Pieces(keys, [len(v) for v in values], values),
                                   lambda p, n: abi.mooncake_store_batch_put_from(
                                       self.c, strings(keys), p, n, c_size_t(len(keys)), None, results))
        return list(results) if status == 0 else status

    def get_into(self, key, size):
        pieces = Pieces([key], [size])
        got = self._with_buffer(pieces, lambda p, n: abi.mooncake_store_get_into(
            self.c, key.encode(), c_void_p(p[0]), c_size_t(n[0])))
        return pieces.memory.raw[:size] if got == size else None

    def batch_get_into(self, keys, sizes):
        pieces, results = Pieces(keys, sizes), (c_int64 * len(keys))()
        status = self._with_buffer(pieces, lambda p, n: abi.mooncake_store_batch_get_into(
            self.c, strings(keys), p, n, c_size_t(len(keys)), results))
        if status:
            raise AssertionError(f"mooncake_store_batch_get_into: {status}")
        return [pieces.memory.raw[e:e + n] if r == n else None for e, n, r in zip(pieces.edges, sizes, results)]

    def exist(self, key):
        return abi.mooncake_store_is_exist(self.c, key.encode())

    def batch_exist(self, keys):
        results = (c_int * len(keys))()
        status = abi.mooncake_store_batch_is_exist(self.c, strings(keys), c_size_t(len(keys)), results)
        return list(results) if status == 0 else status

    def remove(self, key, force=False):
        return abi.mooncake_store_remove(self.c, key.encode(), c_int(force))

    def remove_regex(self, pattern, force=False):
        return abi.mooncake_store_remove_by_regex(self.c, pattern.encode(), c_int(force))

    def remove_all(self, force=False):
        return abi.mooncake_store_remove_all(self.c, c_int(force))

    def close_store(self):
        abi.mooncake_store_destroy(self.c)
        return super().close_store()


# ---- mooncake/transfer.h ----

class EngineOptions(Structure):
    _fields_ = [("metadata", c_char_p), ("local_name", c_char_p), ("host", c_char_p), ("rpc_port", c_uint16),
                ("port_min", c_uint16), ("port_max", c_uint16), ("reactors", c_uint), ("lanes_per_peer", c_uint),
                ("disable_shm", c_bool), ("disable_local", c_bool), ("lazy_memory", c_bool),
                ("connect_timeout_ms", c_uint32),
                ("later", c_uint64 * 16)]  # members that came since; mc_engine_options_init sets them


class Request(Structure):
    _fields_ = [("op", c_int), ("local", c_void_p), ("segment", c_int32), ("remote_addr", c_uint64),
                ("length", c_uint64), ("priority", c_uint8), ("intent", c_uint8), ("transport_hint", c_char_p)]


class BufferInfo(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint64), ("location", c_char * 64)]


class Notification(Structure):
    _fields_ = [("name", c_char_p), ("message", c_char_p)]


lib.mc_engine_name.restype = c_char_p
lib.mc_deadline_in_ms.restype = c_uint64
lib.mc_deadline_in_ms.argtypes = [c_uint64]
lib.mc_transfer.argtypes = [c_void_p, POINTER(Request), c_size_t, c_uint64]
READ, WRITE = 0, 1


class Engine:
    def __init__(self, metadata):
        options = EngineOptions()
        lib.mc_engine_options_init(byref(options))
        self.texts = [metadata.encode(), b"127.0.0.1"]
        options.metadata, options.host = self.texts
        handle = c_void_p()
        status = lib.mc_engine_create(byref(options), byref(handle))
        if status:
            raise AssertionError(f"mc_engine_create: {status}")
        self.e, self.memory, self.opened = handle, {}, {}

    def engine_name(self):
        return lib.mc_engine_name(self.e).decode()

    def allocate(self, size):
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        status = lib.mc_memory_register(self.e, c_void_p(address), c_size_t(size), b"*", c_uint(0))
        if status:
            raise AssertionError(f"mc_memory_register: {status}")
        self.memory[address] = memory
        return address

    def _segment(self, peer):
        if peer not in self.opened:
            segment = c_int32()
            status = lib.mc_segment_open(self.e, peer.encode(), byref(segment))
            if status:
                raise AssertionError(f"mc_segment_open {peer}: {status}")
            self.opened[peer] = segment.value
        return self.opened[peer]

    def _move(self, op, peer, locals_, remotes, sizes):
        requests = (Request * len(sizes))(*[Request(op, a, self._segment(peer), b, n)
                                            for a, b, n in zip(locals_, remotes, sizes)])
        return lib.mc_transfer(self.e, requests, len(sizes), lib.mc_deadline_in_ms(MINUTE_MS))

    def write(self, peer, local, remote, size):
        return self._move(WRITE, peer, [local], [remote], [size])

    def read(self, peer, local, remote, size):
        return self._move(READ, peer, [local], [remote], [size])

    def batch_write(self, peer, locals_, remotes, sizes):
        return self._move(WRITE, peer, locals_, remotes, sizes)

    def batch_read(self, peer, locals_, remotes, sizes):
        return self._move(READ, peer, locals_, remotes, sizes)

    def prepared(self, op, peer, local, remote, size):
        """A callable for one transfer, for timing."""
        request = Request(READ if op == "read" else WRITE, local, self._segment(peer), remote, size)
        requests, forever = ctypes.pointer(request), 2 ** 64 - 1
        return lambda: lib.mc_transfer(self.e, requests, 1, forever)

    def first_buffer(self, peer):
        buffers, count = (BufferInfo * 8)(), c_size_t()
        status = lib.mc_segment_buffers(self.e, c_int32(self._segment(peer)), buffers, c_size_t(8), byref(count))
        if status:
            raise AssertionError(f"mc_segment_buffers: {status}")
        return buffers[0].addr if count.value else 0

    def probe(self, peer):
        deadline = c_uint64(lib.mc_deadline_in_ms(5000))
        return lib.mc_segment_probe(self.e, c_int32(self._segment(peer)), deadline) == 0

    def write_notify(self, peer, local, remote, size, name, message):
        batch, segment = c_void_p(), c_int32(self._segment(peer))
        deadline = c_uint64(lib.mc_deadline_in_ms(MINUTE_MS))
        request = Request(WRITE, local, segment, remote, size)
        for status in (lib.mc_batch_create(self.e, c_size_t(1), byref(batch)),
                       lib.mc_batch_notify(batch, segment, name.encode(), message.encode()),
                       lib.mc_batch_submit(batch, byref(request), c_size_t(1), deadline),
                       lib.mc_batch_wait(batch, deadline), lib.mc_batch_free(batch)):
            if status:
                return status
        return 0

    def notifications(self):
        found, count = POINTER(Notification)(), c_size_t()
        status = lib.mc_notify_receive(self.e, byref(found), byref(count))
        if status:
            raise AssertionError(f"mc_notify_receive: {status}")
        got = [[found[i].name.decode(), found[i].message.decode()] for i in range(count.value)]
        lib.mc_notify_free(found, count)
        return got


class StandinCuda(ctypes.Structure):
    """The beginning of struct standin_cuda (tests/standins/cuda.h)."""
    _fields_ = [("alloc", ctypes.CFUNCTYPE(ctypes.c_int, c_uint, c_size_t, POINTER(c_uint64))),
                ("release", ctypes.CFUNCTYPE(None, c_uint64)),
                ("inside", ctypes.CFUNCTYPE(c_void_p, c_uint64))]


class DeviceEngine(Engine):
    """Its memory is of a device, which no processor can touch: MOONCAKE_TEST_DEVICE is the stand-in's library."""

    def __init__(self, metadata):
        self.cuda = StandinCuda.in_dll(ctypes.CDLL(os.environ["MOONCAKE_TEST_DEVICE"]), "standin_cuda_table")
        super().__init__(metadata)

    def allocate(self, size):
        address = c_uint64()
        status = self.cuda.alloc(0, size, byref(address))
        status = status or lib.mc_memory_register(self.e, c_void_p(address.value), c_size_t(size), b"*", c_uint(0))
        if status:
            raise AssertionError(f"device memory: {status}")
        return address.value

    def inside(self, address):
        """Where the bytes can be seen."""
        return self.cuda.inside(address)

    def destroy(self):
        lib.mc_engine_destroy(self.e)


# ---- compat/transfer_engine_c.h ----

class RequestC(Structure):
    _fields_ = [("opcode", c_int), ("source", c_void_p), ("target_id", c_int32), ("target_offset", c_uint64),
                ("length", c_uint64)]


class StatusC(Structure):
    _fields_ = [("status", c_int), ("transferred_bytes", c_uint64)]


class NotifyC(Structure):
    _fields_ = [("name", c_char_p), ("msg", c_char_p)]


class EngineC:
    """The engine through upstream's C interface, called as NIXL's plugin calls it."""
    PENDING, COMPLETED = 1, 4

    def __init__(self, metadata):
        self.t = thin_library("libtransfer_engine.so")
        self.t.createTransferEngine.restype = c_void_p
        self.t.allocateBatchID.restype = c_uint64
        self.t.getNotifsFromEngine.restype = POINTER(NotifyC)
        self.e = c_void_p(self.t.createTransferEngine(metadata.encode(), b"127.0.0.1", b"", c_uint64(0), c_int(1)))
        if not self.e:
            raise AssertionError("createTransferEngine")
        self.memory = {}

    def engine_name(self):
        text = ctypes.create_string_buffer(64)
        if self.t.getLocalIpAndPort(self.e, text, c_size_t(64)):
            raise AssertionError("getLocalIpAndPort")
        return text.value.decode()

    def allocate(self, size):
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        status = self.t.registerLocalMemory(self.e, c_void_p(address), c_size_t(size), b"*", c_int(1))
        if status:
            raise AssertionError(f"registerLocalMemory: {status}")
        self.memory[address] = memory
        return address

    def _move(self, op, peer, locals_, remotes, sizes, notify=None):
        segment, count = self.t.openSegment(self.e, peer.encode()), len(sizes)
        if segment < 0:
            raise AssertionError(f"openSegment {peer}: {segment}")
        requests = (RequestC * count)(*[RequestC(op, a, segment, b, n) for a, b, n in zip(locals_, remotes, sizes)])
        batch, status, failed = c_uint64(self.t.allocateBatchID(self.e, c_size_t(1024))), StatusC(), 0
        result = (self.t.submitTransferWithNotify(self.e, batch, requests, c_size_t(count), notify) if notify else
                  self.t.submitTransfer(self.e, batch, requests, c_size_t(count)))
        ctypes.memset(requests, 0xEE, ctypes.sizeof(requests))
        for task in range(count if result == 0 else 0):
            status.status = self.PENDING
            while status.status <= self.PENDING:
                result = result or self.t.getTransferStatus(self.e, batch, c_size_t(task), byref(status))
            failed = failed or (status.status if status.status != self.COMPLETED else 0)
        return result or failed or self.t.freeBatchID(self.e, batch)

    def write(self, peer, local, remote, size):
        return self._move(WRITE, peer, [local], [remote], [size])

    def read(self, peer, local, remote, size):
        return self._move(READ, peer, [local], [remote], [size])

    def batch_write(self, peer, locals_, remotes, sizes):
        return self._move(WRITE, peer, locals_, remotes, sizes)

    def batch_read(self, peer, locals_, remotes, sizes):
        return self._move(READ, peer, locals_, remotes, sizes)

    def probe(self, peer):
        """The interface has none; a fresh descriptor is an answer of the peer."""
        return self.t.openSegmentNoCache(self.e, peer.encode()) > 0

    def write_notify(self, peer, local, remote, size, name, message):
        return self._move(WRITE, peer, [local], [remote], [size], NotifyC(name.encode(), message.encode()))

    def notifications(self):
        count = c_int()
        found = self.t.getNotifsFromEngine(self.e, byref(count))
        got = [[found[i].name.decode(), found[i].msg.decode()] for i in range(count.value)]
        self.t.freeNotifsMsgBuf(found, count)
        return got

    def destroy(self):
        self.t.destroyTransferEngine(self.e)


def leave(agent):
    if agent.store:
        agent.store.close_store()
    if agent.engine:
        agent.engine.destroy()

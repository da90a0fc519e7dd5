"""The agent's face of upstream's wheel (mooncake.store, mooncake.engine). Also runs with older releases, whose
ReplicateConfig has other fields."""
import ctypes
import sys
import time


class Registered:
    """Memory registered with the store for the length of one call, as an application's pool would be."""

    def __init__(self, store, size):
        self.store, self.memory = store, ctypes.create_string_buffer(max(size, 1))
        self.address = ctypes.addressof(self.memory)
        self.size = size

    def __enter__(self):
        self.store.register_buffer(self.address, max(self.size, 1))
        return self

    def __exit__(self, *_):
        self.store.unregister_buffer(self.address)

    def fill(self, values):
        addresses, at = [], 0
        for v in values:
            ctypes.memmove(self.address + at, v, len(v))
            addresses.append(self.address + at)
            at += len(v)
        return addresses


class Store:
    def __init__(self, master, metadata, segment, buffer):
        import mooncake.store
        self.module = mooncake.store
        self.s = mooncake.store.MooncakeDistributedStore()
        status = self.s.setup("127.0.0.1", metadata, segment, buffer, "tcp", "", master)
        if status:
            raise AssertionError(f"setup: {status}")

    def register(self, address, size):
        self.s.register_buffer(address, size)

    def unregister(self, address):
        self.s.unregister_buffer(address)

    def hostname(self):
        return self.s.get_hostname()

    def health(self):
        return self.s.health_check()

    def _config(self, replicas=1, soft_pin=False, hard_pin=False, preferred=None):
        config = self.module.ReplicateConfig()
        config.replica_num = replicas
        if soft_pin:
            if hasattr(config, "soft_pin_action"):
                config.soft_pin_action = self.module.SoftPinAction.ENABLE
            else:
                config.with_soft_pin = True
        config.with_hard_pin = hard_pin
        if preferred:
            config.preferred_segments = preferred
        return config

    def put(self, key, data, **config):
        return self.s.put(key, data, self._config(**config)) if config else self.s.put(key, data)

    def put_parts(self, key, parts):
        return self.s.put_parts(key, *parts)

    def upsert(self, key, data):
        return self.s.upsert(key, data)

    def get(self, key):
        return self.s.get(key)

    def get_buffer(self, key):
        handle = self.s.get_buffer(key)
        return None if handle is None else bytes(handle)

    def put_from(self, key, data):
        with Registered(self.s, len(data)) as memory:
            return self.s.put_from(key, memory.fill([data])[0], len(data))

    def upsert_from(self, key, data):
        with Registered(self.s, len(data)) as memory:
            return self.s.upsert_from(key, memory.fill([data])[0], len(data))

    def get_into(self, key, size):
        with Registered(self.s, size) as memory:
            got = self.s.get_into(key, memory.address, size)
            if got != size:
                raise AssertionError(f"get_into {key}: {got}")
            return memory.memory.raw[:size]

    def put_batch(self, keys, values):
        return self.s.put_batch(keys, values)

    def upsert_batch(self, keys, values):
        return self.s.upsert_batch(keys, values)

    def _from(self, call, keys, values):
        with Registered(self.s, sum(map(len, values))) as memory:
            return call(keys, memory.fill(values), [len(v) for v in values])

    def batch_put_from(self, keys, values):
        return self._from(self.s.batch_put_from, keys, values)

    def batch_upsert_from(self, keys, values):
        return self._from(self.s.batch_upsert_from, keys, values)

    def get_batch(self, keys):
        return self.s.get_batch(keys)

    def batch_get_into(self, keys, sizes):
        with Registered(self.s, sum(sizes)) as memory:
            edges = [sum(sizes[:i]) for i in range(len(sizes))]
            got = self.s.batch_get_into(keys, [memory.address + e for e in edges], sizes)
            return [memory.memory.raw[e:e + n] if g == n else None for e, n, g in zip(edges, sizes, got)]

    def exist(self, key):
        return self.s.is_exist(key)

    def batch_exist(self, keys):
        return self.s.batch_is_exist(keys)

    def size(self, key):
        return self.s.get_size(key)

    def remove(self, key, force=False):
        return self.s.remove(key, force)

    def batch_remove(self, keys, force=False):
        return self.s.batch_remove(keys, force)

    def remove_regex(self, pattern, force=False):
        return self.s.remove_by_regex(pattern, force)

    def remove_all(self, force=False):
        return self.s.remove_all(force)

    def replicas(self, key):
        """[[endpoint, size, complete, address], ...] of the memory replicas"""
        found = []
        for replica in self.s.get_replica_desc(key):
            place = replica.get_memory_descriptor().buffer_descriptor
            found.append([place.transport_endpoint, place.size,
                          replica.status == self.module.ReplicaStatus.COMPLETE, place.buffer_address])
        return found

    def batch_replicas(self, keys):
        return sorted((k, len(v)) for k, v in self.s.batch_get_replica_desc(keys).items())

    # parts, tasks

    def _parts(self, function, key, buffer, cuts):
        edges, base = [*cuts, len(buffer)], ctypes.addressof(buffer)
        sizes = [b - a for a, b in zip(edges, edges[1:])]
        self.s.register_buffer(base, len(buffer))
        done = function([key], [[base + a for a in cuts]], [sizes], [list(cuts)])
        self.s.unregister_buffer(base)
        return done[0]

    def put_in_pieces(self, key, data, cuts):
        buffer = ctypes.create_string_buffer(data, len(data))
        status = self.s.batch_put_session_start([key], [len(data)], self.module.ReplicateConfig())[0]
        if status:
            return status
        written = self._parts(self.s.batch_put_from_multi_buffer_ranges, key, buffer, cuts)
        return written if written != len(data) else self.s.batch_put_session_end([key])[0]

    def get_in_pieces(self, key, size, cuts):
        buffer = ctypes.create_string_buffer(size)
        if self.s.batch_get_session_start([key])[0]:
            return None
        got = self._parts(self.s.batch_get_into_multi_buffer_ranges, key, buffer, cuts)
        self.s.batch_get_session_end([key])
        return buffer.raw if got == size else None

    def get_ranges(self, key, size, cuts):
        buffer, edges = ctypes.create_string_buffer(size), [*cuts, size]
        base = ctypes.addressof(buffer)
        self.s.register_buffer(base, size)
        sizes = [b - a for a, b in zip(edges, edges[1:])]
        got = self.s.get_into_ranges([base], [[key]], [[list(cuts)]], [[list(cuts)]], [[sizes]])
        self.s.unregister_buffer(base)
        return buffer.raw if got == [[sizes]] else None

    # what only upstream's client has

    def copy_task(self, key, targets):
        return self._task(self.s.create_copy_task(key, targets))

    def move_task(self, key, source, target):
        return self._task(self.s.create_move_task(key, source, target))

    def _task(self, created):
        task, error = created
        if error:
            return f"error {error}"
        for _ in range(300):
            answer, error = self.s.query_task(task)
            if error:
                return f"query error {error}"
            if answer.status.name in ("SUCCESS", "FAILED"):
                return answer.status.name
            time.sleep(0.05)
        return "does not end"

    def put_session(self, keys, sizes):
        starts = self.s.batch_put_session_start(keys, sizes)
        return starts, self.s.batch_put_session_revoke(keys)

    def extra_segment(self, size, grace):
        made = self.s.allocate_and_mount_segment(size)
        if made["ret"]:
            return made["ret"]
        return self.s.unmount_and_free_segment(made["segment_ids"], grace)

    def replica_clear(self, keys):
        return sorted(self.s.batch_replica_clear(keys, ""))

    def close_store(self):
        return self.s.close()


class Engine:
    def __init__(self, metadata):
        import mooncake.engine
        self.e = mooncake.engine.TransferEngine()
        self.module = mooncake.engine
        host = "127.0.0.1"
        if metadata != "P2PHANDSHAKE":
            host = f"127.0.0.1:{Engine._port()}"
        if self.e.initialize(host, metadata, "tcp", ""):
            raise AssertionError("initialize fails")
        self.name = host if metadata != "P2PHANDSHAKE" else f"127.0.0.1:{self.e.get_rpc_port()}"
        self.memory = {}

    @staticmethod
    def _port():
        import peers
        return peers.free_port()

    def engine_name(self):
        return self.name

    def allocate(self, size):
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        if self.e.register_memory(address, size):
            raise AssertionError("register_memory fails")
        self.memory[address] = memory
        return address

    def write(self, peer, local, remote, size):
        return self.e.transfer_sync_write(peer, local, remote, size)

    def read(self, peer, local, remote, size):
        return self.e.transfer_sync_read(peer, local, remote, size)

    def batch_write(self, peer, locals_, remotes, sizes):
        return self.e.batch_transfer_sync_write(peer, locals_, remotes, sizes)

    def batch_read(self, peer, locals_, remotes, sizes):
        return self.e.batch_transfer_sync_read(peer, locals_, remotes, sizes)

    def prepared(self, op, peer, local, remote, size):
        """A callable for one transfer, for timing."""
        call = self.e.transfer_sync_read if op == "read" else self.e.transfer_sync_write
        return lambda: call(peer, local, remote, size)

    def first_buffer(self, peer):
        return self.e.get_first_buffer_address(peer)

    def probe(self, peer):
        return self.e.send_probe(peer) == 0

    def write_notify(self, peer, local, remote, size, name, message):
        return self.e.transfer_sync(peer, local, remote, size, self.module.TransferOpcode.Write,
                                    self.module.TransferNotify(name, message))

    def notifications(self):
        return [[n.name, n.msg] for n in self.e.get_notifies()]


def leave(agent):
    if agent.store:
        agent.store.s.close()
    sys.stdout.flush()

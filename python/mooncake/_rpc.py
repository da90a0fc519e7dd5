"""Messages between processes: mooncake.engine.RpcInterface (and CoroRPCInterface, its other name).

The wire is coro_rpc's: a header of 20 bytes with the function's number, a body of struct_pack, an attachment. Two functions exist.
`send_data` takes a string; a long one travels as the attachment of an empty string. `send_tensor` takes nothing, and the bytes
are the attachment. Either way the receiver hands the bytes to a callback and answers when that has returned, so success means
that the peer's callback ran. What comes with a tensor's header goes to the tensor callback, when one is set.

This is Python, not C: one message is one call of a Python function on the other side, which costs more than all of this.
"""
import logging
import os
import select
import struct
import threading
import time

LOGGER = logging.getLogger("mooncake.rpc")
REQUEST = struct.Struct("<BBBBIIII")   # magic, version, serialization, kind, sequence, function, body, attachment
ANSWER = struct.Struct("<BBBBIII")     # magic, version, error, kind, sequence, body, attachment
MAGIC = 21
SEND_DATA, SEND_TENSOR = 0x25764C34, 0x01697AAB
# A string's type: its hash, whose bit 0 says that a byte of flags follows: a literal behind it, log2 of a size's bytes.
STRING, LITERAL, WITH_LITERAL = 0x9DCFFA76, b"\x80\x0c\x00", 4
NOTHING = bytes.fromhex("ebcf0189" "04fa00")        # the answer of a function without result
UNKNOWN_FUNCTION, INVALID_ARGUMENT = 11, 4
ATTACHED_FROM = 1024      # bytes from which a string is an attachment
LARGEST = 1 << 30         # bytes of a message; a peer that announces more is hung up on
CONNECTIONS = 1024        # of a server at once
CONNECT_S = 1             # a peer may start later than we ask
TENSOR = struct.Struct("<II8q")
DTYPES = ("", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def _address(text):
    """(host, port) of "host:port" or "[v6]:port"; ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def _read(sock, count):
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise EOFError("the peer closed the connection")
        got += n
    return data


def _string(body):
    """The string that is the argument of a body; ValueError."""
    kind, at, width = int.from_bytes(body[:4], "little"), 4, 1
    if kind & 1:
        flags, at = body[4] if len(body) > 4 else 0, 5
        width = 1 << (flags >> 3 & 3)
        if flags & WITH_LITERAL:
            at += len(LITERAL)
            if body[5:at] != LITERAL:
                raise ValueError("other arguments")
    size = int.from_bytes(body[at:at + width], "little")
    if kind & ~1 != STRING or len(body) != at + width + size:
        raise ValueError("other arguments, or a size that is not the body's")
    return bytes(body[at + width:])


def _body(text):
    """A body with a string of less than 64 KiB."""
    short = len(text) < 256
    return (struct.pack("<IB", STRING | 1, WITH_LITERAL | (0 if short else 8)) + LITERAL
            + len(text).to_bytes(1 if short else 2, "little") + text)


class ReceivedData:
    """Bytes that a peer sent."""

    def __init__(self, source_address, data):
        self._source, self._data = source_address, data

    @property
    def source_address(self):
        return self._source

    @property
    def data_size(self):
        return len(self._data)

    def get_bytes(self):
        return self._data

    def get_memory_view(self):
        return memoryview(self._data)


class ReceivedTensor:
    """A tensor's header (72 bytes: dtype, dimensions, shape) and its elements, as they came."""

    def __init__(self, source_address, data):
        kind, dimensions, *shape = TENSOR.unpack_from(data)
        self._source, self._data = source_address, data
        self._dtype, self._shape = DTYPES[kind], shape[:dimensions]

    @property
    def source_address(self):
        return self._source

    @property
    def shape(self):
        return list(self._shape)

    @property
    def dtype(self):
        return self._dtype

    @property
    def total_bytes(self):
        return len(self._data)

    def get_data_size(self):
        return len(self._data)

    def get_data_as_bytes(self):
        return self._data

    def get_memory_view(self):
        return memoryview(self._data)


def _is_tensor(data):
    if len(data) < TENSOR.size:
        return False
    kind, dimensions = struct.unpack_from("<II", data)
    return 0 < kind < len(DTYPES) and dimensions <= 4


class _Server:
    """Accepts, reads requests, calls back. One thread for each connection; `turns` bounds how many callbacks run at once."""

    def __init__(self, address, threads, deliver):
        import socket
        host, port = _address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.create_server((host, port), family=family, backlog=128)
        self.turns, self.deliver = threading.BoundedSemaphore(max(1, threads)), deliver
        self.lock, self.connections, self.stopped = threading.Lock(), {}, threading.Event()
        self.process = os.getpid()
        self.acceptor = threading.Thread(target=self._accept, name="mooncake-rpc", daemon=True)
        self.acceptor.start()

    def _accept(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                if self.stopped.is_set():
                    return
                time.sleep(0.05)  # Out of descriptors, say: that passes.
                continue
            with self.lock:
                full = self.stopped.is_set() or len(self.connections) >= CONNECTIONS
                if not full:
                    thread = threading.Thread(target=self._serve, args=(connection,), name="mooncake-rpc", daemon=True)
                    self.connections[connection] = thread
            if full:
                connection.close()
            else:
                thread.start()

    def _serve(self, connection):
        import socket
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self.stopped.is_set():
                self._one(connection)
        except (OSError, EOFError):
            pass
        except ValueError as error:
            LOGGER.warning("a peer that does not speak this protocol: %s", error)
        finally:
            with self.lock:
                self.connections.pop(connection, None)
            connection.close()

    def _one(self, connection):
        magic, version, serialization, _, sequence, function, length, attached = REQUEST.unpack(_read(connection, REQUEST.size))
        if magic != MAGIC or version or serialization:
            raise ValueError("no coro_rpc header")
        if length + attached > LARGEST:
            raise ValueError(f"a message of {length + attached} bytes")
        body, attachment = _read(connection, length), bytes(_read(connection, attached))
        error, answer, back = 0, NOTHING, b""
        try:
            if function == SEND_DATA:
                text = _string(body)
                data, back = (attachment, b"ok") if attached else (text, b"")
            elif function == SEND_TENSOR:
                data = back = attachment
            else:
                error, data = UNKNOWN_FUNCTION, None
        except ValueError:
            error, data = INVALID_ARGUMENT, None
        if error:
            answer = _body(b"unknown function" if error == UNKNOWN_FUNCTION else b"invalid argument")
        else:
            with self.turns:
                self.deliver(data)
        connection.sendall(ANSWER.pack(MAGIC, 0, error, 0, sequence, len(answer), len(back)) + answer)
        if back:
            connection.sendall(back)

    def stop(self):
        import socket
        self.stopped.set()
        with self.lock:
            connections = list(self.connections.items())
        if os.getpid() == self.process:  # A forked child must not end its parent's conversations.
            for one in [self.listener, *(c for c, _ in connections)]:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            for thread in [self.acceptor, *(t for _, t in connections)]:
                if thread is not threading.current_thread() and thread.ident is not None:
                    thread.join(timeout=10)
        self.listener.close()


class RpcInterface:
    """Sends bytes to other processes' callbacks, and has callbacks of its own. Calls return 0, or -1 with a line in the log."""

    def __init__(self):
        self._pool_size, self._timeout, self._idle, self._lock = 0, 30, {}, threading.Lock()
        self._listen, self._threads, self._server = "", 0, None
        self._on_data = self._on_tensor = None
        self._process = os.getpid()

    # -- being one's self

    def initialize(self, listen_address="", thread_count=0, timeout_seconds=30, pool_size=100):
        """Prepares to send, and with an address to be a server too. True."""
        if listen_address:
            self.initialize_server(listen_address, thread_count or 8, timeout_seconds)
        return self.initialize_client(pool_size, timeout_seconds)

    def initialize_client(self, pool_size=100, timeout_seconds=30):
        """Prepares to send: `pool_size` idle connections to a peer are kept. A call waits `timeout_seconds` at most. True."""
        self._pool_size, self._timeout = max(1, int(pool_size)), float(timeout_seconds) if timeout_seconds > 0 else 30.0
        return True

    def initialize_server(self, listen_address, thread_count=8, timeout_seconds=30):
        """Says where start_server() shall listen. True."""
        if not isinstance(listen_address, str):
            raise TypeError("listen_address must be a str")
        self._listen, self._threads = listen_address, int(thread_count)
        return True

    def start_server_async(self):
        """Listens, and returns. False when that cannot be, or is so already."""
        with self._lock:
            if self._server is not None or not self._listen:
                return False
            try:
                self._server = _Server(self._listen, self._threads, self._deliver)
            except (OSError, ValueError, OverflowError) as error:
                LOGGER.error("cannot listen at %s: %s", self._listen, error)
                return False
            return True

    def start_server(self):
        """Listens until somebody calls stop_server(). False when that cannot be."""
        if not self.start_server_async():
            return False
        server = self._server
        if server is not None:
            server.stopped.wait()
        return True

    def stop_server(self):
        """Hangs up on everybody. Callbacks that run have ended when this returns (10 s each at most)."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.stop()

    def __del__(self):
        server = self.__dict__.get("_server")
        if server is not None:
            server.stop()
        for sockets in self.__dict__.get("_idle", {}).values():
            for sock in sockets:
                sock.close()

    # -- receiving

    @staticmethod
    def _callable(callback):
        if not callable(callback):
            raise TypeError(f"a callback is callable, {type(callback).__name__} is not")
        return callback

    def set_data_receive_callback(self, callback):
        """`callback` gets {"source": "", "data": bytes} of each message, in a thread of the server's."""
        self._on_data = self._callable(callback)

    def set_tensor_receive_callback(self, callback):
        """`callback` gets a ReceivedTensor of each message that has a tensor's header."""
        self._on_tensor = self._callable(callback)

    def _deliver(self, data):
        try:
            if self._on_tensor is not None and _is_tensor(data):
                self._on_tensor(ReceivedTensor("", data))
            elif self._on_data is not None:
                self._on_data({"source": "", "data": data})
        except Exception:
            LOGGER.exception("a callback of RpcInterface failed")

    # -- sending

    def _connection(self, target):
        """An idle connection that is still open, or a new one."""
        import socket
        if os.getpid() != self._process:
            self._idle, self._process = {}, os.getpid()
        while True:
            with self._lock:
                idle = self._idle.get(target)
                sock = idle.pop() if idle else None
            if sock is None:
                break
            if not select.select([sock], [], [], 0)[0]:
                return sock
            sock.close()  # Readable without a question: the peer hung up.
        deadline, pause = time.monotonic() + min(CONNECT_S, self._timeout), 0.05
        while True:
            try:
                sock = socket.create_connection(_address(target), timeout=self._timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except ConnectionRefusedError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause *= 2

    def _call(self, target, function, body, attachment):
        if not self._pool_size:
            LOGGER.error("send before initialize_client()")
            return -1
        if len(attachment) > LARGEST:
            raise ValueError(f"a message of {len(attachment)} bytes; {LARGEST} are the most")
        sock = None
        try:
            sock = self._connection(target)
            sock.settimeout(self._timeout)
            sock.sendall(REQUEST.pack(MAGIC, 0, 0, 0, 0, function, len(body), len(attachment)) + body)
            if len(attachment):
                sock.sendall(attachment)
            magic, _, error, _, _, length, attached = ANSWER.unpack(_read(sock, ANSWER.size))
            if magic != MAGIC or length + attached > LARGEST:
                raise EOFError("an answer of something else")
            answer = _read(sock, length + attached)
            if error:
                raise EOFError(f"error {error}: {bytes(answer[8:120])!r}")
        except (OSError, EOFError, ValueError) as error:
            LOGGER.error("send to %s: %s", target, error)
            if sock is not None:
                sock.close()
            return -1
        with self._lock:
            idle = self._idle.setdefault(target, [])
            if len(idle) < self._pool_size:
                idle.append(sock)
                return 0
        sock.close()
        return 0

    def send_data(self, target_address, data):
        """0 when the peer's callback has run, -1 when nobody knows that."""
        view = memoryview(data).cast("B")
        if len(view) < ATTACHED_FROM:
            return self._call(target_address, SEND_DATA, _body(bytes(view)), b"")
        return self._call(target_address, SEND_DATA, _body(b""), view)

    def send_tensor(self, target_address, tensor):
        """As send_data() of the elements, in their order; -1 for what is not a tensor. dtype and shape do not travel."""
        if not all(hasattr(tensor, name) for name in ("data_ptr", "numel", "element_size", "contiguous", "cpu")):
            LOGGER.error("send_tensor of a %s", type(tensor).__name__)
            return -1
        import ctypes
        tensor = tensor.detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        elements = (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
        return self._call(target_address, SEND_TENSOR, b"", memoryview(elements).cast("B"))

    def send_data_async(self, target_address, data, loop):
        """A future of `loop` with what send_data() returns."""
        return loop.run_in_executor(None, self.send_data, target_address, data)

    def send_tensor_async(self, target_address, tensor, loop):
        """A future of `loop` with what send_tensor() returns."""
        return loop.run_in_executor(None, self.send_tensor, target_address, tensor)


def create_rpc_client(local_rank=0, world_size=1):
    """A RpcInterface that can send."""
    client = RpcInterface()
    client.initialize_client()
    return client


def create_rpc_server(local_rank=0, world_size=1):
    """A RpcInterface for port 8080 of every interface; start_server() starts it."""
    server = RpcInterface()
    server.initialize("0.0.0.0:8080", 8)
    return server

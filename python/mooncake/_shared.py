"""Host memory that the processes of one machine share: mooncake.engine.SharedSegment.

Every rank creates its end and gets a blob; all blobs go to all ranks (by whatever means they have), and complete() maps the owner's
memory. The name in /dev/shm goes as soon as every rank of the owner's process group could have mapped it, that is when the owner's
object ends; the memory goes with the last mapping. A blob carries a digest of the declaration, so that ranks that disagree learn
it, and not from wrong bytes.
"""
import ctypes
import mmap as _mmap
import os
import struct
import weakref

BLOB = struct.Struct("<4sHBBIIQQ128s")  # magic, version, kind, 0, rank, length of the name, digest, bytes, name
MAGIC, VERSION, POSIX = b"SSCM", 1, 3
LARGEST = 1 << 46
DIRECTORY = "/dev/shm"


def _mapped(name, size, create):
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
    descriptor = os.open(DIRECTORY + name, flags, 0o600)
    try:
        if create:
            os.posix_fallocate(descriptor, 0, size)  # A full /dev/shm is an error now, not a SIGBUS later.
        elif os.fstat(descriptor).st_size != size:
            raise RuntimeError(f"InvalidArgument: {DIRECTORY}{name} is not of {size} bytes")
        return _mmap.mmap(descriptor, size)
    except BaseException:
        if create:
            os.unlink(DIRECTORY + name)
        raise
    finally:
        os.close(descriptor)


def _forget(name, process):
    if os.getpid() == process:  # Not in a forked child.
        try:
            os.unlink(DIRECTORY + name)
        except OSError:
            pass


class SharedSegment:
    """Memory that the ranks of a group on one machine share; made by create()."""

    def __init__(self, *, token):
        if token is not _TOKEN:
            raise TypeError("SharedSegment is made by SharedSegment.create()")

    @staticmethod
    def supported(mmap=True, host_register=False):
        """Whether create() would do: memory of a GPU it does not share."""
        return bool(mmap) and not host_register and os.path.isdir(DIRECTORY)

    @staticmethod
    def create(name, size, world_size, rank_id, owner_rank=0, device_id=0, mmap=True, host_register=False):
        """(segment, blob) of this rank; the owner's memory exists from now on, and is zero."""
        if not isinstance(name, str):
            raise TypeError("name must be a str")
        if not 0 < size <= LARGEST:
            raise RuntimeError(f"InvalidArgument: Shared segment size must be in (0, {LARGEST}]")
        if world_size < 1:
            raise RuntimeError("InvalidArgument: Shared segment world_size must not be zero")
        if not (0 <= rank_id < world_size and 0 <= owner_rank < world_size):
            raise RuntimeError("InvalidArgument: Shared segment rank_id and owner_rank must be below world_size")
        if not SharedSegment.supported(mmap, host_register):
            raise RuntimeError("NotImplemented: this build shares host memory only (mmap=True, host_register=False)")
        import hashlib  # Not at the import of the engine, which seldom needs it.
        self = SharedSegment(token=_TOKEN)
        declared = repr((name, size, world_size, owner_rank)).encode()
        self._digest = struct.unpack("<Q", hashlib.sha256(declared).digest()[:8])[0]
        self._size, self._world, self._rank, self._owner, self._ready, self._memory = size, world_size, rank_id, owner_rank, False, None
        own = b""
        if rank_id == owner_rank:
            path = f"/mcss_{os.getpid()}_{os.urandom(8).hex()}"
            try:
                self._memory = _mapped(path, size, True)
            except OSError as error:
                raise RuntimeError(f"Memory: Shared segment of {size} bytes: {error.strerror}") from error
            weakref.finalize(self, _forget, path, os.getpid())
            own = path.encode()
        return self, BLOB.pack(MAGIC, VERSION, POSIX, 0, rank_id, len(own), self._digest, size, own)

    def complete(self, blobs):
        """Maps the owner's memory; blobs are all ranks', in their order."""
        if len(blobs) != self._world:
            raise RuntimeError(f"InvalidArgument: Shared segment expects one blob per rank, got {len(blobs)}")
        for rank, blob in enumerate(blobs):
            if isinstance(blob, str) or len(blob) != BLOB.size:
                raise RuntimeError("InvalidArgument: Shared segment blob has an unexpected length")
            magic, version, kind, _, number, length, digest, size, own = BLOB.unpack(blob)
            if (magic, version, kind) != (MAGIC, VERSION, POSIX) or number != rank:
                raise RuntimeError(f"InvalidArgument: Shared segment blob of rank {rank} is of something else")
            if (digest, size) != (self._digest, self._size):
                raise RuntimeError(f"InvalidArgument: Shared segment declaration of rank {rank} differs from the local one")
            if rank == self._owner and self._memory is None:
                name = own[:length].decode("ascii", "replace")
                if not name.startswith("/mcss_") or "/" in name[1:]:
                    raise RuntimeError("InvalidArgument: Shared segment blob names no segment")
                try:
                    self._memory = _mapped(name, self._size, False)
                except OSError as error:
                    raise RuntimeError(f"Memory: Shared segment {name}: {error.strerror}") from error
        self._ready = True

    def ready(self):
        return self._ready

    def base_addr(self):
        """Where the memory is in this process; 0 before it is there."""
        return 0 if self._memory is None else ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def device_addr(self):
        """0: no device has it mapped."""
        return 0

    def size(self):
        return self._size


_TOKEN = object()

"""Where the allocators for a GPU's memory are, and whether they work here. This package ships none: it has no GPU build."""
import ctypes
import importlib.resources
from typing import Any, TypeVar

ProbeValue = TypeVar("ProbeValue")


def get_mooncake_so_path(so_name: str, import_error_message: str) -> str:
    """The path of a library of the package; ImportError with the caller's message when it is not there."""
    path = importlib.resources.files("mooncake") / so_name
    if not path.is_file():
        raise ImportError(import_error_message)
    return str(path)


def probe_allocator_backend(so_path: str, probe_symbol: str, restype: Any, unsupported_value: ProbeValue) -> ProbeValue:
    """What the library's function answers; unsupported_value without the library or the function."""
    try:
        probe = getattr(ctypes.CDLL(so_path), probe_symbol)
    except (OSError, AttributeError):
        return unsupported_value
    probe.restype, probe.argtypes = restype, []
    return probe()

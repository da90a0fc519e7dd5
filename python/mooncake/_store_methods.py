"""The Python half of mooncake.store: what the extension module takes in when it is imported."""
from mooncake import _types


def _install(module):
    for cls in _types._PUBLIC:
        setattr(module, cls.__name__, cls)
    for enum in _types._EXPORTED:
        for name, member in enum.__members__.items():
            setattr(module, name, member)

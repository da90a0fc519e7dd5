"""The Python half of mooncake.engine: small classes and what is not on the path of bytes."""
import glob
import json
import os

from mooncake import _rpc
from mooncake._shared import SharedSegment
from mooncake._types import _Enum


class TransferOpcode(_Enum):
    """Read from the peer, or write to it."""

    def __lt__(self, other):
        return self._value < int(other)

    def __le__(self, other):
        return self._value <= int(other)

    def __gt__(self, other):
        return self._value > int(other)

    def __ge__(self, other):
        return self._value >= int(other)


TransferOpcode._define(Read=0, Write=1)


class TransferNotify:
    """A named message that travels with a transfer, or behind it."""
    __slots__ = ("_name", "_msg")

    def __init__(self, name="", msg=""):
        self.name, self.msg = name, msg

    @staticmethod
    def _text(value):
        if not isinstance(value, str):
            raise TypeError(f"a notification is made of str, not {type(value).__name__}")
        return value

    @property
    def name(self):
        return self._name

    @name.setter
    def name(self, value):
        self._name = self._text(value)

    @property
    def msg(self):
        return self._msg

    @msg.setter
    def msg(self, value):
        self._msg = self._text(value)


def get_notifies(self):
    """The messages that came since the last call, as TransferNotify."""
    return [TransferNotify(name, msg) for name, msg in self._receive()]


def warmup_efa_segment(self, segment_name):
    """0: there is nothing to warm up without EFA."""
    if not isinstance(segment_name, str):
        raise TypeError("segment_name must be a str")
    return 0


def get_local_topology(self, device_name=None):
    """Which NICs are near which memory, as JSON: {"cpu:0": [[near NICs], [other NICs]], ...}."""
    allowed = {name for name in (device_name or "").split(",") if name}
    nodes = sorted(int(path.rsplit("node", 1)[1]) for path in glob.glob("/sys/devices/system/node/node[0-9]*")) or [0]
    nics = {}
    for path in sorted(glob.glob("/sys/class/infiniband/*")):
        name = os.path.basename(path)
        if allowed and name not in allowed:
            continue
        try:
            with open(os.path.join(path, "device", "numa_node")) as file:
                nics[name] = int(file.read())
        except (OSError, ValueError):
            nics[name] = -1
    return json.dumps({f"cpu:{node}": [[n for n, at in nics.items() if at in (node, -1)],
                                       [n for n, at in nics.items() if at not in (node, -1)]] for node in nodes})


_METHODS = (get_notifies, warmup_efa_segment, get_local_topology)


def _install(module):
    for thing in (TransferOpcode, TransferNotify, SharedSegment, _rpc.RpcInterface, _rpc.ReceivedData, _rpc.ReceivedTensor,
                  _rpc.create_rpc_client, _rpc.create_rpc_server):
        thing.__module__ = "mooncake.engine"
        setattr(module, thing.__name__, thing)
    module.CoroRPCInterface = _rpc.RpcInterface
    module.Read, module.Write = TransferOpcode.Read, TransferOpcode.Write
    for method in _METHODS:
        setattr(module.TransferEngine, method.__name__, method)
    module.TransferEngine.TransferOpcode = TransferOpcode

"""What a process needs to know to join a store: `MooncakeConfig`, from a JSON file or from the environment.

A configuration is checked when it is made, so that a mistake is an error that names the field, not a return code of the engine
later. Which protocols exist depends on the build; an unknown one is let through with a warning.
"""
import json
import logging
import os
from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, Optional

logger = logging.getLogger(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30

_KNOWN_PROTOCOLS = frozenset(("tcp", "rdma", "efa", "nvmeof", "nvlink", "nvlink_intra", "musa", "hip", "barex", "cxl", "ascend",
                              "ub", "ubshmem", "maca", "sunrise_link", "rpc_only"))
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_WORDS = {**dict.fromkeys(("true", "1", "yes", "on", "enable"), True),
          **dict.fromkeys(("", "false", "0", "no", "off", "disable"), False)}
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


def _parse_segment_size(value: Any) -> int:
    """Bytes of a number, or of a text such as "512MB" or "1.5g" (powers of 1024)."""
    if not isinstance(value, str):
        return int(value)
    number = text = value.strip().lower()
    if not text:
        raise ValueError("Invalid segment size: empty string")
    if number[-1] == "b":
        number = number[:-1]
    factor = _UNITS.get(number[-1:], 1)
    if factor > 1:
        number = number[:-1]
    number = number.strip()
    if not number:
        raise ValueError(f"Invalid segment size: missing number before '{text}'")
    try:
        return int(float(number) * factor)
    except (ValueError, OverflowError):
        raise ValueError(f"Invalid segment size: {value!r}") from None


def _parse_bool(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float)):
        return bool(value)
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError(f"Invalid boolean value: {value!r}")
    return _WORDS[word]


def _text(default: str) -> Callable[[Any], str]:
    return lambda value: default if value is None else str(value)


# Field: (variable of the environment, default, reader).
_SOURCES: Dict[str, tuple] = {
    "local_hostname": ("MOONCAKE_LOCAL_HOSTNAME", "localhost", None),
    "metadata_server": ("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE", None),
    "global_segment_size": ("MOONCAKE_GLOBAL_SEGMENT_SIZE", DEFAULT_GLOBAL_SEGMENT_SIZE, _parse_segment_size),
    "local_buffer_size": ("MOONCAKE_LOCAL_BUFFER_SIZE", DEFAULT_LOCAL_BUFFER_SIZE, _parse_segment_size),
    "protocol": ("MOONCAKE_PROTOCOL", "tcp", None),
    "device_name": ("MOONCAKE_DEVICE", "", None),
    "master_server_address": ("MOONCAKE_MASTER", None, None),
    "enable_ssd_offload": ("MOONCAKE_OFFLOAD_ENABLED", False, _parse_bool),
    "ssd_offload_path": ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "", _text("")),
    "tenant_id": ("MOONCAKE_TENANT_ID", "default", _text("default")),
    "enable_client_http_server": ("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", False, _parse_bool),
    "client_http_port": ("MOONCAKE_CLIENT_HTTP_PORT", 9300, int),
}


@dataclass
class MooncakeConfig:
    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: Optional[str]
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"Invalid protocol: {self.protocol!r}. It is a name such as 'tcp' or 'rdma'.")
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _KNOWN_PROTOCOLS:
            logger.warning("Unknown protocol %r is passed on as it is; known are %s", self.protocol,
                           ", ".join(sorted(_KNOWN_PROTOCOLS)))
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name}: {getattr(self, name)}. A size is not negative.")
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"Config field {name!r} must be a non-empty string, got {value!r}.")

    @staticmethod
    def _read(get: Callable[[str, Any], Any]) -> "MooncakeConfig":
        values = {}
        for field in fields(MooncakeConfig):
            _, default, reader = _SOURCES[field.name]
            value = get(field.name, default)
            values[field.name] = reader(value) if reader else value
        return MooncakeConfig(**values)

    @staticmethod
    def from_file(file_path: str) -> "MooncakeConfig":
        with open(file_path) as file:
            config = json.load(file)
        for name in _REQUIRED:
            if name not in config:
                raise ValueError(f"Missing required config field: {name}")
        return MooncakeConfig._read(config.get)

    @staticmethod
    def load_from_env() -> "MooncakeConfig":
        """The file that MOONCAKE_CONFIG_PATH names, else the variables MOONCAKE_*, of which MOONCAKE_MASTER has to be set."""
        path = os.getenv("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        if not os.getenv("MOONCAKE_MASTER"):
            raise ValueError("Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.")
        return MooncakeConfig._read(lambda name, default: os.getenv(_SOURCES[name][0], default))

"""What every manifest asks of its values. A manifest is checked once, when it is made, and never changes afterwards; whatever is
wrong with it is a ValueError that names the field."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeVar

MAX_U64 = (1 << 64) - 1
T = TypeVar("T")


def text(value: object, name: str) -> str:
    if type(value) is not str or not value:
        raise ValueError(f"{name} is a string with at least one character, not {value!r}")
    return value


def texts(thing: object, *names: str) -> None:
    for name in names:
        text(getattr(thing, name), name)


def integer(value: object, name: str, low: int = 0, high: int | None = None) -> int:
    """True and False are no integers here: a manifest that says them means something else."""
    if type(value) is not int or value < low or (high is not None and value > high):
        raise ValueError(f"{name} is an integer from {low}{'' if high is None else f' to {high}'}, not {value!r}")
    return value


def u64(value: object, name: str, low: int = 0) -> int:
    return integer(value, name, low, MAX_U64)


def sequence(value: object, name: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        raise ValueError(f"{name} is a list, not {type(value).__name__}")
    return value


def integers(value: object, name: str, low: int = 0) -> tuple[int, ...]:
    return tuple(integer(item, name, low) for item in sequence(value, name))


def items(value: object, name: str, kind: type[T]) -> tuple[T, ...]:
    found = tuple(sequence(value, name))
    for item in found:
        if not isinstance(item, kind):
            raise ValueError(f"{name} holds {kind.__name__}, not {type(item).__name__}")
    return found


def an(value: object, name: str, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is a {kind.__name__}, not {type(value).__name__}")
    return value


def unique(values: Sequence[Any], what: str) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} occurs twice")
        seen.add(value)


def aliases(value: object, tensor_id: str) -> tuple[Any, ...]:
    """The tensors that share one memory, sorted: none, or the tensor itself and others."""
    names = tuple(sorted(text(alias, "aliases") for alias in sequence(value, "aliases")))
    unique(names, "alias")
    if names and (len(names) < 2 or tensor_id not in names):
        raise ValueError(f"aliases of {tensor_id} are it and at least one other, not {list(names)}")
    return names


def sha256_hex(value: object, name: str) -> str:
    digest = text(value, name)
    if len(digest) != 64 or digest.strip("0123456789abcdef"):
        raise ValueError(f"{name} is the 64 lower-case digits of a SHA-256, not {digest!r}")
    return digest


def canonical_json(value: object, ascii_only: bool = True) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only)


def digest(encoded: str) -> str:
    return hashlib.sha256(encoded.encode()).hexdigest()


def identity(schema: str, content: dict[str, Any]) -> Any:
    """A name that follows from the content alone, so two processes that describe the same thing call it the same."""
    return "sha256:" + digest(canonical_json({"schema": schema, **content}))


def assign(thing: object, **values: object) -> None:
    """Sets fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(thing, name, value)

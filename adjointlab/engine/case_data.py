"""Case parameters as plain data, and back: what is drawn can be printed, stored and sent.

Nothing but the types listed here is ever built from a file, and no code is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor

__all__ = ["from_data", "to_data"]

_FIELDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "partition": (Partition, ("shape", "ranks")),
    "layout": (Layout, ("shape", "partition", "windows", "axes")),
    "tensor": (Tensor, ("layout", "dtype", "types", "name")),
}


def to_data(value: Any) -> Any:
    """`value` in terms that JSON has; sequences become lists.

    Raises `TypeError` for anything that is not data.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case LocalType():
            return {"$type": "local type", "value": value.value}
        case complex():
            return {"$type": "complex", "real": value.real, "imag": value.imag}
        case Space():
            return {"$type": "space", "tensors": to_data(value.tensors)}
        case list() | tuple():
            return [to_data(entry) for entry in value]
        case Mapping():
            if wrong := [key for key in value if not isinstance(key, str) or key.startswith("$")]:
                raise TypeError(
                    f"the key {wrong[0]!r} cannot be stored; keys are strings that do not start with $"
                )
            return {key: to_data(entry) for key, entry in value.items()}
    for name, (kind, fields) in _FIELDS.items():
        if isinstance(value, kind):
            return {"$type": name, **{field: to_data(getattr(value, field)) for field in fields}}
    raise TypeError(
        f"a {type(value).__name__} is no data for a case; use None, bool, int, float, complex, str, lists, "
        "dictionaries, Partition, Layout, Tensor and Space"
    )


def from_data(data: Any) -> Any:
    """The inverse of :func:`to_data`; lists become tuples.

    Raises `ValueError` for data that :func:`to_data` does not write, and whatever the types themselves reject.
    """
    if isinstance(data, list):
        return tuple(from_data(entry) for entry in data)
    if not isinstance(data, dict):
        return data
    kind = data.get("$type")
    rest = {key: from_data(entry) for key, entry in data.items() if key != "$type"}
    try:
        if kind is None:
            return rest
        if kind == "local type":
            return LocalType(rest["value"])
        if kind == "complex":
            return complex(rest["real"], rest["imag"])
        if kind == "space":
            return Space(*rest["tensors"])
        known, fields = _FIELDS[kind]
        return known(**{field: rest[field] for field in fields})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{kind!r} with {sorted(rest)} is not data of a case: {error}") from None

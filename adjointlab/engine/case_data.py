"""The parameters of a case as data of a file, and back.

Only the types listed here are ever built from a file, and no code in it is run. An object of the lab is written as a JSON object whose
``"$type"`` says which; the keys of a user's dictionary cannot begin with ``$``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, Final, TypeAlias

import numpy as np

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.engine.adapters import Parameters
from adjointlab.spelling import described_type

__all__ = ["Data", "from_data", "to_data"]

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
"""JSON in Python's types."""

_FIELDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "partition": (Partition, ("shape", "ranks")),
    "layout": (Layout, ("shape", "partition", "windows", "axes")),
    "tensor": (Tensor, ("layout", "dtype", "types", "name")),
}
"""The types that are rebuilt from their attributes, by name."""

_MAKE: dict[str, Callable[[Parameters], object]] = {
    "local type": lambda fields: LocalType(fields["value"]),
    "list": lambda fields: list(fields["entries"]),
    "complex": lambda fields: complex(fields["real"], fields["imag"]),
    "float": lambda fields: _FLOATS[fields["value"]],
    "text": lambda fields: fields["escaped"].encode("ascii").decode("unicode_escape"),
    "space": lambda fields: Space(*fields["tensors"]),
    "placement": lambda fields: _placement(fields),
}
"""The types that are rebuilt in other ways, by name."""

_PLACEMENTS: Final = "torch.distributed.tensor.placement_types"
_PLACEMENT_FIELDS: Final = {
    "Shard": ("dim",),
    "Replicate": (),
    "Partial": ("reduce_op",),
    "_StridedShard": ("dim", "split_factor"),
}
"""Placements of a DTensor, and the arguments of each."""


def _placement(fields: Parameters) -> object:
    names = _PLACEMENT_FIELDS[fields["kind"]]
    return getattr(import_module(_PLACEMENTS), fields["kind"])(**{name: fields[name] for name in names})


_FLOATS: dict[str, float] = {text: float(text) for text in ("nan", "-nan", "inf", "-inf")}
"""The numbers that JSON does not have."""


def to_data(value: object) -> Data:
    """Return `value` as :data:`Data`: tuples as JSON arrays, lists as objects marked as lists, NumPy's scalars as Python's.

    Raises `TypeError` for anything that is not data.
    """
    if isinstance(value, int | float | str | tuple) and (fault := _fault_of_derived(value)):
        raise TypeError(fault)
    match value:
        case None | bool() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"$type": "float", "value": _not_finite(value)}
        case str():
            # UTF-8 cannot encode lone surrogates, which file names may contain.
            return str(value) if _is_unicode(value) else {"$type": "text", "escaped": _escaped(value)}
        case np.bool_() | np.integer():
            return int(value) if isinstance(value, np.integer) else bool(value)
        case np.floating() | np.complexfloating():
            return to_data(float(value) if isinstance(value, np.floating) else complex(value))
        case LocalType():
            return {"$type": "local type", "value": value.value}
        case complex():
            return {"$type": "complex", "real": to_data(value.real), "imag": to_data(value.imag)}
        case Space():
            return {"$type": "space", "tensors": to_data(value.tensors)}
        case tuple():
            return [to_data(entry) for entry in value]
        case list():
            return {"$type": "list", "entries": [to_data(entry) for entry in value]}
        case _ if type(value).__module__ == _PLACEMENTS and type(value).__name__ in _PLACEMENT_FIELDS:
            kind_of_placement = type(value).__name__
            given = {field: getattr(value, field) for field in _PLACEMENT_FIELDS[kind_of_placement]}
            return {"$type": "placement", "kind": kind_of_placement, **given}
        case Mapping():
            if wrong := [key for key in value if not _is_key(key)]:
                raise TypeError(
                    f"the key {wrong[0]!r} cannot be stored; keys are strings without lone surrogates that do not start with $"
                )
            return {key: to_data(entry) for key, entry in value.items()}
    for name, (kind, fields) in _FIELDS.items():
        if isinstance(value, kind):
            return {"$type": name, **{field: to_data(getattr(value, field)) for field in fields}}
    raise TypeError(
        f"{described_type(value)} is not valid data for a case; use None, bool, int, float, complex, str, lists, "
        "dictionaries, the lab's own Partition, Layout, Tensor and Space, and placements of DTensor"
    )


def from_data(data: Data) -> Any:
    """Return the inverse of :func:`to_data`.

    Raises `ValueError` for data that :func:`to_data` does not write, and whatever the types themselves reject.
    """
    if isinstance(data, list):
        return tuple(from_data(entry) for entry in data)
    if not isinstance(data, dict):
        return data
    name = data.get("$type")
    fields = {key: from_data(entry) for key, entry in data.items() if key != "$type"}
    if name is None:
        return fields
    try:
        if name in _MAKE:
            return _MAKE[str(name)](fields)
        kind, attributes = _FIELDS[str(name)]
        return kind(**{attribute: fields[attribute] for attribute in attributes})
    except ImportError as error:
        raise ValueError(f"{name!r} needs a torch with torch.distributed: {error}") from None
    except (KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise ValueError(f"{name!r} with {sorted(fields)} is not data of a case: {error}") from None


def _fault_of_derived(value: int | float | str | tuple[object, ...]) -> str | None:
    """Describe the fault of a value whose class derives from one of Python's: a file would not store its class."""
    if isinstance(value, Enum):
        return f"{value!r} is a member of an enumeration; draw its name, and look it up where the operator is made"
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        return f"{described_type(value)} has named entries; draw a dictionary" if fields else None
    # NumPy's scalars are stored as Python's numbers and strings, from which some of them derive.
    if type(value) in (bool, int, float, str) or isinstance(value, np.generic):
        return None
    return f"{described_type(value)} is not a plain {'string' if isinstance(value, str) else 'number'}, and replays would get one"


def _not_finite(value: float) -> str:
    infinite = str(math.copysign(math.inf, value))
    return infinite.replace("inf", "nan") if math.isnan(value) else infinite


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and not key.startswith("$") and _is_unicode(key)

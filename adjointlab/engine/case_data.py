"""Case parameters as plain data, and back: parameters can be printed, stored and sent.

Only the types listed here are ever built from a file, and no code in it is run. An object of the lab is written as a JSON
object whose ``"$type"`` says which; the keys of a user's dictionary cannot begin with ``$``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor

__all__ = ["Data", "Parameters", "from_data", "to_data"]

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
"""JSON in Python's types."""

Parameters: TypeAlias = Mapping[str, Any]
"""The arguments of one case: what :func:`to_data` takes."""

_FIELDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "partition": (Partition, ("shape", "ranks")),
    "layout": (Layout, ("shape", "partition", "windows", "axes")),
    "tensor": (Tensor, ("layout", "dtype", "types", "name")),
}
"""The types that are made again of their attributes, by these names."""

_MAKE: dict[str, Callable[[Parameters], object]] = {
    "local type": lambda fields: LocalType(fields["value"]),
    "complex": lambda fields: complex(fields["real"], fields["imag"]),
    "float": lambda fields: _FLOATS[fields["value"]],
    "text": lambda fields: fields["escaped"].encode("ascii").decode("unicode_escape"),
    "space": lambda fields: Space(*fields["tensors"]),
}
"""The types that are made in other ways."""


_FLOATS: dict[Any, float] = {text: float(text) for text in ("nan", "-nan", "inf", "-inf")}
"""The numbers that JSON does not have."""


def to_data(value: object) -> Any:
    """Return `value` as :data:`Data`; sequences become lists.

    Raises `TypeError` for anything that is not data.
    """
    match value:
        case None | bool() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"$type": "float", "value": _not_finite(value)}
        case str():
            # UTF-8 has no lone surrogates, which file names may have.
            return str(value) if _is_unicode(value) else {"$type": "text", "escaped": _escaped(value)}
        case LocalType():
            return {"$type": "local type", "value": value.value}
        case complex():
            return {"$type": "complex", "real": to_data(value.real), "imag": to_data(value.imag)}
        case Space():
            return {"$type": "space", "tensors": to_data(value.tensors)}
        case list() | tuple():
            return [to_data(entry) for entry in value]
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
        f"a {type(value).__name__} is no data for a case; use None, bool, int, float, complex, str, lists, "
        "dictionaries, Partition, Layout, Tensor and Space"
    )


def from_data(data: Data) -> Any:
    """Return the inverse of :func:`to_data`; lists become tuples.

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
    except (KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise ValueError(f"{name!r} with {sorted(fields)} is not data of a case: {error}") from None


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "nan" if math.copysign(1, value) > 0 else "-nan"
    return "inf" if value > 0 else "-inf"


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and not key.startswith("$") and _is_unicode(key)

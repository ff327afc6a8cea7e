"""A case: pure data that determines a run completely, the strategy that draws it, and its parameters as data of a file.

Parameters can be printed, stored and sent. Only the types listed here are ever built from a file, and no code in it is run. An
object of the lab is written as a JSON object whose ``"$type"`` says which; the keys of a user's dictionary cannot begin with ``$``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec import structs

from adjointlab.checks.check import check_named
from adjointlab.checks.context import FRACTIONS, INPUT_VALUES, InputSetting
from adjointlab.checks.memory_orders import mixed
from adjointlab.checks.seed_digits import ON_EVEN_RANKS, SEED_PERIOD
from adjointlab.checks.verdict import Measurement
from adjointlab.core.kept_strategies import choices, integers
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.core.vectors import SMALL_INTEGERS
from adjointlab.engine.adapters import Parameters
from adjointlab.engine.drawing_errors import forgotten_draw
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.options import RANKS
from adjointlab.spelling import described_type
from adjointlab.worlds.schedule import Schedule, schedules_from

__all__ = ["Case", "Data", "cases", "from_data", "to_data"]


_LEGAL_VALUES: Final = (*INPUT_VALUES, FRACTIONS)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The subject and check, the number of ranks, the parameters and the values of one run.

    `values` is the kind of values that a layer's inputs have. `schedule` is a seed: of the ranks' global random streams, and of
    what the simulated world may choose, the interleaving and whether messages are buffered. `schedules` are not seeds: where there
    are any, the case runs once under each of them, and `schedule` seeds the random streams alone. (Files have both keys, hence the
    likeness.) With `same_on`, a rank, what other ranks alone hold of a layer's inputs and cotangents has other values. `forms_left_out` are
    the names of forms (:mod:`adjointlab.checks.forms`) that a rank of an earlier run has refused, and `measurement` is as much as a judge has
    asked for after one; files have neither.

    Files hold a case field by field (:meth:`plain`). The name of a reproducer is made from :meth:`key`, so a field that is added
    needs a default, which is left out of the file; a field that has always been there has none.
    """

    subject: str
    check: str
    ranks: int
    parameters: Parameters
    setting: InputSetting
    schedule: int
    schedules: tuple[Schedule, ...] = ()
    values: str = SMALL_INTEGERS
    same_on: int | None = None
    forms_left_out: tuple[str, ...] = ()
    measurement: Measurement = Measurement.NONE

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS.most:
            raise ValueError(f"ranks: from 1 to {RANKS.most}, not {self.ranks}")
        if self.schedule < 0:
            raise ValueError(f"schedule: at least 0, not {self.schedule}")
        if self.values not in _LEGAL_VALUES:
            raise ValueError(f"values: {self.values!r} is not one of {', '.join(_LEGAL_VALUES)}")

    def plain(self) -> Case:
        """The case with its parameters as JSON has them. Raises `TypeError` for parameters that are not data."""
        # msgspec tells a default by identity, and the text in a case from another process is an object of its own.
        values = _LEGAL_VALUES[_LEGAL_VALUES.index(self.values)]
        return structs.replace(self, parameters=to_data(self.parameters), values=values)

    def restored(self) -> Case:
        """The inverse of :meth:`plain`. Raises `ValueError` for parameters that it does not make."""
        return structs.replace(self, parameters=from_data(dict(self.parameters)))

    def data(self) -> dict[str, Data]:
        """The case as a JSON object."""
        data: dict[str, Data] = msgspec.to_builtins(self.plain())
        return data

    def key(self) -> bytes:
        """Equal for equal cases."""
        return msgspec.json.encode(self.plain(), order="sorted")

    def moved_to(self, library: str) -> Case:
        """The case with its tensors in the memory of that name."""
        return structs.replace(self, setting=replace(self.setting, library=library))

    def with_other_values(self, number: int) -> Case:
        """The case under another key of its values, of that `number`; 0 is its own. All else that its seed decides stays."""
        seed = self.setting.seed + number * SEED_PERIOD
        return structs.replace(self, setting=replace(self.setting, seed=seed))

    def unusual(self) -> Iterator[tuple[str, str]]:
        """Yield what is not as usual, with a label: memory and values of the inputs, and the schedules."""
        setting, usual = self.setting, InputSetting(self.setting.seed)
        memory = [] if setting.library == usual.library else [setting.library]
        if setting.primal_order != usual.primal_order:
            memory.append(f"x {setting.primal_order}")
        if setting.dual_order != usual.dual_order:
            memory.append(f"y {setting.dual_order}")
        if memory:
            yield "memory", ", ".join(memory)
        if self.values != SMALL_INTEGERS:
            yield "values", self.values
        if self.schedules:
            yield "schedule", "; ".join(map(str, self.schedules))

    @property
    def digest(self) -> str:
        """A name that no other case has: 64 hexadecimal digits."""
        return hashlib.sha256(self.key()).hexdigest()


# The strategy


@st.composite
def cases(
    draw: DrawFn,
    subject: Subject,
    check: str,
    ranks: tuple[int, int],
    schedules: int = 1,
    device: str | None = None,
) -> Case:
    """Draw a case of `subject` for the check called `check`, on so many `ranks` (least and most), for so many `schedules`.

    Its tensors are in memory of `device`, "cpu" or "cuda"; None: in any.

    The number of ranks is drawn first and the smallest comes first, so that the shrinker reduces it before all else.
    """
    least, most = ranks
    counts = [count for count in subject.ranks_up_to(most) if count >= least]
    # Few ranks show most faults, in the least time: so they come twice as often.
    count = draw(choices(tuple(sorted((*counts, *(count for count in counts if count in _OFTEN))))))
    parameters = subject.drawn(draw, count)
    _require_data(subject, parameters)
    library = draw(choices(subject.libraries(device)))
    memory = draw(choices(_memory_orders(subject.orders)))
    seed, schedule = draw(integers(0, 2**31 - 1)), draw(integers(0, 2**16 - 1))
    several = schedules_from(schedule, schedules) if schedules > 1 else ()
    values = SMALL_INTEGERS
    if subject.is_layer and check_named(check).varies_values:
        values = draw(choices(_VALUES))
    # A digit of the seed, which shrinks to 0, says whether even ranks alone have these orders. Not of torch, whose `clone` keeps an order
    # that its collectives then take as it is: that is right as long as all ranks do alike, and common.
    if count > 1 and library == "numpy" and ON_EVEN_RANKS.of(seed):
        memory = (mixed(memory[0]), mixed(memory[1]))
    setting = InputSetting(seed, library, *memory)
    return Case(subject.name, check, count, parameters, setting, schedule, several, values)


def _require_data(subject: Subject, parameters: Parameters) -> None:
    """Raise :class:`SubjectError` for parameters that no file can hold: at once, for the failure of a case could not be kept."""
    for name, value in parameters.items():
        if type(value) in _DATA:
            continue
        try:
            to_data(value)
        except TypeError as error:
            raise SubjectError(
                f"{subject.name}: {name!r} in the strategy's dictionary: {error}{forgotten_draw(value)}"
            ) from None


_DATA: Final = frozenset({int, float, str, bool, type(None), Layout, Partition, Space, Tensor})
"""The types of most parameters, which are data whatever they hold."""


_OFTEN = range(2, 5)
"""The numbers of ranks that are drawn more often than others."""

_VALUES = (SMALL_INTEGERS,) * (len(INPUT_VALUES) - 2) + INPUT_VALUES
"""Small integers come half of the time, and first: n - 2 times beside the n kinds, of which they are one."""


@cache
def _memory_orders(orders: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs of memory orders, of inputs and of cotangents; the plain one first.

    Those with transposed memory stand there twice: tensors of order 1 and of single rows do not feel it, and it is what
    code takes for contiguous memory most easily.
    """
    plain, *others = [(one, other) for one in orders for other in orders]
    turned = [pair for pair in others if "column-major" in pair]
    return (plain, *turned, *others)


# Parameters as data

Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
"""JSON in Python's types."""

_FIELDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "partition": (Partition, ("shape", "ranks")),
    "layout": (Layout, ("shape", "partition", "windows", "axes")),
    "tensor": (Tensor, ("layout", "dtype", "types", "name")),
}
"""The types that are made again of their attributes, by these names."""

_MAKE: dict[str, Callable[[Parameters], object]] = {
    "local type": lambda fields: LocalType(fields["value"]),
    "list": lambda fields: list(fields["entries"]),
    "complex": lambda fields: complex(fields["real"], fields["imag"]),
    "float": lambda fields: _FLOATS[fields["value"]],
    "text": lambda fields: fields["escaped"].encode("ascii").decode("unicode_escape"),
    "space": lambda fields: Space(*fields["tensors"]),
    "placement": lambda fields: _placement(fields),
}
"""The types that are made in other ways."""

_PLACEMENTS: Final = "torch.distributed.tensor.placement_types"
_PLACEMENT_FIELDS: Final = {
    "Shard": ("dim",),
    "Replicate": (),
    "Partial": ("reduce_op",),
    "_StridedShard": ("dim", "split_factor"),
}
"""Placements of a DTensor, and the arguments that each is made of."""


def _placement(fields: Parameters) -> object:
    names = _PLACEMENT_FIELDS[fields["kind"]]
    return getattr(import_module(_PLACEMENTS), fields["kind"])(**{name: fields[name] for name in names})


_FLOATS: dict[str, float] = {text: float(text) for text in ("nan", "-nan", "inf", "-inf")}
"""The numbers that JSON does not have."""


def to_data(value: object) -> Data:
    """Return `value` as :data:`Data`. Tuples become arrays of JSON, lists say that they are lists, and NumPy's scalars are Python's.

    Raises `TypeError` for anything that is not data.
    """
    if isinstance(value, int | float | str | tuple) and (forgotten := _what_is_forgotten(value)):
        raise TypeError(forgotten)
    match value:
        case None | bool() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"$type": "float", "value": _not_finite(value)}
        case str():
            # UTF-8 has no lone surrogates, which file names may have.
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


def _what_is_forgotten(value: int | float | str | tuple[object, ...]) -> str | None:
    """Return what is wrong with a value of a class derived from Python's, which a file would forget, so that replays had another value."""
    if isinstance(value, Enum):
        return f"{value!r} is a member of an enumeration; draw its name, and look it up where the operator is made"
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        return f"{described_type(value)} has named entries; draw a dictionary" if fields else None
    # NumPy's scalars are Python's numbers and texts, and some are derived from them.
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

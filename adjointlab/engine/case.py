"""A case: pure data that determines a run completely, and the strategy that draws it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import msgspec
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
from adjointlab.core.space import Space, Tensor
from adjointlab.core.vectors import SMALL_INTEGERS
from adjointlab.engine.adapters import Parameters
from adjointlab.engine.case_data import Data, from_data, to_data
from adjointlab.engine.drawing_errors import forgotten_draw
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.options import RANKS
from adjointlab.worlds.schedule import Schedule, schedules_from

__all__ = ["Case", "cases"]


_LEGAL_VALUES: Final = (*INPUT_VALUES, FRACTIONS)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The subject and check, the number of ranks, the parameters and the values of one run.

    `values` is the kind of values that a layer's inputs have. `schedule` is a seed: of the ranks' global random streams, and of
    the choices of the simulated world, namely the interleaving and whether messages are buffered. `schedules` are not seeds: if there
    are any, the case runs once under each of them, and `schedule` only seeds the random streams. (The names are so alike because both are
    keys in files.) With `same_on`, a rank, the parts of a layer's inputs and cotangents that only other ranks hold have other values.
    `forms_left_out` are the names of forms (:mod:`adjointlab.checks.forms`) that a rank refused in an earlier run, and `measurement` is the
    one that a judge asked for after an earlier run; neither is stored in files.

    Files hold a case field by field (:meth:`plain`). The name of a reproducer is made from :meth:`key`, so a new field needs a
    default, which is left out of the file; fields that have always existed have none.
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
        # msgspec recognises a default by identity, and the string in a case from another process is a different object.
        values = _LEGAL_VALUES[_LEGAL_VALUES.index(self.values)]
        return structs.replace(self, parameters=to_data(self.parameters), values=values)

    def restored(self) -> Case:
        """The inverse of :meth:`plain`. Raises `ValueError` for parameters that :meth:`plain` does not produce."""
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
        """The case under key `number` of its values; 0 is its own. Everything else that depends on its seed stays the same."""
        seed = self.setting.seed + number * SEED_PERIOD
        return structs.replace(self, setting=replace(self.setting, seed=seed))

    def unusual(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that differ from the default, with labels: memory and values of the inputs, and the schedules."""
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
        """A name unique to the case: 64 hexadecimal digits."""
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
    """Draw a case of `subject` for the check called `check`, on least to most `ranks`, for `schedules` schedules.

    Its tensors are in memory of `device`, "cpu" or "cuda"; None: in any.

    The number of ranks is drawn first, with the smallest first, so that the shrinker reduces it before anything else.
    """
    least, most = ranks
    counts = [count for count in subject.ranks_up_to(most) if count >= least]
    # Small numbers of ranks show most faults in the least time, so they are drawn twice as often.
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
    # A digit of the seed, which shrinks to 0, says whether only even ranks have these orders. Not for torch: its `clone` keeps the order,
    # and its collectives then send tensors as they lie in memory. Much code does so, which is right while all ranks have the same order.
    if count > 1 and library == "numpy" and ON_EVEN_RANKS.of(seed):
        memory = (mixed(memory[0]), mixed(memory[1]))
    setting = InputSetting(seed, library, *memory)
    return Case(subject.name, check, count, parameters, setting, schedule, several, values)


def _require_data(subject: Subject, parameters: Parameters) -> None:
    """Raise :class:`SubjectError` for parameters that cannot be stored in a file: otherwise a failing case could not be kept."""
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
"""The types of most parameters, whose values are always data."""


_OFTEN = range(2, 5)
"""The numbers of ranks that are drawn more often than others."""

_VALUES = (SMALL_INTEGERS,) * (len(INPUT_VALUES) - 2) + INPUT_VALUES
"""Small integers come first, and half of the time: n - 2 times in addition to the n kinds, of which they are one."""


@cache
def _memory_orders(orders: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs of memory orders, of inputs and of cotangents; the plain one first.

    Those with transposed memory are listed twice: it makes no difference for tensors of order 1 and of single rows, and it is the
    order that code most easily takes for contiguous memory.
    """
    plain, *others = [(one, other) for one in orders for other in orders]
    turned = [pair for pair in others if "column-major" in pair]
    return (plain, *turned, *others)

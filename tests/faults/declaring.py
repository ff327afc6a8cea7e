"""A row of the fault matrix, the operator that rows put their fault into, and the shortest way to declare one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.engine.subject import Subject

NEVER = 10_000.0
"""Seconds that no patience lasts for."""

COHERENT = ("coherent",)
RAISED = ("raised RuntimeError",)
DEADLOCK = ("deadlock",)
MISMATCH = ("mismatched collective",)
MESSAGE = ("mismatched message",)
NO_RETURN = ("no return",)
OPEN = ("communicator left open",)
MISUSED = ("buffer misused",)
WRONG = ("adjoint is not the transpose of forward",)
CHANGES = ("nondeterministic",)
GAIN = ("the declared gain is too small, so exact tests would not be exact",)
INCOMPLETE = ("SubjectError",)
"""A wrong declaration, which ends the command with the exit code of wrong usage, and leaves no reproducer."""


class Shift(al.LinearOperator):
    """Moves every worker's block one worker to the right."""

    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout, dtype: str = "float64") -> None:
        self.comm = comm
        self.domain, self.codomain = al.Space(al.Tensor(layout, dtype)), al.Space(al.Tensor(layout, dtype))
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.right, self.left = (self.rank + 1) % self.size, (self.rank - 1) % self.size

    def forward(self, x: Any) -> Any:
        return self.shifted(x, self.right, self.left)

    def adjoint(self, y: Any) -> Any:
        return self.shifted(y, self.left, self.right)

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x), dest, 0, result, source, 0)
        return result

    @property
    def is_faulty(self) -> bool:
        """True on the rank where something goes wrong: the second."""
        return bool(self.rank == 1)


@dataclass(frozen=True)
class RuntimeFault:
    """A fault, and the kinds of failure as which it may be found; none in a world where it cannot show."""

    name: str
    subject: Subject | None  # None: only a process of its own may import the file
    simulated: tuple[str, ...]
    mpi: tuple[str, ...]
    check: str = "adjoint"
    ranks: int = 2  # of the smallest case; 0 where that depends on chance
    is_fatal: bool = False  # it ends the process, or holds it up, so only a supervised job can find it
    options: tuple[str, ...] = ()  # of adjointlab check, in simulation
    file: str = ""  # "path:subject", for a row without a subject
    is_refused: bool = (
        False  # the command is, before it judges anything; `simulated` and `mpi` are words that it prints
    )

    @property
    def attribute(self) -> str:
        """The name of the subject in its module."""
        return self.subject.draws.__name__ if self.subject is not None else slug_of(self.name)

    @property
    def reference(self) -> str:
        """The subject on a command line."""
        if self.subject is None:
            return self.file
        return f"{sys.modules[self.subject.draws.__module__].__file__}:{self.attribute}"


def blocks(draw: Any, ranks: int) -> dict[str, Any]:
    """Equal blocks of one to three elements."""
    width = draw(al.strategies.shapes(1, 3))[0]
    return {"layout": al.Layout((ranks * width,), al.Partition((ranks,)))}


def cuts(draw: Any, ranks: int) -> dict[str, Any]:
    """Blocks of any widths."""
    return {"layout": draw(al.strategies.layouts(ranks, 1))}


Action = Callable[[Any], object]
"""Something that an operator does before its own work; it is called with the operator."""

Change = Callable[[Any, Any, Any], Any]
"""The result that an operator returns instead: made of the operator, its argument and its right result."""


def fault(
    name: str,
    found: tuple[str, ...],
    mpi: tuple[str, ...] | None = None,
    *,
    first: Mapping[str, Action] | None = None,
    everywhere: Mapping[str, Action] | None = None,
    result: Mapping[str, Change] | None = None,
    members: Mapping[str, object] | None = None,
    base: type[Shift] = Shift,
    draws: Callable[[Any, int], dict[str, Any]] = blocks,
    reference: Callable[..., Any] | None = None,
    **row: Any,
) -> RuntimeFault:
    """A row whose operator is a shift with one change.

    The keys of `first` (on the faulty rank), `everywhere` (on all of several) and `result` are "forward", "adjoint" and
    "make"; `members` become attributes of the class. `mpi` defaults to `found`.
    """
    members = dict(members or {})
    for method in ("forward", "adjoint"):
        given = [each.get(method) for each in (first or {}, everywhere or {}, result or {})]
        if any(given):
            members[method] = _method(base, method, *given)
    making = (first or {}).get("make"), (everywhere or {}).get("make")
    if any(making):
        members["__init__"] = _constructor(base, *making)
    operator = type("".join(part.title() for part in slug_of(name).split("_")[1:]), (base,), members)
    return RuntimeFault(
        name,
        subject_of(operator, draws, slug_of(name), reference),
        found,
        found if mpi is None else mpi,
        **row,
    )


def subject_of(operator: type, draws: Any, name: str, reference: Callable[..., Any] | None = None) -> Subject:
    """The subject of an operator whose cases `draws` draws, by the name under which a command line is to find it."""

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        parameters: dict[str, Any] = draws(draw, ranks)
        return parameters

    cases.__name__ = cases.__qualname__ = name
    return al.subject.operator(operator, reference=reference)(cases)


def declared(module: dict[str, Any], faults: Iterable[RuntimeFault]) -> tuple[RuntimeFault, ...]:
    """Give the subjects of `faults` their names in a `module`, where a command line looks for them."""
    made = tuple(faults)
    for each in made:
        if each.subject is not None:
            each.subject.draws.__module__ = module["__name__"]
            assert each.attribute not in module, f"two rows are called {each.name}"
            module[each.attribute] = each.subject
    return made


def simulated_process(row: RuntimeFault) -> RuntimeFault:
    """`row`, whose fault ends the process of all ranks in simulation, and is worded so."""
    words = tuple(kind.replace("a rank", "the process of the ranks") for kind in row.simulated)
    return replace(row, simulated=words, is_fatal=True)


def slug_of(name: str) -> str:
    """The name of a subject in its module, made of the name of its row."""
    return "row_" + re.sub(r"\W+", "_", name).strip("_").lower()


def _method(
    base: type[Shift], method: str, first: Action | None, everywhere: Action | None, result: Change | None
) -> Callable[..., Any]:
    def apply(self: Any, x: Any) -> Any:
        if first is not None and self.is_faulty:
            first(self)
        if everywhere is not None and self.size > 1:
            everywhere(self)
        right = getattr(base, method)(self, x)
        return right if result is None else result(self, x, right)

    return apply


def _constructor(base: type[Shift], first: Action | None, everywhere: Action | None) -> Callable[..., None]:
    def make(self: Any, *arguments: Any, **named: Any) -> None:
        base.__init__(self, *arguments, **named)
        if first is not None and self.is_faulty:
            first(self)
        if everywhere is not None and self.size > 1:
            everywhere(self)

    return make

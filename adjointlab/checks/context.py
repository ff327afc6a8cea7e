"""The context of a check on one rank: the operator under test, and the values that its case draws for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from adjointlab.checks.arithmetic import Arithmetic
from adjointlab.checks.elements import Local
from adjointlab.checks.memory_orders import LEGAL_ORDERS, Placed, order_on, place
from adjointlab.checks.program_matrix import require_fitting
from adjointlab.checks.verdict import Measurement
from adjointlab.core import arrays
from adjointlab.core.bases import LinearMap
from adjointlab.core.layer import Layer
from adjointlab.core.operator import Direction, LinearOperator, apply_adjoint, apply_forward, programs_of
from adjointlab.core.program import Program
from adjointlab.core.space import Space, Tensor
from adjointlab.core.vectors import SMALL_INTEGERS, THIRDS, Draw, Side, local_values
from adjointlab.typing import Array, Communicator
from adjointlab.worlds.backward import BackwardPass

__all__ = ["FRACTIONS", "INFINITE", "INPUT_VALUES", "SUBNORMAL", "CheckContext", "InputSetting"]

SUBNORMAL, INFINITE = "subnormal", "infinite"
INPUT_VALUES = (SMALL_INTEGERS, THIRDS, "negative", "equal", "large", "tiny", SUBNORMAL, INFINITE)
"""Kinds of values of a layer's inputs: small integers; these divided by three, which need all digits of their type, as parameters and
cotangents then do too; negative integers only, or one value for all elements of a tensor; small integers times a large or a tiny power of
two, or times the smallest subnormal number; or small integers of which the largest are replaced by infinity."""

FRACTIONS = "fractions"
"""A kind of values that no case is drawn with: numbers with so many digits that equal ones belong together, for hints on a fault."""

_KEPT_ELEMENTS = 1024
"""The largest vector whose values are kept until the end of a case."""


@dataclass(frozen=True)
class InputSetting:
    """Recipe for the inputs of a case: key of the values, memory (of an array library), memory order of either side."""

    seed: int = 0
    library: str = "numpy"
    primal_order: str = "row-major"
    dual_order: str = "row-major"

    def __post_init__(self) -> None:
        legal = (*arrays.MEMORIES, *arrays.MIXTURES)
        if self.seed < 0:
            raise ValueError(f"seed: at least 0, not {self.seed}")
        if self.library not in legal:
            raise ValueError(f"library: {self.library!r} is not one of {', '.join(legal)}")
        for order in self.orders:
            if order not in LEGAL_ORDERS:
                raise ValueError(f"order: {order!r} is not one of {', '.join(LEGAL_ORDERS)}")

    @property
    def orders(self) -> tuple[str, str]:
        """Memory orders of inputs and of cotangents."""
        return self.primal_order, self.dual_order

    def order(self, side: Side) -> str:
        """Memory order of the inputs of one side."""
        return self.primal_order if side == "primal" else self.dual_order


_ADJOINT_CAME_FIRST = (
    "raised by the adjoint of an instance whose forward was not called before: the adjoint of a linear operator depends on y only, so it "
    "must not need anything that forward stores"
)


class CheckContext:
    """One rank's operator, with the values that its case draws for it.

    `make` makes an instance of the operator; `reference` is the sequential twin, from global tensors to global tensors. `values` is
    one of :data:`INPUT_VALUES`, or :data:`FRACTIONS`. With `needs_run`, the twin also works only within a run of the world. If `same_on` is
    a rank, a layer's inputs and cotangents have the same values there as for `None`, and different ones elsewhere. `alone` is a context
    for the twin, in which this rank is the only one of its job. Forms of the operator named in `forms_left_out` are not applied. The
    `measurement` is made at once, before a judge asks for it: for a twin that `needs_run`, and for an operator with integer coefficients.
    """

    def __init__(
        self,
        make: Callable[[], LinearOperator | Layer],
        setting: InputSetting,
        comm: Communicator,
        reference: Callable[..., Any] | None = None,
        *,
        values: str = SMALL_INTEGERS,
        needs_run: bool = False,
        same_on: int | None = None,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
        forms_left_out: Collection[str] = (),
        measurement: Measurement = Measurement.NONE,
    ) -> None:
        self._make = make
        self.beyond = None if same_on is None else (same_on, setting.seed + 1)
        self.values = values  # of a layer's inputs
        self.setting = setting
        self.reference = reference
        self.needs_run = needs_run
        self.alone = alone
        self.forms_left_out = forms_left_out
        self.measurement = measurement
        self.comm = comm
        self.rank = comm.Get_rank()
        self.arithmetic = Arithmetic(self)
        self._known_values: dict[tuple[Side, int, int, int], tuple[Space, Local]] = {}
        self.leaks: dict[Direction, str] = {}  # a communicator that each call leaks
        self._has_leaked: list[tuple[LinearOperator, Direction]] = []  # calls that left one more open
        self._gone_forward: list[LinearOperator] = []
        # A world's communicators are notified when user code returns, as calls after that are the lab's. They also list the
        # communicators that were made from them and are still open. mpi4py's do neither.
        self.note_return: Callable[[Callable[..., Any]], None] = getattr(
            comm, "note_return", lambda function: None
        )
        self.note_backward: Callable[[BackwardPass], None] = getattr(
            comm, "note_backward", lambda begun: None
        )
        # Calls of ranks in one application of the operator must not match calls of other ranks in another application.
        self._note_application: Callable[[], None] = getattr(comm, "note_application", lambda: None)
        self._unfreed: Callable[[], Sequence[object]] | None = getattr(comm, "unfreed", None)

    @cached_property
    def instance(self) -> LinearOperator | Layer:
        """The instance under test, made on first access. Collective if making it is."""
        made = self._make()
        self.note_return(type(made.module if isinstance(made, Layer) else made).__init__)
        return made

    @property
    def operator(self) -> LinearOperator:
        """The instance under test, which is a linear operator."""
        instance = self.instance
        assert not isinstance(instance, Layer)
        return instance

    @property
    def layer(self) -> Layer:
        """The instance under test, which is a layer."""
        instance = self.instance
        assert isinstance(instance, Layer)
        return instance

    def fresh(self) -> LinearOperator:
        """Make another instance of the same case. Collective if making one is."""
        operator = self._make()
        self.note_return(type(operator).__init__)
        assert not isinstance(operator, Layer)
        return operator

    @property
    def domain(self) -> Space:
        return self.instance.domain

    @property
    def codomain(self) -> Space:
        return self.instance.codomain

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the domain, then those of the codomain."""
        return (*self.domain.tensors, *self.codomain.tensors)

    @cached_property
    def library(self) -> str:
        """Memory of this rank's inputs: the setting's, or torch's if that lacks an element type (bfloat16 in NumPy)."""
        wanted = arrays.memory_on(self.setting.library, self.rank)
        if all(arrays.supports(wanted, tensor.dtype) for tensor in self.tensors):
            return wanted
        on_device = wanted == "cupy" and arrays.installed("torch-cuda")
        return "torch-cuda" if on_device else "torch"

    @property
    def torch_memory(self) -> str:
        """Memory of this rank's tensors of a layer: the case's if that is torch's, else torch's on the host."""
        wanted = arrays.memory_on(self.setting.library, self.rank)
        return wanted if wanted.startswith("torch") else "torch"

    def primal(self, number: int, bound: int) -> tuple[Array, ...]:
        """This rank's part of the random element `number` of the domain."""
        return tuple(placed.view for placed in self.placed(self.domain, "primal", number, bound))

    def dual(self, number: int, bound: int) -> tuple[Array, ...]:
        """This rank's part of the random element `number` of the codomain's dual."""
        return tuple(placed.view for placed in self.placed(self.codomain.dual, "dual", number, bound))

    def placed(
        self, space: Space, side: Side, number: int, bound: int, exponent: int = 0, order: str | None = None
    ) -> tuple[Placed, ...]:
        """This rank's part of a random element of `space`, each tensor with its underlying buffer.

        Values are integers up to `bound`, or fill the significand if that is 0, times ``2**exponent``
        (:class:`adjointlab.core.vectors.Draw`). Every rank draws its own part without communication. If several ranks hold
        the same element of a varying or partial tensor, each draws a different value: with equal copies, an adjoint of a broadcast
        that returns P times one cotangent, and not the sum of all P, would pass.
        """
        values = self.drawn(space, side, number, bound, exponent)
        memory, order = self.library, order_on(self.rank, order or self.setting.order(side))
        return tuple(
            [
                place(each, tensor.dtype, memory, order)
                for each, tensor in zip(values, space.tensors, strict=True)
            ]
        )

    def drawn(self, space: Space, side: Side, number: int, bound: int, exponent: int) -> Local:
        """This rank's values of a draw, cached if they are few: some checks place them several times."""
        key = side, number, bound, exponent
        known = self._known_values.get(key)
        if known is not None and known[0] is space:
            return known[1]
        draw = Draw(self.setting.seed, number, side, bound, exponent)
        values = tuple(
            [local_values(space, position, self.rank, draw) for position in range(len(space.tensors))]
        )
        for each in values:
            each.flags.writeable = False
        if sum([each.size for each in values]) <= _KEPT_ELEMENTS:
            self._known_values[key] = space, values
        return values

    def forward(self, x: Sequence[Array], operator: LinearOperator | None = None) -> tuple[Array, ...]:
        """F x, with the codomain's shapes and element types; by another instance if `operator` is given."""
        operator = operator or self.operator
        if not self._has_gone_forward(operator):
            self._gone_forward.append(operator)
        return self._noted(Direction.FORWARD, operator, lambda: apply_forward(operator, x))

    def adjoint(self, y: Sequence[Array], operator: LinearOperator | None = None) -> tuple[Array, ...]:
        """F* y, with the shapes and element types of the domain's dual."""
        operator = operator or self.operator
        try:
            return self._noted(Direction.ADJOINT, operator, lambda: apply_adjoint(operator, y))
        except Exception as error:
            if not self._has_gone_forward(operator):
                error.add_note(_ADJOINT_CAME_FIRST)
            raise

    def linear_map(self, direction: Direction) -> LinearMap:
        """A direction of the operator under test, for the images of basis vectors."""
        circumstances = self.rank, self.library, self.operator.batched
        if direction is Direction.FORWARD:
            return LinearMap(self.domain, self.codomain, self.forward, *circumstances)
        return LinearMap(self.codomain.dual, self.domain.dual, self.adjoint, *circumstances)

    def _has_gone_forward(self, operator: LinearOperator) -> bool:
        return any(known is operator for known in self._gone_forward)

    def _noted(
        self, direction: Direction, operator: LinearOperator, call: Callable[[], tuple[Array, ...]]
    ) -> tuple[Array, ...]:
        """Return the result of `call`. Notifies the communicator of its end, and records a communicator that it leaks."""
        if self._unfreed is None:
            return call()
        before = self._unfreed()
        result = call()
        self._note_application()
        after = self._unfreed()
        if len(after) > len(before):
            # A first call may keep a communicator for all later ones; only one left open by *each* call is a leak. MPI
            # libraries have at most some thousand communicators.
            if any(known is operator and which is direction for known, which in self._has_leaked):
                leaked = next(each for each in after if each not in before)
                self.leaks.setdefault(direction, f"each call leaves one more behind: {leaked}")
            self._has_leaked.append((operator, direction))
        return result

    def numpy(self, local: Sequence[Array]) -> Local:
        """Copy local tensors to NumPy arrays, for the judge."""
        return tuple(np.array(arrays.to_numpy(array)) for array in local)

    @cached_property
    def programs(self) -> tuple[Program, Program] | None:
        """Programs of forward and adjoint, if the operator has a specification. Raises `ValueError` if they do not fit its spaces."""
        programs = programs_of(self.operator)
        spaces = (self.domain, self.codomain), (self.codomain.dual, self.domain.dual)
        for program, (source, target) in zip(programs or (), spaces, strict=False):
            require_fitting(program, source, target)
        return programs

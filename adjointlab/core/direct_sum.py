"""The direct sum of operators: one operator that applies each part to separate tensors.

                ⎡ A   0 ⎤                       ⎡ A*  0  ⎤
A ⊕ B      =    ⎣ 0   B ⎦      (A ⊕ B)*    =    ⎣ 0   B* ⎦
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise

from adjointlab.core.arguments import check_number
from adjointlab.core.operator import (
    CompositeOperator,
    LinearOperator,
    Result,
    as_tuple,
    both_directions,
    written,
)
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.typing import Array

__all__ = ["DirectSumOperator"]


class DirectSumOperator(CompositeOperator):
    """A ⊕ B ⊕ ..., which applies its parts one after the other, in the same order on every rank.

    Its tensors are those of the parts: x and y of the first are called x_0 and y_0, those of the second x_1 and y_1.
    `forward` and `adjoint` return a tuple. They raise `ValueError` unless there are as many arguments as tensors in the space.
    """

    precedence = 0

    def __init__(self, first: LinearOperator, *others: LinearOperator) -> None:
        parts = (first, *others)
        domain = _joined([part.domain for part in parts])
        codomain = _joined([part.codomain for part in parts])
        super().__init__(domain, codomain, *parts, combine=max)
        self.is_identity = all(part.is_identity for part in parts)
        self._inputs = _shares([part.domain for part in parts])
        self._outputs = _shares([part.codomain for part in parts])

    def forward(self, *x: Array) -> Result:
        check_number(self.domain.tensors, x, self.comm.Get_rank())
        return _applied([part.forward for part in self.parts], x, self._inputs)

    def adjoint(self, *y: Array) -> Result:
        check_number(self.codomain.tensors, y, self.comm.Get_rank())
        return _applied([part.adjoint for part in self.parts], y, self._outputs)

    def specification(self) -> Program | tuple[Program, Program] | None:
        """Return the programs of the parts one after the other; `None` if a part has none."""
        given = [part.specification() for part in self.parts]
        programs = [each for each in given if each is not None]
        if len(programs) < len(given):
            return None
        forward, adjoint = map(_in_turn, zip(*map(both_directions, programs), strict=True))
        return (forward, adjoint) if any(isinstance(each, tuple) for each in programs) else forward

    def __str__(self) -> str:
        return " ⊕ ".join(written(part, 2) for part in self.parts)


def _joined(spaces: Sequence[Space]) -> Space:
    """Return the space of the tensors of all `spaces`, with the number of its space appended to each name."""
    return Space(
        *(
            replace(tensor, name=_numbered(number, tensor.name))
            for number, space in enumerate(spaces)
            for tensor in space.tensors
        )
    )


def _numbered(number: int, name: str) -> str:
    return f"{name}_{number}"


def _shares(spaces: Sequence[Space]) -> list[slice]:
    """Return the positions of each space's tensors among those of all spaces."""
    ends = accumulate((len(space.tensors) for space in spaces), initial=0)
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _applied(
    functions: Sequence[Callable[..., Result]], arguments: Sequence[Array], shares: Sequence[slice]
) -> tuple[Array, ...]:
    results: list[Array] = []
    for function, share in zip(functions, shares, strict=True):
        results += as_tuple(function(*arguments[share]))
    return tuple(results)


def _in_turn(programs: Sequence[Program]) -> Program:
    """Return the programs one after the other, with renamed buffers, so that they share none."""
    renamed = [program.renamed(partial(_numbered, number)) for number, program in enumerate(programs)]
    return Program(
        chain.from_iterable(program.inputs for program in renamed),
        chain.from_iterable(program.steps for program in renamed),
    )

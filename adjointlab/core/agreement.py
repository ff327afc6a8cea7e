"""Errors of one rank raised on all ranks, which costs a message, since no rank knows the arguments of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from adjointlab.core.arguments import check_arguments
from adjointlab.core.operator import (
    AdjointOperator,
    AdjointProperty,
    CompositeOperator,
    LinearOperator,
    Result,
    precedence_of,
)
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.typing import Array, Communicator

__all__ = ["CheckedOperator", "check_alike", "gather_together", "raise_first", "raise_together"]

_WRONG = -1

_Value = TypeVar("_Value")


class _Error(NamedTuple):
    """An error of one rank, as it is sent to the others."""

    is_type: bool
    text: str


class CheckedOperator(CompositeOperator):
    """`operator`, which raises an error about the arguments of one rank on every rank, so that none is left waiting.

    For plain mpi4py; the lab's communicators report an error to the other ranks in any case. Each application first gathers
    one number from each rank: -1 for wrong arguments, else the length of the batch, on which all must agree.

    Raises `ValueError` and `TypeError` for arguments as :func:`adjointlab.core.arguments.check_arguments` does, with the message
    of the lowest rank that has a wrong one.
    """

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.codomain, operator)
        self.is_identity, self.precedence = operator.is_identity, precedence_of(operator)

    def forward(self, *x: Array) -> Result:
        self._agree(self.domain, x)
        return self.part.forward(*x)

    def adjoint(self, *y: Array) -> Result:
        self._agree(self.codomain.dual, y)
        return self.part.adjoint(*y)

    def specification(self) -> Program | tuple[Program, Program] | None:
        return self.part.specification()

    def __str__(self) -> str:
        return str(self.part)

    @AdjointProperty
    def H(self) -> LinearOperator:
        return CheckedOperator(AdjointOperator(self.part))

    def _agree(self, space: Space, arguments: tuple[Array, ...]) -> None:
        error: TypeError | ValueError | None = None
        batch: tuple[int, ...] = ()
        try:
            batch = check_arguments(space.tensors, arguments, self.comm.Get_rank())
        except (TypeError, ValueError) as raised:
            error = raised
        own = np.array([_WRONG if error else batch[0] if batch else 0], np.int64)
        every = np.empty(self.comm.Get_size(), np.int64)
        self.comm.Allgather(own, every)
        if _WRONG in every:
            raise_first(self.comm, error)
        if (every != every[0]).any():
            raise ValueError(
                f"arguments: in batches of {every.tolist()} by rank, where 0 means no batch; all ranks must have the same"
            )


def raise_first(comm: Communicator, error: TypeError | ValueError | None) -> None:
    """Collective: raise the error of the lowest rank that has one, on every rank."""
    _raise_lowest(comm.allgather(None if error is None else _error_of(error)))


def raise_together(comm: Communicator, check: Callable[[], None], flags: Sequence[bool] = ()) -> list[int]:
    """Collective: run `check` on every rank; if it raises `TypeError` or `ValueError` on some, raise that of the lowest rank on all.

    Costs an all-reduce of one number, and one for each of `flags`, of which every rank has the same number. Returns for each flag the
    number of ranks on which it is true.
    """
    error: TypeError | ValueError | None = None
    try:
        check()
    except (TypeError, ValueError) as raised:
        error = raised
    # The other ranks do not know the length of the message, so it needs a second collective. All ranks know from the result of the
    # first whether there is an error, and so whether the second follows.
    own = np.array([error is not None, *flags], np.int64)
    total = np.zeros(own.shape, np.int64)
    comm.Allreduce(own, total)
    failures, *counts = map(int, total)
    if failures:
        raise_first(comm, error)
    return counts


def gather_together(comm: Communicator, make: Callable[[], _Value]) -> list[_Value]:
    """Collective: return the results of `make` by rank; if it raises `TypeError` or `ValueError` on some, raise that of the lowest on all.

    Costs an all-gather of pickled values.
    """
    own: _Value | _Error
    try:
        own = make()
    except (TypeError, ValueError) as error:
        own = _error_of(error)
    every: list[_Value | _Error] = comm.allgather(own)
    _raise_lowest([each if isinstance(each, _Error) else None for each in every])
    return [each for each in every if not isinstance(each, _Error)]


def check_alike(comm: Communicator, arguments: Mapping[str, object]) -> None:
    """Collective: raise `ValueError`, the same on every rank, unless each argument prints as the same text on all ranks.

    For calls to which all ranks must pass the same arguments: if these differ, messages do not match. Costs an all-gather of the texts.
    """
    every = comm.allgather({name: str(value) for name, value in arguments.items()})
    for name in {name: None for given in every for name in given}:
        texts = [given.get(name, "nothing") for given in every]
        other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            raise ValueError(
                f"{name}: differs by rank: {texts[0]} on rank 0, {texts[other]} on rank {other}; every rank gives the same"
            )


def _error_of(error: TypeError | ValueError) -> _Error:
    return _Error(isinstance(error, TypeError), str(error))


def _raise_lowest(errors: Sequence[_Error | None]) -> None:
    """Raise the first of the errors, by rank, if there is one."""
    error = next((each for each in errors if each is not None), None)
    if error is not None:
        raise (TypeError if error.is_type else ValueError)(error.text) from None

"""PyLops-MPI: an `MPILinearOperator` on `DistributedArray`s as an operator of the lab.

An array of PyLops-MPI as a tensor of a space:

    SCATTER                        cut along its axis; varying
    BROADCAST, UNSAFE_BROADCAST    the whole array on every rank; invariant, because its dot product counts it once

A mask restricts dot products and norms to groups of ranks. It does not change the arrays of a SCATTER.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import isfunction
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np

from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator, NotInSpace
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.notes import noted
from adjointlab.spelling import described_type
from adjointlab.typing import Array, Communicator

__all__ = ["MPIOperator", "mpi_operator"]

DistributedArray: TypeAlias = Any
MPILinearOperator: TypeAlias = Any

_PAIR: Final = "return a pair, the operator and a DistributedArray that is distributed as they are"


def mpi_operator(make: Callable[..., Any]) -> Callable[..., MPIOperator]:
    """Turn ``make(comm, **arguments)``, which returns an `MPILinearOperator`, into a target of ``@adjointlab.subject.operator``::

        @adjointlab.subject.operator(mpi_operator(lambda comm, dims: MPIFirstDerivative(dims, base_comm=comm)))
        def first_derivatives(draw, ranks):
            return dict(dims=(draw(st.integers(2 * ranks, 20)),))

    It may return a pair: the operator, and a `DistributedArray` with the distribution of its arguments (partition, local shapes,
    mask, element type). By default they are scattered, with the operator's `local_shapes_m` if it has any, else evenly. Any other
    result is a :class:`SubjectError`.
    """
    if not isfunction(make) and not isinstance(make, partial):
        raise SubjectError(
            f"make: {described_type(make)} is not a function; give one that takes comm and makes the operator"
        )

    @wraps(make)
    def build(comm: Communicator, /, **arguments: object) -> MPIOperator:
        require_accepts("the function", make, ("comm",), arguments)
        made = make(comm, **arguments)
        return MPIOperator(comm, *_operator_and_model(made))

    return build


class MPIOperator(LinearOperator):
    """An operator of PyLops-MPI. `model` is a `DistributedArray` with the distribution of its arguments, from which that of results follows.

    Making one is collective: it applies the operator to zero, to find the distribution of results. Without a `model` it has the
    operator's element type. Directions raise :class:`NotInSpace` for a result that is distributed differently from the argument of the
    other direction, or :class:`SubjectError` if there is no `model` to define that.
    """

    def __init__(
        self, comm: Communicator, operator: MPILinearOperator, model: DistributedArray | None = None
    ) -> None:
        self.comm, self.operator = comm, operator
        self._is_guessed = model is None and getattr(operator, "local_shapes_m", None) is None
        self._model = _scattered(operator, comm) if model is None else model
        zero = _like(self._model, np.zeros(self._model.local_shape, self._model.dtype))
        guess = f"mpi_operator took arguments for scattered, as {self._model.local_shapes}; if they are distributed otherwise, {_PAIR}"
        with noted(guess if model is None else ""):
            self._data = operator.matvec(zero)
        self.domain, self.codomain = _space(self._model, "x"), _space(self._data, "y")

    def forward(self, x: Array) -> Any:
        return _apply("matvec", self.operator.matvec, x, self._model, self._data)

    def adjoint(self, y: Array) -> Any:
        found = _apply("rmatvec", self.operator.rmatvec, y, self._data, self._model)
        if self._is_guessed and (mine := tuple(found.shape)) != (guessed := tuple(self._model.local_shape)):
            raise SubjectError(
                f"rmatvec returns shape {mine} on rank {self.comm.Get_rank()}, where an even distribution has {guessed}; unless that is "
                f"wrong, arguments are distributed otherwise: {_PAIR}"
            )
        return found


def _operator_and_model(made: object) -> tuple[MPILinearOperator, DistributedArray | None]:
    """The operator and the model that a function for :func:`mpi_operator` has returned. Raises :class:`SubjectError` for anything else."""
    operator, model = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    needed = ("matvec", "rmatvec") if model is not None else ("matvec", "rmatvec", "shape", "dtype")
    is_operator = not isinstance(operator, type) and all(hasattr(operator, name) for name in needed)
    if not is_operator or (model is not None and not hasattr(model, "local_shapes")):
        kinds = (
            ", ".join(type(each).__name__ for each in made)
            if isinstance(made, tuple)
            else type(made).__name__
        )
        raise SubjectError(
            f"the function made {made.__name__ + ', a class' if isinstance(made, type) else kinds}; make an MPILinearOperator with a "
            "shape and a dtype, or a pair: it and a DistributedArray that is distributed as its arguments are"
        )
    return operator, model


def _scattered(operator: MPILinearOperator, comm: Communicator) -> DistributedArray:
    """A scattered array like the arguments of an operator."""
    from pylops_mpi import DistributedArray

    local_shapes = getattr(operator, "local_shapes_m", None)
    return DistributedArray(operator.shape[1], comm, local_shapes=local_shapes, dtype=operator.dtype)


def _like(template: DistributedArray, local: Any) -> DistributedArray:
    """An array that is distributed like `template`, with this local part."""
    from pylops_mpi import DistributedArray

    return DistributedArray(
        template.global_shape,
        template.base_comm,
        partition=template.partition,
        axis=template.axis,
        local_shapes=template.local_shapes,
        mask=template.mask,
        local_array=np.ascontiguousarray(local),
    )


def _apply(
    name: str,
    multiply: Callable[[DistributedArray], DistributedArray],
    local: Array,
    argument: DistributedArray,
    result: DistributedArray,
) -> Any:
    """The local part of the product. Raises :class:`NotInSpace` if it is distributed differently from `result`."""
    found = multiply(_like(argument, local))
    if not all(hasattr(found, each) for each in ("partition", "global_shape", "local_array")):
        raise NotInSpace(f"{name} returned {described_type(found)}, not a DistributedArray")
    if (found.partition, found.global_shape) != (result.partition, result.global_shape):
        raise NotInSpace(
            f"{name} returned {_described(found)}, and the other direction takes {_described(result)}"
        )
    return _in_dtype(found.local_array, np.dtype(result.dtype))


def _in_dtype(local: Any, dtype: np.dtype[Any]) -> Any:
    """A complex array without imaginary parts as a real one if `dtype` is real: operators there have a single element type for both sides."""
    is_real = np.iscomplexobj(local) and dtype.kind != "c" and not np.any(local.imag)
    return local.real.astype(dtype) if is_real else local


def _described(array: DistributedArray) -> str:
    return f"a {array.partition.name} of shape {tuple(map(int, array.global_shape))}"


def _space(array: DistributedArray, name: str) -> Space:
    """The space of the arrays that are distributed like `array`. Collective. Raises :class:`SubjectError` for a stack of several arrays."""
    if not hasattr(array, "partition"):
        raise SubjectError(
            f"{name} is a {type(array).__name__}, and only a DistributedArray has a space here: declare the operator with al.subject.pair, "
            "of whose space each array of the stack is a tensor"
        )
    shape, size = tuple(map(int, array.global_shape)), array.base_comm.Get_size()
    dtype = np.dtype(array.dtype).name
    if array.partition.name != "SCATTER":
        copies = Layout(shape, Partition([size]), axes=(None,) * len(shape))
        return Space(copies, dtype=dtype, types=("invariant",), name=name)
    grid = [size if dim == array.axis else 1 for dim in range(len(shape))]
    sides = [int(local[array.axis]) for local in array.local_shapes]
    cuts = [(0, *accumulate(sides)) if dim == array.axis else None for dim in range(len(shape))]
    return Space(Layout.cut(shape, Partition(grid), cuts), dtype=dtype, name=name)

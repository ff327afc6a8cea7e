"""mpi4jax: a function of local JAX arrays that communicates by mpi4jax, with the gradient that JAX computes as its adjoint.

    @adjointlab.subject.operator(mpi4jax_operator(lambda comm, x: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)))
    def sums(draw, ranks):
        ...
        return dict(domain=adjointlab.Space(copies, types=("partial",)), codomain=adjointlab.Space(copies, types=("invariant",)))

mpi4jax calls the MPI library directly, from compiled code. So it needs real ranks (mpiexec), and its waits are not guarded: only the
watchdog ends a hang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from adjointlab.adapters.jax_arrays import in_jax, in_library, precision
from adjointlab.adapters.jax_programs import gradients_of, returned
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.operator import AdaptedOperator, Direction
from adjointlab.core.space import Space
from adjointlab.engine.adapters import SPACES, UserFunction, split_bounds, tensor_names
from adjointlab.typing import Array, Communicator

__all__ = ["mpi4jax_operator"]


def mpi4jax_operator(function: UserFunction) -> Callable[..., AdaptedOperator]:
    """Turn ``function(comm, *x, **arguments)``, linear in the local arrays `x`, into a target of ``@adjointlab.subject.operator``.

    `comm` is mpi4py's communicator, as mpi4jax requires. The dictionary of a case also has the spaces `domain` and `codomain`, which are
    not passed on.
    """

    @wraps(function)
    def build(comm: Communicator, /, *, domain: Space, codomain: Space, **arguments: Any) -> AdaptedOperator:
        return _LocalFunction(comm, function, domain, codomain, arguments)

    return build


class _LocalFunction(AdaptedOperator):
    """A function of local arrays on this rank."""

    def __init__(
        self,
        comm: Communicator,
        function: UserFunction,
        domain: Space,
        codomain: Space,
        arguments: Mapping[str, Any],
    ) -> None:
        if (native := getattr(comm, "inner", None)) is None:
            raise SubjectError(
                f"{function.__name__}: mpi4jax sends by itself, which simulated ranks cannot follow; run it under mpiexec"
            )
        self.comm, self.domain, self.codomain = comm, domain, codomain
        self._function = function
        (self.gain, self.rounding), arguments = split_bounds(arguments, function)
        require_accepts("the function", function, ("comm", *tensor_names(domain)), arguments, SPACES)
        self._call: Callable[..., Any] = partial(function, native, **arguments)

    def forward(self, *x: Array) -> tuple[Array, ...]:
        with precision(*x):
            found = self._results(*map(in_jax, x))
            return in_library(x[0], found, [each.dtype.name for each in found])

    def adjoint(self, *y: Array) -> tuple[Array, ...]:
        rank = self.comm.Get_rank()
        at = [arrays.zeros(t.layout.local_shape(rank), t.dtype, y[0]) for t in self.domain.tensors]
        with precision(*at, *y):
            found = gradients_of(self._results, [*map(in_jax, at)], [*map(in_jax, y)])
            return in_library(y[0], found, [each.dtype.name for each in found])

    def function(self, direction: Direction) -> UserFunction:
        return self._function

    def _results(self, *x: Any) -> Sequence[Any]:
        return returned(self._function, self._call(*x))

"""Reduction operations that user code makes in a run, with mpi4py's ``Op.Create``.

mpi4py has 32 slots for them per process, which simulated ranks share: an operator that makes one in its constructor could exhaust
them on eight ranks. Operations of a run need no slot, because simulated collectives call their functions directly from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

__all__ = ["Create", "own_operation"]

Create: TypeAlias = Callable[..., Any]
"""mpi4py's ``Op.Create``."""


def own_operation(kind: Any, create: Create, function: Callable[..., Any], commute: bool) -> Any:
    """Make an operation for simulated ranks, an instance of a subclass of `kind`, mpi4py's class; `create` is mpi4py's ``Op.Create``."""
    made = _derived(kind).__new__(_derived(kind))
    made.create, made.function, made.commutes = create, function, bool(commute)
    return made


@lru_cache(maxsize=1)
def _derived(kind: Any) -> Any:
    class Operation(kind):  # type: ignore[misc]
        __module__ = kind.__module__
        create: Create
        function: Callable[..., Any] | None
        commutes: bool

        def __bool__(self) -> bool:
            return self.function is not None

        def __eq__(self, other: object) -> Any:
            # In mpi4py all of these have the null handle.
            return self is other if self else kind.__eq__(self, other)

        def __ne__(self, other: object) -> Any:
            return not self == other

        def __call__(self, x: object, y: object) -> Any:
            if self.function is None:
                return kind.__call__(self, x, y)  # raises
            return self.function(x, y, None)

        def Free(self) -> None:
            self.function = None

        def Is_commutative(self) -> bool:
            return self.commutes

        @property
        def is_commutative(self) -> bool:
            return self.commutes

        @property
        def is_predefined(self) -> bool:
            return self.function is None

        def Reduce_local(self, inbuf: object, inoutbuf: object) -> None:
            operation = self.create(self.function, self.commutes)
            try:
                operation.Reduce_local(inbuf, inoutbuf)
            finally:
                operation.Free()

    Operation.__name__ = Operation.__qualname__ = kind.__name__
    return Operation

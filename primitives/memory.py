"""The primitive memory operations on two buffers a and b [Hewett21, section 2.1, eqs. 3-15].

Every one is a block matrix of identities and zeros, which says of each buffer that it leaves which buffers that it
found are summed into it:

    A_b   a, _ → a, 0          D_b   a, b → a, _          K_b   a, b → a, 0          S_{a→b}   a, b → a, a + b
    C_{a→b}   a, b → a, a  (in place)     a, _ → a, a  (out of place)
    M_{a→b}   a, b → 0, a  (in place)     a, _ → _, a  (out of place)

The specification is the sequence of generators; the implementation carries out the rows of the block matrix and, for
the adjoint, its columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adjointlab.core import arrays, program
from adjointlab.core.arguments import check_arguments, check_out
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Buffer, Generator, Program
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.validation import check_layout

__all__ = ["Add", "Allocate", "Clear", "Copy", "Deallocate", "MemoryOperator", "Move"]

Rows = Mapping[str, str]
"""For each buffer that a block matrix leaves, the buffers that are summed into it: ``{"a": "a", "b": "ab"}``."""


class MemoryOperator(LinearOperator):
    """A block matrix on buffers a and b, which every worker of `layout`'s partition applies to its own memory.

    `layout` lays each buffer out. ``forward(*found)`` takes the local tensors of the buffers in scope before, a
    before b, and returns those of the buffers in scope after, as fresh arrays; ``adjoint`` the other way round.
    With ``out=`` the results are written into the arrays given, in the order of the results, and these are returned:
    each is the argument of the same buffer (the in-place form) or shares no memory with any argument.

    Raises `ValueError` for ranks beyond the communicator's, and in a call for a local tensor that is not what the
    layout says.
    """

    symbol: str
    batched = True

    def __init__(self, comm: Any, layout: Layout, found: str, rows: Rows, dtype: str = "float64") -> None:
        check_layout("layout", layout, comm.Get_size())
        self.comm = comm
        self.domain = Space(*(Tensor(layout, dtype, name=name) for name in found))
        self.codomain = Space(*(Tensor(layout, dtype, name=name) for name in rows))
        columns = {name: "".join(left for left, summed in rows.items() if name in summed) for name in found}
        self.gain = self.fan_in = max(1, *map(len, rows.values()), *map(len, columns.values()))
        self._rows, self._columns = rows, columns

    @abstractmethod
    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """The operation on one worker, as the paper composes it."""

    def specification(self) -> Program:
        """The generators on each worker."""
        a = program.buffers(Space(replace(self.domain.tensors[0], name="a")))
        b = program.buffers(Space(replace(self.domain.tensors[0], name="b")))
        steps = (step for pair in zip(a, b, strict=True) for step in self.generators(*pair))
        return Program(program.buffers(self.domain), steps)

    def forward(self, *x: Any, out: Sequence[Any] | None = None) -> Any:
        """The buffers after the operation, on this worker."""
        return self._apply(self._rows, self.domain, self.codomain, x, out)

    def adjoint(self, *y: Any, out: Sequence[Any] | None = None) -> Any:
        """The buffers after the adjoint operation, on this worker."""
        return self._apply(self._columns, self.codomain.dual, self.domain.dual, y, out)

    def _apply(
        self, rows: Rows, source: Space, target: Space, given: tuple[Any, ...], out: Sequence[Any] | None
    ) -> Any:
        rank = self.comm.Get_rank()
        batch = check_arguments(source.tensors, given, rank)
        found = {tensor.name: array for tensor, array in zip(source.tensors, given, strict=True)}
        if out is None:
            like = given[0]
            shape = (*source.tensors[0].layout.local_shape(rank), *batch)
            left = {tensor.name: arrays.empty(shape, tensor.dtype, like) for tensor in target.tensors}
        else:
            left = _given(target, out, found, rank, batch)
        for name in _order(rows) if source.tensors[0].layout.partition.is_active(rank) else ():
            _sum_into(left[name], name, [(summed, found[summed]) for summed in rows[name]], found.get(name))
        results = tuple(left.values())
        return results[0] if len(results) == 1 else results


def _given(
    target: Space, out: Sequence[Any], found: Mapping[str, Any], rank: int, batch: tuple[int, ...]
) -> dict[str, Any]:
    """The arrays for the results, by name, once each is known to be fit: the argument of its name, or memory of its own."""
    if not isinstance(out, tuple | list) or len(out) != len(target.tensors):
        names = ", ".join(tensor.name for tensor in target.tensors)
        raise ValueError(
            f"out: on rank {rank} it is no tuple or list of arrays, one for each result: {names}"
        )
    left: dict[str, Any] = {}
    for tensor, array in zip(target.tensors, out, strict=True):
        others = [a for name, a in found.items() if name != tensor.name or a is not array]
        others += [a for name, a in left.items() if a is not found.get(name)]
        check_out(tensor, array, others, rank, batch, f"out, for {tensor.name}")
        left[tensor.name] = array
    return left


def _order(rows: Rows) -> list[str]:
    """The rows in an order in which, in place, no buffer is overwritten before another row has read it."""
    return sorted(
        rows, key=lambda name: sum(name in summed for other, summed in rows.items() if other != name)
    )


def _sum_into(target: Any, name: str, summands: list[tuple[str, Any]], old: Any) -> None:
    if target is old and any(summed == name for summed, _ in summands):
        summands = [(summed, array) for summed, array in summands if summed != name]
    elif summands:
        arrays.copy_into(target, summands.pop(0)[1])
    else:
        arrays.clear(target)
    for _, array in summands:
        arrays.add_into(target, array)


class Allocate(MemoryOperator):
    """A_b: b comes into scope, zero (eq. 3); its adjoint is Deallocate (eq. 5)."""

    symbol = "A"

    def __init__(self, comm: Any, layout: Layout, *, dtype: str = "float64") -> None:
        super().__init__(comm, layout, "a", {"a": "a", "b": ""}, dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """A_b."""
        return [program.Allocate(b)]


class Deallocate(MemoryOperator):
    """D_b: b goes out of scope; D_b* = A_b."""

    symbol = "D"

    def __init__(self, comm: Any, layout: Layout, *, dtype: str = "float64") -> None:
        super().__init__(comm, layout, "ab", {"a": "a"}, dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """D_b."""
        return [program.Deallocate(b)]


class Clear(MemoryOperator):
    """K_b: b ← 0 (eq. 6), its own adjoint."""

    symbol = "K"

    def __init__(self, comm: Any, layout: Layout, *, dtype: str = "float64") -> None:
        super().__init__(comm, layout, "ab", {"a": "a", "b": ""}, dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """K_b."""
        return [program.Clear(b.whole)]


class Add(MemoryOperator):
    """S_{a→b}: b ← b + a (eq. 7); S_{a→b}* = S_{b→a} (eq. 8)."""

    symbol = "S"

    def __init__(self, comm: Any, layout: Layout, *, dtype: str = "float64") -> None:
        super().__init__(comm, layout, "ab", {"a": "a", "b": "ab"}, dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """S_{a→b}."""
        return [program.Add(a.whole, b.whole)]


class Copy(MemoryOperator):
    """C_{a→b}: b ← a, in place S_{a→b} K_b (eqs. 9, 10), out of place S_{a→b} A_b (eq. 11)."""

    symbol = "C"

    def __init__(self, comm: Any, layout: Layout, *, in_place: bool = False, dtype: str = "float64") -> None:
        super().__init__(comm, layout, "ab" if in_place else "a", {"a": "a", "b": "a"}, dtype)
        self.in_place = in_place

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """S_{a→b} K_b or S_{a→b} A_b."""
        return program.copy(a.whole, b.whole) if self.in_place else program.copy_to_new(a.whole, b)


class Move(MemoryOperator):
    """M_{a→b}: b ← a and a goes, in place K_a S_{a→b} K_b (eqs. 12, 13), out of place D_a S_{a→b} A_b (eqs. 14, 15)."""

    symbol = "M"

    def __init__(self, comm: Any, layout: Layout, *, in_place: bool = False, dtype: str = "float64") -> None:
        rows = {"a": "", "b": "a"} if in_place else {"b": "a"}
        super().__init__(comm, layout, "ab" if in_place else "a", rows, dtype)
        self.in_place = in_place

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """K_a S_{a→b} K_b or D_a S_{a→b} A_b."""
        return program.move(a.whole, b.whole) if self.in_place else program.move_to_new(a, b)

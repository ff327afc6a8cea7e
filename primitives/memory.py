"""The primitive memory operations on two buffers a and b [Hewett21, section 2.1, eqs. 3-15].

Every one is a block matrix of identities and zeros on the buffers in scope. Before and after, with _ for no buffer:

    A_b   a, _ → a, 0          D_b   a, b → a, _          K_b   a, b → a, 0          S_{a→b}   a, b → a, a + b
    C_{a→b}   a, b → a, a  (in place)     a, _ → a, a  (out of place)
    M_{a→b}   a, b → 0, a  (in place)     a, _ → _, a  (out of place)

The specification is the sequence of generators. The implementation computes the rows of the block matrix and, for the
adjoint, its columns: row b of S is (1 1), as a and b are both summed into b, and its column b is (0 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from adjointlab.core import arrays, program
from adjointlab.core.arguments import check_arguments, check_out
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator, Result
from adjointlab.core.program import Buffer, Generator, Program
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["Add", "Allocate", "Clear", "Copy", "Deallocate", "MemoryOperator", "Move"]

Rows: TypeAlias = Mapping[str, str]
"""For each buffer in scope after a block matrix, the buffers that are summed into it: ``{"a": "a", "b": "ab"}`` is S."""


class MemoryOperator(LinearOperator):
    """A block matrix on buffers a and b, which every worker of `layout`'s partition applies to its own memory.

    `layout` lays each buffer out. ``forward(*x)`` takes the local tensors of the buffers in scope before, a before b, and
    returns those of the buffers in scope after, as fresh arrays; ``adjoint`` the other way round. With ``out=`` the
    results are written into the given arrays, in the order of the results, and these are returned: each is the argument
    of the same buffer (the in-place form) or shares no memory with any argument.

    Raises `ValueError` for ranks beyond the communicator's, and in a call for a local tensor that does not match the
    layout.
    """

    symbol: str
    batched = True
    before: str
    """The buffers in scope before."""
    rows: Rows

    def __init__(self, comm: Communicator, layout: Layout, *, dtype: str = "float64") -> None:
        check_layout("layout", layout, comm)
        self.comm = comm
        before, rows = self.before, self.rows
        self.domain = Space(*(Tensor(layout, dtype, name=name) for name in before))
        self.codomain = Space(*(Tensor(layout, dtype, name=name) for name in rows))
        # The adjoint is the transposed matrix: the column of a buffer has the rows that it is summed into.
        columns = {
            name: "".join(after for after, summed in rows.items() if name in summed) for name in before
        }
        self.gain = self.fan_in = max(1, *map(len, rows.values()), *map(len, columns.values()))
        self._columns = columns

    @abstractmethod
    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """The operation on one worker, as the paper composes it."""

    def specification(self) -> Program:
        """The generators on each worker."""
        a = program.buffers(Space(replace(self.domain.tensors[0], name="a")))
        b = program.buffers(Space(replace(self.domain.tensors[0], name="b")))
        steps = (step for pair in zip(a, b, strict=True) for step in self.generators(*pair))
        return Program(program.buffers(self.domain), steps)

    def forward(self, *x: Array, out: Sequence[Array] | None = None) -> Result:
        """The buffers after the operation, on this worker."""
        return self._apply(self.rows, self.domain, self.codomain, x, out)

    def adjoint(self, *y: Array, out: Sequence[Array] | None = None) -> Result:
        """The buffers after the adjoint operation, on this worker."""
        return self._apply(self._columns, self.codomain.dual, self.domain.dual, y, out)

    def _apply(
        self,
        rows: Rows,
        source: Space,
        target: Space,
        arguments: Sequence[Array],
        out: Sequence[Array] | None,
    ) -> Array | tuple[Array, ...]:
        rank = self.comm.Get_rank()
        batch = check_arguments(source.tensors, arguments, rank)
        argument_of = {tensor.name: array for tensor, array in zip(source.tensors, arguments, strict=True)}
        if out is None:
            shape = (*source.tensors[0].layout.local_shape(rank), *batch)
            results = {t.name: arrays.empty(shape, t.dtype, arguments[0]) for t in target.tensors}
        else:
            results = _checked_out(target, out, argument_of, rank, batch)
        is_active = source.tensors[0].layout.partition.is_active(rank)
        for name in _safe_order(rows) if is_active else ():
            summands = {summed: argument_of[summed] for summed in rows[name]}
            _sum_into(results[name], name, summands, argument_of.get(name))
        return tuple(results.values()) if len(results) > 1 else next(iter(results.values()))


def _checked_out(
    target: Space, out: Sequence[Array], argument_of: Mapping[str, Array], rank: int, batch: tuple[int, ...]
) -> dict[str, Array]:
    """Check that each array of `out` can be written, and return them by the names of the results.

    Each is the argument of its name, or shares no memory with any argument or other result.
    """
    if not isinstance(out, tuple | list) or len(out) != len(target.tensors):
        names = ", ".join(tensor.name for tensor in target.tensors)
        raise ValueError(
            f"out: on rank {rank} it is not a tuple or list of arrays, one for each result: {names}"
        )
    results: dict[str, Array] = {}
    for tensor, array in zip(target.tensors, out, strict=True):
        others = [a for name, a in argument_of.items() if name != tensor.name or a is not array]
        # A result that is an argument is in the list already.
        others += [a for name, a in results.items() if a is not argument_of.get(name)]
        check_out(tensor, array, others, rank, batch, f"out, for {tensor.name}")
        results[tensor.name] = array
    return results


def _safe_order(rows: Rows) -> list[str]:
    """Return the rows in an order in which, in place, no buffer is overwritten before another row has read it.

    Rows whose buffer no other row reads come first: M in place writes b, which reads a, before it clears a. This suffices for
    the block matrices here.
    """
    return sorted(
        rows, key=lambda name: sum(name in summed for other, summed in rows.items() if other != name)
    )


def _sum_into(result: Array, name: str, summands: dict[str, Array], before: Array | None) -> None:
    """Fill `result`, buffer `name`, with the sum of `summands`; `before` is the argument of that buffer, if there is one."""
    terms = dict(summands)
    if result is before and name in terms:
        del terms[name]  # in place, it is in the result already
    elif terms:
        arrays.copy_into(result, terms.pop(next(iter(terms))))
    else:
        arrays.clear(result)
    for array in terms.values():
        arrays.add_into(result, array)


class Allocate(MemoryOperator):
    """A_b: b comes into scope, zero (eq. 3); its adjoint is Deallocate (eq. 5)."""

    symbol = "A"
    before, rows = "a", {"a": "a", "b": ""}

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """A_b."""
        return [program.Allocate(b)]


class Deallocate(MemoryOperator):
    """D_b: b goes out of scope; D_b* = A_b."""

    symbol = "D"
    before, rows = "ab", {"a": "a"}

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """D_b."""
        return [program.Deallocate(b)]


class Clear(MemoryOperator):
    """K_b: b ← 0 (eq. 6), its own adjoint."""

    symbol = "K"
    before, rows = "ab", {"a": "a", "b": ""}

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """K_b."""
        return [program.Clear(b.whole)]


class Add(MemoryOperator):
    """S_{a→b}: b ← b + a (eq. 7); S_{a→b}* = S_{b→a} (eq. 8)."""

    symbol = "S"
    before, rows = "ab", {"a": "a", "b": "ab"}

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """S_{a→b}."""
        return [program.Add(a.whole, b.whole)]


class Copy(MemoryOperator):
    """C_{a→b}: b ← a, in place S_{a→b} K_b (eqs. 9, 10), out of place S_{a→b} A_b (eq. 11)."""

    symbol = "C"

    def __init__(
        self, comm: Communicator, layout: Layout, *, in_place: bool = False, dtype: str = "float64"
    ) -> None:
        self.in_place, self.before = in_place, "ab" if in_place else "a"
        self.rows = {"a": "a", "b": "a"}
        super().__init__(comm, layout, dtype=dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """S_{a→b} K_b or S_{a→b} A_b."""
        return program.copy(a.whole, b.whole) if self.in_place else program.copy_to_new(a.whole, b)


class Move(MemoryOperator):
    """M_{a→b}: b ← a and a goes, in place K_a S_{a→b} K_b (eqs. 12, 13), out of place D_a S_{a→b} A_b (eqs. 14, 15)."""

    symbol = "M"

    def __init__(
        self, comm: Communicator, layout: Layout, *, in_place: bool = False, dtype: str = "float64"
    ) -> None:
        self.in_place, self.before = in_place, "ab" if in_place else "a"
        self.rows = {"a": "", "b": "a"} if in_place else {"b": "a"}
        super().__init__(comm, layout, dtype=dtype)

    def generators(self, a: Buffer, b: Buffer) -> Sequence[Generator]:
        """K_a S_{a→b} K_b or D_a S_{a→b} A_b."""
        return program.move(a.whole, b.whole) if self.in_place else program.move_to_new(a, b)

"""Results that are wrong: by a slip in the adjoint, by state, by memory, by what is declared of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al
from adjointlab import MPI
from tests.faults.declaring import GAIN, WRONG, RuntimeFault, Shift, blocks, cuts, declared, fault

OUTPUT = ("an output is not in its declared space",)
NOT_LINEAR = ("forward is not linear", *WRONG)
NOT_FINITE = ("adjoint is not finite",)


def adjoint(name: str, change: Any, found: tuple[str, ...] = WRONG, **row: Any) -> RuntimeFault:
    return fault(name, found, result={"adjoint": change}, **row)


def forward(name: str, change: Any, found: tuple[str, ...], **row: Any) -> RuntimeFault:
    return fault(name, found, result={"forward": change}, **row)


def on_one_rank(change: Any) -> Any:
    return lambda op, x, right: change(right) if op.is_faulty else right


def complex_blocks(draw: Any, ranks: int) -> dict[str, Any]:
    return blocks(draw, ranks) | {"dtype": "complex128"}


class Turned(Shift):
    """Multiplies by i in both directions."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        return 1j * super().shifted(x, dest, source)


class Halo(Shift):
    """Every rank gets the whole: the adjoint has to sum what it now only crops."""

    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        whole = al.Layout(layout.shape, layout.partition, None, (None,))
        self.codomain = al.Space(al.Tensor(whole, types=("varying",)))
        self.gain = self.fan_in = None

    def forward(self, x: Any) -> Any:
        whole = np.empty(x.size * self.size)
        self.comm.Allgather(np.ascontiguousarray(x), whole)
        return whole

    def adjoint(self, y: Any) -> Any:
        width = y.size // self.size
        return np.array(y[self.rank * width : (self.rank + 1) * width])


class Unwritten(Shift):
    """Leaves its last element as it was allocated."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.empty(x.shape, x.dtype)
        result[:-1] = super().shifted(x, dest, source)[:-1]
        return result


class Buffered(Shift):
    """Returns a buffer that the next call writes into."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        if not hasattr(self, "buffer"):
            self.buffer = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x), dest, 0, self.buffer, source, 0)
        return self.buffer


class Stale(Shift):
    """Returns what the call before has made."""

    def adjoint(self, y: Any) -> Any:
        result = super().adjoint(y)
        last, self.last = getattr(self, "last", result), result
        return last


class Counting(Shift):
    """Is right in its first call alone."""

    calls = 0

    def adjoint(self, y: Any) -> Any:
        self.calls += 1
        return super().adjoint(y) * (1 if self.calls == 1 else 2)


class Accumulating(Shift):
    """Adds to what the calls before have left."""

    def adjoint(self, y: Any) -> Any:
        self.total = getattr(self, "total", 0) + super().adjoint(y)
        return np.array(self.total)


class Overwriting(Shift):
    """Scales its argument in its place."""

    def forward(self, x: Any) -> Any:
        result = super().forward(x)
        x *= 2
        return result


class ForNoGain(Shift):
    """Declares half of its gain."""

    gain = 1
    fan_in = 1

    def forward(self, x: Any) -> Any:
        return 1_000_003 * super().forward(x)

    def adjoint(self, y: Any) -> Any:
        return 1_000_003 * super().adjoint(y)


class OtherSpaces(Shift):
    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        if self.is_faulty:
            self.codomain = al.Space(al.Tensor(layout, "float32"))


class UnlikeCopies(Shift):
    """Copies that are declared to be equal, and differ."""

    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        copied = al.Layout((2,), layout.partition, None, (None,))
        self.domain = self.codomain = al.Space(al.Tensor(copied, types=("invariant",)))

    def forward(self, x: Any) -> Any:
        return x + 1 if self.is_faulty else np.array(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class SummedOnce(Shift):
    """Sums over all ranks, whose adjoint is a sum too."""

    def __init__(self, comm: Any, layout: Any, dtype: str = "float64") -> None:
        super().__init__(comm, layout, dtype)
        self.gain = self.fan_in = None

    def forward(self, x: Any) -> Any:
        total = np.empty(x.shape)
        self.comm.Allreduce(np.ascontiguousarray(x), total, MPI.SUM)
        return total

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class SummedTwice(SummedOnce):
    def adjoint(self, y: Any) -> Any:
        return 2 * self.forward(y) if self.size > 1 else self.forward(y)


class Averaged(SummedOnce):
    def adjoint(self, y: Any) -> Any:
        return self.forward(y) / self.size


class LeavesOutOneRank(SummedOnce):
    def adjoint(self, y: Any) -> Any:
        return self.forward(0 * y if self.is_faulty else y)


def uneven(op: Any, y: Any, right: Any) -> Any:
    """Is wrong where the ranks have blocks of different sizes."""
    layout = op.domain.tensors[0].layout
    sizes = {layout.local_shape(rank) for rank in range(op.size)}
    return right * 2 if len(sizes) > 1 else right


class Identity(Shift):
    """A copy, of blocks of any widths."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        self.comm.Barrier()
        return np.array(x)


def empty_blocks(op: Any, y: Any, right: Any) -> Any:
    if not y.size:
        raise RuntimeError("nothing to do")
    return right


def with_reference(x: Any, layout: Any) -> Any:
    return np.array(x)


FAULTS = declared(
    globals(),
    (
        fault("crops where it has to sum", WRONG, base=Halo),
        fault("contribution of one rank dropped", WRONG, base=LeavesOutOneRank),
        fault("sum left out of the adjoint", WRONG, base=SummedOnce),
        fault("contributions counted twice", WRONG, base=SummedTwice),
        fault("mean for a sum", WRONG, base=Averaged),
        fault("conjugate left out", WRONG, base=Turned, draws=complex_blocks, ranks=1),
        adjoint("conjugate too many", lambda op, y, right: right.conj(), draws=complex_blocks, ranks=1),
        adjoint("wrong sign", lambda op, y, right: -right, ranks=1),
        adjoint("wrong sign on one rank", on_one_rank(lambda right: -right)),
        adjoint("adjoint that shifts forward again", lambda op, y, right: op.forward(y), ranks=3),
        adjoint("elements in reverse", lambda op, y, right: right[::-1].copy(), ranks=1),
        adjoint("off by one element", lambda op, y, right: np.roll(right, 1), ranks=1),
        adjoint("off by one part in 2^50", lambda op, y, right: right * (1 + 2.0**-50), ranks=1),
        adjoint(
            "rounded to float32",
            lambda op, y, right: (right / 3).astype("float32").astype("float64") * 3,
            ranks=1,
        ),
        adjoint(
            "wrong on three ranks and more", lambda op, y, right: right * (1 if op.size < 3 else 2), ranks=3
        ),
        adjoint("wrong where blocks are uneven", uneven, base=Identity, draws=cuts),
        adjoint(
            "raises where a block is empty",
            empty_blocks,
            ("raised RuntimeError",),
            base=Identity,
            draws=cuts,
            ranks=0,
        ),
        adjoint("all zeros", lambda op, y, right: 0 * right, ranks=1),
        adjoint("NaN", lambda op, y, right: right * np.nan, NOT_FINITE, ranks=1),
        adjoint("infinity on one rank", on_one_rank(lambda right: right + np.inf), NOT_FINITE),
        adjoint("wrong dtype", lambda op, y, right: right.astype("float32"), OUTPUT, ranks=1),
        adjoint("complex result of a real operator", lambda op, y, right: right + 0j, OUTPUT, ranks=1),
        adjoint("wrong shape", lambda op, y, right: right[1:], OUTPUT, ranks=1),
        adjoint("wrong number of dimensions", lambda op, y, right: right[None], OUTPUT, ranks=1),
        adjoint("wrong shape on one rank", on_one_rank(lambda right: right[1:]), OUTPUT),
        adjoint("returns None", lambda op, y, right: None, OUTPUT, ranks=1),
        adjoint("returns a list", lambda op, y, right: right.tolist(), OUTPUT, ranks=1),
        adjoint("returns two tensors for one", lambda op, y, right: (right, right), OUTPUT, ranks=1),
        adjoint("returns an array of objects", lambda op, y, right: right.astype(object), OUTPUT, ranks=1),
        forward(
            "not linear: absolute value",
            lambda op, x, right: abs(right),
            NOT_LINEAR,
            check="linearity",
            ranks=1,
        ),
        forward(
            "not linear: adds one",
            lambda op, x, right: right + 1,
            ("forward is not linear", "forward of zero is not zero"),
            check="linearity",
            ranks=1,
        ),
        fault(
            "writes into its argument",
            ("forward writes into its argument",),
            base=Overwriting,
            check="purity",
            ranks=1,
        ),
        fault(
            "reads uninitialised memory",
            ("forward reads uninitialised memory", *WRONG),
            base=Unwritten,
            check="purity",
            ranks=1,
        ),
        fault(
            "buffer that the next call writes into",
            ("a later call changes what forward has returned",),
            base=Buffered,
            check="reentrancy",
            ranks=1,
        ),
        fault(
            "result of the call before",
            ("adjoint depends on earlier calls",),
            base=Stale,
            check="reentrancy",
            ranks=1,
        ),
        fault(
            "right in the first call alone",
            ("adjoint depends on earlier calls",),
            base=Counting,
            check="reentrancy",
            ranks=1,
        ),
        fault(
            "adds to what earlier calls left",
            ("adjoint depends on earlier calls",),
            base=Accumulating,
            check="reentrancy",
            ranks=1,
        ),
        fault("gain larger than declared", GAIN, base=ForNoGain, ranks=0),
        fault(
            "ranks that declare different spaces",
            ("the ranks declare different spaces", *OUTPUT),
            base=OtherSpaces,
        ),
        fault(
            "copies that differ",
            ("forward returns different copies of what is declared equal",),
            base=UnlikeCopies,
            check="declared",
        ),
        fault(
            "not what the reference computes",
            ("the distributed result is not the sequential one",),
            reference=with_reference,
            check="sequential",
        ),
    ),
)

"""Each check is shown to fail on a planted bug that every other check passes. Each of its looks has one in ``looks/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.verdict import Status
from adjointlab.core.program import Buffer, Program, buffers, copy_to_new
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld

BUDGET = Budget(cases=20, ranks=4, seed=7)


class Rotate(al.LinearOperator):
    """Moves every worker's local tensor to the next worker; right in every respect."""

    gain = fan_in = 1

    def __init__(self, comm: Any, side: int, dtype: str = "float64") -> None:
        size = comm.Get_size()
        layout = al.Layout((size * side,), al.Partition((size,)))
        self.comm = comm
        self.domain = al.Space(layout, dtype=dtype)
        self.codomain = al.Space(layout, dtype=dtype, name="y")

    def shift(self, x: Any, step: int) -> Any:
        size, rank = self.comm.Get_size(), self.comm.Get_rank()
        out = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x), (rank + step) % size, 0, out, (rank - step) % size, 0)
        return out

    def forward(self, x: Any) -> Any:
        return self.shift(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self.shift(y, -1)

    def specification(self) -> Program:
        ranks = self.domain.tensors[0].layout.partition.ranks
        inputs, outputs = buffers(self.domain), buffers(self.codomain)
        steps: list[Any] = []
        for rank in ranks:
            steps += copy_to_new(inputs[rank].whole, outputs[(rank + 1) % len(ranks)])
        from adjointlab.core.program import Deallocate

        return Program(
            inputs, [*steps, *(Deallocate(Buffer(b.rank, b.name, b.shape, b.dtype)) for b in inputs)]
        )


class DropsImaginaryCotangent(Rotate):
    """Caught by `adjoint` alone: basis vectors are real, and it is linear over the reals that were tried."""

    def adjoint(self, y: Any) -> Any:
        # The imaginary part survives on everything that looks like a basis vector or a small test vector.
        large = np.abs(y.imag).max(initial=0.0) > 2.0**30
        return super().adjoint(y.real.astype(y.dtype) if large else y)


class DoublesBatches(Rotate):
    """Caught by `matrix` alone, which is the one to use batches."""

    batched = True

    def shift(self, x: Any, step: int) -> Any:
        return super().shift(x, step) * (2 if x.ndim > 1 else 1)


class SkipsZeros(Rotate):
    """Caught by `matrix` alone: a worker whose cotangent is all zero keeps away, as only a basis vector shows."""

    def adjoint(self, y: Any) -> Any:
        busy = self.comm.allgather(bool(np.asarray(y).any()))
        right = super().adjoint(y)
        return right * 2 if sum(busy) == 1 and len(busy) > 1 and np.abs(right).sum() == 1 else right


class SkipsCorner(Rotate):
    """Caught by `specification` alone: forward and adjoint are wrong alike."""

    def shift(self, x: Any, step: int) -> Any:
        out = super().shift(x, step)
        if self.comm.Get_rank() == (0 if step == 1 else self.comm.Get_size() - 1):
            out[:1] = 0
        return out


class OneAtZero(Rotate):
    """Caught by `linearity` alone: only the zero tensor shows that it is affine there."""

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        return out if any(self.comm.allgather(bool(np.asarray(x).any()))) else out + 1


class WritesIntoArgument(Rotate):
    """Caught by `purity` alone: the result is right, but the argument is gone."""

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        if self.comm.Get_size() > 1:
            x[...] = -x
        return out


class HasAllForms(Rotate):
    """Right in fresh memory, into `out` and in place."""

    def forward(self, x: Any, out: Any = None) -> Any:
        return self.into(out, self.shift(x, 1))

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return self.into(out, self.shift(y, -1))

    def forward_(self, x: Any) -> Any:
        return self.into(x, self.forward(x))

    def adjoint_(self, y: Any) -> Any:
        return self.into(y, self.adjoint(y))

    def into(self, out: Any, result: Any) -> Any:
        if out is None:
            return result
        out[...] = result
        return out


class OnTwoRanks(al.LinearOperator):
    """Two workers exchange their tensors; the others hold nothing, and can do nothing with an `out`."""

    gain = fan_in = 1

    def __init__(self, comm: Any, side: int) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(
            al.Layout((2 * side,), al.Partition((min(2, comm.Get_size()),)))
        )

    def forward(self, x: Any, out: Any = None) -> Any:
        rank, workers = self.comm.Get_rank(), self.domain.tensors[0].layout.partition.size
        if rank >= workers:
            assert out is None
            return np.zeros(x.shape, x.dtype)
        result = np.empty(x.shape, x.dtype) if out is None else out
        other = workers - 1 - rank
        self.comm.Sendrecv(np.ascontiguousarray(x), other, 0, result, other, 0)
        return result

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return self.forward(y, out)


class HasAnOutOfItsOwn(Rotate):
    """Right, with an `out`, `forward_` and `adjoint_` that mean something else."""

    def forward(self, x: Any, out: str = "log") -> Any:
        assert out == "log"
        return super().forward(x)

    def adjoint(self, y: Any, out: Any = None) -> Any:
        assert out is None
        return super().adjoint(y)

    def forward_(self) -> None:
        raise AssertionError


class ReturnsItsBuffer(Rotate):
    """Caught by `reentrancy` alone: the second call overwrites what the first returned."""

    buffer: Any = None

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        if self.buffer is None:
            self.buffer = out
        self.buffer[...] = out
        return self.buffer


class ReversesEverything(Rotate):
    """Caught by `sequential` alone: no specification, and reversing is its own adjoint."""

    def shift(self, x: Any, step: int) -> Any:
        size, rank = self.comm.Get_size(), self.comm.Get_rank()
        out = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x[::-1]), size - 1 - rank, 0, out, size - 1 - rank, 0)
        return out

    specification = al.LinearOperator.specification


class UnequalCopies(al.LinearOperator):
    """Caught by `declared` alone: an invariant sum that the last worker rounds; copies but the first count nowhere."""

    gain = fan_in = 8

    def __init__(self, comm: Any, side: int) -> None:
        size = comm.Get_size()
        self.comm = comm
        copies = al.Layout((side,), al.Partition((size,)), axes=(None,))
        self.domain = al.Space(copies, types=("partial",))
        self.codomain = al.Space(copies, types=("invariant",), name="y")

    def forward(self, x: Any) -> Any:
        total = np.empty(x.shape, x.dtype)
        self.comm.Allreduce(np.ascontiguousarray(x), total)
        return total * (1 + (self.comm.Get_rank() > 0))

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class ClaimsToDoNothing(Rotate):
    """Caught by `declared` alone: what applies an identity may leave it out, and this is none."""

    is_identity = True


def sides(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {"side": draw(st.integers(1, 3))}


def complex_sides(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {"side": draw(st.integers(1, 3)), "dtype": "complex128"}


def rolled(x: Any, side: int) -> Any:
    return np.roll(x, side)


PLANTED: list[tuple[str, Subject]] = [
    ("adjoint", al.subject(DropsImaginaryCotangent)(complex_sides)),
    ("matrix", al.subject(SkipsZeros)(sides)),
    ("matrix", al.subject(DoublesBatches)(sides)),
    ("specification", al.subject(SkipsCorner)(sides)),
    ("linearity", al.subject(OneAtZero)(sides)),
    ("purity", al.subject(WritesIntoArgument)(sides)),
    ("reentrancy", al.subject(ReturnsItsBuffer)(sides)),
    ("sequential", al.subject(ReversesEverything, reference=rolled)(sides)),
    ("declared", al.subject(UnequalCopies)(sides)),
    ("declared", al.subject(ClaimsToDoNothing)(sides)),
]


@pytest.fixture(scope="module")
def world() -> SimulatedWorld:
    return SimulatedWorld(4)


def reports(world: SimulatedWorld, subject: Subject) -> dict[str, SearchResult]:
    return {check: investigate(world, subject, check, BUDGET) for check in checks_of(subject)}


@pytest.mark.parametrize(
    ("check", "subject"), PLANTED, ids=[f"{check}-{subject.name}" for check, subject in PLANTED]
)
def test_the_bug_is_caught_by_its_check_and_by_no_other(
    world: SimulatedWorld, check: str, subject: Subject
) -> None:
    found = {name for name, report in reports(world, subject).items() if report.status is not Status.COHERENT}
    assert found == {check}


def test_the_right_operator_passes_every_check(world: SimulatedWorld) -> None:
    right = al.subject(Rotate, reference=rolled)(sides)
    verdicts = reports(world, right)
    assert set(verdicts) == {check for check, _ in PLANTED}
    assert {report.status for report in verdicts.values()} == {Status.COHERENT}


@pytest.mark.parametrize("kind", [HasAllForms, OnTwoRanks, HasAnOutOfItsOwn])
def test_a_right_operator_is_not_reported_for_its_forms_or_for_what_looks_like_one(
    world: SimulatedWorld, kind: type[al.LinearOperator]
) -> None:
    verdicts = reports(world, al.subject(kind)(sides))
    assert {report.status for report in verdicts.values()} == {Status.COHERENT}


class UnderstatesItsGain(Rotate):
    """Right in both directions, but it adds up more than it says."""

    def shift(self, x: Any, step: int) -> Any:
        return 3 * super().shift(x, step)

    specification = al.LinearOperator.specification


def test_a_declared_gain_that_is_too_small_is_caught_by_the_matrix(world: SimulatedWorld) -> None:
    report = investigate(world, al.subject(UnderstatesItsGain)(sides), "matrix", BUDGET)
    assert report.verdict.headline.startswith("the declared gain is too small")

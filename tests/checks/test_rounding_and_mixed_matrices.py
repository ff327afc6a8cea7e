"""Matrices of operators that round, and between real and complex spaces: neither is accused, nor more proved than was seen."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.adjoint import ADJOINT
from adjointlab.checks.context import InputSetting
from adjointlab.checks.matrix import MATRIX
from adjointlab.checks.proof import PROOF
from adjointlab.checks.verdict import Figure, Status, Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.checks.looks import harness
from tests.checks.looks.harness import Look

pytestmark = pytest.mark.mpi_skip


def verdict(operator: Any, check: Any = MATRIX, ranks: int = 1, seed: int = 0, **given: Any) -> Verdict:
    return harness.verdict(check, Look("", partial(operator, **given), "", ranks, InputSetting(seed)))


def space(size: int, dtype: str = "float64", ranks: int = 1, **given: Any) -> al.Space:
    return al.Space(al.Layout((size,), al.Partition((ranks,))), dtype=dtype, **given)


# A batch, and its members one by one.


class InTwoSteps(al.LinearOperator):
    """Two dense products on each rank: of a batch they are other sums than of one vector, and round otherwise."""

    batched = True

    def __init__(
        self,
        comm: Any,
        *,
        dtype: str = "float64",
        wrong: str = "",
        by: float = 0.0,
        at: int = 0,
        rank: int = 0,
    ) -> None:
        self.comm, self.wrong, self.by, self.at = comm, wrong, by, at
        self.is_wrong_here = comm.Get_rank() == rank
        self.domain = self.codomain = space(16 * comm.Get_size(), dtype, comm.Get_size())
        generator = np.random.default_rng(5 + comm.Get_rank())
        self.steps = [generator.standard_normal((16, 16)).astype(dtype) for _ in range(2)]

    def applied(self, direction: str, x: Any, first: Any, second: Any) -> Any:
        result = second @ (first @ x)
        if x.ndim > 1 and self.is_wrong_here and self.wrong == direction:
            result[self.at] *= 1 + self.by
        return np.ascontiguousarray(result)

    def forward(self, x: Any) -> Any:
        return self.applied("forward", x, self.steps[0], self.steps[1])

    def adjoint(self, y: Any) -> Any:
        return self.applied("adjoint", y, self.steps[1].T, self.steps[0].T)


class WholeInTwoSteps(InTwoSteps):
    """Coefficients are integers, so nothing rounds."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, **given)
        self.steps = [np.round(10 * step) for step in self.steps]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_batch_may_round_otherwise_than_its_members(dtype: str, ranks: int) -> None:
    assert verdict(InTwoSteps, ranks=ranks, dtype=dtype).is_coherent


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize(
    ("dtype", "by"), [("float64", 1.0), ("float64", 1e-9), ("float64", 1e-11), ("float32", 1e-2)]
)
def test_members_of_a_batch_that_differ_by_more_than_rounding_are_found(
    direction: str, dtype: str, by: float
) -> None:
    # The seed says which of 24 basis vectors is applied alone: the first one stands on rank 0, the last one on rank 2.
    for rank, seed in ((0, 0), (2, 23)):
        found = verdict(InTwoSteps, ranks=3, seed=seed, dtype=dtype, wrong=direction, by=by, at=9, rank=rank)
        assert (
            found.headline == f"{direction} gives something else for a batch than for its members one by one"
        )
        assert found.lines == (("rank", str(rank)),)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_members_of_a_batch_of_whole_numbers_are_compared_exactly(direction: str) -> None:
    assert verdict(WholeInTwoSteps).is_coherent

    class OneMore(WholeInTwoSteps):
        def applied(self, which: str, x: Any, first: Any, second: Any) -> Any:
            result = super().applied(which, x, first, second)
            return result + (which == direction and x.ndim > 1)

    found = verdict(OneMore)
    assert found.headline == f"{direction} gives something else for a batch than for its members one by one"


# A row sum that rounds.


class Smoothed(al.LinearOperator):
    """A convolution on one rank, some times over, around a ring of elements."""

    def __init__(
        self,
        comm: Any,
        weights: tuple[float, ...] = (0.1, 0.2, 0.4, 0.2, 0.1),
        *,
        gain: int = 1,
        over: int = 1,
        dtype: str = "float64",
    ) -> None:
        self.comm, self.weights, self.gain, self.over = comm, np.array(weights, dtype), gain, over
        self.domain = self.codomain = space(max(9, len(weights)), dtype)

    def convolved(self, x: Any, sign: int) -> Any:
        for _ in range(self.over):
            shifted = [weight * np.roll(x, sign * shift) for shift, weight in enumerate(self.weights)]
            x = np.array(sum(shifted[1:], shifted[0]), x.dtype)
        return x

    def forward(self, x: Any) -> Any:
        return self.convolved(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self.convolved(y, -1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("over", [1, 3])
@pytest.mark.parametrize(
    "weights", [(0.1, 0.2, 0.4, 0.2, 0.1), (1 / 3,) * 3, (0.1,) * 10, tuple(np.full(99, 1 / 99).tolist())]
)
def test_a_gain_of_one_is_no_smaller_than_weights_that_add_up_to_one_but_for_rounding(
    weights: tuple[float, ...], over: int, dtype: str
) -> None:
    assert verdict(Smoothed, weights=weights, over=over, dtype=dtype).is_coherent


@pytest.mark.parametrize(
    ("weights", "gain", "row_sum"),
    [
        ((1.0, 1.0), 1, "2"),
        ((1.0, 2.0, 1.0), 3, "4"),
        ((0.1, 0.2, 0.4, 0.2, 0.1001), 1, "1.0001"),
        ((0.5, 0.25, 0.5), 1, "1.25"),
        ((0.1, 0.2, 0.4, 0.2, 0.1 + 1e-9), 1, "1.000000001"),
    ],
)
def test_a_gain_that_is_smaller_by_more_than_rounding_is_found(
    weights: tuple[float, ...], gain: int, row_sum: str
) -> None:
    found = verdict(Smoothed, weights=weights, gain=gain)
    assert found.headline == "the declared gain is too small, so exact tests would not be exact"
    assert found.lines[0] == ("declared", str(gain))
    assert dict(found.lines)["row sum"].startswith(row_sum)


# Real and complex spaces: the pairing is the real part.


class Turned(al.LinearOperator):
    """Times a complex number, from real tensors to complex ones; `back` is the real-linear adjoint."""

    def __init__(self, comm: Any, by: complex = 1j, right: bool = True) -> None:
        self.comm, self.by, self.right = comm, by, right
        self.domain = space(3)
        self.codomain = space(3, "complex128", name="y")

    def forward(self, x: Any) -> Any:
        return np.asarray(self.by * x, "complex128")

    def adjoint(self, y: Any) -> Any:
        return np.ascontiguousarray(((np.conj(self.by) if self.right else 1) * y).real)


class TurnedBack(Turned):
    """The other way: from complex tensors to real ones."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, **given)
        self.domain, self.codomain = space(3, "complex128"), space(3, name="y")

    def forward(self, x: Any) -> Any:
        return super().adjoint(x)

    def adjoint(self, y: Any) -> Any:
        return super().forward(y)


class Doubled(Turned):
    """Wrong where basis vectors show it."""

    def adjoint(self, y: Any) -> Any:
        return 2 * super().adjoint(y)


MIXED = [Turned, TurnedBack]


@pytest.mark.parametrize("operator", MIXED)
def test_a_right_operator_between_real_and_complex_spaces_is_not_accused(operator: Any) -> None:
    for by in (1, 1j, 1 + 1j):
        assert verdict(operator, by=by).is_coherent
        found = verdict(operator, PROOF, by=by)
        assert found.status is Status.UNJUDGED
        assert found.headline == (
            "some of its tensors are real and others complex, and a proof has no basis vectors times i"
        )


@pytest.mark.parametrize("operator", MIXED)
def test_of_mixed_spaces_a_matrix_on_basis_vectors_without_i_is_called_a_sample(operator: Any) -> None:
    wrong = verdict(operator, by=1 + 1j, right=False)
    # Only the images of i e_j would show that it is wrong, which the dot test draws.
    assert wrong.is_coherent
    assert wrong.figures[Figure.PROVED] == "a sample"
    assert not verdict(operator, PROOF, by=1 + 1j, right=False).is_coherent


@pytest.mark.parametrize("check", [MATRIX, PROOF])
def test_a_wrong_operator_between_real_and_complex_spaces_is_found(check: Any) -> None:
    found = verdict(Doubled, check, by=1)
    assert found.headline == "adjoint is not the transpose of forward"
    assert found.lines[1] == ("adjoint", "gives that entry weight 2")


class Both(al.LinearOperator):
    """A real tensor and a complex one, side by side."""

    def __init__(self, comm: Any, drops: bool = False) -> None:
        self.comm, self.drops = comm, drops
        self.domain = self.codomain = al.Space(
            *space(2, name="r").tensors, *space(2, "complex128", name="c").tensors
        )

    def forward(self, r: Any, c: Any) -> Any:
        return 2 * r, 2 * c

    def adjoint(self, r: Any, c: Any) -> Any:
        return 2 * r, 2 * (c.real.astype(c.dtype) if self.drops else c)


def test_of_a_real_tensor_beside_a_complex_one_nothing_is_proved() -> None:
    for drops in (False, True):
        assert verdict(Both, drops=drops).figures[Figure.PROVED] == "a sample"
        assert verdict(Both, PROOF, drops=drops).status is Status.UNJUDGED


def test_the_dot_test_sees_what_basis_vectors_without_i_do_not() -> None:
    for operator in MIXED:
        assert verdict(operator, ADJOINT, by=1 + 1j).is_coherent
        assert not verdict(operator, ADJOINT, by=1 + 1j, right=False).is_coherent
    assert not verdict(Both, ADJOINT, drops=True).is_coherent


def test_a_map_that_is_linear_over_the_reals_alone_is_not_proved(world: al.SimulatedWorld) -> None:
    @al.subject.pair(lambda comm, x: x.real + 0j, lambda comm, y: y.real + 0j, ranks=(1,))
    def real_parts(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((3,), al.Partition((1,))), dtype="complex128")
        return dict(domain=space, codomain=space)

    found = investigate(world, real_parts, "proof", Budget(5, seed=1))
    assert found.verdict.headline == "forward gives a random vector another image than its matrix does"

"""Rounding in an operator is measured: right operators in several steps pass, and small coefficients hide nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import BothDirections, Spaces
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import EXACT
from adjointlab.checks.linearity import LINEARITY, Images, LinearityObservation
from adjointlab.checks.measured_rounding import residual_rounding
from adjointlab.checks.verdict import PERHAPS, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.replaying import replay
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

CHECKS = ("adjoint", "matrix", "linearity", "reentrancy")


class Local(al.LinearOperator):
    """Two functions of whole vectors on one rank."""

    def __init__(self, comm: Any, n: int, *, dtype: str = "float64") -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(al.Layout((n,), al.Partition((1,))), dtype=dtype)
        self.steps = [np.random.default_rng(n + k).standard_normal((n, n)) for k in range(3)]

    def forward(self, x: Any) -> Any:
        for step in self.steps:
            x = step @ x
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        for step in self.steps[::-1]:
            y = step.T @ y
        return np.array(y)


class Fourier(Local):
    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n, dtype="complex128")

    def forward(self, x: Any) -> Any:
        return np.fft.fft(x)

    def adjoint(self, y: Any) -> Any:
        return np.fft.ifft(y) * y.size


class SecondDifferenceOfSmoothed(Local):
    """Its coefficients are far smaller than what is in between."""

    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n)
        i = np.arange(n)
        difference = (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) / 3
        difference[[0, -1]] = 0
        self.steps = [np.exp(-(((i[:, None] - i) / 200.0) ** 2) / 2) / 7, difference]


class Implicit(Local):
    """Fifteen steps of Crank and Nicolson, each a solve."""

    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n)
        laplacian = 8 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
        self.a, self.b = np.eye(n) + laplacian / 2, np.eye(n) - laplacian / 2

    def forward(self, x: Any) -> Any:
        for _ in range(15):
            x = np.linalg.solve(self.a, self.b @ x)
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        for _ in range(15):
            y = self.b.T @ np.linalg.solve(self.a.T, y)
        return np.array(y)


class Shift(Local):
    """Its adjoint is computed in the frequency domain, where no entry stays an integer."""

    def forward(self, x: Any) -> Any:
        return np.roll(x, 1)

    def adjoint(self, y: Any) -> Any:
        turns = np.exp(2j * np.pi * np.fft.fftfreq(y.size))
        return np.ascontiguousarray(np.fft.ifft(np.fft.fft(y) * turns).real)


class Scaled(Local):
    """Times a number, and in `adjoint` times another one."""

    def __init__(self, comm: Any, n: int, by: float = 3.0, back: float | None = None) -> None:
        super().__init__(comm, n)
        self.by, self.back = by, by if back is None else back

    def forward(self, x: Any) -> Any:
        return x * self.by

    def adjoint(self, y: Any) -> Any:
        return y * self.back


class LargeTerms(Scaled):
    """Its coefficients are integers, far smaller than those of the terms that it adds up."""

    def forward(self, x: Any) -> Any:
        return 1000 * x - 999 * x

    adjoint = forward


class TermsThatCancel(Scaled):
    """Zero but for rounding, as a sparse matrix whose entries at one place add up to nothing."""

    def forward(self, x: Any) -> Any:
        return x - 3 * x + 2 * x

    adjoint = forward


class Third(Scaled):
    gain = 1
    fan_in = 1

    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n, 1 / 3)


class Cast(Third):
    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n)
        self.codomain = al.Space(al.Layout((n,), al.Partition((1,))), dtype="float32")

    def forward(self, x: Any) -> Any:
        return x.astype(np.float32)

    def adjoint(self, y: Any) -> Any:
        return y.astype(np.float64)


def verdict(operator: Any, check: str, sizes: tuple[int, ...], **arguments: Any) -> Verdict:
    @al.subject.operator(operator, ranks=(1,))
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return {
            "n": draw(al.strategies.rank_orders(len(sizes), 1).map(lambda order: sizes[order[0]]))
        } | arguments

    return investigate(SimulatedWorld(1), drawn, check, Budget(10, seed=1, shrinking=0)).verdict


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        (Local, (100, 24, 3)),
        (Fourier, (150, 97, 6)),
        (SecondDifferenceOfSmoothed, (3, 12)),
        (Implicit, (3, 9)),
        (Shift, (5, 30)),
        (Scaled, (1, 4)),
        (LargeTerms, (1, 4)),
        (TermsThatCancel, (1, 4)),
        (Third, (1, 4)),
        (Cast, (1, 4)),
    ],
)
def test_a_right_operator_that_rounds_is_coherent(operator: Any, sizes: tuple[int, ...], check: str) -> None:
    assert verdict(operator, check, sizes).is_coherent


@pytest.mark.parametrize("check", CHECKS)
def test_large_coefficients_of_half_precision_do_not_overflow(check: str) -> None:
    class Half(Scaled):
        def __init__(self, comm: Any, n: int) -> None:
            super().__init__(comm, n, 10_000.0)
            self.domain = self.codomain = al.Space(al.Layout((n,), al.Partition((1,))), dtype="float16")

    assert verdict(Half, check, (1, 4)).is_coherent


@pytest.mark.parametrize("by", [1.0, 1e-18, 1e18])
@pytest.mark.parametrize("check", ["adjoint", "matrix"])
def test_a_wrong_adjoint_is_found_whatever_the_size_of_the_coefficients(by: float, check: str) -> None:
    assert not verdict(Scaled, check, (1, 4), by=by, back=by * (1 + 1e-9)).is_coherent


class ThirdDerivative(Local):
    """Of polynomials of degree 2, by their values in three points: zero but for rounding."""

    def __init__(self, comm: Any, n: int) -> None:
        super().__init__(comm, n)
        powers = np.vander(np.linspace(0.1, 1.3, n), increasing=True)
        derivatives = np.zeros((n, n))
        derivatives[:, 1:] = powers[:, :-1] * np.arange(1, n)
        self.steps = [derivatives @ np.linalg.inv(powers)] * 3


class Detrended(Local):
    """Subtracts the linear trend, after which two elements are zero but for rounding."""

    def __init__(self, comm: Any, n: int, back: float = 0.0) -> None:
        super().__init__(comm, n)
        self.trends, _ = np.linalg.qr(np.stack([np.ones(n), np.linspace(0.0, 1.0, n)], axis=1))
        self.back = back

    def forward(self, x: Any) -> Any:
        return x - self.trends @ (self.trends.T @ x)

    def adjoint(self, y: Any) -> Any:
        return self.forward(y) + self.back * y


@pytest.mark.parametrize("check", ["adjoint", "matrix", "linearity", "purity"])
@pytest.mark.parametrize(("operator", "size"), [(ThirdDerivative, 3), (Detrended, 2)])
def test_an_operator_that_is_zero_but_for_rounding_is_coherent(operator: Any, size: int, check: str) -> None:
    assert verdict(operator, check, (size,)).is_coherent


def test_residual_rounding_is_that_of_tiny_elements_alone() -> None:
    changes, sizes = np.array([1e-3, 2e-17, 1e-17]), np.array([1.0, 1e-16, 0.0])
    assert residual_rounding(changes, sizes, 53) == 2e-17


@pytest.mark.parametrize("check", ["adjoint", "matrix"])
def test_a_wrong_adjoint_of_an_operator_that_is_zero_but_for_rounding_is_found(check: str) -> None:
    assert not verdict(Detrended, check, (2,), back=1e-9).is_coherent


def test_one_instance_is_judged_by_what_rounding_was_measured_to_do_to_it() -> None:
    run = SimulatedWorld(1).run(lambda context, _: str(al.check_adjoint(LargeTerms(context.comm, 4))), None)
    assert run.values == ("coherent (every entry, on one rank alone)",)


def test_an_adjoint_of_terms_that_cancel_is_found_not_to_be_zero() -> None:
    class Wrong(TermsThatCancel):
        def adjoint(self, y: Any) -> Any:
            return y * 1e-9

    assert not verdict(Wrong, "adjoint", (1, 4)).is_coherent


@pytest.mark.parametrize("wrong", [False, True])
def test_a_block_of_small_coefficients_is_judged_beside_one_of_large_ones(wrong: bool) -> None:
    class Blocks(Local):
        def forward(self, x: Any) -> Any:
            half = x.size // 2
            return np.concatenate([1e10 * x[:half], 1e-11 * x[half:]])

        def adjoint(self, y: Any) -> Any:
            half = y.size // 2
            second = np.roll(y[half:], 1) if wrong else y[half:]
            return np.concatenate([1e10 * y[:half], 1e-11 * second])

    assert verdict(Blocks, "matrix", (8,)).is_coherent is not wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_small_coefficient_is_judged_beside_a_large_one_of_its_row(wrong: bool) -> None:
    class Row(Local):
        def forward(self, x: Any) -> Any:
            return np.array([1e10 * x[0] + 1e-11 * x[1], 0.0])

        def adjoint(self, y: Any) -> Any:
            return np.array([1e10 * y[0], (2e-11 if wrong else 1e-11) * y[0]])

    assert verdict(Row, "matrix", (2,)).is_coherent is not wrong


def test_results_of_small_coefficients_are_compared_with_the_reference() -> None:
    def tripled(comm: Any, x: Any) -> Any:
        return x * (3e-18 if comm.Get_rank() == 1 else 1e-18)

    @al.subject.pair(tripled, tripled, reference=lambda x: x * 1e-18, ranks=(2,))
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((4,), al.Partition((ranks,))))
        return {"domain": space, "codomain": space}

    assert not investigate(SimulatedWorld(2), drawn, "sequential", Budget(5, seed=1)).verdict.is_coherent


def test_a_gain_that_is_declared_for_fractions_bounds_rounding_and_promises_nothing_exact() -> None:
    def gain(operator: Any) -> Any:
        def body(context: Any, _: None) -> Any:
            comm = context.comm
            of = CheckContext(lambda: operator(comm, 4), InputSetting(seed=3), comm)
            return of.arithmetic.gain

        return SimulatedWorld(1).run(body, None).values[0]

    assert not gain(Third).is_exact
    assert gain(Third).row_sum == 1.0

    class Whole(Scaled):
        gain = 3

    assert gain(Whole).is_exact
    assert gain(Whole).value == 3


class Approximate(al.LinearOperator):
    """A solve that stops at a tolerance: the results of both directions are off by as much."""

    def __init__(self, comm: Any, n: int, *, rounding: float | None, doubles: bool = False) -> None:
        self.comm, self.rounding, self.doubles, self.calls = comm, rounding, doubles, 0
        self.domain = self.codomain = al.Space(al.Layout((n,), al.Partition((1,))))

    def off(self, x: Any) -> Any:
        self.calls += 1
        norm = np.linalg.norm(x)
        return x / 3 + 1e-8 * norm * np.cos(self.calls + np.arange(x.size)) / max(1, x.size)

    def forward(self, x: Any) -> Any:
        return self.off(x)

    def adjoint(self, y: Any) -> Any:
        return self.off(y) * (1 + self.doubles)


@pytest.mark.parametrize("check", ["adjoint", "matrix", "linearity", "purity", "reentrancy"])
def test_a_solver_is_judged_within_the_rounding_that_it_declares(check: str) -> None:
    assert verdict(Approximate, check, (4, 7), rounding=1e-7).is_coherent
    assert not verdict(Approximate, check, (4, 7), rounding=None).is_coherent
    if check in ("adjoint", "matrix"):
        assert not verdict(Approximate, check, (4, 7), rounding=1e-7, doubles=True).is_coherent


def test_a_small_error_may_be_that_of_a_solver() -> None:
    """The entry that is off is shown, with what it may come from."""
    found = verdict(Approximate, "adjoint", (4, 7), rounding=None)
    assert "declare the allowed error as `rounding`" in dict(found.lines)["perhaps"]


@pytest.mark.parametrize("rounding", [0, -1e-3, 1.0, "1e-8", float("nan")])
def test_a_rounding_that_is_no_part_of_one_is_refused(rounding: Any) -> None:
    found = verdict(Approximate, "adjoint", (4,), rounding=rounding)
    assert f"rounding = {rounding!r} is not a number between 0 and 1" in found.headline


def test_the_roundings_of_the_parts_of_an_operator_add_up() -> None:
    def body(context: Any, _: None) -> Any:
        one, other = (Approximate(context.comm, 4, rounding=each) for each in (1e-8, 2e-8))
        exact = Approximate(context.comm, 4, rounding=None)
        return [(one @ other).rounding, (one @ exact).rounding, (exact @ exact).rounding]

    assert SimulatedWorld(1).run(body, None).values[0] == [pytest.approx(3e-8), 1e-8, None]


def test_an_exhaustive_proof_of_what_rounds_could_not_be_judged() -> None:
    @al.subject.operator(Fourier, ranks=(1,))
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return {"n": 5}

    found = investigate(SimulatedWorld(1), drawn, "proof", Budget(1, seed=1)).verdict
    assert found.headline == "its results round, and a proof compares them bit by bit"


def test_two_weights_that_differ_in_the_last_digits_are_told_apart() -> None:
    found = verdict(Scaled, "matrix", (1,), by=1.0, back=1 + 1e-9)
    texts = dict(found.lines)
    assert texts["adjoint"].endswith("1.0000000010000001")
    assert texts["forward"].endswith(" 1")


def test_rounding_is_allowed_for_the_integers_that_are_drawn_where_fewer_would_be_exact() -> None:
    """With 51 to 53 bits of its coefficient, integers up to 2 are exact, and no room is left to combine them."""

    class Spread(al.LinearOperator):
        def __init__(self, comm: Any) -> None:
            self.comm = comm
            self.coefficient = np.random.default_rng(1).uniform(2, 100)
            self.domain = self.codomain = al.Space(al.Layout((1,), al.Partition((1,))))

        def forward(self, x: Any) -> Any:
            return self.coefficient * x

        adjoint = forward

    # The key under which 2x and y cancel but for a few of their bits.
    case = Case("Spread", "linearity", 1, {}, InputSetting(seed=193701396), 0)
    subject = al.subject.operator(Spread)(lambda draw, ranks: {})
    assert replay(SimulatedWorld(1), subject, case).verdict.is_coherent


@pytest.mark.parametrize(("error", "is_told"), [(1e-12, True), (0.5, False)])
def test_a_small_difference_in_linearity_is_told_with_what_it_may_come_from(
    error: float, is_told: bool
) -> None:
    space = al.Space(al.Layout((1,), (1,)))
    images = Images((np.array([3.0 + error]),), (np.array([3.0]),), (np.zeros(1),))
    observed = LinearityObservation(BothDirections(images, images), EXACT)
    verdict = LINEARITY.judge(Spaces(space, space), [observed])
    assert verdict.headline == "forward is not linear"
    assert (PERHAPS in verdict.lines) is is_told
